//! The trait between the MoE block and the weights of experts.

use std::ops::Range;

use crate::routed::{Routed, SourceError};
use crate::spec::MlpSpec;

/// Computes experts where their weights are.
///
/// The MoE block passes the rows that chose an expert to the executor, and gets one output for each
/// row. It weights the outputs and sums them in ascending order of experts. The sum therefore
/// depends neither on the place nor on the order of the computation. An executor gives equal bits
/// if its products follow the reduction of the kernels.
///
/// The only implementation here computes on the CPU with the [`Weights`](crate::Weights) in reach.
/// Weights that lie elsewhere provide their own executor in
/// [`Weights::executor`](crate::Weights::executor).
pub trait ExpertExecutor {
    /// Computes every expert of `batch` for the tokens that chose it. `outputs` is
    /// [rows of the layer, hidden]; those of an expert are at [`ExpertBatch::rows`], in the order
    /// of [`ExpertBatch::tokens`]. Other rows stay as they are.
    ///
    /// Returns the experts whose stand-ins are too inaccurate. Their outputs do not count, and
    /// these experts will be served again.
    fn compute(
        &mut self,
        batch: &ExpertBatch<'_>,
        outputs: &mut [f32],
    ) -> Result<Vec<u32>, SourceError>;
}

/// Some experts of a layer, and the rows that chose them.
#[derive(Clone, Debug)]
pub struct ExpertBatch<'a> {
    /// The layer.
    pub layer: u32,
    /// The experts to compute. At least one token chose each of them.
    pub experts: &'a [u32],
    /// Rows of the layer that are computed now. An expert with very many rows is computed in parts.
    pub(crate) part: Range<usize>,
    /// The computation of each expert.
    pub spec: MlpSpec,
    /// Elements of a row of `x` and of an output.
    pub hidden: usize,
    /// The normed hidden state, or the projection of it that experts read: [tokens, hidden].
    pub x: &'a [f32],
    /// The hidden state to which the outputs will be added, with rows as long as those of `x` but for
    /// projections.
    pub state: &'a [f32],
    /// The choices of all tokens.
    pub routed: &'a Routed,
    /// Indices into `routed.choices`, by expert, then by token.
    pub(crate) places: &'a [usize],
    /// Start in `places` of each expert of `routed.distinct`, followed by the end.
    pub(crate) starts: &'a [usize],
}

impl<'a> ExpertBatch<'a> {
    /// Rows of an expert among the outputs of the layer, as far as they are computed now.
    ///
    /// # Panics
    ///
    /// If no token chose the expert.
    pub fn rows(&self, expert: u32) -> Range<usize> {
        let place = place_of(self.routed, expert);
        let Range { start, end } = self.part;
        self.starts[place].max(start)..self.starts[place + 1].min(end)
    }

    /// The tokens that chose an expert, ascending.
    ///
    /// # Panics
    ///
    /// If no token chose the expert.
    pub fn tokens(&self, expert: u32) -> impl ExactSizeIterator<Item = usize> + use<'a> {
        let top_k = self.routed.top_k;
        self.places[self.rows(expert)].iter().map(move |place| place / top_k)
    }

    /// Rows of all experts of the batch.
    pub(crate) fn row_count(&self) -> usize {
        self.experts.iter().map(|&expert| self.rows(expert).len()).sum()
    }
}

/// The index of an expert in `Routed::distinct`.
pub(crate) fn place_of(routed: &Routed, expert: u32) -> usize {
    let place = routed.distinct.binary_search(&expert);
    place.unwrap_or_else(|_| panic!("the source serves expert {expert}, which no token chose"))
}
