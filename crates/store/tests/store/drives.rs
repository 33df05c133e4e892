//! Copies on several drives: how fast they are together, and what happens when one fails.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sws_format::{Clock, PieceId, ShardReader};
use sws_store::{
    Arena, Completion, FetchError, Mirror, NVMeWeightStore, Priority, Read, ReaderKind,
    SimulatedDisk, StoreOptions,
};
use sws_testing::readers::{BitFlip, Failing, Flaky, Flip, MemoryReader, Short};

use crate::support::{MIB, Model};

/// Experts of 2 MiB, a file each.
const EXPERTS: u32 = 60;
const EXPERT: usize = 2 * MIB;

fn disk(mib_per_second: u64) -> SimulatedDisk {
    SimulatedDisk {
        bytes_per_second: mib_per_second << 20,
        latency: Duration::from_micros(100),
        devices: 1,
    }
}

/// A copy of the experts for which `has` is true.
fn mirror(model: &Model, mib_per_second: u64, has: impl Fn(usize) -> bool) -> Mirror {
    let files: Vec<bool> = (0..model.files.len()).map(has).collect();
    // A copy has no other files.
    let held = model.files.iter().zip(&files);
    let held = held.map(|(bytes, has)| if *has { bytes.clone() } else { Vec::new() }).collect();
    Mirror {
        dir: PathBuf::from(format!("/copy-{mib_per_second}")),
        reader: Arc::new(MemoryReader::new(held)),
        files,
        simulated: Some(disk(mib_per_second)),
    }
}

fn store(model: &Model, own: Arc<dyn ShardReader>, options: StoreOptions) -> NVMeWeightStore {
    let options = StoreOptions { reader: Some(own), cache: None, ..options };
    NVMeWeightStore::open(Arc::new(model.manifest.clone()), Path::new("/own"), options).unwrap()
}

fn simulated(own: u64, mirrors: Vec<Mirror>) -> StoreOptions {
    let clock = Clock::simulated();
    StoreOptions { clock, simulated: Some(disk(own)), mirrors, ..StoreOptions::default() }
}

/// Demands all experts at once, and checks every byte. Returns the errors.
fn read_all(model: &Model, store: &NVMeWeightStore) -> Vec<FetchError> {
    let arena = Arena::new(EXPERTS as usize * EXPERT).unwrap();
    let mut errors = Vec::new();
    for expert in 0..model.files.len() as u32 {
        let layout = store.layout(Read::Piece(PieceId::expert(0, expert))).unwrap();
        let slot = arena.take(layout.slot_len()).unwrap();
        store.fetch(layout, Priority::Demanded, slot).unwrap();
    }
    for _ in 0..model.files.len() {
        let Completion { layout, slot, result, .. } = store.wait(store.completions()).unwrap();
        let file = layout.segments()[0].file as usize;
        match result {
            Ok(()) => {
                let part = layout.tensors()[0].part(&slot, 0).unwrap();
                assert!(part == model.files[file], "file {file}");
            }
            Err(error) => errors.push(error),
        }
    }
    errors
}

/// The files that a copy has.
type Has = fn(usize) -> bool;
/// The speed of the own drive, the copies, and the speed of all.
type Together<'a> = (u64, &'a [(u64, Has)], u64);

#[test]
fn drives_read_as_fast_as_all_of_them_together() {
    let model = Model::experts(EXPERTS, EXPERT);
    let bytes = f64::from(EXPERTS) * EXPERT as f64;
    let all: Has = |_| true;
    let half: Has = |at| at % 2 == 0;
    let third: Has = |at| at % 3 == 0;
    // Speeds in MiB per second, and that which their copies permit together.
    let cases: [Together<'_>; 8] = [
        (1000, &[], 1000),
        (1000, &[(1000, all)], 2000),
        (1500, &[(500, all)], 2000),
        (500, &[(1500, all)], 2000),
        (1000, &[(700, all), (300, all)], 2000),
        // A drive that would only be waited for.
        (1000, &[(10, all)], 1010),
        (1000, &[(1000, half)], 2000),
        // Two thirds are on the first drive alone.
        (1000, &[(1000, third)], 1500),
    ];
    for (own, mirrors, together) in cases {
        let shown: Vec<u64> = mirrors.iter().map(|(speed, _)| *speed).collect();
        let mirrors = mirrors.iter().map(|(speed, has)| mirror(&model, *speed, has)).collect();
        let own_reader = Arc::new(MemoryReader::new(model.files.clone()));
        let store = store(&model, own_reader, simulated(own, mirrors));
        for pass in [1, 2] {
            let started = store.clock().now();
            assert!(read_all(&model, &store).is_empty());
            let taken = store.clock().now() - started;
            let share = bytes / taken.as_secs_f64() / MIB as f64 / together as f64;
            // At first nothing is known of the drives.
            let least = if pass == 1 { 0.9 } else { 0.95 };
            let about = format!("{own} and {shown:?}, pass {pass}: {share} of {together}");
            assert!((least..=1.0).contains(&share), "{about}");
        }
        let stats = store.stats();
        let by_drive: u64 = stats.drives.iter().map(|drive| drive.bytes).sum();
        let is_alone = shown.is_empty();
        assert_eq!(by_drive, if is_alone { 0 } else { 2 * bytes as u64 }, "{own} and {shown:?}");
        assert!(stats.drives.iter().all(|drive| !drive.is_left_out), "{own} and {shown:?}");
    }
}

#[test]
fn equal_drives_are_used_alike_after_a_pause() {
    let model = Model::experts(EXPERTS, EXPERT);
    let own = Arc::new(MemoryReader::new(model.files.clone()));
    let store = store(&model, own, simulated(1000, vec![mirror(&model, 1000, |_| true)]));
    read_all(&model, &store);
    let before: Vec<u64> = store.stats().drives.iter().map(|drive| drive.bytes).collect();
    store.spend(Duration::from_secs(60));
    read_all(&model, &store);
    let after: Vec<u64> = store.stats().drives.iter().map(|drive| drive.bytes).collect();
    for (before, after) in before.iter().zip(&after) {
        let share = (after - before) as f64 / (u64::from(EXPERTS) * EXPERT as u64) as f64;
        assert!((0.45..0.55).contains(&share), "{before} {after}");
    }
}

/// The faults of a drive, as a wrapper of its reader.
type Fault = fn(MemoryReader) -> Arc<dyn ShardReader>;

#[test]
fn a_failing_drive_is_named_once_and_left_out() {
    static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let model = Model::experts(EXPERTS, EXPERT);
    let sound: Fault = |reader| Arc::new(reader);
    let flipped: Fault = |reader| {
        let flips = [4096, MIB as u64 + 4096]
            .map(|offset| (0..EXPERTS).map(move |file| Flip { file, offset, bit: 0 }));
        Arc::new(BitFlip::lasting(reader, flips.into_iter().flatten().collect()))
    };
    let failing: Fault = |reader| Arc::new(Failing::from(reader, 7));
    let cut: Fault = |reader| Arc::new(Short::new(reader, 3, 100));
    // The faults of the model's own drive and of its copy, that left out, and its words.
    let cases: [(Fault, Fault, Option<usize>, &str); 7] = [
        (sound, sound, None, ""),
        (sound, failing, Some(1), "cannot be read (injected failure)"),
        (failing, sound, Some(0), "cannot be read (injected failure)"),
        (sound, flipped, Some(1), "has wrong bytes at 0"),
        (flipped, sound, Some(0), "has wrong bytes at 0"),
        (sound, cut, Some(1), "is cut short"),
        (cut, sound, Some(0), "is cut short"),
    ];
    for (number, (own, copy, left_out, words)) in cases.into_iter().enumerate() {
        SAID.lock().unwrap().clear();
        let memory = || MemoryReader::new(model.files.clone());
        let copy = Mirror { reader: copy(memory()), ..mirror(&model, 1000, |_| true) };
        let notice = |text: &str| SAID.lock().unwrap().push(text.to_owned());
        let options = StoreOptions { notice, ..simulated(1000, vec![copy]) };
        let store = store(&model, own(memory()), options);
        let errors = read_all(&model, &store);
        assert!(errors.is_empty(), "{number}: {errors:?}");
        let out = store.stats().drives.iter().position(|drive| drive.is_left_out);
        assert_eq!(out, left_out, "{number}");
        let said = SAID.lock().unwrap();
        match left_out {
            None => assert!(said.is_empty(), "{said:?}"),
            Some(drive) => {
                let [sentence] = &said[..] else { panic!("{number}: {said:?}") };
                let dir = ["/own/f", "/copy-1000/f"][drive];
                assert!(sentence.contains(dir) && sentence.contains(words), "{sentence}");
            }
        }
        // What is read now comes from the other drive alone.
        let before = store.stats().drives;
        assert!(read_all(&model, &store).is_empty());
        if let Some(out) = left_out {
            assert_eq!(store.stats().drives[out].bytes, before[out].bytes, "{number}");
        }
    }
}

#[test]
fn damage_on_all_drives_is_an_error_that_names_the_own_file() {
    let model = Model::experts(4, EXPERT);
    let flip = || vec![Flip { file: 2, offset: 5, bit: 1 }];
    let damaged = || BitFlip::lasting(MemoryReader::new(model.files.clone()), flip());
    let copy = Mirror { reader: Arc::new(damaged()), ..mirror(&model, 1000, |_| true) };
    let store = store(&model, Arc::new(damaged()), simulated(1000, vec![copy]));
    let errors = read_all(&model, &store);
    let [FetchError::Corrupt { file, .. }] = &errors[..] else { panic!("{errors:?}") };
    assert_eq!(file, Path::new("/own/f2"));
    assert!(store.stats().drives.iter().all(|drive| !drive.is_left_out));
}

#[test]
fn a_drive_that_alone_has_a_file_is_read_though_it_failed() {
    let model = Model::experts(EXPERTS, EXPERT);
    let own = Failing::nth(MemoryReader::new(model.files.clone()), 0);
    let copy = mirror(&model, 1000, |file| file == 0);
    let store = store(&model, Arc::new(own), simulated(1000, vec![copy]));
    assert!(read_all(&model, &store).is_empty());
    let drives = store.stats().drives;
    assert!(drives[0].is_left_out && drives[0].bytes > drives[1].bytes, "{drives:?}");
}

#[test]
fn threads_read_the_same_bytes_from_drives_that_fail() {
    let model = Model::experts(EXPERTS, EXPERT);
    let memory = || MemoryReader::new(model.files.clone());
    for seed in 0..4 {
        let flaky = [300, 600].map(|per_mille| {
            let flaky = Arc::new(Flaky::new(memory(), seed));
            flaky.fail(per_mille);
            flaky
        });
        let copies = flaky.each_ref().map(|flaky| {
            let reader = Arc::clone(flaky) as Arc<dyn ShardReader>;
            Mirror { reader, ..mirror(&model, 1, |_| true) }
        });
        let options = StoreOptions { mirrors: copies.into(), ..StoreOptions::default() };
        let store = store(&model, Arc::new(memory()), options);
        let errors = read_all(&model, &store);
        assert!(errors.is_empty(), "{errors:?}");
        let drives = store.stats().drives;
        assert!(!drives[0].is_left_out);
        for (drive, flaky) in drives[1..].iter().zip(&flaky) {
            assert_eq!(drive.is_left_out, flaky.failed() > 0, "{drives:?}");
        }
    }
}

#[test]
fn every_reader_reads_from_a_partial_copy() {
    let model = Model::experts(8, EXPERT);
    let dirs = [(); 2].map(|()| tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
    model.write(dirs[0].path());
    model.write(dirs[1].path());
    let files: Vec<bool> = (0..8).map(|file| file % 2 == 1).collect();
    for (file, has) in files.iter().enumerate() {
        if !has {
            std::fs::remove_file(dirs[1].path().join(format!("f{file}"))).unwrap();
        }
    }
    // This one must come from the copy. The model's own drive may be fast enough to read all others.
    let damaged = dirs[0].path().join("f1");
    let mut bytes = std::fs::read(&damaged).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(damaged, bytes).unwrap();
    for kind in ReaderKind::ALL {
        let open = |dir: &Path| kind.open_beside(&model.manifest, dir, 4, 1);
        let (Ok(own), Ok(reader)) = (open(dirs[0].path()), open(dirs[1].path())) else { continue };
        let dir = dirs[1].path().to_owned();
        let copy = Mirror { dir, reader, files: files.clone(), simulated: None };
        let options = StoreOptions { mirrors: vec![copy], ..StoreOptions::default() };
        let store = store(&model, own, options);
        assert!(read_all(&model, &store).is_empty(), "{kind}");
        let drives = store.stats().drives;
        assert!(drives[0].bytes > 0 && drives[1].bytes > 0, "{drives:?}");
        assert!(!drives[1].is_left_out, "{drives:?}");
    }
}
