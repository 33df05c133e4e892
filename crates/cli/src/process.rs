//! What the process takes beside the weights: measured, once everything else is there.

use std::alloc::System;

use cap::Cap;
use sws_engine::Process;
use sws_store::Granted;

use crate::limits::no_memory;
use crate::model::Model;

/// Everything on the heap is counted here.
#[global_allocator]
static HEAP: Cap<Granted<System>> = Cap::new(Granted::new(System, no_memory), usize::MAX);

/// What is on the heap.
pub(crate) fn heap() -> u64 {
    HEAP.allocated() as u64
}

/// Does something and counts what it leaves on the heap.
pub(crate) fn counted<T>(make: impl FnOnce() -> T) -> (T, u64) {
    let before = heap();
    let made = make();
    (made, heap().saturating_sub(before))
}

/// Measures the process, which must have read everything but weights and have started its threads
/// that compute. `tokenizer` is the part of the heap that the tokenizer takes.
pub(crate) fn measure(model: &Model, tokenizer: u64) -> Process {
    let whole = Process::measure(&model.dir, &model.manifest);
    let used = heap();
    Process {
        heap: used.saturating_sub(tokenizer),
        tokenizer: tokenizer.min(used),
        slack: whole.heap.saturating_sub(used),
        ..whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_the_heap_is_counted() {
        let (bytes, counted) = counted(|| vec![1u8; 3 << 20]);
        // Other tests allocate meanwhile.
        assert!(counted >= 2 << 20, "{counted}");
        assert!(heap() >= bytes.len() as u64);
    }
}
