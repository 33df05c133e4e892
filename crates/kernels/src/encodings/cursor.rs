//! The place of a decoder in a row.

use std::marker::PhantomData;

use super::facts::Scales;
use super::{Encoding, Matrix};

/// Position of the decoder in a row.
#[derive(Clone, Copy)]
pub(crate) struct RowCursor<'a> {
    pub(super) row: usize,
    pub(super) codes: *const u8,
    /// Scales; the top of nested.
    pub(super) scales: *const u8,
    /// Of encodings with patches: those from the next block on. With act-order: the group of
    /// each.
    pub(super) beside: &'a [u8],
    bytes: PhantomData<&'a [u8]>,
}

impl<'a> RowCursor<'a> {
    /// A cursor at the beginning of a row. The encoding is a constant when a kernel is compiled.
    #[inline(always)]
    pub(crate) fn new(encoding: Encoding, m: &Matrix<'a>, row: usize) -> Self {
        let facts = encoding.facts();
        let scales = match facts.scales {
            Scales::Within => &[],
            Scales::ByRows | Scales::OfE4m3 { .. } => m.scales(encoding, row),
        };
        RowCursor {
            row,
            codes: m.row_bytes(0, row).as_ptr(),
            scales: scales.as_ptr(),
            beside: match facts.order {
                Some(part) => m.part(part),
                None => m.patches(encoding, row),
            },
            bytes: PhantomData,
        }
    }

    /// The number of the row.
    #[inline(always)]
    pub(crate) fn row(&self) -> usize {
        self.row
    }

    /// Start of the row's scales.
    #[inline(always)]
    pub(crate) fn scales(&self) -> *const u8 {
        self.scales
    }

    /// Start of the row's bytes in the first part.
    #[inline(always)]
    pub(crate) fn codes(&self) -> *const u8 {
        self.codes
    }
}
