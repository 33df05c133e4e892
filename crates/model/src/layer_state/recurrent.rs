//! The state of a layer that remembers all earlier tokens in a fixed number of values.

use std::io::{self, Read, Write};
use std::slice;
use std::sync::Arc;

use sws_kernels::functional::{Page, zeroed};

use super::bytes::{read_numbers, write_numbers};
use super::pages::{SharedPage, each_page, shared_bytes};
use crate::spec::RecurrentSize;

/// The state of such a layer. It depends on all tokens so far, so it cannot go back without a
/// snapshot. A snapshot or fork shares the memory until one of the two changes and copies it.
#[derive(Clone, Debug)]
pub(crate) struct RecurrentState {
    memory: RecurrentSize,
    /// Inputs of the last tokens. Like the sums, they are empty before the first token.
    past: Page<f32>,
    sums: Page<f32>,
}

impl RecurrentState {
    /// A state before the first token; nothing is allocated yet.
    pub(super) fn new(memory: RecurrentSize) -> RecurrentState {
        RecurrentState { memory, past: zeroed(0), sums: zeroed(0) }
    }

    /// True if the layer remembers nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.memory.past + self.memory.sums == 0
    }

    /// Bytes held, including shared ones.
    pub(super) fn bytes(&self) -> u64 {
        ((self.past.len() + self.sums.len()) * size_of::<f32>()) as u64
    }

    /// Allocates the state, if it is not yet.
    pub(super) fn reserve(&mut self) {
        let RecurrentSize { past, sums } = self.memory;
        for (page, len) in [(&mut self.past, past), (&mut self.sums, sums)] {
            if page.len() < len {
                *page = zeroed(len);
            }
        }
    }

    /// Returns to the state before the first token, and keeps the memory unless it is shared.
    pub(super) fn clear(&mut self) {
        for page in [&mut self.past, &mut self.sums] {
            match Arc::get_mut(page) {
                Some(numbers) => numbers.fill(0.0),
                None => *page = zeroed(0),
            }
        }
    }

    /// Bytes that another position takes: those of the state, if it is not allocated yet or shared.
    pub(super) fn growth(&self) -> u64 {
        let RecurrentSize { past, sums } = self.memory;
        let mut bytes = 0;
        for (page, len) in [(&self.past, past), (&self.sums, sums)] {
            bytes += match page.len() < len {
                true => (len * size_of::<f32>()) as u64,
                false => shared_bytes(page),
            };
        }
        bytes
    }

    pub(super) fn each_page(&self, each: &mut dyn FnMut(SharedPage)) {
        for page in [&self.past, &self.sums] {
            each_page(slice::from_ref(page), each);
        }
    }

    /// Writes all values.
    pub(super) fn write(&self, to: &mut dyn Write) -> io::Result<()> {
        write_numbers(&self.past, to)?;
        write_numbers(&self.sums, to)
    }

    /// Reads all values. Their memory must be [reserved](Self::reserve).
    pub(super) fn take(&mut self, from: &mut dyn Read) -> io::Result<()> {
        let [past, sums] = self.numbers();
        read_numbers(past, from)?;
        read_numbers(sums, from)
    }

    /// The inputs of the last few tokens and the sums, for writing. The memory must be
    /// [reserved](Self::reserve).
    pub(crate) fn numbers(&mut self) -> [&mut [f32]; 2] {
        [&mut self.past, &mut self.sums].map(Arc::make_mut)
    }

    /// The inputs of the last few tokens.
    pub(super) fn past(&self) -> &[f32] {
        &self.past
    }

    /// All values.
    #[cfg(test)]
    pub(super) fn seen(&self) -> Vec<f32> {
        let mut seen = [&*self.past, &*self.sums].concat();
        seen.resize(self.memory.past + self.memory.sums, 0.0);
        seen
    }
}
