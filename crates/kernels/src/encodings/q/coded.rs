//! Kernel of q4.

use crate::encodings::{Coded, RowCursor};
use crate::simd::Simd;
use crate::{Encoding, Matrix};

/// Codes in groups of 64 columns, of which every sixteenth one is in the same two bytes.
#[derive(Clone, Copy)]
pub(in crate::encodings) struct Q4;

impl<S: Simd> Coded<S> for Q4 {
    const ENCODING: Encoding = Encoding::Q4;
    const BYTES: usize = 128;
    type Shared = ();

    #[inline(always)]
    fn new(_: S, _: &Matrix) -> Self {
        Q4
    }
    #[inline(always)]
    unsafe fn shared(self, _: S, _: &RowCursor, _: usize) {}
    #[inline(always)]
    unsafe fn scales(
        self,
        s: S,
        (): &(),
        at: &RowCursor,
        span: usize,
        scales: *mut f32,
        _: *mut f32,
    ) {
        // SAFETY: by the contract of the trait.
        unsafe { s.store_h(s.bf16_h(at.scales().add(8 * span), 2), scales) };
    }
    #[inline(always)]
    unsafe fn unit(self, s: S, (): &(), at: &RowCursor, unit: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe { s.apart(at.codes().add(32 * unit)) }
    }
}
