//! A cache of open files, within the process's limit.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use lru::LruCache;
use sws_format::{Manifest, open_regular};
use sws_os::limits::ProcessLimits;
use sws_os::{direct, file};

use crate::SLOT_ALIGN;

/// Descriptors left for everything else in the process.
const RESERVE: u64 = 128;
/// Largest number of open files; more of them save nothing.
const MOST: u64 = 4096;

/// Number of shard files to keep open: the process's limit less a reserve.
pub fn open_file_limit() -> usize {
    let limit = ProcessLimits::now().open_files.unwrap_or(MOST);
    let usable = limit.saturating_sub(RESERVE).max(limit / 2).clamp(1, MOST);
    usize::try_from(usable).unwrap_or(1)
}

/// Use of the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caching {
    /// Bypasses the page cache where the file system can.
    Direct,
    /// Reads through the page cache.
    Buffered,
}

/// An open file.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) file: File,
    /// True if reads bypass the page cache.
    pub(super) direct: bool,
}

/// The files of a manifest. The most recently used are kept open.
#[derive(Debug)]
pub(super) struct OpenFiles {
    paths: Vec<PathBuf>,
    mode: Caching,
    open: Mutex<LruCache<u32, Arc<OpenFile>>>,
}

impl OpenFiles {
    pub(super) fn new(manifest: &Manifest, dir: &Path, mode: Caching, limit: usize) -> OpenFiles {
        OpenFiles::of(manifest.files.iter().map(|file| dir.join(&file.path)).collect(), mode, limit)
    }

    pub(super) fn of(paths: Vec<PathBuf>, mode: Caching, limit: usize) -> OpenFiles {
        let limit = NonZeroUsize::new(limit).unwrap_or(NonZeroUsize::MIN);
        OpenFiles { paths, mode, open: Mutex::new(LruCache::new(limit)) }
    }

    /// Returns the file, opening it if necessary. It stays open while the caller holds it, even if
    /// it is evicted.
    pub(super) fn get(&self, index: u32) -> io::Result<Arc<OpenFile>> {
        if let Some(file) = self.lock().get(&index) {
            return Ok(Arc::clone(file));
        }
        // The file is opened without the lock, so that reads of other files need not wait. If two
        // threads open the same file, the later one is kept.
        let file = Arc::new(open(self.path(index)?, self.mode)?);
        let evicted = self.lock().push(index, Arc::clone(&file));
        drop(evicted);
        Ok(file)
    }

    /// Reopens the file for buffered reads, because its file system accepted `O_DIRECT` when
    /// opening and refused it when reading.
    pub(super) fn reopen_buffered(&self, index: u32) -> io::Result<Arc<OpenFile>> {
        let file = Arc::new(open(self.path(index)?, Caching::Buffered)?);
        let evicted = self.lock().push(index, Arc::clone(&file));
        drop(evicted);
        Ok(file)
    }

    fn path(&self, index: u32) -> io::Result<&Path> {
        let path = usize::try_from(index).ok().and_then(|index| self.paths.get(index));
        path.map(PathBuf::as_path).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, LruCache<u32, Arc<OpenFile>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenFile {
    /// Drops these bytes from the page cache, which counts against the process's memory.
    pub(super) fn forget(&self, offset: u64, len: usize) {
        file::forget(&self.file, offset, Some(len as u64));
    }
}

fn open(path: &Path, mode: Caching) -> io::Result<OpenFile> {
    if mode == Caching::Direct {
        match direct::open(path, SLOT_ALIGN) {
            Ok(file) => return Ok(OpenFile { file, direct: true }),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
            Err(error) => return Err(error),
        }
    }
    let file = open_regular(path)?;
    file::read_at_random(&file);
    Ok(OpenFile { file, direct: false })
}
