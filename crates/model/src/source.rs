//! Where weights come from: the trait through which the forward pass asks for them.

use sws_kernels::Matrix;
use sws_store::{PieceId, PieceKind};

use crate::role::Role;

/// What went wrong in a source; only the source knows its kinds.
pub type SourceError = Box<dyn std::error::Error + Send + Sync>;

/// What is computed while weights are in reach.
pub type Compute<'a> = &'a mut dyn FnMut(&mut dyn Weights) -> Result<(), SourceError>;

/// What is computed with experts once they are in reach.
pub type Ready<'a> = &'a mut dyn FnMut(&[u32], &mut dyn Weights) -> Result<(), SourceError>;

/// Gives the forward pass its weights: from memory, or from wherever it has to fetch them.
///
/// The pass calls these in a fixed order: `embed`; for each layer `entering`, `infrastructure` for
/// what comes before the feed-forward block, then for a layer with experts `routed`,
/// `infrastructure` for the shared expert if there is one, `attended` and `experts`, for a dense
/// layer `infrastructure` for its MLP; and `head` where logits are wanted. A caller may start over at an
/// earlier layer (see [`State::rewind`](crate::State::rewind)), or repeat one.
///
/// Every tensor served must have the shape that [`Inventory`](crate::Inventory) has found right.
pub trait WeightSource: Send {
    /// Writes the embeddings of `tokens` to `rows` [tokens, hidden].
    fn embed(&mut self, tokens: &[u32], rows: &mut [f32]) -> Result<(), SourceError>;

    /// `hidden` [tokens, hidden] is about to enter a layer: a chance to look ahead.
    fn entering(&mut self, layer: usize, hidden: &[f32]) -> Result<(), SourceError> {
        let _ = (layer, hidden);
        Ok(())
    }

    /// Calls `compute` once, with these pieces of the layer in reach.
    fn infrastructure(
        &mut self,
        layer: usize,
        pieces: &[PieceKind],
        compute: Compute<'_>,
    ) -> Result<(), SourceError>;

    /// The router has chosen; [`experts`](Self::experts) follows once the shared expert has been
    /// computed. A chance to begin reading.
    fn routed(&mut self, layer: usize, routed: &Routed) -> Result<(), SourceError> {
        let _ = (layer, routed);
        Ok(())
    }

    /// `state` [tokens, hidden] is what the layer's attention has left, `shared` what its shared
    /// expert adds to it, empty without one: the best there is to look ahead from until the experts
    /// are done. It comes after [`routed`](Self::routed), so that no read waits for it.
    fn attended(&mut self, layer: usize, state: &[f32], shared: &[f32]) -> Result<(), SourceError> {
        let _ = (layer, state, shared);
        Ok(())
    }

    /// Calls `ready` with every expert of `routed.distinct` exactly once, and once more with one whose
    /// stand-in was judged to be too far off: one at a time or several together, in any order, as they
    /// come. Those given together are computed together, which
    /// with one token is faster. The order leaves no trace in the result.
    fn experts(
        &mut self,
        layer: usize,
        routed: &Routed,
        ready: Ready<'_>,
    ) -> Result<(), SourceError>;

    /// Asks, of a pass of one token, whether a layer may be computed with something else than its own
    /// experts, to learn what later layers need; see [`RunAhead`]. No source needs to.
    fn run_ahead(&mut self, step: RunAhead) -> Result<bool, SourceError> {
        let _ = step;
        Ok(false)
    }

    /// Calls `compute` once, with the final norm and the head in reach; with tied embeddings the embedding
    /// is the head.
    fn head(&mut self, compute: Compute<'_>) -> Result<(), SourceError>;
}

/// A pass that computes with stand-ins while it waits for experts, to learn what later layers will
/// ask for. What it has computed is forgotten, and computed again with the experts themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunAhead {
    /// This layer's router has chosen. Is it to be computed with what is there, for now?
    From(usize),
    /// Is this layer to be computed as well? It is one behind the last.
    On(usize),
    /// That was all. What comes next is [`experts`](WeightSource::experts) of the first layer again,
    /// and nothing but these counts. The answer does not matter.
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
