//! Where weights come from: the trait through which the forward pass asks for them.

use sws_kernels::Matrix;
use sws_store::{PieceId, PieceKind};

use crate::observer::Observer;
use crate::role::Role;

/// What went wrong in a source; only the source knows its kinds.
pub type SourceError = Box<dyn std::error::Error + Send + Sync>;

/// What is computed while weights are in reach.
pub type Compute<'a> = &'a mut dyn FnMut(&mut dyn Weights) -> Result<(), SourceError>;

/// What is computed with experts once they are in reach.
pub type Ready<'a> = &'a mut dyn FnMut(&[u32], &mut dyn Weights) -> Result<(), SourceError>;

/// Gives the forward pass its weights: from memory, or from wherever it has to fetch them.
///
/// A pass calls `embed`; then for each layer `infrastructure` for what comes before the feed-forward block,
/// and either once more for the MLP of a dense layer, or for the shared expert if there is one, and
/// `experts`; and `head` where logits are wanted. The tensors are asked for in the order of
/// [`ModelSpec::reads`](crate::ModelSpec::reads). A caller may start over at an earlier layer (see
/// [`State::rewind`](crate::State::rewind)), or repeat one.
///
/// Every tensor served must have the shape that [`Inventory`](crate::Inventory) has found right.
pub trait WeightSource: Send {
    /// Writes the embeddings of `tokens` to `rows` [tokens, hidden].
    fn embed(&mut self, tokens: &[u32], rows: &mut [f32]) -> Result<(), SourceError>;

    /// Calls `compute` once, with these pieces of the layer in reach.
    fn infrastructure(
        &mut self,
        layer: usize,
        pieces: &[PieceKind],
        compute: Compute<'_>,
    ) -> Result<(), SourceError>;

    /// Calls `ready` with every expert of `routed.distinct` exactly once, and once more with one whose
    /// stand-in was judged to be too far off: one at a time or several together, in any order, as they
    /// arrive. Those given together are computed together, which with one token is faster. The order leaves
    /// no trace in the result.
    fn experts(
        &mut self,
        layer: usize,
        routed: &Routed,
        ready: Ready<'_>,
    ) -> Result<(), SourceError>;

    /// Calls `compute` once, with the final norm and the head in reach; with tied embeddings the embedding
    /// is the head.
    fn head(&mut self, compute: Compute<'_>) -> Result<(), SourceError>;
}

/// A source that follows the pass it serves: it hears of every moment, and may have later layers computed
/// ahead.
pub trait PassSource: WeightSource + Observer {
    /// Decides, in a pass of one token, whether a layer is computed with something else than its own
    /// experts, to learn what later layers need; see [`RunAhead`].
    fn run_ahead(&mut self, step: RunAhead) -> Result<bool, SourceError> {
        let _ = step;
        Ok(false)
    }
}

/// A step of computing with stand-ins while experts are awaited, to learn what later layers will ask for.
/// The results are dropped, and computed again with the experts themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunAhead {
    /// The router of this layer has selected. Is the layer to be computed with stand-ins?
    From(usize),
    /// Is this layer, the next one, to be computed as well?
    On(usize),
    /// The last layer has been computed. The next call is [`experts`](WeightSource::experts) of the first
    /// layer again. The answer does not matter.
    Done,
}

/// What an expert's stand-in has computed for one token, as far as its error depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Contribution {
    /// ‖x‖: of what the expert was given.
    pub input: f64,
    /// max |s|, from above, with s = silu(gate · x).
    pub gate: f64,
    /// max |u|, with u = up · x.
    pub up: f64,
    /// ‖s ∘ u‖
    pub hidden: f64,
    /// What the router multiplies the output by.
    pub weight: f64,
    /// The norm of the state to which the output is added.
    pub state: f64,
}

/// Tensors in reach.
pub trait Weights {
    /// A norm or bias, widened to f32.
    fn vector(&self, piece: PieceId, role: Role) -> &[f32];

    /// A matrix, if all of it is in memory.
    fn matrix(&self, piece: PieceId, role: Role) -> Option<Matrix<'_>>;

    /// Whether what is in reach of an expert is a stand-in that may count only if each of its
    /// contributions is [`judge`](Self::judge)d to be near enough.
    fn is_judged(&self, expert: PieceId) -> bool {
        let _ = expert;
        false
    }

    /// Whether a contribution of a stand-in may count. If not, the expert is served again.
    fn judge(&mut self, expert: PieceId, contribution: &Contribution) -> bool {
        let _ = (expert, contribution);
        true
    }

    /// Calls `compute` with blocks of rows that together are the matrix, each with the number of
    /// its first row, in any order: for a matrix of which [`matrix`](Self::matrix) has none.
    fn blocks(
        &mut self,
        piece: PieceId,
        role: Role,
        compute: &mut dyn FnMut(usize, &Matrix<'_>),
    ) -> Result<(), SourceError>;
}

/// What the router of a layer has chosen for the tokens of a batch.
#[derive(Debug, Default)]
pub struct Routed {
    /// Experts a token uses.
    pub top_k: usize,
    /// The experts of each token, the most probable first: [tokens, top_k].
    pub choices: Vec<u32>,
    /// What the output of each is multiplied by: [tokens, top_k].
    pub weights: Vec<f32>,
    /// The experts that any token uses, ascending.
    pub distinct: Vec<u32>,
}
