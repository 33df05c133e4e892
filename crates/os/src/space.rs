//! Space of file systems.

use std::io;
use std::path::Path;

/// Bytes that this user can still write to the file system of an existing path. `None` for a file system
/// that does not report them, such as ramfs.
#[cfg(unix)]
pub fn free(path: &Path) -> io::Result<Option<u64>> {
    let stat = rustix::fs::statvfs(path)?;
    Ok((stat.f_blocks > 0).then(|| stat.f_bavail.saturating_mul(stat.f_frsize)))
}

/// Bytes that this user can still write to the file system of an existing path. `None` for a file system
/// that does not report them.
#[cfg(windows)]
pub fn free(path: &Path) -> io::Result<Option<u64>> {
    use std::ptr;

    use windows_sys::Win32::Storage::FileSystem::GetDiskFreeSpaceExW;

    let dir = match path.is_dir() {
        true => path,
        false => path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new(".")),
    };
    let dir = crate::places::wide(dir);
    let mut free = 0;
    // SAFETY: the path ends with a zero, and the one number asked for is written.
    let done =
        unsafe { GetDiskFreeSpaceExW(dir.as_ptr(), &mut free, ptr::null_mut(), ptr::null_mut()) };
    if done == 0 { Err(io::Error::last_os_error()) } else { Ok(Some(free)) }
}

/// True if this user may write to an existing path.
#[cfg(unix)]
pub fn can_write(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}

/// True if an existing path is not read-only.
#[cfg(windows)]
pub fn can_write(path: &Path) -> bool {
    path.metadata().is_ok_and(|about| about.is_dir() || !about.permissions().readonly())
}
