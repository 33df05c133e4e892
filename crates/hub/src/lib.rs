//! Models of the Hugging Face hub: their names, their copies on this machine, and downloads.
//!
//! A [`ModelName`] is what a user types: `OWNER/NAME`, possibly with a tag or a revision. A
//! [`HubCache`] is the cache that Python's `huggingface_hub` uses as well, in its layout; a
//! [`Library`] has the shards made of models. Neither needs a network.
//!
//! With the feature `client`, a `Client` lists a repository and downloads files, which resume after
//! an interruption and are hashed while they arrive. An `Arriving` checkpoint is downloaded while
//! it is sharded, file by file, so that the disk never holds all of it.
//!
//! ```
//! use sws_hub::ModelName;
//!
//! let name: ModelName = "Qwen/Qwen3-30B-A3B@main".parse()?;
//! assert_eq!(name.id.as_str(), "Qwen/Qwen3-30B-A3B");
//! assert_eq!(name.revision.as_deref(), Some("main"));
//! # Ok::<(), sws_hub::BadName>(())
//! ```
#![deny(missing_docs)]

#[cfg(feature = "client")]
mod arrival;
#[cfg(feature = "client")]
mod arriving;
mod cache;
#[cfg(feature = "client")]
mod client;
#[cfg(feature = "client")]
mod digest;
#[cfg(feature = "client")]
mod download;
mod environment;
mod error;
mod gguf;
#[cfg(feature = "client")]
mod gguf_sketch;
#[cfg(feature = "client")]
pub mod http;
#[cfg(feature = "client")]
mod keep;
mod library;
#[cfg(feature = "client")]
mod list;
#[cfg(feature = "client")]
mod listing;
mod name;
#[cfg(feature = "client")]
mod retry_after;
#[cfg(feature = "client")]
mod selection;
#[cfg(feature = "client")]
mod sketch;
mod snapshots;
mod space;
#[cfg(feature = "client")]
mod staging;

#[cfg(feature = "client")]
pub use arrival::ArrivalParts;
#[cfg(feature = "client")]
pub use arriving::Arriving;
pub use cache::{CachedModel, HubCache, snapshot_files};
#[cfg(feature = "client")]
pub use client::Client;
#[cfg(feature = "client")]
pub use download::DownloadWatch;
pub use environment::{
    Environment, HubToken, ProxySetting, cache_variable, check_places, library_variable,
};
pub use error::{HubError, some_of};
pub use gguf::{UnclearTag, choose_gguf, gguf_models, gguf_tag, is_whole};
#[cfg(feature = "client")]
pub use keep::{DownloadJob, HubBlobs, keep, save};
pub use library::{GGUF, Library, LibraryShards, form, staging};
#[cfg(feature = "client")]
pub use listing::{HubFile, Listing};
pub use name::{BadName, ModelId, ModelName, short_commit};
#[cfg(feature = "client")]
pub use selection::{RepositoryFiles, WeightFiles, has_safetensors, select};
pub use snapshots::Snapshot;
pub use space::{check_space, free_space};
#[cfg(feature = "client")]
pub use staging::{BegunDownload, Staging, begun_bytes};
