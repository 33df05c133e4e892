//! Device faults: the right bits, or an error in one sentence, and the next prompt works.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sws_engine::Waiter;
use sws_format::{Clock, PieceId, PieceKind, ShardReader};
use sws_kernels::Encoding;
use sws_model::Role;
use sws_store::{NVMeWeightStore, StoreOptions};
use sws_testing::readers::{BitFlip, Failing, MemoryReader, Short, Slow};

use super::support::{Fixture, goldens, hash, llama_with_a_large_head, try_hash, waiter};

fn fixtures() -> Vec<Fixture> {
    let models = ["llama", "mixtral", "qwen2_moe"];
    models.map(|name| Fixture::sharded(&goldens().join(name), Encoding::Bf12)).into()
}

/// Repeats a run with a fault in each of its reads in turn. `bad` makes the reader whose n-th read
/// fails.
fn each_read(bad: impl Fn(MemoryReader, u64) -> Arc<dyn ShardReader>, says: &str) {
    for fixture in fixtures() {
        let tokens = fixture.tokens(8);
        let expected = hash(&mut fixture.resident(), &tokens);
        let plan = fixture.plan(30, 20_000);
        let (mut failed, mut fine) = (0, 0);
        for n in 0.. {
            let store = fixture.store(Some(bad(fixture.memory(), n)));
            let mut session = match fixture.streaming(&plan, Arc::clone(&store), waiter()) {
                Ok(session) => session,
                // Resident weights could not be read.
                Err(error) => {
                    assert!(error.to_string().contains(says), "{error}");
                    continue;
                }
            };
            session.set_chunk(3);
            match try_hash(&mut session, &tokens) {
                Ok(found) => {
                    assert_eq!(found, expected, "{}: {n}", fixture.name);
                    fine += 1;
                }
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.contains(says) && text.contains("piece `"), "{n}: {text}");
                    assert_eq!(hash(&mut session, &tokens), expected, "{}: {n}", fixture.name);
                    failed += 1;
                }
            }
            let stats = store.stats();
            if stats.demanded.reads + stats.ahead.reads + 10 < n {
                break;
            }
        }
        assert!(failed > 20 && fine > 0, "{}: {failed} failed, {fine} did not", fixture.name);
    }
}

#[test]
fn every_read_fails_once() {
    each_read(|disk, n| Arc::new(Failing::nth(disk, n)), "injected failure");
}

#[test]
fn every_read_is_cut_short_once() {
    each_read(|disk, n| Arc::new(Short::new(disk, n, 4096)), "cut short");
}

#[test]
fn dead_device_is_reported_every_time() {
    for fixture in fixtures() {
        let tokens = fixture.tokens(8);
        let plan = fixture.plan(0, 0);
        let reader = Failing::from(fixture.memory(), 150);
        let store = fixture.store(Some(Arc::new(reader)));
        let mut session = fixture.streaming(&plan, store, waiter()).unwrap();
        for _ in 0..3 {
            let error = loop {
                if let Err(error) = try_hash(&mut session, &tokens) {
                    break error.to_string();
                }
            };
            assert!(error.contains("piece `") && error.contains("injected failure"), "{error}");
        }
    }
}

#[test]
fn flipped_bits_are_found_and_leave_no_trace() {
    for fixture in fixtures() {
        let tokens = fixture.tokens(20);
        let expected = hash(&mut fixture.resident(), &tokens);
        for percent in [0, 50] {
            let reader = Arc::new(BitFlip::passing(fixture.memory(), 7, 5));
            let store = fixture.store(Some(reader.clone()));
            let plan = fixture.plan(percent, 50_000);
            let mut session = fixture.streaming(&plan, Arc::clone(&store), waiter()).unwrap();
            assert_eq!(hash(&mut session, &tokens), expected, "{}", fixture.name);
            drop(session);
            let stats = store.stats();
            assert!(stats.mismatches > 0 && stats.mismatches == stats.corrected, "{stats:?}");
        }
    }
}

#[test]
fn a_slow_device_changes_only_the_time() {
    for fixture in fixtures() {
        let tokens = fixture.tokens(10);
        let expected = hash(&mut fixture.resident(), &tokens);
        let clock = Clock::simulated();
        let slow = Slow::new(fixture.memory(), clock.clone(), 1 << 20, Duration::from_millis(3));
        let options = StoreOptions {
            reader: Some(Arc::new(slow)),
            cache: None,
            clock: clock.clone(),
            ..StoreOptions::default()
        };
        let manifest = Arc::clone(&fixture.manifest);
        let store = Arc::new(NVMeWeightStore::open(manifest, &fixture.dir, options).unwrap());
        let plan = fixture.plan(30, 0);
        let mut session = fixture.streaming(&plan, store, Waiter::new(clock.clone())).unwrap();
        assert_eq!(hash(&mut session, &tokens), expected, "{}", fixture.name);
        assert!(clock.now() > Duration::from_millis(100), "it was slow");
    }
}

/// Cancels the pass at a read.
struct Cancelling {
    inner: MemoryReader,
    waiter: Waiter,
    at: u64,
    count: AtomicU64,
}

impl ShardReader for Cancelling {
    fn name(&self) -> &'static str {
        "cancelling"
    }

    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        if self.count.fetch_add(1, Ordering::Relaxed) == self.at {
            self.waiter.cancel();
        }
        self.inner.read_at(file, offset, into)
    }
}

#[test]
fn cancelled_pass_returns_its_memory() {
    for fixture in fixtures() {
        cancel_at(&fixture, (60..200).step_by(7));
    }
}

/// Of an encoding with a part that is lent with every block.
#[test]
fn cancelled_pass_within_a_matrix_of_many_blocks_returns_its_memory() {
    let dir = tempfile::tempdir().unwrap();
    llama_with_a_large_head(dir.path());
    for encoding in [Encoding::Bf12, Encoding::Q8] {
        cancel_at(&Fixture::sharded(dir.path(), encoding), (40..400).step_by(9));
    }
}

/// Cancels passes at these reads, one at a time.
fn cancel_at(fixture: &Fixture, reads: impl Iterator<Item = u64>) {
    let tokens = fixture.tokens(10);
    let expected = hash(&mut fixture.resident(), &tokens);
    for at in reads {
        let (inner, waiter) = (fixture.memory(), waiter());
        let count = AtomicU64::new(0);
        let reader = Cancelling { inner, waiter: waiter.clone(), at, count };
        let plan = fixture.plan(0, 30_000);
        let store = fixture.store(Some(Arc::new(reader)));
        let mut session = fixture.streaming(&plan, store, waiter.clone()).unwrap();
        let idle = session.source().free_ring_bytes();
        let error = loop {
            if let Err(error) = try_hash(&mut session, &tokens) {
                break error.to_string();
            }
        };
        assert_eq!(error, "the pass was cancelled", "{}", fixture.name);
        assert_eq!(session.source().free_ring_bytes(), idle, "{at}");
        waiter.resume();
        assert_eq!(hash(&mut session, &tokens), expected, "{}: {at}", fixture.name);
    }
}

#[test]
fn nan_weight_is_named() {
    let fixture = Fixture::in_place(&goldens().join("llama"));
    let last = fixture.spec.layers.len() as u32 - 1;
    let piece = PieceId::new(last, PieceKind::Mlp);
    let held = fixture.inventory.piece(piece).iter().find(|held| held.role == Role::Down).unwrap();
    let tensor = &fixture.manifest.piece(piece).unwrap().tensors[held.index];
    let mut files: Vec<Vec<u8>> = Vec::new();
    for file in &fixture.manifest.files {
        files.push(std::fs::read(fixture.dir.join(&file.path)).unwrap());
    }
    let extent = &tensor.parts[0];
    let at = extent.offset as usize + 2 * (3 * held.cols + 5);
    files[extent.file as usize][at..at + 2].copy_from_slice(&0x7fc0u16.to_le_bytes());
    for percent in [0, 100] {
        let store = fixture.store(Some(Arc::new(MemoryReader::new(files.clone()))));
        let plan = fixture.plan(percent, 0);
        let error = match fixture.streaming(&plan, store, waiter()) {
            Ok(mut session) => try_hash(&mut session, &fixture.tokens(4)).unwrap_err().to_string(),
            Err(error) => error.to_string(),
        };
        assert!(error.starts_with(&format!("the tensor `{}`", tensor.name)), "{error}");
        // An error of opening is said with the model; one of a pass has to name the file itself.
        let file = format!(", which the checkpoint has in `{}`,", tensor.source);
        assert_eq!(error.contains(&file), percent == 0, "{error}");
        assert!(error.contains(" holds NaN (row 3, column 5)"), "{error}");
    }
}

#[test]
fn too_short_ring_is_refused() {
    for fixture in fixtures() {
        let mut plan = fixture.plan(0, 0);
        plan.ring -= 4096;
        let error = fixture.streaming(&plan, fixture.store(None), waiter()).unwrap_err();
        assert!(error.to_string().contains("larger --ram"), "{error}");
    }
}
