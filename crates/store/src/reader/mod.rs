//! Readers: the I/O backends of the store.

mod direct;
mod files;
mod mmap;
#[cfg(feature = "uring")]
mod uring;

use std::fmt;
use std::io;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

pub use direct::DirectReader;
pub use files::open_file_limit;
pub use mmap::MmapReader;
#[cfg(feature = "uring")]
pub use uring::UringReader;

use crate::{Manifest, PieceId};

/// Reads ranges of a manifest's files, which are identified by index.
///
/// Reads block, and several threads read at once: the store runs as many as it wants reads in
/// flight. A reader that can keep several in flight from one thread overrides
/// [`batch`](ShardReader::batch). Offset, length and address of every read are multiples of
/// [`SLOT_ALIGN`](crate::SLOT_ALIGN); a read may reach beyond the end of its file.
pub trait ShardReader: Send + Sync {
    /// Name on the command line.
    fn name(&self) -> &'static str;

    /// Reads one range and returns the number of bytes read: all of them, or those up to the end of
    /// the file.
    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// Reads one range again, bypassing all caches, after a checksum mismatch.
    fn reread_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.read_at(file, offset, into)
    }

    /// Number of reads that one thread can have in flight.
    fn batch(&self) -> usize {
        1
    }

    /// Performs all these reads and sets their results.
    fn read_batch(&self, reads: &mut [ReadOp<'_>]) {
        for read in reads {
            read.result = self.read_at(read.file, read.offset, read.into);
        }
    }
}

/// Name of a file beside the manifest of a model with a [`Supply`]: what another machine learned of its
/// use.
pub const LEARNED_FILE: &str = "learned";
/// Most bytes of what was learned of a model, here or beside its manifest: more than twice the tables of the
/// largest models.
pub const MAX_LEARNED_BYTES: u64 = 128 << 20;

/// A place that the files of a manifest come from while they are read, so that those on this machine
/// need not be whole.
pub trait Supply: Send + Sync + fmt::Debug {
    /// Puts itself in front of a reader of the files on this machine, and begins to fetch.
    fn reader(self: Arc<Self>, local: Arc<dyn ShardReader>) -> io::Result<Arc<dyn ShardReader>>;

    /// Name of the model there, for clients.
    fn name(&self) -> String;

    /// Address of the model there, for messages.
    fn address(&self) -> String;

    /// Bytes on the heap and the stacks of its threads while files come.
    fn heap(&self) -> u64;

    /// Sets the order in which pieces that no read has asked for should come. The others follow.
    fn wish(&self, pieces: &[PieceId]);
}

/// One read of a batch.
#[derive(Debug)]
pub struct ReadOp<'a> {
    /// Index of the file.
    pub file: u32,
    /// Offset in the file.
    pub offset: u64,
    /// Destination of the bytes.
    pub into: &'a mut [u8],
    /// Number of bytes read, or the error.
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

/// Readers that can be selected by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReaderKind {
    /// Positioned reads that bypass the page cache, one thread for each in flight.
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
