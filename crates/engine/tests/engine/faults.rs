//! Faults while a model runs: the same bits, or an error in one sentence, and the next prompt
//! works.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use sws_engine::{
    ComputeCosts, Options, ProcessMemory, RamBudget, SpeculativeWeightStreamer, StreamerError,
};
use sws_format::{Clock, Manifest, ShardReader};
use sws_model::{CausalLm, ForwardPass};
use sws_store::{NVMeWeightStore, ReaderKind, SimulatedDisk, StoreOptions};
use sws_testing::readers::BitFlip;
use sws_testing::tales;
use sws_text::Sampling;

const PROMPT: [u32; 8] = [5, 300, 17, 99, 1000, 41, 7, 2048];

fn store(dir: &Path, options: StoreOptions) -> Arc<NVMeWeightStore> {
    let manifest = Arc::new(Manifest::load(dir).unwrap());
    let options = StoreOptions { cache: None, ..options };
    Arc::new(NVMeWeightStore::open(manifest, dir, options).unwrap())
}

/// A streamer with slightly more than the smallest budget, and `mib` MiB above it.
fn stream(dir: &Path, options: StoreOptions, mib: u64) -> SpeculativeWeightStreamer {
    open(store(dir, options), mib, ComputeCosts::default())
}

fn open(store: Arc<NVMeWeightStore>, mib: u64, costs: ComputeCosts) -> SpeculativeWeightStreamer {
    let spec = sws_testing::spec(store.dir());
    let options = Options {
        ram_budget: RamBudget::Bytes((8 + mib) << 20),
        process: Some(ProcessMemory::default()),
        context: Some(128),
        sampling: Sampling { temperature: 1.0, top_k: 40, seed: 7, ..Sampling::default() },
        costs,
        ..Options::default()
    };
    SpeculativeWeightStreamer::new(ForwardPass::new(spec), store, options).unwrap()
}

fn reader(dir: &Path, kind: ReaderKind) -> Arc<dyn ShardReader> {
    kind.open(&Manifest::load(dir).unwrap(), dir, 4).unwrap()
}

fn with(reader: Arc<dyn ShardReader>) -> StoreOptions {
    StoreOptions { reader: Some(reader), ..StoreOptions::default() }
}

fn answer(lm: &mut SpeculativeWeightStreamer) -> Result<Vec<u32>, StreamerError> {
    lm.clear();
    lm.generate(&PROMPT, 12)
}

fn expected() -> Vec<u32> {
    answer(&mut stream(&tales(), StoreOptions::default(), 40)).unwrap()
}

/// Reads from a file at an offset into a buffer through another reader; the second argument counts
/// the calls.
type BadRead = fn(&dyn ShardReader, u64, u32, u64, &mut [u8]) -> io::Result<usize>;

/// A reader that misbehaves while it is switched on.
struct Bad {
    inner: Arc<dyn ShardReader>,
    on: AtomicBool,
    reads: AtomicU64,
    read: BadRead,
}

impl Bad {
    fn new(read: BadRead) -> Arc<Bad> {
        let inner = reader(&tales(), ReaderKind::Mmap);
        Arc::new(Bad { inner, on: AtomicBool::new(false), reads: AtomicU64::new(0), read })
    }
}

impl ShardReader for Bad {
    fn name(&self) -> &'static str {
        "bad"
    }

    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        match self.on.load(Ordering::Relaxed) {
            true => {
                let n = self.reads.fetch_add(1, Ordering::Relaxed);
                (self.read)(&*self.inner, n, file, offset, into)
            }
            false => self.inner.read_at(file, offset, into),
        }
    }
}

/// While a device fails, a prompt fails with an error that names the piece. It works again when the
/// device does.
#[test]
fn temporary_device_failure_is_reported_and_recovered_from() {
    let expected = expected();
    let cases: [(&str, BadRead); 3] = [
        ("it is broken", |_, _, _, _, _| Err(io::Error::other("it is broken"))),
        ("it is broken", |inner, n, file, offset, into| match n % 7 {
            6 => Err(io::Error::other("it is broken")),
            _ => inner.read_at(file, offset, into),
        }),
        ("cut short", |inner, n, file, offset, into| {
            let got = inner.read_at(file, offset, into)?;
            Ok(if n % 5 == 4 { got.saturating_sub(4096) } else { got })
        }),
    ];
    for (says, read) in cases {
        for mib in [0, 3] {
            let bad = Bad::new(read);
            let mut lm = stream(&tales(), with(bad.clone()), mib);
            assert_eq!(answer(&mut lm).unwrap(), expected);
            bad.on.store(true, Ordering::Relaxed);
            // A failed read that is repeated may succeed. Then the answer is right.
            let mut failed = 0;
            for _ in 0..4 {
                match answer(&mut lm) {
                    Ok(found) => assert_eq!(found, expected),
                    Err(error) => {
                        let text = error.to_string();
                        assert!(text.contains(says) && text.contains("piece `"), "{text}");
                        failed += 1;
                    }
                }
            }
            assert!(failed > 0 && bad.reads.load(Ordering::Relaxed) > 0, "{says}, {mib} MiB");
            bad.on.store(false, Ordering::Relaxed);
            assert_eq!(answer(&mut lm).unwrap(), expected, "{says}, {mib} MiB");
        }
    }
}

/// Every bit flipped in transit is detected, and none affects the result.
#[test]
fn bits_flipped_in_transit_are_all_detected() {
    let expected = expected();
    for (seed, mib) in [(1, 0), (2, 3)] {
        let flips = Arc::new(BitFlip::passing(reader(&tales(), ReaderKind::Mmap), seed, 6));
        let store = store(&tales(), with(flips.clone()));
        let mut lm = open(Arc::clone(&store), mib, ComputeCosts::default());
        assert_eq!(answer(&mut lm).unwrap(), expected);
        drop(lm);
        // Bytes between tensors are read with them, but never used.
        let manifest = store.manifest();
        let parts = manifest.pieces.iter().flat_map(|piece| &piece.tensors);
        let parts: Vec<_> = parts.flat_map(|tensor| &tensor.parts).collect();
        let hits = flips.injected().into_iter().filter(|flip| {
            let here = |p: &&sws_format::Extent| {
                p.file == flip.file && (p.offset..p.offset + p.len).contains(&flip.offset)
            };
            parts.iter().copied().any(|part| here(&part))
        });
        let (stats, hits) = (store.stats(), hits.count() as u64);
        assert!(hits > 20, "{hits}");
        assert_eq!((stats.mismatches, stats.corrected), (hits, hits), "{stats:?}");
    }
}

/// In virtual time, a disk that is ten times slower for a while makes the run longer, and changes
/// nothing else.
#[test]
fn a_disk_that_slows_down_costs_only_time() {
    let costs = ComputeCosts {
        infrastructure: Duration::from_micros(20),
        expert: Duration::from_micros(10),
        head: Duration::from_micros(50),
    };
    let run = |slow: bool| {
        let clock = Clock::simulated();
        let disk =
            Slowing { clock: clock.clone(), inner: reader(&tales(), ReaderKind::Mmap), slow };
        let options = StoreOptions {
            clock,
            simulated: Some(SimulatedDisk {
                bytes_per_second: SPEED,
                latency: Duration::ZERO,
                devices: 1,
            }),
            ..with(Arc::new(disk))
        };
        let mut lm = open(store(&tales(), options), 3, costs);
        let tokens = answer(&mut lm).unwrap();
        let counters = lm.counters();
        (tokens, counters)
    };
    let [(fast, quick), (slow, long), (again, same)] = [false, true, true].map(run);
    assert_eq!((&fast, &again), (&slow, &slow));
    assert_eq!(fast, expected());
    assert!(long.passes > quick.passes + Duration::from_millis(5), "{long:?} after {quick:?}");
    assert_eq!(
        (long.passes, long.clocks.stalls, long.bytes),
        (same.passes, same.clocks.stalls, same.bytes)
    );
    // Computing takes the same time.
    let computing = |c: &sws_engine::Counters| c.passes - c.clocks.stalls.time;
    assert_eq!(computing(&long), computing(&quick));
}

const SPEED: u64 = 1_000_000_000;
/// Begin and end of the slow stretch.
const STRETCH: [Duration; 2] = [Duration::from_millis(15), Duration::from_millis(60)];

/// A disk that is ten times slower for a while.
struct Slowing {
    clock: Clock,
    inner: Arc<dyn ShardReader>,
    slow: bool,
}

impl ShardReader for Slowing {
    fn name(&self) -> &'static str {
        "slowing"
    }

    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let now = self.clock.now();
        if self.slow && now >= STRETCH[0] && now < STRETCH[1] {
            self.clock.sleep(Duration::from_nanos(9 * into.len() as u64 * 1_000_000_000 / SPEED));
        }
        self.inner.read_at(file, offset, into)
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in from.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let to = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &to);
        } else {
            std::fs::copy(&path, &to).unwrap();
        }
    }
}

/// A shard that changes under a running model is detected by its checksums and named. A file that
/// was open before it was replaced stays valid.
#[test]
fn shard_changed_while_in_use_is_named() {
    let expected = expected();
    // Change of a file, and the errors that it may cause.
    type Change = fn(&Path);
    let cases: [(Change, &[&str]); 3] = [
        // Truncated in place.
        (
            |path| std::fs::File::options().write(true).open(path).unwrap().set_len(8192).unwrap(),
            &["cut short"],
        ),
        // Other bytes in place.
        (
            |path| {
                let mut bytes = std::fs::read(path).unwrap();
                bytes[4096..].iter_mut().for_each(|byte| *byte ^= 0x55);
                std::fs::write(path, bytes).unwrap();
            },
            &["do not agree with their checksum"],
        ),
        // Another file of the same name: the open one stays in use.
        (
            |path| {
                let other = path.with_extension("new");
                let mut bytes = std::fs::read(path).unwrap();
                bytes[4096..].iter_mut().for_each(|byte| *byte ^= 0x55);
                std::fs::write(&other, bytes).unwrap();
                std::fs::rename(&other, path).unwrap();
            },
            &["do not agree with their checksum"],
        ),
    ];
    for (number, (change, says)) in cases.into_iter().enumerate() {
        let temp = tempfile::tempdir().unwrap();
        copy(&tales(), temp.path());
        let kind = ReaderKind::Direct;
        let mut lm = stream(temp.path(), with(reader(temp.path(), kind)), 0);
        assert_eq!(answer(&mut lm).unwrap(), expected);
        for layer in 0..8 {
            let dir = temp.path().join(format!("layer_{layer}"));
            for entry in dir.read_dir().unwrap() {
                let path = entry.unwrap().path();
                if path.file_name().unwrap().to_str().unwrap().starts_with("expert") {
                    change(&path);
                }
            }
        }
        match answer(&mut lm) {
            Ok(found) => assert!(number == 2 && found == expected, "case {number} undetected"),
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("expert"), "{number}: {text}");
                assert!(says.iter().any(|word| text.contains(word)), "{number}: {text}");
            }
        }
        // With the files restored, the next prompt works.
        copy(&tales(), temp.path());
        let mut lm = stream(temp.path(), with(reader(temp.path(), kind)), 0);
        assert_eq!(answer(&mut lm).unwrap(), expected, "case {number}");
    }
}
