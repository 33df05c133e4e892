//! The tokens of a forward pass, in the form that the pass, caches and forecasts share.

use std::ops::Range;

/// The tokens that go through the layers together, one per row. The rows of a sequence are
/// contiguous.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// The rows of each sequence, ascending.
    pub spans: Vec<Span>,
    /// The token of each row; empty if the tokens are unknown.
    pub tokens: Vec<u32>,
}

/// The rows of a pass that belong to one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The number of the sequence.
    pub sequence: usize,
    /// The position of the first row in its sequence.
    pub first_position: usize,
    /// The first row.
    pub first_row: usize,
    /// Number of rows.
    pub tokens: usize,
}

impl Pass {
    /// Creates a pass of one sequence, whose number is 0.
    pub fn single(first_position: usize, tokens: &[u32]) -> Pass {
        let mut pass = Pass::default();
        pass.push(0, first_position, tokens);
        pass
    }

    /// Adds the rows of another sequence.
    pub fn push(&mut self, sequence: usize, first_position: usize, tokens: &[u32]) {
        self.push_unknown(sequence, first_position, tokens.len());
        self.tokens.extend_from_slice(tokens);
    }

    /// Adds rows of another sequence whose tokens are unknown, to a pass without tokens.
    pub fn push_unknown(&mut self, sequence: usize, first_position: usize, tokens: usize) {
        let first_row = self.len();
        self.spans.push(Span { sequence, first_position, first_row, tokens });
    }

    /// Removes all rows but keeps the memory.
    pub fn clear(&mut self) {
        self.spans.clear();
        self.tokens.clear();
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.spans.last().map_or(0, |span| span.rows().end)
    }

    /// True if there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Position of the first row, for callers with only one sequence; 0 for an empty pass.
    pub fn first_position(&self) -> usize {
        self.spans.first().map_or(0, |span| span.first_position)
    }
}

impl Span {
    /// Rows of the span in the pass.
    pub fn rows(&self) -> Range<usize> {
        self.first_row..self.first_row + self.tokens
    }

    /// Positions of the rows in the sequence.
    pub fn positions(&self) -> Range<usize> {
        self.first_position..self.first_position + self.tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_sequences_follow_each_other() {
        let mut pass = Pass::single(7, &[1, 2, 3]);
        pass.push(4, 0, &[9]);
        let spans: Vec<_> = pass.spans.iter().map(|s| (s.rows(), s.positions())).collect();
        assert_eq!(spans, [(0..3, 7..10), (3..4, 0..1)]);
        assert_eq!((pass.len(), pass.first_position()), (4, 7));
        pass.clear();
        assert!(pass.is_empty() && pass.first_position() == 0);
    }
}
