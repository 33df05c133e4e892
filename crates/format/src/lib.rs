//! The contents of model files, as far as they are known without reading pieces.
//!
//! A model is divided into pieces, the units of streaming: an expert, a layer's attention, the
//! embedding. Each piece has a name ([`PieceId`]). A [`Manifest`] gives the location and the
//! checksum of every byte of a piece. It is loaded from a directory of shards, or built from the
//! headers of a [`Checkpoint`] and a [`Naming`], which maps a family's tensor names to pieces.
//!
//! Only headers and small files are read here. A [`ShardReader`] reads the rest; this crate has none.
//!
//! ```no_run
//! use std::path::Path;
//! use sws_format::{Manifest, PieceId};
//!
//! let manifest = Manifest::load(Path::new("shards/tales-moe"))?;
//! let expert = manifest.piece(PieceId::expert(3, 7)).expect("an expert of the fourth layer");
//! assert!(expert.tensors.iter().all(|tensor| !tensor.parts.is_empty()));
//! # Ok::<(), sws_format::ManifestError>(())
//! ```

mod blocks;
mod book;
mod checkpoint;
mod checksum;
mod clock;
mod configuration;
mod dtype;
mod gguf;
mod header;
mod id;
mod manifest;
mod naming;
mod pass;
mod path;
mod progress;
mod reader;
mod remedy;

pub use blocks::{
    BLOCK_BYTES, EMBED_BLOCK_BYTES, TABLE_BLOCK_BYTES, WHOLE_LIMIT, check_len, encoding_of,
    part_rows, quantised_as,
};
pub use book::ChecksumBook;
pub use checkpoint::{
    Checkpoint, CheckpointError, WeightFile, gguf_model, is_small_file, open_checkpoint,
    read_config, sketch,
};
pub use checksum::{Checksum, checksum};
pub use clock::Clock;
pub use configuration::{Configuration, DamagedConfiguration, Value};
pub use dtype::Dtype;
pub use gguf::{Gguf, GgufError, GgufList};
pub use header::{Header, HeaderError, HeaderTensor, MAX_HEADER_BYTES};
pub use id::{PieceId, PieceKind, UnknownPiece};
pub use manifest::{
    CopiedFile, ErrorNorms, Extent, FileEntry, Geometry, InvalidManifest, JOURNAL, LEARNED_FILE,
    MANIFEST_FILE, MAX_LEARNED_BYTES, MAX_MANIFEST_BYTES, Manifest, ManifestError, ModelIdentity,
    Packed, Packing, Piece, SMALL_FILES, Slice, SmallFileError, StandIn, Tensor, TensorOrigin,
};
pub use naming::{Naming, Placement};
pub use pass::{Pass, Span};
pub use path::{is_plain_name, is_plain_path};
pub use progress::Progress;
pub use reader::{ReadOp, ShardReader};
pub use remedy::{Remedied, remedy, with_remedy};
pub use sws_os::open::{open_named, open_regular, open_stream};
