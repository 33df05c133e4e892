//! The interface between the store and the device that it reads from.

use std::io;
use std::sync::Arc;

/// Reads ranges of a manifest's files, which are identified by index.
///
/// Reads block, and several threads read at once: the store runs as many as it wants reads in
/// flight. A reader that can keep several in flight from one thread overrides
/// [`batch`](ShardReader::batch). Offset, length and address of every read are multiples of
/// 4096, the alignment of direct reads; a read may reach beyond the end of its file.
pub trait ShardReader: Send + Sync {
    /// Name on the command line.
    fn name(&self) -> &'static str;

    /// Reads one range and returns the number of bytes read: all of them, or those up to the end of
    /// the file.
    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// Reads one range again after a checksum mismatch, bypassing all caches.
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
