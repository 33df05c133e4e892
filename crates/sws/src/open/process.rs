//! Memory of the process apart from weights, measured once everything else is loaded.

use sws_engine::{ProcessMemory, RamBudget};
use sws_store::SystemMemory;

use crate::Model;

/// Calls `make` and returns the bytes that it left on the heap; 0 if the heap is not counted.
pub(crate) fn counted<T>(model: &Model, make: impl FnOnce() -> T) -> (T, u64) {
    let before = model.heap().unwrap_or(0);
    let made = make();
    (made, model.heap().unwrap_or(0).saturating_sub(before))
}

/// Measures the process. Everything but weights must have been read, and the compute threads
/// started. `tokenizer` is the size of the tokenizer on the heap.
pub(crate) fn measure(model: &Model, tokenizer: u64) -> ProcessMemory {
    let whole = ProcessMemory::measure(model.dir(), model.manifest());
    let mut process = match model.heap() {
        None => whole,
        Some(used) => ProcessMemory {
            heap: used.saturating_sub(tokenizer),
            tokenizer: tokenizer.min(used),
            slack: whole.heap.saturating_sub(used),
            ..whole
        },
    };
    let files = model.manifest().files.len() as u64;
    for _ in model.mirrors() {
        process = process.with_drive(files);
    }
    process
}

/// Bytes left in a budget for encoding a text before the model is loaded.
pub(crate) fn left(model: &Model, tokenizer: u64, budget: RamBudget) -> u64 {
    let Some(SystemMemory { total, available, .. }) = SystemMemory::now() else { return u64::MAX };
    match budget {
        // `Min` then resolves to no less than the memory used so far.
        RamBudget::Auto | RamBudget::Min => available,
        budget => {
            let taken: u64 = measure(model, tokenizer).lines().iter().map(|(_, bytes)| bytes).sum();
            budget.resolve(total, available, 0).saturating_sub(taken).min(available)
        }
    }
}
