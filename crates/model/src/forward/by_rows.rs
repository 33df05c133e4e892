//! Rows of activations: division among threads, rows of one sequence, and parts of rows.

use rayon::prelude::*;
use sws_format::Span;

/// Calls `f` with every element, on several threads if they work on enough `numbers` to pay off.
pub(super) fn each<T: Send>(list: &mut [T], numbers: usize, f: impl Fn(&mut T) + Sync + Send) {
    let least = if numbers < WORTH_SPLITTING { list.len() } else { 1 };
    list.par_iter_mut().with_min_len(least.max(1)).with_max_len(least.max(1)).for_each(f);
}

/// Below this many elements, waking a second thread costs more than it saves.
pub(super) const WORTH_SPLITTING: usize = 1 << 16;

/// Calls `f` with runs of rows and the index of the first, on several threads if there are many.
pub(super) fn by_rows(x: &mut [f32], width: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
    split_rows(x, width, WORTH_SPLITTING, f);
}

/// [`by_rows`], on several threads if each gets at least half of `least` elements.
pub(super) fn split_rows(
    x: &mut [f32],
    width: usize,
    least: usize,
    f: impl Fn(usize, &mut [f32]) + Sync,
) {
    fn split(
        x: &mut [f32],
        (width, least): (usize, usize),
        first: usize,
        threads: usize,
        f: &(impl Fn(usize, &mut [f32]) + Sync),
    ) {
        let rows = x.len() / width;
        if threads < 2 || rows < 2 || x.len() < least {
            return f(first, x);
        }
        let half = rows / 2;
        let (left, right) = x.split_at_mut(half * width);
        rayon::join(
            || split(left, (width, least), first, threads / 2, f),
            || split(right, (width, least), first + half, threads - threads / 2, f),
        );
    }
    split(x, (width, least), 0, rayon::current_num_threads(), &f);
}

/// The rows of a sequence in `x`.
pub(super) fn rows_of<'x>(span: &Span, x: &'x [f32], width: usize) -> &'x [f32] {
    &x[span.first_row * width..][..span.tokens * width]
}

/// The rows of a sequence in `x`, for writing.
pub(super) fn rows_of_mut<'x>(span: &Span, x: &'x mut [f32], width: usize) -> &'x mut [f32] {
    &mut x[span.first_row * width..][..span.tokens * width]
}

/// A part of each head in a row. All heads of a row lie side by side.
#[derive(Clone, Copy)]
pub(super) struct HeadPart {
    pub(super) heads: usize,
    /// Elements of a head, those of the part, and those before it.
    pub(super) each: usize,
    pub(super) len: usize,
    pub(super) before: usize,
}

/// Copies a part of each head of `rows`, to elements from `first` on of the rows of `to`, which are
/// `width` long.
pub(super) fn gather(rows: &[f32], part: HeadPart, (to, width, first): (&mut [f32], usize, usize)) {
    let HeadPart { heads, each, len, before } = part;
    by_rows(to, width, |row, to| {
        let from = rows[row * heads * each..].chunks_exact(heads * each);
        for (to, from) in to.chunks_exact_mut(width).zip(from) {
            let to = to[first..][..heads * len].chunks_exact_mut(len);
            for (to, from) in to.zip(from.chunks_exact(each)) {
                to.copy_from_slice(&from[before..][..len]);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_visited_once_with_any_number_of_threads() {
        for (rows, width) in [(0, 5), (1, 200_000), (3, 40_000), (1000, 100), (131_072, 1)] {
            for threads in [1, 2, 3, 5] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let mut x = vec![0.5; rows * width];
                pool.install(|| {
                    by_rows(&mut x, width, |first, rows| {
                        for (row, x) in (first..).zip(rows.chunks_exact_mut(width)) {
                            x.iter_mut().for_each(|x| *x += row as f32);
                        }
                    });
                });
                let expected = (0..rows).flat_map(|row| vec![row as f32 + 0.5; width]);
                assert!(x.into_iter().eq(expected), "{rows} x {width}, {threads} threads");
            }
        }
    }
}
