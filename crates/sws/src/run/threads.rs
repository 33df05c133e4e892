//! Compute threads.

use std::fmt;
use std::sync::Arc;

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::{Error, Result};

/// Limit of threads, unless the caller sets the number.
const MAX: usize = 1024;

/// A pool of threads on which passes run, whichever thread calls. Clones share the pool, and so can
/// models.
///
/// A matrix product called from another thread costs one wake-up in the pool and one back. A pass
/// that runs on the pool as a whole pays for them once.
#[derive(Clone)]
pub struct Threads(Arc<ThreadPool>);

impl Threads {
    /// Starts `count` threads, regardless of the environment.
    pub fn start(count: usize) -> Result<Threads> {
        let pool = ThreadPoolBuilder::new()
            .num_threads(count.max(1))
            .thread_name(|number| format!("sws-pass-{number}"))
            .build();
        let pool = pool.map_err(|cause| Error::Threads { count, cause })?;
        // Every thread allocates its initial memory now, before anything else can take it.
        pool.broadcast(|_| ());
        Ok(Threads(Arc::new(pool)))
    }

    /// Starts one thread per core.
    pub fn one_per_core() -> Result<Threads> {
        Threads::start(std::thread::available_parallelism().map_or(1, usize::from).min(MAX))
    }

    /// Number of threads.
    pub fn count(&self) -> usize {
        self.0.current_num_threads()
    }

    /// Runs `work` on the pool and waits for it.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.0.install(work)
    }
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Threads").field(&self.count()).finish()
    }
}
