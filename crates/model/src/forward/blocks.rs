//! The selection of the blocks of positions that attention with grouped heads sees.
//!
//! An indexer keeps a short key of every position. For each of its heads, the score of a block is
//! the largest product of the head's query and the keys of those positions of the block that the
//! query sees. The largest scores are selected, lower blocks first among equals; the last blocks
//! come before all others. Positions are listed in ascending order, so that sums of attention do
//! not depend on scores.
//!
//! In another variant a whole block has one key, the mean of the keys of its positions, and all
//! heads select together. Every query sees the positions after the last whole block.
//!
//! A token that sees no more positions than may be selected sees all of them, and nothing is
//! scored.

use rayon::prelude::*;
use sws_format::PieceId;
use sws_kernels::functional::{
    IndexQuery, KvCache, RopeShape, Selected, index_scores, key_products, rope, rope_tables, top_k,
};
use sws_kernels::{PackedInput, Tier, threads_for};

use super::indexer::{TOGETHER, best, end_with, expand};
use super::linear::Product;
use super::mixer::{MixerContext, Turned, turn};
use super::norms::{norm, norm_rows};
use crate::layer_state::KvState;
use crate::role::Role;
use crate::rope::Rope;
use crate::source::Weights;
use crate::spec::{AttentionSpec, BlocksSpec};
use crate::workspace::{BlockWork, grown};

/// Positions whose products are on the stack at a time.
const SEGMENT: usize = 1024;

impl BlockWork {
    /// The products with the hidden state: the key, and the queries.
    pub(super) fn products<'a>(
        &'a mut self,
        spec: Option<BlocksSpec>,
        id: PieceId,
        x: &'a PackedInput,
    ) -> [Option<Product<'a>>; 2] {
        let Some(spec) = spec else { return [None, None] };
        if spec.mixed {
            let rows = spec.width() + spec.dim;
            let mixed = grown(&mut self.mixed, x.tokens() * rows);
            return [Some(Product::new(id, Role::IndexMixed, x, mixed, rows)), None];
        }
        let k = grown(&mut self.k, x.tokens() * spec.dim);
        let q = grown(&mut self.q, x.tokens() * spec.width());
        let key = Product::new(id, Role::IndexKey, x, k, spec.dim);
        [Some(key), Some(Product::new(id, Role::IndexQuery, x, q, spec.width()))]
    }

    /// Norms and rotates the products.
    pub(super) fn prepare(
        &mut self,
        context: &MixerContext<'_>,
        spec: &AttentionSpec,
        (weights, id): (&dyn Weights, PieceId),
        tables: &[[Vec<f32>; 2]],
    ) {
        let Some(BlocksSpec { heads, dim, pooled, mixed: is_mixed, .. }) = spec.extras.blocks
        else {
            return;
        };
        let &MixerContext { tier, norm: by, ropes, .. } = context;
        let tokens = context.tokens();
        let BlockWork { q, k, mixed, norm: of_keys, weights: of_heads, .. } = self;
        if is_mixed {
            let q = grown(q, tokens * heads * dim);
            let k = grown(k, tokens * dim);
            let rows = mixed.chunks_exact((heads + 1) * dim);
            for ((row, q), k) in
                rows.zip(q.chunks_exact_mut(heads * dim)).zip(k.chunks_exact_mut(dim))
            {
                let (of_queries, of_key) = row.split_at(heads * dim);
                q.copy_from_slice(of_queries);
                k.copy_from_slice(of_key);
            }
        }
        if pooled {
            grown(of_heads, heads).fill(1.0);
        }
        for (x, heads, role) in [(q, heads, Role::BlockQueryNorm), (k, 1, Role::BlockKeyNorm)] {
            if pooled && role == Role::BlockKeyNorm {
                // Keys of positions are stored as they are until their block is whole.
                grown(of_keys, dim).copy_from_slice(weights.vector(id, role));
                break;
            }
            let x = &mut x[..tokens * heads * dim];
            let weight = weights.vector(id, role);
            norm_rows(tier, by, x, dim, weight);
            let Some(index) = spec.rope else { continue };
            let [cos, sin] = &tables[index];
            let angles = ropes[index].inv_freq.len();
            let shape = RopeShape { heads, head_dim: dim, offset: 0, pairs: ropes[index].pairs };
            turn(tier, Turned { shape, angles }, (cos, sin), x);
        }
    }

    /// Stores the keys of tokens, given their first row and position.
    pub(super) fn append(
        &mut self,
        context: &MixerContext<'_>,
        spec: &AttentionSpec,
        cache: &mut KvState,
        (row, first): (usize, usize),
        tokens: usize,
    ) {
        let Some(BlocksSpec { dim, size, pooled, .. }) = spec.extras.blocks else { return };
        let keys = &self.k[row * dim..][..tokens * dim];
        if !pooled {
            return cache.append_index(first, keys);
        }
        cache.append_parts(first, keys);
        for number in first / size..(first + tokens) / size {
            let key = grown(&mut self.mean, dim);
            key.fill(0.0);
            for position in number * size..(number + 1) * size {
                for (sum, x) in key.iter_mut().zip(cache.part(position)) {
                    *sum += x;
                }
            }
            for x in &mut *key {
                *x /= size as f32;
            }
            norm(context.tier, context.norm, key, dim, &self.norm[..dim]);
            if let Some(index) = spec.rope {
                let Rope { inv_freq, factor, pairs, .. } = &context.ropes[index];
                let [cos, sin] = &mut self.angles;
                let cos = grown(cos, inv_freq.len());
                let sin = grown(sin, inv_freq.len());
                rope_tables(inv_freq, *factor, number * size, cos, sin);
                let shape = RopeShape { heads: 1, head_dim: dim, offset: 0, pairs: *pairs };
                rope(context.tier, key, shape, cos, sin);
            }
            cache.append_index(number, key);
        }
    }

    /// The number of the next tokens that attend together, out of those from a row and a position
    /// on, and the positions that they see; `None` if they see all earlier positions and their own.
    pub(super) fn select(
        &mut self,
        tier: Tier,
        spec: BlocksSpec,
        cache: &KvState,
        (row, first): (usize, usize),
        tokens: usize,
    ) -> (usize, Option<Selected<'_>>) {
        let BlocksSpec { heads, dim, size, pooled, .. } = spec;
        let most = spec.positions();
        let count = spec.lists();
        if first < most {
            return (tokens.min(most - first), None);
        }
        let tokens = tokens.min(TOGETHER);
        let BlockWork { q, scores, positions, weights, .. } = self;
        let blocks = (first + tokens).div_ceil(size);
        let scores = grown(scores, tokens * count * blocks);
        if positions.len() < tokens * count * most {
            // The capacity is exact, because the budget relies on it.
            *positions = Vec::new();
            *positions = vec![0; tokens * count * most];
        }
        let positions = &mut positions[..tokens * count * most];
        let keys = cache.index();
        // The queries of one list of positions.
        let queries =
            q[row * heads * dim..][..tokens * heads * dim].par_chunks(heads / count * dim);
        let least = match threads_for(tokens * heads * first * dim) {
            1 => tokens * count,
            _ => 1,
        };
        let rows = scores.par_chunks_mut(blocks).zip(positions.par_chunks_mut(most));
        rows.zip(queries).with_min_len(least).enumerate().for_each(|(row, ((scores, list), q))| {
            let seen = first + row / count + 1;
            if pooled {
                let scores = &mut scores[..seen / size];
                index_scores(tier, IndexQuery { q, weights: &weights[..heads] }, &keys, 0, scores);
                best(scores, &mut list[..spec.most]);
                expand(list, spec.most, size);
                return end_with(list, spec.most * size, seen - seen % size..seen);
            }
            let scores = &mut scores[..seen.div_ceil(size)];
            score(tier, (q, &keys), (size, seen), scores);
            list_best(spec, scores, seen, list);
        });
        (tokens, Some(Selected { positions, lists: count, most }))
    }

    /// Bytes for passes of up to this many tokens and positions.
    pub(super) fn bytes_for(spec: &AttentionSpec, tokens: usize, positions: usize) -> usize {
        let Some(blocks) = spec.extras.blocks else { return 0 };
        let mut own = tokens * (blocks.width() + blocks.dim);
        if blocks.mixed {
            own += own;
        }
        if blocks.pooled {
            own += blocks.heads + 4 * blocks.dim;
        }
        let own = own * size_of::<f32>();
        let lists =
            if positions > blocks.positions() { TOGETHER.min(tokens) * blocks.lists() } else { 0 };
        let scores = positions.div_ceil(blocks.size) * size_of::<f32>();
        own + lists * (scores + blocks.positions() * size_of::<u32>())
    }
}

/// Scores all blocks of the positions that a query sees.
fn score(
    tier: Tier,
    (q, keys): (&[f32], &KvCache<'_>),
    (size, seen): (usize, usize),
    scores: &mut [f32],
) {
    scores.fill(f32::NEG_INFINITY);
    let mut products = [0.0; SEGMENT];
    for start in (0..seen).step_by(SEGMENT) {
        let products = &mut products[..SEGMENT.min(seen - start)];
        key_products(tier, q, keys, start, products);
        let mut at = 0;
        while at < products.len() {
            let block = (start + at) / size;
            let end = ((block + 1) * size - start).min(products.len());
            for &product in &products[at..end] {
                if product > scores[block] {
                    scores[block] = product;
                }
            }
            at = end;
        }
    }
}

/// Lists the positions of the best blocks in ascending order. There are more blocks than the list
/// has room for.
fn list_best(spec: BlocksSpec, scores: &mut [f32], seen: usize, list: &mut [u32]) {
    let BlocksSpec { size, most, last, .. } = spec;
    let from = scores.len().saturating_sub(last);
    scores[from..].fill(f32::INFINITY);
    let best = &mut list[..most];
    top_k(scores, best);
    best.sort_unstable();
    // The last block may not be whole.
    let rest = seen % size;
    let partial = rest > 0 && best[most - 1] as usize == scores.len() - 1;
    let whole = most - usize::from(partial);
    expand(list, whole, size);
    end_with(list, whole * size, if partial { seen - rest..seen } else { seen..seen });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_blocks_and_the_last_are_listed() {
        const INF: f32 = f32::INFINITY;
        let spec =
            BlocksSpec { heads: 1, dim: 4, size: 3, most: 2, last: 1, pooled: false, mixed: false };
        #[rustfmt::skip]
        let cases: [(usize, usize, &[f32], &[u32]); 6] = [
            // last, seen, scores, positions
            (1, 8, &[0.0, 1.0, -5.0], &[3, 4, 5, 6, 7]),
            (1, 9, &[1.0, 1.0, -5.0], &[0, 1, 2, 6, 7, 8]),
            (2, 8, &[9.0, 1.0, -5.0], &[3, 4, 5, 6, 7]),
            (0, 8, &[9.0, 1.0, -5.0], &[0, 1, 2, 3, 4, 5]),
            (0, 7, &[INF, 1.0, 5.0], &[0, 1, 2, 6]),
            (1, 10, &[1.0, f32::NAN, 2.0, 0.0], &[6, 7, 8, 9]),
        ];
        for (last, seen, scores, expected) in cases {
            let mut list = [77; 6];
            list_best(BlocksSpec { last, ..spec }, &mut scores.to_vec(), seen, &mut list);
            let found = Selected { positions: &list, lists: 1, most: 6 }.of(0, 0);
            assert_eq!(found, expected, "{last} {seen} {scores:?}");
        }
    }
}
