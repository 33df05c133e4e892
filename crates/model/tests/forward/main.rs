//! The forward pass.

mod allocations;
mod bad;
mod bits;
mod engine;
mod executor;
mod failures;
mod goldens;
mod in_memory;
mod order;
mod rewind;
mod sequences;
mod size;
mod support;
