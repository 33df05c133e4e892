use std::ffi::OsString;
use std::fs::{DirBuilder, File, FileType, OpenOptions};
use std::io;
use std::os::windows::ffi::OsStringExt;
use std::os::windows::fs::{OpenOptionsExt, symlink_dir, symlink_file};
use std::os::windows::io::AsRawHandle;
use std::path::{Path, PathBuf};

use windows_sys::Win32::Storage::FileSystem::{
    FILE_FLAG_OPEN_REPARSE_POINT, FILE_TYPE_DISK, GetFileType, GetFinalPathNameByHandleW,
};

pub(super) fn without_waiting(path: &Path) -> io::Result<File> {
    // The system refuses directories as if rights were missing.
    File::open(path).map_err(|e| if path.is_dir() { io::ErrorKind::InvalidInput.into() } else { e })
}

pub(super) fn is_no_file(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidInput
}

/// Devices such as `NUL` are files of another type.
pub(super) fn is_regular(file: &File) -> io::Result<bool> {
    // SAFETY: the handle is open.
    let kind = unsafe { GetFileType(file.as_raw_handle()) };
    Ok(kind == FILE_TYPE_DISK && file.metadata()?.is_file())
}

pub(super) fn is_stream_name(_: &Path) -> bool {
    false
}

pub(super) fn open_descriptor(path: &Path) -> io::Result<File> {
    File::open(path)
}

pub(super) fn open_stream(path: &Path) -> io::Result<File> {
    File::options().append(true).open(path)
}

/// Opens a link itself, which is then no regular file.
pub(super) fn no_link(options: &mut OpenOptions) -> &mut OpenOptions {
    options.custom_flags(FILE_FLAG_OPEN_REPARSE_POINT)
}

pub(super) fn is_link(_: &io::Error) -> bool {
    false
}

/// Files inherit the rights of their directory, and those of a user's directory are the user's.
pub(super) fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

pub(super) fn create_private_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).create(dir)
}

pub(super) fn is_own_dir(dir: &Path) -> io::Result<bool> {
    Ok(std::fs::symlink_metadata(dir)?.is_dir())
}

pub(super) fn path_of(file: &File) -> io::Result<PathBuf> {
    let mut path = vec![0u16; 512];
    loop {
        let room = u32::try_from(path.len()).unwrap_or(u32::MAX);
        // SAFETY: the handle is open, and `path` has `room` elements.
        let len =
            unsafe { GetFinalPathNameByHandleW(file.as_raw_handle(), path.as_mut_ptr(), room, 0) };
        match len as usize {
            0 => return Err(io::Error::last_os_error()),
            len if len < path.len() => return Ok(OsString::from_wide(&path[..len]).into()),
            len => path.resize(len + 1, 0),
        }
    }
}

pub(super) fn stdout_if(_: &Path) -> Option<File> {
    None
}

pub(super) fn is_pipe(_: &FileType) -> bool {
    false
}

pub(super) fn is_character_device(_: &FileType) -> bool {
    false
}

/// Names of devices, as `NUL` and `C:\some\CON.txt`.
pub(super) fn is_of_the_system(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(crate::places::is_device_name)
        || path.as_os_str().as_encoded_bytes().starts_with(br"\\.\")
}

/// Needs Developer Mode or rights of an administrator.
pub(super) fn symlink(original: &Path, link: &Path) -> io::Result<()> {
    // The system takes no other separators in links.
    let original: PathBuf = original.components().collect();
    let there = link.parent().unwrap_or(Path::new("")).join(&original);
    if there.is_dir() { symlink_dir(original, link) } else { symlink_file(original, link) }
}

pub(super) fn make_pipe(_: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
