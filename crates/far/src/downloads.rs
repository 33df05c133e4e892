//! The threads that download a model's cells.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use sws_store::Arena;
use tracing::info;

use crate::fetch::{BUFFER, FetchShared};

/// Number of requests at a time. Storage serves each of them with only a part of the network's
/// throughput.
const THREADS: usize = 8;
const STACK: usize = 512 << 10;
/// Bytes of its stack that a thread uses.
const TOUCHED: u64 = 64 << 10;
/// Heap bytes of a connection: its buffers, and the records of its encryption.
const CONNECTION: u64 = 448 << 10;

/// Counters of a model in object storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FarCounts {
    /// Bytes of answers so far.
    pub received: u64,
    /// Bytes of shards in the cache.
    pub here: u64,
    /// Bytes of all shards in the storage, without headers.
    pub whole: u64,
}

/// The downloads of a model, which end when this is dropped.
#[derive(Debug)]
pub(crate) struct Downloads {
    shared: Arc<FetchShared>,
    /// True once the download threads are running.
    works: Mutex<bool>,
}

impl Downloads {
    /// Downloads that have not begun.
    pub(crate) fn new(shared: Arc<FetchShared>) -> Downloads {
        Downloads { shared, works: Mutex::new(false) }
    }

    /// Starts the threads that download, unless they are running.
    pub(crate) fn start(&self) -> io::Result<()> {
        let mut works = self.works.lock().unwrap_or_else(PoisonError::into_inner);
        if *works {
            return Ok(());
        }
        // A thread allocates some memory before it runs, and panics on failure.
        drop(Arena::new(THREADS * 2 * STACK)?);
        for number in 0..THREADS {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name(format!("sws-far-{number}"));
            thread.stack_size(STACK).spawn(move || shared.work())?;
        }
        *works = true;
        Ok(())
    }

    /// Current counters.
    pub(crate) fn counts(&self) -> FarCounts {
        let FetchShared { origin, place, .. } = &*self.shared;
        let here = place.record.ledger().map_or(0, |ledger| ledger.bytes());
        let whole = (0..place.cells.len()).map(|cell| place.span(cell).len()).sum();
        FarCounts { received: origin.received(), here, whole }
    }

    /// Heap bytes of all download threads.
    pub(crate) fn heap() -> u64 {
        THREADS as u64 * (BUFFER as u64 + CONNECTION + TOUCHED)
    }
}

impl Drop for Downloads {
    fn drop(&mut self) {
        self.shared.queue.close();
        let FarCounts { received, here, whole } = self.counts();
        info!("{received} bytes came from the storage, {here} of {whole} are here");
    }
}
