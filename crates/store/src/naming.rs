//! How a family's tensor names map to pieces: asked here, answered by `sws-model`.

use crate::PieceId;

/// Knows the tensor names of one model.
pub trait Naming: Sync {
    /// The family, as `config.json` spells it.
    fn model_type(&self) -> &str;

    /// Where a tensor of the checkpoint belongs.
    fn place(&self, name: &str, shape: &[u64]) -> Placement;
}

/// Where a tensor belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// In one piece.
    Piece {
        /// That piece.
        id: PieceId,
        /// Tensors of a piece are stored by rising rank, the order in which they are computed with.
        rank: u16,
        /// Whether it may be re-encoded: a matrix of an expert, attention, MLP, embedding or head.
        matrix: bool,
    },
    /// The first dimension counts the experts of a layer; each gets its slice.
    Experts {
        /// That layer.
        layer: u32,
        /// As above.
        rank: u16,
        /// As above.
        matrix: bool,
    },
    /// Nothing of a forward pass; kept as it is.
    Extra,
}
