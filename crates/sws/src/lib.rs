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
//! The defaults are those of `sws run` and `sws chat`, which are built on this crate. All types in its signatures are
//! here: a program needs no other crate of the workspace.
//!
//! # Two policies, and the routes of a text
//!
//! ```no_run
//! use sws::{Model, Observer, Options, Pass, PolicyKind, Request, Routed, SourceError, Streaming};
//!
//! /// Counts the experts that routers choose.
//! struct Routes(usize);
//!
//! impl Observer for Routes {
//!     fn routed(&mut self, _: &Pass, _: usize, routed: &Routed) -> Result<(), SourceError> {
//!         self.0 += routed.distinct.len();
//!         Ok(())
//!     }
//! }
//!
//! let model = Model::open("shards/tales-moe")?;
//! for policy in [PolicyKind::Lru, PolicyKind::Expected] {
//!     let streaming = Streaming { policy, ..Streaming::default() };
//!     let options = Options { ram: "64MiB".parse()?, streaming, ..Options::default() };
//!     let mut loaded = model.with(options).load()?;
//!     let mut routes = Routes(0);
//!     let mut text = loaded.generate(Request::from("The wolf").seed(7))?.observed_by(&mut routes);
//!     for piece in &mut text {
//!         piece?;
//!     }
//!     let made = text.finish();
//!     let cost = loaded.metrics(&made).cost;
//!     let read = cost.and_then(|cost| cost.generation.bytes_per_token.get("experts").copied());
//!     println!("{policy:?}: {} experts, {read:?} bytes a token", routes.0);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A small server
//!
//! ```no_run
//! use std::sync::mpsc::Receiver;
//!
//! use sws::{BatchRequest, Event, LoadedModel};
//!
//! /// Answers requests as they come, in shared passes.
//! fn serve(model: &mut LoadedModel, requests: &Receiver<BatchRequest>) -> sws::Result<()> {
//!     let mut batch = model.batch()?;
//!     let mut number = 0;
//!     loop {
//!         while batch.has_room(false) {
//!             // Waits only while nothing is to be computed.
//!             let next = if batch.is_empty() { requests.recv().ok() } else { requests.try_recv().ok() };
//!             let Some(request) = next else { break };
//!             batch.add(number, request)?;
//!             number += 1;
//!         }
//!         if batch.is_empty() {
//!             return Ok(());
//!         }
//!         batch.step(&mut |number, event| match event {
//!             Event::Piece(piece, _) => println!("{number}: {piece}"),
//!             Event::Ended(_) => println!("{number} is over"),
//!             _ => {}
//!         });
//!     }
//! }
//! ```
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

// Whatever the signatures of this crate have of lower ones, so that a program needs no other.
pub use sws_cache::policy::PolicyKind;
pub use sws_engine::{
    Counters, Gauge, HitBasis, HitCurve, Metrics, PerToken, Plan, PlanError, PlanOptions, Planner,
    RamBudget, StandInUse, Waiter, Witness,
};
pub use sws_format::Progress;
pub use sws_format::{
    Checkpoint, Clock, Configuration, Manifest, Pass, PieceId, PieceKind, ShardReader,
};
pub use sws_kernels::{Activations, Encoding, Tier};
pub use sws_model::{
    CausalLm, Description, ForwardError, InvalidConfig, KvPrecision, ModelSpec, Observer, Routed,
    SourceError,
};
pub use sws_store::{BlobDevice, BlobsError, NVMeWeightStore, ReaderKind};
pub use sws_text::{
    ChatPrompt, ChatTemplate, Generation, GenerationOptions, Message, Position, ReplyFormat,
    TokenMask, Tokenizer,
};

/// Compiles the examples of docs/library.md.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
pub struct Guide;
