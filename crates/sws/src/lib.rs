//! Runs Mixture-of-Experts language models larger than memory, with exactly the output of a model
//! that is fully in memory.
//!
//! ```no_run
//! use std::io::Write;
//!
//! use sws::{Model, Request};
//!
//! let mut model = Model::open("shards/tales-moe")?.ram("64MiB").load()?;
//! for piece in model.generate(Request::from("The wolf").seed(7))? {
//!     print!("{}", piece?);
//!     std::io::stdout().flush()?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Overview
//!
//! - [`Model`] is a model on disk: a directory of shards, a checkpoint, or one in the Hugging Face
//!   cache.
//! - [`Loader`] loads it with given [`Options`]. Its [`planning`](Loader::planning) shows the
//!   effect of a memory budget without loading anything.
//! - [`LoadedModel`] continues texts ([`generate`](LoadedModel::generate)) and answers in a
//!   [`Conversation`] ([`chat`](LoadedModel::chat)). Both return a [`Generate`], an iterator over
//!   the text as it is generated, which a [`Cancel`] handle ends from any thread. Afterwards
//!   [`Generated`] has the whole text, and [`RunMetrics`] its cost.
//! - [`generate_all`](LoadedModel::generate_all) continues several texts by continuous batching, each with
//!   the output that it has alone.
//! - [`Outline`] is a model without weights: what a configuration alone says about sizes and
//!   memory.
//! - A [`Batch`] continues texts that come and go, as in a server.
//! - [`SUGGESTIONS`] are published models to begin with.
//! - Passes run on [`Threads`], whichever thread calls.
//!
//! The defaults are those of `sws run` and `sws chat`, which are built on this crate.
#![deny(missing_docs)]

mod backend;
mod batch;
mod cancel;
mod chat;
pub mod draft;
mod error;
pub mod eviction;
mod find;
mod generate;
mod generated;
mod loaded;
mod loader;
mod metrics;
mod name;
mod open;
mod options;
mod outline;
mod planning;
mod prefix_cache;
mod prefix_disk;
mod process;
mod rank;
mod request;
mod resident;
mod sequence;
mod size;
mod speculative;
mod speed;
mod suggestions;
mod text;
mod texts;
mod threads;
mod timing;
mod turns;
mod warning;
mod writer;

pub use backend::Backend;
pub use batch::{Batch, BatchRequest, Event};
pub use cancel::Cancel;
pub use chat::Conversation;
pub use error::{Cause, Error, Lacking, Result};
pub use find::{locate, locate_checkpoint};
pub use generate::Generate;
pub use generated::{End, Generated, Piece};
pub use loaded::{LoadedModel, NEW_TOKENS};
pub use loader::{Loader, Needs};
pub use metrics::{Cost, Pace, RunMetrics};
pub use open::{Defaults, Model, checkpoint, contents};
pub use options::{DraftChoice, Options, Streaming};
pub use outline::{Footprint, Format, Outline, Scope, SequenceBytes};
pub use planning::Planning;
pub use prefix_disk::{PrefixDisk, PrefixDiskCounts};
pub use process::ReadingRoom;
pub use rank::Rank;
pub use request::{Prompt, Request};
pub use sequence::LoadedSequences;
pub use size::Size;
pub use speed::{Computing, Dry, Others, PromptComputing, disk_speed, memory_speed};
pub use suggestions::{SUGGESTIONS, Suggestion};
pub use text::TextCodec;
pub use texts::Texts;
pub use threads::Threads;
pub use warning::Warning;

pub use sws_engine::{Counters, Gauge, Metrics, Plan, Planner, RamBudget};
pub use sws_kernels::Activations;
pub use sws_model::text::{GenerationOptions, Message};
pub use sws_model::{KvPrecision, Observer};
pub use sws_store::shard::Progress;
pub use sws_store::{BlobsError, ReaderKind, ShardReader};

/// Compiles the examples of docs/library.md.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
pub struct Guide;
