//! Causal attention over a KV cache.
//!
//! The order of every sum follows absolute positions, so that a prompt in one chunk or token by
//! token, a ring or a linear cache, one thread or many give the same bits. For the query at
//! position t, whose visible keys are the positions j from `max(0, t + 1 - window)`, or from the
//! multiple of an aligned window at or before t, to t:
//!
//! 1. s_j = cap(scale · Σ q·k_j); the product is the canonical dot over the head's elements,
//!    `cap` the optional cap · tanh(s / cap). A number for the distance t - j may be added.
//! 2. m = the largest s_j, or the head's sink if that is larger.
//! 3. In ascending j, with lane = j mod 32 and e_j = exp(s_j - m): `sum[lane] += e_j`, and for
//!    each element d of the value `acc[lane][d] = fma(e_j, v_j[d], acc[lane][d])`.
//! 4. `y[d] = tree(acc[..][d]) / (tree(sum) + exp(sink - m))`, without `exp(sink - m)` if there is
//!    no sink.
//!
//! A key that is not visible takes no part at all (not even as a zero), so the content of a masked
//! or evicted slot is irrelevant. A query that sees nothing yields zeros; one whose scores are NaN,
//! or all -inf without a sink, yields NaN.
//!
//! Where positions are selected ([`Selected`]), the visible keys are those of the list of a head,
//! which is ascending, and j above is the place in the list. So a list of all positions changes no
//! bit.

mod blocks;
mod cache;
mod index;
mod lanes;
pub mod q8;
mod spec;
mod tiles;

pub use cache::{CacheLayout, CacheMut, KvCache, KvData, LEAST_PAGE, Page, Zero, store, zeroed};
pub use index::{index_scores, key_products};
pub use spec::{Attention, Distances, IndexQuery, Queries, Selected};
use std::ops::Range;

use rayon::prelude::*;

use super::lanes::{LANES, Lanes};
use super::{reference, tiered};
use crate::Tier;
use crate::isa::Isa;

/// Working memory of one thread, for any number of calls.
#[derive(Debug)]
pub struct AttentionScratch {
    scores: Vec<LaneBlock>,
    acc: Vec<LaneBlock>,
}

/// 32 elements on cache-line boundaries: an accumulator that straddles lines costs twice as much.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct LaneBlock(Lanes);

/// The elements of blocks.
#[inline(always)]
fn floats(blocks: &[LaneBlock]) -> &[f32] {
    const { assert!(size_of::<LaneBlock>() == LANES * size_of::<f32>()) };
    // SAFETY: a block is an array of `LANES` numbers without padding, as its size shows.
    unsafe { std::slice::from_raw_parts(blocks.as_ptr().cast(), blocks.len() * LANES) }
}

/// The elements of blocks.
#[inline(always)]
fn floats_mut(blocks: &mut [LaneBlock]) -> &mut [f32] {
    const { assert!(size_of::<LaneBlock>() == LANES * size_of::<f32>()) };
    // SAFETY: a block is an array of `LANES` numbers without padding, as its size shows.
    unsafe { std::slice::from_raw_parts_mut(blocks.as_mut_ptr().cast(), blocks.len() * LANES) }
}

/// Queries of one key-value head that are computed together, so that each key and value is brought
/// into the first-level cache once for all of them.
const ROWS: usize = 8;

/// Queries from which a block of 32 is faster, although some of its lanes have none.
const BLOCK_FROM: usize = 20;

impl AttentionScratch {
    /// For heads with `value_dim` elements and caches of up to `capacity` positions.
    pub fn new(value_dim: usize, capacity: usize) -> Self {
        let (scores, acc) = Self::lengths(value_dim, capacity);
        let blocks = |len| vec![LaneBlock([0.0; LANES]); len];
        AttentionScratch { scores: blocks(scores), acc: blocks(acc) }
    }

    /// Bytes that `new` allocates.
    pub fn bytes(value_dim: usize, capacity: usize) -> usize {
        let (scores, acc) = Self::lengths(value_dim, capacity);
        (scores + acc) * size_of::<LaneBlock>()
    }

    /// Blocks of scores (of 32 queries for every position, those rounded out to whole blocks) and of
    /// accumulators.
    fn lengths(value_dim: usize, capacity: usize) -> (usize, usize) {
        (capacity + 2 * LANES, ROWS * LANES * value_dim.div_ceil(LANES))
    }

    fn suffices(&self, value_dim: usize, capacity: usize) -> bool {
        let (scores, acc) = Self::lengths(value_dim, capacity);
        self.scores.len() >= scores && self.acc.len() >= acc
    }
}

/// Attention of some queries, into `y` [tokens, heads, value_dim].
///
/// Keys and values of these tokens must already be in the cache, and it must still hold every key
/// that any of them sees: a ring needs `window + tokens - 1` slots. One thread works per scratch,
/// and the division of the work is fixed.
pub fn attention(
    tier: Tier,
    spec: &Attention,
    cache: &KvCache,
    queries: Queries,
    y: &mut [f32],
    scratch: &mut [AttentionScratch],
) {
    let Queries { first: first_position, q, selected, distances } = queries;
    let tokens = check(spec, cache, queries, y);
    if spec.window == Some(0) {
        return y.fill(0.0);
    }
    if tokens == 0 {
        return;
    }
    if tier.isa() == Isa::Scalar {
        return reference::attention(spec, cache, queries, y);
    }
    let seen = selected.map_or(first_position + tokens, |selected| selected.most);
    let retained = cache.keys.capacity.min(seen);
    assert!(
        !scratch.is_empty() && scratch.iter().all(|s| s.suffices(spec.value_dim, retained)),
        "attention: scratch too small"
    );
    let y = OutputRows(y.as_mut_ptr());
    let job = AttentionCall { spec, cache, first_position, q, selected, distances, y, tokens };
    let threads = scratch.len().min(job.units());
    if threads == 1 {
        share_tiered(tier, job, 0, 1, &mut scratch[0]);
    } else {
        scratch[..threads]
            .par_iter_mut()
            .enumerate()
            .with_max_len(1)
            .for_each(|(thread, scratch)| share_tiered(tier, job, thread, threads, scratch));
    }
}

/// Panics unless all shapes fit; returns the number of tokens.
fn check(spec: &Attention, cache: &KvCache, queries: Queries, y: &[f32]) -> usize {
    let Queries { first, q, selected, distances } = queries;
    let Attention { heads, kv_heads, key_dim, value_dim, .. } = *spec;
    assert!(
        kv_heads > 0 && heads > 0 && heads.is_multiple_of(kv_heads) && key_dim > 0 && value_dim > 0,
        "attention: shapes"
    );
    // Checked multiplication: outputs are written through a pointer, so a wrapped product must not
    // pass.
    let row = heads.checked_mul(key_dim).expect("attention: shapes");
    let tokens = q.len() / row;
    assert_eq!(q.len(), tokens * row, "attention: queries");
    assert_eq!(Some(y.len()), (tokens * heads).checked_mul(value_dim), "attention: outputs");
    assert!(spec.sinks.is_none_or(|s| s.len() == heads), "attention: sinks");
    if let Some(Distances { bias, extent }) = distances {
        let needed = (tokens * heads).checked_mul(extent);
        assert!(selected.is_none() && Some(bias.len()) == needed, "attention: distances");
    }
    /// Number of pages, and length of the shortest.
    fn lens<E>(pages: &[Page<E>]) -> (usize, usize) {
        (pages.len(), pages.iter().map(|page| page.len()).min().unwrap_or(0))
    }
    let (keys, values) = match cache.data {
        KvData::F32 { keys, values } => (lens(keys), lens(values)),
        KvData::Bf16 { keys, values } => (lens(keys), lens(values)),
        KvData::Q8 { keys, values } => (lens(keys), lens(values)),
    };
    let end = first.checked_add(tokens).expect("attention: positions");
    if let Some(selected) = selected {
        let capacity = cache.keys.capacity.min(cache.values.capacity);
        let Selected { positions, lists, most } = selected;
        assert!(
            spec.window.is_none() && end <= capacity && most > 0,
            "attention: positions of a linear cache are selected"
        );
        assert!(lists > 0 && heads.is_multiple_of(lists), "attention: lists");
        let most = tokens.checked_mul(lists).and_then(|lists| lists.checked_mul(most));
        let most = most.expect("attention: positions");
        assert!(positions.len() >= most, "attention: selected");
        let mut own = positions[..most].chunks(selected.most);
        assert!(own.all(|list| list[0] != Selected::END), "attention: a list without positions");
    }
    for (layout, dim, (pages, shortest)) in
        [(cache.keys, key_dim, keys), (cache.values, value_dim, values)]
    {
        // A row may be longer: values of latent attention are the beginnings of keys.
        let row = cache.data.row(dim);
        assert!(layout.heads == kv_heads && layout.dim >= row, "attention: shapes");
        assert!(layout.page.is_power_of_two() && layout.page >= LEAST_PAGE, "attention: pages");
        let page = layout.page_len().expect("attention: shapes");
        let needed = layout.pages(end);
        assert!(needed <= pages && (needed == 0 || page <= shortest), "attention: cache too short");
        assert!(
            spec.first_visible(first) + layout.capacity >= end,
            "attention: the cache has already dropped a key that is visible"
        );
    }
    tokens
}

/// One call of [`attention`], as shared by its threads.
#[derive(Clone, Copy)]
struct AttentionCall<'a> {
    spec: &'a Attention<'a>,
    cache: &'a KvCache<'a>,
    first_position: usize,
    q: &'a [f32],
    selected: Option<Selected<'a>>,
    distances: Option<Distances<'a>>,
    y: OutputRows,
    tokens: usize,
}

impl AttentionCall<'_> {
    /// Queries that share one key-value head.
    fn rows_per_kv_head(&self) -> usize {
        self.tokens * (self.spec.heads / self.spec.kv_heads)
    }

    /// Pieces of work: some queries of one key-value head.
    fn units(&self) -> usize {
        match self.selected {
            None => self.spec.kv_heads * self.division(self.rows_per_kv_head()).units(),
            Some(selected) => {
                let (runs, heads) = self.runs(selected);
                self.tokens * runs * self.division(heads).units()
            }
        }
    }

    /// The units of queries that share keys.
    fn division(&self, rows: usize) -> Division {
        let fit = blocks::fit(self.spec.key_dim, self.spec.value_dim);
        let blocks = (rows + LANES - BLOCK_FROM) / LANES;
        Division { rows, blocks: if fit { blocks } else { 0 } }
    }

    /// Runs of query heads that share a list and a key-value head, and the heads of each.
    fn runs(&self, selected: Selected) -> (usize, usize) {
        let &Attention { heads, kv_heads, .. } = self.spec;
        let mut run = heads / selected.lists;
        let mut other = heads / kv_heads;
        while other > 0 {
            (run, other) = (other, run % other);
        }
        (heads / run, run)
    }
}

/// Queries that share keys: blocks of 32 first, of which the last may be smaller, then up to `ROWS`
/// at a time.
#[derive(Clone, Copy)]
struct Division {
    rows: usize,
    blocks: usize,
}

impl Division {
    fn units(self) -> usize {
        self.blocks + self.rows.saturating_sub(self.blocks * LANES).div_ceil(ROWS)
    }

    /// The queries of a unit.
    fn unit(self, unit: usize) -> Range<usize> {
        let Division { rows, blocks } = self;
        let (first, most) = match unit < blocks {
            true => (unit * LANES, LANES),
            false => (blocks * LANES + (unit - blocks) * ROWS, ROWS),
        };
        first..rows.min(first + most)
    }
}

/// One query.
#[derive(Clone, Copy, Default)]
struct QueryRow {
    /// Index in [tokens, heads].
    index: usize,
    head: usize,
    /// The visible positions are start..end; if positions are selected, these are places in the
    /// list of them.
    start: usize,
    end: usize,
}

impl QueryRow {
    /// A query that is only scored.
    #[inline(always)]
    fn of(index: usize) -> QueryRow {
        QueryRow { index, ..QueryRow::default() }
    }
}

/// Some queries of one key-value head, and the rows that they attend to.
struct UnitQueries<'a, T> {
    job: AttentionCall<'a>,
    rows: &'a [QueryRow],
    keys: T,
    values: T,
    scratch: &'a mut AttentionScratch,
}

/// Destination of the outputs. Threads write different rows of one array, interleaved.
#[derive(Clone, Copy)]
struct OutputRows(*mut f32);

// SAFETY: the pointer comes from the exclusive borrow of `y`, which outlives the call. Each row is
// written through `Rows::get` by the one thread that owns its unit.
unsafe impl Send for OutputRows {}
// SAFETY: as above.
unsafe impl Sync for OutputRows {}

impl OutputRows {
    /// Row `row` of `len` elements.
    ///
    /// # Safety
    /// The row must lie within `y`, and no other reference to it may exist.
    #[inline(always)]
    unsafe fn get<'a>(self, row: usize, len: usize) -> &'a mut [f32] {
        // SAFETY: in bounds and exclusive by this function's contract.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(row * len), len) }
    }
}

tiered! {
    share_tiered(job: AttentionCall, thread: usize, threads: usize, scratch: &mut AttentionScratch)
    simd: lanes::share, reference: no_share
}

/// Never called: the scalar tier has no units.
fn no_share(_: AttentionCall, _: usize, _: usize, _: &mut AttentionScratch) {
    unreachable!("the reference computes all of attention");
}
