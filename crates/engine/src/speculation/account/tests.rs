//! Figures of the account, from times that are set by hand.

use sws_cache::Need;
use sws_cache::policy::Lru;

use super::*;

fn at(now: u64, waited: u64) -> Moment {
    Moment { now: Duration::from_nanos(now), waited: Duration::from_nanos(waited) }
}

fn timing(submitted: u64, started: u64, finished: u64) -> Timing {
    let [submitted, started, finished] = [submitted, started, finished].map(Duration::from_nanos);
    Timing { submitted, started: Some(started), finished, ..Timing::default() }
}

/// An account of one layer, where an expert computes for 5 ns and a read of 10 bytes takes 10
/// ns.
fn measured() -> Account {
    let mut account = Account::new(1, false);
    for pass in 0..2 {
        account.pass_begins(at(100 * pass, 0), 1, false, StoreStats::default());
        account.pace.entering(0, at(100 * pass, 0));
        account.pace.chosen(0, at(100 * pass + 1, 0));
        account.pace.experts(0, 2, at(100 * pass + 1, 0));
        account.done(0, at(100 * pass + 11, 0), false);
    }
    account.landed(10, true, &timing(200, 200, 210));
    account.landed(10, true, &timing(205, 210, 220));
    account
}

fn cache(pieces: &[u32]) -> PredictiveCache<()> {
    let mut cache = PredictiveCache::new(Box::new(Lru::new()), vec![(10, ()); 3]);
    for &expert in pieces {
        let id = PieceId::expert(0, expert);
        cache.begin(0, id, 10, Need::Now).unwrap();
        cache.ready(id, ());
    }
    cache
}

#[test]
fn saved_stalls_and_caused_misses_are_booked() {
    let id = |expert| PieceId::expert(0, expert);
    // Resident pieces, the prefetched piece and its victim, the router's choice, nanoseconds
    // waited; nanoseconds saved and lost, useful and wasted prefetches.
    type Case = (&'static [u32], (u32, Option<u32>), [u32; 2], u64, (f64, f64), (u64, u64));
    let cases: [Case; 4] = [
        // A hit instead of a miss: the other expert would have hidden 5 of the 10 ns of its
        // read.
        (&[1, 2], (3, None), [2, 3], 0, (5.0, 0.0), (1, 0)),
        // Neither chosen nor harmful.
        (&[1, 2], (3, None), [1, 2], 0, (0.0, 0.0), (0, 0)),
        // It has evicted a piece that is chosen: a miss caused by speculation.
        (&[4, 1, 2], (3, Some(4)), [2, 4], 5, (0.0, 5.0), (0, 0)),
        // Both: the miss has moved from one piece to another.
        (&[4, 1, 2], (3, Some(4)), [3, 4], 5, (5.0, 5.0), (1, 0)),
    ];
    for (resident, (prefetched, victim), choice, waited, booked, counted) in cases {
        let mut account = measured();
        let mut cache = cache(resident);
        let claim = cache.begin_if(0, id(prefetched), 10, Need::Forecast(1.0), |_, _| true);
        let evicted = claim.unwrap().evicted;
        assert_eq!(evicted, victim.map(id));
        cache.ready(id(prefetched), ());
        account.issued(id(prefetched), true, evicted, &cache);
        account.landed_unasked(10);
        let chosen =
            ChosenExperts { layer: 0, distinct: &choice, bytes: 10, sweeping: false, begun: &[] };
        account.pace.entering(0, at(300, 0));
        account.chosen(at(301, 0), chosen, &mut cache);
        account.pace.experts(0, 2, at(301, 0));
        account.done(0, at(311 + waited, waited), false);
        let total = account.governor.total();
        let case = format!("{resident:?}, {prefetched}, {choice:?}");
        assert_eq!((total.saved_ns, total.cost_ns), booked, "{case}");
        assert_eq!((total.useful, total.wasted), counted, "{case}");
    }
}

/// Where layers without speculation wait twice as long as the model expects, so does the one that
/// a prefetch has saved.
#[test]
fn stalls_are_scaled_to_those_without_speculation() {
    let mut device = Device::default();
    assert_eq!(device.stall_scale(10.0), 1.0);
    device.stalled(0.0, 0.0);
    assert_eq!(device.stall_scale(10.0), 1.0, "nothing was expected, and nothing waited for");
    (0..2000).for_each(|_| device.stalled(20.0, 10.0));
    let scale = device.stall_scale(10.0);
    assert!((1.95..2.0).contains(&scale), "{scale}");
    (0..2000).for_each(|_| device.stalled(10.0, 10.0));
    let scale = device.stall_scale(10.0);
    assert!((1.0..1.01).contains(&scale), "{scale}");
}

#[test]
fn sweeps_book_nothing() {
    let mut account = measured();
    let mut cache = cache(&[1, 2]);
    let chosen =
        ChosenExperts { layer: 0, distinct: &[1, 3], bytes: 10, sweeping: true, begun: &[] };
    account.issued(PieceId::expert(0, 2), true, None, &cache);
    account.chosen(at(300, 0), chosen, &mut cache);
    account.done(0, at(400, 80), true);
    assert_eq!(account.governor.total().balance_ns(), 0.0);
}

#[test]
fn read_times_are_known_from_the_first_read_on() {
    let mut account = Account::new(1, false);
    assert_eq!((account.demanded_nanos(10), account.prefetch_nanos(10)), (0.0, 0.0));
    assert!(account.offer(10, 0.5, 100.0).is_none());
    account.landed(10, false, &timing(0, 0, 50));
    assert!(account.offer(10, 0.5, 100.0).is_none(), "a prefetch is no measure of a demand");
    account.landed(10, true, &timing(60, 60, 80));
    assert_eq!((account.demanded_nanos(10), account.demanded_nanos(0)), (20.0, 0.0));
    assert_eq!(account.offer(10, 0.5, 100.0).unwrap().service, 20.0);
}
