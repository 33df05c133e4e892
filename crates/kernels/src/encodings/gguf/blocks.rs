//! The formats of GGUF files with blocks of 32 columns, and iq4_xs, whose codes lie as theirs do: low
//! nibbles are those of 16 columns, and high ones of the next 16.

use std::marker::PhantomData;

use super::quarters::{less_32, of_16, of_32, scaled};
use super::reference::IQ4_CODES;
use crate::encodings::{Coded, RowCursor};
use crate::simd::Simd;
use crate::{Encoding, GgufBlocks, Matrix};

/// A format of such blocks.
pub(in crate::encodings) trait BlockFormat: Copy {
    const FORMAT: GgufBlocks;
    /// Offset of the codes, which end the block.
    const CODES: usize;
    /// Offset of the fifth bits of codes.
    const FIFTHS: Option<usize> = None;
    /// Codes of the nibbles, if they are not their own.
    const TABLE: Option<[u8; 16]> = None;
}

macro_rules! blocks {
    ($($name:ident $codes:literal $($what:ident $value:expr)?;)*) => {$(
        #[derive(Clone, Copy)]
        pub(in crate::encodings) struct $name;

        impl BlockFormat for $name {
            const FORMAT: GgufBlocks = GgufBlocks::$name;
            const CODES: usize = $codes;
            $(blocks!(@ $what $value);)?
        }
    )*};
    (@ fifths $value:expr) => { const FIFTHS: Option<usize> = Some($value); };
    (@ table $value:expr) => { const TABLE: Option<[u8; 16]> = Some($value); };
}

blocks! {
    Q4_0 2;
    Q4_1 4;
    Q5_0 6 fifths 2;
    Q5_1 8 fifths 4;
    Iq4Nl 2 table IQ4_CODES;
}

/// [`Coded`] of such a format.
#[derive(Clone, Copy)]
pub(in crate::encodings) struct Blocks<S: Simd, B> {
    table: S::Table,
    format: PhantomData<B>,
}

impl<S: Simd, B: BlockFormat> Coded<S> for Blocks<S, B> {
    const ENCODING: Encoding = Encoding::Gguf(B::FORMAT);
    const BYTES: usize = 8 * B::FORMAT.bytes();
    type Shared = ();

    #[inline(always)]
    fn new(s: S, _: &Matrix) -> Self {
        Blocks { table: s.table(&B::TABLE.unwrap_or_default()), format: PhantomData }
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
        added: *mut f32,
    ) {
        let bytes = B::FORMAT.bytes();
        // SAFETY: by the contract of the trait.
        unsafe {
            let p = at.codes().add(8 * bytes * span);
            s.store_h(s.f16_h(p, bytes), scales);
            if Self::CODING.less.is_none() {
                s.store_h(s.f16_h(p.add(2), bytes), added);
            }
        }
    }
    #[inline(always)]
    unsafe fn unit(self, s: S, (): &(), at: &RowCursor, unit: usize) -> [S::F; 4] {
        let bytes = B::FORMAT.bytes();
        // SAFETY: by the contract of the trait.
        unsafe {
            let first = at.codes().add(2 * bytes * unit);
            let second = first.add(bytes);
            let codes = s.load_halved(first.add(B::CODES), second.add(B::CODES));
            if let Some(fifths) = B::FIFTHS {
                let low = u64::from(of_32(first.add(fifths)));
                let fifths = u64::from(of_32(second.add(fifths))) << 32 | low;
                return s.fields(s.add_where(s.and_b(codes, 15), fifths, 16), 31);
            }
            if B::TABLE.is_some() {
                return s.looked_up(self.table, codes);
            }
            s.fields(codes, 15)
        }
    }
}

/// Writes the scales of the eight runs of a block of iq4_xs, and eight other numbers.
///
/// # Safety
///
/// The block must be readable at `p`, and 16 numbers writable.
#[inline(always)]
pub(in crate::encodings) unsafe fn iq4_xs_scales<S: Simd>(s: S, p: *const u8, scales: *mut f32) {
    // SAFETY: by this function's contract.
    unsafe {
        let low = u64::from(of_32(p.add(4)));
        let high = u64::from(of_16(p.add(2)));
        // Eight times four bits, and eight times two, each in a byte of its own.
        let low = (low | low << 16) & 0x0000_ffff_0000_ffff;
        let low = (low | low << 8) & 0x00ff_00ff_00ff_00ff;
        let low = (low | low << 4) & 0x0f0f_0f0f_0f0f_0f0f;
        let high = (high | high << 24) & 0x0000_00ff_0000_00ff;
        let high = (high | high << 12) & 0x000f_000f_000f_000f;
        let high = (high | high << 6) & 0x0303_0303_0303_0303;
        scaled(s, p, 0, [less_32(low | high << 4), 0], scales);
    }
}

#[derive(Clone, Copy)]
pub(in crate::encodings) struct Iq4Xs<S: Simd>(S::Table);

impl<S: Simd> Coded<S> for Iq4Xs<S> {
    const ENCODING: Encoding = Encoding::Gguf(GgufBlocks::Iq4Xs);
    const BYTES: usize = GgufBlocks::Iq4Xs.bytes();
    type Shared = ();

    #[inline(always)]
    fn new(s: S, _: &Matrix) -> Self {
        Iq4Xs(s.table(&IQ4_CODES))
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
        unsafe {
            iq4_xs_scales(s, at.codes().add(GgufBlocks::Iq4Xs.bytes() * span), scales);
        }
    }
    #[inline(always)]
    unsafe fn unit(self, s: S, (): &(), at: &RowCursor, unit: usize) -> [S::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe {
            let p = at.codes().add(GgufBlocks::Iq4Xs.bytes() * (unit / 4));
            let codes = p.add(8 + 32 * (unit % 4));
            let codes = s.load_halved(codes, codes.add(16));
            s.looked_up(self.0, codes)
        }
    }
}
