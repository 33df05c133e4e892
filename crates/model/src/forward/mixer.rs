//! Code shared by all mixers. A mixer has stages: it projects the normed state, rotates queries and
//! keys by their positions, attends (or runs a recurrence), and projects the outputs back.

use sws_format::{PieceId, PieceKind, Span};
use sws_kernels::functional::elementary::ln64;
use sws_kernels::functional::{RopeShape, add, rope};
use sws_kernels::{PackedInput, ScratchPool, Tier};

use super::by_rows::by_rows;
use super::linear::{Product, multiply};
use super::norms::{scale, scale_row};
use crate::role::Role;
use crate::rope::Rope;
use crate::source::{SourceError, Weights};
use crate::spec::{Norm, Temperature};
use crate::workspace::grown;

/// The layer, the pass and the model, as a mixer sees them.
pub(super) struct MixerContext<'a> {
    pub(super) tier: Tier,
    pub(super) layer: usize,
    pub(super) norm: Norm,
    pub(super) hidden: usize,
    pub(super) ropes: &'a [Rope],
    pub(super) spans: &'a [Span],
}

impl MixerContext<'_> {
    /// The piece of the mixer's weights.
    pub(super) fn id(&self) -> PieceId {
        PieceId::new(self.layer as u32, PieceKind::Attention)
    }

    /// Number of rows.
    pub(super) fn tokens(&self) -> usize {
        self.spans.iter().map(|span| span.tokens).sum()
    }
}

/// The rotated heads of a row, and the number of angles of a row.
#[derive(Clone, Copy)]
pub(super) struct Turned {
    pub(super) shape: RopeShape,
    pub(super) angles: usize,
}

/// Rotates the heads in the rows `x` by the angles of their rows.
pub(super) fn turn(tier: Tier, of: Turned, (cos, sin): (&[f32], &[f32]), x: &mut [f32]) {
    let Turned { shape, angles } = of;
    let width = shape.heads * shape.head_dim;
    by_rows(x, width, |first, x| {
        let rows = first * angles..(first + x.len() / width) * angles;
        rope(tier, x, shape, &cos[rows.clone()], &sin[rows]);
    });
}

/// Multiplies the rows of queries by the factors of their positions.
pub(super) fn temper(by: Option<Temperature>, spans: &[Span], q: &mut [f32], width: usize) {
    let Some(Temperature { scale: by, length, first, smooth }) = by else { return };
    for span in spans {
        let rows = &mut q[span.first_row * width..][..span.tokens * width];
        for (position, row) in (span.first_position..).zip(rows.chunks_exact_mut(width)) {
            let steps = (first + position) as f64 / length;
            let grown = if smooth { steps.max(1.0) } else { 1.0 + steps.floor() };
            scale((1.0 + by * ln64(grown)) as f32, row);
        }
    }
}

/// Multiplies the heads of queries by a · ln(1 + position) + b, where `grown` has the a and the b of
/// all heads.
pub(super) fn grow_heads(grown: [&[f32]; 2], spans: &[Span], q: &mut [f32], head_dim: usize) {
    let [factors, bias] = grown;
    let width = factors.len() * head_dim;
    for span in spans {
        let rows = &mut q[span.first_row * width..][..span.tokens * width];
        for (position, row) in (span.first_position..).zip(rows.chunks_exact_mut(width)) {
            let logarithm = ln64((1 + position) as f64) as f32;
            for ((head, factor), bias) in row.chunks_exact_mut(head_dim).zip(factors).zip(bias) {
                let by = factor * logarithm + bias;
                scale_row(by, head);
            }
        }
    }
}

/// Buffers of the last stage.
pub(super) struct OutputRoom<'w> {
    pub(super) packed: &'w mut PackedInput,
    pub(super) branch: &'w mut Vec<f32>,
    pub(super) scratch: &'w mut ScratchPool,
}

/// The last stage: projects the outputs of heads, [tokens, width], to the hidden state, in the
/// buffer of the branch.
pub(super) fn project_out(
    context: &MixerContext<'_>,
    weights: &mut dyn Weights,
    (outputs, width): (&[f32], usize),
    has_bias: bool,
    room: OutputRoom<'_>,
) -> Result<(), SourceError> {
    let &MixerContext { tier, hidden, .. } = context;
    let id = context.id();
    let OutputRoom { packed, branch, scratch } = room;
    let tokens = outputs.len() / width;
    packed.pack(tier, outputs, tokens, width);
    let branch = grown(branch, tokens * hidden);
    let output = Product::new(id, Role::Output, packed, &mut *branch, hidden);
    multiply(tier, weights, &mut [Some(output)], scratch)?;
    if has_bias {
        add_bias(tier, weights.vector(id, Role::OutputBias), branch);
    }
    Ok(())
}

/// Adds `bias` to every row.
pub(super) fn add_bias(tier: Tier, bias: &[f32], rows: &mut [f32]) {
    by_rows(rows, bias.len(), |_, rows| {
        for row in rows.chunks_exact_mut(bias.len()) {
            add(tier, bias, row);
        }
    });
}
