//! Page-aligned memory that a device reads into and kernels compute from.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use sws_os::pages::{HUGE_PAGE, ReservedPages};

/// Alignment of the start and end of slots, which every device's direct reads accept.
pub const SLOT_ALIGN: usize = 4096;

/// One anonymous mapping, cut into [`Slot`]s.
///
/// Reserving costs address space only: a page takes memory when it is first written. A slot returns
/// to its arena when it is dropped. Free neighbours join, so that an arena can be cut differently
/// from one generation to the next. Clones share the mapping.
///
/// ```
/// use sws_store::Arena;
///
/// let arena = Arena::new(1 << 20).unwrap();
/// let slot = arena.take(10_000).unwrap();
/// assert_eq!(slot.len(), 12_288);
/// assert_eq!(arena.free_bytes(), (1 << 20) - 12_288);
/// drop(slot);
/// assert_eq!(arena.free_bytes(), 1 << 20);
/// ```
#[derive(Clone, Debug)]
pub struct Arena(Arc<Mapping>);

/// A run of pages of an [`Arena`], with a single owner.
pub struct Slot {
    arena: Arc<Mapping>,
    range: Range<usize>,
}

/// Every byte belongs to at most one slot (`take` removes what it hands out from `free`, `give_back` puts
/// it back once the slot is gone), so shared references to the mapping never lead to the same byte.
#[derive(Debug)]
struct Mapping {
    pages: ReservedPages,
    /// Lengths of the free runs by offset. No two runs touch.
    free: Mutex<BTreeMap<usize, usize>>,
}

impl Arena {
    /// Reserves `bytes`, rounded up to whole pages. From 2 MiB on these are huge pages: a read into
    /// scattered small pages becomes several requests to the device, as each request takes a
    /// limited number of runs of memory (measured: a third of the speed; `docs/benchmarks/lost.md`).
    pub fn new(bytes: usize) -> io::Result<Arena> {
        let page = if bytes >= HUGE_PAGE { HUGE_PAGE } else { SLOT_ALIGN };
        let pages = ReservedPages::reserve(bytes, page)?;
        let free = Mutex::new(BTreeMap::from([(0, pages.len())]));
        Ok(Arena(Arc::new(Mapping { pages, free })))
    }

    /// Takes a slot of at least `len` bytes; `None` if no free run is long enough, or the system does not
    /// give back what was released. The first fit is cut: slots of few sizes leave few holes.
    pub fn take(&self, len: usize) -> Option<Slot> {
        let len = len.max(1).checked_next_multiple_of(SLOT_ALIGN)?;
        let mut free = self.0.free.lock().unwrap_or_else(PoisonError::into_inner);
        let (&at, &run) = free.iter().find(|&(_, &run)| run >= len)?;
        self.0.pages.take(at..at + len).ok()?;
        free.remove(&at);
        if run > len {
            free.insert(at + len, run - len);
        }
        Some(Slot { arena: Arc::clone(&self.0), range: at..at + len })
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.0.pages.len()
    }

    /// Number of bytes that no slot holds.
    pub fn free_bytes(&self) -> usize {
        self.0.free.lock().unwrap_or_else(PoisonError::into_inner).values().sum()
    }

    /// Returns the memory of all free runs to the system; their addresses stay reserved.
    pub fn release_free(&self) -> io::Result<()> {
        let free = self.0.free.lock().unwrap_or_else(PoisonError::into_inner);
        for (&at, &len) in free.iter() {
            // SAFETY: while `free` is locked, the run is in no slot.
            unsafe { self.0.pages.release(at..at + len)? };
        }
        Ok(())
    }
}

impl Mapping {
    fn give_back(&self, mut range: Range<usize>) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(len) = free.remove(&range.end) {
            range.end += len;
        }
        if let Some((&at, &len)) = free.range(..range.start).next_back()
            && at + len == range.start
        {
            range.start = at;
        }
        free.insert(range.start, range.len());
    }
}

impl Slot {
    /// Creates a slot in a mapping of its own.
    pub fn alone(len: usize) -> io::Result<Slot> {
        let arena = Arena::new(len)?;
        arena.take(len).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// Cuts the slot in two; this one keeps the first `at` bytes, rounded up to whole pages.
    /// Returns `None` if one of the two would be empty.
    pub fn split_off(&mut self, at: usize) -> Option<Slot> {
        let cut = self.range.start.checked_add(at.checked_next_multiple_of(SLOT_ALIGN)?)?;
        if cut <= self.range.start || cut >= self.range.end {
            return None;
        }
        let tail = Slot { arena: Arc::clone(&self.arena), range: cut..self.range.end };
        self.range.end = cut;
        Some(tail)
    }

    /// Appends the slot that begins where this one ends. Returns any other slot as the error.
    pub fn join(&mut self, mut next: Slot) -> Result<(), Slot> {
        if !Arc::ptr_eq(&self.arena, &next.arena) || self.range.end != next.range.start {
            return Err(next);
        }
        self.range.end = next.range.end;
        next.range.start = next.range.end;
        Ok(())
    }

    /// Memory of the slot, for several threads to fill at once.
    pub(crate) fn memory(&mut self) -> SlotMemory {
        SlotMemory { start: self.start(), len: self.range.len() }
    }

    fn start(&self) -> NonNull<u8> {
        // SAFETY: the range lies inside the mapping.
        unsafe { self.arena.pages.start().add(self.range.start) }
    }
}

impl Deref for Slot {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies inside the mapping, belongs to this slot alone, and anonymous
        // pages are initialised (to zero).
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.range.len()) }
    }
}

impl DerefMut for Slot {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and the slot is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), self.range.len()) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // A slot that was joined to another is empty.
        if !self.range.is_empty() {
            self.arena.give_back(self.range.clone());
        }
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({:?})", self.range)
    }
}

/// Memory of a [`Slot`] whose owner waits; the scheduler cuts it into ranges.
#[derive(Clone, Copy)]
pub(crate) struct SlotMemory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: an address; the conditions for its use are stated at `slice` and `slice_mut`.
unsafe impl Send for SlotMemory {}
// SAFETY: as above.
unsafe impl Sync for SlotMemory {}

impl SlotMemory {
    /// # Safety
    ///
    /// The slot must be alive and unborrowed, and no other thread may write to `range`, for as long
    /// as the slice is used.
    pub(crate) unsafe fn slice<'a>(self, range: Range<usize>) -> &'a [u8] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: inside the slot; the caller guarantees the rest.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(range.start), range.len()) }
    }

    /// # Safety
    ///
    /// The slot must be alive and unborrowed, and no other thread may touch `range`, for as long as
    /// the slice is used.
    pub(crate) unsafe fn slice_mut<'a>(self, range: Range<usize>) -> &'a mut [u8] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: inside the slot; the caller guarantees the rest.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn slots_are_aligned_zeroed_and_written_through() {
        let arena = Arena::new(5 * SLOT_ALIGN).unwrap();
        let mut a = arena.take(1).unwrap();
        let b = arena.take(SLOT_ALIGN + 1).unwrap();
        assert_eq!((a.len(), b.len()), (SLOT_ALIGN, 2 * SLOT_ALIGN));
        assert_eq!(a.as_ptr() as usize % SLOT_ALIGN, 0);
        assert_eq!(b.as_ptr() as usize % SLOT_ALIGN, 0);
        a.fill(7);
        assert!(b.iter().all(|&byte| byte == 0));
        assert!(arena.take(3 * SLOT_ALIGN).is_none(), "two pages are left");
        drop(a);
        arena.release_free().unwrap();
        assert!(arena.take(1).unwrap().iter().all(|&byte| byte == 0), "the page came back empty");
    }

    #[test]
    fn a_slot_splits_at_pages_and_outlives_its_arena() {
        let mut head = Slot::alone(3 * SLOT_ALIGN).unwrap();
        assert!(head.split_off(3 * SLOT_ALIGN).is_none());
        assert!(head.split_off(0).is_none());
        let mut tail = head.split_off(1).unwrap();
        assert_eq!((head.len(), tail.len()), (SLOT_ALIGN, 2 * SLOT_ALIGN));
        tail.fill(1);
        drop(tail);
        assert!(head.iter().all(|&byte| byte == 0));
    }

    #[test]
    fn neighbours_join_and_others_do_not() {
        let arena = Arena::new(4 * SLOT_ALIGN).unwrap();
        let [mut a, b, mut c] = [0; 3].map(|_| arena.take(1).unwrap());
        c.fill(3);
        let c = a.join(c).unwrap_err();
        let elsewhere = Slot::alone(1).unwrap();
        let _ = a.join(elsewhere).unwrap_err();
        a.join(b).unwrap();
        assert_eq!((a.len(), arena.free_bytes()), (2 * SLOT_ALIGN, SLOT_ALIGN));
        a.join(c).unwrap();
        assert_eq!((a.len(), a[2 * SLOT_ALIGN]), (3 * SLOT_ALIGN, 3));
        drop(a);
        assert_eq!(arena.take(4 * SLOT_ALIGN).unwrap().len(), 4 * SLOT_ALIGN);
    }

    #[test]
    fn large_arenas_consist_of_whole_huge_pages() {
        for (asked, given) in [(1, 4096), (2 << 20, 2 << 20), (7 << 20, 8 << 20)] {
            let arena = Arena::new(asked).unwrap();
            assert_eq!((arena.bytes(), arena.free_bytes()), (given, given));
            let slot = arena.take(given).unwrap();
            assert!(given < HUGE_PAGE || (slot.as_ptr() as usize).is_multiple_of(HUGE_PAGE));
        }
    }

    #[test]
    fn sizes_beyond_memory_are_refused() {
        assert!(Arena::new(usize::MAX).is_err());
        assert!(Arena::new(1).unwrap().take(usize::MAX).is_none());
    }

    proptest! {
        /// Slots never overlap and no byte is lost, in whatever order they are taken and dropped.
        #[test]
        fn slots_never_overlap_or_leak(
            steps in prop::collection::vec((any::<bool>(), 1usize..40_000), 1..60),
        ) {
            let arena = Arena::new(64 * SLOT_ALIGN).unwrap();
            let mut held: Vec<Slot> = Vec::new();
            for (take, size) in steps {
                if take {
                    held.extend(arena.take(size));
                } else if !held.is_empty() {
                    held.swap_remove(size % held.len());
                }
                let mut ranges: Vec<_> = held.iter().map(|slot| slot.range.clone()).collect();
                ranges.sort_by_key(|range| range.start);
                prop_assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
                let used: usize = held.iter().map(|slot| slot.len()).sum();
                prop_assert_eq!(arena.free_bytes() + used, arena.bytes());
            }
            held.clear();
            prop_assert_eq!(arena.take(arena.bytes()).map(|slot| slot.len()), Some(arena.bytes()));
        }
    }
}
