use std::fs::File;
use std::io;
use std::os::windows::fs::OpenOptionsExt;
use std::os::windows::io::AsRawHandle;
use std::path::Path;
use std::ptr;

use windows_sys::Win32::Storage::FileSystem::{
    BY_HANDLE_FILE_INFORMATION, FILE_BASIC_INFO, FILE_FLAG_BACKUP_SEMANTICS,
    FILE_FLAG_OPEN_REPARSE_POINT, FILE_READ_ATTRIBUTES, FileBasicInfo, GetFileInformationByHandle,
    GetFileInformationByHandleEx,
};

use super::FileIdentity;

/// Ticks of 100 ns between 1601 and 1970.
const EPOCH: i64 = 116_444_736_000_000_000;

pub(super) fn of(file: &File) -> io::Result<FileIdentity> {
    let handle = file.as_raw_handle();
    // SAFETY: both structures hold numbers only.
    let mut about: BY_HANDLE_FILE_INFORMATION = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut basic: FILE_BASIC_INFO = unsafe { std::mem::zeroed() };
    // SAFETY: the handle is open, and the structures are those that these functions fill.
    let done = unsafe {
        GetFileInformationByHandle(handle, &mut about) != 0
            && GetFileInformationByHandleEx(
                handle,
                FileBasicInfo,
                ptr::from_mut(&mut basic).cast(),
                size_of_val(&basic) as u32,
            ) != 0
    };
    if !done {
        return Err(io::Error::last_os_error());
    }
    let joined = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
    Ok(FileIdentity {
        device: about.dwVolumeSerialNumber.into(),
        index: joined(about.nFileIndexHigh, about.nFileIndexLow),
        len: joined(about.nFileSizeHigh, about.nFileSizeLow),
        modified: time(basic.LastWriteTime),
        changed: time(basic.ChangeTime),
    })
}

pub(super) fn at(path: &Path, follows: bool) -> io::Result<FileIdentity> {
    let link = if follows { 0 } else { FILE_FLAG_OPEN_REPARSE_POINT };
    let mut options = File::options();
    options.access_mode(FILE_READ_ATTRIBUTES).custom_flags(FILE_FLAG_BACKUP_SEMANTICS | link);
    of(&options.open(path)?)
}

fn time(ticks: i64) -> (i64, i64) {
    let ticks = ticks.saturating_sub(EPOCH);
    (ticks.div_euclid(10_000_000), ticks.rem_euclid(10_000_000) * 100)
}
