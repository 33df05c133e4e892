//! Attention of up to 32 queries at once that share a key-value head: each query is a lane.
//!
//! Keys and values are numbers that all queries are multiplied by, so that nothing is added across
//! lanes: the 32 partial sums of a product are 32 vectors, one after another, and their tree is
//! additions of vectors.

use std::ops::Range;

use super::super::elementary::{capped, exp};
use super::super::lanes::{LANES, Lanes, greater};
use super::super::vector::Wide;
use super::cache::chunk;
use super::tiles::{Tile, Tiles};
use super::{
    AttentionCall, AttentionScratch, Distances, LaneBlock, QueryRow, ROWS, UnitQueries, floats,
};

/// Levels of the tree of lanes that are kept at once, the lane at hand included.
const LEVELS: usize = 6;

/// Most keys that are multiplied at once.
const KEYS: usize = 4;

/// Rows of values that are converted at once, all of one lane.
const MIXED: usize = (ROWS - LEVELS) * LANES;

/// True if the scratch of heads with these elements holds what a block keeps besides scores.
pub(super) fn fit(key_dim: usize, value_dim: usize) -> bool {
    (LANES + KEYS) * key_dim.div_ceil(LANES) <= ROWS * LANES * value_dim.div_ceil(LANES)
}

/// What each query of a block sees: positions starts..ends. Lanes without a query repeat the last.
struct Seen {
    starts: [usize; LANES],
    ends: [usize; LANES],
}

impl Seen {
    fn of(rows: &[QueryRow]) -> Seen {
        let row = |r: usize| rows[r.min(rows.len() - 1)];
        Seen {
            starts: std::array::from_fn(|r| row(r).start),
            ends: std::array::from_fn(|r| row(r).end),
        }
    }

    /// The positions that any query sees.
    fn start(&self) -> usize {
        self.starts[0]
    }

    fn end(&self) -> usize {
        self.ends[LANES - 1]
    }

    /// True if all queries see a position that one of them sees.
    fn by_all(&self, position: usize) -> bool {
        position >= self.starts[LANES - 1] && position < self.ends[0]
    }

    fn by(&self, r: usize, position: usize) -> bool {
        position >= self.starts[r] && position < self.ends[r]
    }
}

/// The places of scores: those of a lane are contiguous.
#[derive(Clone, Copy)]
struct ScorePlaces {
    start: usize,
    end: usize,
    /// Room for the scores of a lane.
    most: usize,
}

impl ScorePlaces {
    /// The score of a position.
    #[inline(always)]
    fn at(self, position: usize) -> usize {
        position % LANES * self.most + position / LANES - self.start / LANES
    }

    /// The first position of a lane.
    #[inline(always)]
    fn first(self, lane: usize) -> usize {
        self.start + (lane + LANES - self.start % LANES) % LANES
    }

    /// The scores of a lane.
    #[inline(always)]
    fn of(self, lane: usize) -> Range<usize> {
        let first = self.first(lane);
        let count = self.end.saturating_sub(self.first(lane));
        self.at(first)..self.at(first) + count.div_ceil(LANES)
    }
}

/// The queries of a block, what they see, and where their scores lie.
#[derive(Clone, Copy)]
struct BlockQueries<'a> {
    job: AttentionCall<'a>,
    rows: &'a [QueryRow],
    seen: &'a Seen,
    places: ScorePlaces,
}

/// Computes the queries of a block.
#[inline(always)]
pub(super) fn run<S: Wide, T: Tiles>(simd: S, unit: UnitQueries<T>) {
    let UnitQueries { job, rows, keys, values, scratch } = unit;
    let seen = Seen::of(rows);
    let start = seen.start();
    let end = seen.end();
    let places = ScorePlaces { start, end, most: end.div_ceil(LANES) - start / LANES };
    let AttentionScratch { scores, acc } = scratch;
    let block = BlockQueries { job, rows, seen: &seen, places };
    let mut largest = score(simd, block, keys, scores, acc);
    if let Some(sinks) = job.spec.sinks {
        for (row, largest) in rows.iter().zip(&mut largest) {
            *largest = greater(sinks[row.head], *largest);
        }
    }
    let mut sums = mix(simd, block, values, (scores, &largest), acc);
    if let Some(sinks) = job.spec.sinks {
        for ((row, largest), sum) in rows.iter().zip(largest).zip(&mut sums) {
            *sum += exp(sinks[row.head] - largest);
        }
    }
    let value_dim = job.spec.value_dim;
    for block in &mut acc[..value_dim] {
        for (y, sum) in block.0.iter_mut().zip(&sums) {
            *y /= sum;
        }
    }
    for (first, rows) in (0..).step_by(TILE).zip(rows.chunks(TILE)) {
        for (at, some) in (0..).step_by(TILE).zip(acc[..value_dim].chunks(TILE)) {
            let mut tile = [[0.0; TILE]; TILE];
            for (tile, block) in tile.iter_mut().zip(some) {
                *tile = *block.0[first..].first_chunk().expect("whole tiles of lanes");
            }
            for (tile, row) in transposed(tile).iter().zip(rows) {
                // SAFETY: this is the index of a (token, head) of this call, which belongs to this
                // unit alone.
                let y = unsafe { job.y.get(row.index, value_dim) };
                match y[at..].first_chunk_mut() {
                    Some(y) => *y = *tile,
                    None => y[at..].copy_from_slice(&tile[..value_dim - at]),
                }
            }
        }
    }
}

/// Rows and columns of a tile whose rows become columns.
const TILE: usize = 8;

/// In tiles, as the compiler reads longer columns by instructions that gather, which are slower.
#[inline(always)]
fn transposed(tile: [[f32; TILE]; TILE]) -> [[f32; TILE]; TILE] {
    let mut columns = [[0.0; TILE]; TILE];
    for (r, row) in tile.iter().enumerate() {
        for (c, column) in columns.iter_mut().enumerate() {
            column[r] = row[c];
        }
    }
    columns
}

/// Scores all queries with all keys that any of them sees; returns the largest of each.
#[inline(always)]
fn score<S: Wide, T: Tiles>(
    simd: S,
    block: BlockQueries,
    keys: T,
    scores: &mut [LaneBlock],
    room: &mut [LaneBlock],
) -> Lanes {
    let BlockQueries { job, rows, places, .. } = block;
    let dim = job.spec.key_dim;
    let (queries, room) = room.split_at_mut(dim.next_multiple_of(LANES));
    // Elements beyond the end, and lanes without a query.
    queries.fill(LaneBlock([0.0; LANES]));
    for (first, rows) in (0..).step_by(TILE).zip(rows.chunks(TILE)) {
        for (at, some) in (0..dim).step_by(TILE).zip(queries.chunks_mut(TILE)) {
            let mut tile = [[0.0; TILE]; TILE];
            for (tile, row) in tile.iter_mut().zip(rows) {
                let q = &job.q[row.index * dim..][..dim][at..];
                match q.first_chunk() {
                    Some(q) => *tile = *q,
                    None => tile[..q.len()].copy_from_slice(q),
                }
            }
            for (block, tile) in some.iter_mut().zip(transposed(tile)) {
                block.0[first..][..TILE].copy_from_slice(&tile);
            }
        }
    }
    let (queries, _) = queries.as_chunks();
    let mut start = places.start;
    let mut largest = [f32::NEG_INFINITY; LANES];
    while start < places.end {
        let tile = keys.tile(start, places.end, LANES);
        while start < tile.end() {
            let to = (&mut *scores, &mut *room);
            let count = match tile.end() - start {
                4.. if S::SUMS >= 8 => {
                    score_keys::<_, _, 4>(simd, queries, tile, start, places, to)
                }
                2.. if S::SUMS >= 2 => {
                    score_keys::<_, _, 2>(simd, queries, tile, start, places, to)
                }
                _ => score_keys::<_, _, 1>(simd, queries, tile, start, places, to),
            };
            for position in start..start + count {
                settle(block, position, &mut scores[places.at(position)].0, &mut largest);
            }
            start += count;
        }
    }
    largest
}

/// Multiplies all queries by `K` keys, those from a position on. Returns `K`.
#[inline(always)]
fn score_keys<S: Wide, T: Tile, const K: usize>(
    simd: S,
    queries: &[[LaneBlock; LANES]],
    tile: T,
    position: usize,
    places: ScorePlaces,
    (scores, room): (&mut [LaneBlock], &mut [LaneBlock]),
) -> usize {
    // A block of 32 elements of each key, then the next.
    let (keys, _) = room.as_chunks_mut::<K>();
    let keys = &mut keys[..queries.len()];
    for k in 0..K {
        let row = tile.row(position + k);
        for (c, keys) in keys.iter_mut().enumerate() {
            simd.store(chunk(simd, row, c), &mut keys[k].0);
        }
    }
    let mut quarters = [[simd.zero(); K]; 4];
    for (lane, quarter) in quarters.iter_mut().enumerate() {
        *quarter = every_fourth(simd, queries, keys, lane);
    }
    let [a, b, c, d] = quarters;
    let products = add(simd, add(simd, a, c), add(simd, b, d));
    for (k, product) in products.into_iter().enumerate() {
        simd.store(product, &mut scores[places.at(position + k)].0);
    }
    K
}

/// The tree of the partial sums `lane`, `lane` + 4 and so on.
#[inline(always)]
fn every_fourth<S: Wide, const K: usize>(
    simd: S,
    queries: &[[LaneBlock; LANES]],
    keys: &[[LaneBlock; K]],
    lane: usize,
) -> [S::V; K] {
    let low = every_eighth(simd, queries, keys, lane);
    add(simd, low, every_eighth(simd, queries, keys, lane + 4))
}

/// The tree of the partial sums `lane`, `lane` + 8 and so on.
#[inline(always)]
fn every_eighth<S: Wide, const K: usize>(
    simd: S,
    queries: &[[LaneBlock; LANES]],
    keys: &[[LaneBlock; K]],
    lane: usize,
) -> [S::V; K] {
    let low = partial(simd, queries, keys, lane);
    let low = add(simd, low, partial(simd, queries, keys, lane + 16));
    let high = partial(simd, queries, keys, lane + 8);
    let high = add(simd, high, partial(simd, queries, keys, lane + 24));
    add(simd, low, high)
}

/// The partial sums of a lane.
#[inline(always)]
fn partial<S: Wide, const K: usize>(
    simd: S,
    queries: &[[LaneBlock; LANES]],
    keys: &[[LaneBlock; K]],
    lane: usize,
) -> [S::V; K] {
    let mut sums = [simd.zero(); K];
    for (queries, keys) in queries.iter().zip(keys) {
        let q = simd.load(&queries[lane].0);
        for k in 0..K {
            sums[k] = simd.fma(q, simd.splat(keys[k].0[lane]), sums[k]);
        }
    }
    sums
}

#[inline(always)]
fn add<S: Wide, const K: usize>(simd: S, mut a: [S::V; K], b: [S::V; K]) -> [S::V; K] {
    for k in 0..K {
        a[k] = simd.add(a[k], b[k]);
    }
    a
}

/// Turns the products with the key of a position into scores, and raises the largest to them.
#[inline(always)]
fn settle(block: BlockQueries, position: usize, score: &mut Lanes, largest: &mut Lanes) {
    let BlockQueries { job, rows, seen, .. } = block;
    for s in &mut *score {
        *s *= job.spec.scale;
    }
    if let Some(cap) = job.spec.soft_cap {
        for s in &mut *score {
            *s = capped(*s, cap);
        }
    }
    if let Some(Distances { bias, extent }) = job.distances {
        for (r, row) in rows.iter().enumerate() {
            let distance = (row.end - 1).wrapping_sub(position);
            if distance < extent {
                score[r] += bias[row.index * extent + distance];
            }
        }
    }
    // Invisible positions become exactly 0 in the sums, whose lanes are never -0.
    if !seen.by_all(position) {
        for (r, s) in score.iter_mut().enumerate() {
            if !seen.by(r, position) {
                *s = f32::NEG_INFINITY;
            }
        }
    }
    for i in 0..LANES {
        largest[i] = greater(score[i], largest[i]);
    }
}

/// Turns scores into e^(score - largest) and mixes the values by them, into the first blocks of
/// `acc`, one for each element; returns the sums.
#[inline(always)]
fn mix<S: Wide, T: Tiles>(
    simd: S,
    block: BlockQueries,
    values: T,
    (scores, largest): (&mut [LaneBlock], &Lanes),
    acc: &mut [LaneBlock],
) -> Lanes {
    let BlockQueries { job, seen, places, .. } = block;
    let dim = job.spec.value_dim;
    let (levels, room) = acc.split_at_mut(LEVELS * dim);
    let chunks = dim.div_ceil(LANES);
    let mut level = 0;
    let mut totals = [[0.0; LANES]; LEVELS];
    for number in 0..LANES {
        let lane = lane_of(number);
        let weights = &mut scores[places.of(lane)];
        let mut total = [0.0; LANES];
        for LaneBlock(score) in &mut *weights {
            for i in 0..LANES {
                score[i] = exp(score[i] - largest[i]);
                total[i] += score[i];
            }
        }
        totals[level] = total;
        let sums = &mut levels[level * dim..][..dim];
        let mut begun = false;
        let first = places.first(lane);
        for (weights, at) in weights.chunks(MIXED).zip((first..).step_by(MIXED * LANES)) {
            let some = (at..).step_by(LANES).take(weights.len());
            let mut tile = values.tile(at, places.end, places.end - at);
            for (position, row) in some.clone().zip(room.chunks_exact_mut(chunks)) {
                if position >= tile.end() {
                    tile = values.tile(position, places.end, places.end - position);
                }
                for (c, block) in row.iter_mut().enumerate() {
                    simd.store(chunk(simd, tile.row(position), c), &mut block.0);
                }
            }
            // The rows that follow are far apart, and the processor does not see them coming.
            let end = places.end;
            let next = at + MIXED * LANES;
            let next = if next < end { next } else { places.first(lane_of(number + 1)) };
            for position in (next..end).step_by(LANES).take(MIXED) {
                simd.prefetch(values.tile(position, position + 1, 1).row(position));
            }
            let rows = floats(room);
            let before = some.clone().take_while(|&position| !seen.by_all(position)).count();
            let whole = some.clone().skip(before).take_while(|&at| seen.by_all(at)).count();
            let whole = before..before + whole;
            let width = chunks * LANES;
            for (i, position) in some.enumerate() {
                if i == whole.start {
                    let rows = (&rows[i * width..], width);
                    mix_rows(simd, &weights[whole.clone()], rows, begun, sums);
                    begun |= !whole.is_empty();
                }
                if !whole.contains(&i) {
                    if !std::mem::replace(&mut begun, true) {
                        sums.fill(LaneBlock([0.0; LANES]));
                    }
                    let by = std::array::from_fn(|r| match seen.by(r, position) {
                        true => f32::from_bits(u32::MAX),
                        false => 0.0,
                    });
                    mix_some(simd, &by, &weights[i], &rows[i * width..], sums);
                }
            }
        }
        if !begun {
            sums.fill(LaneBlock([0.0; LANES]));
        }
        // Lanes whose number ends with ones complete as many subtrees.
        for _ in 0..number.trailing_ones() {
            level -= 1;
            let (low, high) = levels[level * dim..][..2 * dim].split_at_mut(dim);
            for (low, high) in low.iter_mut().zip(high) {
                simd.store(simd.add(simd.load(&low.0), simd.load(&high.0)), &mut low.0);
            }
            let high = totals[level + 1];
            for i in 0..LANES {
                totals[level][i] += high[i];
            }
        }
        level += 1;
    }
    totals[0]
}

/// The order in which the tree adds lanes: 0, 16, 8, 24, 4 and so on, around again.
#[inline(always)]
fn lane_of(number: usize) -> usize {
    (number % LANES).reverse_bits() >> (usize::BITS - LANES.ilog2())
}

/// Mixes a value for those queries that see its position, whose bits in `by` are set.
#[inline(always)]
fn mix_some<S: Wide>(
    simd: S,
    by: &Lanes,
    weights: &LaneBlock,
    value: &[f32],
    sums: &mut [LaneBlock],
) {
    let by = simd.load(by);
    let weights = simd.load(&weights.0);
    for (sum, &value) in sums.iter_mut().zip(value) {
        let before = simd.load(&sum.0);
        let mixed = simd.fma(weights, simd.splat(value), before);
        simd.store(simd.select(by, mixed, before), &mut sum.0);
    }
}

/// Mixes rows of values for all queries, into sums that may not have `begun`.
#[inline(always)]
fn mix_rows<S: Wide>(
    simd: S,
    weights: &[LaneBlock],
    (rows, width): (&[f32], usize),
    begun: bool,
    sums: &mut [LaneBlock],
) {
    if weights.is_empty() {
        return;
    }
    let dim = sums.len();
    let mut first = 0;
    while first < dim {
        let sums = &mut sums[first..];
        let rows = (rows, width, first);
        first += match sums.len() {
            8.. if S::SUMS >= 8 => mix_elements::<_, 8>(simd, weights, rows, begun, sums),
            2.. if S::SUMS >= 2 => mix_elements::<_, 2>(simd, weights, rows, begun, sums),
            _ => mix_elements::<_, 1>(simd, weights, rows, begun, sums),
        };
    }
}

/// Mixes `N` elements of each row, from the `first` on. Returns `N`.
#[inline(always)]
fn mix_elements<S: Wide, const N: usize>(
    simd: S,
    weights: &[LaneBlock],
    (rows, width, first): (&[f32], usize, usize),
    begun: bool,
    to: &mut [LaneBlock],
) -> usize {
    let to: &mut [LaneBlock; N] = to.first_chunk_mut().expect("as many elements");
    let mut sums = [simd.zero(); N];
    if begun {
        for n in 0..N {
            sums[n] = simd.load(&to[n].0);
        }
    }
    for (weights, row) in weights.iter().zip(rows.chunks_exact(width)) {
        let weights = simd.load(&weights.0);
        let value: &[f32; N] = row[first..].first_chunk().expect("as many elements");
        for n in 0..N {
            sums[n] = simd.fma(weights, simd.splat(value[n]), sums[n]);
        }
    }
    for n in 0..N {
        simd.store(sums[n], &mut to[n].0);
    }
    N
}
