//! Texts with draft tokens are those without, bit for bit, and take no longer.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use sws_engine::{
    ComputeCosts, Gauge, MAX_VERIFY_LEN, Options, Plan, ProcessMemory, RamBudget,
    SpeculativeCounts, SpeculativeWeightStreamer, StandInUse,
};
use sws_format::open_checkpoint;
use sws_kernels::Encoding;
use sws_model::ForwardPass;
use sws_shard::{ShardOptions, shard, unshard};
use sws_store::SimulatedDisk;
use sws_testing::virtual_time::simulated;
use sws_testing::{each_nth, sampled, tales};
use sws_text::{Generation, Sampling};
use tempfile::TempDir;

use super::*;
use crate::Threads;
use crate::run::sequence::AnyLm;

const PROMPT: [u32; 5] = [5, 300, 17, 99, 1000];
const COSTS: ComputeCosts = ComputeCosts {
    infrastructure: Duration::from_micros(120),
    expert: Duration::from_micros(24),
    head: Duration::from_micros(240),
};

/// A model on a simulated disk, with its counters.
struct Lm {
    sequence: Sequence,
    waiter: Waiter,
    gauge: Gauge,
}

impl Lm {
    fn new(dir: &Path, mb_per_second: u64, options: impl Fn() -> Options) -> Lm {
        let disk = SimulatedDisk {
            bytes_per_second: mb_per_second * 1_000_000,
            latency: Duration::from_micros(100),
            devices: 1,
        };
        let (store, spec) = simulated(dir, disk, 1 << 20).unwrap();
        let made = SpeculativeWeightStreamer::new(
            ForwardPass::new(spec.clone()),
            store.clone(),
            options(),
        );
        // So small a model would not spare the memory by itself.
        let plan = made.unwrap().plan().unwrap().clone();
        let plan = Plan { lent: Vec::new(), verify_len: MAX_VERIFY_LEN, ..plan };
        let lm =
            SpeculativeWeightStreamer::with_plan(ForwardPass::new(spec), store, plan, options());
        let mut lm = lm.unwrap();
        let (waiter, gauge) = (lm.waiter(), lm.gauge());
        let threads = Threads::one_per_core().unwrap();
        Lm { sequence: Sequence::new(AnyLm::Streamer(Box::new(lm)), threads), waiter, gauge }
    }

    /// Begins a text in place of the last.
    fn generate(&mut self, prompt: &[u32], generation: &Generation) -> Generate<'_> {
        self.sequence.clear();
        self.go_on(prompt, generation)
    }

    /// Begins a text that may go on where the last has ended.
    fn go_on(&mut self, prompt: &[u32], generation: &Generation) -> Generate<'_> {
        let start = GenerateStart {
            layers: 8,
            tokens: prompt.to_vec(),
            generation,
            tokenizer: None,
            gauge: Some(self.gauge.clone()),
            waiter: Some(self.waiter.clone()),
        };
        Generate::new(&mut self.sequence, start).unwrap()
    }

    /// The virtual time of passes.
    fn time(&self) -> f64 {
        self.gauge.read().passes.as_secs_f64()
    }
}

fn options(mib: u64, stand_ins: StandInUse) -> Options {
    Options {
        ram_budget: RamBudget::Bytes(mib << 20),
        process: Some(ProcessMemory::default()),
        context: Some(1024),
        verify_len: MAX_VERIFY_LEN,
        stand_ins,
        costs: COSTS,
        ..Options::default()
    }
}

fn generation(seed: u64, tokens: usize) -> Generation {
    Generation {
        sampling: Sampling { seed, ..sampled() },
        max_new_tokens: Some(tokens),
        ..Generation::default()
    }
}

/// The tokens of a text, which must not fail, and its end.
fn all(generate: Generate<'_>) -> (Vec<u32>, End) {
    let made = made(generate);
    (made.tokens, made.end)
}

fn made(mut generate: Generate<'_>) -> Generated {
    let pieces: Vec<u32> = generate.by_ref().filter_map(|piece| piece.unwrap().token).collect();
    let made = generate.finish();
    assert_eq!(pieces, made.tokens);
    made
}

fn counts(made: &Generated) -> SpeculativeCounts {
    made.cost.as_ref().unwrap().generation.proposals.unwrap_or_default()
}

/// Draft tokens that are right, wrong, right up to some token, or none of a model's tokens.
#[derive(Clone, Copy, Debug)]
enum Double {
    Right,
    Wrong,
    RightFor(usize),
    Sometimes,
    Unknown,
    None,
}

impl Double {
    const ALL: [Double; 8] = [
        Double::Right,
        Double::Wrong,
        Double::RightFor(1),
        Double::RightFor(2),
        Double::RightFor(7),
        Double::Sometimes,
        Double::Unknown,
        Double::None,
    ];

    /// Its draft tokens behind the first `made` tokens of a text.
    fn propose(self, truth: &[u32], made: usize, most: usize) -> Vec<u32> {
        let right = truth[made..].iter().copied().take(most);
        let wrong = |token: u32| (token + 1) % 4096;
        match self {
            Double::Right => right.collect(),
            Double::Wrong => right.map(wrong).collect(),
            Double::RightFor(count) => {
                right.enumerate().map(|(n, t)| if n < count { t } else { wrong(t) }).collect()
            }
            Double::Sometimes if made.is_multiple_of(3) => right.take(made % 5).collect(),
            Double::Unknown => right.take(2).chain([u32::MAX; 3]).collect(),
            Double::Sometimes | Double::None => Vec::new(),
        }
    }
}

#[test]
fn draft_tokens_change_no_token() {
    const TOKENS: usize = 40;
    let mut lm = Lm::new(&tales(), 2000, || options(24, StandInUse::Off));
    // A text that goes on shows the state that the one before has left behind.
    let later = |lm: &mut Lm, tokens: &[u32]| {
        let prompt = [&PROMPT[..], tokens, &[7, 8]].concat();
        all(lm.go_on(&prompt, &generation(3, 4)))
    };
    for seed in each_nth(0..5, 2) {
        let mut generation = generation(seed, TOKENS);
        if seed == 4 {
            // The order of the tokens counts.
            generation.sampling.repetition_penalty = 1.3;
            generation.sampling.presence_penalty = 0.4;
        }
        let expected = all(lm.generate(&PROMPT, &generation));
        let expected_later = later(&mut lm, &expected.0);
        let truth = &expected.0;
        for double in Double::ALL {
            let propose = |text: &[u32], most: usize| {
                assert_eq!(text[PROMPT.len()..], truth[..text.len() - PROMPT.len()]);
                double.propose(truth, text.len() - PROMPT.len(), most.min(8))
            };
            let made = made(lm.generate(&PROMPT, &generation).proposed_by(propose));
            let counts = counts(&made);
            assert_eq!((made.tokens, made.end), expected, "{double:?}, seed {seed}");
            assert_eq!(later(&mut lm, truth), expected_later, "{double:?}, seed {seed}");
            let (passes, accepted) = (counts.passes, counts.accepted);
            match double {
                // The prompt gives the first token, and the last needs no successor.
                Double::Right => assert_eq!((passes, accepted), (5, 34), "{counts:?}"),
                Double::Wrong => assert_eq!((passes, accepted), (38, 0), "{counts:?}"),
                Double::RightFor(1) => assert_eq!((passes, accepted), (19, 19), "{counts:?}"),
                Double::RightFor(_) | Double::Sometimes | Double::Unknown => {
                    assert!(passes > 4 && accepted > 0, "{double:?}, {counts:?}");
                }
                Double::None => assert_eq!(counts, SpeculativeCounts::default()),
            }
        }
    }
}

/// A text that is dropped, ends at a token, or fills the context while tokens behind are computed.
#[test]
fn texts_end_in_the_middle_of_a_pass_as_elsewhere() {
    let mut lm = Lm::new(&tales(), 2000, || options(24, StandInUse::Off));
    let plain = all(lm.generate(&PROMPT, &generation(1, 40))).0;
    let right = |text: &[u32], most: usize| {
        plain[text.len() - PROMPT.len()..].iter().copied().take(most).collect::<Vec<u32>>()
    };
    let stopped = Generation { stop_tokens: vec![plain[20]], ..generation(1, 40) };
    let at = plain.iter().position(|&token| token == plain[20]).unwrap();
    let made = all(lm.generate(&PROMPT, &stopped).proposed_by(right));
    assert_eq!(made, (plain[..=at].to_vec(), End::StopToken));
    for taken in [1, 2, 13] {
        let mut generate = lm.generate(&PROMPT, &generation(1, 40));
        generate = generate.proposed_by(right);
        assert_eq!(generate.by_ref().take(taken).count(), taken);
        assert_eq!(generate.so_far().tokens, plain[..taken]);
        drop(generate);
        assert_eq!(lm.sequence.len(), PROMPT.len() + taken - 1, "as without draft tokens");
        let rest = [&PROMPT[..], &plain[..taken]].concat();
        assert_eq!(all(lm.go_on(&rest, &generation(1, 40 - taken))).0, plain[taken..]);
    }
    let short = || Options { context: Some(20), ..options(24, StandInUse::Off) };
    let mut small = Lm::new(&tales(), 2000, short);
    let made = all(small.generate(&PROMPT, &generation(1, 40)).proposed_by(right));
    assert_eq!(made, (plain[..16].to_vec(), End::Context));
}

/// The bundled model with q4 stand-ins.
fn with_stand_ins() -> &'static Path {
    static MODEL: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, shards) = MODEL.get_or_init(|| {
        let dir = TempDir::new().unwrap();
        let (checkpoint, out) = (dir.path().join("checkpoint"), dir.path().join("shards"));
        unshard(&tales(), &checkpoint, false, None, &|_| {}).unwrap();
        let checkpoint = open_checkpoint(&checkpoint, None).unwrap();
        let naming = sws_model::naming(checkpoint.config()).unwrap();
        let options = ShardOptions { stand_ins: Some(Encoding::Q4), ..ShardOptions::default() };
        shard(&*checkpoint, naming.as_ref(), &out, &options, &|_| {}).unwrap();
        (dir, out)
    });
    shards
}

/// Runs a text without draft tokens and with them. Returns the ratio of their times, and counts.
fn compared(
    mb_per_second: u64,
    mib: u64,
    stand_ins: StandInUse,
    how: &Generation,
) -> (f64, SpeculativeCounts) {
    let mut found = Vec::new();
    for proposes in [false, true] {
        let mut lm = Lm::new(with_stand_ins(), mb_per_second, || options(mib, stand_ins));
        lm.sequence = lm.sequence.with_speculative(proposes);
        let made = made(lm.generate(&PROMPT, how));
        found.push((made.tokens.clone(), lm.time(), counts(&made)));
    }
    let [(plain, slow, none), (tokens, fast, counts)] = &found[..] else { unreachable!() };
    assert_eq!((plain, *none), (tokens, SpeculativeCounts::default()));
    (slow / fast, *counts)
}

#[test]
#[expect(clippy::print_stdout, reason = "the figures are those of docs/benchmarks/streaming.md")]
fn proposals_pay_or_are_left() {
    let sampled = |seed| generation(seed, 300);
    let greedy = Generation { sampling: Sampling::default(), ..generation(0, 300) };
    // MB/s, budget in MiB, stand-ins, text; the least speed-up, and true if draft tokens are verified.
    let cases = [
        (100, 29, StandInUse::All, sampled(1), 1.2, true),
        (100, 16, StandInUse::Off, greedy.clone(), 0.98, true),
        (100, 16, StandInUse::Off, sampled(1), 0.98, false),
        (100_000, 29, StandInUse::All, sampled(2), 0.98, false),
        (100_000, 64, StandInUse::Off, greedy, 2.0, true),
    ];
    for (mb_per_second, mib, stand_ins, how, least, verified) in each_nth(cases, 2) {
        let (speed_up, counts) = compared(mb_per_second, mib, stand_ins, &how);
        let case =
            format!("{mb_per_second} MB/s, {mib} MiB, {stand_ins:?}: {speed_up}, {counts:?}");
        println!("{case}");
        assert!(speed_up >= least, "{case}");
        assert!(!verified || counts.accepted > 0, "{case}");
    }
}
