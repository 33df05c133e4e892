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

mod batch;
mod common_names;
mod error;
mod learned;
mod load;
mod measure;
mod open;
mod outline;
mod prefix_cache;
mod run;
mod size;
mod speculative;
mod warning;

pub use batch::texts::Texts;
pub use batch::{Batch, BatchRequest, Event};
pub use error::{Cause, Error, Lacking, Result};
pub use learned::{draft, eviction};
pub use load::backend::Backend;
pub use load::loader::{Loader, Needs};
pub use load::options::{DraftChoice, Options, Streaming};
pub use load::planning::Planning;
pub use load::set::{ModelSet, PlannedModel, SetEntry};
pub use load::vram::{VramChoice, VramDevice, VramPlan, vram_devices};
pub use measure::{
    Computing, Dry, Others, PromptComputing, disk_speed, drives_speed, memory_speed,
};
pub use open::find::{locate, locate_checkpoint};
pub use open::mirrors::ModelMirror;
pub use open::model::{Defaults, Model, checkpoint, contents};
pub use open::pooling::StatePooling;
pub use open::reading::ReadingRoom;
pub use open::suggestions::{SUGGESTIONS, Suggestion};
pub use open::text::TextCodec;
pub use outline::{Footprint, Format, Outline, Scope, SequenceBytes};
pub use prefix_cache::disk::{PrefixDisk, PrefixDiskCounts};
pub use run::cancel::Cancel;
pub use run::chat::Conversation;
pub use run::generate::Generate;
pub use run::generated::{End, Generated, Piece};
pub use run::loaded::{LoadedModel, NEW_TOKENS};
pub use run::metrics::{BytesRead, Cost, Pace, RunMetrics};
pub use run::rank::Rank;
pub use run::request::{Prompt, Request};
pub use run::sequence::{LoadedSequences, SimulatedLm};
pub use run::threads::Threads;
pub use size::Size;
pub use warning::Warning;

// Types of lower crates in the signatures of this one, so that a program needs no other crate of
// the workspace.
pub use sws_cache::policy::PolicyKind;
pub use sws_engine::{
    Counters, Gauge, HitBasis, HitCurve, Metrics, PerToken, Plan, PlanError, PlanOptions, Planner,
    RamBudget, SlotClass, SpeculativeWeightStreamer, StandInUse, TierHits, Waiter, Witness,
};
pub use sws_format::Progress;
pub use sws_format::{
    Checkpoint, Clock, Configuration, Manifest, Pass, PieceId, PieceKind, ShardReader,
};
pub use sws_kernels::{Activations, Encoding, Tier};
pub use sws_model::{
    CausalLm, Chunk, Description, ForwardError, InvalidConfig, KvPrecision, ModelSpec, Observer,
    Routed, SourceError, StepOutcome,
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
