//! Readers: the I/O backends of the store.

mod direct;
mod files;
mod mmap;
mod rate;
#[cfg(all(feature = "uring", target_os = "linux"))]
mod uring;

use std::fmt;
use std::io;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

pub use direct::DirectReader;
pub use files::open_file_limit;
pub use mmap::MmapReader;
pub use rate::LimitedReader;
#[cfg(all(feature = "uring", target_os = "linux"))]
pub use uring::UringReader;

use sws_format::{Manifest, PieceId, ShardReader};

/// A remote source of the files of a manifest. Files are downloaded while they are read, so those
/// on this machine need not be complete.
pub trait Supply: Send + Sync + fmt::Debug {
    /// Wraps a reader of the files on this machine, and begins to download.
    fn reader(self: Arc<Self>, local: Arc<dyn ShardReader>) -> io::Result<Arc<dyn ShardReader>>;

    /// Name of the model at the source, for clients.
    fn name(&self) -> String;

    /// Address of the model at the source, for messages.
    fn address(&self) -> String;

    /// Bytes on the heap and on the stacks of threads during downloads.
    fn heap(&self) -> u64;

    /// Sets the order in which pieces are downloaded that no read has requested. All others follow.
    fn wish(&self, pieces: &[PieceId]);
}

/// Readers that can be selected by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReaderKind {
    /// Positioned reads that bypass the page cache, with one thread per read in flight.
    Direct,
    /// Reads through io_uring that bypass the page cache.
    Uring,
    /// Copies out of mapped files.
    Mmap,
}

impl ReaderKind {
    /// All readers.
    pub const ALL: [ReaderKind; 3] = [ReaderKind::Direct, ReaderKind::Uring, ReaderKind::Mmap];

    /// The name used on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            ReaderKind::Direct => "direct",
            ReaderKind::Uring => "uring",
            ReaderKind::Mmap => "mmap",
        }
    }

    /// Opens a reader for the files of `manifest`, which lie below `dir`, with up to `depth` reads
    /// in flight.
    pub fn open(
        self,
        manifest: &Manifest,
        dir: &Path,
        depth: usize,
    ) -> io::Result<Arc<dyn ShardReader>> {
        self.open_beside(manifest, dir, depth, 0)
    }

    /// Like [`open`](Self::open), beside `others` further readers in this process: each keeps only
    /// its share of the files open.
    pub fn open_beside(
        self,
        manifest: &Manifest,
        dir: &Path,
        depth: usize,
        others: usize,
    ) -> io::Result<Arc<dyn ShardReader>> {
        let limit = (open_file_limit() / (1 + others)).max(1);
        Ok(match self {
            ReaderKind::Direct => Arc::new(DirectReader::with_open_files(manifest, dir, limit)),
            ReaderKind::Mmap => Arc::new(MmapReader::with_open_files(manifest, dir, limit)),
            #[cfg(all(feature = "uring", target_os = "linux"))]
            ReaderKind::Uring => {
                let direct = DirectReader::with_open_files(manifest, dir, limit);
                match UringReader::over(direct, depth) {
                    Ok(reader) => Arc::new(reader),
                    Err(e) => {
                        let message = format!("this system has no io_uring ({e}); choose `direct`");
                        return Err(io::Error::new(e.kind(), message));
                    }
                }
            }
            #[cfg(not(all(feature = "uring", target_os = "linux")))]
            ReaderKind::Uring => {
                let _ = depth;
                return Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    "this build has no io_uring reader; choose `direct`",
                ));
            }
        })
    }
}

impl fmt::Display for ReaderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A string that is not the name of a reader.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a reader; choose one of direct, uring, mmap")]
pub struct UnknownReader(pub String);

impl FromStr for ReaderKind {
    type Err = UnknownReader;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        ReaderKind::ALL
            .into_iter()
            .find(|kind| kind.name() == word)
            .ok_or_else(|| UnknownReader(word.to_owned()))
    }
}
