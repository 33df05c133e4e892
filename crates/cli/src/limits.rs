//! Resource limits of the process, reported before they are exceeded, or where they are.

use std::hint::black_box;
use std::thread::available_parallelism;

use anyhow::bail;
use sws::Threads;
use sws_os::limits::{ProcessLimits, refuse_large_writes};

/// Minimum stack size for the main thread, with a large margin.
const STACK: u64 = 1 << 20;

/// Address space for the stack of another thread, and for the beginnings of all.
const THREAD_STACK: usize = 2 << 20;
const BEGINNING: usize = 1 << 20;

/// Checks the stack limit. Needs little of the stack itself, of which the environment has a part.
pub(crate) fn stack() -> anyhow::Result<()> {
    if let Some(stack) = ProcessLimits::now().stack
        && stack < STACK
    {
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
    if let Err(e) = refuse_large_writes() {
        bail!("signals cannot be received: {e}; start the program in another way");
    }
    Ok(())
}

/// Starts the compute threads: as many as requested, or one per core.
pub(crate) fn threads(typed: Option<u16>) -> anyhow::Result<Threads> {
    // A thread whose stack fits and which then finds no memory for its beginning ends the program.
    if ProcessLimits::now().address_space.is_some() {
        let count = match typed {
            Some(count) => usize::from(count),
            None => available_parallelism().map_or(1, usize::from),
        };
        drop(black_box(Vec::<u8>::with_capacity(BEGINNING + count * THREAD_STACK)));
    }
    Ok(match typed {
        Some(count) => Threads::start(count.into())?,
        None => Threads::one_per_core()?,
    })
}
