//! What the process takes beside the weights: measured, once everything else is there.

use std::alloc::System;

use cap::Cap;
use sws_engine::{Budget, Process};
use sws_store::{Granted, Memory};

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

/// What is left of a budget to encode a text before the model is loaded.
pub(crate) fn left(model: &Model, tokenizer: u64, budget: Budget) -> u64 {
    let Some(Memory { total, available, .. }) = Memory::now() else { return u64::MAX };
    match budget {
        // The least with which the model runs is no less than what there has been.
        Budget::Auto | Budget::Min => available,
        budget => {
            let taken: u64 = measure(model, tokenizer).lines().iter().map(|(_, bytes)| bytes).sum();
            budget.resolve(total, available, 0).saturating_sub(taken).min(available)
        }
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
