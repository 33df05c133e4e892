//! Benchmarks, and the checkpoints they need.
//!
//! [`random::write_random`] makes checkpoints of random weights in the [`shapes`] of real models;
//! [`inflate::inflate`] enlarges a small trained checkpoint without changing its function, so that
//! trained routing can be measured with experts of real size. Both write through
//! [`checkpoint::Output`], which streams, and gives a checkpoint its final name only when it is
//! complete. `sws-bench` is the command-line program.

pub mod bits;
pub mod checkpoint;
pub mod clients;
pub mod fio;
pub mod gaussian;
pub mod inflate;
pub mod kernels;
pub mod large;
pub mod measured;
pub mod mixers;
pub mod models;
pub mod paired;
pub mod plans;
pub mod progress;
pub mod published;
pub mod random;
pub mod released;
pub mod replicas;
pub mod report;
pub mod resident;
pub mod shapes;
pub mod sharding;
pub mod size;
pub mod speculation;
pub mod store_bench;
pub mod stream;
pub mod timeline;
pub mod touch;
pub mod versions;
