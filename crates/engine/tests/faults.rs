//! Things that go wrong while a model runs: the same bits, or a sentence and the next prompt works.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use sws_engine::{Budget, Costs, Options, Process, SpeculativeWeightStreamer, StreamerError};
use sws_model::text::Sampling;
use sws_model::{CausalLm, Model};
use sws_store::{
    BitFlip, Clock, Manifest, NVMeWeightStore, ReaderKind, ShardReader, SimulatedDisk, StoreOptions,
};
use sws_testing::tales;

const PROMPT: [u32; 8] = [5, 300, 17, 99, 1000, 41, 7, 2048];

fn store(dir: &Path, options: StoreOptions) -> Arc<NVMeWeightStore> {
    let manifest = Arc::new(Manifest::load(dir).unwrap());
    let options = StoreOptions { cache: None, ..options };
    Arc::new(NVMeWeightStore::open(manifest, dir, options).unwrap())
}

/// With a little more than the least that works, and `mib` MiB above that.
fn stream(dir: &Path, options: StoreOptions, mib: u64) -> SpeculativeWeightStreamer {
    open(store(dir, options), mib, Costs::default())
}

fn open(store: Arc<NVMeWeightStore>, mib: u64, costs: Costs) -> SpeculativeWeightStreamer {
    let spec = sws_testing::spec(store.dir());
    let options = Options {
        ram_budget: Budget::Bytes((8 + mib) << 20),
        process: Some(Process::default()),
        context: Some(128),
        sampling: Sampling { temperature: 1.0, top_k: 40, seed: 7, ..Sampling::default() },
        costs,
        ..Options::default()
    };
    SpeculativeWeightStreamer::new(Model::new(spec), store, options).unwrap()
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

/// Reads `into` from a file at an offset through another reader, as the so-many-th read.
type BadRead = fn(&dyn ShardReader, u64, u32, u64, &mut [u8]) -> io::Result<usize>;

/// Another reader, and what goes wrong with it while somebody says so.
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

/// Whatever a device does wrong from some moment on, a prompt fails with a sentence that names the
/// piece, and works again when the device does.
#[test]
fn a_device_that_fails_for_a_while_is_named_and_forgiven() {
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
            // A read that fails and is asked for again may come: then the answer is right.
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

/// Every bit that was turned over on the way was found, and none of them had a consequence.
#[test]
fn bits_turned_over_on_the_way_are_all_found() {
    let expected = expected();
    for (seed, mib) in [(1, 0), (2, 3)] {
        let flips = Arc::new(BitFlip::passing(reader(&tales(), ReaderKind::Mmap), seed, 6));
        let store = store(&tales(), with(flips.clone()));
        let mut lm = open(Arc::clone(&store), mib, Costs::default());
        assert_eq!(answer(&mut lm).unwrap(), expected);
        drop(lm);
        // What lies between tensors is read with them and computed with by nobody.
        let manifest = store.manifest();
        let parts = manifest.pieces.iter().flat_map(|piece| &piece.tensors);
        let parts: Vec<_> = parts.flat_map(|tensor| &tensor.parts).collect();
        let hits = flips.injected().into_iter().filter(|flip| {
            let here = |p: &&sws_store::Extent| {
                p.file == flip.file && (p.offset..p.offset + p.len).contains(&flip.offset)
            };
            parts.iter().copied().any(|part| here(&part))
        });
        let (stats, hits) = (store.stats(), hits.count() as u64);
        assert!(hits > 20, "{hits}");
        assert_eq!((stats.mismatches, stats.corrected), (hits, hits), "{stats:?}");
    }
}

/// In virtual time: while the disk is ten times slower the run is longer, and nothing else is.
#[test]
fn a_disk_that_slows_down_costs_only_time() {
    let costs = Costs {
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
            simulated: Some(SimulatedDisk { bytes_per_second: SPEED, latency: Duration::ZERO }),
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
    // Computing takes what it took.
    let computing = |c: &sws_engine::Counters| c.passes - c.clocks.stalls.time;
    assert_eq!(computing(&long), computing(&quick));
}

const SPEED: u64 = 1_000_000_000;
/// When a slow stretch begins and ends.
const STRETCH: [Duration; 2] = [Duration::from_millis(15), Duration::from_millis(60)];

/// Ten times slower than the disk it is on, for a while.
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

/// A shard that changes under a running model is found by its checksums and named; what was open
/// before it was replaced stays what it was.
#[test]
fn a_shard_that_changes_while_it_is_used_is_named() {
    let expected = expected();
    // What is done to a file, and what may be said then.
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
        // Another file of that name: who has the first one open goes on with it.
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
            Ok(found) => assert!(number == 2 && found == expected, "case {number} went unseen"),
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("expert"), "{number}: {text}");
                assert!(says.iter().any(|word| text.contains(word)), "{number}: {text}");
            }
        }
        // Put right again, the next prompt works.
        copy(&tales(), temp.path());
        let mut lm = stream(temp.path(), with(reader(temp.path(), kind)), 0);
        assert_eq!(answer(&mut lm).unwrap(), expected, "case {number}");
    }
}
