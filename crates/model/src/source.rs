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

    /// Calls `ready` with every expert of `routed.distinct` exactly once: one at a time or several
    /// together, in any order, as they come. Those given together are computed together, which
    /// with one token is faster. The order leaves no trace in the result.
    fn experts(
        &mut self,
        layer: usize,
        routed: &Routed,
        ready: Ready<'_>,
    ) -> Result<(), SourceError>;

    /// Calls `compute` once, with the final norm and the head in reach. With tied embeddings the
    /// source serves the embedding as the head.
    fn head(&mut self, compute: Compute<'_>) -> Result<(), SourceError>;
}

/// Tensors in reach.
pub trait Weights {
    /// A norm or bias, widened to f32.
    fn vector(&self, piece: PieceId, role: Role) -> &[f32];

    /// A matrix, if all of it is in memory.
    fn matrix(&self, piece: PieceId, role: Role) -> Option<Matrix<'_>>;

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
