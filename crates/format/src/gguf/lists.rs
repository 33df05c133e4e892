//! Lists of a header in memory, whose elements are decoded one at a time. As [`Value`]s they would
//! take several times their bytes.

use super::cursor::GgufCursor;
use super::{GgufError, LIST, TEXT};
use crate::Value;

/// Bytes of a list before its elements: their type and their number.
const START: usize = 4 + 8;

/// A list in a header.
#[derive(Clone, Copy, Debug)]
pub struct GgufList<'a> {
    /// Type of the elements.
    kind: u32,
    count: usize,
    elements: &'a [u8],
}

impl<'a> GgufList<'a> {
    /// The list with these bytes, which were checked.
    pub(super) fn new(bytes: &'a [u8]) -> Option<GgufList<'a>> {
        let (start, elements) = bytes.split_at_checked(START)?;
        let (kind, count) = start.split_at(4);
        let kind = u32::from_le_bytes(kind.try_into().ok()?);
        let count = u64::from_le_bytes(count.try_into().ok()?);
        Some(GgufList { kind, count: usize::try_from(count).ok()?, elements })
    }

    /// Number of elements.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The texts. `None` if the elements are not texts.
    pub fn texts(&self) -> Option<impl Iterator<Item = Result<&'a str, GgufError>> + use<'a>> {
        if self.kind != TEXT {
            return None;
        }
        let mut left = self.elements;
        Some((0..self.count).map(move |_| {
            let (text, rest) = text(left).ok_or(GgufError::Ends { within: "a list" })?;
            left = rest;
            str::from_utf8(text).map_err(|_| GgufError::Text)
        }))
    }

    /// The numbers or truth values. `None` if the elements are neither.
    pub fn numbers(&self) -> Option<impl Iterator<Item = Result<Value, GgufError>> + use<'a>> {
        let GgufList { kind, count, elements } = *self;
        if matches!(kind, TEXT | LIST) {
            return None;
        }
        let mut cursor = GgufCursor::new(elements, elements.len() as u64);
        Some((0..count).map(move |_| cursor.number(kind)))
    }
}

/// The bytes of a text, and those behind it.
fn text(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)
}
