//! State shared by all listeners of `/events`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sws_watch::live::Log;

/// State shared by all listeners.
#[derive(Debug, Default)]
pub(crate) struct Events {
    pub(crate) count: AtomicUsize,
    log: Mutex<Log>,
}

impl Events {
    /// True if there are listeners.
    pub(crate) fn is_heard(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// The latest passes and tokens.
    pub(crate) fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
