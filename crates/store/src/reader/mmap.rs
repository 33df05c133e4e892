//! Copies out of mapped files.

use std::io;
use std::path::Path;

use sws_format::{Manifest, ShardReader};
use sws_os::file::copy_mapped;

use super::files::{Caching, OpenFiles, open_file_limit};

/// Maps each range for as long as it takes to copy it, then drops its pages: mapped pages and page
/// cache count against the process's memory.
///
/// For systems without direct reads. The length is checked before each copy, but a file that
/// another process shortens during one kills this process with `SIGBUS`, as with any mapped file.
#[derive(Debug)]
pub struct MmapReader {
    files: OpenFiles,
}

impl MmapReader {
    /// Creates a reader of the files of `manifest`, which lie below `dir`.
    pub fn new(manifest: &Manifest, dir: &Path) -> MmapReader {
        MmapReader::with_open_files(manifest, dir, open_file_limit())
    }

    /// Like [`new`](Self::new), with a limit on open files.
    pub fn with_open_files(manifest: &Manifest, dir: &Path, limit: usize) -> MmapReader {
        MmapReader { files: OpenFiles::new(manifest, dir, Caching::Buffered, limit) }
    }
}

impl ShardReader for MmapReader {
    fn name(&self) -> &'static str {
        "mmap"
    }

    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let open = self.files.get(file)?;
        let left = open.file.metadata()?.len().saturating_sub(offset);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(into.len());
        if len == 0 {
            return Ok(0);
        }
        copy_mapped(&open.file, &mut into[..len], offset)?;
        open.forget(offset, into.len());
        Ok(len)
    }

    fn reread_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.files.get(file)?.forget(offset, into.len());
        self.read_at(file, offset, into)
    }
}
