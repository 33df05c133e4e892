//! Sizes that histories, corrections and traces share.

/// Number of inputs of the logistic model for an expert. In order, they are:
///
/// - a constant,
/// - the log-odds of the five moving averages,
/// - the log-odds of the use over all time,
/// - the time since the last use,
/// - the log-odds of following the experts used last,
/// - the log-odds of following the experts used two steps ago, less those of the use over all time,
/// - the log-odds of following the last token, less those of following the last experts.
pub(crate) const FEATURES: usize = 11;

/// The inputs without the constant.
pub(crate) const STATISTICS: usize = FEATURES - 1;

/// Number of horizons: 1, 4, 16 and 64 steps.
pub(crate) const HORIZONS: usize = 4;

/// The horizons, in steps.
pub(crate) const STEPS: [usize; HORIZONS] = [1, 4, 16, 64];

/// Maximum number of pairs of experts in all layers. A model with more pairs has no pair tables.
const MAX_PAIRS: usize = 64 << 20;

/// Numbers of layers and experts of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryShape {
    /// Layers that have experts.
    pub layers: usize,
    /// Experts per layer.
    pub experts: usize,
    /// Experts that a token uses per layer.
    pub top_k: usize,
}

impl HistoryShape {
    pub(crate) fn pairs(&self) -> bool {
        let pairs = self.experts.checked_mul(self.experts).and_then(|n| n.checked_mul(self.layers));
        pairs.is_some_and(|pairs| pairs <= MAX_PAIRS)
    }
}
