//! The memory budget: how much there is, who uses it, and the plan that divides it.

mod ledger;
mod plan;
mod process;
mod ram;

pub use ledger::{Ledger, Process, Use};
pub use plan::{PerToken, Plan, PlanError, PlanOptions, Planner, SlotClass};
pub(crate) use process::status;
pub use ram::{Budget, UnknownBudget};
