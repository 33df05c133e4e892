//! Products with weights that are summed as codes: see [`Coding`] for the definition.

// Loops over registers by index are unrolled; some with iterators were not. There are no closures,
// which are compiled for the baseline CPU where they are not inlined.
#![allow(clippy::needless_range_loop)]

#[path = "../encodings/gguf/blocks.rs"]
mod blocks;
#[path = "../encodings/gguf/coded.rs"]
mod codebook;
mod many;
mod one;
#[path = "../encodings/int4/coded.rs"]
mod pairs;
#[path = "../encodings/gguf/quarters.rs"]
mod quarters;
mod weights;

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::decode::RowCursor;
use crate::reference::{Coding, Fours, RunScales, SPAN_COLS, unit_codes};
use crate::simd::Simd;
use crate::{Encoding, GgufBlocks, Matrix, Published};

pub(super) use blocks::iq4_xs_scales;
pub(super) use many::{SUMS, many};
pub(super) use one::one;
pub(super) use quarters::{both, of_16, of_32, of_64, q3_k_runs};

/// Decoder of an encoding to the codes of its units.
pub(super) trait Coded<S: Simd>: Copy {
    const ENCODING: Encoding;

    const CODING: Coding = match Coding::of(Self::ENCODING) {
        Some(coding) => coding,
        None => panic!("an encoding without codes"),
    };

    /// Bytes of a span in the first part.
    const BYTES: usize;

    fn new(s: S, m: &Matrix) -> Self;

    /// What the units of a span have in common.
    type Shared: Copy;

    /// Decodes what the units of a span have in common.
    ///
    /// # Safety
    ///
    /// The cursor must belong to a matrix in this encoding that has columns of this span.
    unsafe fn shared(self, s: S, at: &RowCursor, span: usize) -> Self::Shared;

    /// Writes the scales of the runs of a span, and what is added for each unit of their activations'
    /// sums if [`Coding::less`] does not say that these are the same.
    ///
    /// # Safety
    ///
    /// As for [`shared`](Self::shared), and the matrix must have all columns of the span. 16 numbers
    /// must be writable at `scales` and at `added`.
    unsafe fn scales(
        self,
        s: S,
        shared: &Self::Shared,
        at: &RowCursor,
        span: usize,
        scales: *mut f32,
        added: *mut f32,
    );

    /// Decodes a unit: its number in the row, of which the lowest two bits are those in the span.
    ///
    /// # Safety
    ///
    /// As for [`shared`](Self::shared), and the matrix must have all columns of the unit.
    unsafe fn unit(self, s: S, shared: &Self::Shared, at: &RowCursor, unit: usize) -> [S::F; 4];
}

/// The scales of a span, and what is added for its runs, in memory.
#[derive(Clone, Copy)]
struct OfSpan<S: Simd, C: Coded<S>> {
    /// Not all of it is written, nor read.
    scales: MaybeUninit<RunScales>,
    of: PhantomData<(S, C)>,
}

impl<S: Simd, C: Coded<S>> OfSpan<S, C> {
    /// Those of a span that may be the last.
    ///
    /// # Safety
    ///
    /// The cursor must belong to this matrix, which has a column of the span.
    #[inline(always)]
    unsafe fn read(
        s: S,
        codes: C,
        shared: &C::Shared,
        at: &RowCursor,
        m: &Matrix,
        span: usize,
    ) -> Self {
        match SPAN_COLS * (span + 1) <= m.cols() {
            // SAFETY: by this function's contract.
            true => unsafe { Self::whole(s, codes, shared, at, span) },
            false => {
                let scales = RunScales::read(C::CODING, m, at.row(), span);
                OfSpan { scales: MaybeUninit::new(scales), of: PhantomData }
            }
        }
    }

    /// Those of a whole span.
    ///
    /// # Safety
    ///
    /// As for [`Coded::scales`].
    #[inline(always)]
    unsafe fn whole(s: S, codes: C, shared: &C::Shared, at: &RowCursor, span: usize) -> Self {
        let mut scales = MaybeUninit::<RunScales>::uninit();
        let to = scales.as_mut_ptr();
        // SAFETY: by this function's contract, and 16 numbers each.
        unsafe {
            let scales = (&raw mut (*to).scales).cast();
            let added = (&raw mut (*to).added).cast();
            codes.scales(s, shared, at, span, scales, added);
        }
        OfSpan { scales, of: PhantomData }
    }

    /// What is added for each run.
    #[inline(always)]
    fn added(&self) -> *const f32 {
        let scales = self.scales.as_ptr();
        // SAFETY: the field of a struct that is there.
        unsafe {
            match C::CODING.less {
                Some(_) => (&raw const (*scales).scales).cast(),
                None => (&raw const (*scales).added).cast(),
            }
        }
    }

    /// The scale of each four of a unit, whose number in the span this is.
    #[inline(always)]
    fn scale(&self, s: S, unit: usize) -> S::F {
        // SAFETY: the scales of all runs were written.
        unsafe { in_lanes::<S, C>(s, self.scales.as_ptr().cast(), unit) }
    }

    /// Adds what belongs to the sums of the activations of the runs.
    #[inline(always)]
    fn add(&self, s: S, sums: &[[f32; 8]], mut minima: S::H) -> S::H {
        for half in 0..C::CODING.runs() / 8 {
            // SAFETY: eight numbers each, which were written for all runs.
            unsafe {
                let added = s.load_h(self.added().add(8 * half));
                minima = s.fma_h(added, s.load_h(sums[half].as_ptr()), minima);
            }
        }
        minima
    }
}

/// Code for the decoder of each encoding.
pub(super) trait ForCoded<S: Simd> {
    /// Runs the code with this decoder.
    fn run<C: Coded<S>>(self, s: S);
}

/// Runs `code` with the decoder of an encoding that has codes.
#[inline(always)]
pub(super) fn for_coded<S: Simd>(s: S, encoding: Encoding, code: impl ForCoded<S>) {
    match encoding {
        Encoding::Q4 => code.run::<pairs::Q4>(s),
        Encoding::Gguf(format) => match format {
            GgufBlocks::Q4_0 => code.run::<blocks::Blocks<S, blocks::Q4_0>>(s),
            GgufBlocks::Q4_1 => code.run::<blocks::Blocks<S, blocks::Q4_1>>(s),
            GgufBlocks::Q5_0 => code.run::<blocks::Blocks<S, blocks::Q5_0>>(s),
            GgufBlocks::Q5_1 => code.run::<blocks::Blocks<S, blocks::Q5_1>>(s),
            GgufBlocks::Iq4Nl => code.run::<blocks::Blocks<S, blocks::Iq4Nl>>(s),
            GgufBlocks::Iq4Xs => code.run::<blocks::Iq4Xs<S>>(s),
            GgufBlocks::Q2K => code.run::<quarters::Q2K>(s),
            GgufBlocks::Q3K => code.run::<quarters::Q3K>(s),
            GgufBlocks::Q4K => code.run::<quarters::Q4K>(s),
            GgufBlocks::Q5K => code.run::<quarters::Q5K>(s),
            GgufBlocks::Q6K => code.run::<quarters::Q6K>(s),
            GgufBlocks::Iq1S => code.run::<codebook::Iq1S<S>>(s),
            GgufBlocks::Iq1M => code.run::<codebook::Iq1M<S>>(s),
            GgufBlocks::Iq2Xxs => code.run::<codebook::Iq2Xxs<S>>(s),
            GgufBlocks::Iq2Xs => code.run::<codebook::Iq2Xs<S>>(s),
            GgufBlocks::Iq2S => code.run::<codebook::Iq2S<S>>(s),
            GgufBlocks::Iq3Xxs => code.run::<codebook::Iq3Xxs<S>>(s),
            GgufBlocks::Iq3S => code.run::<codebook::Iq3S<S>>(s),
            GgufBlocks::Q8_0 | GgufBlocks::Mxfp4 => unreachable!("a format without codes"),
        },
        Encoding::Published(layout) => match layout {
            Published::Int4 => code.run::<pairs::CodedPairs<S, pairs::Int4>>(s),
            Published::Int4By128 => code.run::<pairs::CodedPairs<S, pairs::Int4By128>>(s),
            Published::Int4Zeros32 => code.run::<pairs::CodedPairs<S, pairs::Zeros<32>>>(s),
            Published::Int4Zeros64 => code.run::<pairs::CodedPairs<S, pairs::Zeros<64>>>(s),
            Published::Int4Zeros128 => code.run::<pairs::CodedPairs<S, pairs::Zeros<128>>>(s),
            Published::Nvfp4 => code.run::<pairs::CodedPairs<S, pairs::Nvfp4>>(s),
            Published::Nvfp4Divided => code.run::<pairs::CodedPairs<S, pairs::Nvfp4Divided>>(s),
            _ => unreachable!("a layout without codes"),
        },
        _ => unreachable!("an encoding without codes"),
    }
}

/// The codes of a unit whose last columns are beyond the matrix.
#[inline(always)]
fn last_unit<S: Simd, C: Coded<S>>(s: S, m: &Matrix, row: usize, unit: usize) -> [S::F; 4] {
    let codes = unit_codes(m, row, unit);
    let mut planes = [[0.0f32; 16]; 4];
    for k in 0..4 {
        let times = (1u32 << (C::CODING.fours.bits() * k)) as f32;
        for i in 0..16 {
            planes[k][i] = f32::from(codes[C::CODING.fours.col(i, k)]) * times;
        }
    }
    let mut unit = [s.splat(0.0); 4];
    for k in 0..4 {
        // SAFETY: 16 numbers.
        unit[k] = unsafe { s.load(planes[k].as_ptr()) };
    }
    unit
}

/// The scale of each four of a unit, or its minimum, given those of the runs of its span and its number
/// there.
///
/// # Safety
///
/// The numbers of all runs of the span must be readable.
#[inline(always)]
unsafe fn in_lanes<S: Simd, C: Coded<S>>(s: S, of_runs: *const f32, unit: usize) -> S::F {
    // SAFETY: by this function's contract.
    unsafe {
        match (C::CODING.fours, C::CODING.run) {
            (Fours::Apart, _) => s.splat(*of_runs.add(2 * unit)),
            (_, 32) => s.in_eights(of_runs, unit),
            _ => s.in_fours(of_runs.add(4 * unit)),
        }
    }
}
