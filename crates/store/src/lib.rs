//! Pieces of a model on disk.
//!
//! A model is divided into pieces, the units of streaming: an expert, a layer's attention, the
//! embedding. Each piece has a name ([`PieceId`]). A [`Manifest`] gives the location and the
//! checksum of every byte of a piece. It is loaded from a directory of shards, or built from the
//! headers of a [`Checkpoint`] and a [`Naming`], which maps a family's tensor names to pieces.
//!
//! With the feature `io`, [`NVMeWeightStore`] fetches pieces into memory. The [`PieceLayout`] of a
//! [`Read`] gives the length of the [`Slot`] that it needs from an [`Arena`]. The slot is handed
//! over with [`fetch`](NVMeWeightStore::fetch) and comes back in a [`Completion`], every byte in it
//! verified. A [`ShardReader`] is the I/O backend. [`mod@shard`] converts checkpoints into shards
//! and back. Without `io` the crate only defines types: it opens no files and starts no threads.
//!
//! ```no_run
//! use std::path::Path;
//! use std::sync::Arc;
//! use sws_store::{Arena, Manifest, NVMeWeightStore, PieceId, Read, StoreOptions};
//!
//! let dir = Path::new("shards/tales-moe");
//! let manifest = Arc::new(Manifest::load(dir)?);
//! let store = NVMeWeightStore::open(manifest, dir, StoreOptions::default())?;
//! let arena = Arena::new(16 << 20)?;
//! let expert = store.read(Read::Piece(PieceId::expert(3, 7)), &arena)?;
//! for tensor in expert.layout.tensors() {
//!     if let Some(matrix) = tensor.matrix(&expert.slot) {
//!         let matrix = matrix?;
//!         assert!(matrix.row_count() > 0 && matrix.cols() > 0);
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "io")]
mod blobs;
mod blocks;
#[cfg(feature = "io")]
mod checkpoint;
mod clock;
mod configuration;
mod dtype;
mod gguf;
mod header;
mod id;
#[cfg(feature = "io")]
mod limits;
mod manifest;
#[cfg(feature = "io")]
mod memory;
mod naming;
mod pass;
#[cfg(feature = "io")]
mod path;
mod remedy;
#[cfg(feature = "io")]
pub mod shard;

// Reading.
#[cfg(feature = "io")]
mod book;
#[cfg(feature = "io")]
mod fetch;
#[cfg(feature = "io")]
mod heap;
#[cfg(feature = "io")]
mod integrity;
#[cfg(feature = "io")]
mod layout;
#[cfg(feature = "io")]
mod probe;
#[cfg(feature = "io")]
mod reader;
#[cfg(feature = "io")]
mod regular;
#[cfg(feature = "io")]
mod scheduler;
#[cfg(feature = "io")]
mod simulation;
#[cfg(feature = "io")]
mod slot;
#[cfg(feature = "io")]
mod stats;
#[cfg(feature = "io")]
mod store;
#[cfg(feature = "io")]
mod sync;

#[cfg(feature = "io")]
pub use blobs::{BlobDevice, BlobName, BlobWriter, Blobs, BlobsError, SystemFiles};
pub use blocks::{BLOCK_BYTES, EMBED_BLOCK_BYTES, TABLE_BLOCK_BYTES, WHOLE_LIMIT, check_len};
#[cfg(feature = "io")]
pub use blocks::{encoding_of, quantised_as};
#[cfg(feature = "io")]
pub use checkpoint::{
    Checkpoint, CheckpointError, WeightFile, gguf_model, is_small_file, open_checkpoint,
    read_config, sketch,
};
pub use clock::Clock;
pub use configuration::{Configuration, DamagedConfiguration, Value};
pub use dtype::Dtype;
pub use gguf::{Gguf, GgufError};
pub use header::{Header, HeaderError, HeaderTensor};
pub use id::{PieceId, PieceKind, UnknownPiece};
pub use manifest::{
    CopiedFile, ErrorNorms, Extent, FileEntry, Manifest, ModelIdentity, Packed, Packing, Piece,
    Slice, StandIn, Tensor, TensorOrigin,
};
#[cfg(feature = "io")]
pub use manifest::{
    InvalidManifest, MANIFEST_FILE, MAX_MANIFEST_BYTES, ManifestError, SMALL_FILES, SmallFileError,
};
pub use naming::{Naming, Placement};
pub use pass::{Pass, Span};
#[cfg(feature = "io")]
pub use path::{is_plain_name, is_plain_path};
pub use remedy::{Remedied, remedy, with_remedy};

#[cfg(feature = "io")]
pub use fetch::{Cancelled, Completion, FetchError, Priority, SlotTooSmall, Ticket, Timing};
#[cfg(feature = "io")]
pub use heap::{Granted, release_freed_memory};
#[cfg(feature = "io")]
pub use integrity::{Checksum, checksum};
#[cfg(feature = "io")]
pub use layout::{LayoutError, Parts, PieceLayout, Read, Segment, TensorLayout};
#[cfg(feature = "io")]
pub use limits::ProcessLimits;
#[cfg(feature = "io")]
pub use memory::{LimitSource, SystemMemory};
#[cfg(feature = "io")]
pub use probe::{Figure, ProbeReport, Reads, probe, speeds};
#[cfg(feature = "uring")]
pub use reader::UringReader;
#[cfg(feature = "io")]
pub use reader::{
    DirectReader, LEARNED_FILE, MAX_LEARNED_BYTES, MmapReader, ReadOp, ReaderKind, ShardReader,
    Supply, UnknownReader, open_file_limit,
};
#[cfg(feature = "io")]
pub use regular::{open_named, open_regular, open_stream};
#[cfg(feature = "io")]
pub use simulation::SimulatedDisk;
#[cfg(feature = "io")]
pub use slot::{Arena, SLOT_ALIGN, Slot};
#[cfg(feature = "io")]
pub use stats::{StoreStats, Traffic};
#[cfg(feature = "io")]
pub use store::{Landed, NVMeWeightStore, NotLanded, StoreOptions, user_cache};
