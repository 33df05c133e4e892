//! The forward pass.

mod allocations;
mod bad;
mod batches;
mod bits;
mod configs;
mod damaged;
mod executor;
mod failures;
mod gguf;
mod gguf_blocks;
mod gguf_files;
mod gguf_near;
mod goldens;
mod in_memory;
mod long;
mod options;
mod order;
mod outline;
mod packed;
mod probe;
mod quantised;
mod rewind;
mod sequences;
mod size;
mod support;
mod unused;
