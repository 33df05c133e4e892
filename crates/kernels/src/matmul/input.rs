//! Activations, laid out once a call so that the kernels read them in the order of their use.

use crate::Tier;
use crate::buffer::Buffer;
use crate::reference::{BLOCK, LANES};

/// Tokens are worked on in groups of at most this many: their part of a chunk stays in the
/// second-level cache.
pub(super) const GROUP: usize = 64;

/// Columns are worked on in chunks of at most this many (see `many.rs`).
pub(super) const CHUNK: usize = 1024;

/// What the columns beyond the last are multiplied with. Weights there are +0, and a product of
/// -0 leaves every sum as it is; +0 would turn a sum of -0 around.
const NOTHING: f32 = -0.0;

/// Activations `[tokens, cols]`, packed for a tier. Reuse it: its buffer is kept.
#[derive(Debug, Default)]
pub struct Input {
    buffer: Buffer,
    tokens: usize,
    cols: usize,
    shape: Shape,
}

/// How a tier wants its activations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shape {
    /// Tokens side by side; 0 for rows one after another.
    pub(super) tile_tokens: usize,
    /// Lanes of each.
    pub(super) lanes: usize,
}

impl Input {
    /// An empty one.
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
        self.tokens = tokens;
        self.cols = cols;
        self.shape = if tokens == 1 { Shape::default() } else { super::shape(tier) };
        let padded = self.padded_cols();
        let buffer = self.buffer.grown(tokens * padded);
        if self.shape.tile_tokens == 0 {
            for (t, out) in buffer.chunks_mut(padded.max(1)).enumerate() {
                out[..cols].copy_from_slice(&x[t * cols..][..cols]);
                out[cols..].fill(NOTHING);
            }
            return;
        }
        let Shape { tile_tokens, lanes } = self.shape;
        let mut out = buffer.chunks_exact_mut(lanes);
        for group in groups(tokens, GROUP) {
            for chunk in groups(padded, CHUNK) {
                for slice in (0..LANES).step_by(lanes) {
                    for tile in groups(group.1, tile_tokens) {
                        for col in (chunk.0..chunk.0 + chunk.1).step_by(LANES) {
                            for t in 0..tile.1 {
                                let out = out.next().expect("as many lanes as there are numbers");
                                let row = &x[(group.0 + tile.0 + t) * cols..][..cols];
                                let there = row.get(col + slice..).unwrap_or(&[]);
                                let n = there.len().min(lanes);
                                out[..n].copy_from_slice(&there[..n]);
                                out[n..].fill(NOTHING);
                            }
                        }
                    }
                }
            }
        }
    }

    /// The bytes it holds.
    pub fn bytes(&self) -> usize {
        self.buffer.bytes()
    }

    /// The bytes it would hold after packing `tokens × cols`, if nothing larger came before.
    pub const fn bytes_for(tokens: usize, cols: usize) -> usize {
        Buffer::bytes_for(tokens * cols.next_multiple_of(BLOCK))
    }

    /// The number of tokens packed.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The number of columns packed.
    pub fn cols(&self) -> usize {
        self.cols
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    pub(super) fn padded_cols(&self) -> usize {
        self.cols.next_multiple_of(BLOCK)
    }

    /// Everything, in the packed order.
    pub(super) fn packed(&self) -> &[f32] {
        self.buffer.get(self.tokens * self.padded_cols())
    }
}

/// Cuts `0..n` into groups of `step`: the start and length of each.
pub(super) fn groups(n: usize, step: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..n).step_by(step).map(move |start| (start, step.min(n - start)))
}
