//! What a model will need next.
//!
//! Routers choose experts one layer at a time; what they chose before, and what they would choose for
//! a state seen earlier, says much about what they choose next. This crate turns that into
//! probabilities. It knows no weights on disk and no memory budget: whoever streams decides what a
//! forecast is worth.

mod blueprint;
mod micro;
mod score;

pub use blueprint::{Draft, Gates, LayerBlueprint, NoDraft, ReassemblyBlueprint, Recorded};
pub use micro::{
    Adapting, DEPTH, DraftError, DraftShape, DraftSize, Learned, MAX_RANK, MicroDraftModel, margin,
    norm,
};
pub use score::{Forecaster, Outcome, Score};
