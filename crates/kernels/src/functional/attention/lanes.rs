//! Attention on arrays of lanes.

use super::super::elementary::exp;
use super::super::lanes::{LANES, greater, maximum, padded};
use super::super::row::{capped, exp_and_sum};
use super::super::vector::Vector;
use super::cache::{CacheLayout, Element};
use super::{AttentionScratch, Block, Job, KvData, ROWS};

/// The units of one thread: every `threads`-th.
#[inline(always)]
pub(super) fn share<V: Vector>(
    job: Job,
    thread: usize,
    threads: usize,
    scratch: &mut AttentionScratch,
) {
    for unit in (thread..job.units()).step_by(threads) {
        match job.cache.data {
            KvData::F32 { keys, values } => run_unit::<V, _>(job, unit, keys, values, scratch),
            KvData::Bf16 { keys, values } => run_unit::<V, _>(job, unit, keys, values, scratch),
        }
    }
}

/// One query.
#[derive(Clone, Copy, Default)]
struct Row {
    /// Its index in [tokens, heads].
    index: usize,
    head: usize,
    /// The positions it sees are start..end.
    start: usize,
    end: usize,
}

#[inline(always)]
fn run_unit<V: Vector, E: Element>(
    job: Job,
    unit: usize,
    keys: &[E],
    values: &[E],
    scratch: &mut AttentionScratch,
) {
    let spec = job.spec;
    let group = spec.heads / spec.kv_heads;
    let blocks = job.rows_per_kv_head().div_ceil(ROWS);
    let kv_head = unit / blocks;
    let first = unit % blocks * ROWS;
    let count = ROWS.min(job.rows_per_kv_head() - first);
    let mut rows = [Row::default(); ROWS];
    let rows = &mut rows[..count];
    for (row, i) in rows.iter_mut().zip(first..) {
        let (token, head) = (i / group, kv_head * group + i % group);
        let position = job.first_position + token;
        let start = spec.first_visible(position);
        *row = Row { index: token * spec.heads + head, head, start, end: position + 1 };
    }
    let start = rows[0].start;
    let end = rows[count - 1].end;
    // A multiple of 32, so that an index into the scores is in the lane of its position.
    let base = start / LANES * LANES;
    let width = (end - base).next_multiple_of(LANES);
    let scores = &mut scratch.scores[..count * width];
    let span = Span { start, end, base, width };

    let keys = Head { data: keys, layout: job.cache.keys, head: kv_head, dim: spec.key_dim };
    score::<V, E>(job, rows, span, keys, scores);
    let mut sums = [0.0; ROWS];
    for ((row, scores), sum) in rows.iter().zip(scores.chunks_exact_mut(width)).zip(&mut sums) {
        *sum = weigh(job, *row, base, scores);
    }
    let values =
        Head { data: values, layout: job.cache.values, head: kv_head, dim: spec.value_dim };
    let chunks = spec.value_dim.div_ceil(LANES);
    let acc = &mut scratch.acc[..chunks * count * LANES];
    mix::<V, E>(rows, span, values, scores, acc);
    for (r, row) in rows.iter().enumerate() {
        // SAFETY: the index of a (token, head) of this call, which belongs to this unit alone.
        let y = unsafe { job.y.get(row.index, spec.value_dim) };
        for (c, y) in y.chunks_mut(LANES).enumerate() {
            let lanes = &mut acc[(c * count + r) * LANES..][..LANES];
            for width in [16, 8, 4, 2, 1] {
                let (low, high) = lanes[..2 * width].split_at_mut(width);
                for (low, high) in low.iter_mut().zip(high) {
                    for i in 0..LANES {
                        low.0[i] += high.0[i];
                    }
                }
            }
            for (y, sum) in y.iter_mut().zip(&lanes[0].0) {
                *y = sum / sums[r];
            }
        }
    }
}

/// The positions that the rows of a unit see between them, and how scores are laid out: a row's
/// score for position p is at `p - base` of `width`.
#[derive(Clone, Copy)]
struct Span {
    start: usize,
    end: usize,
    base: usize,
    width: usize,
}

/// The cached rows of one key-value head.
#[derive(Clone, Copy)]
struct Head<'a, E> {
    data: &'a [E],
    layout: CacheLayout,
    head: usize,
    dim: usize,
}

/// Positions start..end, whose rows lie at even distances from `offset` on.
#[derive(Clone, Copy)]
struct Tile {
    start: usize,
    end: usize,
    offset: usize,
}

impl<'a, E: Element> Head<'a, E> {
    /// Up to `size` positions from `start` on, not beyond `end` nor the end of the ring.
    #[inline(always)]
    fn tile(&self, start: usize, end: usize, size: usize) -> Tile {
        let to_wrap = self.layout.capacity - start % self.layout.capacity;
        let end = end.min(start + size.min(to_wrap));
        Tile { start, end, offset: self.layout.offset(self.head, start) }
    }

    #[inline(always)]
    fn row(&self, tile: Tile, position: usize) -> &'a [E] {
        let at = tile.offset + (position - tile.start) * self.layout.slot_stride;
        &self.data[at..at + self.dim]
    }
}

/// All products of the rows' queries with the keys of the span, by tiles that stay in the
/// first-level cache from one row to the next.
#[inline(always)]
fn score<V: Vector, E: Element>(
    job: Job,
    rows: &[Row],
    span: Span,
    keys: Head<E>,
    scores: &mut [f32],
) {
    let mut start = span.start;
    while start < span.end {
        let tile = keys.tile(start, span.end, 32);
        for (r, row) in rows.iter().enumerate() {
            let q = &job.q[row.index * keys.dim..][..keys.dim];
            let scores =
                &mut scores[r * span.width..][tile.start - span.base..tile.end - span.base];
            for (score, position) in scores.iter_mut().zip(tile.start..) {
                *score = dot::<V, E>(q, keys.row(tile, position));
            }
        }
        start = tile.end;
    }
}

/// The canonical dot. One at a time: the processor overlaps the next with this one's tree.
#[inline(always)]
fn dot<V: Vector, E: Element>(q: &[f32], key: &[E]) -> f32 {
    let (q, q_rest) = q.as_chunks::<LANES>();
    let (key, key_rest) = key.as_chunks::<LANES>();
    let mut acc = V::zero();
    for (q, key) in q.iter().zip(key) {
        acc = V::load(q).fma(E::load(key), acc);
    }
    if !q_rest.is_empty() {
        // Filled up with 0 · -0 = -0, which leaves every accumulator as it is.
        let mut key = [E::NEGATIVE_ZERO; LANES];
        key[..key_rest.len()].copy_from_slice(key_rest);
        acc = V::load(&padded(q_rest, 0.0)).fma(E::load(&key), acc);
    }
    acc.fold()
}

/// Turns a row's products into e^(score - maximum); returns the denominator.
#[inline(always)]
fn weigh(job: Job, row: Row, base: usize, scores: &mut [f32]) -> f32 {
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
    // What is not visible becomes exactly 0 in the sum, whose lanes are never -0.
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

/// Accumulates the weighted values into `acc` [chunks of 32 elements, rows, lanes].
#[inline(always)]
fn mix<V: Vector, E: Element>(
    rows: &[Row],
    span: Span,
    values: Head<E>,
    weights: &[f32],
    acc: &mut [Block],
) {
    acc.fill(Block([0.0; LANES]));
    let (acc, _) = acc.as_chunks_mut::<LANES>();
    // One row's accumulators fit the first-level cache, so values are read straight through. Of
    // several rows only those of one chunk fit: it takes a tile of positions at a time.
    let size = if rows.len() == 1 { 1 } else { 64 };
    let mut start = span.start;
    while start < span.end {
        let tile = values.tile(start, span.end, size);
        for (c, acc) in acc.chunks_exact_mut(rows.len()).enumerate() {
            for (r, (row, acc)) in rows.iter().zip(acc).enumerate() {
                let from = row.start.clamp(tile.start, tile.end);
                let to = row.end.clamp(tile.start, tile.end);
                let weights = &weights[r * span.width..][from - span.base..to - span.base];
                for (&weight, position) in weights.iter().zip(from..) {
                    let value: V = chunk(values.row(tile, position), c);
                    let acc = &mut acc[position % LANES].0;
                    V::splat(weight).fma(value, V::load(acc)).store(acc);
                }
            }
        }
        start = tile.end;
    }
}

/// The `c`-th 32 elements of a row; beyond its end, what nobody reads.
#[inline(always)]
fn chunk<V: Vector, E: Element>(row: &[E], c: usize) -> V {
    let (whole, rest) = row.as_chunks::<LANES>();
    if let Some(block) = whole.get(c) {
        return E::load(block);
    }
    let mut block = [E::NEGATIVE_ZERO; LANES];
    block[..rest.len()].copy_from_slice(rest);
    E::load(&block)
}
