//! Allocator that counts the heap of the program.

use std::alloc::System;

use cap::Cap;
use sws_store::Granted;

use crate::limits::no_memory;

#[global_allocator]
static HEAP: Cap<Granted<System>> = Cap::new(Granted::new(System, no_memory), usize::MAX);

/// Bytes on the heap.
pub(crate) fn heap() -> u64 {
    HEAP.allocated() as u64
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
