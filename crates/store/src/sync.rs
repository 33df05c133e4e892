//! Locks and threads of a store.
//!
//! In the unit tests of this crate they are those of a model checker, which controls the schedule.
//! In these tests a store works only under the checker (`store/handover.rs`). All other tests use
//! real locks and threads.

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
