use std::fs::{File, FileType, Metadata};
use std::io;
use std::os::windows::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::os::windows::io::AsRawHandle;
use std::path::Path;
use std::ptr;
use std::time::{Duration, SystemTime};

use windows_sys::Win32::Foundation::{
    ERROR_CRC, ERROR_FILE_CORRUPT, ERROR_HANDLE_EOF, ERROR_IO_DEVICE, ERROR_SECTOR_NOT_FOUND,
};
use windows_sys::Win32::Storage::FileSystem::{
    FILE_ALLOCATION_INFO, FILE_FLAG_BACKUP_SEMANTICS, FILE_FLAG_OPEN_REPARSE_POINT,
    FILE_STANDARD_INFO, FILE_WRITE_ATTRIBUTES, FileAllocationInfo, FileStandardInfo,
    GetFileInformationByHandleEx, SetFileInformationByHandle,
};
use windows_sys::Win32::System::IO::DeviceIoControl;
use windows_sys::Win32::System::Ioctl::{
    FILE_ZERO_DATA_INFORMATION, FSCTL_SET_SPARSE, FSCTL_SET_ZERO_DATA,
};

/// Attempts to give a file the name of another.
const REPLACEMENTS: usize = 500;

pub(super) fn read_at(file: &File, into: &mut [u8], offset: u64) -> io::Result<usize> {
    match file.seek_read(into, offset) {
        Err(e) if e.raw_os_error() == Some(ERROR_HANDLE_EOF as i32) => Ok(0),
        result => result,
    }
}

/// The system refuses a name that another process is replacing just then, or whose file is open.
#[expect(clippy::disallowed_methods, reason = "other processes have no clock of ours")]
pub(super) fn replace(from: &Path, to: &Path) -> io::Result<()> {
    for _ in 0..REPLACEMENTS {
        match std::fs::rename(from, to) {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                std::thread::sleep(Duration::from_millis(2));
            }
            result => return result,
        }
    }
    std::fs::rename(from, to)
}

pub(super) fn is_link_to_dir(kind: &FileType) -> bool {
    kind.is_symlink_dir()
}

pub(super) fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    file.seek_write(bytes, offset)
}

/// The cache is the system's, and not charged to a process.
pub(super) fn forget(_: &File, _: u64, _: Option<u64>) {}

pub(super) fn read_at_random(_: &File) {}

pub(super) fn allocate(file: &File, len: u64) -> io::Result<()> {
    let info = FILE_ALLOCATION_INFO { AllocationSize: i64::try_from(len).unwrap_or(i64::MAX) };
    // SAFETY: the handle is open, and `info` is what this class of information has.
    let done = unsafe {
        SetFileInformationByHandle(
            file.as_raw_handle(),
            FileAllocationInfo,
            ptr::from_ref(&info).cast(),
            size_of_val(&info) as u32,
        )
    };
    if done == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sends a control code with its input, and expects no output.
fn control<T>(file: &File, code: u32, input: &T) -> io::Result<()> {
    let mut written = 0;
    // SAFETY: the handle is open, `input` is read for its size, and nothing is written but the count.
    let done = unsafe {
        DeviceIoControl(
            file.as_raw_handle(),
            code,
            ptr::from_ref(input).cast(),
            size_of::<T>() as u32,
            ptr::null_mut(),
            0,
            &mut written,
            ptr::null_mut(),
        )
    };
    if done == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Only sparse files have holes; others are filled with zeros. So both are asked for.
pub(super) fn punch(file: &File, offset: u64, len: u64) -> io::Result<()> {
    make_sparse(file)?;
    let beyond = i64::try_from(offset.saturating_add(len)).unwrap_or(i64::MAX);
    let start = i64::try_from(offset).unwrap_or(i64::MAX);
    let range = FILE_ZERO_DATA_INFORMATION { FileOffset: start, BeyondFinalZero: beyond };
    control(file, FSCTL_SET_ZERO_DATA, &range)
}

pub(super) fn make_sparse(file: &File) -> io::Result<()> {
    control(file, FSCTL_SET_SPARSE, &())
}

pub(super) fn allocated(path: &Path, about: &Metadata) -> u64 {
    let space = || {
        let file = File::open(path).ok()?;
        // SAFETY: the structure holds numbers only.
        let mut info: FILE_STANDARD_INFO = unsafe { std::mem::zeroed() };
        // SAFETY: the handle is open, and `info` is what this class of information has.
        let done = unsafe {
            GetFileInformationByHandleEx(
                file.as_raw_handle(),
                FileStandardInfo,
                ptr::from_mut(&mut info).cast(),
                size_of_val(&info) as u32,
            )
        };
        u64::try_from(info.AllocationSize).ok().filter(|_| done != 0)
    };
    space().unwrap_or(about.len())
}

#[expect(clippy::disallowed_methods, reason = "a time for the file system, not a measurement")]
fn now() -> SystemTime {
    SystemTime::now()
}

pub(super) fn touch(file: &File) -> io::Result<()> {
    file.set_modified(now())
}

pub(super) fn set_modified(path: &Path, time: Option<SystemTime>) -> io::Result<()> {
    let mut options = File::options();
    options.access_mode(FILE_WRITE_ATTRIBUTES);
    options.custom_flags(FILE_FLAG_OPEN_REPARSE_POINT | FILE_FLAG_BACKUP_SEMANTICS);
    options.open(path)?.set_modified(time.unwrap_or_else(now))
}

/// Directories cannot be synced; the journal of NTFS keeps renames in order.
pub(super) fn sync_dir(_: &Path) -> io::Result<()> {
    Ok(())
}

pub(super) fn is_damage(error: &io::Error) -> bool {
    let numbers = [ERROR_CRC, ERROR_FILE_CORRUPT, ERROR_IO_DEVICE, ERROR_SECTOR_NOT_FOUND];
    error.raw_os_error().is_none_or(|number| numbers.contains(&(number as u32)))
}
