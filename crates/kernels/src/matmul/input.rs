//! Activations, packed once per call into the order in which the kernels read them.

mod coded;
mod int8;

use std::sync::{Mutex, OnceLock, PoisonError};

use crate::buffer::Buffer;
use crate::scalar::{BLOCK, Fours, LANES};
use crate::{Activations, Encoding, Tier};

pub(super) use coded::{CodedInput, TOKENS};
use int8::Rounded;
pub(super) use int8::View;

/// Maximum number of tokens in a group. A group's part of a chunk stays in the second-level cache.
pub(super) const GROUP: usize = 64;

/// Maximum number of columns in a chunk (see `many.rs`).
pub(super) const CHUNK: usize = 1024;

/// Padding of the activations after the last column. Weights there are +0, and a product of -0
/// leaves every sum unchanged; +0 would change a sum of -0 to +0.
const NOTHING: f32 = -0.0;

/// Activations `[tokens, cols]`, packed for a tier. The buffer is kept for reuse.
#[derive(Debug, Default)]
pub struct PackedInput {
    buffer: Buffer,
    tokens: usize,
    cols: usize,
    shape: InputShape,
    /// The same activations for weights that are summed as codes, by [`Fours`]. They are packed when the
    /// first product needs them.
    coded: [Later; 2],
    /// The same activations, rounded, for tiers that take them so.
    rounded: Option<Rounded>,
}

/// How activations have to lie for some encodings of weights, beside act-order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packings {
    neighbours: bool,
    apart: bool,
    rounded: bool,
}

impl Packings {
    /// Those of products with matrices in these encodings.
    pub fn of(activations: Activations, encodings: impl IntoIterator<Item = Encoding>) -> Self {
        let rounded = activations == Activations::Int8;
        let mut packings = Packings { rounded, ..Packings::default() };
        for encoding in encodings {
            if rounded && encoding.form().is_some() {
                continue;
            }
            match encoding.coding().map(|coding| coding.fours) {
                Some(Fours::Neighbours) => packings.neighbours = true,
                Some(Fours::Apart) => packings.apart = true,
                None => {}
            }
        }
        packings
    }

    /// True if some weights are summed as codes.
    pub(super) const fn have_codes(self) -> bool {
        self.neighbours || self.apart
    }
}

/// A buffer that is filled when it is first needed.
#[derive(Debug, Default)]
struct Later {
    filled: OnceLock<Buffer>,
    /// The buffer for the next time.
    spare: Mutex<Buffer>,
}

impl Later {
    /// Forgets the contents.
    fn forget(&mut self) {
        if let Some(buffer) = self.filled.take() {
            *self.spare.get_mut().unwrap_or_else(PoisonError::into_inner) = buffer;
        }
    }

    fn get(&self, fill: impl FnOnce(&mut Buffer)) -> &Buffer {
        self.filled.get_or_init(|| {
            let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
            let mut buffer = std::mem::take(&mut *spare);
            fill(&mut buffer);
            buffer
        })
    }

    fn bytes(&self) -> usize {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).bytes();
        spare + self.filled.get().map_or(0, Buffer::bytes)
    }
}

/// The layout that a tier requires of its activations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct InputShape {
    /// Tokens of a tile, stored side by side; 0 for plain rows.
    pub(super) tile_tokens: usize,
    /// Lanes per token.
    pub(super) lanes: usize,
}

impl PackedInput {
    /// An empty input.
    pub fn new() -> Self {
        Self::default()
    }

    /// Packs `x` for matrices of `cols` columns.
    ///
    /// # Panics
    ///
    /// If `x` is not `tokens × cols` long.
    pub fn pack(&mut self, tier: Tier, x: &[f32], tokens: usize, cols: usize) {
        assert_eq!(Some(x.len()), tokens.checked_mul(cols), "activations of {tokens} x {cols}");
        self.pack_rows(tier, tokens, cols, |t| &x[t * cols..][..cols]);
    }

    /// Packs the activations of `tokens` tokens; `row(t)` returns those of token `t`. Large inputs
    /// are packed on all threads of the pool.
    ///
    /// # Panics
    ///
    /// If a row is not `cols` long.
    pub fn pack_rows<'x>(
        &mut self,
        tier: Tier,
        tokens: usize,
        cols: usize,
        row: impl Fn(usize) -> &'x [f32] + Sync,
    ) {
        self.tokens = tokens;
        self.cols = cols;
        self.coded.iter_mut().for_each(Later::forget);
        self.shape = if tokens == 1 { InputShape::default() } else { super::shape(tier) };
        let layout = InputLayout { shape: self.shape, cols, padded: self.padded_cols() };
        layout.fill_groups(self.buffer.grown(tokens * layout.padded), 0, tokens, &row);
        match tier.activations() {
            Activations::F32 => self.rounded = None,
            Activations::Int8 => {
                self.rounded.get_or_insert_default().fill(tier, tokens, cols, &row);
            }
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let rounded = self.rounded.as_ref().map_or(0, Rounded::bytes);
        self.buffer.bytes() + self.coded.iter().map(Later::bytes).sum::<usize>() + rounded
    }

    /// Bytes held after packing `tokens × cols`, if nothing larger was packed before, and products with
    /// weights that need these packings.
    pub const fn bytes_for(packings: Packings, tokens: usize, cols: usize) -> usize {
        let coded = packings.neighbours as usize + packings.apart as usize;
        Buffer::bytes_for(tokens * cols.next_multiple_of(BLOCK))
            + coded * Buffer::bytes_for(CodedInput::len(tokens, cols))
            + packings.rounded as usize * Buffer::bytes_for(Rounded::len(tokens, cols))
    }

    /// The number of tokens packed.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The number of columns packed.
    pub fn cols(&self) -> usize {
        self.cols
    }

    pub(super) fn shape(&self) -> InputShape {
        self.shape
    }

    pub(super) fn padded_cols(&self) -> usize {
        self.cols.next_multiple_of(BLOCK)
    }

    /// The activations for weights that are summed as codes.
    pub(super) fn coded(&self, fours: Fours) -> CodedInput<'_> {
        let buffer = self.coded[fours as usize].get(|buffer| coded::pack(self, fours, buffer));
        CodedInput::of(self, buffer)
    }

    /// The rounded activations.
    ///
    /// # Panics
    ///
    /// If they were packed for a tier that takes them as they are.
    pub(super) fn rounded(&self) -> View<'_> {
        self.rounded.as_ref().expect("activations packed to be rounded").view()
    }

    /// True if they were packed to be rounded.
    pub(super) fn is_rounded(&self) -> bool {
        self.rounded.is_some()
    }

    /// All activations, in packed order.
    pub(super) fn packed(&self) -> &[f32] {
        self.buffer.get(self.tokens * self.padded_cols())
    }
}

/// Below this many numbers a second thread costs more to wake than it saves.
const WORTH_SPLITTING: usize = 1 << 16;

/// Maximum `tile_tokens` of all tiers.
const MAX_TILE_TOKENS: usize = 4;

/// Layout of packed activations.
#[derive(Clone, Copy)]
struct InputLayout {
    shape: InputShape,
    cols: usize,
    padded: usize,
}

impl InputLayout {
    /// Fills `out` with `tokens` tokens from `first` on. Threads get whole groups.
    fn fill_groups<'x>(
        self,
        out: &mut [f32],
        first: usize,
        tokens: usize,
        row: &(impl Fn(usize) -> &'x [f32] + Sync),
    ) {
        if tokens > GROUP && out.len() >= WORTH_SPLITTING {
            let left = tokens.div_ceil(GROUP) / 2 * GROUP;
            let (out_left, out_right) = out.split_at_mut(left * self.padded);
            rayon::join(
                || self.fill_groups(out_left, first, left, row),
                || self.fill_groups(out_right, first + left, tokens - left, row),
            );
            return;
        }
        let row = |t: usize| {
            let row = row(t);
            assert_eq!(row.len(), self.cols, "activations of a token");
            row
        };
        for (group, n) in groups(tokens, GROUP) {
            let out = &mut out[group * self.padded..][..n * self.padded];
            match self.shape.lanes {
                16 => self.fill::<16>(out, first + group, n, row),
                8 => self.fill::<8>(out, first + group, n, row),
                _ => {
                    for (t, out) in out.chunks_mut(self.padded.max(1)).enumerate() {
                        let (out, rest) = out.split_at_mut(self.cols);
                        out.copy_from_slice(row(first + group + t));
                        rest.fill(NOTHING);
                    }
                }
            }
        }
    }

    /// Fills `out` with one group. The tokens of a tile stand side by side in slices of `L` lanes.
    fn fill<'x, const L: usize>(
        self,
        out: &mut [f32],
        first: usize,
        tokens: usize,
        row: impl Fn(usize) -> &'x [f32],
    ) {
        let mut out = out.as_chunks_mut::<L>().0.iter_mut();
        for chunk in groups(self.padded, CHUNK) {
            for slice in (0..LANES).step_by(L) {
                for (tile, n) in groups(tokens, self.shape.tile_tokens) {
                    let mut rows: [&[f32]; MAX_TILE_TOKENS] = [&[]; MAX_TILE_TOKENS];
                    let rows = &mut rows[..n];
                    rows.iter_mut().zip(first + tile..).for_each(|(slot, t)| *slot = row(t));
                    for col in (chunk.0..chunk.0 + chunk.1).step_by(LANES) {
                        for row in &*rows {
                            let out = out.next().expect("as many lanes as there are numbers");
                            let there = row.get(col + slice..).unwrap_or(&[]);
                            // A copy of constant length where possible: one of variable length is a
                            // function call.
                            if let Some(there) = there.first_chunk() {
                                *out = *there;
                            } else {
                                out[..there.len()].copy_from_slice(there);
                                out[there.len()..].fill(NOTHING);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Splits `0..n` into groups of `step`: the start and length of each.
pub(super) fn groups(n: usize, step: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..n).step_by(step).map(move |start| (start, step.min(n - start)))
}
