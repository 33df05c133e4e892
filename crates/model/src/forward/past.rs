//! Convolutions over the last tokens that are added to what they read.

use sws_format::Span;
use sws_kernels::Tier;
use sws_kernels::functional::{ConvInput, ShortConv, add, short_conv};

use super::attention::rows_of;
use super::delta::advance;
use super::work::by_rows;
use crate::layer_state::SequenceState;

/// A convolution of a layer: its weights [elements, taps], and the place of its past among those of
/// the layer.
#[derive(Clone, Copy)]
pub(super) struct Conv<'a> {
    pub(super) layer: usize,
    pub(super) taps: usize,
    pub(super) weight: &'a [f32],
    pub(super) before: usize,
}

/// Adds a convolution to the rows `x` of a batch; `room` is as long.
pub(super) fn add_conv(
    tier: Tier,
    of: Conv<'_>,
    (spans, sequences): (&[Span], &mut [SequenceState]),
    x: &mut [f32],
    room: &mut [f32],
) {
    let Conv { layer, taps, weight, before } = of;
    let width = weight.len() / taps;
    let conv = ShortConv { taps, dilation: 1, weight, bias: None, silu: false };
    for span in spans {
        let past = &mut sequences[span.sequence].convs(layer)[before..][..(taps - 1) * width];
        let own = rows_of(span, x, width);
        let y = &mut room[span.first_row * width..][..own.len()];
        let given = ConvInput { past: &*past, x: own };
        by_rows(y, width, |first, y| short_conv(tier, &conv, given, first, y));
        advance(past, own);
    }
    let y = &*room;
    by_rows(x, width, |first, x| add(tier, &y[first * width..][..x.len()], x));
}
