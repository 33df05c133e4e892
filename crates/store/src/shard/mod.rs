//! From a checkpoint to shards and back, and whether shards are still what was written.
//!
//! [`shard`] writes one file a piece; it can be killed at any moment and called again with the same
//! arguments, and what comes out has the same bytes. [`verify`] reads everything and compares it
//! with the manifest. [`unshard`] gives the checkpoint's tensors back.
//!
//! All three read and write past the page cache and in blocks of rows, so that neither the size of
//! a model nor that of a tensor shows in memory.

mod copies;
mod direct;
mod encode;
mod error;
mod journal;
mod layout;
mod narrow;
mod outdir;
mod parts;
mod plan;
mod spectral;
mod unshard;
mod verify;
mod write;

use std::io::Read;
use std::path::Path;

use sws_kernels::Encoding;

use crate::regular::open_regular;

pub use error::ShardError;
pub use unshard::{Unsharded, unshard};
pub use verify::{Damage, Verified, verify};
pub use write::{Sharded, shard};

/// Pieces being read or written at a time: while one is encoded, another is read and a third is
/// written. More gain nothing on one device, and each has a window of memory.
const WORKERS: usize = 3;

/// What kind of shards to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardOptions {
    /// For the matrices of experts, attention, dense layers, embedding and head. What is already
    /// in `fp8` or `mxfp4`, and with `bf12` what is not in bf16, stays as it is.
    pub encoding: Encoding,
    /// `q8` or `q4` copies of the experts too.
    pub stand_ins: Option<Encoding>,
    /// Threads that encode; none for one a core.
    pub threads: Option<usize>,
}

impl Default for ShardOptions {
    fn default() -> Self {
        ShardOptions { encoding: Encoding::Bf12, stand_ins: None, threads: None }
    }
}

/// How far long work has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of input done, those of an earlier, interrupted run included.
    pub done: u64,
    /// Bytes of input in all.
    pub total: u64,
}

/// The threads that compute. Their number is always said, or the environment would say it.
fn pool(threads: Option<usize>) -> Result<rayon::ThreadPool, ShardError> {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads.unwrap_or_else(cores))
        .build()
        .map_err(|e| ShardError::Threads { reason: e.to_string() })
}

/// Starts a thread that lives as long as `scope`.
fn start<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    work: impl FnOnce() + Send + 'scope,
) -> Result<(), ShardError> {
    let started = std::thread::Builder::new().spawn_scoped(scope, work);
    started.map(drop).map_err(|e| ShardError::Threads { reason: e.to_string() })
}

/// Whether a file begins with these bytes.
fn begins_with(path: &Path, expected: &[u8]) -> bool {
    let mut found = vec![0; expected.len()];
    let read = open_regular(path).and_then(|mut file| file.read_exact(&mut found));
    read.is_ok() && found == expected
}
