//! Pages of memory that are reserved at once and taken as they are needed.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

use std::io;
use std::ops::Range;
use std::ptr::NonNull;

#[cfg(unix)]
use unix as system;
#[cfg(windows)]
use windows as system;

/// A huge page on most machines.
pub const HUGE_PAGE: usize = 2 << 20;

/// A run of anonymous pages, all zero at first.
///
/// It costs address space only, until a page is first written. Windows charges it to the process at once.
#[derive(Debug)]
pub struct ReservedPages {
    start: NonNull<u8>,
    len: usize,
    /// The whole reservation, of which `start` is the aligned part.
    whole: Reservation,
}

/// Pages as the system gave them.
#[derive(Debug)]
struct Reservation {
    start: NonNull<u8>,
    #[cfg_attr(windows, expect(dead_code, reason = "freed by its address"))]
    len: usize,
}

// SAFETY: the pages are plain memory that belongs to this value alone, and is reached through it.
unsafe impl Send for ReservedPages {}
// SAFETY: a shared reference gives an address and a length.
unsafe impl Sync for ReservedPages {}

impl ReservedPages {
    /// Reserves at least `len` bytes at a multiple of `align`. With the alignment of a [`HUGE_PAGE`] the
    /// system is asked for huge pages, where it has them.
    pub fn reserve(len: usize, align: usize) -> io::Result<ReservedPages> {
        let refused = io::ErrorKind::OutOfMemory;
        let align = align.max(1);
        let len = len.max(1).checked_next_multiple_of(align).ok_or(refused)?;
        // The system aligns to pages itself.
        let slack = if align > 4096 { align } else { 0 };
        let whole = system::reserve(len.checked_add(slack).ok_or(refused)?)?;
        let map = whole.start;
        // SAFETY: skips less than `slack`, and `len` bytes follow.
        let start = unsafe { map.add(map.align_offset(align)) };
        if align >= HUGE_PAGE {
            system::prefer_huge(start, len);
        }
        Ok(ReservedPages { start, len, whole })
    }

    /// Address of the first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True for no bytes, which never happens.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All of the pages.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the pages belong to this value, which is borrowed mutably, and are initialised to zero.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Returns the memory of whole pages within a range to the system. They must be [taken](Self::take)
    /// again before they are used, and are zero then.
    ///
    /// # Safety
    ///
    /// Nothing may refer to the range.
    pub unsafe fn release(&self, range: Range<usize>) -> io::Result<()> {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: inside the reservation; the caller guarantees the rest.
        unsafe { system::release(self.start.add(range.start), range.len()) }
    }

    /// Makes a range usable that may have been released. The system may have no memory for it.
    pub fn take(&self, range: Range<usize>) -> io::Result<()> {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: inside the reservation.
        system::take(unsafe { self.start.add(range.start) }, range.len())
    }
}

impl Drop for ReservedPages {
    fn drop(&mut self) {
        // SAFETY: made by `system::reserve`, and this value, through which alone it is reached, is gone.
        unsafe { system::free(&self.whole) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_pages_come_back_empty() {
        for align in [4096, HUGE_PAGE] {
            let mut pages = ReservedPages::reserve(3 * HUGE_PAGE, align).unwrap();
            assert!(pages.len() == 3 * HUGE_PAGE && !pages.is_empty());
            assert_eq!(pages.start().align_offset(align), 0);
            pages.as_mut_slice().fill(7);
            // SAFETY: nothing refers to the pages.
            unsafe { pages.release(HUGE_PAGE..2 * HUGE_PAGE).unwrap() };
            pages.take(HUGE_PAGE..2 * HUGE_PAGE).unwrap();
            let sum = |bytes: &[u8]| bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>();
            assert_eq!(sum(pages.as_mut_slice()), 2 * 7 * HUGE_PAGE as u64);
        }
        assert!(ReservedPages::reserve(usize::MAX, 4096).is_err());
    }
}
