use std::fs::{DirBuilder, File, FileType, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

const CALM: OFlags = OFlags::NONBLOCK.union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

pub(super) fn without_waiting(path: &Path) -> io::Result<File> {
    Ok(rustix::fs::open(path, OFlags::RDONLY | CALM, Mode::empty())?.into())
}

/// The errors of a socket, and of a device without a driver.
pub(super) fn is_no_file(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NXIO | Errno::NODEV | Errno::OPNOTSUPP))
}

pub(super) fn is_regular(file: &File) -> io::Result<bool> {
    Ok(file.metadata()?.is_file())
}

pub(super) fn is_stream_name(path: &Path) -> bool {
    let dirs = [Path::new("/dev/fd"), Path::new("/proc/self/fd")].map(Some);
    path == Path::new("/dev/stdin") || dirs.contains(&path.parent())
}

pub(super) fn open_descriptor(path: &Path) -> io::Result<File> {
    let fd = rustix::fs::open(path, OFlags::RDONLY | CALM, Mode::empty())?;
    rustix::fs::fcntl_setfl(&fd, OFlags::empty())?;
    Ok(fd.into())
}

pub(super) fn open_stream(path: &Path) -> io::Result<File> {
    let opened = rustix::fs::open(path, OFlags::WRONLY | OFlags::APPEND | CALM, Mode::empty());
    let fd = match opened {
        Err(Errno::NXIO) => return Err(io::ErrorKind::NotConnected.into()),
        opened => opened?,
    };
    rustix::fs::fcntl_setfl(&fd, OFlags::APPEND)?;
    Ok(fd.into())
}

pub(super) fn no_link(options: &mut OpenOptions) -> &mut OpenOptions {
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32)
}

pub(super) fn is_link(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::LOOP)
}

pub(super) fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options.mode(0o600)
}

pub(super) fn create_private_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

pub(super) fn is_own_dir(dir: &Path) -> io::Result<bool> {
    let about = std::fs::symlink_metadata(dir)?;
    if !about.is_dir() || about.uid() != rustix::process::geteuid().as_raw() {
        return Ok(false);
    }
    if about.mode() & 0o077 != 0 {
        std::fs::set_permissions(dir, Permissions::from_mode(0o700))?;
    }
    Ok(true)
}

#[cfg(target_os = "linux")]
pub(super) fn path_of(file: &File) -> io::Result<PathBuf> {
    use std::os::fd::AsRawFd;

    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn path_of(file: &File) -> io::Result<PathBuf> {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    let path = rustix::fs::getpath(file)?;
    Ok(OsString::from_vec(path.into_bytes()).into())
}

pub(super) fn stdout_if(path: &Path) -> Option<File> {
    let stdout = File::from(io::stdout().as_fd().try_clone_to_owned().ok()?);
    let there = path.metadata().ok()?;
    let here = stdout.metadata().ok()?;
    let same = (there.dev(), there.ino()) == (here.dev(), here.ino());
    (same && !there.file_type().is_char_device()).then_some(stdout)
}

pub(super) fn is_pipe(kind: &FileType) -> bool {
    kind.is_fifo()
}

pub(super) fn is_character_device(kind: &FileType) -> bool {
    kind.is_char_device()
}

pub(super) fn is_of_the_system(path: &Path) -> bool {
    // `/dev/shm` is a file system for ordinary files.
    let whose = [Path::new("/dev"), Path::new("/proc")];
    whose.iter().any(|dir| path.starts_with(dir)) && !path.starts_with("/dev/shm")
}

pub(super) fn symlink(original: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(original, link)
}

#[cfg(target_os = "linux")]
pub(super) fn make_pipe(path: &Path) -> io::Result<()> {
    let mode = Mode::from_raw_mode(0o600);
    Ok(rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0)?)
}

#[cfg(target_os = "macos")]
pub(super) use crate::macos::make_pipe;

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
pub(super) fn make_pipe(_: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
