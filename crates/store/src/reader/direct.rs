//! Positioned reads that bypass the page cache.

use std::io;
use std::path::{Path, PathBuf};

use sws_format::{Manifest, ShardReader};
use sws_os::{direct, file};

use super::files::{Caching, OpenFile, OpenFiles, open_file_limit};

/// Reads with `O_DIRECT`. A file whose file system refuses that is read through the page cache, and
/// its pages are dropped afterwards.
#[derive(Debug)]
pub struct DirectReader {
    files: OpenFiles,
}

impl DirectReader {
    /// Creates a reader of the files of `manifest`, which lie below `dir`.
    pub fn new(manifest: &Manifest, dir: &Path) -> DirectReader {
        DirectReader::with_open_files(manifest, dir, open_file_limit())
    }

    /// Like [`new`](Self::new), with a limit on open files.
    pub fn with_open_files(manifest: &Manifest, dir: &Path, limit: usize) -> DirectReader {
        DirectReader { files: OpenFiles::new(manifest, dir, Caching::Direct, limit) }
    }

    /// Creates a reader of the files at `paths`.
    pub fn of(paths: Vec<PathBuf>) -> DirectReader {
        DirectReader { files: OpenFiles::of(paths, Caching::Direct, open_file_limit()) }
    }

    #[cfg(all(feature = "uring", target_os = "linux"))]
    pub(super) fn file(&self, file: u32) -> io::Result<std::sync::Arc<OpenFile>> {
        self.files.get(file)
    }
}

impl ShardReader for DirectReader {
    fn name(&self) -> &'static str {
        "direct"
    }

    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let open = self.files.get(file)?;
        if open.direct {
            match uninterrupted(|| direct::read_at(&open.file, into, offset)) {
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
                result => return result,
            }
            return read_buffered(&*self.files.reopen_buffered(file)?, offset, into);
        }
        read_buffered(&open, offset, into)
    }

    fn reread_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        // The pages of a buffered file are dropped first; a direct read never sees them.
        self.files.get(file)?.forget(offset, into.len());
        self.read_at(file, offset, into)
    }
}

/// Reads through the page cache and drops the pages afterwards.
fn read_buffered(open: &OpenFile, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    let result = uninterrupted(|| file::read_at(&open.file, into, offset));
    open.forget(offset, into.len());
    result
}

pub(super) fn uninterrupted(mut read: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match read() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
