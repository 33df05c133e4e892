//! The forward pass.

mod allocations;
mod bad;
mod bits;
mod engine;
mod executor;
mod failures;
mod goldens;
mod order;
mod rewind;
mod sequences;
mod size;
mod support;
