//! A cache of experts without I/O, for this engine and for others.
//!
//! A [`PredictiveCache`] tracks a fixed set of slots: which expert each slot holds, and which
//! experts must not be evicted. A [`policy`] picks the victim: [`ExpectedUse`] by a [`History`] of
//! router choices, [`Lru`] by the time of the last use. The memory of a slot is a payload of the
//! caller's choice. The same cache therefore serves an engine, whose payload is a buffer, and a
//! [`replay`], whose payload is `()`.
//!
//! A [`Trace`] holds recorded routes. A replay drives the cache with them and counts the misses of
//! each policy and of Belady's optimum. A [`Correction`] is what
//! recordings of one model teach its policy. [`Placement`](placement::Placement) decides which experts lie on a tier
//! beside memory. [`SavedTensors`] keeps the learned state of a policy between runs.
//!
//! The crate reads no weights and starts no threads. From `sws-store` it takes only the vocabulary:
//! [`PieceId`](sws_format::PieceId) and [`Pass`](sws_format::Pass). [`PredictiveCache`] has an
//! example.
//!
//! [`ExpectedUse`]: policy::ExpectedUse
//! [`Lru`]: policy::Lru
//! [`History`]: history::History
//! [`Correction`]: correction::Correction

mod cache;
mod choice;
pub mod correction;
pub mod fit;
pub mod history;
mod math;
pub mod placement;
pub mod policy;
mod recent;
pub mod replay;
mod saved;
mod shape;
mod trace;

pub use cache::{Claim, Lookup, LookupCounts, Need, NoRoom, PredictiveCache};
pub use saved::{SavedError, SavedTensors};
pub use trace::{RouterStates, Trace, TraceError};
