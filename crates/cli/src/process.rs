//! The heap of the program, counted.

use std::alloc::System;

use cap::Cap;
use sws_store::Granted;

use crate::limits::no_memory;

/// Everything on the heap is counted here.
#[global_allocator]
static HEAP: Cap<Granted<System>> = Cap::new(Granted::new(System, no_memory), usize::MAX);

/// What is on the heap.
pub(crate) fn heap() -> u64 {
    HEAP.allocated() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_the_heap_is_counted() {
        let before = heap();
        let bytes = vec![1u8; 3 << 20];
        let counted = heap().saturating_sub(before);
        // Other tests allocate meanwhile.
        assert!(counted >= 2 << 20, "{counted}");
        assert!(heap() >= bytes.len() as u64);
    }
}
