use std::io;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};

use super::Reservation;

pub(super) fn reserve(len: usize) -> io::Result<Reservation> {
    #[cfg(target_os = "linux")]
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    #[cfg(not(target_os = "linux"))]
    let flags = MapFlags::PRIVATE;
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: an anonymous private mapping at an address of the kernel's choice touches nothing that
    // exists.
    let map = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, rights, flags) }?;
    let start = NonNull::new(map.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
    Ok(Reservation { start, len })
}

/// # Safety
///
/// The reservation must not be used any more.
pub(super) unsafe fn free(whole: &Reservation) {
    // SAFETY: made by `reserve` with this length, and not used any more. Unmapping a whole mapping cannot
    // fail.
    let _ = unsafe { rustix::mm::munmap(whole.start.as_ptr().cast(), whole.len) };
}

/// Best effort: small pages work as well.
#[cfg(target_os = "linux")]
pub(super) fn prefer_huge(start: NonNull<u8>, len: usize) {
    let start = start.as_ptr().cast();
    // SAFETY: advice about a mapping, which changes none of its bytes.
    let _ = unsafe { rustix::mm::madvise(start, len, rustix::mm::Advice::LinuxHugepage) };
}

#[cfg(not(target_os = "linux"))]
pub(super) fn prefer_huge(_: NonNull<u8>, _: usize) {}

/// Gives the whole pages within the range back, and zeroes its ends: a range is a multiple of 4096 bytes,
/// and pages may be larger.
///
/// # Safety
///
/// The range must belong to a reservation, and nothing may refer to it.
pub(super) unsafe fn release(start: NonNull<u8>, len: usize) -> io::Result<()> {
    let page = rustix::param::page_size();
    let skipped = start.align_offset(page).min(len);
    let whole = (len - skipped) / page * page;
    // SAFETY: the caller guarantees that nothing refers to the range.
    unsafe {
        start.write_bytes(0, skipped);
        start.add(skipped + whole).write_bytes(0, len - skipped - whole);
        if whole > 0 { empty(start.add(skipped), whole) } else { Ok(()) }
    }
}

/// Gives whole pages back.
///
/// # Safety
///
/// As for [`release`].
#[cfg(target_os = "linux")]
unsafe fn empty(start: NonNull<u8>, len: usize) -> io::Result<()> {
    // SAFETY: guaranteed by the caller.
    unsafe { rustix::mm::madvise(start.as_ptr().cast(), len, rustix::mm::Advice::LinuxDontNeed)? };
    Ok(())
}

/// Maps whole pages anew: of the ways to give memory back, the one that lowers `phys_footprint` at once
/// and leaves zeros.
///
/// # Safety
///
/// As for [`release`].
#[cfg(not(target_os = "linux"))]
unsafe fn empty(start: NonNull<u8>, len: usize) -> io::Result<()> {
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED;
    // SAFETY: guaranteed by the caller.
    unsafe { rustix::mm::mmap_anonymous(start.as_ptr().cast(), len, rights, flags)? };
    Ok(())
}

pub(super) fn take(_: NonNull<u8>, _: usize) -> io::Result<()> {
    Ok(())
}
