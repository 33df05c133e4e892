//! Several sequences, with prefixes that they share. That of [`CausalLm`](sws_model::CausalLm) has the number 0.

use sws_model::Prefix;

use super::SpeculativeWeightStreamer;
use crate::budget::page;
use crate::experts::ExpectedReads;

impl SpeculativeWeightStreamer {
    /// Adds an empty sequence and returns its number. `None` if the plan has no room for another
    /// ([`Options::sequences`](super::Options::sequences)).
    pub fn add_sequence(&mut self) -> Option<usize> {
        if self.has_room() { Some(self.sequences.add()) } else { None }
    }

    /// Adds a sequence with the same positions as another. `None` if the plan has no room for it, or
    /// a pass over the other failed in the middle.
    pub fn fork_sequence(&mut self, sequence: usize) -> Option<usize> {
        if self.has_room() { self.sequences.state_mut().fork(sequence) } else { None }
    }

    fn has_room(&self) -> bool {
        let planned = self.plan.as_ref().map_or(usize::MAX, |plan| plan.sequences);
        self.state().sequences() < planned
    }

    /// Empties a sequence, which keeps its memory.
    pub fn clear_sequence(&mut self, sequence: usize) {
        self.sequences.state_mut().clear(sequence);
    }

    /// Drops the positions of a sequence from `len` on. Returns false, and drops nothing, if that is not
    /// possible; see [`ForwardState::truncate`](sws_model::ForwardState::truncate).
    pub fn truncate_sequence(&mut self, sequence: usize, len: usize) -> bool {
        self.sequences.state_mut().truncate(sequence, len)
    }

    /// Removes an added sequence and frees its memory.
    ///
    /// # Panics
    ///
    /// If there is no such sequence, or it is the first.
    pub fn remove_sequence(&mut self, sequence: usize) {
        assert_ne!(sequence, 0, "the sequence of `CausalLm` stays");
        self.sequences.state_mut().remove(sequence);
    }

    /// Empties a sequence and frees its memory.
    pub fn release(&mut self, sequence: usize) {
        self.sequences.release(sequence);
    }

    /// Makes sequences share pages with prefixes from now on, if their memory was laid out for one
    /// sequence. All sequences are empty afterwards. Before, a sequence without a plan has a single
    /// page, as the number of sequences is unknown.
    pub fn share(&mut self) {
        if self.plan.is_none() {
            self.sequences.state_mut().set_pages(page(2, 0));
        }
        let numbers: Vec<usize> = self.state().numbers().collect();
        for sequence in numbers {
            self.sequences.release(sequence);
        }
    }

    /// An empty prefix, to be filled from bytes.
    pub fn empty_prefix(&self) -> Prefix {
        self.state().empty_prefix(self.model().spec())
    }

    /// Replaces a sequence by the first `len` positions of a prefix. Returns false, and replaces
    /// nothing, if that is not possible; see [`goes_back`](Self::goes_back).
    pub fn begin_with(&mut self, sequence: usize, prefix: &Prefix, len: usize) -> bool {
        self.sequences.state_mut().begin_with(sequence, prefix, len)
    }

    /// True if sequences and prefixes can be cut at any length. With recurrent layers or windows
    /// they can only be continued at their end.
    pub fn goes_back(&self) -> bool {
        self.state().goes_back(self.model().spec())
    }

    /// Bytes available to all sequences and prefixes together.
    pub fn room(&self) -> u64 {
        self.state().room(self.model().spec())
    }

    /// Forecasts the bytes read per token if these sequences continue by one token at a time: in
    /// shared passes, and in turns of this many tokens. `None` without an estimate, such as for a
    /// model that reads nothing.
    pub fn expected_reads(&mut self, sequences: &[usize], turn: usize) -> Option<ExpectedReads> {
        self.sequences.source().assembler()?.expected_reads(sequences, turn)
    }

    /// Maximum number of tokens that go through the layers in one pass. A longer step takes several
    /// passes.
    pub fn longest_pass(&self) -> usize {
        self.sequences.chunk()
    }
}
