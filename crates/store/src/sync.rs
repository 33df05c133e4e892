//! Locks and threads of a store.
//!
//! In the tests inside of this crate they are a model checker's, which decides who goes on: there a store
//! can be opened under the checker only (`store/handover.rs`). All other tests have the real ones.

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
