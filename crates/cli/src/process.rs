//! The heap of the program: it is counted, and limited while a model is read.

use std::alloc::System;
use std::sync::atomic::{AtomicU64, Ordering};

use cap::Cap;
use sws::{RamBudget, ReadingRoom};
use sws_store::Granted;

use crate::limits::no_memory;

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
