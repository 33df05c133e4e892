//! Mapping of a family's tensor names to pieces, implemented by `sws-model`.

use crate::{Packed, PieceId};

/// Maps the tensor names of one model to pieces.
pub trait Naming: Sync {
    /// The family, as the configuration spells it.
    fn model_type(&self) -> &str;

    /// Returns the placement of a tensor of the checkpoint.
    fn place(&self, name: &str, shape: &[u64]) -> Placement;

    /// Returns the packing of four-bit codes along columns, if the checkpoint has one.
    fn packed(&self) -> Option<Packed> {
        None
    }

    /// True if the configuration gives each block of an fp8 matrix its own scale.
    fn has_blocks(&self) -> bool {
        false
    }

    /// Returns the name of a tensor in the manifest, if it differs from the checkpoint's. With
    /// `expert`, the name of that expert's part. `None` keeps the name.
    fn name(&self, _name: &str, _expert: Option<u32>) -> Option<String> {
        None
    }
}

/// Place of a tensor among the pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The tensor belongs to one piece.
    Piece {
        /// The piece.
        id: PieceId,
        /// Rank within the piece. Tensors are stored by ascending rank, the order in which a pass
        /// uses them.
        rank: u16,
        /// True if the tensor may be re-encoded: a matrix of an expert, attention, MLP, embedding
        /// or head.
        matrix: bool,
    },
    /// The first dimension counts the experts of a layer; each expert's piece gets one slice.
    Experts {
        /// The layer.
        layer: u32,
        /// See [`Placement::Piece`].
        rank: u16,
        /// See [`Placement::Piece`].
        matrix: bool,
        /// True if each slice is a matrix stored as [columns, rows]. This applies only to plain
        /// floats: the blocks of `mxfp4` run along a row, so such a matrix is always stored by
        /// rows.
        transposed: bool,
    },
    /// No forward pass uses the tensor, which is kept unchanged.
    Extra,
}
