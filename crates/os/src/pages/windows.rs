use std::io;
use std::ptr::{self, NonNull};

use windows_sys::Win32::System::Memory::{
    MEM_COMMIT, MEM_DECOMMIT, MEM_RELEASE, MEM_RESERVE, PAGE_READWRITE, VirtualAlloc, VirtualFree,
};

use super::Reservation;

/// Everything is committed, so that a system without as much memory refuses it now.
pub(super) fn reserve(len: usize) -> io::Result<Reservation> {
    // SAFETY: pages at an address of the system's choice touch nothing that exists.
    let start = unsafe { VirtualAlloc(ptr::null(), len, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE) };
    let start = NonNull::new(start.cast::<u8>()).ok_or_else(io::Error::last_os_error)?;
    Ok(Reservation { start, len })
}

/// # Safety
///
/// The reservation must not be used any more.
pub(super) unsafe fn free(whole: &Reservation) {
    // SAFETY: made by `reserve`, and not used any more.
    unsafe { VirtualFree(whole.start.as_ptr().cast(), 0, MEM_RELEASE) };
}

/// Large pages need a privilege, and can never be given back.
pub(super) fn prefer_huge(_: NonNull<u8>, _: usize) {}

/// # Safety
///
/// The range must belong to a reservation, and nothing may refer to it.
pub(super) unsafe fn release(start: NonNull<u8>, len: usize) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    // SAFETY: guaranteed by the caller.
    match unsafe { VirtualFree(start.as_ptr().cast(), len, MEM_DECOMMIT) } {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Commits what is not, and leaves what is.
pub(super) fn take(start: NonNull<u8>, len: usize) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    // SAFETY: the range lies in a reservation, and pages that are committed already keep their bytes.
    let taken = unsafe { VirtualAlloc(start.as_ptr().cast(), len, MEM_COMMIT, PAGE_READWRITE) };
    if taken.is_null() { Err(io::Error::last_os_error()) } else { Ok(()) }
}
