//! Stand-ins, on the bundled model: their results never count unless allowed, and running ahead on
//! them shortens waits.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sws_engine::{
    Ablations, ComputeCosts, Counters, Exactness, MemoryUse, Options, Plan, PlanError, PlanOptions,
    Planner, ProcessMemory, RamBudget, SpeculativeWeightStreamer, StandInUse, StreamerError,
};
use sws_format::{MANIFEST_FILE, Manifest, checksum, open_checkpoint};
use sws_kernels::Encoding;
use sws_model::{CausalLm, ForwardError, ForwardPass, Inventory};
use sws_shard::{ShardOptions, shard, unshard};
use sws_store::{NVMeWeightStore, PieceLayout, Read, ReaderKind, SimulatedDisk, StoreOptions};
use sws_testing::{spec, tales};

const MIB: u64 = 1 << 20;
const PROMPT: [u32; 5] = [5, 300, 17, 99, 1000];
const TOKENS: u32 = 24;

fn token(n: u32) -> u32 {
    (n * 131 + 5) % 4096
}

/// The model in shards with stand-ins, made once.
fn model(stand_ins: Encoding) -> &'static Path {
    static MADE: [OnceLock<PathBuf>; 3] = [const { OnceLock::new() }; 3];
    let (made, options) = match stand_ins {
        Encoding::Q4 | Encoding::Q8 => {
            let options = ShardOptions { stand_ins: Some(stand_ins), ..ShardOptions::default() };
            (&MADE[usize::from(stand_ins == Encoding::Q8)], options)
        }
        _ => (&MADE[2], ShardOptions { encoding: Encoding::Nested, ..ShardOptions::default() }),
    };
    made.get_or_init(|| {
        // Left behind when the tests end, in a directory that `cargo clean` removes.
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tales-{stand_ins}"));
        let (checkpoint, out) = (dir.join("checkpoint"), dir.join("shards"));
        unshard(&tales(), &checkpoint, false, None, &|_| {}).unwrap();
        let checkpoint = open_checkpoint(&checkpoint, None).unwrap();
        let naming = sws_model::naming(checkpoint.config()).unwrap();
        shard(&*checkpoint, naming.as_ref(), &out, &options, &|_| {}).unwrap();
        out
    })
}

fn options(bytes: u64, stand_ins: StandInUse) -> Options {
    Options {
        ram_budget: RamBudget::Bytes(bytes),
        process: Some(ProcessMemory::default()),
        context: Some(64),
        stand_ins,
        ..Options::default()
    }
}

fn streamer(dir: &Path, options: Options) -> Result<SpeculativeWeightStreamer, StreamerError> {
    let manifest = Arc::new(Manifest::load(dir).unwrap());
    let reader = Some(ReaderKind::Mmap.open(&manifest, dir, 2).unwrap());
    let store_options = StoreOptions { reader, cache: None, ..StoreOptions::default() };
    let store = NVMeWeightStore::open(manifest, dir, store_options).unwrap();
    SpeculativeWeightStreamer::new(ForwardPass::new(spec(dir)), Arc::new(store), options)
}

/// Hash of the logits of a prompt and some tokens after it, one at a time.
fn hash(lm: &mut SpeculativeWeightStreamer) -> Result<u64, ForwardError> {
    let mut bytes = Vec::new();
    let mut add = |logits: &[f32]| bytes.extend(logits.iter().flat_map(|x| x.to_le_bytes()));
    add(lm.prefill(&PROMPT)?);
    for n in 0..TOKENS {
        add(lm.decode(token(n))?);
    }
    Ok(checksum(&bytes))
}

fn truth() -> u64 {
    static TRUTH: OnceLock<u64> = OnceLock::new();
    let all = || streamer(model(Encoding::Q4), options(256 * MIB, StandInUse::Off)).unwrap();
    *TRUTH.get_or_init(|| hash(&mut all()).unwrap())
}

#[test]
fn stand_ins_count_only_as_exactness_allows() {
    // Encoding of the stand-ins, budget in MiB, stand-ins kept, exactness; true if the logits are
    // exact, if stand-ins were offered, and if some counted.
    use Exactness::*;
    use StandInUse::*;
    let [q4, top] = [Encoding::Q4, Encoding::Top];
    let cases = [
        (q4, 16, Off, Exact, true, false, false),
        (q4, 20, All, Exact, true, true, false),
        (q4, 14, Auto, Exact, true, true, false),
        (q4, 20, All, Within(0.0), true, true, false),
        (q4, 20, All, Within(1e-9), true, true, false),
        (q4, 20, All, Within(1e9), false, true, true),
        (q4, 20, All, Unseen(1), false, true, true),
        (q4, 20, All, Unseen(0), true, true, false),
        (q4, 16, Off, Within(1e9), true, false, false),
        // Slots lack what is in stand-ins.
        (top, 16, Off, Exact, true, false, false),
        (top, 36, All, Exact, true, true, false),
        (top, 20, Auto, Exact, true, true, false),
        (top, 36, All, Unseen(1), false, true, true),
    ];
    for (encoding, mib, stand_ins, exactness, exact, offered, counted) in cases {
        let case = format!("{encoding}, {mib} MiB, {stand_ins:?}, {exactness:?}");
        let options = Options { exactness, ..options(mib * MIB, stand_ins) };
        let mut lm = streamer(model(encoding), options).unwrap();
        let before = lm.counters();
        assert_eq!(hash(&mut lm).unwrap() == truth(), exact, "{case}");
        let after = lm.counters();
        let metrics = sws_engine::Metrics::between(&before, &after).stand_ins.unwrap_or_default();
        assert_eq!(metrics.offered > 0, offered, "{case}: {metrics:?}");
        assert_eq!(metrics.counted > 0, counted, "{case}: {metrics:?}");
        if exactness == Exact {
            assert_eq!(metrics.offered, metrics.caught, "{case}: {metrics:?}");
        }
    }
}

#[test]
fn larger_tolerances_let_more_stand_ins_count() {
    let counted = |share: f64, stand_ins: Encoding| {
        let mib = if stand_ins == Encoding::Q4 { 20 } else { 28 };
        let exactness = Exactness::Within(share);
        let options = Options { exactness, ..options(mib * MIB, StandInUse::All) };
        let mut lm = streamer(model(stand_ins), options).unwrap();
        hash(&mut lm).unwrap();
        let counters = lm.counters();
        assert!(counters.offered > 0);
        (counters.offered - counters.caught) as f64 / counters.offered as f64
    };
    for stand_ins in [Encoding::Q4, Encoding::Q8] {
        let shares = [0.0, 0.1, 1.0, 10.0, 1e6].map(|share| counted(share, stand_ins));
        assert!(shares.is_sorted(), "{stand_ins}: {shares:?}");
        assert_eq!((shares[0], shares[4]), (0.0, 1.0), "{stand_ins}: {shares:?}");
    }
    assert!(counted(0.3, Encoding::Q8) > counted(0.3, Encoding::Q4));
}

#[test]
fn unavailable_stand_ins_are_refused() {
    let exactness = Exactness::Within(1.0);
    let unbounded = Options { exactness, ..options(36 * MIB, StandInUse::All) };
    let refused = streamer(model(Encoding::Top), unbounded).unwrap_err().to_string();
    assert!(refused.contains("leave --tolerance out"), "{refused}");
    for which in [StandInUse::Auto, StandInUse::All] {
        let refused = streamer(&tales(), options(16 * MIB, which)).unwrap_err().to_string();
        assert!(refused.contains("sws shard --stand-ins"), "{refused}");
    }
    let refused = streamer(model(Encoding::Q8), options(16 * MIB, StandInUse::All));
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("no room for all stand-ins"), "{refused}");
}

/// A slow disk, and the computing times of this model at half the speed of the two cores that it
/// was measured on. At their full speed there is less time to read in, and waits fall by 14.6 %
/// instead of 18.3 %.
const DISK: SimulatedDisk = SimulatedDisk {
    bytes_per_second: 100_000_000,
    latency: Duration::from_micros(100),
    devices: 1,
};
const COSTS: ComputeCosts = ComputeCosts {
    infrastructure: Duration::from_micros(120),
    expert: Duration::from_micros(24),
    head: Duration::from_micros(240),
};

fn simulated_store(dir: &Path) -> Arc<NVMeWeightStore> {
    sws_testing::virtual_time::simulated(dir, DISK, 1 << 20).unwrap().0
}

/// Runs the model on the slow disk in virtual time. Returns a hash of the logits, and the counters
/// without those of the prompt.
fn simulated(bytes: u64, stand_ins: StandInUse, run_ahead: bool) -> (u64, Counters) {
    let dir = model(Encoding::Q4);
    let store = simulated_store(dir);
    let kernels = || ForwardPass::new(spec(dir));
    let lm =
        SpeculativeWeightStreamer::new(kernels(), Arc::clone(&store), options(bytes, stand_ins));
    // The number of slots is constant, so that the prompt leaves the same experts in them with and
    // without running ahead.
    let plan = Plan { lent: Vec::new(), ..lm.unwrap().plan().unwrap().clone() };
    let ablations = Ablations { run_ahead, ..Ablations::default() };
    let options = Options { ablations, costs: COSTS, ..options(bytes, stand_ins) };
    let mut lm = SpeculativeWeightStreamer::with_plan(kernels(), store, plan, options).unwrap();
    // Warms up: the experts in memory at first depend on the prompt, whose waits are not measured
    // here.
    for _ in 0..2 {
        hash(&mut lm).unwrap();
        lm.clear();
    }
    let mut logits = vec![lm.prefill(&PROMPT).unwrap().to_vec()];
    let before = lm.counters();
    for n in 0..TOKENS {
        logits.push(lm.decode(token(n)).unwrap().to_vec());
    }
    let mut after = lm.counters();
    after.passes -= before.passes;
    after.clocks.stalls.time -= before.clocks.stalls.time;
    after.device_bytes -= before.device_bytes;
    after.run_ahead.runs -= before.run_ahead.runs;
    after.run_ahead.layers -= before.run_ahead.layers;
    let bytes: Vec<u8> = logits.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
    (checksum(&bytes), after)
}

#[test]
fn running_ahead_shortens_waits_for_a_slow_disk() {
    let bytes = 29 * MIB;
    let (plain, waited) = simulated(bytes, StandInUse::All, false);
    let (ahead, less) = simulated(bytes, StandInUse::All, true);
    let told = format!(
        "{:?} and {:?} waited of {:?} and {:?}, {} and {} bytes, {:?}",
        waited.clocks.stalls.time,
        less.clocks.stalls.time,
        waited.passes,
        less.passes,
        waited.device_bytes,
        less.device_bytes,
        less.run_ahead,
    );
    assert_eq!((plain, ahead), (truth(), truth()));
    assert_eq!(waited.run_ahead, Default::default());
    assert!(less.run_ahead.runs > 0 && less.run_ahead.layers > less.run_ahead.runs, "{told}");
    assert_eq!((less.offered > 0, less.offered), (true, less.caught), "{told}");
    // Time computed ahead counts as waiting.
    assert!(less.clocks.stalls.time * 100 <= waited.clocks.stalls.time * 85, "{told}");
    assert!(less.passes < waited.passes, "{told}");
    // A repeated run is the same to the nanosecond.
    let (_, again) = simulated(bytes, StandInUse::All, true);
    assert_eq!((again.passes, again.run_ahead), (less.passes, less.run_ahead));
}

/// The same model with stand-ins whose codes are random, made once.
fn wrong() -> &'static Path {
    static WRONG: OnceLock<PathBuf> = OnceLock::new();
    WRONG.get_or_init(|| {
        let from = model(Encoding::Q4);
        let mut manifest = Manifest::load(from).unwrap();
        let mut files: Vec<Vec<u8>> = manifest
            .files
            .iter()
            .map(|file| std::fs::read(from.join(&file.path)).unwrap())
            .collect();
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let stand_ins = manifest.pieces.iter_mut().filter_map(|piece| piece.stand_in.as_mut());
        for tensor in stand_ins.flat_map(|stand_in| &mut stand_in.tensors) {
            let codes = &mut tensor.parts[0];
            let file = &mut files[codes.file as usize];
            let bytes = &mut file[codes.offset as usize..][..codes.len as usize];
            for byte in &mut *bytes {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = (state >> 56) as u8;
            }
            codes.checks = bytes.chunks(codes.check_len as usize).map(checksum).collect();
        }
        let dir = from.with_file_name("wrong");
        for (file, bytes) in manifest.files.iter().zip(files) {
            let path = dir.join(&file.path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
        std::fs::write(dir.join(MANIFEST_FILE), manifest.to_json().unwrap()).unwrap();
        std::fs::copy(from.join("config.json"), dir.join("config.json")).unwrap();
        dir
    })
}

/// The reads of runs ahead are in the same account as all speculation. It states their savings, and
/// ends them where they save nothing, before they lose much.
#[test]
fn account_includes_running_ahead() {
    let run = |dir: &Path, mib: u64, run_ahead: bool| {
        let store = simulated_store(dir);
        let all = options(mib * MIB, StandInUse::All);
        let ablations = Ablations { run_ahead, ..Ablations::default() };
        let options = Options { ablations, costs: COSTS, context: Some(256), ..all };
        let mut lm =
            SpeculativeWeightStreamer::new(ForwardPass::new(spec(dir)), store, options).unwrap();
        for n in 0..800 {
            if n % 200 == 0 {
                lm.clear();
            }
            lm.decode(token(n)).unwrap();
        }
        lm.counters()
    };
    for (dir, mib, right) in [(model(Encoding::Q4), 26, true), (wrong(), 29, false)] {
        let (plain, ahead) = (run(dir, mib, false), run(dir, mib, true));
        let speculation = ahead.speculation;
        let [wall, took] = [plain.passes, ahead.passes].map(|time| time.as_nanos() as f64);
        let told = format!("{wall} ns become {took}: {speculation:?}, {:?}", ahead.run_ahead);
        assert_eq!(plain.speculation.issued, 0, "{told}");
        assert!(ahead.run_ahead.runs > 0 && speculation.issued > 0, "{told}");
        let (saved, balance) = (wall - took, speculation.balance_ns());
        assert!((saved - balance).abs() < 0.005 * wall, "{told}");
        match right {
            true => assert!(saved > 0.05 * wall && speculation.windows_off == 0, "{told}"),
            false => assert!(saved > -0.01 * wall && speculation.windows_off > 0, "{told}"),
        }
    }
}

#[test]
fn nothing_runs_ahead_where_that_does_not_pay() {
    // Budget and stand-ins: everything is in memory, or later layers cannot be computed.
    for (bytes, stand_ins) in [(256 * MIB, StandInUse::All), (26 * MIB, StandInUse::Off)] {
        let (hash, counters) = simulated(bytes, stand_ins, true);
        assert_eq!((hash, counters.run_ahead.runs), (truth(), 0), "{bytes}, {stand_ins:?}");
    }
}

#[test]
fn plan_gives_stand_ins_their_share() {
    let dir = model(Encoding::Q4);
    let (spec, manifest) = (spec(dir), Manifest::load(dir).unwrap());
    let inventory = Inventory::new(&spec, &manifest).unwrap();
    let plan = |stand_ins: StandInUse, mib: u64| {
        let options = PlanOptions { context: Some(64), stand_ins, ..PlanOptions::default() };
        let process = ProcessMemory::default();
        let planner = Planner::new(&spec, &inventory, &manifest, process, options).unwrap();
        planner.plan(mib * MIB)
    };
    let mut before = [0; 3];
    let mut refused = 0;
    for mib in 0..64 {
        for (which, before) in StandInUse::ALL.into_iter().zip(&mut before) {
            let plan = match plan(which, mib) {
                Ok(plan) => plan,
                Err(error) => {
                    refused += u32::from(matches!(error, PlanError::StandIns { .. }));
                    let (PlanError::StandIns { smallest, .. }
                    | PlanError::TooSmall { smallest, .. }) = error
                    else {
                        panic!("{error}")
                    };
                    let smallest = smallest / MIB;
                    assert!(mib < 24 && error.to_string().contains(&format!("{smallest}MiB")));
                    // The stated minimum has a margin for differences between two starts of a
                    // process.
                    assert!(plan(which, smallest - 2).is_ok(), "{error}");
                    assert!(plan(which, smallest - 3).is_err(), "{error}");
                    continue;
                }
            };
            let case = format!("{which:?}, {mib} MiB, {} stand-ins", plan.stand_ins.len());
            let [kept, slots] =
                [MemoryUse::StandIns, MemoryUse::Slots].map(|what| plan.ledger.get(what));
            let len = |id| PieceLayout::new(&manifest, Read::StandIn(id)).unwrap().slot_len();
            let taken: usize = plan.stand_ins.iter().map(|&id| len(id)).sum();
            assert!(taken as u64 <= kept && plan.stand_ins.is_sorted(), "{case}");
            match which {
                StandInUse::Off => assert_eq!(kept, 0, "{case}"),
                StandInUse::Auto => assert!(kept * 7 <= slots + 8 * 4096, "{case}: {kept}"),
                StandInUse::All => assert_eq!(plan.stand_ins.len(), 256, "{case}"),
            }
            // If every expert has a slot, `auto` keeps no stand-ins.
            assert!(slots >= *before, "{case}: {slots} after {before}");
            *before = slots;
        }
    }
    assert!(refused > 0);
    assert_eq!(plan(StandInUse::Auto, 63).unwrap().stand_ins, []);
    assert!(plan(StandInUse::Auto, 24).unwrap().stand_ins.len() > 16);
}

/// Every stand-in has a valid layout in the manifest.
#[test]
fn every_expert_has_a_stand_in_with_bounds() {
    let manifest = Manifest::load(model(Encoding::Q4)).unwrap();
    let mut found = 0;
    for piece in &manifest.pieces {
        let Some(stand_in) = &piece.stand_in else { continue };
        found += 1;
        let read = Read::StandIn(piece.id);
        assert!(PieceLayout::new(&manifest, read).is_ok());
        for tensor in &stand_in.tensors {
            let error = tensor.error.unwrap();
            let [norm, change] = [error.spectral, error.spectral_error].map(Option::unwrap);
            assert!(change > 0.0 && change < norm, "{} {error:?}", tensor.name);
        }
    }
    assert_eq!(found, 256);
}
