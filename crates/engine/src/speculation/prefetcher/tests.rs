//! Offers, sweeps and limits of the prefetcher.

use std::time::Duration;

use sws_cache::policy::Lru;
use sws_store::Timing;

use super::*;

const BYTES: usize = 1000;

fn id(layer: u32, expert: u32) -> PieceId {
    PieceId::expert(layer, expert)
}

/// Three layers of 32 experts, 2 of them per token.
fn prefetcher() -> Prefetcher {
    Prefetcher::new(vec![Some((32, 2)); 3], true, 0.1)
}

/// A disk that reads a byte per nanosecond. No computing is measured, so there is always time.
fn account() -> Account {
    let mut account = Account::new(3, false);
    let finished = Duration::from_nanos(BYTES as u64);
    let timing = Timing { started: Some(Duration::ZERO), finished, ..Timing::default() };
    account.landed(BYTES, true, &timing);
    account
}

fn forecast(layer: usize, probabilities: &[(u32, f32)]) -> LayerBlueprint {
    let mut expert_probs = vec![0.0; 32];
    probabilities.iter().for_each(|&(expert, p)| expert_probs[expert as usize] = p);
    let selected_experts = probabilities.iter().map(|&(expert, _)| expert).collect();
    LayerBlueprint { layer_idx: layer, expert_probs, selected_experts }
}

/// Returns the prefetches of a round in which `outcome` decides each outcome.
fn round(
    prefetcher: &mut Prefetcher,
    load: Load,
    mut outcome: impl FnMut(&Prefetch) -> PrefetchOutcome,
) -> Vec<(PieceId, ReadOrigin)> {
    let mut cache = PredictiveCache::new(Box::new(Lru::new()), [(BYTES, ())]);
    cache.begin(0, id(1, 9), BYTES, Need::Now).unwrap();
    let account = account();
    let mut round = prefetcher.round(&account, Moment::default(), load, None);
    let mut tried = Vec::new();
    while let Some(prefetch) = prefetcher.next(
        &mut round,
        &account,
        &cache,
        |_| false,
        |id| (id != self::id(2, 31)).then_some(BYTES),
    ) {
        tried.push((prefetch.id, prefetch.origin));
        let outcome = outcome(&prefetch);
        prefetcher.tried(&mut round, &account, &prefetch, outcome);
    }
    tried
}

fn offers(tried: &[(PieceId, ReadOrigin)]) -> Vec<PieceId> {
    assert!(tried.iter().all(|(_, origin)| *origin == ReadOrigin::Forecast));
    tried.iter().map(|(id, _)| *id).collect()
}

#[test]
fn offers_go_by_layer_and_probability_and_skip_present_pieces() {
    let mut prefetcher = prefetcher();
    prefetcher.follow(&forecast(2, &[(4, 0.8), (31, 0.7), (5, 0.05)]), |_, _| {});
    prefetcher.follow(&forecast(1, &[(3, 0.6), (9, 0.5), (2, 0.4)]), |_, _| {});
    let all = [id(1, 3), id(1, 2), id(2, 4)];
    let tried = round(&mut prefetcher, Load::default(), |_| PrefetchOutcome::Issued);
    assert_eq!(offers(&tried), all, "9 is present, 31 unknown, 5 improbable");
    let mut hints = Vec::new();
    prefetcher.follow(&forecast(1, &[(3, 0.2)]), |id, p| hints.push((id, p)));
    let forgotten = [id(1, 3), id(1, 9), id(1, 2)].map(|id| (id, 0.0));
    assert_eq!(hints[..3], forgotten);
    assert_eq!(hints[3..], [(id(1, 3), 0.2)]);
    prefetcher.settle(1);
    let tried = round(&mut prefetcher, Load::default(), |_| PrefetchOutcome::Issued);
    assert_eq!(offers(&tried), [id(2, 4)], "layer 1 has chosen");
}

#[test]
fn round_ends_without_slots_or_at_its_limits() {
    let probabilities: Vec<(u32, f32)> = (10..30).map(|expert| (expert, 0.5)).collect();
    let full = Load { prefetches: IN_FLIGHT - 2, ..Load::default() };
    let cases = [
        (Load::default(), PrefetchOutcome::Issued, IN_FLIGHT),
        (full, PrefetchOutcome::Issued, 2),
        (Load::default(), PrefetchOutcome::Refused, REFUSALS),
        (Load::default(), PrefetchOutcome::ExpectedSooner, REFUSALS),
        (Load::default(), PrefetchOutcome::InUse, 1),
    ];
    for (load, outcome, expected) in cases {
        let mut prefetcher = prefetcher();
        prefetcher.follow(&forecast(1, &probabilities), |_, _| {});
        let tried = round(&mut prefetcher, load, |_| outcome);
        assert_eq!(tried.len(), expected, "{load:?}, {outcome:?}");
    }
}

#[test]
fn likely_victims_are_worth_more_than_doubtful_prefetches() {
    for (probability, victim, worth) in
        [(0.3, 0.0, true), (0.3, 0.5, false), (0.6, 0.5, true), (0.995, 1.0, true)]
    {
        let mut prefetcher = prefetcher();
        prefetcher.follow(&forecast(1, &[(3, probability)]), |_, _| {});
        let mut asked = 0;
        round(&mut prefetcher, Load::default(), |prefetch| {
            asked += 1;
            assert_eq!(prefetch.is_worth(victim), worth, "{probability}, {victim}");
            PrefetchOutcome::Refused
        });
        assert_eq!(asked, 1);
    }
}

#[test]
fn a_sweep_pins_later_layers_and_reads_the_next() {
    let mut prefetcher = prefetcher();
    assert!(!prefetcher.begins_sweep(0, 1), "one token says nothing");
    assert_eq!(prefetcher.next_layer(0, 20), None, "3 in 4 experts are not enough");
    assert!(prefetcher.begins_sweep(0, 100));
    assert!(!prefetcher.begins_sweep(1, 1) && prefetcher.is_sweeping(), "decided in layer 0");
    let (layer, probability, priority) = prefetcher.next_layer(0, 100).unwrap();
    assert_eq!((layer, priority), (1, Priority::Ahead));
    prefetcher.expect((0..3).map(|expert| ExpectedPiece {
        id: id(1, expert),
        probability,
        priority,
    }));
    assert_eq!(prefetcher.next_layer(0, 100), None, "it is expected already");
    let mut outcomes =
        [PrefetchOutcome::Issued, PrefetchOutcome::Refused, PrefetchOutcome::InUse].into_iter();
    let tried = round(&mut prefetcher, Load::default(), |_| outcomes.next().unwrap());
    assert_eq!(tried, [0, 1, 2].map(|expert| (id(1, expert), ReadOrigin::Sweep)));
    let tried = round(&mut prefetcher, Load::default(), |_| PrefetchOutcome::Issued);
    assert_eq!(tried, [(id(1, 2), ReadOrigin::Sweep)], "only what had no slot is tried again");
}

#[test]
fn free_slots_are_filled_one_by_one_on_an_idle_device() {
    let mut prefetcher = prefetcher();
    prefetcher.fill.begin(vec![(0.2, id(0, 1)), (0.9, id(1, 9)), (0.5, id(0, 2))]);
    let busy = Load { reads: 1, ..Load::default() };
    assert!(round(&mut prefetcher, busy, |_| PrefetchOutcome::Issued).is_empty());
    for _ in 0..2 {
        let tried = round(&mut prefetcher, Load::default(), |prefetch| {
            assert!(!prefetch.is_worth(0.0), "nothing is evicted for it");
            PrefetchOutcome::Issued
        });
        assert_eq!(tried, [(id(0, 2), ReadOrigin::WarmFill)], "9 of layer 1 is present");
    }
    round(&mut prefetcher, Load::default(), |_| PrefetchOutcome::Refused);
    assert_eq!(prefetcher.fill, WarmFill::Off, "no slot is free");
}
