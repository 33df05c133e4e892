//! Locks and threads of a store.
//!
//! In the unit tests of this crate they are those of a model checker, which controls the schedule.
//! A store can be opened there only under the checker (`store/handover.rs`). All other tests use
//! the real ones.

#[cfg(not(test))]
pub(crate) use std::{
    sync::{Condvar, Mutex, MutexGuard},
    thread,
};

#[cfg(test)]
pub(crate) use shuttle::{
    sync::{Condvar, Mutex, MutexGuard},
    thread,
};
