//! Pieces of a model on disk.

mod blocks;
mod checkpoint;
mod clock;
mod header;
mod id;
mod manifest;
mod naming;
#[cfg(feature = "io")]
mod path;

pub use blocks::{BLOCK_BYTES, EMBED_BLOCK_BYTES, WHOLE_LIMIT, check_len};
pub use checkpoint::{Checkpoint, CheckpointError, WeightFile};
pub use clock::Clock;
pub use header::{Header, HeaderError, HeaderTensor};
pub use id::{PieceId, PieceKind, UnknownPiece};
pub use manifest::{
    ErrorNorms, Extent, FileEntry, Manifest, ModelIdentity, Piece, Slice, StandIn, Tensor,
};
#[cfg(feature = "io")]
pub use manifest::{InvalidManifest, MANIFEST_FILE, ManifestError};
pub use naming::{Naming, Placement};
