use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sws_format::PieceId;
use sws_store::{Arena, FetchError, NVMeWeightStore, Read, StoreOptions};

use crate::support::{MIB, Model, noise};

/// A checkpoint of one file and two pieces, without checksums.
fn checkpoint(dir: &Path) -> Model {
    let mut model = Model::new(vec![noise(2 * MIB + 101, 3)]);
    for (n, (a, b)) in [(101, MIB + 1), (MIB + 1, 2 * MIB + 101)].into_iter().enumerate() {
        let tensor = model.tensor(0, a..b, 1000, false);
        model.piece(PieceId::expert(0, n as u32), vec![tensor]);
    }
    model.write(dir);
    model
}

fn open(model: &Model, dir: &Path, cache: Option<PathBuf>) -> NVMeWeightStore {
    let options = StoreOptions { cache, ..Default::default() };
    NVMeWeightStore::open(Arc::new(model.manifest.clone()), dir, options).unwrap()
}

fn read(store: &NVMeWeightStore, expert: u32) -> Result<(), FetchError> {
    let arena = Arena::new(2 * MIB).unwrap();
    store.read(Read::Piece(PieceId::expert(0, expert)), &arena).map(drop)
}

/// Changes one byte and restores the time of modification, as a failing disk would.
fn rot(path: &Path, at: usize) {
    let modified = fs::metadata(path).unwrap().modified().unwrap();
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1;
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes[at..=at], at as u64).unwrap();
    file.set_modified(modified).unwrap();
    file.sync_all().unwrap();
}

fn records(cache: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(cache).map(|dir| dir.map(|e| e.unwrap().path()).collect());
    entries.unwrap_or_default()
}

#[test]
fn later_reads_must_agree_with_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let model = checkpoint(dir.path());
    let store = open(&model, dir.path(), None);
    read(&store, 0).unwrap();
    read(&store, 0).unwrap();
    rot(&dir.path().join("f0"), 5000);
    let error = read(&store, 0).unwrap_err();
    assert!(matches!(error, FetchError::Changed { .. }), "{error}");
    assert!(error.to_string().contains("f0"), "{error}");
    read(&store, 1).unwrap();
    assert_eq!(store.stats().mismatches, 1);
    rot(&dir.path().join("f0"), 5000);
    read(&store, 0).unwrap();
}

#[test]
fn a_later_process_must_agree_too() {
    let dir = tempfile::tempdir().unwrap();
    let cache = tempfile::tempdir().unwrap();
    let place = || Some(cache.path().join("below"));
    let model = checkpoint(dir.path());
    read(&open(&model, dir.path(), place()), 0).unwrap();
    assert_eq!(records(&cache.path().join("below")).len(), 1);
    rot(&dir.path().join("f0"), 5000);
    let store = open(&model, dir.path(), place());
    assert!(matches!(read(&store, 0), Err(FetchError::Changed { .. })));
    drop(store);
    // An edited file counts as another file.
    model.write(dir.path());
    let later = fs::metadata(dir.path().join("f0")).unwrap().modified().unwrap()
        + std::time::Duration::from_secs(5);
    let file = fs::OpenOptions::new().write(true).open(dir.path().join("f0")).unwrap();
    file.set_modified(later).unwrap();
    let store = open(&model, dir.path(), place());
    read(&store, 0).unwrap();
    read(&store, 1).unwrap();
    drop(store);
    assert_eq!(records(&cache.path().join("below")).len(), 2);
}

#[test]
fn a_damaged_record_is_ignored_and_written_anew() {
    let dir = tempfile::tempdir().unwrap();
    let cache = tempfile::tempdir().unwrap();
    let model = checkpoint(dir.path());
    let place = || Some(cache.path().to_owned());
    read(&open(&model, dir.path(), place()), 0).unwrap();
    let record = records(cache.path()).pop().unwrap();
    let good = fs::read(&record).unwrap();
    let mut flipped = good.clone();
    flipped[20] ^= 1;
    for damaged in [&[][..], b"swssums1", &good[..good.len() - 1], &flipped, &[0xff; 4096]] {
        fs::write(&record, damaged).unwrap();
        let store = open(&model, dir.path(), place());
        read(&store, 0).unwrap();
        drop(store);
        assert_eq!(fs::read(&record).unwrap(), good);
    }
}

#[test]
fn a_folder_that_can_not_be_written_does_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let model = checkpoint(dir.path());
    fs::write(dir.path().join("file"), b"").unwrap();
    let store = open(&model, dir.path(), Some(dir.path().join("file/below")));
    read(&store, 0).unwrap();
    read(&store, 0).unwrap();
}
