//! The inputs of gated delta nets, computed with the matrices of each family.

use sws_kernels::{PackedInput, ScratchPool};

use super::super::by_rows::{HeadPart, gather};
use super::super::linear::{Product, multiply};
use super::super::mixer::MixerContext;
use crate::role::Role;
use crate::source::{SourceError, Weights};
use crate::spec::{DeltaInputs, DeltaSpec};
use crate::workspace::grown;

/// The inputs of a delta net.
pub(super) struct Projected<'w> {
    /// Queries, keys and values: [tokens, channels], or all queries, then all keys, then all values.
    pub(super) raw: &'w mut [f32],
    /// [tokens, value elements of all heads]
    pub(super) gates: &'w mut [f32],
    /// [tokens, decays]
    pub(super) decay: &'w mut [f32],
    /// [tokens, heads]
    pub(super) beta: &'w mut [f32],
}

/// Buffers for products that are split, and for latents.
pub(super) struct Rooms<'w> {
    pub(super) mixed: &'w mut Vec<f32>,
    pub(super) pairs: &'w mut Vec<f32>,
    pub(super) packed: &'w mut PackedInput,
    pub(super) scratch: &'w mut ScratchPool,
}

/// Computes queries, keys, values, gates, decays and corrections of the normed state.
pub(super) fn project<'w>(
    context: &MixerContext<'_>,
    spec: &DeltaSpec,
    weights: &mut dyn Weights,
    input: &PackedInput,
    mut to: Projected<'w>,
    rooms: Rooms<'_>,
) -> Result<Projected<'w>, SourceError> {
    let id = context.id();
    let tier = context.tier;
    let heads = spec.heads;
    let values = spec.value_width();
    let channels = spec.channels();
    let Projected { raw, gates, decay, beta } = &mut to;
    match spec.inputs {
        DeltaInputs::Separate | DeltaInputs::Tiled => {
            let mut products = [
                Some(Product::new(id, Role::Mixed, input, raw, channels)),
                Some(Product::new(id, Role::OutputGate, input, gates, values)),
                Some(Product::new(id, Role::Beta, input, beta, heads)),
                Some(Product::new(id, Role::Decay, input, decay, heads)),
            ];
            multiply(tier, weights, &mut products, rooms.scratch)?;
        }
        DeltaInputs::ByKeyHead => by_key_head(context, spec, weights, input, &mut to, rooms)?,
        DeltaInputs::Pairs => {
            let pairs = grown(rooms.pairs, input.tokens() * 2 * heads);
            let mut products = [
                Some(Product::new(id, Role::Mixed, input, raw, channels)),
                Some(Product::new(id, Role::OutputGate, input, gates, values)),
                Some(Product::new(id, Role::BetaDecay, input, &mut *pairs, 2 * heads)),
            ];
            multiply(tier, weights, &mut products, rooms.scratch)?;
            take_pairs(spec, pairs, &mut to);
        }
        DeltaInputs::Apart => {
            let [queries, keys, own_values] = apart(spec, input.tokens(), raw);
            let mut products = [
                Some(Product::new(id, Role::Query, input, queries, spec.key_width())),
                Some(Product::new(id, Role::Key, input, keys, spec.key_width())),
                Some(Product::new(id, Role::Value, input, own_values, values)),
                Some(Product::new(id, Role::OutputGate, input, gates, values)),
                Some(Product::new(id, Role::Beta, input, beta, heads)),
                Some(Product::new(id, Role::Decay, input, decay, spec.decays())),
            ];
            multiply(tier, weights, &mut products, rooms.scratch)?;
        }
        DeltaInputs::PerElement { rank, gate_latent } => {
            let latents = (rank, gate_latent);
            with_latents(context, (spec, latents), weights, input, &mut to, rooms)?;
        }
    }
    Ok(to)
}

/// Computes the inputs with the matrices of Qwen3-Next, whose rows are grouped by key heads.
fn by_key_head(
    context: &MixerContext<'_>,
    spec: &DeltaSpec,
    weights: &mut dyn Weights,
    input: &PackedInput,
    to: &mut Projected<'_>,
    rooms: Rooms<'_>,
) -> Result<(), SourceError> {
    let id = context.id();
    let tokens = input.tokens();
    let &DeltaSpec { heads, key_heads, key_dim, .. } = spec;
    let keys = spec.key_width();
    let values = spec.value_width();
    let channels = spec.channels();
    let all = grown(rooms.mixed, tokens * (channels + values));
    let pairs = grown(rooms.pairs, tokens * 2 * heads);
    let mut products = [
        Some(Product::new(id, Role::MixedGate, input, &mut *all, channels + values)),
        Some(Product::new(id, Role::BetaDecay, input, &mut *pairs, 2 * heads)),
    ];
    multiply(context.tier, weights, &mut products, rooms.scratch)?;
    // Rows of each key head: its query, its key, and the values and gates of the heads that share
    // it.
    let of_values = values / key_heads;
    let each = 2 * key_dim + 2 * of_values;
    let part = |before, len| HeadPart { heads: key_heads, each, len, before };
    gather(all, part(0, key_dim), (&mut *to.raw, channels, 0));
    gather(all, part(key_dim, key_dim), (&mut *to.raw, channels, keys));
    gather(all, part(2 * key_dim, of_values), (&mut *to.raw, channels, 2 * keys));
    gather(all, part(2 * key_dim + of_values, of_values), (&mut *to.gates, values, 0));
    take_pairs(spec, pairs, to);
    Ok(())
}

/// Computes the inputs with the matrices of Kimi Linear. Decays are computed from latents, and
/// gates may be.
fn with_latents(
    context: &MixerContext<'_>,
    (spec, (rank, gate_latent)): (&DeltaSpec, (usize, bool)),
    weights: &mut dyn Weights,
    input: &PackedInput,
    to: &mut Projected<'_>,
    rooms: Rooms<'_>,
) -> Result<(), SourceError> {
    let id = context.id();
    let tier = context.tier;
    let tokens = input.tokens();
    let keys = spec.key_width();
    let values = spec.value_width();
    let Projected { raw, gates, decay, beta } = to;
    let Rooms { mixed, packed, scratch, .. } = rooms;
    let [queries, own_keys, own_values] = apart(spec, tokens, raw);
    let (of_decays, of_gates) = grown(mixed, 2 * tokens * rank).split_at_mut(tokens * rank);
    let gate = match gate_latent {
        true => Product::new(id, Role::OutputGateDown, input, &mut *of_gates, rank),
        false => Product::new(id, Role::OutputGate, input, gates, values),
    };
    // The matrices are in the order in which they are stored.
    let (first, last) = if gate_latent { (None, Some(gate)) } else { (Some(gate), None) };
    let mut products = [
        Some(Product::new(id, Role::Query, input, queries, keys)),
        Some(Product::new(id, Role::Key, input, own_keys, keys)),
        Some(Product::new(id, Role::Value, input, own_values, values)),
        first,
        Some(Product::new(id, Role::Beta, input, beta, spec.heads)),
        Some(Product::new(id, Role::DecayDown, input, &mut *of_decays, rank)),
        last,
    ];
    multiply(tier, weights, &mut products, scratch)?;
    let of_gates = (of_gates, Role::OutputGateUp, &mut **gates, values);
    let ups = [
        Some((of_decays, Role::DecayUp, &mut **decay, spec.decays())),
        gate_latent.then_some(of_gates),
    ];
    for (latent, role, y, rows) in ups.into_iter().flatten() {
        packed.pack(tier, latent, tokens, rank);
        let product = Product::new(id, role, packed, y, rows);
        multiply(tier, weights, &mut [Some(product)], scratch)?;
    }
    Ok(())
}

/// The queries, keys and values in `raw`, which lie one after another.
fn apart<'r>(spec: &DeltaSpec, tokens: usize, raw: &'r mut [f32]) -> [&'r mut [f32]; 3] {
    let keys = tokens * spec.key_width();
    let (queries, others) = raw.split_at_mut(keys);
    let (keys, values) = others.split_at_mut(keys);
    [queries, keys, values]
}

/// Copies corrections and decays out of rows that are grouped by key heads.
fn take_pairs(spec: &DeltaSpec, pairs: &[f32], to: &mut Projected<'_>) {
    let &DeltaSpec { heads, key_heads, .. } = spec;
    let len = heads / key_heads;
    let part = |before| HeadPart { heads: key_heads, each: 2 * len, len, before };
    gather(pairs, part(0), (&mut *to.beta, heads, 0));
    gather(pairs, part(len), (&mut *to.decay, heads, 0));
}
