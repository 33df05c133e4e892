//! The state of one layer of one sequence.

use std::io::{self, Read, Write};
use std::ops::Range;

use super::kv::KvMark;
use super::pages::SharedPage;
use super::ring::RingMark;
use super::{CompressedState, KvState, LatentState, RecurrentState};
use crate::spec::RecurrentSize;

/// The state of one layer for a sequence, by the kind of its mixer.
#[derive(Debug)]
pub(crate) enum LayerState {
    /// Keys and values, each at its position.
    Kv(KvState),
    /// Latents, each at its position.
    Latent(LatentState),
    /// Keys of the last positions, and entries of earlier ones.
    Compressed(CompressedState),
    /// A state of fixed size, not addressed by position.
    Recurrent(RecurrentState),
}

/// A snapshot of a layer's state.
#[derive(Debug)]
pub(super) enum LayerSnapshot {
    /// A snapshot of keys and values.
    Kv(KvMark),
    /// Latents need no snapshot.
    Latent,
    /// A snapshot of keys of the last positions, and of entries.
    Compressed(Vec<RingMark>),
    /// A snapshot of a state of fixed size, which shares memory with the state until that changes.
    Recurrent(RecurrentState),
}

impl LayerState {
    /// A state of fixed size, in which nothing is allocated yet.
    pub(super) fn fixed(memory: RecurrentSize) -> LayerState {
        LayerState::Recurrent(RecurrentState::new(memory))
    }

    /// The layer's keys and values.
    ///
    /// # Panics
    ///
    /// If the layer keeps another kind of state.
    pub(crate) fn kv(&mut self) -> &mut KvState {
        match self {
            LayerState::Kv(kv) => kv,
            _ => panic!("a layer without keys and values"),
        }
    }

    /// The layer's latents.
    ///
    /// # Panics
    ///
    /// If the layer keeps another kind of state.
    pub(crate) fn latent(&mut self) -> &mut LatentState {
        match self {
            LayerState::Latent(latent) => latent,
            _ => panic!("a layer without latents"),
        }
    }

    /// The layer's keys of the last positions, and entries.
    ///
    /// # Panics
    ///
    /// If the layer keeps another kind of state.
    pub(crate) fn compressed(&mut self) -> &mut CompressedState {
        match self {
            LayerState::Compressed(state) => state,
            _ => panic!("a layer without entries"),
        }
    }

    /// The layer's state of fixed size.
    ///
    /// # Panics
    ///
    /// If the layer keeps another kind of state.
    pub(crate) fn recurrent(&mut self) -> &mut RecurrentState {
        match self {
            LayerState::Recurrent(state) => state,
            _ => panic!("a layer with cached positions"),
        }
    }

    /// The inputs of the last few tokens that such a layer keeps.
    ///
    /// # Panics
    ///
    /// Same as for [`recurrent`](Self::recurrent).
    pub(crate) fn past(&self) -> &[f32] {
        match self {
            LayerState::Recurrent(state) => state.past(),
            _ => panic!("a layer with cached positions"),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        match self {
            LayerState::Kv(kv) => kv.bytes(),
            LayerState::Latent(latent) => latent.bytes(),
            LayerState::Compressed(state) => state.bytes(),
            LayerState::Recurrent(state) => state.bytes(),
        }
    }

    pub(super) fn reserve(&mut self, end: usize) {
        match self {
            LayerState::Kv(kv) => kv.reserve(end),
            LayerState::Latent(latent) => latent.reserve(end),
            LayerState::Compressed(state) => state.reserve(end),
            LayerState::Recurrent(state) => state.reserve(),
        }
    }

    pub(super) fn clear(&mut self) {
        match self {
            LayerState::Kv(kv) => kv.clear(),
            LayerState::Latent(latent) => latent.clear(),
            LayerState::Compressed(state) => state.clear(),
            LayerState::Recurrent(state) => state.clear(),
        }
    }

    pub(super) fn fork(&self) -> LayerState {
        match self {
            LayerState::Kv(kv) => LayerState::Kv(kv.fork()),
            LayerState::Latent(latent) => LayerState::Latent(latent.clone()),
            LayerState::Compressed(state) => LayerState::Compressed(state.fork()),
            LayerState::Recurrent(state) => LayerState::Recurrent(state.clone()),
        }
    }

    /// True if the layer can go back to `len` positions, fewer than it has, without a snapshot.
    pub(super) fn has(&self, len: usize) -> bool {
        match self {
            LayerState::Kv(kv) => kv.has(len),
            LayerState::Latent(_) => true,
            LayerState::Compressed(state) => state.has(len),
            LayerState::Recurrent(state) => len == 0 || state.is_empty(),
        }
    }

    pub(super) fn goes_back(&self) -> bool {
        match self {
            LayerState::Kv(kv) => !kv.is_ring(),
            LayerState::Latent(_) => true,
            LayerState::Compressed(_) => false,
            LayerState::Recurrent(state) => state.is_empty(),
        }
    }

    pub(super) fn trim(&mut self, len: usize) {
        match self {
            LayerState::Kv(kv) => kv.trim(len),
            LayerState::Latent(latent) => latent.trim(len),
            LayerState::Compressed(state) => state.trim(len),
            LayerState::Recurrent(_) => {}
        }
    }

    pub(super) fn growth(&self, len: usize, end: usize) -> u64 {
        match self {
            LayerState::Kv(kv) => kv.growth(len, end),
            LayerState::Latent(latent) => latent.growth(len, end),
            LayerState::Compressed(state) => state.growth(len, end),
            LayerState::Recurrent(state) => state.growth(),
        }
    }

    pub(super) fn each_page(&self, each: &mut dyn FnMut(SharedPage)) {
        match self {
            LayerState::Kv(kv) => kv.each_page(each),
            LayerState::Latent(latent) => latent.each_page(each),
            LayerState::Compressed(state) => state.each_page(each),
            LayerState::Recurrent(state) => state.each_page(each),
        }
    }

    pub(super) fn layout(&self) -> Vec<usize> {
        match self {
            LayerState::Kv(kv) => kv.layout().to_vec(),
            LayerState::Latent(latent) => vec![latent.layout()],
            LayerState::Compressed(state) => state.layout(),
            LayerState::Recurrent(_) => Vec::new(),
        }
    }

    pub(super) fn write(&self, positions: Range<usize>, to: &mut dyn Write) -> io::Result<()> {
        match self {
            LayerState::Kv(kv) => kv.write(positions, to),
            LayerState::Latent(latent) => latent.write(positions, to),
            LayerState::Compressed(state) => state.write(positions, to),
            LayerState::Recurrent(_) => Ok(()),
        }
    }

    pub(super) fn take(&mut self, positions: Range<usize>, from: &mut dyn Read) -> io::Result<()> {
        match self {
            LayerState::Kv(kv) => kv.take(positions, from),
            LayerState::Latent(latent) => latent.take(positions, from),
            LayerState::Compressed(state) => state.take(positions, from),
            LayerState::Recurrent(_) => Ok(()),
        }
    }

    pub(super) fn write_end(&self, len: usize, to: &mut dyn Write) -> io::Result<()> {
        match self {
            LayerState::Kv(kv) => kv.write_ring(len, to),
            LayerState::Latent(_) => Ok(()),
            LayerState::Compressed(state) => state.write_rings(len, to),
            LayerState::Recurrent(state) => state.write(to),
        }
    }

    pub(super) fn take_end(&mut self, len: usize, from: &mut dyn Read) -> io::Result<()> {
        match self {
            LayerState::Kv(kv) => kv.take_ring(len, from),
            LayerState::Latent(_) => Ok(()),
            LayerState::Compressed(state) => state.take_rings(len, from),
            LayerState::Recurrent(state) => state.take(from),
        }
    }

    pub(super) fn snapshot(&mut self) -> LayerSnapshot {
        match self {
            LayerState::Kv(kv) => LayerSnapshot::Kv(kv.snapshot()),
            LayerState::Latent(_) => LayerSnapshot::Latent,
            LayerState::Compressed(state) => LayerSnapshot::Compressed(state.snapshot()),
            LayerState::Recurrent(state) => LayerSnapshot::Recurrent(state.clone()),
        }
    }

    pub(super) fn restore(&mut self, snapshot: LayerSnapshot) {
        match (self, snapshot) {
            (LayerState::Kv(kv), LayerSnapshot::Kv(mark)) => kv.restore(mark),
            (LayerState::Latent(_), LayerSnapshot::Latent) => {}
            (LayerState::Compressed(state), LayerSnapshot::Compressed(marks)) => {
                state.restore(marks);
            }
            (LayerState::Recurrent(state), LayerSnapshot::Recurrent(before)) => *state = before,
            _ => panic!("a snapshot of another kind of layer"),
        }
    }

    pub(super) fn keep(&mut self, snapshot: LayerSnapshot) {
        match (self, snapshot) {
            (LayerState::Kv(kv), LayerSnapshot::Kv(_)) => kv.keep(),
            (LayerState::Latent(_), LayerSnapshot::Latent) => {}
            (LayerState::Compressed(state), LayerSnapshot::Compressed(_)) => state.keep(),
            (LayerState::Recurrent(_), LayerSnapshot::Recurrent(_)) => {}
            _ => panic!("a snapshot of another kind of layer"),
        }
    }
}
