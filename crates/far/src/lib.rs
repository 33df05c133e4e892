//! Shards in object storage: reading over HTTP with a local cache, and uploading.
//!
//! A [`FarAddress`] names a directory of shards on a web server or in a bucket. A [`FarOrigin`] reads and
//! writes its files: public ones, ones whose address has a signature as its query, and those of S3,
//! whose requests it signs. A [`Far`] model has the manifest and the small files at once, and its
//! shards when they are read, through a cache of pieces on the local drive that several processes
//! share. As a [`Supply`](sws_store::Supply) it puts itself in front of the readers of local files.
//! [`push`] puts a directory of shards there, the manifest last.
//!
//! ```
//! use sws_far::FarAddress;
//!
//! let address: FarAddress = "s3://models/qwen3-30b".parse()?;
//! assert_eq!(address.to_string(), "s3://models/qwen3-30b");
//! # Ok::<(), sws_far::FarError>(())
//! ```
#![deny(missing_docs)]

mod address;
mod aws;
mod cells;
mod downloads;
mod error;
mod explain;
mod far;
mod fetch;
mod files;
mod key;
mod origin;
mod place;
mod push;
mod queue;
mod reader;
mod record;
mod sign;

pub use address::FarAddress;
pub use aws::Aws;
pub use downloads::FarCounts;
pub use error::FarError;
pub use far::{Far, FarOptions};
pub use origin::FarOrigin;
pub use push::{Push, PushStep, Pushed, push};
