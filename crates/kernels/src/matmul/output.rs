//! Destination of results: a range of columns of an activation matrix.

use std::marker::PhantomData;

/// A range of the columns of `y [tokens, rows]`, where each row of weights gives one column. It can
/// be split, so that threads write to one `y` without sharing an element.
#[derive(Debug)]
pub struct Output<'a> {
    /// The first column in view, for token 0.
    start: *mut f32,
    tokens: usize,
    /// Columns in view.
    rows: usize,
    /// Distance from one token to the next.
    stride: usize,
    owner: PhantomData<&'a mut [f32]>,
}

// SAFETY: an `Output` mutably borrows the numbers in view, and no others.
unsafe impl Send for Output<'_> {}

impl<'a> Output<'a> {
    /// All of `y`.
    ///
    /// # Panics
    ///
    /// If `y` is not `tokens × rows` long.
    pub fn new(y: &'a mut [f32], tokens: usize, rows: usize) -> Self {
        assert_eq!(Some(y.len()), tokens.checked_mul(rows), "results of {tokens} x {rows}");
        Output { start: y.as_mut_ptr(), tokens, rows, stride: rows, owner: PhantomData }
    }

    /// Splits the view into the columns below `row` and those from `row` on.
    ///
    /// # Panics
    ///
    /// If there are fewer than `row` columns.
    pub fn split_at(self, row: usize) -> (Output<'a>, Output<'a>) {
        assert!(row <= self.rows, "{row} of {} rows", self.rows);
        // Wrapping, because without tokens `y` is empty and this is beyond its end.
        let start = self.start.wrapping_add(row);
        (Output { rows: row, ..self }, Output { start, rows: self.rows - row, ..self })
    }

    /// The columns of some rows.
    ///
    /// # Safety
    ///
    /// No other view of these columns is used as long as this one.
    pub(super) unsafe fn part(&self, rows: std::ops::Range<usize>) -> Output<'a> {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "{rows:?} of {} rows", self.rows);
        // Wrapping, because without tokens `y` is empty and this is beyond its end.
        Output { start: self.start.wrapping_add(rows.start), rows: rows.len(), ..*self }
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
