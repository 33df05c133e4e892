//! Convolutions over the last tokens of a sequence, which are kept in its state.

use sws_format::Span;
use sws_kernels::Tier;
use sws_kernels::functional::{ConvInput, ShortConv, add, short_conv};

use super::by_rows::{by_rows, rows_of, rows_of_mut};
use crate::layer_state::SequenceState;

/// A convolution of a layer: its weights [elements, taps], and the place of its past in the layer's
/// state.
#[derive(Clone, Copy)]
pub(super) struct Conv<'a> {
    pub(super) layer: usize,
    pub(super) taps: usize,
    pub(super) weight: &'a [f32],
    pub(super) before: usize,
}

/// Adds a convolution to the rows `x` of a batch. `room` is a buffer of the same length.
pub(super) fn add_conv(
    tier: Tier,
    of: Conv<'_>,
    batch: (&[Span], &mut [SequenceState]),
    x: &mut [f32],
    room: &mut [f32],
) {
    let Conv { layer, taps, weight, before } = of;
    let width = weight.len() / taps;
    let rule = ShortConv { taps, dilation: 1, weight, bias: None, silu: false };
    filter(tier, &rule, batch, |of| &mut of.convs(layer)[before..], (x, room, width));
    let y = &*room;
    by_rows(x, width, |first, x| add(tier, &y[first * width..][..x.len()], x));
}

/// Writes the convolution of the rows `x` of a batch to `y`. The state of a sequence has the rows
/// before them, at `past`, and is updated with the last rows of `x`.
pub(super) fn filter(
    tier: Tier,
    rule: &ShortConv<'_>,
    (spans, sequences): (&[Span], &mut [SequenceState]),
    past: impl Fn(&mut SequenceState) -> &mut [f32],
    (x, y, width): (&[f32], &mut [f32], usize),
) {
    for span in spans {
        let past = past(&mut sequences[span.sequence]);
        let past = &mut past[..(rule.taps - 1) * rule.dilation * width];
        let x = rows_of(span, x, width);
        let y = rows_of_mut(span, y, width);
        let given = ConvInput { past: &*past, x };
        by_rows(y, width, |first, y| short_conv(tier, rule, given, first, y));
        advance(past, x);
    }
}

/// Replaces the past by the last rows of `past` and `x`.
fn advance(past: &mut [f32], x: &[f32]) {
    match past.len().checked_sub(x.len()) {
        None => past.copy_from_slice(&x[x.len() - past.len()..]),
        Some(kept) => {
            past.copy_within(x.len().., 0);
            past[kept..].copy_from_slice(x);
        }
    }
}
