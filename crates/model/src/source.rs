//! The trait through which the forward pass requests weights.

use sws_format::{PieceId, PieceKind};
use sws_kernels::Matrix;

use crate::executor::ExpertExecutor;
use crate::observer::Observer;
use crate::role::Role;
pub use crate::routed::{Routed, SourceError};

/// A computation that runs while weights are in reach.
pub type Compute<'a> = &'a mut dyn FnMut(&mut dyn Weights) -> Result<(), SourceError>;

/// A computation with experts that are in reach.
pub type Ready<'a> = &'a mut dyn FnMut(&[u32], &mut dyn Weights) -> Result<(), SourceError>;

/// Function that writes the row numbers of a layer's table into an empty list, using the layer's
/// vectors.
pub type FindRows<'a> = &'a mut dyn FnMut(&dyn Weights, &mut Vec<u64>) -> Result<(), SourceError>;

/// A computation with a table row, which gets the index of the row among the requested ones.
pub type TakeRow<'a> = &'a mut dyn FnMut(usize, &[f32]);

/// Supplies the forward pass with weights, from memory or from storage.
///
/// A pass calls `expect_rows` for every layer with a table, then `embed`. For each layer it calls
/// `look_up`, if it has a table, and `infrastructure` for everything before the feed-forward block. A
/// dense layer then calls `infrastructure` again for its MLP; a layer with experts calls it again for
/// the shared expert, if there is one, and then calls `experts`. The pass calls `head` when logits are
/// wanted. Tensors are requested in the order of [`ModelSpec::reads`](crate::ModelSpec::reads). A caller
/// may start over at an earlier layer (see [`ForwardState::rewind`](crate::ForwardState::rewind)), or repeat one.
///
/// Every tensor served must have the shape that [`Inventory`](crate::Inventory) has verified.
pub trait WeightSource: Send {
    /// Writes the embeddings of `tokens` to `rows` [tokens, hidden].
    fn embed(&mut self, tokens: &[u32], rows: &mut [f32]) -> Result<(), SourceError>;

    /// Announces the table rows of a layer that [`look_up`](Self::look_up) requests later in this
    /// pass. They depend on tokens alone, so reads can begin.
    fn expect_rows(&mut self, _layer: usize, _find: FindRows<'_>) -> Result<(), SourceError> {
        Ok(())
    }

    /// Calls `take` once for each row that `find` selects in a layer's table, in any order.
    fn look_up(
        &mut self,
        layer: usize,
        find: FindRows<'_>,
        take: TakeRow<'_>,
    ) -> Result<(), SourceError>;

    /// Calls `compute` once, with these pieces of the layer in reach.
    fn infrastructure(
        &mut self,
        layer: usize,
        pieces: &[PieceKind],
        compute: Compute<'_>,
    ) -> Result<(), SourceError>;

    /// Calls `ready` with every expert of `routed.distinct` exactly once, and once more with an
    /// expert whose stand-in was rejected as too inaccurate. Experts may be passed one at a time or
    /// several together, in any order, as they arrive. Those passed together are computed together,
    /// which is faster with one token. The result does not depend on the order.
    fn experts(
        &mut self,
        layer: usize,
        routed: &Routed,
        ready: Ready<'_>,
    ) -> Result<(), SourceError>;

    /// Calls `compute` once, with the final norm and the head in reach. With tied embeddings the
    /// embedding is the head.
    fn head(&mut self, compute: Compute<'_>) -> Result<(), SourceError>;
}

/// A source that observes the pass it serves, and may have later layers computed ahead.
pub trait PassSource: WeightSource + Observer {
    /// Decides, in a pass of one token, whether to compute a layer with stand-ins for its experts,
    /// to learn which experts later layers need; see [`RunAhead`].
    fn run_ahead(&mut self, step: RunAhead) -> Result<bool, SourceError> {
        let _ = step;
        Ok(false)
    }
}

/// A step of computing with stand-ins while experts are awaited, to learn which experts later
/// layers will request. The results are dropped, and computed again with the real experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunAhead {
    /// The router of this layer has selected. The source returns true to compute the layer with
    /// stand-ins.
    From(usize),
    /// The source returns true to compute this layer, the next one, as well.
    On(usize),
    /// The last layer has been computed. The next call is [`experts`](WeightSource::experts) of the
    /// first layer again. The return value is ignored.
    Done,
}

/// Measurements of a stand-in's computation for one token, from which its error can be bounded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Contribution {
    /// ‖x‖, where x is the input of the expert.
    pub input: f64,
    /// Upper bound of max |s|, with s = silu(gate · x).
    pub gate: f64,
    /// max |u|, with u = up · x.
    pub up: f64,
    /// ‖s ∘ u‖
    pub hidden: f64,
    /// The routing weight by which the output is multiplied.
    pub weight: f64,
    /// The norm of the hidden state to which the output is added.
    pub state: f64,
}

/// Access to the tensors in reach.
pub trait Weights {
    /// A norm or bias of any piece but a routed expert, widened to f32.
    fn vector(&self, piece: PieceId, role: Role) -> &[f32];

    /// A matrix, if all of it is in memory. Biases of routed experts are requested here too, as
    /// matrices of one row: they lie in slots, as they are stored.
    fn matrix(&self, piece: PieceId, role: Role) -> Option<Matrix<'_>>;

    /// True if the weights in reach for an expert are a stand-in, whose contributions count only if
    /// [`judge`](Self::judge) accepts each of them.
    fn is_judged(&self, expert: PieceId) -> bool {
        let _ = expert;
        false
    }

    /// True if a stand-in's contribution is accurate enough. If not, the expert is served again.
    fn judge(&mut self, expert: PieceId, contribution: &Contribution) -> bool {
        let _ = (expert, contribution);
        true
    }

    /// The executor of the experts in this call of [`Ready`], if they are computed elsewhere.
    /// `None` if their matrices can be requested.
    fn executor(&mut self) -> Option<&mut dyn ExpertExecutor> {
        None
    }

    /// Calls `compute` with blocks of rows that together form the matrix, each with the number of
    /// its first row. Blocks may come in any order, except those of [`Role::KvUp`], whose rows are
    /// added up, and of [`Role::ValueUp`], before whose rows a head attends: these come in
    /// ascending order. Used when [`matrix`](Self::matrix) returns `None`.
    fn blocks(
        &mut self,
        piece: PieceId,
        role: Role,
        compute: &mut dyn FnMut(usize, &Matrix<'_>),
    ) -> Result<(), SourceError>;
}
