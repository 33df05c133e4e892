//! Reading of pieces from a device into memory.
//!
//! [`NVMeWeightStore`] fetches the pieces of a [`Manifest`](sws_format::Manifest). The
//! [`PieceLayout`] of a [`Read`] gives the length of the [`Slot`] that it needs from an [`Arena`].
//! The caller passes the slot to [`fetch`](NVMeWeightStore::fetch), and gets it back in a
//! [`Completion`] once every byte is verified. A [`ShardReader`](sws_format::ShardReader) is the
//! I/O backend: [`ReaderKind`] names those here.
//!
//! ```no_run
//! use std::path::Path;
//! use std::sync::Arc;
//! use sws_format::{Manifest, PieceId};
//! use sws_store::{Arena, NVMeWeightStore, Read, StoreOptions};
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

mod blobs;
mod drives;
mod fetch;
mod heap;
mod integrity;
mod layout;
mod probe;
mod reader;
mod scheduler;
mod shared;
mod simulation;
mod slot;
mod stats;
mod store;
mod sync;

pub use blobs::{BlobDevice, BlobName, BlobWriter, Blobs, BlobsError, SystemFiles};
pub use drives::Mirror;
pub use fetch::{Cancelled, Completion, FetchError, Priority, SlotTooSmall, Ticket, Timing};
pub use heap::Granted;
pub use layout::{LayoutError, Parts, PieceLayout, Read, Segment, TensorLayout};
pub use probe::{Figure, ProbeReport, Reads, probe, speeds};
#[cfg(all(feature = "uring", target_os = "linux"))]
pub use reader::UringReader;
pub use reader::{
    DirectReader, LimitedReader, MmapReader, ReaderKind, Supply, UnknownReader, open_file_limit,
};
pub use simulation::SimulatedDisk;
pub use slot::{Arena, SLOT_ALIGN, Slot};
pub use stats::{DriveStats, StoreStats, Traffic};
pub use store::{Landed, NVMeWeightStore, NotLanded, StoreOptions, user_cache};
pub use sws_os::machine::{LimitSource, SystemMemory};
