//! Convolutions over the last tokens of a sequence, which are kept in its state.

use sws_format::Span;
use sws_kernels::Tier;
use sws_kernels::functional::{ConvInput, ShortConv, add, short_conv};

use super::by_rows::{by_rows, rows_of, rows_of_mut};
use crate::layer_state::SequenceState;
use crate::spec::AddedConv;

/// A convolution of a layer: its weights [elements, taps], or [taps, elements] where tokens have
/// further ones, and the place of its past in the layer's state.
#[derive(Clone, Copy)]
pub(super) struct Conv<'a> {
    pub(super) layer: usize,
    pub(super) conv: AddedConv,
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
    let Conv { layer, conv, weight, before } = of;
    let width = weight.len() / conv.taps;
    let rule = ShortConv { taps: conv.taps, dilation: 1, weight, bias: None, silu: false };
    filter(tier, &rule, batch, |of| &mut of.convs(layer)[before..], (x, room, width));
    add_result(tier, conv, room, (x, width));
}

/// Adds a convolution to the rows `x` of a batch, whose weights tokens and heads add to: `own`
/// [tokens, heads, taps]. `room` is a buffer of the same length as `x`.
pub(super) fn add_token_conv(
    tier: Tier,
    of: Conv<'_>,
    (own, heads): (&[f32], usize),
    (spans, sequences): (&[Span], &mut [SequenceState]),
    x: &mut [f32],
    room: &mut [f32],
) {
    let Conv { layer, conv, weight, before } = of;
    let width = weight.len() / conv.taps;
    let taps_width = heads * conv.taps;
    for span in spans {
        let past = &mut sequences[span.sequence].convs(layer)[before..];
        let past = &mut past[..(conv.taps - 1) * width];
        let x = rows_of(span, x, width);
        let own = rows_of(span, own, taps_width);
        let given = &*past;
        by_rows(rows_of_mut(span, room, width), width, |first, y| {
            let tokens = (first..).zip(own[first * taps_width..].chunks_exact(taps_width));
            for ((token, own), y) in tokens.zip(y.chunks_exact_mut(width)) {
                y.fill(0.0);
                for (lag, weight) in weight.chunks_exact(width).enumerate() {
                    let row = match token.checked_sub(lag) {
                        Some(row) => &x[row * width..][..width],
                        None => &given[(conv.taps - 1 + token - lag) * width..][..width],
                    };
                    add_tap(row, weight, (&own[lag..], conv.taps), y);
                }
            }
        });
        advance(past, x);
    }
    add_result(tier, conv, room, (x, width));
}

/// Adds the products of a row and its weights to `y`. The weights of each head grow by every `taps`-th
/// number of `own`.
fn add_tap(row: &[f32], weight: &[f32], (own, taps): (&[f32], usize), y: &mut [f32]) {
    let each = y.len() / own.len().div_ceil(taps);
    let heads = y.chunks_exact_mut(each).zip(row.chunks_exact(each));
    let heads = heads.zip(weight.chunks_exact(each)).zip(own.iter().step_by(taps));
    for (((y, x), weight), own) in heads {
        for ((y, x), weight) in y.iter_mut().zip(x).zip(weight) {
            *y += x * (weight + own);
        }
    }
}

/// Adds the result `y` of a convolution to the rows `x`, and divides the sum if it is divided.
fn add_result(tier: Tier, conv: AddedConv, y: &[f32], (x, width): (&mut [f32], usize)) {
    let divisor = conv.divisor();
    by_rows(x, width, |first, x| {
        add(tier, &y[first * width..][..x.len()], x);
        if let Some(divisor) = divisor {
            for x in x {
                *x /= divisor;
            }
        }
    });
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
