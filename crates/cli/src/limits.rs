//! Resource limits of the process, reported before they are exceeded, or where they are.

use std::hint::black_box;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::available_parallelism;

use anyhow::{anyhow, bail};
use signal_hook::consts::SIGXFSZ;
use sws::Threads;
use sws_format::ProcessLimits;

use crate::{REFUSED, atomic_file, process};

/// Minimum stack size for the main thread, with a large margin.
const STACK: u64 = 1 << 20;

/// Address space for the stack of another thread, and for the beginnings of all.
const THREAD_STACK: usize = 2 << 20;
const BEGINNING: usize = 1 << 20;

/// Checks the stack limit. Needs little of the stack itself, of which the environment has a part.
pub(crate) fn stack() -> anyhow::Result<()> {
    if let Some(stack) = ProcessLimits::now().stack.filter(|&stack| stack < STACK) {
        bail!(
            "the stack is limited to {} KiB and {} KiB are needed; raise the limit (`ulimit -s`)",
            stack >> 10,
            STACK >> 10,
        );
    }
    Ok(())
}

/// Makes an exceeded file size limit an error of the write.
pub(crate) fn file_size() -> anyhow::Result<()> {
    // Without this, SIGXFSZ ends the program; the error of the write names the file.
    let outgrown = signal_hook::flag::register(SIGXFSZ, Arc::default());
    outgrown.map_err(|e| {
        anyhow!("signals cannot be received: {e}; start the program in another way")
    })?;
    Ok(())
}

/// Starts the compute threads: as many as requested, or one per core.
pub(crate) fn threads(typed: Option<u16>) -> anyhow::Result<Threads> {
    // A thread whose stack fits and which then finds no memory for its beginning ends the program.
    if ProcessLimits::now().address_space.is_some() {
        let count = typed.map(usize::from).or_else(|| Some(available_parallelism().ok()?.into()));
        drop(black_box(Vec::<u8>::with_capacity(BEGINNING + count.unwrap_or(1) * THREAD_STACK)));
    }
    Ok(typed.map_or_else(Threads::one_per_core, |count| Threads::start(count.into()))?)
}

/// Memory that is given back when an allocation fails: until the program ends other threads need a
/// little, without which the C library aborts.
static RESERVE: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());
/// Its chunks are small enough to be of the heap, which has them again at once.
const CHUNKS: usize = 8;
const CHUNK: usize = 32 << 10;

/// Takes memory for the end of the program.
pub(crate) fn reserve() {
    if let Ok(mut reserve) = RESERVE.lock() {
        reserve.extend((0..CHUNKS).map(|_| Vec::with_capacity(CHUNK)));
    }
}

/// Ends the program when an allocation fails. Allocates nothing, and reports the failure like any
/// other refusal.
pub(crate) fn no_memory(bytes: usize) -> ! {
    // Before anything is given back.
    let refusing = process::refusing(bytes);
    if let Ok(mut reserve) = RESERVE.try_lock() {
        reserve.clear();
    }
    static REPORTED: AtomicBool = AtomicBool::new(false);
    while REPORTED.swap(true, Ordering::SeqCst) {
        // Another thread is about to end the program.
        std::thread::yield_now();
    }
    process::lift();
    let mut err = std::io::stderr();
    let _ = match (refusing, ProcessLimits::now().address_space) {
        (Some(budget), _) => writeln!(
            err,
            "sws: reading the files of this model takes more than the {} MiB of --ram; raise --ram, or check where the model comes from",
            budget >> 20,
        ),
        (None, Some(limit)) => writeln!(
            err,
            "sws: the system grants no {bytes} more bytes of memory: address space is limited to {} KiB; raise the limit (`ulimit -v`)",
            limit >> 10,
        ),
        (None, None) => writeln!(
            err,
            "sws: the system grants no {bytes} more bytes of memory; close other programs, or lower --ram"
        ),
    };
    atomic_file::remove_all();
    signal_hook::low_level::exit(REFUSED.into())
}
