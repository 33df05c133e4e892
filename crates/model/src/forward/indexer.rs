//! The selection of the positions that sparse attention sees.
//!
//! An indexer keeps a short key of every position. A position's score is the sum, over the
//! indexer's heads, of weight · relu(query · key) ([`index_scores`]); the largest are selected,
//! lower positions first among equals. They are listed in ascending order, so that sums of attention
//! do not depend on scores. Layers without an indexer use the last list.
//!
//! An indexer may pool the keys of groups of positions, and score these: each element of a group's
//! key is a mean of those of its positions, weighted by the softmax of their gates. Positions after
//! the last whole group are always seen.
//!
//! A token that sees no more positions than may be selected sees all of them, and nothing is scored.

use std::ops::Range;

use rayon::prelude::*;
use sws_format::PieceId;
use sws_kernels::functional::{
    IndexQuery, KvCache, RopeShape, Selected, index_scores, layer_norm, pool, top_k,
};
use sws_kernels::{PackedInput, Tier, threads_for};

use super::by_rows::{by_rows, rows_of};
use super::linear::Product;
use super::mixer::{MixerContext, Turned, grow_heads, turn};
use super::norms::scale_row;
use crate::layer_state::{LatentState, SequenceState};
use crate::role::Role;
use crate::spec::{IndexerSpec, LatentSpec};
use crate::workspace::{IndexWork, grown};

/// Number of tokens whose positions are scored together. It bounds the memory of the scores.
pub(super) const TOGETHER: usize = 8;

/// Number of positions that a thread scores at a time.
const SEGMENT: usize = 1024;

impl IndexWork {
    /// The products with the hidden state: the key, and the weights of heads.
    pub(super) fn of_hidden<'a>(
        &'a mut self,
        spec: &LatentSpec,
        id: PieceId,
        x: &'a PackedInput,
    ) -> [Option<Product<'a>>; 3] {
        let Some(indexer) = spec.indexer() else { return [None, None, None] };
        let &IndexerSpec { heads, dim, .. } = indexer;
        let k = grown(&mut self.k, x.tokens() * dim);
        let by = grown(&mut self.weights, x.tokens() * heads);
        let gates = indexer.is_pooled().then(|| {
            let gates = grown(&mut self.gates, x.tokens() * dim);
            Product::new(id, Role::IndexPoolGate, x, gates, dim)
        });
        let key = Product::new(id, Role::IndexKey, x, k, dim);
        [gates, Some(key), Some(Product::new(id, Role::IndexWeights, x, by, heads))]
    }

    /// The product with the latent query, or the normed hidden state: the queries.
    pub(super) fn of_query<'a>(
        &'a mut self,
        spec: &LatentSpec,
        id: PieceId,
        x: &'a PackedInput,
    ) -> Option<Product<'a>> {
        let width = spec.indexer()?.width();
        let q = grown(&mut self.q, x.tokens() * width);
        Some(Product::new(id, Role::IndexQuery, x, q, width))
    }

    /// Bytes for passes of up to this many tokens and positions.
    pub(super) fn bytes_for(spec: &LatentSpec, tokens: usize, positions: usize) -> usize {
        let Some(sparse) = spec.sparse else { return 0 };
        let Some(indexer) = sparse.indexer else { return 0 };
        let pooled = usize::from(indexer.is_pooled());
        let of_token = indexer.width() + (1 + pooled) * indexer.dim + indexer.heads;
        let parts = pooled * (2 * indexer.group + 1) * indexer.dim;
        let scores = TOGETHER.min(tokens) * positions;
        (tokens * of_token + parts + scores) * size_of::<f32>()
            + tokens * sparse.most.min(positions) * size_of::<u32>()
    }
}

/// Stores the keys of an indexer, and selects positions for every token, using the products in
/// `work`.
pub(super) fn select(
    context: &MixerContext<'_>,
    (spec, indexer): (&LatentSpec, &IndexerSpec),
    ([pool_bias, weight, bias], grown_by): ([&[f32]; 3], Option<[&[f32]; 2]>),
    sequences: &mut [SequenceState],
    work: &mut IndexWork,
    tables: &[[Vec<f32>; 2]],
) {
    let &MixerContext { tier, layer: l, ropes, spans, .. } = context;
    let &IndexerSpec { heads, dim, turns_last, eps, pairs, group, .. } = indexer;
    let IndexWork { q, k, weights, gates, parts, scores, selection } = work;
    let tokens = context.tokens();
    let q = &mut q[..tokens * indexer.width()];
    let k = &mut k[..tokens * dim];
    let weights = &mut weights[..tokens * heads];
    by_rows(k, dim, |_, k| layer_norm(tier, k, dim, weight, Some(bias), eps));
    if let Some(index) = spec.rope {
        let [cos, sin] = &tables[index];
        let angles = ropes[index].inv_freq.len();
        for (x, heads) in [(&mut *q, heads), (&mut *k, 1)] {
            let offset = if turns_last { dim - 2 * angles } else { 0 };
            let shape = RopeShape { heads, head_dim: dim, offset, pairs };
            turn(tier, Turned { shape, angles }, (cos, sin), x);
        }
    }
    if let Some(grown_by) = grown_by {
        grow_heads(grown_by, spans, q, dim);
    }
    // The scales of products and of heads. Both are positive, so their place does not change the
    // selection.
    let factor = (1.0 / (indexer.width() as f64).sqrt()) as f32;
    scale_row(factor, weights);

    for span in spans {
        let cache = sequences[span.sequence].layer(l).latent();
        match indexer.is_pooled() {
            false => cache.append_index(span.first_position, rows_of(span, k, dim)),
            true => {
                let rows = [rows_of(span, k, dim), rows_of(span, gates, dim)];
                cache.append_parts(span.first_position, rows);
                let groups = (span.first_position + span.tokens) / group;
                for number in span.first_position / group..groups {
                    let key = pooled(tier, cache, (number, group), pool_bias, parts);
                    cache.append_index(number, key);
                }
            }
        }
        let most = spec.sparse.map_or(0, |sparse| sparse.most).min(cache.capacity());
        selection.most = most;
        if selection.positions.len() < tokens * most {
            // The capacity is exact, because the budget relies on it.
            selection.positions = Vec::new();
            selection.positions = vec![0; tokens * most];
        }
    }
    for span in spans.iter().filter(|span| span.first_position + span.tokens > selection.most) {
        let keys = sequences[span.sequence].layer(l).latent().index();
        let q = rows_of(span, q, heads * dim);
        let weights = rows_of(span, weights, heads);
        let lists = &mut selection.positions[span.first_row * selection.most..];
        let lists = &mut lists[..span.tokens * selection.most];
        for (block, lists) in lists.chunks_mut(TOGETHER * selection.most).enumerate() {
            let first = block * TOGETHER;
            let count = lists.len() / selection.most;
            let seen = span.first_position + first + count;
            let least = match threads_for(count * seen * heads * dim) {
                1 => seen,
                _ => 1,
            };
            let scores = grown(scores, count * seen).par_chunks_mut(seen).with_min_len(least);
            let rows = scores.zip(lists.par_chunks_mut(selection.most)).enumerate();
            rows.for_each(|(row, (scores, list))| {
                let token = first + row;
                let seen = span.first_position + token + 1;
                // All positions are listed, unless there are more than the list has room for.
                let all = seen <= list.len();
                let scores = &mut scores[..if all { seen } else { seen / group }];
                let q = &q[token * heads * dim..][..heads * dim];
                let query = IndexQuery { q, weights: &weights[token * heads..][..heads] };
                if all {
                    let (own, rest) = list.split_at_mut(seen);
                    rest.fill(Selected::END);
                    return best(scores, own);
                }
                let kept = (list.len() + 1 - group) / group;
                if scores.len() > kept {
                    score(tier, query, &keys, scores);
                }
                best(scores, &mut list[..kept]);
                expand(list, kept, group);
                end_with(list, kept * group, seen - seen % group..seen);
            });
        }
    }
}

/// The pooled key of a group.
fn pooled<'p>(
    tier: Tier,
    cache: &LatentState,
    (number, group): (usize, usize),
    bias: &[f32],
    [keys, logits, key]: &'p mut [Vec<f32>; 3],
) -> &'p [f32] {
    let dim = bias.len() / group;
    let keys = grown(keys, group * dim);
    let logits = grown(logits, group * dim);
    let rows = keys.chunks_exact_mut(dim).zip(logits.chunks_exact_mut(dim));
    for (place, (key, logits)) in rows.enumerate() {
        let [of_key, gates] = cache.parts(number * group + place);
        key.copy_from_slice(of_key);
        for ((logit, gate), bias) in logits.iter_mut().zip(gates).zip(&bias[place * dim..]) {
            *logit = gate + bias;
        }
    }
    let key = grown(key, dim);
    pool(tier, keys, logits, key);
    key
}

/// Replaces the numbers of the first `kept` groups in a list by the positions of these groups.
pub(super) fn expand(list: &mut [u32], kept: usize, group: usize) {
    if group <= 1 {
        return;
    }
    for place in (0..kept).rev() {
        let first = list[place] * group as u32;
        for (position, place) in (first..).zip(&mut list[place * group..][..group]) {
            *place = position;
        }
    }
}

/// Writes these positions to a list from a place on, and ends the list after them.
pub(super) fn end_with(list: &mut [u32], place: usize, positions: Range<usize>) {
    let (own, rest) = list[place..].split_at_mut(positions.len());
    for (position, place) in (positions.start as u32..).zip(own) {
        *place = position;
    }
    rest.fill(Selected::END);
}

/// Scores all positions for a query, on several threads if there is enough work.
pub(super) fn score(tier: Tier, query: IndexQuery<'_>, keys: &KvCache<'_>, scores: &mut [f32]) {
    let least = match threads_for(scores.len() * query.q.len()) {
        1 => scores.len(),
        _ => 1,
    };
    let segments = scores.par_chunks_mut(SEGMENT).with_min_len(least).enumerate();
    segments.for_each(|(segment, scores)| {
        index_scores(tier, query, keys, segment * SEGMENT, scores);
    });
}

/// Lists the positions with the best scores in ascending order; all positions if there is room.
pub(super) fn best(scores: &[f32], list: &mut [u32]) {
    match list.len() < scores.len() {
        true => {
            top_k(scores, list);
            list.sort_unstable();
        }
        false => {
            for (position, place) in (0..).zip(list) {
                *place = position;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lower_positions_come_first_among_equals() {
        #[rustfmt::skip]
        let cases = [
            (&[0.0, 0.0, 1.0, 0.0][..], &[0, 2][..]),
            (&[0.0, 2.0, 1.0, 3.0], &[1, 3]),
            (&[-1.0, -2.0, -1.0], &[0, 2]),
            (&[0.0, -0.0, 0.0], &[0, 1]),
            (&[f32::NAN, 1.0, f32::NAN], &[0, 1]),
            (&[5.0, 6.0], &[0, 1]),
        ];
        for (scores, expected) in cases {
            let mut list = [9; 2];
            best(scores, &mut list);
            assert_eq!(list, expected, "{scores:?}");
        }
    }

    #[test]
    fn groups_and_the_positions_in_none_are_listed() {
        // Two of the groups of 3 positions, at the front of a list of 8 positions.
        for (seen, expected) in [(9, &[3, 4, 5, 6, 7, 8][..]), (11, &[3, 4, 5, 6, 7, 8, 9, 10])] {
            let mut list = [1, 2, 0, 0, 0, 0, 0, 0];
            expand(&mut list, 2, 3);
            end_with(&mut list, 6, 9..seen);
            assert_eq!(Selected { positions: &list, lists: 1, most: 8 }.of(0, 0), expected);
        }
    }
}
