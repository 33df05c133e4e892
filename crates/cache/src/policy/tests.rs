use std::collections::BTreeSet;
use std::sync::LazyLock;

use sws_format::PieceKind;

use super::*;
use crate::cache::{Lookup, Need, NoRoom, PredictiveCache};

fn layers(count: u32, experts: usize) -> ExpertLayers {
    let with_experts = (0..count).collect();
    ExpertLayers { count, with_experts, visits: Vec::new(), experts, top_k: 2, sequences: 1 }
}

/// A choice for one unknown token.
fn chosen(layer: u32, experts: &[u32]) -> RouterChoice<'_> {
    static UNKNOWN: LazyLock<Pass> = LazyLock::new(|| {
        let mut pass = Pass::default();
        pass.push_unknown(0, 0, 1);
        pass
    });
    RouterChoice { pass: &UNKNOWN, layer, experts }
}

/// Uses every piece once, in turn. Returns the number of hits.
fn go_around(cache: &mut PredictiveCache<()>, pieces: &[PieceId]) -> usize {
    let mut hits = 0;
    for &piece in pieces {
        let key = piece;
        match cache.lookup(key) {
            Lookup::Absent => {
                cache.begin(piece.layer().unwrap_or(0), key, 1, Need::Now).unwrap();
                cache.ready(key, ());
            }
            _ => hits += 1,
        }
    }
    hits
}

/// Pieces that every step uses are used in a cycle. With room for n of m pieces the best hit rate
/// is (n - 1) / (m - 1): all but one slot keep their piece, and that one changes.
#[test]
fn fixed_share_of_cyclic_pieces_stays() {
    let mut pieces = vec![PieceId::EMBED];
    for layer in 0..6 {
        pieces.extend(
            [PieceKind::Norms, PieceKind::Attention, PieceKind::Mlp]
                .map(|kind| PieceId::new(layer, kind)),
        );
    }
    pieces.extend([PieceId::FINAL_NORM, PieceId::LM_HEAD]);
    for slots in 1..=pieces.len() + 1 {
        let policy = ExpectedUse::new(ExpertLayers { with_experts: Vec::new(), ..layers(6, 0) });
        let mut expected = PredictiveCache::new(Box::new(policy), vec![(1, ()); slots]);
        let mut lru = PredictiveCache::new(Box::new(Lru::new()), vec![(1, ()); slots]);
        for round in 0..5 {
            let best = match slots {
                _ if round == 0 => 0..=0,
                n if n >= pieces.len() => pieces.len()..=pieces.len(),
                n => n - 1..=n,
            };
            let hits = go_around(&mut expected, &pieces);
            assert!(best.contains(&hits), "{hits} of {best:?} with {slots} slots");
            let all = round > 0 && slots >= pieces.len();
            assert_eq!(go_around(&mut lru, &pieces), if all { pieces.len() } else { 0 });
        }
    }
}

/// Replays routes of all layers. Returns the misses of their second half.
fn misses(policy: Box<dyn Policy>, slots: usize, routes: &[Vec<[u32; 2]>]) -> usize {
    let order: Vec<u32> = (0..routes[0].len() as u32).collect();
    misses_in(&order, policy, slots, routes)
}

/// The same of passes that visit layers in this order.
fn misses_in(
    order: &[u32],
    policy: Box<dyn Policy>,
    slots: usize,
    routes: &[Vec<[u32; 2]>],
) -> usize {
    let mut cache = PredictiveCache::new(policy, vec![(1, ()); slots]);
    let mut misses = 0;
    for (step, route) in routes.iter().enumerate() {
        for (&layer, experts) in order.iter().zip(route) {
            cache.routed(&chosen(layer, experts));
            for &expert in experts.iter().collect::<BTreeSet<_>>() {
                let key = PieceId::expert(layer, expert);
                if cache.lookup(key) == Lookup::Absent {
                    cache.begin(layer, key, 1, Need::Now).unwrap();
                    cache.ready(key, ());
                    misses += usize::from(step >= routes.len() / 2);
                }
            }
        }
    }
    misses
}

/// Routes whose experts are used unevenly and in runs, from a small generator.
fn routes(steps: usize, layers: usize, experts: u32) -> Vec<Vec<[u32; 2]>> {
    let mut state = 88_172_645_463_325_252u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as u32
    };
    let mut popular = vec![[0u32, 1]; layers];
    (0..steps)
        .map(|_| {
            popular
                .iter_mut()
                .map(|pair| {
                    for expert in pair.iter_mut() {
                        if random() % 4 == 0 {
                            *expert = (random() % experts).min(random() % experts);
                        }
                    }
                    *pair
                })
                .collect()
        })
        .collect()
}

#[test]
fn no_cliff_below_the_working_set_of_one_step() {
    let (count, experts) = (12, 16);
    let routes = routes(800, count, experts);
    // One step uses up to 24 pieces.
    let mut before = usize::MAX;
    for slots in [4, 8, 12, 16, 20, 23, 26, 32, 48, 96] {
        let policy = ExpectedUse::new(layers(count as u32, experts as usize));
        let ours = misses(Box::new(policy), slots, &routes);
        let lru = misses(Box::new(Lru::new()), slots, &routes);
        assert!(ours < before, "{slots} slots: {ours} misses, and {before} with fewer");
        assert!(ours < lru, "{slots} slots: {ours} misses, LRU {lru}");
        if slots < 16 {
            // LRU hits here only where neighbouring steps of a layer share experts by chance.
            let uses = 400 * count * 2;
            assert!(lru > uses * 9 / 10, "{slots} slots: LRU misses {lru} of {uses}");
            let share = slots as f64 / 24.0;
            assert!((ours as f64) < uses as f64 * (1.0 - 0.3 * share), "{slots} slots: {ours}");
        }
        before = ours;
    }
}

/// A pass visits two of six layers four times. Their experts are as many times as likely to be used
/// in a pass, and get more of the slots.
#[test]
fn experts_of_layers_visited_again_are_expected_sooner() {
    let order = [0, 1, 2, 3, 2, 3, 2, 3, 2, 3, 4, 5];
    let routes = routes(800, order.len(), 16);
    for slots in [8, 12, 16, 24, 32, 48] {
        let misses = |visits: Vec<u32>| {
            let policy = ExpectedUse::new(ExpertLayers { visits, ..layers(6, 16) });
            misses_in(&order, Box::new(policy), slots, &routes)
        };
        let (once, again) = (misses(Vec::new()), misses(vec![1, 1, 4, 4, 1, 1]));
        assert!(again < once, "{slots} slots: {again} misses, and {once} without visits");
    }
}

#[test]
fn forecast_evicts_only_pieces_expected_later() {
    let policy = ExpectedUse::new(layers(4, 8));
    let mut cache = PredictiveCache::new(Box::new(policy), vec![(1, ()); 2]);
    // Experts 0 and 1 of layer 0 are used in every step, and of the others only 6 and 7.
    for _ in 0..100 {
        cache.routed(&chosen(0, &[0, 1]));
        cache.routed(&chosen(2, &[6, 7]));
        cache.routed(&chosen(3, &[6, 7]));
    }
    let bring = |cache: &mut PredictiveCache<()>, layer, expert, need| {
        let key = PieceId::expert(layer, expert);
        let evicted = cache.begin(1, key, 1, need)?.evicted;
        cache.ready(key, ());
        Ok::<_, NoRoom>(evicted)
    };
    let key = |layer, expert| PieceId::expert(layer, expert);
    bring(&mut cache, 0, 0, Need::Now).unwrap();
    bring(&mut cache, 3, 0, Need::Now).unwrap();
    #[rustfmt::skip]
    let cases = [
        // layer, expert, probability, result
        (3, 1, 0.0, Err(NoRoom::ExpectedSooner { piece: key(3, 1) })), // as unlikely as the cached ones
        (3, 1, 0.1, Ok(Some(key(3, 0)))),
        (2, 5, 0.0, Err(NoRoom::ExpectedSooner { piece: key(2, 5) })), // 3/1 has a small forecast
        (2, 5, 0.1, Ok(Some(key(3, 1)))), // as unlikely, but its layer comes sooner
        (3, 1, 0.0, Err(NoRoom::ExpectedSooner { piece: key(3, 1) })),
        (3, 6, 0.0, Ok(Some(key(2, 5)))),
        (3, 1, 0.5, Err(NoRoom::ExpectedSooner { piece: key(3, 1) })),
    ];
    for (layer, expert, probability, expected) in cases {
        let came = bring(&mut cache, layer, expert, Need::Forecast(probability));
        assert_eq!(came, expected, "{layer}/{expert} at {probability}");
    }
}

/// A forecast for a cached piece counts only until its layer has chosen.
#[test]
fn forecast_protects_until_its_layer_has_chosen() {
    for kind in PolicyKind::ALL {
        let mut cache = PredictiveCache::new(kind.build(layers(4, 8)), vec![(1, ()); 2]);
        for _ in 0..50 {
            cache.routed(&chosen(1, &[0, 1]));
            cache.routed(&chosen(2, &[4, 5]));
        }
        let key = |layer, expert| PieceId::expert(layer, expert);
        let mut bring = |layer, expert| {
            let _ = cache.lookup(key(layer, expert));
            let evicted = cache.begin(layer, key(layer, expert), 1, Need::Now).unwrap().evicted;
            cache.ready(key(layer, expert), ());
            if (layer, expert) == (3, 2) {
                // Without a forecast 3/2 would be evicted: it was never used, or longest ago.
                cache.foresee(key(3, 2), 0.95);
                cache.foresee(key(3, 7), 0.95);
            }
            if (layer, expert) == (1, 0) {
                cache.routed(&chosen(3, &[7]));
            }
            evicted
        };
        assert_eq!([bring(2, 6), bring(3, 2)], [None, None], "{kind}");
        assert_eq!(bring(1, 0), Some(key(2, 6)), "{kind}: the other one has a forecast");
        assert_eq!(bring(1, 1), Some(key(3, 2)), "{kind}: its layer has chosen others");
    }
}

/// `least_urgent` names the piece that `victim` evicts if the pieces are cached, whatever the forecasts.
#[test]
fn last_agrees_with_victim() {
    let mut policy = ExpectedUse::new(layers(4, 8));
    for step in 0..60 {
        for layer in 0..4 {
            let choice = [(step * layer) % 8, 7 - layer];
            policy.routed(&chosen(layer, &choice));
        }
    }
    let cached: Vec<PieceId> =
        (0..4).flat_map(|layer| [1, 3, 4].map(|expert| PieceId::expert(layer, expert))).collect();
    let mut left = cached.clone();
    while !left.is_empty() {
        let now = PieceId::expert(left.len() as u32 % 4, 0);
        let last = policy.least_urgent(now, &|piece| left.contains(&piece)).unwrap();
        for (slot, &piece) in left.iter().enumerate() {
            policy.arrived(slot, piece);
        }
        let victim = policy.victim(now, &|_| true).map(|slot| left[slot]);
        assert_eq!(victim, Some(last), "of {}", left.len());
        for (slot, &piece) in left.iter().enumerate() {
            policy.set_forecast(slot, piece, 0.9);
            policy.left(slot, piece);
        }
        assert_eq!(policy.least_urgent(now, &|piece| left.contains(&piece)), Some(last));
        for layer in 0..4 {
            policy.routed(&chosen(layer, &[0, 7 - layer]));
        }
        left.retain(|&piece| piece != last);
    }
    assert_eq!(policy.least_urgent(PieceId::EMBED, &|_| false), None);
}

#[test]
fn use_in_every_step_is_expected_within_four() {
    let mut policy = ExpectedUse::new(layers(2, 8));
    for _ in 0..200 {
        policy.routed(&chosen(0, &[0, 1]));
    }
    let mut within = |expert, steps| policy.use_probability(PieceId::expert(0, expert), steps);
    assert!(within(0, 1) > 0.98 && within(0, 4) > 0.98, "{}", within(0, 1));
    assert!(within(5, 4) < 0.1, "{}", within(5, 4));
    for steps in [1, 4, 16] {
        assert!(within(5, steps) <= within(5, 4 * steps));
    }
    assert_eq!(policy.use_probability(PieceId::LM_HEAD, 4), 1.0);
    let lru = Lru::new().use_probability(PieceId::expert(0, 0), 4);
    assert_eq!(lru, 0.5, "no estimate");
}
