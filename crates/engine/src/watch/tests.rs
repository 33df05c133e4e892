use sws_format::Clock;

use super::*;

fn watch(firsts: &[usize]) -> RunWatch {
    watch_on(Clock::real(), firsts)
}

fn watch_on(clock: Clock, firsts: &[usize]) -> RunWatch {
    let waiter = Waiter::new(clock);
    let (firsts, store) = (firsts.to_vec(), Weak::new());
    let (board, source) = (OnceLock::new(), AtomicU64::new(0));
    RunWatch(Arc::new(RunShared { firsts, board, source, waiter, store }))
}

fn cells(watch: &RunWatch) -> String {
    let mut cells = Vec::new();
    watch.cells(&mut cells);
    let letter = |cell: &ExpertCell| match (cell.used, cell.place) {
        (Some(Use::Hit), _) => 'h',
        (Some(Use::Waited), _) => 'w',
        (None, ExpertPlace::Disk) => '.',
        (None, ExpertPlace::Reading) => 'r',
        (None, ExpertPlace::Memory) => 'm',
    };
    cells.iter().map(letter).collect()
}

/// Every expert is in memory.
fn hit(_: u32) -> Option<HitPlace> {
    Some(HitPlace::Memory)
}

#[test]
fn nothing_is_stored_before_it_begins() {
    let watch = watch(&[0, 0, 3, 5]);
    watch.passes_begin(Duration::ZERO);
    watch.pass_begins(1);
    watch.moved(PieceId::expert(1, 0), ExpertPlace::Memory);
    watch.routed(1, &[0], hit);
    assert_eq!((cells(&watch).as_str(), watch.tally().passes), ("", 0));
    assert_eq!(watch.0.board.get().map(|_| ()), None);
    watch.begin();
    assert_eq!(cells(&watch), ".....");
    let rows: Vec<LayerRow> = watch.rows().collect();
    assert_eq!(rows, [LayerRow { layer: 1, experts: 3 }, LayerRow { layer: 2, experts: 2 }]);
}

#[test]
fn a_watch_that_ended_begins_again() {
    let watch = watch(&[0, 2, 4]);
    watch.begin();
    watch.passes_begin(Duration::from_secs(1));
    watch.pass_begins(1);
    watch.layer_begins(0);
    watch.end();
    watch.routed(0, &[1], hit);
    watch.passes_end(Duration::from_secs(2), Duration::ZERO);
    assert_eq!((cells(&watch).as_str(), watch.tally().hits), ("....", 0));
    watch.begin();
    let tally = watch.tally();
    assert_eq!((tally.running, tally.in_passes), (None, Duration::ZERO), "of no known length");
    watch.compare([(PieceId::expert(1, 0), ExpertPlace::Memory)].into_iter());
    assert_eq!(cells(&watch), "..m.", "compared once more");
}

#[test]
fn a_tier_is_told_of_while_the_watch_is_on() {
    let watch = watch(&[0, 2]);
    let usage = TierUsage { held: 3, slots: 8, bytes: 300, limit: 1000, failure: None };
    let counts = |hits| Some(TierCounts { usage: usage.clone(), is_on: true, hits, copies: 4 });
    watch.tier(|| counts(1));
    assert_eq!(watch.tally().tier, None);
    watch.begin();
    watch.tier(|| None);
    assert_eq!(watch.tally().tier, None);
    watch.tier(|| counts(7));
    let told = TierTally { held: 3, slots: 8, bytes: 300, limit: 1000, hits: 7, has_failed: false };
    assert_eq!(watch.tally().tier, Some(told));
}

#[test]
fn uses_of_the_tier_are_counted_since_the_watch_began() {
    let watch = watch(&[0, 4]);
    let counts = || Some(TierCounts { hits: 1000, ..TierCounts::default() });
    watch.tier(counts);
    watch.begin();
    let before = watch.tally();
    watch.passes_begin(Duration::from_secs(1));
    watch.pass_begins(1);
    watch.routed(0, &[0, 1, 2], |expert| match expert {
        0 => None,
        1 => Some(HitPlace::Memory),
        _ => Some(HitPlace::Tier),
    });
    watch.tier(counts);
    let after = watch.tally();
    assert_eq!((before.on_tier, after.on_tier), (0, 1));
    assert_eq!((after.hits, after.misses), (2, 1));
    assert_eq!(after.tier.map(|tier| tier.hits), Some(1000), "since the start");
}

#[test]
fn layers_of_a_pass_have_their_times() {
    let watch = watch_on(Clock::simulated(), &[0, 2, 4, 6]);
    let seconds = |watch: &RunWatch| {
        let mut laps = Vec::new();
        watch.laps(&mut laps);
        laps.iter().map(|lap| lap.time.as_secs()).collect::<Vec<_>>()
    };
    assert!(seconds(&watch).is_empty(), "nobody has watched");
    watch.begin();
    let clock = watch.0.waiter.clock().clone();
    let pass = |visits: &[(usize, u64)]| {
        clock.sleep(Duration::from_secs(100));
        watch.pass_begins(1);
        for &(layer, time) in visits {
            watch.layer_begins(layer);
            clock.sleep(Duration::from_secs(time));
        }
        watch.passes_end(clock.now(), Duration::ZERO);
        clock.sleep(Duration::from_secs(100));
    };
    pass(&[(0, 1), (1, 1), (2, 1)]);
    assert_eq!(seconds(&watch), [0, 0, 0], "not timed");
    watch.time_layers(true);
    pass(&[(0, 3), (1, 1), (2, 7)]);
    assert_eq!(seconds(&watch), [3, 1, 7]);
    // Layers that a pass visits several times have all of their time, and no others have it.
    pass(&[(0, 3), (1, 1), (1, 5), (1, 4), (2, 7)]);
    assert_eq!(seconds(&watch), [3, 10, 7]);
    pass(&[(0, 1), (1, 2), (0, 4), (1, 8), (2, 1)]);
    assert_eq!(seconds(&watch), [5, 10, 1]);
    watch.time_layers(false);
    pass(&[(0, 9), (1, 9), (2, 9)]);
    assert_eq!(seconds(&watch), [5, 10, 1], "the last that was timed");
}

#[test]
fn cells_follow_reads_and_choices() {
    let watch = watch(&[0, 0, 3, 5]);
    watch.begin();
    let held = PieceId::expert(1, 2);
    watch.compare([(held, ExpertPlace::Memory)].into_iter());
    watch.compare([(PieceId::expert(2, 0), ExpertPlace::Memory)].into_iter());
    assert_eq!(cells(&watch), "..m..", "compared once");
    watch.passes_begin(Duration::from_secs(1));
    watch.pass_begins(7);
    watch.layer_begins(2);
    watch.routed(1, &[0, 2], |expert| (expert == 2).then_some(HitPlace::Memory));
    watch.moved(PieceId::expert(2, 1), ExpertPlace::Reading);
    assert_eq!(cells(&watch), "w.h.r");
    let tally = watch.tally();
    assert_eq!((tally.hits, tally.misses), (1, 1));
    assert_eq!(tally.running, Some(RunningPass { tokens: 7, layer: 2 }));
    watch.source_took(Duration::from_millis(4));
    assert_eq!(watch.tally().source, Duration::from_millis(4));
    watch.passes_end(Duration::from_secs(3), Duration::from_millis(5));
    let tally = watch.tally();
    assert_eq!((tally.running, tally.in_passes), (None, Duration::from_secs(2)));
    assert_eq!(tally.source, Duration::from_millis(5));
    assert_eq!(cells(&watch), "w.h.r", "the last pass is shown");
    watch.passes_begin(Duration::from_secs(4));
    watch.pass_begins(1);
    // What a pass waited for, it has in its second visit of the layer.
    watch.routed(2, &[1], |_| None);
    watch.routed(2, &[0, 1], hit);
    assert_eq!(cells(&watch), "..mhw", "{:?}", watch.tally());
    watch.passes_end(Duration::from_secs(5), Duration::from_millis(5));
    watch.pass_begins(1);
    watch.moved(PieceId::expert(1, 0), ExpertPlace::Memory);
    assert_eq!(cells(&watch), "m.m.r");
    // Beyond the layer, or the model.
    watch.moved(PieceId::expert(1, 3), ExpertPlace::Memory);
    watch.routed(9, &[0], hit);
    assert_eq!(cells(&watch), "m.m.r");
    watch.set_stale();
    watch.compare_resident();
    assert_eq!(cells(&watch), "mmmmm");
}

#[test]
fn steps_are_recorded_between_its_beginning_and_its_end() {
    let watch = watch(&[0, 2, 4]);
    watch.pass_begins(1);
    assert_eq!(watch.recorded(), Recording::default());
    watch.record(4);
    watch.passes_begin(Duration::from_secs(1));
    watch.layer_begins(1);
    // Also while nothing else is watched.
    watch.routed(1, &[0, 1], |expert| (expert == 1).then_some(HitPlace::Memory));
    watch.passes_end(Duration::from_secs(2), Duration::ZERO);
    watch.layer_begins(0);
    let Recording { reads, steps, left_out } = watch.recorded();
    let kinds: Vec<RecordingStep> = steps.iter().map(|step| step.step).collect();
    let expected = [
        RecordingStep::Passes,
        RecordingStep::Layer { layer: 1 },
        RecordingStep::Compared { layer: 1, misses: 1 },
        RecordingStep::Over,
    ];
    assert_eq!((kinds.as_slice(), reads.len(), left_out), (&expected[..], 0, 1));
    let ends = [steps[0].at, steps[3].at];
    assert_eq!(ends, [Duration::from_secs(1), Duration::from_secs(2)]);
    watch.layer_begins(0);
    assert_eq!(watch.recorded(), Recording::default(), "it is over");
}
