//! Memory of slots, as the system counts it.

use sws_store::{Arena, Slot};

const LEN: usize = 4 << 20;

/// Bytes of a range of addresses that are in memory.
fn resident(start: usize, len: usize) -> usize {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_inside = false;
    let mut kib = 0;
    for line in maps.lines() {
        let range = line.split(' ').next().and_then(|word| word.split_once('-'));
        let address = |word| usize::from_str_radix(word, 16).ok();
        if let Some((from, to)) = range.and_then(|(from, to)| address(from).zip(address(to))) {
            is_inside = from < start + len && start < to;
        } else if let Some(rss) = line.strip_prefix("Rss:").filter(|_| is_inside) {
            kib += rss.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap();
        }
    }
    kib << 10
}

#[test]
fn only_written_slots_take_memory() {
    let arena = Arena::new(16 * LEN).unwrap();
    let mut slots: Vec<Slot> = (0..16).map(|_| arena.take(LEN).unwrap()).collect();
    let start = slots[0].as_ptr() as usize;
    let resident = || resident(start, 16 * LEN);
    assert_eq!(resident(), 0);
    slots[3].fill(1);
    slots[9].fill(1);
    assert_eq!(resident(), 2 * LEN);
    drop(slots.swap_remove(9));
    arena.release_free().unwrap();
    assert_eq!(resident(), LEN);
}
