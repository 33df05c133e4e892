//! Benches, and the checkpoints they need.
//!
//! [`random::write_random`] makes checkpoints of random weights in the [`shapes`] of real models;
//! [`inflate::inflate`] makes a small trained checkpoint large without changing what it computes,
//! so that a trained router's routing can be measured with experts of real size. Both write
//! through [`checkpoint::Output`], which streams and lets nothing half-written appear under its
//! final name. `sws-bench` is the command in front of them.

pub mod checkpoint;
pub mod fio;
pub mod gaussian;
pub mod inflate;
pub mod kernels;
pub mod large;
pub mod paired;
pub mod progress;
pub mod random;
pub mod resident;
pub mod shapes;
pub mod sharding;
pub mod size;
pub mod speculation;
pub mod store_bench;
pub mod stream;
pub mod versions;
