//! Attention on arrays of lanes.

use super::super::elementary::{capped, exp};
use super::super::lanes::{LANES, greater, maximum, padded};
use super::super::row::exp_and_sum;
use super::super::vector::Wide;
use super::cache::{Element, Page, chunk};
use super::tiles::{CachedHead, SelectedRows, Tile, Tiles};
use super::{
    AttentionCall, AttentionScratch, Distances, KvData, LaneBlock, QueryRow, ROWS, UnitQueries,
    blocks, floats_mut,
};
use crate::simd::SimdJob;

/// Computes the units of one thread: every `threads`-th.
#[inline(always)]
pub(super) fn share<S: Wide>(
    simd: S,
    job: AttentionCall,
    thread: usize,
    threads: usize,
    scratch: &mut AttentionScratch,
) {
    for unit in (thread..job.units()).step_by(threads) {
        match job.cache.data {
            KvData::F32 { keys, values } => run_unit(simd, job, unit, (keys, values), scratch),
            KvData::Bf16 { keys, values } => run_unit(simd, job, unit, (keys, values), scratch),
            KvData::Q8 { keys, values } => run_unit(simd, job, unit, (keys, values), scratch),
        }
    }
}

fn run_unit<S: Wide, E: Element>(
    simd: S,
    job: AttentionCall,
    unit: usize,
    (keys, values): (&[Page<E>], &[Page<E>]),
    scratch: &mut AttentionScratch,
) {
    if job.selected.is_some() {
        return run_selected(simd, job, unit, (keys, values), scratch);
    }
    let spec = job.spec;
    let group = spec.heads / spec.kv_heads;
    let division = job.division(job.rows_per_kv_head());
    let kv_head = unit / division.units();
    let unit = division.unit(unit % division.units());
    let mut rows = [QueryRow::default(); LANES];
    let rows = &mut rows[..unit.len()];
    for (row, i) in rows.iter_mut().zip(unit) {
        let token = i / group;
        let head = kv_head * group + i % group;
        let position = job.first_position + token;
        let start = spec.first_visible(position);
        *row = QueryRow { index: token * spec.heads + head, head, start, end: position + 1 };
    }
    let keys_layout = job.cache.keys;
    let values_layout = job.cache.values;
    let keys = CachedHead { pages: keys, layout: keys_layout, head: kv_head, dim: spec.key_dim };
    let values =
        CachedHead { pages: values, layout: values_layout, head: kv_head, dim: spec.value_dim };
    run_rows(simd, UnitQueries { job, rows, keys, values, scratch });
}

/// A unit of the queries of one token that share a list of positions and a key-value head.
fn run_selected<S: Wide, E: Element>(
    simd: S,
    job: AttentionCall,
    unit: usize,
    (keys, values): (&[Page<E>], &[Page<E>]),
    scratch: &mut AttentionScratch,
) {
    let spec = job.spec;
    let selected = job.selected.expect("the caller has looked");
    let (runs, heads) = job.runs(selected);
    let division = job.division(heads);
    let run = unit / division.units();
    let number = unit % division.units();
    let token = run / runs;
    let run = run % runs;
    let unit = division.unit(number);
    let first = run * heads + unit.start;
    let list = selected.of(token, first * selected.lists / spec.heads);
    let head = first * spec.kv_heads / spec.heads;
    let mut rows = [QueryRow::default(); LANES];
    let rows = &mut rows[..unit.len()];
    for (row, head) in rows.iter_mut().zip(first..) {
        *row = QueryRow { index: token * spec.heads + head, head, start: 0, end: list.len() };
    }
    let keys = SelectedRows { pages: keys, layout: job.cache.keys, head, list, dim: spec.key_dim };
    let values =
        SelectedRows { pages: values, layout: job.cache.values, head, list, dim: spec.value_dim };
    run_rows(simd, UnitQueries { job, rows, keys, values, scratch });
}

/// Computes the queries of a unit.
fn run_rows<S: Wide, T: Tiles>(simd: S, unit: UnitQueries<T>) {
    if unit.rows.len() > ROWS {
        simd.compiled(BlockUnit(unit));
    } else {
        simd.compiled(RowsUnit(unit));
    }
}

/// A unit whose queries are lanes.
struct BlockUnit<'a, T>(UnitQueries<'a, T>);

impl<S: Wide, T: Tiles> SimdJob<S> for BlockUnit<'_, T> {
    #[inline(always)]
    fn run(self, simd: S) {
        blocks::run(simd, self.0);
    }
}

/// A unit of a few queries.
struct RowsUnit<'a, T>(UnitQueries<'a, T>);

impl<S: Wide, T: Tiles> SimdJob<S> for RowsUnit<'_, T> {
    #[inline(always)]
    fn run(self, simd: S) {
        attend(simd, self.0);
    }
}

/// Computes a few queries of one key-value head.
#[inline(always)]
fn attend<S: Wide, T: Tiles>(simd: S, unit: UnitQueries<T>) {
    let UnitQueries { job, rows, keys, values, scratch } = unit;
    let spec = job.spec;
    let count = rows.len();
    let start = rows[0].start;
    let end = rows[count - 1].end;
    // A multiple of 32, so that the index of a score is in the lane of its position.
    let base = start / LANES * LANES;
    let width = (end - base).next_multiple_of(LANES);
    let scores = &mut floats_mut(&mut scratch.scores)[..count * width];
    let span = ScoreSpan { start, end, base, width };

    score(simd, job.q, rows, span, keys, scores);
    let mut sums = [0.0; ROWS];
    for ((row, scores), sum) in rows.iter().zip(scores.chunks_exact_mut(width)).zip(&mut sums) {
        *sum = weigh(job, *row, base, scores);
    }
    let chunks = spec.value_dim.div_ceil(LANES);
    let acc = &mut scratch.acc[..chunks * count * LANES];
    mix(
        simd,
        rows,
        values,
        (span, scores),
        acc,
        #[inline(always)]
        |c, acc| {
            for ((row, lanes), sum) in rows.iter().zip(acc).zip(&sums) {
                for width in [16, 8, 4, 2, 1] {
                    let (low, high) = lanes[..2 * width].split_at_mut(width);
                    for (low, high) in low.iter_mut().zip(high) {
                        for i in 0..LANES {
                            low.0[i] += high.0[i];
                        }
                    }
                }
                // SAFETY: this is the index of a (token, head) of this call, which belongs to this
                // unit alone.
                let y = unsafe { job.y.get(row.index, spec.value_dim) };
                for (y, lane) in y[c * LANES..].iter_mut().zip(&lanes[0].0) {
                    *y = lane / sum;
                }
            }
        },
    );
}

/// The positions visible to any row of a unit, and the layout of the scores: a row's score for
/// position p is at `p - base` of `width`.
#[derive(Clone, Copy)]
pub(super) struct ScoreSpan {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) base: usize,
    pub(super) width: usize,
}

/// Positions per tile of keys.
pub(super) const SCORED: usize = 32;

/// Computes all products of the rows' queries with the keys of the span, in tiles that stay in the
/// first-level cache from one group of rows to the next.
#[inline(always)]
pub(super) fn score<S: Wide, T: Tiles>(
    simd: S,
    q: &[f32],
    rows: &[QueryRow],
    span: ScoreSpan,
    keys: T,
    scores: &mut [f32],
) {
    let mut start = span.start;
    while start < span.end {
        let tile = keys.tile(start, span.end, SCORED);
        let mut first = 0;
        let width = span.width;
        while first < rows.len() {
            let rows = &rows[first..];
            let scores = &mut scores[first * width..];
            // Eight products at once, as `fold8` takes, of as many keys as fit in the registers.
            first += match rows.len() {
                4.. if S::SUMS >= 8 => {
                    score_rows::<_, _, 4, 2, 2>(simd, q, rows, span, tile, scores)
                }
                2.. if S::SUMS >= 8 => {
                    score_rows::<_, _, 2, 4, 4>(simd, q, rows, span, tile, scores)
                }
                _ if S::SUMS >= 8 => score_rows::<_, _, 1, 8, 8>(simd, q, rows, span, tile, scores),
                2.. if S::SUMS >= 2 => {
                    score_rows::<_, _, 2, 4, 1>(simd, q, rows, span, tile, scores)
                }
                _ => score_rows::<_, _, 1, 1, 1>(simd, q, rows, span, tile, scores),
            };
        }
        start = tile.end();
    }
}

/// Multiplies the first `R` rows by the keys of a tile, `K` keys at a time, of which `G` are in
/// registers at once. Returns `R`.
#[inline(always)]
fn score_rows<S: Wide, T: Tile, const R: usize, const K: usize, const G: usize>(
    simd: S,
    queries: &[f32],
    rows: &[QueryRow],
    span: ScoreSpan,
    keys: T,
    scores: &mut [f32],
) -> usize {
    let mut q: [&[f32]; R] = [&[]; R];
    for (q, row) in q.iter_mut().zip(rows) {
        *q = &queries[row.index * keys.dim()..][..keys.dim()];
    }
    let mut position = keys.start();
    while position + K <= keys.end() && R * K == 8 {
        let mut key: [&[T::Element]; K] = [&[]; K];
        for (i, key) in key.iter_mut().enumerate() {
            *key = keys.row(position + i);
        }
        let mut parts = [simd.part(simd.zero()); 8];
        for (group, key) in key.as_chunks::<G>().0.iter().enumerate() {
            let sums = dots(simd, q, *key);
            for r in 0..R {
                for k in 0..G {
                    parts[r * K + group * G + k] = simd.part(sums[r][k]);
                }
            }
        }
        let products = simd.fold8(parts);
        for (r, products) in products.chunks_exact(K).enumerate() {
            scores[r * span.width + position - span.base..][..K].copy_from_slice(products);
        }
        position += K;
    }
    for position in position..keys.end() {
        let key = keys.row(position);
        for (r, q) in q.into_iter().enumerate() {
            scores[r * span.width + position - span.base] = dot(simd, q, key);
        }
    }
    R
}

/// The partial sums of `R` queries times `K` keys.
#[inline(always)]
fn dots<S: Wide, E: Element, const R: usize, const K: usize>(
    simd: S,
    q: [&[f32]; R],
    key: [&[E]; K],
) -> [[S::V; K]; R] {
    let mut acc = [[simd.zero(); K]; R];
    let whole = q[0].len() / LANES;
    let mut at = 0;
    let mut of_key = 0;
    for _ in 0..whole {
        let mut qs = [simd.zero(); R];
        let mut ks = [simd.zero(); K];
        for r in 0..R {
            qs[r] = simd.load(q[r][at..].first_chunk().expect("a whole block"));
        }
        for k in 0..K {
            ks[k] = E::load(simd, &key[k][of_key..]);
        }
        multiply_add(simd, qs, ks, &mut acc);
        (at, of_key) = (at + LANES, of_key + E::BLOCK);
    }
    if at < q[0].len() {
        let mut qs = [simd.zero(); R];
        let mut ks = [simd.zero(); K];
        for r in 0..R {
            qs[r] = simd.load(&padded(&q[r][at..], 0.0));
        }
        for k in 0..K {
            ks[k] = E::rest(simd, &key[k][of_key..]);
        }
        multiply_add(simd, qs, ks, &mut acc);
    }
    acc
}

#[inline(always)]
fn multiply_add<S: Wide, const R: usize, const K: usize>(
    simd: S,
    q: [S::V; R],
    key: [S::V; K],
    acc: &mut [[S::V; K]; R],
) {
    for r in 0..R {
        for k in 0..K {
            acc[r][k] = simd.fma(q[r], key[k], acc[r][k]);
        }
    }
}

/// The canonical dot product, one at a time: the processor overlaps its tree with the next one.
#[inline(always)]
fn dot<S: Wide, E: Element>(simd: S, q: &[f32], key: &[E]) -> f32 {
    let (q, q_rest) = q.as_chunks::<LANES>();
    let key = key.chunks_exact(E::BLOCK);
    let key_rest = key.remainder();
    let mut acc = simd.zero();
    for (q, key) in q.iter().zip(key) {
        acc = simd.fma(simd.load(q), E::load(simd, key), acc);
    }
    if !q_rest.is_empty() {
        acc = simd.fma(simd.load(&padded(q_rest, 0.0)), E::rest(simd, key_rest), acc);
    }
    simd.fold(acc)
}

/// Turns a row's products into e^(score - maximum); returns the denominator.
#[inline(always)]
fn weigh(job: AttentionCall, row: QueryRow, base: usize, scores: &mut [f32]) -> f32 {
    let spec = job.spec;
    let first = row.start / LANES * LANES;
    let scores = &mut scores[first - base..(row.end - base).next_multiple_of(LANES)];
    for s in &mut *scores {
        *s *= spec.scale;
    }
    if let Some(cap) = spec.soft_cap {
        for s in &mut *scores {
            *s = capped(*s, cap);
        }
    }
    if let Some(Distances { bias, extent }) = job.distances {
        let bias = &bias[row.index * extent..][..extent];
        let seen = &mut scores[row.start - first..row.end - first];
        for (s, bias) in seen.iter_mut().rev().zip(bias) {
            *s += bias;
        }
    }
    // Invisible positions become exactly 0 in the sum, whose lanes are never -0.
    scores[..row.start - first].fill(f32::NEG_INFINITY);
    scores[row.end - first..].fill(f32::NEG_INFINITY);
    let largest = maximum(scores);
    match spec.sinks {
        None => exp_and_sum(scores, largest),
        Some(sinks) => {
            let sink = sinks[row.head];
            let largest = greater(sink, largest);
            exp_and_sum(scores, largest) + exp(sink - largest)
        }
    }
}

/// Positions per tile of values. A tile stays in the second-level cache, and the sums of a lane
/// stay in registers for the 16 positions of that lane.
const MIXED: usize = 512;

/// Accumulates the weighted values into `acc` [chunks of 32 elements, rows, lanes], and hands the
/// finished sums of each chunk to `finish` while they are in the first-level cache.
#[inline(always)]
fn mix<S: Wide, T: Tiles>(
    simd: S,
    rows: &[QueryRow],
    values: T,
    (span, weights): (ScoreSpan, &[f32]),
    acc: &mut [LaneBlock],
    mut finish: impl FnMut(usize, &mut [[LaneBlock; LANES]]),
) {
    let (acc, _) = acc.as_chunks_mut::<LANES>();
    // Positions visible to all rows are mixed for several rows at once.
    let from = rows.iter().map(|row| row.start).max().unwrap_or(0);
    let to = rows.iter().map(|row| row.end).min().unwrap_or(0);
    let mut start = span.start;
    while start < span.end {
        let tile = values.tile(start, span.end, MIXED);
        let from = from.clamp(tile.start(), tile.end());
        let to = to.clamp(from, tile.end());
        for (c, acc) in acc.chunks_exact_mut(rows.len()).enumerate() {
            if tile.start() == span.start {
                acc.as_flattened_mut().fill(LaneBlock([0.0; LANES]));
            }
            for (r, acc) in acc.iter_mut().enumerate() {
                let own = TilePart {
                    tile,
                    from: rows[r].start.max(tile.start()),
                    to: rows[r].end.min(from),
                    c,
                };
                mix_own(simd, own, span, &weights[r * span.width..], acc);
            }
            let part = TilePart { tile, from, to, c };
            let mut first = 0;
            while first < rows.len() {
                let weights = &weights[first * span.width..];
                let acc = &mut acc[first..];
                first += match acc.len() {
                    8.. if S::SUMS >= 8 => mix_rows::<_, _, 8>(simd, part, span, weights, acc),
                    4.. if S::SUMS >= 8 => mix_rows::<_, _, 4>(simd, part, span, weights, acc),
                    2.. if S::SUMS >= 2 => mix_rows::<_, _, 2>(simd, part, span, weights, acc),
                    _ => mix_rows::<_, _, 1>(simd, part, span, weights, acc),
                };
            }
            for (r, acc) in acc.iter_mut().enumerate() {
                let own = TilePart {
                    tile,
                    from: rows[r].start.max(to),
                    to: rows[r].end.min(tile.end()),
                    c,
                };
                mix_own(simd, own, span, &weights[r * span.width..], acc);
            }
            if tile.end() == span.end {
                finish(c, acc);
            }
        }
        start = tile.end();
    }
}

/// The `c`-th 32 elements of the positions from..to of a tile; empty if `to` is below `from`.
#[derive(Clone, Copy)]
struct TilePart<T> {
    tile: T,
    from: usize,
    to: usize,
    c: usize,
}

/// Mixes a part for one row, whose sums stay in memory.
#[inline(always)]
fn mix_own<S: Wide, T: Tile>(
    simd: S,
    TilePart { tile, from, to, c }: TilePart<T>,
    span: ScoreSpan,
    weights: &[f32],
    acc: &mut [LaneBlock; LANES],
) {
    for position in from..to {
        let value = chunk(simd, tile.row(position), c);
        let acc = &mut acc[position % LANES].0;
        let weight = simd.splat(weights[position - span.base]);
        simd.store(simd.fma(weight, value, simd.load(acc)), acc);
    }
}

/// Mixes a part for the first `R` rows, with the sums of a lane in registers. Returns `R`.
#[inline(always)]
fn mix_rows<S: Wide, T: Tile, const R: usize>(
    simd: S,
    TilePart { tile, from, to, c }: TilePart<T>,
    span: ScoreSpan,
    weights: &[f32],
    acc: &mut [[LaneBlock; LANES]],
) -> usize {
    let acc: &mut [[LaneBlock; LANES]; R] = acc.first_chunk_mut().expect("as many rows");
    let mut of_row: [&[f32]; R] = [&[]; R];
    for (r, of_row) in of_row.iter_mut().enumerate() {
        *of_row = &weights[r * span.width..][..to - span.base];
    }
    for first in from..to.min(from + LANES) {
        let lane = first % LANES;
        let mut sums = [simd.zero(); R];
        for r in 0..R {
            sums[r] = simd.load(&acc[r][lane].0);
        }
        let mut position = first;
        while position < to {
            let value = chunk(simd, tile.row(position), c);
            for r in 0..R {
                sums[r] = simd.fma(simd.splat(of_row[r][position - span.base]), value, sums[r]);
            }
            position += LANES;
        }
        for r in 0..R {
            simd.store(sums[r], &mut acc[r][lane].0);
        }
    }
    R
}
