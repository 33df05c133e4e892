//! Files of the cache: links and pipes in their place are not followed, and other users cannot
//! read them.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// The flags do not follow links, and do not wait for the other end of a pipe.
pub(crate) const FLAGS: i32 =
    rustix::fs::OFlags::NOFOLLOW.union(rustix::fs::OFlags::NONBLOCK).bits() as i32;

/// Creates a directory that only this user can access.
pub(crate) fn private(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Opens or creates a file for reading and writing. Replaces a link, a pipe or an empty directory
/// in its place. The target of a link is kept.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let mut open = || options.custom_flags(FLAGS).open(path);
    match open() {
        Ok(file) if file.metadata()?.is_file() => return Ok(file),
        Err(e) if path.symlink_metadata().is_err() || is_file(path) => return Err(e),
        _ => {}
    }
    match path.symlink_metadata()?.is_dir() {
        true => fs::remove_dir(path)?,
        false => fs::remove_file(path)?,
    }
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
    let fresh = path.with_added_extension(format!("{}.tmp", std::process::id()));
    // A killed process with the same id may have left the file.
    let _ = fs::remove_file(&fresh);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    let written = file.write_all(bytes).and_then(|()| fs::rename(&fresh, path));
    if written.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    written
}
