//! Memory of the process beside the weights: measured, once everything else is there.

use sws_engine::{Budget, Process};
use sws_store::Memory;

use crate::Model;

/// Does something and counts what it leaves on the heap; 0 where the heap is not counted.
pub(crate) fn counted<T>(model: &Model, make: impl FnOnce() -> T) -> (T, u64) {
    let before = model.heap().unwrap_or(0);
    let made = make();
    (made, model.heap().unwrap_or(0).saturating_sub(before))
}

/// Measures the process, which must have read everything but weights and have started its threads
/// that compute. `tokenizer` is the part of the heap that the tokenizer takes.
pub(crate) fn measure(model: &Model, tokenizer: u64) -> Process {
    let whole = Process::measure(model.dir(), model.manifest());
    let Some(used) = model.heap() else { return whole };
    Process {
        heap: used.saturating_sub(tokenizer),
        tokenizer: tokenizer.min(used),
        slack: whole.heap.saturating_sub(used),
        ..whole
    }
}

/// Bytes that are left of a budget to encode a text before the model is loaded.
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
