//! The logits: the final norm, and the product with the head.

use sws_format::PieceId;
use sws_kernels::functional::soft_cap;

use super::by_rows::by_rows;
use super::linear::{Product, multiply};
use super::mixer::add_bias;
use super::norms::{NormVectors, norm_rows, scale};
use super::{ForwardError, ForwardPass, LogitRows, streams};
use crate::role::Role;
use crate::source::WeightSource;
use crate::state::ForwardState;
use crate::workspace::{Workspace, grown};

impl ForwardPass {
    /// The states of the batch behind the final norm, [tokens, hidden], after its last layer.
    ///
    /// # Panics
    ///
    /// If there are layers left to run, or the streams of the model are gated.
    pub fn final_states<'s>(
        &self,
        state: &'s mut ForwardState,
        source: &mut dyn WeightSource,
    ) -> Result<&'s [f32], ForwardError> {
        assert_eq!(state.layer(), Some(self.spec.visits()), "the layer that comes next");
        assert!(self.spec.stream_gates().is_none(), "states of gated streams");
        let tier = self.tier;
        let width = self.spec.hidden;
        let state_width = self.spec.state_width();
        let ForwardState { work, hidden, .. } = state;
        let x = grown(&mut work.x, hidden.len() / state_width * width);
        source.head(&mut |weights| {
            for (state, x) in hidden.chunks_exact(state_width).zip(x.chunks_exact_mut(width)) {
                streams::head(tier, &self.spec, weights, state, x);
            }
            let (piece, tensor) = self.spec.final_norm();
            let by = self.spec.head.norm;
            let vectors = NormVectors::of(weights, piece, tensor.role, by);
            norm_rows(tier, by, x, width, vectors);
            Ok(())
        })?;
        Ok(x)
    }

    /// The logits of the batch, [rows, vocab], after its last layer.
    ///
    /// # Panics
    ///
    /// If there are layers left to run.
    pub fn logits<'s>(
        &self,
        rows: LogitRows,
        state: &'s mut ForwardState,
        source: &mut dyn WeightSource,
    ) -> Result<&'s [f32], ForwardError> {
        assert_eq!(state.layer(), Some(self.spec.visits()), "the layer that comes next");
        let tier = self.tier;
        let width = self.spec.hidden;
        let vocab = self.spec.vocab;
        let ForwardState { work, hidden, pass, .. } = state;
        let state_width = self.spec.state_width();
        let count = match rows {
            LogitRows::All => hidden.len() / state_width,
            LogitRows::Last => pass.spans.len(),
        };
        let Workspace { x, input, scratch, logits, streams: room, branch, .. } = work;
        let gated = self.spec.stream_gates().is_some();
        let [_, predicted] = self.spec.head.rows;
        let (piece_of_head, head) = self.spec.head();
        let rows_of_head = head.rows;
        let copied = if gated { state_width } else { width };
        let x = grown(x, count * copied);
        let logits = grown(logits, count * vocab);
        source.head(&mut |weights| {
            let row = |n: usize| match rows {
                LogitRows::All => n,
                LogitRows::Last => pass.spans[n].first_row + pass.spans[n].tokens - 1,
            };
            for (n, x) in x.chunks_exact_mut(copied).enumerate() {
                let state = &hidden[row(n) * state_width..][..state_width];
                match gated {
                    true => x.copy_from_slice(state),
                    false => streams::head(tier, &self.spec, weights, state, x),
                }
            }
            if gated {
                let y = grown(branch, count * width);
                let of = streams::Gated::of_head(&self.spec);
                streams::gated(&of, tier, weights, (x, input, &mut room.gates), None, y, scratch)?;
                input.pack(tier, y, count, width);
            } else {
                let (piece, tensor) = self.spec.final_norm();
                let by = self.spec.head.norm;
                let vectors = NormVectors::of(weights, piece, tensor.role, by);
                norm_rows(tier, by, x, width, vectors);
                input.pack(tier, x, count, width);
            }
            let head = Product::new(
                piece_of_head,
                head.role,
                input,
                &mut logits[..count * rows_of_head],
                rows_of_head,
            );
            multiply(tier, weights, &mut [Some(head)], scratch)?;
            if self.spec.head.bias {
                add_bias(tier, weights.vector(PieceId::FINAL_NORM, Role::HeadBias), logits);
            }
            Ok(())
        })?;
        let computed = &mut logits[..count * rows_of_head];
        scale(self.spec.head.scale, computed);
        if let Some(cap) = self.spec.head.cap {
            by_rows(computed, rows_of_head, |_, rows| soft_cap(tier, rows, cap));
        }
        if predicted < vocab {
            // Rows are moved from the last to the first, so that none is overwritten before it is
            // moved.
            for n in (0..count).rev() {
                logits.copy_within(n * rows_of_head..n * rows_of_head + predicted, n * vocab);
                logits[n * vocab + predicted..(n + 1) * vocab].fill(f32::NEG_INFINITY);
            }
        }
        Ok(logits)
    }
}
