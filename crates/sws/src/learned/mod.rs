//! Drafts, which forecast experts, and corrections of evictions: learned from recordings of runs, for later
//! runs.

pub mod draft;
pub mod eviction;
mod uses;
