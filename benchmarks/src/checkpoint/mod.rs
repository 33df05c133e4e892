//! Hugging Face checkpoints, read and written as streams.

mod direct;
mod read;
mod write;

pub use read::{Source, SourceTensor};
pub use write::{Output, PlannedTensor};
