use std::fs::File;
use std::io;
use std::os::windows::fs::OpenOptionsExt;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::path::Path;
use std::ptr;

use windows_sys::Win32::Foundation::{
    ERROR_HANDLE_EOF, ERROR_IO_PENDING, FALSE, STATUS_PENDING, TRUE,
};
use windows_sys::Win32::Storage::FileSystem::{
    FILE_FLAG_NO_BUFFERING, FILE_FLAG_OVERLAPPED, ReadFile,
};
use windows_sys::Win32::System::IO::{GetOverlappedResult, OVERLAPPED};
use windows_sys::Win32::System::Threading::CreateEventW;

thread_local! {
    /// The event that a thread waits for its read with.
    static EVENT: io::Result<OwnedHandle> = event();
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
    // SAFETY: `into` and `state` outlive the read: this function returns once it has completed, which
    // `GetOverlappedResult` waits for without a limit.
    let begun = unsafe { ReadFile(handle, into.as_mut_ptr(), len, ptr::null_mut(), &mut state) };
    let refused = (begun == FALSE).then(io::Error::last_os_error);
    let result = match refused {
        Some(e) if e.raw_os_error() != Some(ERROR_IO_PENDING as i32) => Err(e),
        pending => {
            #[cfg(test)]
            pending.iter().for_each(|_| tests::begun());
            let mut count = 0;
            // SAFETY: `state` is that of the read that was begun on this handle.
            let done = unsafe { GetOverlappedResult(handle, &state, &mut count, TRUE) };
            let failed = (done == FALSE).then(io::Error::last_os_error);
            if pending.is_some() && state.Internal == STATUS_PENDING as usize {
                // The wait failed, and the system may still write to memory that is about to be freed.
                std::process::abort();
            }
            match failed {
                Some(error) => Err(error),
                None => Ok(count as usize),
            }
        }
    };
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use crate::direct::{open, read_at};
    use crate::pages::ReservedPages;

    /// Reads that the system has begun without completing them.
    static BEGUN: AtomicUsize = AtomicUsize::new(0);

    pub(super) fn begun() {
        BEGUN.fetch_add(1, Ordering::SeqCst);
    }

    /// The system takes a read and returns before it is completed, so that others can be in flight.
    #[test]
    fn reads_are_begun_without_waiting() {
        const COUNT: usize = 16;
        const LEN: usize = 1 << 20;
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("file");
        std::fs::write(&path, vec![7u8; COUNT * LEN]).unwrap();
        let file = open(&path, 4096).unwrap();
        let before = BEGUN.load(Ordering::SeqCst);
        let mut pages = ReservedPages::reserve(LEN, 4096).unwrap();
        for at in 0..COUNT {
            let read = read_at(&file, pages.as_mut_slice(), (at * LEN) as u64);
            assert_eq!(read.unwrap(), LEN);
            assert!(pages.as_mut_slice().iter().all(|&byte| byte == 7));
        }
        let begun = BEGUN.load(Ordering::SeqCst) - before;
        assert!(begun > COUNT / 2, "{begun} of {COUNT} reads did not wait");
    }
}
