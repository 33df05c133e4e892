//! The memory budget: its size, the process's own use, and the plan that divides the rest.

mod ledger;
mod plan;
mod process;
mod ram;

pub use ledger::{Ledger, MemoryUse, ProcessMemory};
pub use plan::{
    DEFAULT_CONTEXT, HitBasis, HitCurve, KV_SHARE, LONG_KV_SHARE, PerToken, Plan, PlanError,
    PlanOptions, Planner, PromptReads, SlotClass, TierHits, TokenCosts, routes_of,
};
pub(crate) use plan::{HUGE_PAGE, mapped, page};
pub use process::leave_out_of_plans;
pub use ram::{RamBudget, UnknownBudget};
