//! The scores by which sparse attention selects positions.

use super::cache::{Element, Page};
use super::lanes::{SCORED, ScoreSpan, score};
use super::tiles::CachedHead;
use super::{IndexQuery, KvCache, KvData, QueryRow, ROWS};
use crate::Tier;
use crate::functional::vector::Wide;
use crate::functional::{reference, tiered};
use crate::scalar::fma;

/// Scores of the positions from `first` on, a multiple of 32, for a query:
///
/// s_j = Σ weight_h · max(q_h · k_j, 0)
///
/// in ascending h from 0 on, each step fused; the product is the canonical dot. A product that is
/// NaN counts as 0.
///
/// The cache has one head, and keys that are as long as those of the query.
pub fn index_scores(
    tier: Tier,
    query: IndexQuery,
    keys: &KvCache,
    first: usize,
    scores: &mut [f32],
) {
    let layout = keys.keys;
    let dim = keys.key_dim();
    let heads = query.weights.len();
    assert!(
        layout.heads == 1 && dim > 0 && Some(query.q.len()) == heads.checked_mul(dim),
        "index_scores: shapes"
    );
    assert!(
        first.is_multiple_of(SCORED) && first + scores.len() <= layout.capacity,
        "index_scores: positions"
    );
    index_scores_tiered(tier, query, keys, first, scores);
}

/// The products of a query with the keys of the positions from `first` on, a multiple of 32: the
/// canonical dots.
///
/// The cache has one head, and keys that are as long as the query.
pub fn key_products(tier: Tier, q: &[f32], keys: &KvCache, first: usize, products: &mut [f32]) {
    let layout = keys.keys;
    let dim = keys.key_dim();
    assert!(layout.heads == 1 && dim > 0 && q.len() == dim, "key_products: shapes");
    assert!(
        first.is_multiple_of(SCORED) && first + products.len() <= layout.capacity,
        "key_products: positions"
    );
    key_products_tiered(tier, q, keys, first, products);
}

tiered! {
    key_products_tiered(q: &[f32], keys: &KvCache, first: usize, products: &mut [f32])
    simd: products_of_either, reference: reference::key_products
}

#[inline(always)]
fn products_of_either<S: Wide>(
    simd: S,
    q: &[f32],
    cache: &KvCache,
    first: usize,
    products: &mut [f32],
) {
    let end = first + products.len();
    let rows = [QueryRow::of(0)];
    let span = ScoreSpan { start: first, end, base: first, width: products.len() };
    match cache.data {
        KvData::F32 { keys, .. } => score(simd, q, &rows, span, head(keys, cache), products),
        KvData::Bf16 { keys, .. } => score(simd, q, &rows, span, head(keys, cache), products),
        KvData::Q8 { keys, .. } => score(simd, q, &rows, span, head(keys, cache), products),
    }
}

tiered! {
    index_scores_tiered(query: IndexQuery, keys: &KvCache, first: usize, scores: &mut [f32])
    simd: of_either, reference: reference::index_scores
}

#[inline(always)]
fn of_either<S: Wide>(
    simd: S,
    query: IndexQuery,
    cache: &KvCache,
    first: usize,
    scores: &mut [f32],
) {
    match cache.data {
        KvData::F32 { keys, .. } => of_pages(simd, query, head(keys, cache), first, scores),
        KvData::Bf16 { keys, .. } => of_pages(simd, query, head(keys, cache), first, scores),
        KvData::Q8 { keys, .. } => of_pages(simd, query, head(keys, cache), first, scores),
    }
}

#[inline(always)]
fn head<'a, E: Element>(pages: &'a [Page<E>], cache: &KvCache) -> CachedHead<'a, E> {
    CachedHead { pages, layout: cache.keys, head: 0, dim: cache.key_dim() }
}

#[inline(always)]
fn of_pages<S: Wide, E: Element>(
    simd: S,
    IndexQuery { q, weights }: IndexQuery,
    keys: CachedHead<E>,
    first: usize,
    scores: &mut [f32],
) {
    let mut products = [0.0; ROWS * SCORED];
    for (start, scores) in (first..).step_by(SCORED).zip(scores.chunks_mut(SCORED)) {
        let span = ScoreSpan { start, end: start + scores.len(), base: start, width: SCORED };
        scores.fill(0.0);
        for (group, weights) in weights.chunks(ROWS).enumerate() {
            let rows: [QueryRow; ROWS] =
                std::array::from_fn(|row| QueryRow::of(group * ROWS + row));
            score(simd, q, &rows[..weights.len()], span, keys, &mut products);
            for (&weight, products) in weights.iter().zip(products.chunks_exact(SCORED)) {
                for (score, &product) in scores.iter_mut().zip(products) {
                    let positive = if product > 0.0 { product } else { 0.0 };
                    *score = fma(weight, positive, *score);
                }
            }
        }
    }
}
