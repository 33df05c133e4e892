//! Runs Mixture-of-Experts language models larger than memory, with exactly the answers of the model that
//! is wholly in memory.
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
//! # How the parts hand on to each other
//!
//! - [`Model`] is a model on disk: a directory of shards, a checkpoint, or one in the Hugging Face cache.
//! - [`Loader`] is how it is to be run: [`Options`] as they are given, resolved when it is loaded. Its
//!   [`planning`](Loader::planning) says what a memory budget would do without loading anything.
//! - [`LoadedModel`] continues texts ([`generate`](LoadedModel::generate)) and takes part in a
//!   [`Conversation`] ([`chat`](LoadedModel::chat)). Both give a [`Generate`], the iterator of a text as
//!   it is made, which a [`Cancel`] handle ends from any thread; then [`Generated`] says what there was,
//!   and [`RunMetrics`] what it cost.
//! - Passes run on [`Threads`], whichever thread asks for them.
//!
//! The defaults are those of `sws run` and `sws chat`, which are written on this crate.
#![deny(missing_docs)]

mod backend;
mod cancel;
mod chat;
pub mod draft;
mod error;
mod find;
mod generate;
mod generated;
mod loaded;
mod loader;
mod metrics;
mod open;
mod options;
mod planning;
mod process;
mod request;
mod resident;
mod sequence;
mod size;
mod text;
mod threads;
mod timing;
mod warning;

pub use backend::Backend;
pub use cancel::Cancel;
pub use chat::Conversation;
pub use error::{Cause, Error, Lacking, Result};
pub use find::locate;
pub use generate::Generate;
pub use generated::{End, Generated, Piece};
pub use loaded::{LoadedModel, NEW_TOKENS};
pub use loader::{Loader, Needs};
pub use metrics::{Cost, Pace, RunMetrics};
pub use open::{Model, manifest};
pub use options::{Drafting, Options, Streaming};
pub use planning::Planning;
pub use request::{Prompt, Request};
pub use size::Size;
pub use text::Text;
pub use threads::Threads;
pub use warning::Warning;

pub use sws_engine::{Budget, Counters, Gauge, Metrics, Plan, Planner};
pub use sws_model::text::{GenerationOptions, Message};
pub use sws_model::{KvPrecision, Observer};
pub use sws_store::shard::Progress;
pub use sws_store::{ReaderKind, ShardReader};
