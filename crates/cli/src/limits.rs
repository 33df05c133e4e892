//! Limits of the process: those that are set for it are told before they are hit, or where they are.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{anyhow, bail};
use signal_hook::consts::SIGXFSZ;
use sws::Threads;
use sws_store::Limits;

use crate::{REFUSED, unfinished};

/// The least stack with which the first thread works, with much to spare.
const STACK: u64 = 1 << 20;
/// Checks the limits.
pub(crate) fn prepare() -> anyhow::Result<()> {
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
    Ok(())
}

/// Starts the threads that compute: as many as were typed, or one a core.
pub(crate) fn threads(typed: Option<u16>) -> anyhow::Result<Threads> {
    Ok(typed.map_or_else(Threads::one_per_core, |count| Threads::start(count.into()))?)
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
