use std::fs::File;
use std::io;
use std::os::windows::fs::OpenOptionsExt;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use windows_sys::Win32::Foundation::{ERROR_HANDLE_EOF, ERROR_IO_PENDING, FALSE, TRUE};
use windows_sys::Win32::Storage::FileSystem::{
    FILE_FLAG_NO_BUFFERING, FILE_FLAG_OVERLAPPED, ReadFile,
};
use windows_sys::Win32::System::IO::{GetOverlappedResult, OVERLAPPED};
use windows_sys::Win32::System::Threading::CreateEventW;

thread_local! {
    /// The event that a thread waits for its read with.
    static EVENT: io::Result<OwnedHandle> = event();
}

/// Reads that were begun and not yet completed, and the most of them.
static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

/// The number of overlapped reads in flight.
#[derive(Debug)]
pub struct InFlight;

impl InFlight {
    /// The most reads that were in flight at once since the process began.
    pub fn most() -> usize {
        MOST.load(Ordering::SeqCst)
    }
}

fn event() -> io::Result<OwnedHandle> {
    // SAFETY: makes an event without a name, reset by hand, with no pointer to anything.
    let event = unsafe { CreateEventW(ptr::null(), TRUE, FALSE, ptr::null()) };
    if event.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the handle was just made, and nothing else closes it.
    Ok(unsafe { OwnedHandle::from_raw_handle(event) })
}

/// Without `FILE_FLAG_OVERLAPPED` the system serves the reads of a handle one after the other.
pub(super) fn open(path: &Path, align: usize) -> io::Result<File> {
    if align < 4096 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = FILE_FLAG_NO_BUFFERING | FILE_FLAG_OVERLAPPED;
    let file = File::options().read(true).custom_flags(flags).open(path);
    let file = file.map_err(|e| match path.is_dir() {
        true => io::ErrorKind::InvalidInput.into(),
        false => e,
    })?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

pub(super) fn read_at(file: &File, into: &mut [u8], offset: u64) -> io::Result<usize> {
    EVENT.with(|event| match event {
        Ok(event) => overlapped(file, event, into, offset),
        Err(e) => Err(e.raw_os_error().map_or(e.kind().into(), io::Error::from_raw_os_error)),
    })
}

fn overlapped(file: &File, event: &OwnedHandle, into: &mut [u8], offset: u64) -> io::Result<usize> {
    let handle = file.as_raw_handle();
    // SAFETY: a structure of numbers and pointers, which may be null.
    let mut state: OVERLAPPED = unsafe { std::mem::zeroed() };
    state.Anonymous.Anonymous.Offset = offset as u32;
    state.Anonymous.Anonymous.OffsetHigh = (offset >> 32) as u32;
    state.hEvent = event.as_raw_handle();
    let len = u32::try_from(into.len()).unwrap_or(!0xfff);
    let in_flight = NOW.fetch_add(1, Ordering::SeqCst) + 1;
    MOST.fetch_max(in_flight, Ordering::SeqCst);
    // SAFETY: `into` and `state` outlive the read: this function returns once it has completed, which
    // `finish` waits for without a limit.
    let begun = unsafe { ReadFile(handle, into.as_mut_ptr(), len, ptr::null_mut(), &mut state) };
    let refused = (begun == FALSE).then(io::Error::last_os_error);
    let result = match refused {
        Some(e) if e.raw_os_error() != Some(ERROR_IO_PENDING as i32) => Err(e),
        _ => {
            let mut count = 0;
            // SAFETY: `state` is that of the read that was begun on this handle.
            match unsafe { GetOverlappedResult(handle, &state, &mut count, TRUE) } {
                FALSE => Err(io::Error::last_os_error()),
                _ => Ok(count as usize),
            }
        }
    };
    NOW.fetch_sub(1, Ordering::SeqCst);
    match result {
        Err(e) if e.raw_os_error() == Some(ERROR_HANDLE_EOF as i32) => Ok(0),
        result => result,
    }
}

/// One thread writes, so writes need not overlap.
pub(super) fn create(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(true).custom_flags(FILE_FLAG_NO_BUFFERING);
    options.open(path)
}
