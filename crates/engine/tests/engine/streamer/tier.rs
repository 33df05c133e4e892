//! A tier of experts outside memory has the bits of the CPU, and a replay predicts what it computes.

use std::time::Duration;

use sws_cache::replay::{AssumedTimes, ReplayTier, TierOutcome};
use sws_format::Clock;
use sws_store::SimulatedDisk;
use sws_testing::memory_tier::{MemoryTier, TierPace, TierTraits};
use sws_testing::noisy::hash;
use sws_testing::virtual_time::{CHUNK, COSTS};

use super::*;

#[test]
fn bits_do_not_depend_on_a_tier_or_its_failure() {
    let bits = |lm: &mut SpeculativeWeightStreamer| {
        let mut all = vec![hash(lm.prefill(&PROMPT).unwrap())];
        all.extend((20..60).map(|token| hash(lm.decode(token).unwrap())));
        all
    };
    let expected = bits(&mut resident());
    let least = least();
    for more in [0, 2, 40] {
        for (slots, fails_at) in
            [(1, None), (64, None), (256, None), (64, Some(1)), (64, Some(9)), (256, Some(40))]
        {
            let ablations = Ablations { governed: false, ..Ablations::default() };
            let options = Options { ablations, ..options(least + more * MIB) };
            let mut lm = streaming(ReaderKind::Mmap, options);
            let traits = TierTraits { slots, fails_at, ..TierTraits::default() };
            assert!(lm.set_tier(Box::new(MemoryTier::new(traits))));
            assert_eq!(bits(&mut lm), expected, "{more} MiB, {slots} on the tier, {fails_at:?}");
            let counts = lm.counters().tier.unwrap();
            let case = format!("{more} MiB: {counts:?}");
            assert!(counts.copies > 0 && counts.usage.held <= slots as u64, "{case}");
            assert_eq!(counts.usage.held > 0, fails_at.is_none(), "{case}");
            assert!(counts.hits > 0 || slots == 1 || fails_at == Some(1), "{case}");
        }
    }
}

/// Times of the tier beside those of the CPU.
const MORE: Duration = Duration::from_micros(50);
const COPY: Duration = Duration::from_micros(200);

/// An answer in virtual time, and a replay of its routes: the uses of experts, and the counts of the tier of both.
fn replayed(more: u64, room: usize, governed: bool, slower: Duration) -> (u64, [TierOutcome; 2]) {
    let clock = Clock::simulated();
    let latency = Duration::from_micros(20);
    let disk = SimulatedDisk { bytes_per_second: 200_000_000, latency, devices: 1 };
    let manifest = Arc::new(Manifest::load(tales()).unwrap());
    let store = StoreOptions {
        cache: None,
        clock: clock.clone(),
        simulated: Some(disk),
        chunk: CHUNK,
        ..StoreOptions::default()
    };
    let store = Arc::new(NVMeWeightStore::open(manifest, &tales(), store).unwrap());
    let options = |bytes| Options { context: Some(1024), ..options(bytes) };
    let ram = smallest_for(options(0)) + more;
    let plan = streaming(ReaderKind::Mmap, options(ram)).plan().unwrap().clone();
    // A replay has a constant number of slots.
    let plan = Plan { lent: Vec::new(), context_lent: Vec::new(), ..plan };
    let [class] = plan.slots[..] else { panic!("one length of experts: {plan:?}") };
    let ablations = Ablations { governed, ..Ablations::default() };
    let options = Options { ablations, costs: COSTS, speculation: false, ..Options::default() };
    let model = ForwardPass::new(spec());
    let mut lm = SpeculativeWeightStreamer::with_plan(model, store, plan, options).unwrap();
    let pace = Some(TierPace { clock, compute: slower, copy: COPY });
    let traits = TierTraits { slots: room, pace, ..TierTraits::default() };
    assert!(lm.set_tier(Box::new(MemoryTier::new(traits))));
    let trace = recorded(&mut lm, 1, 600);
    let counts = lm.counters().tier.unwrap();
    let engine = TierOutcome { hits: counts.hits, copies: counts.copies };

    let nanos = |time: Duration| time.as_nanos() as f64;
    let times = AssumedTimes {
        here: nanos(COSTS.expert),
        there: nanos(COSTS.expert + slower),
        read: nanos(disk.latency) + 1e9 * class.len as f64 / disk.bytes_per_second as f64,
        copy: nanos(COPY),
        layer: nanos(COSTS.infrastructure),
    };
    let replay = Replay::new(&trace, 1).without_warming();
    let replay = replay.with_tier(ReplayTier { slots: room, governed, times });
    let policy = ReplayPolicy::Engine(PolicyKind::default());
    let outcome = replay.run(policy, class.count, &mut |_| {});
    (outcome.uses, [engine, outcome.tier.unwrap()])
}

/// The hits of a tier agree within 2 %, whether it is always used or where it is faster.
#[test]
fn replay_predicts_what_a_tier_computes() {
    for (mib, room, governed) in [
        (4, 32, false),
        (4, 256, false),
        (4, 32, true),
        (4, 96, true),
        (10, 32, true),
        (10, 96, true),
    ] {
        let (uses, [engine, replay]) = replayed(mib * MIB, room, governed, MORE);
        let case = format!("{mib} MiB, room for {room}, governed {governed}, {uses} uses");
        let case = format!("{case}: {engine:?}, {replay:?}");
        assert!(replay.hits > uses / 20, "{case}: too few to show anything");
        assert!(engine.hits.abs_diff(replay.hits) * 50 <= replay.hits, "{case}");
    }
    // A tier that is slower than the reads that it saves is left idle by both.
    let (uses, counts) = replayed(4 * MIB, 96, true, Duration::from_millis(50));
    assert!(counts.iter().all(|counts| counts.hits > 0 && counts.hits < uses / 100), "{counts:?}");
}
