use std::collections::HashSet;

use proptest::prelude::*;

use super::*;
use crate::policy::Lru;

/// An operation on a cache. Indices are taken modulo the number of candidates.
#[derive(Clone, Debug)]
enum Op {
    Begin {
        layer: u32,
        expert: u32,
        forecast: bool,
    },
    /// Ends one of the reads in flight.
    End {
        which: usize,
        well: bool,
    },
    Lookup {
        layer: u32,
        expert: u32,
    },
    Routed {
        layer: u32,
        experts: Vec<u32>,
    },
    Computed {
        which: usize,
    },
    Pin {
        layer: u32,
        expert: u32,
    },
    Unpin {
        which: usize,
    },
    Release {
        layer: u32,
        expert: u32,
    },
    Trim {
        slots: usize,
    },
    Extend,
    Truncate {
        slots: usize,
    },
}

const LAYERS: u32 = 3;
const EXPERTS: u32 = 6;
const SLOTS: usize = 7;

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let piece = (0..LAYERS, 0..EXPERTS);
    let op = prop_oneof![
        8 => (piece.clone(), any::<bool>())
            .prop_map(|((layer, expert), forecast)| Op::Begin { layer, expert, forecast }),
        8 => (any::<usize>(), prop::bool::weighted(0.8))
            .prop_map(|(which, well)| Op::End { which, well }),
        4 => piece.clone().prop_map(|(layer, expert)| Op::Lookup { layer, expert }),
        3 => (0..LAYERS, prop::collection::vec(0..EXPERTS, 1..4))
            .prop_map(|(layer, experts)| Op::Routed { layer, experts }),
        2 => any::<usize>().prop_map(|which| Op::Computed { which }),
        2 => piece.clone().prop_map(|(layer, expert)| Op::Pin { layer, expert }),
        2 => piece.prop_map(|(layer, expert)| Op::Release { layer, expert }),
        2 => any::<usize>().prop_map(|which| Op::Unpin { which }),
        1 => (0..=SLOTS).prop_map(|slots| Op::Trim { slots }),
        1 => Just(Op::Extend),
        1 => (0..=SLOTS).prop_map(|slots| Op::Truncate { slots }),
    ];
    prop::collection::vec(op, 1..120)
}

/// Pieces of odd layers are longer; there are slots for both.
fn piece_len(layer: u32) -> usize {
    if layer.is_multiple_of(2) { 900 } else { 1900 }
}

fn run(ops: Vec<Op>, policy: Box<dyn Policy>) {
    let lens = [1000, 2000, 1000, 2000, 1000, 2000, 1000];
    let mut cache = PredictiveCache::new(policy, lens.into_iter().zip(0usize..));
    let mut budget: usize = lens.iter().sum();
    let mut memory = SLOTS;
    // The expected state: reads in flight, pinned pieces, pieces that the running layer needs.
    let mut reading: Vec<(PieceId, usize)> = Vec::new();
    let mut pinned: Vec<PieceId> = Vec::new();
    let mut needed: HashSet<PieceId> = HashSet::new();
    let mut given_up: Vec<usize> = Vec::new();
    for op in ops {
        let ready_before: Vec<PieceId> = held(&cache);
        match op {
            Op::Begin { layer, expert, forecast } => {
                let key = PieceId::expert(layer, expert);
                let need = if forecast { Need::Forecast(0.5) } else { Need::Now };
                match cache.begin(layer, key, piece_len(layer), need) {
                    Ok(claim) => {
                        assert!(claim.len >= piece_len(layer));
                        if let Some(old) = claim.evicted {
                            assert!(ready_before.contains(&old), "{old} was not ready");
                            assert!(!pinned.contains(&old), "{old} was pinned");
                            assert!(!needed.contains(&old), "{old} was needed");
                        }
                        reading.push((key, claim.payload));
                    }
                    Err(NoRoom::Present { .. }) => assert!(cache.contains(key)),
                    Err(_) => assert!(!cache.contains(key)),
                }
            }
            Op::End { which, well } if !reading.is_empty() => {
                let (key, payload) = reading.swap_remove(which % reading.len());
                let back =
                    if well { cache.ready(key, payload) } else { cache.failed(key, payload) };
                assert_eq!(back, None);
                assert_eq!(cache.get(key), well.then_some(&payload));
            }
            Op::Lookup { layer, expert } => {
                let key = PieceId::expert(layer, expert);
                let expected = match cache.get(key) {
                    Some(_) => Lookup::Ready,
                    None if reading.iter().any(|(k, _)| *k == key) => Lookup::Loading,
                    None => Lookup::Absent,
                };
                assert_eq!(cache.lookup(key), expected);
            }
            Op::Routed { layer, experts } => {
                cache.routed(&RouterChoice { pass: &Pass::default(), layer, experts: &experts });
                needed = experts.iter().map(|&e| PieceId::expert(layer, e)).collect();
            }
            Op::Computed { which } if !needed.is_empty() => {
                let mut keys: Vec<PieceId> = needed.iter().copied().collect();
                keys.sort_unstable();
                let key = keys[which % keys.len()];
                cache.computed(key);
                needed.remove(&key);
            }
            Op::Pin { layer, expert } => {
                let key = PieceId::expert(layer, expert);
                assert_eq!(cache.pin(key), cache.get(key).is_some());
                if cache.get(key).is_some() {
                    pinned.push(key);
                }
            }
            Op::Unpin { which } if !pinned.is_empty() => {
                assert!(cache.unpin(pinned.swap_remove(which % pinned.len())));
            }
            Op::Release { layer, expert } => {
                let key = PieceId::expert(layer, expert);
                let is_idle = !pinned.contains(&key) && !needed.contains(&key);
                let (is_ready, before) = (cache.get(key).is_some(), cache.bytes());
                let released = cache.release(key);
                assert_eq!(released, is_ready && is_idle);
                assert_eq!(cache.bytes() < before, released);
                assert!(!released || !cache.contains(key));
            }
            Op::Trim { slots } => {
                budget = lens.iter().take(slots).sum();
                let back = cache.trim_to_budget(budget);
                memory -= back.len();
                given_up.extend(back);
            }
            Op::Extend => {
                if let Some(payload) = given_up.pop() {
                    cache.extend([(lens[payload], payload)]);
                    budget += lens[payload];
                    memory += 1;
                }
            }
            Op::Truncate { slots } if reading.is_empty() => {
                let back = cache.truncate(slots);
                assert!(cache.payloads().count() <= slots);
                budget -= back.iter().map(|&payload| lens[payload]).sum::<usize>().min(budget);
                memory -= back.len();
                given_up.extend(back);
                pinned.retain(|key| cache.get(*key).is_some());
            }
            _ => {}
        }
        let back = cache.trim_to_budget(budget);
        memory -= back.len();
        given_up.extend(back);
        cache.assert_within_budget();
        assert!(cache.bytes() <= cache.peak_bytes());
        for key in &pinned {
            assert!(cache.get(*key).is_some(), "{key} was evicted although pinned");
        }
        // Every payload is in exactly one place: the cache, a reader, or the removed ones.
        let mut payloads: Vec<usize> = cache.payloads().copied().collect();
        assert_eq!(payloads.len() + reading.len(), memory);
        payloads.extend(reading.iter().map(|(_, payload)| *payload));
        payloads.extend(&given_up);
        payloads.sort_unstable();
        assert_eq!(payloads, (0..SLOTS).collect::<Vec<_>>());
    }
}

fn held<T>(cache: &PredictiveCache<T>) -> Vec<PieceId> {
    cache.index.keys().copied().filter(|&key| cache.get(key).is_some()).collect()
}

impl<T> PredictiveCache<T> {
    fn payloads(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().filter_map(|entry| match &entry.state {
            SlotState::Empty(payload) | SlotState::Ready { payload, .. } => Some(payload),
            SlotState::Loading { .. } | SlotState::Gone => None,
        })
    }
}

proptest! {
    #[test]
    fn pieces_in_use_stay_and_no_payload_is_lost(ops in ops()) {
        run(ops, Box::new(Lru::new()));
    }

    #[test]
    fn lru_matches_naive_reference(uses in prop::collection::vec(0u32..12, 1..200), slots in 1usize..9) {
        let mut cache = PredictiveCache::new(Box::new(Lru::new()), vec![(1, ()); slots]);
        let mut naive: Vec<u32> = Vec::new();
        for expert in uses {
            let key = PieceId::expert(0, expert);
            let hit = naive.iter().position(|&other| other == expert);
            match hit {
                Some(at) => { naive.remove(at); }
                None if naive.len() == slots => { naive.remove(0); }
                None => {}
            }
            naive.push(expert);
            let found = cache.lookup(key);
            prop_assert_eq!(found == Lookup::Ready, hit.is_some());
            if found == Lookup::Absent {
                cache.begin(0, key, 1, Need::Now).unwrap();
                cache.ready(key, ());
            }
        }
    }
}

#[test]
fn slots_are_chosen_in_order() {
    let key = |expert| PieceId::expert(0, expert);
    let mut cache = PredictiveCache::new(Box::new(Lru::new()), [(10, 'a'), (10, 'b'), (20, 'c')]);
    let bring = |cache: &mut PredictiveCache<char>, expert, len| {
        let claim = cache.begin(0, key(expert), len, Need::Now)?;
        cache.ready(key(expert), claim.payload);
        Ok::<_, NoRoom>((claim.payload, claim.evicted))
    };
    #[rustfmt::skip]
    let cases = [
        // expert, bytes, result, reason
        (0, 8, Ok(('b', None)), "an empty slot made for this length"),
        (1, 8, Ok(('a', None)), "another"),
        (2, 8, Ok(('c', None)), "a longer empty slot, before anything is evicted"),
        (3, 8, Ok(('b', Some(key(0)))), "the oldest in a slot made for this length"),
        (4, 15, Ok(('c', Some(key(2)))), "the only slot that is long enough, although 1 is older"),
        (5, 21, Err(NoRoom::TooLarge { piece: key(5), len: 21 }), "no slot is that long"),
        (4, 15, Err(NoRoom::Present { piece: key(4) }), "it is cached"),
    ];
    for (expert, len, expected, why) in cases {
        assert_eq!(bring(&mut cache, expert, len), expected, "{why}");
    }
    // 1, 3 and 4 are cached. The running layer needs 3 and 4, so 1 is evicted although used last.
    cache.routed(&RouterChoice { pass: &Pass::default(), layer: 0, experts: &[3, 4] });
    cache.lookup(key(1));
    assert_eq!(bring(&mut cache, 6, 8), Ok(('a', Some(key(1)))));
    assert!(cache.pin(key(6)));
    assert_eq!(bring(&mut cache, 7, 8), Err(NoRoom::InUse { piece: key(7) }));
    // A computed expert is evicted when nothing else can be.
    cache.computed(key(4));
    assert_eq!(bring(&mut cache, 7, 8), Ok(('c', Some(key(4)))));
    // A longer slot is taken before a computed expert of the running layer is evicted.
    cache.computed(key(3));
    assert_eq!(bring(&mut cache, 8, 8), Ok(('c', Some(key(7)))));
    assert!(cache.unpin(key(6)) && !cache.unpin(key(6)));
    assert_eq!(bring(&mut cache, 9, 8), Ok(('a', Some(key(6)))));
    cache.idle();
    assert_eq!(bring(&mut cache, 10, 8), Ok(('b', Some(key(3)))));
}

#[test]
fn lookups_are_counted_by_layer() {
    let mut cache = PredictiveCache::new(Box::new(Lru::new()), [(1, ())]);
    let key = PieceId::expert(5, 0);
    cache.lookup(key);
    cache.begin(5, key, 1, Need::Now).unwrap();
    cache.lookup(key);
    cache.ready(key, ());
    cache.lookup(key);
    cache.lookup(key);
    cache.lookup(PieceId::expert(6, 0));
    let of = |layer| cache.counts()[&layer];
    assert_eq!(of(5), LookupCounts { hits: 2, late: 1, misses: 1 });
    assert_eq!(of(6), LookupCounts { hits: 0, late: 0, misses: 1 });
}
