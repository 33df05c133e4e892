//! Whether speculation pays, and whether its account says so: in virtual time, on the model that comes
//! with the project, over disks of any speed and drafts of any skill.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sws_draft::{Draft, NoDraft};
use sws_engine::{
    Budget, Costs, Metrics, Options, Process, Speculation, SpeculativeWeightStreamer, StreamerError,
};
use sws_model::text::{Sampler, Sampling};
use sws_model::{CausalLm, Model, ModelSpec};
use sws_store::{Clock, Manifest, NVMeWeightStore, SimulatedDisk, StoreOptions};

#[path = "../../../tests/noisy.rs"]
mod noisy;

use noisy::{Answer, Noisy, hash};

const SHAPE: [usize; 3] = [8, 32, 4];
const TOKENS: usize = 130;
const MIB: u64 = 1 << 20;
/// A layer takes 0.6 ms, a token 5 ms.
const COSTS: Costs = Costs {
    infrastructure: Duration::from_micros(200),
    expert: Duration::from_micros(100),
    head: Duration::from_micros(200),
};

fn dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shards/tales-moe")
}

fn streamer(disk: SimulatedDisk, options: Options) -> SpeculativeWeightStreamer {
    let manifest = Arc::new(Manifest::load(dir()).unwrap());
    let spec = ModelSpec::parse(&std::fs::read(dir().join("config.json")).unwrap()).unwrap();
    let clock = Clock::simulated();
    // So small that an expert is to its chunks what a large one is to those of 1 MiB.
    let chunk = 16 << 10;
    let simulated = Some(disk);
    let store = StoreOptions { cache: None, clock, simulated, chunk, ..StoreOptions::default() };
    let store = Arc::new(NVMeWeightStore::open(manifest, &dir(), store).unwrap());
    SpeculativeWeightStreamer::new(Model::new(spec), store, options).unwrap()
}

/// `share` of the experts have slots.
fn options(share: f64, draft: Box<dyn Draft>, governed: bool) -> Options {
    static LEAST: OnceLock<u64> = OnceLock::new();
    let least = *LEAST.get_or_init(|| {
        let manifest = Arc::new(Manifest::load(dir()).unwrap());
        let spec = ModelSpec::parse(&std::fs::read(dir().join("config.json")).unwrap()).unwrap();
        let options = StoreOptions { cache: None, ..StoreOptions::default() };
        let store = Arc::new(NVMeWeightStore::open(manifest, &dir(), options).unwrap());
        let none = Options {
            ram_budget: Budget::Bytes(0),
            process: Some(Process::default()),
            context: Some(256),
            ..Options::default()
        };
        match SpeculativeWeightStreamer::new(Model::new(spec), store, none) {
            Err(StreamerError::Plan(error)) => {
                let error = error.to_string();
                let (_, rest) = error.split_once("--ram ").unwrap();
                rest.split_once("MiB").unwrap().0.parse::<u64>().unwrap() * MIB
            }
            other => panic!("{other:?}"),
        }
    });
    let bytes = least + 3 * MIB + (share * 22.0 * MIB as f64) as u64;
    Options {
        ram_budget: Budget::Bytes(bytes),
        process: Some(Process::default()),
        context: Some(256),
        costs: COSTS,
        draft,
        governed,
        ..Options::default()
    }
}

/// Sampled as people do, with a budget for everything: there is nothing to forecast.
fn answer() -> &'static Answer {
    static ANSWER: OnceLock<Answer> = OnceLock::new();
    ANSWER.get_or_init(|| {
        let disk =
            SimulatedDisk { bytes_per_second: UNLIMITED * 1_000_000, latency: Duration::ZERO };
        let mut lm = streamer(disk, options(4.0, Box::new(NoDraft), true));
        let sampling =
            Sampling { temperature: 1.0, top_k: 40, top_p: 0.95, seed: 7, ..Sampling::default() };
        let mut sampler = Sampler::new(sampling, lm.vocab());
        let (mut answer, mut token) = (Answer::default(), 5);
        for _ in 0..TOKENS {
            let mut logits = lm.observed(&[token], &mut answer).unwrap().to_vec();
            answer.tokens.push(token);
            answer.logits.push(hash(&logits));
            token = sampler.sample(&mut logits).unwrap();
        }
        answer
    })
}

/// What a run of the answer takes, and what speculation says of itself.
fn run(mb_per_second: u64, share: f64, draft: Option<f32>, governed: bool) -> (f64, Speculation) {
    let answer = answer();
    let latency = if mb_per_second < UNLIMITED { 20 } else { 0 };
    let disk = SimulatedDisk {
        bytes_per_second: mb_per_second * 1_000_000,
        latency: Duration::from_micros(latency),
    };
    let draft: Box<dyn Draft> = match draft {
        Some(recall) => Box::new(Noisy::new(SHAPE, answer.routes.clone(), recall, 4)),
        None => Box::new(NoDraft),
    };
    let mut lm = streamer(disk, options(share, draft, governed));
    for (&token, &expected) in answer.tokens.iter().zip(&answer.logits) {
        assert_eq!(hash(lm.decode(token).unwrap()), expected);
    }
    let counters = lm.counters();
    (counters.passes.as_nanos() as f64, counters.speculation)
}

/// A disk that is never waited for.
const UNLIMITED: u64 = 10_000_000;

/// What speculation says that it has saved is what it has, within a fifth, whatever the disk and the
/// draft.
#[test]
fn the_account_is_what_the_wall_says() {
    let disks = [(0.25, 100), (0.25, 400), (0.5, 30), (0.5, 50), (0.5, 200)];
    for (share, mb_per_second) in disks {
        let (off, none) = run(mb_per_second, share, None, false);
        assert_eq!(none, Speculation { windows_on: none.windows_on, ..Default::default() });
        for recall in [0.6, 0.75, 0.95] {
            let (on, speculation) = run(mb_per_second, share, Some(recall), false);
            let (wall, balance) = (off - on, speculation.balance_ns());
            let case = format!(
                "{share}, {mb_per_second} MB/s, recall {recall}: {off} ns become {on}, {balance} were \
                 saved: {speculation:?}"
            );
            assert!((wall - balance).abs() < 0.2 * wall.abs(), "{case}");
            assert!(wall > 0.005 * off, "{case}");
            assert!(speculation.issued >= speculation.useful + speculation.wasted, "{case}");
            assert!(speculation.useful > 100 && speculation.wasted > 0, "{case}");
        }
    }
}

/// Off after the first window on a disk that is never waited for, and on one that is always: of eight
/// windows those are tried that are left after one, two and four of rest. On between.
#[test]
fn the_governor_is_off_where_nothing_can_be_won() {
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

/// What a run has learned fills the slots that the next one's prompt leaves free, while the disk has
/// nothing else to do: less is missed, and nothing is computed otherwise.
#[test]
fn a_warm_start_fills_what_is_free() {
    let answer = answer();
    let dir = tempfile::tempdir().unwrap();
    let disk = SimulatedDisk { bytes_per_second: 200_000_000, latency: Duration::from_micros(20) };
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
