//! The heap of the program: it is counted, and limited while a model is read.

use std::alloc::System;
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cap::Cap;
use sws::{RamBudget, ReadingRoom};
use sws_os::limits::ProcessLimits;
use sws_os::process::exit_now;
use sws_store::Granted;

use crate::atomic_file;
use crate::exit::REFUSED;

#[global_allocator]
static HEAP: Granted<Cap<System>> = Granted::new(Cap::new(System, usize::MAX), no_memory);

/// The budget to which the heap is limited at the moment; 0 without a limit.
static BUDGET: AtomicU64 = AtomicU64::new(0);

/// Bytes on the heap.
pub(crate) fn heap() -> u64 {
    HEAP.inner().allocated() as u64
}

/// Limits the heap to what `ram` leaves for reading a model's files, until [`lift`] is called.
///
/// A plan bounds what a model takes, but it is made of files whose sizes strangers chose. An
/// allocation beyond the limit ends the program with a sentence.
pub(crate) fn limit(ram: RamBudget) {
    let Some(ReadingRoom { budget, left }) = ReadingRoom::of(ram) else { return };
    let limit = heap().saturating_add(left);
    BUDGET.store(budget.max(1), Ordering::SeqCst);
    // Fails only where another thread has taken that much in the meantime.
    let _ = HEAP.inner().set_limit(usize::try_from(limit).unwrap_or(usize::MAX));
}

/// Ends the limit.
pub(crate) fn lift() {
    let _ = HEAP.inner().set_limit(usize::MAX);
    BUDGET.store(0, Ordering::SeqCst);
}

/// The budget whose limit refuses so many more bytes. `None` if it is the system that does.
pub(crate) fn refusing(bytes: usize) -> Option<u64> {
    let budget = BUDGET.load(Ordering::SeqCst);
    (budget > 0 && HEAP.inner().remaining() < bytes).then_some(budget)
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
fn no_memory(bytes: usize) -> ! {
    // Before anything is given back.
    let refusing = refusing(bytes);
    if let Ok(mut reserve) = RESERVE.try_lock() {
        reserve.clear();
    }
    static REPORTED: AtomicBool = AtomicBool::new(false);
    while REPORTED.swap(true, Ordering::SeqCst) {
        // Another thread is about to end the program.
        std::thread::yield_now();
    }
    lift();
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
    exit_now(REFUSED.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heap_allocations_are_counted() {
        let before = heap();
        let bytes = vec![1u8; 3 << 20];
        let counted = heap().saturating_sub(before);
        // Other tests allocate and free at the same time.
        assert!(counted >= 2 << 20, "{counted}");
        assert!(heap() >= bytes.len() as u64);
    }
}
