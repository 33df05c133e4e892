//! The selection of the blocks of positions that attention with grouped heads sees.
//!
//! An indexer keeps a short key of every position. For each of its heads, the score of a block is
//! the largest product of the head's query and the keys of those positions of the block that the
//! query sees. The largest scores are selected, lower blocks first among equals; the last blocks
//! come before all others. Positions are listed in ascending order, so that sums of attention do
//! not depend on scores.
//!
//! A token that sees no more positions than may be selected sees all of them, and nothing is
//! scored.

use rayon::prelude::*;
use sws_kernels::functional::{KvCache, RopeShape, Selected, key_products, rope, top_k};
use sws_kernels::{Input, Tier, threads_for};
use sws_store::PieceId;

use super::attention::Context;
use super::branches::norm;
use super::indexer::{TOGETHER, end_with, expand};
use super::linear::Product;
use super::work::{by_rows, grown};
use crate::layer_state::KvState;
use crate::role::Role;
use crate::source::Weights;
use crate::spec::{AttentionSpec, BlocksSpec};

/// Positions whose products are on the stack at a time.
const SEGMENT: usize = 1024;

/// Working memory of indexers of blocks.
#[derive(Debug, Default)]
pub(super) struct BlockWork {
    /// [tokens, heads, dim]
    q: Vec<f32>,
    /// [tokens, dim]
    k: Vec<f32>,
    /// [tokens selected for together, heads, blocks]
    scores: Vec<f32>,
    /// [tokens selected for together, heads, positions]
    positions: Vec<u32>,
}

impl BlockWork {
    /// The products with the hidden state: the key, and the queries.
    pub(super) fn products<'a>(
        &'a mut self,
        spec: Option<BlocksSpec>,
        id: PieceId,
        x: &'a Input,
    ) -> [Option<Product<'a>>; 2] {
        let Some(spec) = spec else { return [None, None] };
        let k = grown(&mut self.k, x.tokens() * spec.dim);
        let q = grown(&mut self.q, x.tokens() * spec.width());
        let key = Product::new(id, Role::IndexKey, x, k, spec.dim);
        [Some(key), Some(Product::new(id, Role::IndexQuery, x, q, spec.width()))]
    }

    /// Norms and rotates the products.
    pub(super) fn prepare(
        &mut self,
        context: &Context<'_>,
        spec: &AttentionSpec,
        (weights, id): (&dyn Weights, PieceId),
        tables: &[[Vec<f32>; 2]],
    ) {
        let Some(BlocksSpec { heads, dim, .. }) = spec.blocks else { return };
        let &Context { tier, norm: by, ropes, spans, .. } = context;
        let tokens: usize = spans.iter().map(|span| span.tokens).sum();
        let BlockWork { q, k, .. } = self;
        for (x, heads, role) in [(q, heads, Role::BlockQueryNorm), (k, 1, Role::BlockKeyNorm)] {
            let (x, weight) = (&mut x[..tokens * heads * dim], weights.vector(id, role));
            by_rows(x, dim, |_, x| norm(tier, by, x, dim, weight));
            let Some(index) = spec.rope else { continue };
            let ([cos, sin], turned) = (&tables[index], ropes[index].inv_freq.len());
            let shape = RopeShape { heads, head_dim: dim, offset: 0, pairs: ropes[index].pairs };
            by_rows(x, heads * dim, |first, x| {
                let rows = first * turned..(first + x.len() / (heads * dim)) * turned;
                rope(tier, x, shape, &cos[rows.clone()], &sin[rows]);
            });
        }
    }

    /// Stores the keys of tokens, given their first row and position.
    pub(super) fn append(
        &self,
        spec: Option<BlocksSpec>,
        cache: &mut KvState,
        (row, first): (usize, usize),
        tokens: usize,
    ) {
        if let Some(BlocksSpec { dim, .. }) = spec {
            cache.append_index(first, &self.k[row * dim..][..tokens * dim]);
        }
    }

    /// The number of tokens, of so many from a row and a position on, that are attended with next,
    /// and the positions that they see; None if these are all before them, and their own.
    pub(super) fn select(
        &mut self,
        tier: Tier,
        spec: BlocksSpec,
        cache: &KvState,
        (row, first): (usize, usize),
        tokens: usize,
    ) -> (usize, Option<Selected<'_>>) {
        let BlocksSpec { heads, dim, size, .. } = spec;
        let most = spec.positions();
        if first < most {
            return (tokens.min(most - first), None);
        }
        let tokens = tokens.min(TOGETHER);
        let BlockWork { q, scores, positions, .. } = self;
        let blocks = (first + tokens).div_ceil(size);
        let scores = grown(scores, tokens * heads * blocks);
        if positions.len() < tokens * heads * most {
            // Exactly as long as needed: a budget counts on it.
            *positions = Vec::new();
            *positions = vec![0; tokens * heads * most];
        }
        let positions = &mut positions[..tokens * heads * most];
        let keys = cache.index();
        let queries = q[row * heads * dim..][..tokens * heads * dim].par_chunks(dim);
        let least = match threads_for(tokens * heads * first * dim) {
            1 => tokens * heads,
            _ => 1,
        };
        let rows = scores.par_chunks_mut(blocks).zip(positions.par_chunks_mut(most));
        rows.zip(queries).with_min_len(least).enumerate().for_each(|(row, ((scores, list), q))| {
            let seen = first + row / heads + 1;
            let scores = &mut scores[..seen.div_ceil(size)];
            score(tier, (q, &keys), (size, seen), scores);
            list_best(spec, scores, seen, list);
        });
        (tokens, Some(Selected { positions, lists: heads, most }))
    }

    pub(super) fn bytes(&self) -> usize {
        let BlockWork { q, k, scores, positions } = self;
        let floats: usize = [q, k, scores].map(Vec::capacity).iter().sum();
        floats * size_of::<f32>() + positions.capacity() * size_of::<u32>()
    }

    /// Bytes for passes of up to this many tokens and positions.
    pub(super) fn bytes_for(spec: &AttentionSpec, tokens: usize, positions: usize) -> usize {
        let Some(blocks) = spec.blocks else { return 0 };
        let own = tokens * (blocks.width() + blocks.dim) * size_of::<f32>();
        let lists =
            if positions > blocks.positions() { TOGETHER.min(tokens) * blocks.heads } else { 0 };
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

/// Lists the positions of the best blocks, of more than there is room for, ascending.
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
        let spec = BlocksSpec { heads: 1, dim: 4, size: 3, most: 2, last: 1 };
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
