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
#[cfg(feature = "io")]
pub mod shard;

// Reading.
#[cfg(feature = "io")]
mod book;
#[cfg(feature = "io")]
mod fetch;
#[cfg(feature = "io")]
mod integrity;
#[cfg(feature = "io")]
mod layout;
#[cfg(feature = "io")]
mod probe;
#[cfg(feature = "io")]
mod reader;
#[cfg(feature = "io")]
mod scheduler;
#[cfg(feature = "io")]
mod slot;
#[cfg(feature = "io")]
mod stats;
#[cfg(feature = "io")]
mod store;

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

#[cfg(feature = "io")]
pub use fetch::{Cancelled, Completion, FetchError, Priority, SlotTooSmall, Ticket, Timing};
#[cfg(feature = "io")]
pub use integrity::checksum;
#[cfg(feature = "io")]
pub use layout::{LayoutError, Parts, PieceLayout, Read, Segment, TensorLayout};
#[cfg(feature = "io")]
pub use probe::{Figure, ProbeReport, probe};
#[cfg(feature = "uring")]
pub use reader::UringReader;
#[cfg(feature = "io")]
pub use reader::{
    BitFlip, DirectReader, Failing, Flip, MemoryReader, MmapReader, ReadOp, ReaderKind,
    ShardReader, Short, Slow, UnknownReader, open_file_limit,
};
#[cfg(feature = "io")]
pub use slot::{Arena, SLOT_ALIGN, Slot};
#[cfg(feature = "io")]
pub use stats::{StoreStats, Traffic};
#[cfg(feature = "io")]
pub use store::{NVMeWeightStore, StoreOptions, user_cache};
