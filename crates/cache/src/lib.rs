//! A cache of experts without I/O, for this engine and for others.
//!
//! A [`PredictiveCache`] keeps the books of a fixed set of slots: which expert is in which slot, which
//! may be evicted, and which must stay. A [`policy`] picks the victim: [`ExpectedUse`] by a
//! [`History`] of what routers chose, [`Lru`] by the time of the last use. The memory of a slot is a
//! payload of the caller's choice, so the same cache serves an engine, whose payload is a buffer, and a
//! [`replay`], whose payload is `()`.
//!
//! A [`Trace`] holds recorded routes. A replay drives the cache with them and counts the misses of
//! each policy beside those of Belady's optimum. What a policy has learned goes to [`Saved`] and back.
//!
//! The crate reads no weights and starts no threads. Its only part of `sws-store` is the vocabulary:
//! [`PieceId`](sws_store::PieceId) and [`Pass`](sws_store::Pass).
//!
//! [`ExpectedUse`]: policy::ExpectedUse
//! [`Lru`]: policy::Lru
//! [`History`]: history::History

mod cache;
pub mod history;
pub mod policy;
pub mod replay;
mod saved;
mod trace;

pub use cache::{Claim, Counts, Lookup, Need, NoRoom, PredictiveCache};
pub use saved::{Saved, SavedError};
pub use trace::{Trace, TraceError};
