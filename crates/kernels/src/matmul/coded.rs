//! Products with weights that are summed as codes: `reference/coded.rs` has the definition.

// Loops over registers by index are unrolled; some with iterators were not. There are no closures,
// which are compiled for the baseline CPU where they are not inlined.
#![allow(clippy::needless_range_loop)]

mod many;
mod one;
mod weights;

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use crate::Matrix;
use crate::encodings::{Coded, RowCursor, RunScales, unit_codes};
use crate::scalar::{Fours, SPAN_COLS};
use crate::simd::Simd;

pub(super) use many::{SUMS, many};
pub(super) use one::one;

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
