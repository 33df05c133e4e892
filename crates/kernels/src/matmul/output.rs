//! Destination of results: a range of columns of an activation matrix.

use std::marker::PhantomData;

/// A range of the columns of `y [tokens, rows]`, where each row of weights gives one column. It can
/// be split, so that threads write to one `y` without sharing an element.
#[derive(Debug)]
pub struct OutputColumns<'a> {
    /// The first column in view, for token 0.
    start: *mut f32,
    tokens: usize,
    /// Columns in view.
    rows: usize,
    /// Distance from one token to the next.
    stride: usize,
    owner: PhantomData<&'a mut [f32]>,
}

// SAFETY: an `OutputColumns` mutably borrows the numbers in view, and no others.
unsafe impl Send for OutputColumns<'_> {}

impl<'a> OutputColumns<'a> {
    /// All of `y`.
    ///
    /// # Panics
    ///
    /// If `y` is not `tokens × rows` long.
    pub fn new(y: &'a mut [f32], tokens: usize, rows: usize) -> Self {
        assert_eq!(Some(y.len()), tokens.checked_mul(rows), "results of {tokens} x {rows}");
        OutputColumns { start: y.as_mut_ptr(), tokens, rows, stride: rows, owner: PhantomData }
    }

    /// Splits the view into the columns below `row` and those from `row` on.
    ///
    /// # Panics
    ///
    /// If there are fewer than `row` columns.
    pub fn split_at(self, row: usize) -> (OutputColumns<'a>, OutputColumns<'a>) {
        assert!(row <= self.rows, "{row} of {} rows", self.rows);
        // Wrapping, because without tokens `y` is empty and this is beyond its end.
        let start = self.start.wrapping_add(row);
        (
            OutputColumns { rows: row, ..self },
            OutputColumns { start, rows: self.rows - row, ..self },
        )
    }

    /// The columns of some rows.
    ///
    /// # Safety
    ///
    /// No other view of these columns is used as long as this one.
    pub(super) unsafe fn part(&self, rows: std::ops::Range<usize>) -> OutputColumns<'a> {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "{rows:?} of {} rows", self.rows);
        // Wrapping, because without tokens `y` is empty and this is beyond its end.
        OutputColumns { start: self.start.wrapping_add(rows.start), rows: rows.len(), ..*self }
    }

    /// Number of rows of weights whose results go here.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    #[inline(always)]
    pub(super) fn set(&mut self, token: usize, row: usize, value: f32) {
        assert!(token < self.tokens && row < self.rows);
        // SAFETY: in view, as just checked; views of one `y` do not overlap.
        unsafe { *self.start.add(token * self.stride + row) = value };
    }
}
