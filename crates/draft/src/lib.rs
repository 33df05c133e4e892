//! Forecasts of the experts that a model will need next.
//!
//! Routers choose experts one layer at a time. Their earlier choices, and the choices they would
//! make on the state of an earlier layer, are good predictors of the next ones. This crate turns
//! them into probabilities. It knows neither weights on disk nor memory budgets: the caller that
//! streams weights decides whether to act on a forecast.

mod blueprint;
mod micro;
mod score;
mod training;

pub use blueprint::{Draft, Gates, LayerBlueprint, NoDraft, ReassemblyBlueprint};
pub use micro::{
    Adapting, DEPTH, DraftError, DraftShape, DraftSize, Learned, MAX_RANK, MicroDraftModel, margin,
    norm,
};
pub use score::{ForecastOutcome, ForecastSource, Score};
pub use training::{Samples, Trained, Training};
