//! The threads that compute.

use std::fmt;
use std::sync::Arc;

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::{Error, Result};

/// The most threads that are started where nobody says how many.
const MOST: usize = 1024;

/// A pool of threads on which passes run, whichever thread asks for them. Clones share it, and so can
/// models.
///
/// A product that is computed on another thread is handed over by itself, with a wake-up there and one
/// back; a pass that runs on the pool from its first layer to its last is handed over once.
#[derive(Clone)]
pub struct Threads(Arc<ThreadPool>);

impl Threads {
    /// So many threads, whatever the environment says.
    pub fn start(count: usize) -> Result<Threads> {
        let pool = ThreadPoolBuilder::new()
            .num_threads(count.max(1))
            .thread_name(|number| format!("sws-pass-{number}"))
            .build();
        Ok(Threads(Arc::new(pool.map_err(|cause| Error::Threads { count, cause })?)))
    }

    /// One thread a core.
    pub fn one_per_core() -> Result<Threads> {
        Threads::start(std::thread::available_parallelism().map_or(1, usize::from).min(MOST))
    }

    /// The number of threads.
    pub fn count(&self) -> usize {
        self.0.current_num_threads()
    }

    /// Does something on the pool and waits for it.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.0.install(work)
    }
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Threads").field(&self.count()).finish()
    }
}
