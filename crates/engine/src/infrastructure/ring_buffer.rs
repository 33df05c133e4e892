//! A ring buffer: memory that is handed out in slots and returned in about the same order.

use sws_store::Slot;

/// A slot that is cut on demand. Slots are taken only behind the previous one, or from the start
/// after the end. As they are returned in the order in which they were taken, free memory is in one
/// run, or two. One slot may stay while others are taken and returned around it.
#[derive(Debug)]
pub(crate) struct RingBuffer {
    bytes: usize,
    start: usize,
    /// Free runs by address; no two are adjacent.
    free: Vec<Slot>,
    /// End address of the last slot taken.
    next: usize,
    /// Slots taken and not returned.
    out: usize,
}

impl RingBuffer {
    pub(crate) fn new(whole: Option<Slot>) -> RingBuffer {
        RingBuffer {
            bytes: whole.as_ref().map_or(0, |slot| slot.len()),
            start: whole.as_ref().map_or(0, address),
            free: whole.into_iter().collect(),
            next: 0,
            out: 0,
        }
    }

    /// Bytes in all.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Free bytes.
    pub(crate) fn free_bytes(&self) -> usize {
        self.free.iter().map(|slot| slot.len()).sum()
    }

    /// Takes a slot of at least `len` bytes; `len` must not be 0.
    pub(crate) fn take(&mut self, len: usize) -> Option<Slot> {
        let fits = |&place: &usize| {
            let at = self.free.binary_search_by_key(&place, address).ok()?;
            (self.free[at].len() >= len).then_some(at)
        };
        // A single slot leaves no order to keep, so the next slot may begin right after it.
        let anywhere = || match self.out {
            0 | 1 => self.free.iter().position(|slot| slot.len() >= len),
            _ => None,
        };
        let at = [self.next, self.start].iter().find_map(fits).or_else(anywhere)?;
        let mut taken = self.free.remove(at);
        if let Some(rest) = taken.split_off(len) {
            self.free.insert(at, rest);
        }
        self.next = address(&taken) + taken.len();
        self.out += 1;
        Some(taken)
    }

    /// Returns a slot: the oldest one, or the last one taken, which undoes the take.
    pub(crate) fn give(&mut self, slot: Slot) {
        self.out -= 1;
        if address(&slot) + slot.len() == self.next {
            self.next = address(&slot);
        }
        let at = self.free.partition_point(|other| address(other) < address(&slot));
        self.free.insert(at, slot);
        for left in [Some(at), at.checked_sub(1)].into_iter().flatten() {
            if left + 1 < self.free.len() {
                let right = self.free.remove(left + 1);
                if let Err(right) = self.free[left].join(right) {
                    self.free.insert(left + 1, right);
                }
            }
        }
    }
}

fn address(slot: &Slot) -> usize {
    slot.as_ptr() as usize
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;
    use sws_store::SLOT_ALIGN;

    use super::*;

    const PAGES: usize = 64;

    fn buffer() -> RingBuffer {
        RingBuffer::new(Some(Slot::alone(PAGES * SLOT_ALIGN).unwrap()))
    }

    proptest! {
        /// Whatever is taken and returned, in order or not, the buffer is whole again in the end.
        #[test]
        fn no_memory_is_lost(steps in prop::collection::vec((0usize..3, 1usize..80_000), 1..80)) {
            let mut buffer = buffer();
            let mut held = VecDeque::new();
            for (step, size) in steps {
                match step {
                    0 => held.extend(buffer.take(size)),
                    1 => held.pop_front().into_iter().for_each(|slot| buffer.give(slot)),
                    _ => {
                        let last = size % held.len().max(1);
                        held.remove(last).into_iter().for_each(|slot| buffer.give(slot));
                    }
                }
                let used: usize = held.iter().map(|slot: &Slot| slot.len()).sum();
                prop_assert_eq!(buffer.free_bytes() + used, buffer.bytes());
            }
            held.into_iter().for_each(|slot| buffer.give(slot));
            prop_assert_eq!(buffer.take(PAGES * SLOT_ALIGN).map(|slot| slot.len()), Some(buffer.bytes()));
        }

        /// If slots are returned in order, fewer bytes are idle than two of the largest slots.
        #[test]
        fn in_order_little_is_idle(sizes in prop::collection::vec(1usize..60_000, 50..200)) {
            let mut buffer = buffer();
            let mut held = VecDeque::new();
            let largest = sizes.iter().max().unwrap().next_multiple_of(SLOT_ALIGN);
            for size in sizes {
                let slot = loop {
                    if let Some(slot) = buffer.take(size) {
                        break slot;
                    }
                    prop_assert!(buffer.free_bytes() < 2 * largest);
                    buffer.give(held.pop_front().unwrap());
                };
                held.push_back(slot);
            }
        }
    }

    #[test]
    fn memory_behind_a_slot_that_stays_is_found() {
        let mut buffer = buffer();
        let pages = |n: usize| n * SLOT_ALIGN;
        let first = buffer.take(pages(20)).unwrap();
        let stays = buffer.take(pages(10)).unwrap();
        buffer.give(first);
        let long = buffer.take(pages(30)).unwrap();
        let last = buffer.take(pages(4)).unwrap();
        buffer.give(long);
        buffer.give(last);
        // Before it are 20 pages, behind it 34, where neither the last slot ended nor all begins.
        let found = buffer.take(pages(25)).unwrap();
        assert_eq!(address(&found), address(&stays) + pages(10));
        assert!(buffer.take(pages(25)).is_none());
    }
}
