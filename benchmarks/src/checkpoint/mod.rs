//! Streaming readers and writers of Hugging Face checkpoints.

mod direct;
mod read;
mod write;

pub use read::{Source, SourceTensor};
pub use write::{Output, PlannedTensor};
