//! Limits of the process: those that are set for it are told before they are hit, or where they are.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{anyhow, bail};
use signal_hook::consts::SIGXFSZ;
use sws_store::Limits;

use crate::{REFUSED, unfinished};

/// The least stack with which the first thread works, with much to spare.
const STACK: u64 = 1 << 20;
/// The most threads that compute, as `--threads` has it.
const MOST_THREADS: usize = 1024;

/// Threads that a command computes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Threads {
    /// None besides those that it starts itself.
    None,
    /// One a core.
    Cores,
    /// As was typed.
    Count(u16),
}

/// Checks the limits and starts the threads that compute.
///
/// Their number is always said: where it is not, the environment says it, and without a bound.
pub(crate) fn prepare(threads: Threads) -> anyhow::Result<()> {
    if let Some(stack) = Limits::now().stack.filter(|&stack| stack < STACK) {
        bail!(
            "the stack may have {} KiB and {} are needed; raise the limit (`ulimit -s`)",
            stack >> 10,
            STACK >> 10,
        );
    }
    // A file that outgrows its limit is then an error of the write, which names the file.
    let outgrown = signal_hook::flag::register(SIGXFSZ, Arc::default());
    outgrown
        .map_err(|e| anyhow!("signals cannot be received: {e}; start the program otherwise"))?;
    let threads = match threads {
        Threads::None => return Ok(()),
        Threads::Cores => {
            std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS)
        }
        Threads::Count(threads) => threads.into(),
    };
    let started = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
    started.map_err(|e| {
        anyhow!(
            "{threads} threads cannot be started: {e}; ask for fewer with --threads, or raise the limit of threads (`ulimit -u`) or of address space (`ulimit -v`)"
        )
    })
}

/// Ends the program where the system grants no memory: without allocating, and so that the exit code
/// and the sentence are those of any other refusal.
pub(crate) fn no_memory(bytes: usize) -> ! {
    static TOLD: AtomicBool = AtomicBool::new(false);
    while TOLD.swap(true, Ordering::SeqCst) {
        // Another thread is about to end the program.
        std::thread::yield_now();
    }
    let mut err = std::io::stderr();
    let _ = match Limits::now().address_space {
        Some(limit) => writeln!(
            err,
            "sws: the system grants no {bytes} more bytes of memory: address space is limited to {} KiB; raise the limit (`ulimit -v`)",
            limit >> 10,
        ),
        None => writeln!(
            err,
            "sws: the system grants no {bytes} more bytes of memory; close other programs, or lower --ram"
        ),
    };
    unfinished::remove_all();
    signal_hook::low_level::exit(REFUSED.into())
}
