//! Working memory that a pass fills before the parts of a layer use it.

use rayon::prelude::*;
use sws_format::Span;
use sws_kernels::Tier;
use sws_kernels::functional::elementary::exp;
use sws_kernels::functional::rope_tables;

use super::by_rows::by_rows;
use super::moe::group;
use super::norms::{NormVectors, norm, norm_rows, scale};
use crate::rope::Rope;
use crate::spec::Norm;
use crate::workspace::{ExpertWork, RopeTables, Workspace, grown};

/// Number of positions whose sines a thread computes at a time: some twenty microseconds.
const TABLE_ROWS: usize = 8;

impl Workspace {
    /// Writes the normed hidden state to `x` and `input`.
    pub(super) fn norm(&mut self, tier: Tier, by: Norm, hidden: &[f32], vectors: NormVectors<'_>) {
        let width = vectors.weight.len();
        let x = grown(&mut self.x, hidden.len());
        by_rows(x, width, |first, rows| {
            rows.copy_from_slice(&hidden[first * width..][..rows.len()]);
            norm(tier, by, rows, width, vectors);
        });
        self.input.pack(tier, x, hidden.len() / width, width);
    }

    /// Like `norm`, with the normed state divided by the root of its length.
    pub(super) fn scaled_norm(&mut self, tier: Tier, by: Norm, hidden: &[f32], weight: &[f32]) {
        let width = weight.len();
        let x = grown(&mut self.x, hidden.len());
        x.copy_from_slice(hidden);
        norm_rows(tier, by, x, width, weight);
        scale(1.0 / (width as f32).sqrt(), x);
        self.input.pack(tier, x, hidden.len() / width, width);
    }

    /// After [`resume`](Self::resume), rebuilds the data derived from the restored state, for a
    /// batch with `numbers` elements in its hidden state.
    pub(super) fn restore(&mut self, tier: Tier, width: usize, numbers: usize) {
        if std::mem::take(&mut self.resumed) {
            self.input.pack(tier, &self.x[..numbers], numbers / width, width);
            group(&self.routed, &mut self.experts);
            let ExpertWork { latent, packed, latent_width: each, .. } = &mut self.experts;
            let latents = numbers / width * *each;
            if latents > 0 && latent.len() >= latents {
                packed.pack(tier, &latent[..latents], numbers / width, *each);
            }
        }
    }

    /// Multiplies the angles of a rotary embedding by factors, of which these are the logarithms, in
    /// the tables to come.
    pub(super) fn learn_angles(&mut self, rope: &Rope, logarithms: &[f32]) {
        let RopeTables { learned, spans, .. } = &mut self.attention.tables;
        spans.clear();
        let angles = grown(learned, logarithms.len());
        for ((angle, by), given) in angles.iter_mut().zip(logarithms).zip(&rope.inv_freq) {
            *angle = given * exp(*by);
        }
    }

    /// Computes the rotary tables of a batch, unless they exist already.
    pub(super) fn tables(&mut self, ropes: &[Rope], spans: &[Span]) {
        let RopeTables { each, learned, spans: made } = &mut self.attention.tables;
        if made == spans {
            return;
        }
        each.resize_with(ropes.len(), Default::default);
        let tokens: usize = spans.iter().map(|span| span.tokens).sum();
        for (number, ([cos, sin], rope)) in each.iter_mut().zip(ropes).enumerate() {
            let has_learned = number == 0 && !learned.is_empty();
            let angles = if has_learned { &*learned } else { &rope.inv_freq };
            let pairs = angles.len();
            let cos = grown(cos, tokens * pairs);
            let sin = grown(sin, tokens * pairs);
            for span in spans {
                let rows = span.first_row * pairs..(span.first_row + span.tokens) * pairs;
                let cos = cos[rows.clone()].par_chunks_mut(TABLE_ROWS * pairs);
                let sin = sin[rows].par_chunks_mut(TABLE_ROWS * pairs);
                cos.zip(sin).enumerate().for_each(|(part, (cos, sin))| {
                    let first = span.first_position + part * TABLE_ROWS;
                    rope_tables(angles, rope.factor, first, cos, sin);
                });
            }
        }
        made.clear();
        made.extend_from_slice(spans);
    }
}
