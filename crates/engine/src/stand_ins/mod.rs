//! Stand-ins: inexact copies of experts in memory, and the passes that run ahead on them.

mod copies;
mod run_ahead;

pub use copies::{ErrorBound, StandInUse, StandIns};
pub use run_ahead::RunAheadCounts;
pub(crate) use run_ahead::{RunAheadState, Wait};
