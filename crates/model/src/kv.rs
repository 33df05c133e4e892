//! The cached keys and values of one layer of one sequence.

use sws_kernels::functional::{CacheLayout, CacheMut, KvCache, KvData, store};

use crate::spec::AttentionSpec;

/// In which precision keys and values are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvPrecision {
    /// As computed.
    #[default]
    F32,
    /// Rounded: half the memory, and other bits than `F32` gives. Lossy.
    Bf16,
}

/// A layer with a window keeps, beside the window, room for this many tokens less one: so many
/// are stored and attended with at a time. A longer chunk is cut.
const RING_CHUNK: usize = 64;

#[derive(Debug)]
pub(crate) struct LayerCache {
    data: Data,
    capacity: usize,
    heads: usize,
    dim: usize,
    /// How many tokens can be stored before they are attended with.
    pub(crate) chunk: usize,
}

#[derive(Debug)]
enum Data {
    F32 { keys: Vec<f32>, values: Vec<f32> },
    Bf16 { keys: Vec<u16>, values: Vec<u16> },
}

impl LayerCache {
    /// For positions below `limit`. What is never written is never backed by memory, where the
    /// allocator hands out fresh zero pages.
    pub(crate) fn new(spec: &AttentionSpec, limit: usize, precision: KvPrecision) -> Self {
        let (capacity, chunk) = shape(spec, limit);
        let len = capacity * spec.kv_width();
        let data = match precision {
            KvPrecision::F32 => Data::F32 { keys: vec![0.0; len], values: vec![0.0; len] },
            KvPrecision::Bf16 => Data::Bf16 { keys: vec![0; len], values: vec![0; len] },
        };
        LayerCache { data, capacity, heads: spec.kv_heads, dim: spec.head_dim, chunk }
    }

    /// What `new` allocates.
    pub(crate) fn bytes(spec: &AttentionSpec, limit: usize, precision: KvPrecision) -> u64 {
        let element = match precision {
            KvPrecision::F32 => size_of::<f32>(),
            KvPrecision::Bf16 => size_of::<u16>(),
        };
        2 * (shape(spec, limit).0 as u64) * (spec.kv_width() * element) as u64
    }

    pub(crate) fn view(&self) -> KvCache<'_> {
        let data = match &self.data {
            Data::F32 { keys, values } => KvData::F32 { keys, values },
            Data::Bf16 { keys, values } => KvData::Bf16 { keys, values },
        };
        KvCache { data, keys: self.layout(), values: self.layout() }
    }

    /// Positions that are kept.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Stores keys and values of consecutive positions.
    pub(crate) fn store(&mut self, first: usize, keys: &[f32], values: &[f32]) {
        let (layout, heads, dim) = (self.layout(), self.heads, self.dim);
        let (to_keys, to_values) = match &mut self.data {
            Data::F32 { keys, values } => (CacheMut::F32(keys), CacheMut::F32(values)),
            Data::Bf16 { keys, values } => (CacheMut::Bf16(keys), CacheMut::Bf16(values)),
        };
        store(to_keys, layout, first, heads, dim, keys);
        store(to_values, layout, first, heads, dim, values);
    }

    /// Appends what the slot of `position` holds.
    pub(crate) fn copy_out(&self, position: usize, to: &mut Copies) {
        match &self.data {
            Data::F32 { keys, values } => self.copy_slot(position, [keys, values], &mut to.f32),
            Data::Bf16 { keys, values } => self.copy_slot(position, [keys, values], &mut to.bf16),
        }
    }

    /// Takes back what `copy_out` appended last.
    pub(crate) fn copy_back(&mut self, position: usize, from: &mut Copies) {
        let (layout, heads, dim) = (self.layout(), self.heads, self.dim);
        match &mut self.data {
            Data::F32 { keys, values } => {
                take_slot(layout, heads, dim, position, [values, keys], &mut from.f32);
            }
            Data::Bf16 { keys, values } => {
                take_slot(layout, heads, dim, position, [values, keys], &mut from.bf16);
            }
        }
    }

    fn copy_slot<T: Copy>(&self, position: usize, from: [&[T]; 2], to: &mut Vec<T>) {
        for from in from {
            for head in 0..self.heads {
                let start = self.layout().offset(head, position);
                to.extend_from_slice(&from[start..start + self.dim]);
            }
        }
    }

    fn layout(&self) -> CacheLayout {
        CacheLayout::head_major(self.capacity, self.dim)
    }
}

/// The last copied comes off first.
fn take_slot<T: Copy>(
    layout: CacheLayout,
    heads: usize,
    dim: usize,
    position: usize,
    to: [&mut [T]; 2],
    from: &mut Vec<T>,
) {
    for to in to {
        for head in (0..heads).rev() {
            let start = layout.offset(head, position);
            let copy = from.len() - dim;
            to[start..start + dim].copy_from_slice(&from[copy..]);
            from.truncate(copy);
        }
    }
}

/// Slots copied out of caches, the last on top.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    f32: Vec<f32>,
    bf16: Vec<u16>,
}

impl Copies {
    pub(crate) fn clear(&mut self) {
        self.f32.clear();
        self.bf16.clear();
    }
}

/// Positions kept, and how many tokens can be stored at once.
fn shape(spec: &AttentionSpec, limit: usize) -> (usize, usize) {
    match spec.window {
        Some(window) if window.saturating_add(RING_CHUNK - 1) < limit => {
            (window + RING_CHUNK - 1, RING_CHUNK)
        }
        _ => (limit, limit),
    }
}
