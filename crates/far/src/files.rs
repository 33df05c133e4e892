//! Files of the cache: links and pipes in their place are not followed, and other users cannot
//! read them.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use sws_os::file::remove_any;
use sws_os::open::{no_link, private};
use sws_os::replace::Replacement;

/// Opens or creates a file for reading and writing. Replaces a link, a pipe or an empty directory
/// in its place. The target of a link is kept.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let mut open = || private(no_link(&mut options)).open(path);
    match open() {
        Ok(file) if file.metadata()?.is_file() => return Ok(file),
        Err(e) if path.symlink_metadata().is_err() || is_file(path) => return Err(e),
        _ => {}
    }
    remove_any(path)?;
    match open()? {
        file if file.metadata()?.is_file() => Ok(file),
        _ => Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

/// True for a regular file that is not reached through a link.
pub(crate) fn is_file(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|about| about.is_file())
}

/// Writes a file atomically.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut replacement = Replacement::begin_private(path)?;
    replacement.file().write_all(bytes)?;
    replacement.publish_unsynced()
}
