//! The recurrences of delta nets and state spaces, sequence by sequence.
//!
//! Tokens go one after another, whatever the length of a chunk, so the state after a token has the
//! same bits in any division of a text. Heads and columns are divided among threads.

use sws_format::Span;
use sws_kernels::functional::{Recurrence, RecurrenceInputs, recur};
use sws_kernels::threads_for;

use super::by_rows::{by_rows, rows_of_mut};
use super::mixer::MixerContext;
use crate::layer_state::SequenceState;

/// Runs a recurrence over the tokens of each sequence, and writes the result to `rows`: [tokens,
/// heads, value elements]. `outputs` is a buffer for the outputs of one sequence.
pub(super) fn run<'a>(
    context: &MixerContext<'_>,
    rule: &Recurrence,
    sequences: &mut [SequenceState],
    inputs: impl Fn(&Span) -> RecurrenceInputs<'a>,
    (outputs, rows): (&mut [f32], &mut [f32]),
) {
    let &Recurrence { heads, key_dim, value_dim, .. } = rule;
    for span in context.spans {
        let [_, sums] = sequences[span.sequence].layer(context.layer).recurrent().numbers();
        let y = &mut outputs[..rule.output_len(span.tokens)];
        let threads = threads_for(2 * span.tokens * heads * key_dim * value_dim);
        recur(context.tier, threads, rule, &inputs(span), sums, y);
        collect(rule, span.tokens, y, rows_of_mut(span, rows, heads * value_dim));
    }
}

/// Rearranges the outputs of a recurrence into rows [tokens, heads, value elements].
fn collect(rule: &Recurrence, tokens: usize, outputs: &[f32], rows: &mut [f32]) {
    let width = rule.value_dim;
    let lanes = rule.output_len(1) / rule.heads / rule.blocks();
    by_rows(rows, rule.heads * width, |first, rows| {
        for (token, row) in (first..).zip(rows.chunks_exact_mut(rule.heads * width)) {
            for (head, row) in row.chunks_exact_mut(width).enumerate() {
                for (block, to) in row.chunks_mut(lanes).enumerate() {
                    let unit = head * rule.blocks() + block;
                    let from = &outputs[(unit * tokens + token) * lanes..];
                    to.copy_from_slice(&from[..to.len()]);
                }
            }
        }
    });
}
