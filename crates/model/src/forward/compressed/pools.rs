//! Entries, each of which pools the rows of several positions.

use sws_format::{PieceId, Span};
use sws_kernels::functional::{
    NormWeight, RopePairs, RopeShape, pool, rms_norm, rope, rope_tables,
};
use sws_kernels::{PackedInput, Tier};

use super::super::by_rows::rows_of;
use super::super::linear::Product;
use crate::layer_state::{CompressedState, SequenceState};
use crate::role::Role;
use crate::rope::Rope;
use crate::spec::PoolSpec;
use crate::workspace::{PoolWork, grown};

impl PoolWork {
    /// The products with the hidden state.
    pub(super) fn products<'a>(
        &'a mut self,
        (pools, dim): (&PoolSpec, usize),
        id: PieceId,
        [rows, gates, ..]: [Role; 4],
        x: &'a PackedInput,
    ) -> [Option<Product<'a>>; 2] {
        let width = pools.series() * dim;
        let len = x.tokens() * width;
        [(rows, &mut self.rows), (gates, &mut self.gates)]
            .map(|(role, y)| Some(Product::new(id, role, x, grown(y, len), width)))
    }

    /// Buffer lengths for passes of up to this many tokens: rows, logits, rows and logits of an
    /// entry, and an entry with its cosines and sines, which are together no longer than the entry.
    pub(super) fn lens(pools: &PoolSpec, dim: usize, tokens: usize) -> [usize; 5] {
        let rows = tokens * pools.series() * dim;
        let parts = pools.series() * pools.ratio * dim;
        [rows, rows, parts, parts, 2 * dim]
    }
}

/// The entries of a layer, or those of its indexer.
pub(super) struct Pooling<'a> {
    pub(super) tier: Tier,
    pub(super) layer: usize,
    pub(super) pools: PoolSpec,
    /// Elements of an entry.
    pub(super) dim: usize,
    /// True for the entries of the indexer.
    pub(super) index: bool,
    /// Bias of the logits: [positions of an entry, series, elements].
    pub(super) bias: &'a [f32],
    pub(super) norm: &'a [f32],
    pub(super) eps: f32,
    pub(super) rope: &'a Rope,
}

impl Pooling<'_> {
    /// Stores the rows of all tokens, and pools the entries that they finish.
    pub(super) fn run(&self, spans: &[Span], sequences: &mut [SequenceState], work: &mut PoolWork) {
        let PoolWork { rows, gates, parts, entry, turns } = work;
        let width = self.pools.series() * self.dim;
        let entry = grown(entry, self.dim);
        for span in spans {
            let state = sequences[span.sequence].layer(self.layer).compressed();
            let rows = [&*rows, &*gates].map(|rows| rows_of(span, rows, width));
            let ratio = self.pools.ratio;
            let end = span.first_position + span.tokens;
            let mut position = span.first_position;
            while position < end {
                // A ring has room for the rows of the entries that are not finished.
                let until = end.min((position / ratio + 1) * ratio);
                let from = (position - span.first_position) * width;
                let part = rows.map(|rows| &rows[from..][..(until - position) * width]);
                state.append_raw(self.index, position, part);
                if until.is_multiple_of(ratio) {
                    let number = until / ratio - 1;
                    self.gather(state, number, parts, entry);
                    self.finish(number, entry, turns);
                    state.put(self.index, number, entry);
                }
                position = until;
            }
        }
    }

    /// Pools the rows of an entry.
    fn gather(
        &self,
        state: &CompressedState,
        number: usize,
        [x, logits]: &mut [Vec<f32>; 2],
        entry: &mut [f32],
    ) {
        let &Pooling { tier, pools: PoolSpec { ratio, .. }, dim, index, bias, .. } = self;
        let series = self.pools.series();
        let len = series * ratio * dim;
        let x = grown(x, len);
        let logits = grown(logits, len);
        // The first entry has no earlier positions.
        let before = (series - 1).min(number);
        let rows = (before + 1) * ratio;
        let first = (number - before) * ratio;
        let parts = x.chunks_exact_mut(dim).zip(logits.chunks_exact_mut(dim)).take(rows);
        for (place, (x, logits)) in parts.enumerate() {
            // For its own positions, an entry uses the last of their rows.
            let own = place / ratio == before;
            let at = if own { (series - 1) * dim } else { 0 };
            let [row, gate] = state.raw(index, first + place);
            x.copy_from_slice(&row[at..at + dim]);
            let bias = &bias[place % ratio * series * dim + at..][..dim];
            for ((logit, gate), bias) in logits.iter_mut().zip(&gate[at..]).zip(bias) {
                *logit = gate + bias;
            }
        }
        pool(tier, &x[..rows * dim], &logits[..rows * dim], entry);
    }

    /// Norms an entry, and rotates it by the angles of its first position.
    fn finish(&self, number: usize, entry: &mut [f32], [cos, sin]: &mut [Vec<f32>; 2]) {
        let &Pooling { tier, dim, eps, .. } = self;
        let Rope { inv_freq, factor, .. } = self.rope;
        rms_norm(tier, entry, dim, NormWeight::Plain(self.norm), eps);
        let pairs = inv_freq.len();
        let cos = grown(cos, pairs);
        let sin = grown(sin, pairs);
        rope_tables(inv_freq, *factor, number * self.pools.ratio, cos, sin);
        let offset = dim - 2 * pairs;
        let pairs = RopePairs::Interleaved;
        rope(tier, entry, RopeShape { heads: 1, head_dim: dim, offset, pairs }, cos, sin);
    }
}
