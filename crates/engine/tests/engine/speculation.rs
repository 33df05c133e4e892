//! Tests that speculation pays and that its account is right: in virtual time, on the bundled
//! model, over disks of any speed and drafts of any skill.

use std::time::Duration;

use sws_draft::NoDraft;
use sws_engine::watch::{Recording, RecordingStep};
use sws_engine::{Metrics, Options, Speculation};
use sws_format::PieceKind;
use sws_model::CausalLm;
use sws_store::SimulatedDisk;
use sws_testing::is_night;
use sws_testing::noisy::hash;
use sws_testing::virtual_time::{UNLIMITED, answer, options, run, run_slow, streamer};

/// The account's savings match the wall clock within a twentieth, for any disk and draft.
#[test]
fn account_matches_the_wall_clock() {
    let disks =
        [(0.25, 30), (0.25, 50), (0.25, 100), (0.25, 400), (0.5, 30), (0.5, 50), (0.5, 200)];
    for (share, mb_per_second) in disks.into_iter().step_by(if is_night() { 1 } else { 3 }) {
        let (off, none) = run(mb_per_second, share, None, false);
        assert_eq!(none, Speculation { windows_on: none.windows_on, ..Default::default() });
        for recall in [0.6, 0.75, 0.95] {
            let (on, speculation) = run(mb_per_second, share, Some(recall), false);
            let (wall, balance) = (off - on, speculation.balance_ns());
            let case = format!(
                "{share}, {mb_per_second} MB/s, recall {recall}: {off} ns become {on}, {balance} were \
                 saved: {speculation:?}"
            );
            assert!((wall - balance).abs() < 0.05 * wall.abs(), "{case}");
            assert!(wall > 0.005 * off, "{case}");
            assert!(speculation.issued >= speculation.useful + speculation.wasted, "{case}");
            assert!(speculation.useful > 100 && speculation.wasted > 0, "{case}");
        }
    }
}

/// On demand, a recording has a read for every miss, and steps in the order of time.
#[test]
fn recordings_have_a_read_for_every_miss() {
    let disk = SimulatedDisk {
        bytes_per_second: 100_000_000,
        latency: Duration::from_micros(20),
        devices: 1,
    };
    let mut lm = streamer(disk, options(0.25, Box::new(NoDraft), false));
    let (first, rest) = answer().tokens.split_first().unwrap();
    lm.decode(*first).unwrap();
    let watch = lm.gauge().watch().clone();
    watch.record(1 << 16);
    for &token in &rest[..8] {
        lm.decode(token).unwrap();
    }
    let Recording { reads, steps, left_out } = watch.recorded();
    assert_eq!(left_out, 0);
    assert!(steps.is_sorted_by_key(|step| step.at), "{steps:?}");
    let passes = steps.iter().filter(|step| matches!(step.step, RecordingStep::Pass { tokens: 1 }));
    assert_eq!(passes.count(), 8);
    let misses = steps.iter().map(|step| match step.step {
        RecordingStep::Compared { misses, .. } => misses,
        _ => 0,
    });
    let experts = reads.iter().filter(|read| matches!(read.piece.kind(), PieceKind::Expert(_)));
    let experts: Vec<_> = experts.collect();
    assert_eq!(misses.sum::<usize>(), experts.len());
    assert!(experts.len() > 8, "{reads:?}");
    for read in experts {
        assert!(read.bytes > 0 && Some(read.submitted) <= read.started, "{read:?}");
        assert!(read.started <= Some(read.finished), "{read:?}");
    }
    let waits = steps.iter().filter(|step| step.step == RecordingStep::Waits).count();
    assert!(waits > 0 && watch.recorded().steps.is_empty());
}

/// Off after the first window on a disk that is never waited for, and on one that is always waited
/// for. Of eight windows, at most three are attempts, separated by breaks of one and two windows.
/// On for a disk in between.
#[test]
fn speculation_is_off_where_nothing_can_be_saved() {
    for (mb_per_second, pays) in [(UNLIMITED, false), (200, true), (1, false)] {
        let (off, _) = run(mb_per_second, 0.5, None, true);
        let (on, speculation) = run(mb_per_second, 0.5, Some(0.75), true);
        let case = format!("{mb_per_second} MB/s: {off} ns become {on}: {speculation:?}");
        let windows = (speculation.windows_on, speculation.windows_off);
        match pays {
            true => assert!(windows.1 <= 1 && on < 0.98 * off, "{case}"),
            false => assert!(windows.0 <= 3 && windows.1 >= 4 && on < 1.005 * off, "{case}"),
        }
        if pays {
            assert_eq!(run(mb_per_second, 0.5, Some(0.75), true), (on, speculation), "{case}");
        }
    }
}

/// A draft that takes .02 ms in a layer of .6 ms stays on. One of .2 to .4 ms takes longer than it can
/// hide: it is off within ten tokens, of 130, and not tried again while the waiting is as short.
#[test]
fn a_draft_that_takes_longer_than_it_saves_is_off() {
    for (mb_per_second, share, micros, pays) in [
        (200, 0.25, 20, true),
        (200, 0.5, 20, true),
        (200, 0.75, 400, false),
        (400, 0.5, 400, false),
        (1000, 0.5, 200, false),
    ] {
        let (off, _) = run(mb_per_second, share, None, true);
        let time = Duration::from_micros(micros);
        let (on, speculation) = run_slow(mb_per_second, share, 0.75, time);
        let tokens = speculation.draft_ns / (8.0 * time.as_nanos() as f64);
        let case = format!(
            "{share}, {mb_per_second} MB/s, {micros} us: {off} ns become {on}, the draft was asked in {tokens} tokens: \
             {speculation:?}"
        );
        match pays {
            true => assert!(tokens > 120.0 && on < off, "{case}"),
            false => {
                assert!(tokens <= 10.0 && speculation.windows_on == 1 && on < 1.02 * off, "{case}")
            }
        }
    }
}

/// The learned state of a run fills the slots that the next run's prompt leaves free, while the
/// disk is idle. There are fewer misses, and the results are the same.
#[test]
fn warm_start_fills_free_slots() {
    let answer = answer();
    let dir = tempfile::tempdir().unwrap();
    let disk = SimulatedDisk {
        bytes_per_second: 200_000_000,
        latency: Duration::from_micros(20),
        devices: 1,
    };
    let run = || {
        let warm_start = Some(dir.path().join("learned"));
        let options = Options { warm_start, ..options(4.0, Box::new(NoDraft), true) };
        let mut lm = streamer(disk, options);
        let (prompt, rest) = answer.tokens.split_at(4);
        lm.prefill(prompt).unwrap();
        let before = lm.counters();
        for (&token, &expected) in rest.iter().zip(&answer.logits[4..]) {
            assert_eq!(hash(lm.decode(token).unwrap()), expected);
        }
        let (metrics, speculation) =
            (Metrics::between(&before, &lm.counters()), lm.counters().speculation);
        (metrics.experts.miss_rate, metrics.stalls.seconds, speculation)
    };
    let (missed, stalled, cold) = run();
    assert_eq!(cold.issued, 0, "nothing is known yet");
    let (missed_warm, stalled_warm, warm) = run();
    let case =
        format!("{missed} and {missed_warm} missed, {stalled} and {stalled_warm} s: {warm:?}");
    assert!(warm.useful > 50 && warm.balance_ns() > 0.0, "{case}");
    assert!(missed_warm < 0.6 * missed && stalled_warm < 0.6 * stalled, "{case}");
}
