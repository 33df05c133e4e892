//! Pieces of a model on disk.

mod clock;
mod id;
mod manifest;
mod naming;

pub use clock::Clock;
pub use id::{PieceId, PieceKind, UnknownPiece};
pub use manifest::{
    ErrorNorms, Extent, FileEntry, Manifest, ModelIdentity, Piece, Slice, StandIn, Tensor,
};
pub use naming::{Naming, Placement};
