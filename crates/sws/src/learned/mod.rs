//! Learned from recordings of runs, for later runs: drafts, which forecast experts, and corrections
//! of the eviction policy.

pub mod draft;
pub mod eviction;
mod uses;
