//! A cache of open files, within the process's limit.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use lru::LruCache;
use rustix::fs::{Advice, AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::process::Resource;
use sws_format::{Manifest, open_regular};

use crate::SLOT_ALIGN;

/// Descriptors left for everything else in the process.
const RESERVE: u64 = 128;
/// Largest number of open files; more of them save nothing.
const MOST: u64 = 4096;

/// Number of shard files to keep open: the process's limit less a reserve.
pub fn open_file_limit() -> usize {
    let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(MOST);
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
        // Advice only: if it is refused, the pages stay until the kernel reclaims them.
        let _ = rustix::fs::fadvise(
            &self.file,
            offset,
            std::num::NonZeroU64::new(len as u64),
            Advice::DontNeed,
        );
    }
}

fn open(path: &Path, mode: Caching) -> io::Result<OpenFile> {
    if mode == Caching::Direct {
        // `open_regular` does not support `O_DIRECT`.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECT | OFlags::NONBLOCK;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(fd) if is_regular(&fd)? && aligned_reads_suffice(&fd) => {
                // With `O_NONBLOCK`, io_uring fails a read where the file system would have to
                // wait.
                rustix::fs::fcntl_setfl(&fd, OFlags::DIRECT)?;
                return Ok(OpenFile { file: fd.into(), direct: true });
            }
            Ok(_) | Err(rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let file = open_regular(path)?;
    // No readahead: it would load pages that are neither requested nor dropped.
    let _ = rustix::fs::fadvise(&file, 0, None, Advice::Random);
    Ok(OpenFile { file, direct: false })
}

fn is_regular(fd: &OwnedFd) -> io::Result<bool> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode) == FileType::RegularFile)
}

/// True if the file system accepts direct reads at the alignment of slots. A file system that does
/// not report its alignment (before Linux 6.1) is assumed to accept them, until it refuses a read.
fn aligned_reads_suffice(fd: &OwnedFd) -> bool {
    let Ok(stat) = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else {
        return true;
    };
    if stat.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return true;
    }
    let usable = |align: u32| align > 0 && SLOT_ALIGN.is_multiple_of(align as usize);
    usable(stat.stx_dio_offset_align) && usable(stat.stx_dio_mem_align)
}
