//! Conversion of checkpoints to shards and back, and verification of shards.
//!
//! [`shard()`] writes one file per piece. It can be killed at any moment and called again with the
//! same arguments: existing shards are verified, and the output has the same bytes. [`verify()`] reads everything and
//! compares it with the manifest. [`unshard()`] restores the checkpoint's tensors. [`mirror()`] copies
//! shards to another drive.
//!
//! All of them bypass the page cache and work in blocks of rows, so memory use depends neither on the
//! size of the model nor on that of a tensor.
//!
//! ```no_run
//! use std::path::Path;
//! use sws_shard::verify;
//!
//! let verified = verify(Path::new("shards/tales-moe"), &|progress| {
//!     assert!(progress.done <= progress.total);
//! })?;
//! assert!(verified.damage.is_empty());
//! # Ok::<(), sws_shard::ShardError>(())
//! ```

mod copies;
mod direct;
mod encode;
mod error;
mod journal;
mod kept;
mod layout;
mod mirror;
mod narrow;
mod outdir;
mod packed;
mod parts;
mod plan;
mod spectral;
mod transpose;
mod unshard;
mod verify;
mod write;

use std::fmt::Display;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use sws_format::{Progress, open_regular};
use sws_kernels::Encoding;

pub use error::ShardError;
pub use mirror::{MirrorOptions, Mirrored, mirror};
pub use unshard::{Unsharded, unshard};
pub use verify::{Damage, Verified, VerifyOptions, verify, verify_files};
pub use write::{Sharded, encoding_in, resume, shard};

/// Number of pieces in progress: while one is encoded, another is read and a third is written. More
/// gain nothing on one device, and each needs a window of memory.
const WORKERS: usize = 3;

/// Options of [`shard`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardOptions {
    /// Encoding of the matrices of experts, attention, dense layers, embedding and head. Matrices
    /// that are quantised in the checkpoint are stored unchanged, or
    /// [packed](sws_format::quantised_as). With `bf12`, matrices that are not in bf16 are stored
    /// unchanged, too.
    pub encoding: Encoding,
    /// Encoding of additional `q8` or `q4` copies of the experts.
    pub stand_ins: Option<Encoding>,
    /// Encoding threads; `None` for one per core.
    pub threads: Option<usize>,
}

impl Default for ShardOptions {
    fn default() -> Self {
        ShardOptions { encoding: Encoding::Bf12, stand_ins: None, threads: None }
    }
}

/// Builds the pool of compute threads. The number is always explicit, as rayon would otherwise take
/// it from the environment.
fn pool(threads: Option<usize>) -> Result<rayon::ThreadPool, ShardError> {
    let threads = match threads {
        Some(threads) => threads,
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().map_err(no_threads)
}

/// Starts a thread in `scope`.
fn start<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    work: impl FnOnce() + Send + 'scope,
) -> Result<(), ShardError> {
    let started = std::thread::Builder::new().spawn_scoped(scope, work);
    started.map(drop).map_err(no_threads)
}

fn no_threads(cause: impl Display) -> ShardError {
    ShardError::Threads { reason: cause.to_string() }
}

/// Returns a function that adds up bytes of work, from `before` on, and passes them on.
fn reporter(before: Progress, progress: &(dyn Fn(Progress) + Sync)) -> impl Fn(u64) + Sync {
    let done = AtomicU64::new(before.done);
    move |bytes| {
        let done = done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        progress(Progress { done, total: before.total });
    }
}

/// True if a file begins with `expected`.
fn begins_with(path: &Path, expected: &[u8]) -> bool {
    let Ok(mut file) = open_regular(path) else { return false };
    let mut found = vec![0; expected.len()];
    file.read_exact(&mut found).is_ok() && found == expected
}
