//! Division of a run of memory into slots.

use sws_store::SLOT_ALIGN;

/// Slots of one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotClass {
    /// Bytes of each, whole pages.
    pub len: usize,
    /// Number of slots.
    pub count: usize,
}

impl SlotClass {
    /// Bytes of all slots.
    pub fn bytes(&self) -> u64 {
        self.len as u64 * self.count as u64
    }

    /// Number of slots of all classes.
    pub fn count_of(classes: &[SlotClass]) -> usize {
        classes.iter().map(|class| class.count).sum()
    }

    /// The slots of both lists, as one list of classes. The lengths in `more` must occur in
    /// `classes`.
    pub(super) fn together(classes: &[SlotClass], more: &[SlotClass]) -> Vec<SlotClass> {
        let mut together = classes.to_vec();
        for class in &mut together {
            for more in more {
                if more.len == class.len {
                    class.count += more.count;
                }
            }
        }
        together
    }

    /// Length of each slot of all classes.
    pub(crate) fn each(classes: &[SlotClass]) -> impl Iterator<Item = usize> {
        classes.iter().flat_map(SlotClass::lens)
    }

    /// Length of each slot.
    fn lens(&self) -> std::iter::RepeatN<usize> {
        std::iter::repeat_n(self.len, self.count)
    }
}

/// Length classes of a model's experts, and the order in which slots are made.
#[derive(Debug, Default)]
pub(super) struct SlotSizes {
    /// Classes, longest first; `count` is the number of experts.
    pub(super) classes: Vec<SlotClass>,
    /// Minimum number of slots of each class.
    least: Vec<usize>,
}

/// An expert belongs to a class if at most one part in this many of its slot stays empty.
const WASTE: usize = 32;
/// Minimum number of slots: one expert is computed while the next one is read.
const LEAST: usize = 2;

impl SlotSizes {
    /// Classes for experts of these lengths. A token uses `top_k` experts per layer.
    pub(super) fn new(mut lens: Vec<usize>, top_k: usize) -> SlotSizes {
        for len in &mut lens {
            *len = (*len).max(1).next_multiple_of(SLOT_ALIGN);
        }
        lens.sort_unstable();
        lens.reverse();
        let mut classes: Vec<SlotClass> = Vec::new();
        for len in lens {
            match classes.last_mut() {
                Some(class) if len >= class.len - class.len / WASTE => class.count += 1,
                _ => classes.push(SlotClass { len, count: 1 }),
            }
        }
        let least = classes.iter().map(|class| class.count.min(top_k.max(LEAST))).collect();
        SlotSizes { classes, least }
    }

    /// Bytes of a slot for every expert.
    pub(super) fn bytes(&self) -> u64 {
        self.classes.iter().map(SlotClass::bytes).sum()
    }

    /// Bytes of the minimum number of slots.
    pub(super) fn least_bytes(&self) -> u64 {
        let mut bytes = 0;
        for (class, &least) in self.classes.iter().zip(&self.least) {
            bytes += class.len as u64 * least as u64;
        }
        bytes
    }

    pub(super) fn experts(&self) -> usize {
        SlotClass::count_of(&self.classes)
    }

    /// Cuts `room` bytes into slots, of each class in proportion to its experts. There must be room
    /// for the minimum.
    ///
    /// Slots are made in one fixed order, skipping those that do not fit. More room therefore never
    /// gives fewer bytes of slots.
    pub(super) fn cut(&self, room: u64) -> Vec<SlotClass> {
        self.cut_beyond(&self.least, room.saturating_sub(self.least_bytes()))
    }

    /// Cuts another `room` bytes into slots for experts that have none in `slots`, in the same way.
    ///
    /// If experts have several lengths, two rooms that both grow can together give fewer bytes of
    /// slots, by less than two of the longest: each skips slots that do not fit.
    pub(super) fn additional(&self, slots: &[SlotClass], room: u64) -> Vec<SlotClass> {
        let counts: Vec<usize> = slots.iter().map(|class| class.count).collect();
        let mut additional = self.cut_beyond(&counts, room);
        for (class, has) in additional.iter_mut().zip(counts) {
            class.count -= has;
        }
        additional.retain(|class| class.count > 0);
        additional
    }

    /// Returns `least` slots of each class, and as many more as fit into `left` bytes.
    fn cut_beyond(&self, least: &[usize], mut left: u64) -> Vec<SlotClass> {
        let pairs = self.classes.iter().zip(least);
        let mut slots: Vec<SlotClass> =
            pairs.map(|(class, &count)| SlotClass { len: class.len, count }).collect();
        // With one class the order does not matter.
        if let ([class], [slots]) = (&*self.classes, &mut *slots) {
            let more = usize::try_from(left / class.len as u64).unwrap_or(usize::MAX);
            slots.count = slots.count.saturating_add(more).min(class.count);
            return vec![*slots];
        }
        let mut planned = least.to_vec();
        while let Some(next) = self.next(&planned) {
            planned[next] += 1;
            let len = self.classes[next].len as u64;
            if len <= left {
                left -= len;
                slots[next].count += 1;
            }
        }
        slots
    }

    /// The class furthest behind its share; `None` once every expert has a slot.
    fn next(&self, planned: &[usize]) -> Option<usize> {
        let mut next: Option<usize> = None;
        for (place, &count) in planned.iter().enumerate() {
            let experts = self.classes[place].count;
            if count >= experts {
                continue;
            }
            let is_behind = match next {
                Some(first) => {
                    let own = (count as u128 + 1) * self.classes[first].count as u128;
                    own < (planned[first] as u128 + 1) * experts as u128
                }
                None => true,
            };
            if is_behind {
                next = Some(place);
            }
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slots(lens: &[(usize, usize)], top_k: usize) -> SlotSizes {
        let lens = lens.iter().flat_map(|&(len, count)| std::iter::repeat_n(len, count));
        SlotSizes::new(lens.collect(), top_k)
    }

    #[test]
    fn similar_lengths_share_a_class() {
        const MIB: usize = 1 << 20;
        type Sizes = &'static [(usize, usize)];
        let cases: [(Sizes, Sizes); 5] = [
            (&[], &[]),
            (&[(5000, 3)], &[(8192, 3)]),
            (&[(MIB, 3), (MIB - 4096, 5)], &[(MIB, 8)]),
            (&[(MIB, 3), (MIB / 2, 5)], &[(MIB, 3), (MIB / 2, 5)]),
            (&[(MIB, 1), (MIB * 31 / 32, 1), (MIB * 30 / 32, 1)], &[(MIB, 2), (MIB * 30 / 32, 1)]),
        ];
        for (lens, expected) in cases {
            let found = slots(lens, 2).classes;
            let expected: Vec<_> =
                expected.iter().map(|&(len, count)| SlotClass { len, count }).collect();
            assert_eq!(found, expected, "{lens:?}");
        }
    }

    #[test]
    fn two_expert_sizes_leave_little_memory_idle() {
        const MIB: usize = 1 << 20;
        let sizes = slots(&[(14 * MIB, 128), (9 * MIB, 384)], 4);
        for percent in [10, 25, 50, 75, 90] {
            let room = sizes.bytes() * percent / 100;
            let cut = sizes.cut(room);
            let used: u64 = cut.iter().map(SlotClass::bytes).sum();
            assert!(used <= room && used * 100 >= room * 95, "{percent} %: {used} of {room}");
            // Each class has its share.
            let share = |i: usize| cut[i].count as f64 / sizes.classes[i].count as f64;
            assert!((share(0) - share(1)).abs() < 0.05, "{percent} %: {cut:?}");
        }
    }

    /// With room for this many of the longest experts at most a twentieth is idle: less than one of
    /// them is left over, and at most one part in `WASTE` of a slot is empty.
    const FLOOR: u64 = 54;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        /// With any two sizes and numbers of experts, and room above the floor, at most a twentieth
        /// of it holds no expert, even if the cached experts are the shortest of each class.
        #[test]
        fn two_sizes_leave_at_most_a_twentieth_idle(
            long in 1usize..16 << 20,
            ratio in 0.02f64..1.0,
            counts in (1usize..600, 1usize..600),
            top_k in 1usize..17,
            share in 0.0f64..1.0,
        ) {
            let whole = |len: usize| len.max(1).next_multiple_of(SLOT_ALIGN);
            let (long, short) = (whole(long), whole((long as f64 * ratio) as usize));
            let sizes = slots(&[(long, counts.0), (short, counts.1)], top_k);
            let floor = sizes.least_bytes().max(FLOOR * long as u64);
            let all = sizes.bytes();
            prop_assume!(floor < all);
            let room = floor + ((all - floor) as f64 * share) as u64;
            let cut = sizes.cut(room);
            let filled: u64 = match &cut[..] {
                // They share a class: the short ones first.
                [class] => {
                    let few = class.count.min(counts.1);
                    (few * short + (class.count - few) * long) as u64
                }
                classes => classes.iter().map(SlotClass::bytes).sum(),
            };
            prop_assert!(filled <= room && (room - filled) * 20 <= room, "{cut:?}: {filled} of {room}");
        }

        /// Slots never exceed the room, and more room never gives fewer bytes of slots. If an
        /// expert has no slot, the rest of the room is too small for one.
        #[test]
        fn more_room_gives_more_slots(
            lens in prop::collection::vec((4096usize..400_000, 1usize..20), 1..5),
            top_k in 1usize..5,
            rooms in prop::collection::vec((0.0f64..1.2, 0.0f64..0.5), 2..12),
        ) {
            let sizes = slots(&lens, top_k);
            let least = sizes.least_bytes();
            let all = sizes.bytes();
            let part = |share: f64| (share * all as f64) as u64;
            let bytes = |slots: &[SlotClass]| slots.iter().map(SlotClass::bytes).sum::<u64>();
            let mut rooms: Vec<(u64, u64)> =
                rooms.iter().map(|&(own, lent)| (least + part(own), part(lent))).collect();
            rooms.sort_unstable();
            let mut before = 0;
            for (room, other) in rooms {
                let cut = sizes.cut(room);
                let used = bytes(&cut);
                prop_assert!(used <= room && used >= before);
                before = used;
                let lent = sizes.additional(&cut, other);
                prop_assert!(bytes(&lent) <= other);
                let all = [&cut[..], &lent].concat();
                let count = |slots: &[SlotClass], len: usize| -> usize {
                    slots.iter().filter(|slots| slots.len == len).map(|slots| slots.count).sum()
                };
                for class in &sizes.classes {
                    let [own, together] = [&cut, &all].map(|slots| count(slots, class.len));
                    let len = class.len as u64;
                    let experts = class.count;
                    prop_assert!(own <= together && together <= experts);
                    prop_assert!(own == experts || room - used < len);
                    prop_assert!(together == experts || other - bytes(&lent) < len);
                }
            }
        }
    }
}
