//! How bytes come from a device.

mod direct;
mod faults;
mod files;
mod memory;
mod mmap;
#[cfg(feature = "uring")]
mod uring;

use std::fmt;
use std::io;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

pub use direct::DirectReader;
pub use faults::{BitFlip, Failing, Flip, Short, Slow};
pub use files::open_file_limit;
pub use memory::MemoryReader;
pub use mmap::MmapReader;
#[cfg(feature = "uring")]
pub use uring::UringReader;

use crate::Manifest;

/// Reads ranges of a manifest's files, which it knows by their index.
///
/// Reads block, and several threads read at once: the store runs as many as it wants reads in
/// flight. A reader that can keep several in flight from one thread says so with
/// [`batch`](ShardReader::batch). Offset, length and address of every read are multiples of
/// [`SLOT_ALIGN`](crate::SLOT_ALIGN); a read may reach beyond the end of its file.
pub trait ShardReader: Send + Sync {
    /// What it is called on the command line.
    fn name(&self) -> &'static str;

    /// Reads one range and returns how many bytes there were: all, or what is left of the file.
    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// The same, past every cache, after a checksum disagreed.
    fn reread_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.read_at(file, offset, into)
    }

    /// How many reads one thread can have in flight.
    fn batch(&self) -> usize {
        1
    }

    /// Makes all these reads and sets their results.
    fn read_batch(&self, reads: &mut [ReadOp<'_>]) {
        for read in reads {
            read.result = self.read_at(read.file, read.offset, read.into);
        }
    }
}

/// One read of a batch.
#[derive(Debug)]
pub struct ReadOp<'a> {
    /// Index of the file.
    pub file: u32,
    /// Where it begins.
    pub offset: u64,
    /// Where it goes.
    pub into: &'a mut [u8],
    /// How many bytes there were.
    pub result: io::Result<usize>,
}

impl<R: ShardReader + ?Sized> ShardReader for Arc<R> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        (**self).read_at(file, offset, into)
    }

    fn reread_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        (**self).reread_at(file, offset, into)
    }

    fn batch(&self) -> usize {
        (**self).batch()
    }

    fn read_batch(&self, reads: &mut [ReadOp<'_>]) {
        (**self).read_batch(reads);
    }
}

/// The readers that can be asked for by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReaderKind {
    /// Positioned reads past the page cache, one thread for each in flight.
    Direct,
    /// io_uring, past the page cache.
    Uring,
    /// Copies out of mapped files.
    Mmap,
}

impl ReaderKind {
    /// All of them.
    pub const ALL: [ReaderKind; 3] = [ReaderKind::Direct, ReaderKind::Uring, ReaderKind::Mmap];

    /// The name used on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            ReaderKind::Direct => "direct",
            ReaderKind::Uring => "uring",
            ReaderKind::Mmap => "mmap",
        }
    }

    /// Makes one for the files of a manifest that lie below `dir`, to be used with `depth` reads
    /// in flight.
    pub fn open(
        self,
        manifest: &Manifest,
        dir: &Path,
        depth: usize,
    ) -> io::Result<Arc<dyn ShardReader>> {
        Ok(match self {
            ReaderKind::Direct => Arc::new(DirectReader::new(manifest, dir)),
            ReaderKind::Mmap => Arc::new(MmapReader::new(manifest, dir)),
            #[cfg(feature = "uring")]
            ReaderKind::Uring => Arc::new(UringReader::new(manifest, dir, depth).map_err(|e| {
                let message = format!("this system has no io_uring ({e}); choose `direct`");
                io::Error::new(e.kind(), message)
            })?),
            #[cfg(not(feature = "uring"))]
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

/// A word that names no reader.
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
