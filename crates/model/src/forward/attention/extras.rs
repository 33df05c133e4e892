//! Variants of attention in only one or two families ([`AttentionExtras`](crate::AttentionExtras)).
//! For a layer without them, these functions do nothing.

use sws_format::{PieceId, Span};
use sws_kernels::functional::{Distances, NormWeight, Queries, axpy, dots};
use sws_kernels::{PackedInput, Tier};

use super::super::by_rows::{HeadPart, by_rows, gather, rows_of};
use super::super::linear::Product;
use super::super::mixer::{MixerContext, add_bias, temper};
use super::super::norms::{rms_norm_rows, scale, scale_row};
use super::super::past::{Conv, add_conv, add_token_conv};
use super::{Qkv, norm_heads};
use crate::layer_state::{KvState, SequenceState};
use crate::role::Role;
use crate::source::Weights;
use crate::spec::{AttentionSpec, DistanceSpec, QkNorm};
use crate::workspace::{BlockWork, DistanceWork, TokenWork, grown};

/// Number of tokens for which the distance biases are computed at a time.
pub(in super::super) const DISTANCES: usize = 16;

/// The number added to lengths that are compared with their limit.
const LENGTH_PLUS: f32 = 1e-6;

/// Buffers of the extras, besides queries, keys and values.
pub(super) struct Extras<'w> {
    /// The selection of blocks.
    blocks: &'w mut BlockWork,
    /// Factors of the distance biases: [tokens, heads, rank].
    distances: &'w mut [f32],
    /// [some tokens, heads, distances]
    bias: &'w mut Vec<f32>,
    /// Sinks of tokens: [tokens, heads]
    sinks: &'w mut [f32],
    /// Weights of convolutions of keys and of values: [tokens, key heads, taps]
    taps: [&'w mut [f32]; 2],
    noted: &'w mut Option<Vec<u32>>,
}

impl<'w> Extras<'w> {
    pub(super) fn of(
        spec: &AttentionSpec,
        tokens: usize,
        rooms: (&'w mut BlockWork, &'w mut DistanceWork, &'w mut TokenWork),
        noted: &'w mut Option<Vec<u32>>,
    ) -> Extras<'w> {
        let (blocks, DistanceWork { rows, bias }, TokenWork { sinks, taps }) = rooms;
        let distances = grown(rows, tokens * distance_width(spec));
        let sinks = grown(sinks, tokens * token_sinks(spec));
        let taps = taps.each_mut().map(|taps| grown(taps, tokens * spec.token_taps()));
        Extras { blocks, distances, bias, sinks, taps, noted }
    }

    /// The products of the extras with the normed state, before and after those of keys and values,
    /// whose inputs are the last two.
    pub(super) fn products<'a>(
        &'a mut self,
        spec: &AttentionSpec,
        id: PieceId,
        [input, of_keys, of_values]: [&'a PackedInput; 3],
    ) -> ([Option<Product<'a>>; 2], [Option<Product<'a>>; 3]) {
        let [sinks, rows] = [token_sinks(spec), spec.token_taps()];
        let [key_taps, value_taps] = &mut self.taps;
        let sinks =
            (sinks > 0).then(|| Product::new(id, Role::TokenSinks, input, &mut *self.sinks, sinks));
        let taps = |role, x, y| (rows > 0).then(|| Product::new(id, role, x, y, rows));
        let after = [
            sinks,
            taps(Role::KeyTaps, of_keys, &mut **key_taps),
            taps(Role::ValueTaps, of_values, &mut **value_taps),
        ];
        let [keys, queries] = self.blocks.products(spec.extras.blocks, id, input);
        if spec.extras.distances.is_none() {
            return ([keys, queries], after);
        }
        let rows = distance_width(spec);
        let distances = Product::new(id, Role::Distance, input, &mut *self.distances, rows);
        ([Some(distances), queries], after)
    }

    /// Multiplies queries and the factors of distance biases by weights of each head, and scales down
    /// these and keys to their greatest length.
    pub(super) fn limit(
        &mut self,
        context: &MixerContext<'_>,
        spec: &AttentionSpec,
        weights: &dyn Weights,
        qkv: &mut Qkv<'_>,
    ) {
        let QkNorm::Limited { length, of_distances } = spec.qk_norm else { return };
        let tier = context.tier;
        let id = context.id();
        weigh(weights.vector(id, Role::QueryNorm), qkv.q);
        shorten(tier, spec.head_dim, length, qkv.q);
        shorten(tier, spec.head_dim, length, qkv.k);
        if let Some(it) = spec.extras.distances {
            weigh(weights.vector(id, Role::DistanceNorm), self.distances);
            shorten(tier, it.rank, of_distances, self.distances);
        }
    }

    /// Finishes the rotation stage: norms of rotated heads, the growth of queries, and the queries
    /// and keys of an indexer.
    pub(super) fn after_rotation(
        &mut self,
        context: &MixerContext<'_>,
        spec: &AttentionSpec,
        weights: &dyn Weights,
        qkv: &mut Qkv<'_>,
        tables: &[[Vec<f32>; 2]],
    ) {
        let &MixerContext { tier, norm: by, spans, .. } = context;
        match spec.qk_norm {
            QkNorm::None | QkNorm::PerHead | QkNorm::FullWidth | QkNorm::Limited { .. } => {}
            QkNorm::PerRotatedHead => norm_heads(context, weights, qkv),
            QkNorm::Unweighted => {
                let dim = spec.head_dim;
                for x in [&mut *qkv.q, &mut *qkv.k] {
                    rms_norm_rows(tier, x, dim, NormWeight::None, by.eps());
                }
            }
        }
        let growth = spec.extras.temperature;
        temper(growth, spans, qkv.q, spec.q_width());
        if spec.extras.distances.is_some() {
            temper(growth, spans, self.distances, distance_width(spec));
        }
        self.blocks.prepare(context, spec, (weights, context.id()), tables);
    }

    /// Stores the keys of an indexer for a chunk.
    pub(super) fn append(
        &mut self,
        context: &MixerContext<'_>,
        spec: &AttentionSpec,
        cache: &mut KvState,
        chunk: &Span,
    ) {
        let first = (chunk.first_row, chunk.first_position);
        self.blocks.append(context, spec, cache, first, chunk.tokens);
    }

    /// The queries of the first tokens of `rest` that attend together next, and the number of these
    /// tokens. All of them, unless positions are selected, tokens have sinks, or there are distance
    /// biases, which are computed with `columns`. The sinks of tokens come last.
    pub(super) fn next_queries<'q>(
        &'q mut self,
        tier: Tier,
        (spec, columns): (&AttentionSpec, &[f32]),
        cache: &KvState,
        rest: &Span,
        q: &'q [f32],
    ) -> (usize, Queries<'q>, Option<&'q [f32]>) {
        let place = (rest.first_row, rest.first_position);
        let (tokens, selected) = match (spec.extras.blocks, spec.extras.distances) {
            (Some(it), _) => self.blocks.select(tier, it, cache, place, rest.tokens),
            _ if spec.extras.token_sinks => (1, None),
            (None, Some(_)) => (DISTANCES.min(rest.tokens), None),
            (None, None) => (rest.tokens, None),
        };
        if let (Some(noted), Some(selected)) = (&mut *self.noted, selected) {
            noted.extend_from_slice(selected.positions);
        }
        let distances = spec.extras.distances.map(|it| {
            let rows = &self.distances[rest.first_row * distance_width(spec)..];
            let bias = grown(self.bias, tokens * spec.heads * it.extent);
            add_up(tier, it, (rows, columns), bias);
            Distances { bias, extent: it.extent }
        });
        let q = rows_of(&Span { tokens, ..*rest }, q, spec.q_width());
        let sinks = spec
            .extras
            .token_sinks
            .then(|| &self.sinks[rest.first_row * spec.heads..][..spec.heads]);
        (tokens, Queries { first: rest.first_position, q, selected, distances }, sinks)
    }
}

/// Splits the products of one matrix into all queries, all keys and all values.
pub(super) fn take_apart(
    context: &MixerContext<'_>,
    spec: &AttentionSpec,
    weights: &dyn Weights,
    all: &mut [f32],
    parts: [&mut [f32]; 3],
) {
    if spec.qkv_bias {
        add_bias(context.tier, weights.vector(context.id(), Role::MixedBias), all);
    }
    let [k_width, v_width] = spec.cached_widths();
    let each = spec.fused_rows();
    let mut before = 0;
    for (to, len) in parts.into_iter().zip([spec.query_rows(), k_width, v_width]) {
        gather(all, HeadPart { heads: 1, each, len, before }, (to, len, 0));
        before += len;
    }
}

/// Transforms queries, keys and values before their norms, as few families do: copies,
/// convolutions, norms, factors and halves.
pub(super) fn before_norms(
    context: &MixerContext<'_>,
    spec: &AttentionSpec,
    weights: &dyn Weights,
    sequences: &mut [SequenceState],
    (qkv, extras): (&mut Qkv<'_>, &Extras<'_>),
) {
    let &MixerContext { tier, layer, norm: by, spans, .. } = context;
    // `mixed` is not in use yet, and at least as wide as each of the others.
    let Qkv { q, k, v, mixed, .. } = qkv;
    if spec.extras.values_are_keys {
        v.copy_from_slice(k);
    }
    if let Some(conv) = spec.extras.conv {
        let mut before = 0;
        let parts = [(&mut *k, Role::KeyConv), (&mut *v, Role::ValueConv)];
        for ((x, role), own) in parts.into_iter().zip(&extras.taps) {
            let of = Conv { layer, conv, weight: weights.vector(context.id(), role), before };
            before += (conv.taps - 1) * of.weight.len() / conv.taps;
            let room = &mut mixed[..x.len()];
            let batch = (spans, &mut *sequences);
            match conv.of_tokens {
                true => add_token_conv(tier, of, (&**own, spec.kv_heads), batch, x, room),
                false => add_conv(tier, of, batch, x, room),
            }
        }
    }
    if spec.extras.value_norm {
        let dim = spec.value_dim;
        rms_norm_rows(tier, v, dim, NormWeight::None, by.eps());
    }
    if let Some(factor) = spec.extras.value_scale {
        scale(factor, v);
    }
    if spec.extras.paired_rows {
        let dim = spec.head_dim;
        for x in [&mut *q, &mut *k] {
            let paired = &mut mixed[..x.len()];
            paired.copy_from_slice(x);
            let paired = &*paired;
            by_rows(x, dim, |first, x| into_halves(&paired[first * dim..][..x.len()], x, dim));
        }
    }
}

/// Norms the outputs of heads.
pub(super) fn norm_outputs(context: &MixerContext<'_>, spec: &AttentionSpec, qkv: &mut Qkv<'_>) {
    if spec.extras.output_norm {
        let eps = context.norm.eps();
        let outputs = &mut qkv.mixed[..context.tokens() * spec.output_width()];
        rms_norm_rows(context.tier, outputs, spec.value_dim, NormWeight::None, eps);
    }
}

/// The columns for distance biases: [rank, distances]; empty without such biases.
pub(super) fn columns<'w>(
    context: &MixerContext<'_>,
    spec: &AttentionSpec,
    weights: &'w dyn Weights,
) -> &'w [f32] {
    match spec.extras.distances {
        None => &[],
        Some(_) => weights.vector(context.id(), Role::DistanceRows),
    }
}

/// Clamps queries, keys and values.
pub(super) fn clip(spec: &AttentionSpec, qkv: &mut Qkv<'_>) {
    let Some(limit) = spec.extras.clip else { return };
    for x in [&mut *qkv.q, &mut *qkv.k, &mut *qkv.v] {
        by_rows(x, 1, |_, x| {
            for x in x {
                *x = x.clamp(-limit, limit);
            }
        });
    }
}

/// Rearranges heads whose rotated pairs are neighbours into heads of two halves.
fn into_halves(paired: &[f32], heads: &mut [f32], head_dim: usize) {
    for (pairs, head) in paired.chunks_exact(head_dim).zip(heads.chunks_exact_mut(head_dim)) {
        let (left, right) = head.split_at_mut(head_dim / 2);
        for ((pair, left), right) in pairs.as_chunks::<2>().0.iter().zip(left).zip(right) {
            [*left, *right] = *pair;
        }
    }
}

/// Multiplies rows by the weights of all heads of a token.
fn weigh(weights: &[f32], x: &mut [f32]) {
    by_rows(x, weights.len(), |_, rows| {
        for row in rows.chunks_exact_mut(weights.len()) {
            for (x, weight) in row.iter_mut().zip(weights) {
                *x *= weight;
            }
        }
    });
}

/// Scales vectors of `width` numbers that are longer than `length` down to it.
fn shorten(tier: Tier, width: usize, length: f32, x: &mut [f32]) {
    by_rows(x, width, |_, x| {
        for x in x.chunks_exact_mut(width) {
            let mut square = [0.0];
            dots(tier, x, x, width, &mut square);
            let factor = length / (square[0].sqrt() + LENGTH_PLUS);
            if factor < 1.0 {
                scale_row(factor, x);
            }
        }
    });
}

/// Number of sinks of a token, if it has any of its own.
fn token_sinks(spec: &AttentionSpec) -> usize {
    if spec.extras.token_sinks { spec.heads } else { 0 }
}

/// Number of values per token from which distance biases are computed.
fn distance_width(spec: &AttentionSpec) -> usize {
    spec.extras.distances.map_or(0, |it| spec.heads * it.rank)
}

/// Computes the biases of all distances from the factors of each head in `rows`.
fn add_up(tier: Tier, it: DistanceSpec, (rows, columns): (&[f32], &[f32]), bias: &mut [f32]) {
    by_rows(bias, it.extent, |first, bias| {
        let rows = rows[first * it.rank..].chunks_exact(it.rank);
        for (bias, row) in bias.chunks_exact_mut(it.extent).zip(rows) {
            bias.fill(0.0);
            for (number, column) in row.iter().zip(columns.chunks_exact(it.extent)) {
                axpy(tier, *number, column, bias);
            }
        }
    });
}
