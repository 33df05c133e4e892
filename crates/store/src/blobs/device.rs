//! Storage of private files: a directory, or in tests a device that fails.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};

use sws_format::open_regular;

/// A device that stores the files of [`Blobs`](super::Blobs).
pub trait BlobDevice: fmt::Debug + Send {
    /// Creates a file that only its user can read. It must not exist.
    fn create(&self, path: &Path) -> io::Result<Box<dyn BlobWriter>>;

    /// Opens a file. Also returns its length.
    fn open(&self, path: &Path) -> io::Result<(Box<dyn Read>, u64)>;

    /// Renames a file. It replaces a file with the new name, if there is one.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file, a link or an empty directory.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Sets the modification times of files: the first to now, and each of the others slightly
    /// earlier than the previous one.
    fn used(&self, paths: &[PathBuf]) -> io::Result<()>;
}

/// A file that is being written.
pub trait BlobWriter: Write {
    /// Waits until all bytes are on the device, and drops them from the page cache.
    fn finish(&mut self) -> io::Result<()>;
}

/// The files of the system.
#[derive(Debug)]
pub struct SystemFiles {
    /// A file whose modification time is set to read the current time of the file system.
    clock: PathBuf,
}

impl SystemFiles {
    /// The files of the directory that contains `clock`, whose modification time has no other
    /// meaning.
    pub fn beside(clock: &Path) -> SystemFiles {
        SystemFiles { clock: clock.to_owned() }
    }
}

impl BlobDevice for SystemFiles {
    fn create(&self, path: &Path) -> io::Result<Box<dyn BlobWriter>> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        Ok(Box::new(UncachedOutput(file)))
    }

    fn open(&self, path: &Path) -> io::Result<(Box<dyn Read>, u64)> {
        let file = open_regular(path)?;
        let len = file.metadata()?.len();
        Ok((Box::new(UncachedInput(file)), len))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        match fs::remove_file(path) {
            Err(error) if error.kind() == ErrorKind::IsADirectory => fs::remove_dir(path),
            removed => removed,
        }
    }

    fn used(&self, paths: &[PathBuf]) -> io::Result<()> {
        let set = |path: &Path, tv_sec, tv_nsec| {
            let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
            let last_modification = Timespec { tv_sec, tv_nsec };
            let times = Timestamps { last_access, last_modification };
            rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
        };
        set(&self.clock, 0, UTIME_NOW)?;
        let about = fs::symlink_metadata(&self.clock)?;
        let mut seconds = about.mtime();
        let mut nanos = about.mtime_nsec();
        for path in paths {
            set(path, seconds, nanos)?;
            nanos -= 1;
            if nanos < 0 {
                (seconds, nanos) = (seconds - 1, 999_999_999);
            }
        }
        Ok(())
    }
}

/// A file that leaves nothing in the page cache, which counts against the process's memory.
struct UncachedOutput(File);

impl Write for UncachedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl BlobWriter for UncachedOutput {
    fn finish(&mut self) -> io::Result<()> {
        self.0.sync_data()?;
        forget(&self.0);
        Ok(())
    }
}

struct UncachedInput(File);

impl Read for UncachedInput {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.read(bytes)
    }
}

impl Drop for UncachedInput {
    fn drop(&mut self) {
        forget(&self.0);
    }
}

fn forget(file: &File) {
    // Advice only: if it is refused, the pages stay until the kernel reclaims them.
    let _ = rustix::fs::fadvise(file, 0, None, Advice::DontNeed);
}
