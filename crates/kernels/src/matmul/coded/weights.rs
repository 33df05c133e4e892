//! Weights that are summed as codes, decoded to numbers: for products in which each is multiplied by
//! itself.

use std::marker::PhantomData;

use super::super::decoded::Decode;
use super::{OfSpan, in_lanes, last_unit};
use crate::Matrix;
use crate::encodings::{Coded, ForCoded, RowCursor};
use crate::scalar::UNIT_COLS;
use crate::simd::{Simd, SimdJob};

impl<S: Simd> ForCoded<S> for Decode<'_, '_> {
    #[inline(always)]
    fn run<C: Coded<S>>(self, s: S) {
        s.compiled(WeightsOf::<C>(self, PhantomData));
    }
}

/// The same with a decoder. Columns are stored in order.
struct WeightsOf<'a, 'm, C>(Decode<'a, 'm>, PhantomData<C>);

impl<S: Simd, C: Coded<S>> SimdJob<S> for WeightsOf<'_, '_, C> {
    #[inline(always)]
    fn run(self, s: S) {
        let Decode { m, cursors, cols, to, places } = self.0;
        let codes = C::new(s, m);
        for (at, to) in cursors.iter().zip(to.chunks_mut(places.row)) {
            let Some(at) = at else { continue };
            let to = to[..cols.len()].as_chunks_mut::<UNIT_COLS>().0;
            for (unit, to) in (cols.start / UNIT_COLS..).zip(to) {
                decode::<S, C>(s, codes, at, m, unit, to);
            }
        }
    }
}

/// Decodes the weights of a unit.
#[inline(always)]
fn decode<S: Simd, C: Coded<S>>(
    s: S,
    codes: C,
    at: &RowCursor,
    m: &Matrix,
    unit: usize,
    to: &mut [f32; UNIT_COLS],
) {
    let span = unit / 4;
    let coding = C::CODING;
    // SAFETY: the cursor belongs to this matrix, which has a column of the span.
    let shared = unsafe { codes.shared(s, at, span) };
    // SAFETY: likewise.
    let scales = unsafe { OfSpan::<S, C>::read(s, codes, &shared, at, m, span) };
    let w = match UNIT_COLS * (unit + 1) <= m.cols() {
        // SAFETY: likewise, with all columns of the unit.
        true => unsafe { codes.unit(s, &shared, at, unit) },
        false => last_unit::<S, C>(s, m, at.row(), unit),
    };
    let scale = scales.scale(s, unit % 4);
    let mut planes = [[0.0f32; 16]; 4];
    for k in 0..4 {
        let one = s.splat(f32::from_bits(((127 - coding.fours.bits() * k) as u32) << 23));
        let weights = match coding.less {
            Some(less) => s.mul(s.fma(w[k], one, s.splat(-f32::from(less))), scale),
            None => {
                // SAFETY: the minima of all runs were written.
                let minimum = unsafe { in_lanes::<S, C>(s, scales.added(), unit % 4) };
                s.fma(s.mul(w[k], one), scale, minimum)
            }
        };
        // SAFETY: 16 numbers, in slices one after another.
        unsafe { s.store_slices(weights, planes[k].as_mut_ptr(), S::TILE_LANES) };
    }
    for i in 0..16 {
        for k in 0..4 {
            to[coding.fours.col(i, k)] = planes[k][i];
        }
    }
}
