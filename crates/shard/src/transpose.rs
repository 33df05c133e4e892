//! Transposition of matrices that checkpoints store as [columns, rows], in bands that fit in memory.

use rayon::prelude::*;

/// Number of rows that a thread writes at a time: few enough write streams for a processor cache.
const ROWS: usize = 16;

/// Consecutive lines of a matrix, each of which becomes a column.
pub(super) struct Lines<'a> {
    /// The bytes of the lines.
    pub(super) bytes: &'a [u8],
    /// Bytes from one line to the next.
    pub(super) step: usize,
    /// Offset of the first byte of each line that is used.
    pub(super) from: usize,
    /// Bytes of a number: 2 or 4.
    pub(super) size: usize,
}

impl Lines<'_> {
    /// Writes the lines to the columns of `rows` from `first` on. A row has `row_len` bytes. The
    /// number of rows determines how much of each line is used.
    pub(super) fn write_columns(
        &self,
        pool: &rayon::ThreadPool,
        rows: &mut [u8],
        row_len: usize,
        first: usize,
    ) {
        match self.size {
            2 => self.write::<2>(pool, rows, row_len, first),
            _ => self.write::<4>(pool, rows, row_len, first),
        }
    }

    fn write<const N: usize>(
        &self,
        pool: &rayon::ThreadPool,
        rows: &mut [u8],
        row_len: usize,
        first: usize,
    ) {
        let write = |(group, rows): (usize, &mut [u8])| {
            let from = self.from + group * ROWS * N;
            let used = rows.len() / row_len * N;
            for (column, line) in (first..).zip(self.bytes.chunks_exact(self.step)) {
                let numbers = line[from..from + used].as_chunks::<N>().0;
                for (row, number) in rows.chunks_exact_mut(row_len).zip(numbers) {
                    row[column * N..][..N].copy_from_slice(number);
                }
            }
        };
        pool.install(|| rows.par_chunks_mut(ROWS * row_len).enumerate().for_each(write));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_columns_in_any_division() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        for size in [2, 4] {
            for [lines, len] in [[1, 1], [3, 40], [37, 17], [16, 33]] {
                let number = |line: usize, at: usize| {
                    let number = (line * 1000 + at) as u32;
                    number.to_le_bytes()[..size].to_vec()
                };
                let row = |line| (0..len).flat_map(|at| number(line, at)).collect::<Vec<u8>>();
                let bytes: Vec<u8> = (0..lines).flat_map(row).collect();
                let column = |at| (0..lines).flat_map(|line| number(line, at)).collect::<Vec<u8>>();
                for band in [1, 5, len].map(|band| band.min(len)) {
                    for start in [0, (len - band) / 2, len - band] {
                        let mut rows = vec![0; band * lines * size];
                        for (first, some) in (0..).step_by(2).zip(bytes.chunks(2 * len * size)) {
                            let step = len * size;
                            let from = start * size;
                            let some = Lines { bytes: some, step, from, size };
                            some.write_columns(&pool, &mut rows, lines * size, first);
                        }
                        let expected: Vec<u8> = (start..start + band).flat_map(column).collect();
                        assert_eq!(rows, expected, "{lines} x {len}, {band} from {start}");
                    }
                }
            }
        }
    }
}
