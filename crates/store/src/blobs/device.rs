//! Storage of private files: a directory, or in tests a device that fails.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sws_format::open_regular;
use sws_os::file::{forget, remove_any, set_modified};
use sws_os::open::private;

/// Smallest difference of times that file systems keep.
#[cfg(unix)]
const STEP: Duration = Duration::from_nanos(1);
#[cfg(windows)]
const STEP: Duration = Duration::from_nanos(100);

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
        let file = private(OpenOptions::new().write(true).create_new(true)).open(path)?;
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
        remove_any(path)
    }

    fn used(&self, paths: &[PathBuf]) -> io::Result<()> {
        set_modified(&self.clock, None)?;
        let mut time = fs::symlink_metadata(&self.clock)?.modified()?;
        for path in paths {
            set_modified(path, Some(time))?;
            time -= STEP;
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
        forget(&self.0, 0, None);
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
        forget(&self.0, 0, None);
    }
}
