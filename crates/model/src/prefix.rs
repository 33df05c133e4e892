//! Prefixes of sequences, as values of their own.

use std::io::{self, Read, Write};

use crate::layer_state::{SequenceState, SharedPage};

/// The state of a sequence up to a length, from which any sequence can begin. It shares memory with
/// the sequence that it was taken from until one of the two writes to it.
#[derive(Debug)]
pub struct Prefix {
    sequence: SequenceState,
}

impl Prefix {
    /// Number of positions in a stored block.
    pub const BLOCK: usize = 256;

    /// Takes the current state of a sequence. `None` in the middle of a pass.
    pub(crate) fn of(sequence: &SequenceState) -> Option<Prefix> {
        let mut sequence = sequence.fork()?;
        sequence.trim();
        Some(Prefix { sequence })
    }

    pub(crate) fn empty(sequence: SequenceState) -> Prefix {
        Prefix { sequence }
    }

    /// A sequence that begins with the first `len` positions. `None` if the state cannot be cut
    /// there.
    pub(crate) fn begin(&self, len: usize) -> Option<SequenceState> {
        let mut sequence = self.sequence.fork()?;
        if len > sequence.len || !sequence.truncate(len) {
            return None;
        }
        sequence.trim();
        Some(sequence)
    }

    pub(crate) fn each_page(&self, each: &mut dyn FnMut(SharedPage)) {
        self.sequence.each_page(each);
    }

    /// Number of positions.
    pub fn len(&self) -> usize {
        self.sequence.len
    }

    /// True if there is no position.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes held; pages shared with sequences or others count for each.
    pub fn bytes(&self) -> u64 {
        self.sequence.bytes()
    }

    /// Bytes that growing to `end` positions takes, including copies of shared memory.
    pub fn growth(&self, end: usize) -> u64 {
        self.sequence.growth(end.saturating_sub(self.len()))
    }

    /// Drops the positions from `len` on. Returns false, and drops nothing, if that is not possible.
    pub fn truncate(&mut self, len: usize) -> bool {
        let done = self.sequence.truncate(len);
        if done {
            self.sequence.trim();
        }
        done
    }

    /// Number of whole blocks.
    pub fn blocks(&self) -> usize {
        self.len() / Prefix::BLOCK
    }

    /// Facts that determine the bytes of blocks and ends, besides the model and the tokens.
    pub fn layout(&self) -> Vec<u8> {
        let layout = self.sequence.layout();
        layout.into_iter().flat_map(|number| (number as u64).to_le_bytes()).collect()
    }

    /// Writes the positions of a block, without the parts of the state that depend on the length.
    ///
    /// # Panics
    ///
    /// If there is no such [block](Self::blocks).
    pub fn write_block(&self, number: usize, to: &mut dyn Write) -> io::Result<()> {
        assert!(number < self.blocks(), "a prefix of {} positions", self.len());
        let first = number * Prefix::BLOCK;
        self.sequence.write(first..first + Prefix::BLOCK, to)
    }

    /// Writes the positions after the last whole block, and the parts of the state that depend on
    /// the length.
    pub fn write_end(&self, to: &mut dyn Write) -> io::Result<()> {
        let first = self.blocks() * Prefix::BLOCK;
        self.sequence.write(first..self.len(), to)?;
        self.sequence.write_end(to)
    }

    /// Appends a block to a prefix that began [empty](crate::ForwardState::empty_prefix). After an
    /// error, such as for invalid bytes, the prefix can only be [cut](Self::truncate).
    pub fn read_block(&mut self, from: &mut dyn Read) -> io::Result<()> {
        if !self.len().is_multiple_of(Prefix::BLOCK) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.sequence.take(Prefix::BLOCK, from)
    }

    /// Appends the end of a prefix of `len` positions. After an error, such as for invalid bytes,
    /// the prefix can only be [cut](Self::truncate).
    pub fn read_end(&mut self, len: usize, from: &mut dyn Read) -> io::Result<()> {
        let tokens = match len.checked_sub(self.len()) {
            Some(tokens) if tokens < Prefix::BLOCK => tokens,
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        self.sequence.take(tokens, from)?;
        self.sequence.take_end(from)
    }
}
