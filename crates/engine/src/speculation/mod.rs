//! Speculation: forecasts, the prefetches that follow from them, and the account of their gains.

mod account;
mod counterfactual;
mod forecaster;
mod governor;
mod prefetcher;
mod price;
pub(crate) mod warm_fill;
mod warm_start;

pub(crate) use account::{Account, ChosenExperts};
pub(crate) use forecaster::Forecaster;
pub use governor::Speculation;
pub(crate) use governor::nanos;
pub(crate) use prefetcher::{ExpectedPiece, Prefetch, PrefetchOutcome, Prefetcher};
pub(crate) use price::LIKELY_VICTIM_STEPS;
pub(crate) use warm_fill::WarmFill;
pub(crate) use warm_start::WarmStart;
pub use warm_start::earlier_routes;
