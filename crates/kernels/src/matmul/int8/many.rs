//! Products with several tokens: codes of some rows are decoded once for the tokens of a group, four
//! columns of each row beside those of the others, and all sums of a row stay in one lane.

use std::marker::PhantomData;
use std::ops::Range;

use super::super::ThreadScratch;
use super::super::input::{View, groups};
use super::super::output::OutputColumns;
use super::{less, span_of};
use crate::Matrix;
use crate::encodings::{Eights, RowCursor};
use crate::scalar::{CodeForm, ROUND_COLS, SPAN_BLOCKS, SPAN_COLS};
use crate::simd::int8::{Integers, class};
use crate::simd::{Codes, Simd, SimdJob};

/// Maximum number of tokens in a group, whose sums stay in the second-level cache.
const GROUP: usize = 128;

/// Maximum number of spans in a chunk of columns.
const CHUNK: usize = 8;

/// Tokens of a tile.
const TOKENS: usize = 4;

/// Numbers of 32 bits for each block of a row: eight of codes, a scale, a minimum, two of runs, and both
/// runs of scales and of minima together.
const NUMBERS: usize = 14;

/// Rows of a tile.
const fn rows_of<N: Integers>() -> usize {
    N::REGS * <N::S as Simd>::TILE_LANES
}

/// Lengths of the panel and of the sums.
pub(super) const fn scratch_lengths<N: Integers>() -> [usize; 2] {
    let rows = rows_of::<N>();
    [rows * CHUNK * SPAN_BLOCKS * NUMBERS, rows * GROUP * SPAN_BLOCKS]
}

pub(super) fn many<N: Integers, C: Eights<N>>(
    n: N,
    m: &Matrix,
    x: View,
    y: &mut OutputColumns,
    scratch: &mut ThreadScratch,
) {
    let of_tile = rows_of::<N>();
    let [panel, sums] = scratch_lengths::<N>();
    let panel = scratch.panel.grown(panel);
    let sums = scratch.sums.grown(sums);
    for (group, tokens) in groups(x.tokens, GROUP) {
        for (first, rows) in groups(m.row_count(), of_tile) {
            for (span, spans) in groups(x.padded / SPAN_COLS, CHUNK) {
                let rows = first..first + rows;
                let spans = span..span + spans;
                let panel = Panel::of(panel, of_tile);
                let job =
                    PanelDecode { m, rows, spans: spans.clone(), panel, of: PhantomData::<C> };
                n.compiled(job);
                n.compiled(Multiply { form: C::FORM, x, group, tokens, spans, panel, sums });
            }
            n.compiled(GroupSums {
                sums,
                tokens: group..group + tokens,
                rows: first..first + rows,
                y,
            });
        }
    }
}

/// Decoded rows, those of a tile beside each other.
#[derive(Clone, Copy)]
struct Panel {
    /// Four codes of each row in each number, eight for each block.
    codes: *mut i32,
    /// One for each block, and so on.
    scales: *mut f32,
    minima: *mut f32,
    /// Two for each block.
    runs: *mut i32,
    /// Two numbers of 16 bits for each block.
    pairs: *mut i32,
    pairs_of_minima: *mut i32,
}

impl Panel {
    /// Its parts, for so many rows.
    fn of(panel: &mut [f32], rows: usize) -> Panel {
        let each = rows * CHUNK * SPAN_BLOCKS;
        assert!(panel.len() >= each * NUMBERS);
        let numbers = panel.as_mut_ptr();
        let at = |number: usize| numbers.wrapping_add(each * number);
        Panel {
            codes: at(0).cast(),
            scales: at(8),
            minima: at(9),
            runs: at(10).cast(),
            pairs: at(12).cast(),
            pairs_of_minima: at(13).cast(),
        }
    }
}

/// Spans of some rows to be decoded. There are no more of both than a panel has room for.
struct PanelDecode<'a, 'm, C> {
    m: &'a Matrix<'m>,
    rows: Range<usize>,
    spans: Range<usize>,
    panel: Panel,
    of: PhantomData<C>,
}

impl<N: Integers, C: Eights<N>> SimdJob<N> for PanelDecode<'_, '_, C> {
    #[inline(always)]
    fn run(self, n: N) {
        let PanelDecode { m, rows, spans, panel, .. } = self;
        let of_tile = rows_of::<N>();
        assert!(rows.len() <= of_tile && spans.len() <= CHUNK);
        for (r, row) in rows.enumerate() {
            let at = RowCursor::new(C::ENCODING, m, row);
            for (i, span) in spans.clone().enumerate() {
                // SAFETY: the cursor belongs to this matrix.
                let (codes, of) = unsafe { span_of::<N, C>(n, &at, m, span) };
                for unit in 0..4 {
                    let codes = n.in_panel(C::FORM, codes[unit]);
                    let mut numbers = [0i32; 16];
                    // SAFETY: 64 bytes. The panel has 16 numbers for each unit of a row.
                    unsafe {
                        (&raw mut numbers).cast::<super::Unit<N>>().write_unaligned(codes);
                        let to = panel.codes.add(16 * of_tile * (4 * i + unit) + r);
                        for j in 0..16 {
                            *to.add(of_tile * j) = numbers[j];
                        }
                    }
                }
                // SAFETY: the panel has as many numbers for each span of a row.
                unsafe {
                    let to = of_tile * SPAN_BLOCKS * i + r;
                    let mut eight = [0.0f32; SPAN_BLOCKS];
                    n.simd().store_h(of.scales, eight.as_mut_ptr());
                    for block in 0..SPAN_BLOCKS {
                        *panel.scales.add(to + of_tile * block) = eight[block];
                    }
                    if C::FORM.minima {
                        n.simd().store_h(of.minima, eight.as_mut_ptr());
                        for block in 0..SPAN_BLOCKS {
                            *panel.minima.add(to + of_tile * block) = eight[block];
                        }
                    }
                    if C::FORM.runs {
                        let runs = of.runs.map(u64::to_le_bytes);
                        let minima = of.minima_of_runs.map(u64::to_le_bytes);
                        let to_runs = panel.runs.add(2 * of_tile * SPAN_BLOCKS * i + r);
                        for run in 0..16 {
                            *to_runs.add(of_tile * run) = n.of_run(runs[run / 8][run % 8] as i8);
                        }
                        for block in 0..SPAN_BLOCKS {
                            let at = to + of_tile * block;
                            *panel.pairs.add(at) = pair(&runs[block / 4][block % 4 * 2..]);
                            let minima = &minima[block / 4][block % 4 * 2..];
                            *panel.pairs_of_minima.add(at) = pair(minima);
                        }
                    }
                }
            }
        }
    }
}

/// Two signed bytes as numbers of 16 bits in one of 32.
#[inline(always)]
fn pair(bytes: &[u8]) -> i32 {
    let word = |byte: u8| u32::from(i16::from(byte as i8) as u16);
    (word(bytes[0]) | word(bytes[1]) << 16) as i32
}

/// Tokens of a group to be multiplied with decoded spans.
struct Multiply<'a> {
    form: CodeForm,
    x: View<'a>,
    group: usize,
    tokens: usize,
    spans: Range<usize>,
    panel: Panel,
    sums: &'a mut [f32],
}

impl<N: Integers> SimdJob<N> for Multiply<'_> {
    #[inline(always)]
    fn run(self, n: N) {
        match class::of(self.form) {
            class::FOUR_BITS => self.by::<N, { class::FOUR_BITS }>(n),
            class::FIVE_BITS => self.by::<N, { class::FIVE_BITS }>(n),
            class::SIGNED => self.by::<N, { class::SIGNED }>(n),
            _ => self.by::<N, { class::RUNS }>(n),
        }
    }
}

impl Multiply<'_> {
    #[inline(always)]
    fn by<N: Integers, const CLASS: u8>(self, n: N) {
        let Multiply { form, x, group, tokens, spans, panel, sums } = self;
        let of_token = rows_of::<N>() * SPAN_BLOCKS;
        assert!(sums.len() >= tokens * of_token && spans.len() <= CHUNK);
        let sums = &mut sums[..tokens * of_token];
        if spans.start == 0 {
            sums.fill(0.0);
        }
        for (t, count) in groups(tokens, TOKENS) {
            let sums = &mut sums[t * of_token..][..count * of_token];
            let tile = Int8Tile { form, x, token: group + t, spans: spans.clone(), panel, sums };
            match (N::REGS, count) {
                (1, 1) => tile.add::<N, CLASS, 1, 1>(n),
                (1, 2) => tile.add::<N, CLASS, 1, 2>(n),
                (1, 3) => tile.add::<N, CLASS, 1, 3>(n),
                (1, _) => tile.add::<N, CLASS, 1, 4>(n),
                (_, 1) => tile.add::<N, CLASS, 2, 1>(n),
                (_, 2) => tile.add::<N, CLASS, 2, 2>(n),
                (_, 3) => tile.add::<N, CLASS, 2, 3>(n),
                (_, _) => tile.add::<N, CLASS, 2, 4>(n),
            }
        }
    }
}

/// Some tokens and all rows of a panel.
struct Int8Tile<'a> {
    form: CodeForm,
    x: View<'a>,
    token: usize,
    spans: Range<usize>,
    panel: Panel,
    /// [block of a span][register of rows][token][row]
    sums: &'a mut [f32],
}

impl Int8Tile<'_> {
    /// Adds the products of `T` tokens, for which there are sums, and of `M` registers of rows.
    #[inline(always)]
    fn add<N: Integers, const CLASS: u8, const M: usize, const T: usize>(self, n: N) {
        let Int8Tile { form, x, token, spans, panel, sums } = self;
        let s = n.simd();
        let lanes = <N::S as Simd>::TILE_LANES;
        let less = less::<N>(form);
        assert!(M == N::REGS && sums.len() == SPAN_BLOCKS * M * T * lanes);
        let runs = CLASS == class::RUNS;
        for (i, span) in spans.enumerate() {
            let mut q = [x.q(token)[span].as_ptr(); T];
            let mut scales = [&x.scales(token)[span]; T];
            let mut totals = [&x.totals(token)[span]; T];
            let mut sums_of_x = [&x.sums(token)[span]; T];
            let mut of_runs = [&x.of_runs(token)[span]; T];
            for t in 1..T {
                q[t] = x.q(token + t)[span].as_ptr();
                scales[t] = &x.scales(token + t)[span];
                totals[t] = &x.totals(token + t)[span];
                sums_of_x[t] = &x.sums(token + t)[span];
                of_runs[t] = &x.of_runs(token + t)[span];
            }
            for block in 0..SPAN_BLOCKS {
                let mut first = [n.splat_r(0); T];
                if !runs && less > 0 {
                    for t in 0..T {
                        first[t] = n.splat_r(-i32::from(less) * sums_of_x[t][block]);
                    }
                }
                let number = SPAN_BLOCKS * i + block;
                let mut x32 = q;
                for t in 0..T {
                    x32[t] = q[t].wrapping_add(ROUND_COLS * block);
                }
                // SAFETY: the panel has this block of as many rows, and the activations have 32 columns of
                // it for each token. There is a sum for each of them.
                unsafe {
                    let w = panel.codes.add(8 * M * lanes * number).cast();
                    let of_rows = M * lanes * number;
                    let products =
                        n.block::<CLASS, M, T>(w, panel.runs.add(2 * of_rows), x32, first);
                    for m in 0..M {
                        let at = of_rows + m * lanes;
                        let scale = s.load_t(panel.scales.add(at));
                        for t in 0..T {
                            let to = sums.as_mut_ptr().add(((block * M + m) * T + t) * lanes);
                            let of_runs = of_runs[t][block].as_ptr();
                            let mut product = products[m][t];
                            if runs && less > 0 {
                                let off = n.pairs_r(panel.pairs.add(at), of_runs);
                                product = n.less_r(product, less, off);
                            }
                            let of_x = n.splat_t(scales[t][block]);
                            let scale = s.mul_t(scale, of_x);
                            let mut sum = s.fma_t(n.numbers_r(product), scale, s.load_t(to));
                            if form.minima {
                                let minima = s.load_t(panel.minima.add(at));
                                let total = match runs {
                                    true => {
                                        let pairs = panel.pairs_of_minima.add(at);
                                        s.mul_t(n.numbers_r(n.pairs_r(pairs, of_runs)), of_x)
                                    }
                                    false => n.splat_t(totals[t][block]),
                                };
                                sum = s.fma_t(minima, total, sum);
                            }
                            s.store_t(to, sum);
                        }
                    }
                }
            }
        }
    }
}

/// Sums of a group to be folded.
struct GroupSums<'a, 'y> {
    sums: &'a mut [f32],
    tokens: Range<usize>,
    rows: Range<usize>,
    y: &'a mut OutputColumns<'y>,
}

impl<N: Integers> SimdJob<N> for GroupSums<'_, '_> {
    #[inline(always)]
    fn run(self, _: N) {
        let GroupSums { sums, tokens, rows, y } = self;
        let of_tile = rows_of::<N>();
        let lanes = <N::S as Simd>::TILE_LANES;
        for (t, count) in groups(tokens.len(), TOKENS) {
            let each = count * of_tile;
            let sums = &mut sums[t * of_tile * SPAN_BLOCKS..][..SPAN_BLOCKS * each];
            for half in [4, 2, 1] {
                let (to, from) = sums[..2 * half * each].split_at_mut(half * each);
                for (to, from) in to.iter_mut().zip(from) {
                    *to += *from;
                }
            }
            for (r, row) in rows.clone().enumerate() {
                for i in 0..count {
                    let at = (r / lanes * count + i) * lanes + r % lanes;
                    y.set(tokens.start + t + i, row, sums[at]);
                }
            }
        }
    }
}
