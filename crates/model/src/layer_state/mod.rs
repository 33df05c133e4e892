//! The state of a sequence in each layer.

mod blocks;
mod bytes;
mod compressed;
mod kv;
mod latent;
mod layer;
mod pages;
mod recurrent;
mod ring;
mod rows;
#[cfg(test)]
mod tests;

pub(crate) use compressed::CompressedState;
pub(crate) use kv::KvState;
pub(crate) use latent::LatentState;
pub(crate) use layer::LayerState;
pub(crate) use pages::SharedPage;
pub(crate) use recurrent::RecurrentState;

use std::io::{self, Read, Write};
use std::ops::Range;

use sws_kernels::functional::q8;

use crate::spec::{Mixer, ModelSpec, RecurrentSize};
use layer::LayerSnapshot;

/// Precision in which keys and values, or latents, are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvPrecision {
    /// The precision in which they are computed.
    #[default]
    F32,
    /// Rounded: half the memory, but results differ from `F32`. Lossy.
    Bf16,
    /// Rounded to [8 bits](q8) with a scale for each 32 numbers: little more than a quarter of the
    /// memory. Lossy.
    Q8,
}

impl KvPrecision {
    /// All precisions.
    pub const ALL: [KvPrecision; 3] = [KvPrecision::F32, KvPrecision::Bf16, KvPrecision::Q8];

    /// Name in options and files.
    pub const fn name(self) -> &'static str {
        match self {
            KvPrecision::F32 => "f32",
            KvPrecision::Bf16 => "bf16",
            KvPrecision::Q8 => "q8",
        }
    }

    /// Elements of a row of this many values: as many floats, or more bytes in 8 bits.
    const fn row(self, numbers: usize) -> usize {
        match self {
            KvPrecision::F32 | KvPrecision::Bf16 => numbers,
            KvPrecision::Q8 => q8::bytes(numbers),
        }
    }

    /// Bytes of a row of this many values.
    const fn row_bytes(self, numbers: usize) -> usize {
        let element = match self {
            KvPrecision::F32 => size_of::<f32>(),
            KvPrecision::Bf16 => size_of::<u16>(),
            KvPrecision::Q8 => size_of::<u8>(),
        };
        self.row(numbers) * element
    }
}

/// The state of a sequence in all layers.
#[derive(Debug)]
pub(crate) struct SequenceState {
    /// Positions that every layer has processed.
    pub(crate) len: usize,
    /// True while some layers have processed more, in a pass or after one that failed.
    pub(crate) partial: bool,
    /// The state of each visit of a layer. In some models, the states of the convolutions of each
    /// follow.
    pub(crate) layers: Vec<LayerState>,
    /// Difference between the number of the visit that is computed and that of its layer.
    more: usize,
}

/// A snapshot of a sequence.
#[derive(Debug)]
#[must_use]
pub(crate) struct SequenceSnapshot {
    len: usize,
    partial: bool,
    layers: Vec<LayerSnapshot>,
}

impl SequenceState {
    /// An empty sequence of up to `limit` positions, with keys and values in pages of `page`.
    pub(crate) fn new(
        spec: &ModelSpec,
        limit: usize,
        precision: KvPrecision,
        page: usize,
    ) -> SequenceState {
        let mut layers = Vec::new();
        for layer in spec.in_order() {
            layers.push(match &layer.mixer {
                Mixer::Attention(attention) if !attention.has_keys() => {
                    LayerState::fixed(RecurrentSize::NONE)
                }
                Mixer::Attention(attention) => {
                    LayerState::Kv(KvState::new(attention, limit, precision, page))
                }
                Mixer::Latent(latent) if !latent.has_latents() && latent.indexer().is_none() => {
                    LayerState::fixed(RecurrentSize::NONE)
                }
                Mixer::Latent(latent) => {
                    LayerState::Latent(LatentState::new(latent, limit, precision, page))
                }
                Mixer::Compressed(spec) => {
                    LayerState::Compressed(CompressedState::new(spec, limit, precision, page))
                }
                Mixer::Delta(_) | Mixer::Conv(_) | Mixer::StateSpace(_) | Mixer::None => {
                    let memory = layer.memory(spec.state_width()).expect("all of these have one");
                    LayerState::fixed(memory)
                }
            });
        }
        if has_convs(spec) {
            for layer in spec.in_order() {
                let past = layer.convs(spec.hidden).iter().sum();
                layers.push(LayerState::fixed(RecurrentSize { past, sums: 0 }));
            }
        }
        SequenceState { len: 0, partial: false, layers, more: 0 }
    }

    /// The place of a sequence that was removed: it holds nothing, and no pass continues it.
    pub(crate) fn vacant() -> SequenceState {
        SequenceState { len: 0, partial: true, layers: Vec::new(), more: 0 }
    }

    /// The maximum size in bytes of a sequence of `limit` positions in pages of `page`.
    pub(crate) fn bytes_for(
        spec: &ModelSpec,
        limit: usize,
        precision: KvPrecision,
        page: usize,
    ) -> u64 {
        let mut bytes = conv_bytes(spec);
        for layer in spec.in_order() {
            bytes += match &layer.mixer {
                Mixer::Attention(own) if !own.has_keys() => 0,
                Mixer::Attention(own) => KvState::bytes_for(own, limit, precision, page),
                Mixer::Latent(own) => LatentState::bytes_for(own, limit, precision, page),
                Mixer::Compressed(own) => CompressedState::bytes_for(own, limit, precision, page),
                _ => layer.memory(spec.state_width()).map_or(0, RecurrentSize::bytes),
            };
        }
        bytes
    }

    /// Selects the states of a visit of a layer for [`layer`](Self::layer).
    pub(crate) fn select(&mut self, layer: usize, visit: usize) {
        self.more = visit - layer;
    }

    /// The state of a layer, in the [selected](Self::select) visit.
    pub(crate) fn layer(&mut self, layer: usize) -> &mut LayerState {
        &mut self.layers[layer + self.more]
    }

    /// The inputs that the convolutions of a layer remember.
    pub(crate) fn convs(&mut self, layer: usize) -> &mut [f32] {
        let first = self.layers.len() / 2;
        self.past(first + layer)
    }

    /// The inputs that the convolution of a recurrent layer remembers.
    pub(crate) fn past(&mut self, layer: usize) -> &mut [f32] {
        let [past, _] = self.layer(layer).recurrent().numbers();
        past
    }

    /// The maximum bytes that a pass of `tokens` tokens over `sequences` sequences keeps of earlier
    /// states. Windows keep as many overwritten positions, and states of fixed size are copied.
    pub(crate) fn journal_bytes_for(
        spec: &ModelSpec,
        (sequences, tokens): (usize, usize),
        precision: KvPrecision,
    ) -> u64 {
        let mut bytes = sequences as u64 * conv_bytes(spec);
        for layer in spec.in_order() {
            bytes += match &layer.mixer {
                Mixer::Attention(attention) if attention.keeps_window() => {
                    let row = KvState::row_bytes(attention, precision) + size_of::<usize>() as u64;
                    tokens as u64 * row
                }
                Mixer::Compressed(spec) => tokens as u64 * CompressedState::journal_bytes(spec),
                _ => {
                    let memory = layer.memory(spec.state_width());
                    sequences as u64 * memory.map_or(0, RecurrentSize::bytes)
                }
            };
        }
        bytes
    }

    /// Bytes held; pages shared with other sequences count for each.
    pub(crate) fn bytes(&self) -> u64 {
        self.layers.iter().map(LayerState::bytes).sum()
    }

    /// Makes room for `tokens` more positions.
    pub(crate) fn reserve(&mut self, tokens: usize) {
        let end = self.len + tokens;
        for layer in &mut self.layers {
            layer.reserve(end);
        }
    }

    /// Empties the sequence and keeps the memory. Earlier snapshots become invalid.
    pub(crate) fn clear(&mut self) {
        (self.len, self.partial) = (0, false);
        self.layers.iter_mut().for_each(LayerState::clear);
    }

    /// Returns another sequence with the same positions. Pages of keys and values are shared until
    /// one of the two writes to them. Returns None in the middle of a pass.
    pub(crate) fn fork(&self) -> Option<SequenceState> {
        if self.partial {
            return None;
        }
        let layers = self.layers.iter().map(LayerState::fork).collect();
        Some(SequenceState { len: self.len, partial: false, layers, more: 0 })
    }

    /// Drops the positions from `len` on, with those of a pass that failed in the middle. Returns false,
    /// and drops nothing, if a layer cannot: a window has overwritten positions it would need, or a
    /// recurrent state has absorbed them.
    pub(crate) fn truncate(&mut self, len: usize) -> bool {
        if len > self.len || len == self.len && !self.partial {
            return !self.partial;
        }
        let can = self.layers.iter().all(|layer| layer.has(len));
        if can {
            match len {
                0 => self.clear(),
                _ => (self.len, self.partial) = (len, false),
            }
        }
        can
    }

    /// True if positions can be dropped at any length, without a snapshot.
    pub(crate) fn goes_back(&self) -> bool {
        self.layers.iter().all(LayerState::goes_back)
    }

    /// Drops the memory that the positions do not need.
    pub(crate) fn trim(&mut self) {
        for layer in &mut self.layers {
            layer.trim(self.len);
        }
    }

    /// Bytes that `tokens` more positions take, including copies of shared memory.
    pub(crate) fn growth(&self, tokens: usize) -> u64 {
        self.layers.iter().map(|layer| layer.growth(self.len, self.len + tokens)).sum()
    }

    /// Calls `each` with every page.
    pub(crate) fn each_page(&self, each: &mut dyn FnMut(SharedPage)) {
        for layer in &self.layers {
            layer.each_page(each);
        }
    }

    /// Facts that determine the bytes of positions, besides the model: precisions, and lengths of
    /// rings.
    pub(crate) fn layout(&self) -> Vec<usize> {
        self.layers.iter().flat_map(LayerState::layout).collect()
    }

    /// Writes the rows of positions, without the parts of the state that depend on the length.
    pub(crate) fn write(&self, positions: Range<usize>, to: &mut dyn Write) -> io::Result<()> {
        for layer in &self.layers {
            layer.write(positions.clone(), to)?;
        }
        Ok(())
    }

    /// Writes the parts of the state that depend on the length: windows, and states of fixed size.
    pub(crate) fn write_end(&self, to: &mut dyn Write) -> io::Result<()> {
        for layer in &self.layers {
            layer.write_end(self.len, to)?;
        }
        Ok(())
    }

    /// Reads `tokens` more positions. The sequence is partial until its end is read, if it has one, and
    /// after an error.
    pub(crate) fn take(&mut self, tokens: usize, from: &mut dyn Read) -> io::Result<()> {
        let positions = self.len..self.len + tokens;
        self.reserve(tokens);
        self.partial = true;
        for layer in &mut self.layers {
            layer.take(positions.clone(), from)?;
        }
        (self.len, self.partial) = (positions.end, !self.goes_back());
        Ok(())
    }

    /// Reads the parts of the state that depend on the length. Fails for invalid bytes.
    pub(crate) fn take_end(&mut self, from: &mut dyn Read) -> io::Result<()> {
        let len = self.len;
        for layer in &mut self.layers {
            layer.take_end(len, from)?;
        }
        let can = self.layers.iter().all(|layer| match layer {
            LayerState::Recurrent(_) => true,
            layer => layer.has(len),
        });
        self.partial = !can;
        if can { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    /// Saves the current state.
    pub(crate) fn snapshot(&mut self) -> SequenceSnapshot {
        let layers = self.layers.iter_mut().map(LayerState::snapshot).collect();
        SequenceSnapshot { len: self.len, partial: self.partial, layers }
    }

    /// Returns to a snapshot. Later snapshots become invalid.
    pub(crate) fn restore(&mut self, snapshot: SequenceSnapshot) {
        (self.len, self.partial) = (snapshot.len, snapshot.partial);
        for (layer, snapshot) in self.layers.iter_mut().zip(snapshot.layers) {
            layer.restore(snapshot);
        }
    }

    /// Discards a snapshot.
    pub(crate) fn keep(&mut self, snapshot: SequenceSnapshot) {
        for (layer, snapshot) in self.layers.iter_mut().zip(snapshot.layers) {
            layer.keep(snapshot);
        }
    }
}

/// True if layers have convolutions besides their mixers. A sequence then has twice as many states.
fn has_convs(spec: &ModelSpec) -> bool {
    spec.layers.iter().any(|layer| layer.convs(spec.hidden) != [0; 4])
}

/// Bytes of the states of these convolutions.
fn conv_bytes(spec: &ModelSpec) -> u64 {
    let past = spec.in_order().flat_map(|layer| layer.convs(spec.hidden));
    (past.sum::<usize>() * size_of::<f32>()) as u64
}
