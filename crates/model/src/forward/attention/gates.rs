//! Gates of attention outputs, computed together with queries or by a matrix of their own.

use sws_kernels::Tier;
use sws_kernels::functional::{Activation, gate};

use super::super::by_rows::{HeadPart, by_rows, gather};
use super::Qkv;
use crate::spec::{AttentionGate, AttentionSpec};

/// Buffers for the products of queries, and of gates with a matrix of their own. If that matrix has
/// one row per head, its buffer is the last part.
pub(super) fn rooms<'q>(
    spec: &AttentionSpec,
    tokens: usize,
    (q, gated): (&'q mut [f32], &'q mut [f32]),
) -> (&'q mut [f32], &'q mut [f32]) {
    match (spec.gate, spec.gate_rows()) {
        (Some(AttentionGate::WithQueries), _) => (gated, &mut []),
        (_, None) => (q, &mut []),
        (_, Some(rows)) => (q, &mut gated[tokens * (spec.gate_room() - rows)..]),
    }
}

/// Copies queries out of rows that contain both queries and gates.
pub(super) fn take_queries(spec: &AttentionSpec, qkv: &mut Qkv<'_>) {
    if spec.gate == Some(AttentionGate::WithQueries) {
        part_of_heads(spec.head_dim, qkv.gated, 0, qkv.q);
    }
}

/// The outputs of the heads, gated if the layer has gates.
pub(super) fn apply<'q>(
    tier: Tier,
    spec: &AttentionSpec,
    tokens: usize,
    qkv: &'q mut Qkv<'_>,
) -> &'q mut [f32] {
    let width = spec.output_width();
    let outputs = &mut qkv.mixed[..tokens * width];
    let (gates, activation) = match spec.gate {
        None => return outputs,
        Some(AttentionGate::WithQueries) => {
            part_of_heads(spec.head_dim, qkv.gated, 1, qkv.q);
            (&mut *qkv.q, Activation::Sigmoid)
        }
        Some(AttentionGate::Own { per_head, activation }) => {
            let (gates, of_heads) = qkv.gated.split_at_mut(tokens * width);
            if per_head {
                let each = gates.chunks_exact_mut(spec.value_dim).zip(&*of_heads);
                each.for_each(|(gates, gate)| gates.fill(*gate));
            }
            (gates, activation)
        }
    };
    by_rows(gates, width, |first, gates| {
        let outputs = &outputs[first * width..][..gates.len()];
        gate(tier, activation, gates, outputs);
    });
    gates
}

/// Copies the query (part 0) or the gate (part 1) of each head.
fn part_of_heads(head_dim: usize, both: &[f32], part: usize, to: &mut [f32]) {
    let part = HeadPart { heads: 1, each: 2 * head_dim, len: head_dim, before: part * head_dim };
    gather(both, part, (to, head_dim, 0));
}
