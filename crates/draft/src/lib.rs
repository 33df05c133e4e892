//! What a model will need next.
//!
//! Routers choose experts one layer at a time; what they chose before, and what they would choose for
//! a state seen earlier, says much about what they choose next. This crate turns that into
//! probabilities. It knows no weights on disk and no memory budget: whoever streams decides what a
//! forecast is worth.

mod blueprint;
pub mod history;
mod trace;

pub use blueprint::{Draft, Gates, LayerBlueprint, NoDraft, ReassemblyBlueprint, Recorded};
pub use trace::{Trace, TraceError};
