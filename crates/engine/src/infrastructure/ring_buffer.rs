//! A run of memory that is handed out in pieces and comes back in about the same order.

use sws_store::Slot;

/// One slot, cut as asked for. Pieces are taken one behind the other, and from the beginning again
/// at the end, nowhere else: as they come back in the order in which they were taken, what is free
/// is in one run, or two.
#[derive(Debug)]
pub(crate) struct RingBuffer {
    bytes: usize,
    start: usize,
    /// By address; no two touch.
    free: Vec<Slot>,
    /// Where the last one that was taken ends.
    next: usize,
}

impl RingBuffer {
    pub(crate) fn new(whole: Option<Slot>) -> RingBuffer {
        RingBuffer {
            bytes: whole.as_ref().map_or(0, |slot| slot.len()),
            start: whole.as_ref().map_or(0, address),
            free: whole.into_iter().collect(),
            next: 0,
        }
    }

    /// How much there is in all.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// How much has not been taken.
    pub(crate) fn free_bytes(&self) -> usize {
        self.free.iter().map(|slot| slot.len()).sum()
    }

    /// At least `len` bytes, which must be some.
    pub(crate) fn take(&mut self, len: usize) -> Option<Slot> {
        let fits = |&place: &usize| {
            let at = self.free.binary_search_by_key(&place, address).ok()?;
            (self.free[at].len() >= len).then_some(at)
        };
        let at = [self.next, self.start].iter().find_map(fits)?;
        let mut taken = self.free.remove(at);
        if let Some(rest) = taken.split_off(len) {
            self.free.insert(at, rest);
        }
        self.next = address(&taken) + taken.len();
        Some(taken)
    }

    /// Takes back what was taken: the first, or the last, which then was never there.
    pub(crate) fn give(&mut self, slot: Slot) {
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

    fn room() -> RingBuffer {
        RingBuffer::new(Some(Slot::alone(PAGES * SLOT_ALIGN).unwrap()))
    }

    proptest! {
        /// Whatever is taken and given, in order or not, it is whole again in the end.
        #[test]
        fn nothing_is_lost(steps in prop::collection::vec((0usize..3, 1usize..80_000), 1..80)) {
            let mut room = room();
            let mut held = VecDeque::new();
            for (step, size) in steps {
                match step {
                    0 => held.extend(room.take(size)),
                    1 => held.pop_front().into_iter().for_each(|slot| room.give(slot)),
                    _ => {
                        let last = size % held.len().max(1);
                        held.remove(last).into_iter().for_each(|slot| room.give(slot));
                    }
                }
                let used: usize = held.iter().map(|slot: &Slot| slot.len()).sum();
                prop_assert_eq!(room.free_bytes() + used, room.bytes());
            }
            held.into_iter().for_each(|slot| room.give(slot));
            prop_assert_eq!(room.take(PAGES * SLOT_ALIGN).map(|slot| slot.len()), Some(room.bytes()));
        }

        /// Taken and given in the same order, less is idle than two of the largest take.
        #[test]
        fn in_order_it_is_full(sizes in prop::collection::vec(1usize..60_000, 50..200)) {
            let mut room = room();
            let mut held = VecDeque::new();
            let largest = sizes.iter().max().unwrap().next_multiple_of(SLOT_ALIGN);
            for size in sizes {
                let slot = loop {
                    if let Some(slot) = room.take(size) {
                        break slot;
                    }
                    prop_assert!(room.free_bytes() < 2 * largest);
                    room.give(held.pop_front().unwrap());
                };
                held.push_back(slot);
            }
        }
    }
}
