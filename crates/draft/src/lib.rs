//! Forecasts of the experts that a model will need next.
//!
//! Routers choose experts one layer at a time. Their earlier choices, and the choices they would
//! make on the state of an earlier layer, are good predictors of the next ones. This crate turns
//! them into probabilities. It knows neither weights on disk nor memory budgets: the caller that
//! streams weights decides whether to act on a forecast.
//!
//! ```
//! use sws_draft::{LayerBlueprint, ReassemblyBlueprint};
//! use sws_format::PieceId;
//!
//! let expert_probs = vec![0.1, 0.9, 0.4];
//! let layer = LayerBlueprint { layer_idx: 3, expert_probs, selected_experts: vec![1, 2] };
//! let forecast = ReassemblyBlueprint::new(&[layer], 0.5);
//! assert_eq!(forecast.high_priority_pieces, [PieceId::expert(3, 1)]);
//! assert_eq!(forecast.low_priority_pieces, [PieceId::expert(3, 2)]);
//! assert_eq!(forecast.probability(PieceId::expert(3, 0)), 0.1);
//! ```

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
