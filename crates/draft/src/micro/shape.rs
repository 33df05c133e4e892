//! Shape of a draft's model.

use sws_cache::history::HistoryShape;

/// The dimensions of a model, and of its use, that a draft needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftShape {
    /// Elements of the hidden state.
    pub hidden: usize,
    /// The numbers of the layers that have experts, ascending.
    pub layers: Vec<usize>,
    /// Experts per layer.
    pub experts: usize,
    /// Experts that a token uses per layer.
    pub top_k: usize,
    /// Number of sequences that can exist at the same time.
    pub sequences: usize,
}

impl DraftShape {
    pub(super) fn history(&self) -> HistoryShape {
        HistoryShape { layers: self.layers.len(), experts: self.experts, top_k: self.top_k }
    }

    pub(super) fn place(&self, layer: usize) -> Option<usize> {
        self.layers.binary_search(&layer).ok()
    }
}
