//! Reads of experts: issued to the store, in flight, verified as they land.

mod in_flight;
mod last_expert;
mod layouts;
mod loaded;

pub(crate) use in_flight::{Arrival, GivenUp, Load, ReadOrigin, ReadsInFlight};
pub(crate) use last_expert::Computed;
pub use loaded::LoadedSlot;
pub(crate) use loaded::no_vector;
