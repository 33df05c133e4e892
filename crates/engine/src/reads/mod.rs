//! Reads of experts: issued to the store, in flight, verified as they land.

mod in_flight;
mod last_expert;
mod layouts;
mod loaded;

pub(crate) use in_flight::{Arrival, GivenUp, Load, ReadOrigin, ReadsInFlight};
pub(crate) use last_expert::Computed;
pub use loaded::LoadedSlot;
pub(crate) use loaded::{held_tensor, no_vector};

use sws_format::{PieceId, PieceKind};

/// The pieces of these experts of a layer.
pub(crate) fn expert_ids(
    layer: u32,
    experts: impl IntoIterator<Item = u32>,
) -> impl Iterator<Item = PieceId> {
    experts.into_iter().map(move |expert| PieceId::expert(layer, expert))
}

/// True if a piece is one of these experts of a layer.
pub(crate) fn is_expert_of(id: PieceId, layer: u32, experts: &[u32]) -> bool {
    id.layer() == Some(layer)
        && matches!(id.kind(), PieceKind::Expert(expert) if experts.contains(&expert))
}
