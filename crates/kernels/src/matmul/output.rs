//! Where results go: some columns of a matrix of activations.

use std::marker::PhantomData;

/// Rows of weights give columns of `y [tokens, rows]`; this is a range of these columns. It can be
/// split, so that threads write to one `y` without sharing a number.
#[derive(Debug)]
pub struct Output<'a> {
    /// The first column in view of token 0.
    start: *mut f32,
    tokens: usize,
    /// Columns in view.
    rows: usize,
    /// From one token to the next.
    stride: usize,
    owner: PhantomData<&'a mut [f32]>,
}

// SAFETY: it is a mutable borrow of the numbers in view, and of no others.
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

    /// The columns below `row`, and those from it on.
    ///
    /// # Panics
    ///
    /// If there are fewer.
    pub fn split_at(self, row: usize) -> (Output<'a>, Output<'a>) {
        assert!(row <= self.rows, "{row} of {} rows", self.rows);
        // Wrapping: without tokens `y` is empty, and this is beyond its end.
        let start = self.start.wrapping_add(row);
        (Output { rows: row, ..self }, Output { start, rows: self.rows - row, ..self })
    }

    /// The number of rows of weights whose results go here.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of tokens.
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
