use std::fs;
use std::path::Path;
use std::sync::Arc;

use sws_format::{Clock, PieceId, ShardReader};
use sws_store::{Arena, DirectReader, FetchError, MmapReader, Read, ReaderKind, SLOT_ALIGN, Slot};
use sws_testing::readers::MemoryReader;

use crate::support::{MIB, Model, noise};

/// Files of awkward lengths with tensors at odd offsets.
fn awkward() -> Model {
    let lengths = [1, 511, 4095, 4096, 4097, 300_001, 3 * MIB + 77];
    let mut model =
        Model::new(lengths.iter().enumerate().map(|(n, &len)| noise(len, n as u64)).collect());
    for (n, &len) in lengths.iter().enumerate() {
        let file = n as u32;
        let cuts = [0, (len / 7) | 1, (len / 3) | 1, len].map(|at| at.min(len));
        let tensors = cuts
            .windows(2)
            .filter(|cut| cut[0] < cut[1])
            .map(|cut| {
                let end = cut[1] - (cut[1] - cut[0]) % 2;
                model.tensor(file, cut[0]..end, (end - cut[0]) / 2, true)
            })
            .collect();
        model.piece(PieceId::expert(0, file), tensors);
    }
    model
}

fn check_all(model: &Model, dir: &Path, reader: Arc<dyn ShardReader>, depth: usize) {
    let store = model.open_in(dir, reader, depth, Clock::real());
    let arena = Arena::new(8 * MIB).unwrap();
    let selection: Vec<Read> = model.manifest.pieces.iter().map(|p| Read::Piece(p.id)).collect();
    let mut count = 0;
    store
        .extract_pieces(&selection, &arena, |done| {
            done.result.unwrap();
            let piece = model.manifest.piece(done.layout.read().piece()).unwrap();
            for (layout, tensor) in done.layout.tensors().iter().zip(&piece.tensors) {
                assert_eq!(layout.part(&done.slot, 0).unwrap(), model.bytes(&tensor.parts[0]));
            }
            count += 1;
        })
        .unwrap();
    assert_eq!(count, selection.len());
}

/// All available readers, for `depth` reads in flight. The io_uring reader may be missing from the
/// build or the system.
fn readers(model: &Model, dir: &Path, depth: usize) -> Vec<Arc<dyn ShardReader>> {
    let mut readers: Vec<Arc<dyn ShardReader>> =
        vec![Arc::new(MemoryReader::new(model.files.clone()))];
    for kind in ReaderKind::ALL {
        match kind.open(&model.manifest, dir, depth) {
            Ok(reader) => readers.push(reader),
            Err(error) => assert!(kind == ReaderKind::Uring, "{kind}: {error}"),
        }
    }
    readers
}

#[test]
fn every_reader_gives_the_same_bytes_on_every_file_system() {
    let model = awkward();
    // /dev/shm refuses direct reads, or takes them and reads memory: both must work.
    let mut folders = vec![tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()];
    folders.extend(tempfile::tempdir_in("/dev/shm"));
    for dir in &folders {
        model.write(dir.path());
        for depth in [1, 2, 7] {
            for reader in readers(&model, dir.path(), depth) {
                check_all(&model, dir.path(), reader, depth);
            }
        }
    }
}

#[test]
fn a_file_cut_short_is_an_error_for_every_reader() {
    let model = awkward();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    model.write(dir.path());
    let last = model.manifest.files.last().unwrap();
    for cut in [1, 78, 5000, MIB as u64, last.len] {
        let file = fs::OpenOptions::new().write(true).open(dir.path().join(&last.path)).unwrap();
        file.set_len(last.len - cut).unwrap();
        for kind in ReaderKind::ALL {
            let Ok(reader) = kind.open(&model.manifest, dir.path(), 2) else { continue };
            let store = model.open_in(dir.path(), reader, 2, Clock::real());
            let arena = Arena::new(4 * MIB).unwrap();
            let error = store.read(Read::Piece(PieceId::expert(0, 6)), &arena).unwrap_err();
            assert!(matches!(error, FetchError::Short { .. }), "{kind}: {error}");
            let text = error.to_string();
            assert!(text.contains(&last.path) && text.contains("cut short"), "{text}");
        }
    }
}

#[test]
fn a_missing_file_is_named() {
    let model = awkward();
    let dir = tempfile::tempdir().unwrap();
    for kind in ReaderKind::ALL {
        let Ok(reader) = kind.open(&model.manifest, dir.path(), 2) else { continue };
        let store = model.open_in(dir.path(), reader, 2, Clock::real());
        let arena = Arena::new(4 * MIB).unwrap();
        let error = store.read(Read::Piece(PieceId::expert(0, 3)), &arena).unwrap_err();
        assert!(error.to_string().contains(dir.path().join("f3").to_str().unwrap()), "{error}");
    }
}

/// Number of files in `dir` that this process has open.
fn open_below(dir: &Path) -> usize {
    let links = fs::read_dir("/proc/self/fd").unwrap();
    links
        .filter_map(|link| fs::read_link(link.ok()?.path()).ok())
        .filter(|target| target.starts_with(dir))
        .count()
}

#[test]
fn thousands_of_files_need_few_descriptors() {
    let count = 2000u32;
    let model = Model::experts(count, 64);
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    model.write(dir.path());
    let (limit, depth) = (8, 4);
    let reader = DirectReader::with_open_files(&model.manifest, dir.path(), limit);
    let store = model.open_in(dir.path(), Arc::new(reader), depth, Clock::real());
    let arena = Arena::new(64 * SLOT_ALIGN).unwrap();
    let selection: Vec<Read> =
        (0..count).map(|n| Read::Piece(PieceId::expert(0, n * 7 % count))).collect();
    let (mut read, mut most) = (0, 0);
    for _ in 0..2 {
        store
            .extract_pieces(&selection, &arena, |done| {
                done.result.unwrap();
                let file = done.layout.segments()[0].file as usize;
                assert_eq!(
                    done.layout.tensors()[0].part(&done.slot, 0).unwrap(),
                    model.files[file]
                );
                read += 1;
                if read % 50 == 0 {
                    most = most.max(open_below(dir.path()));
                }
            })
            .unwrap();
    }
    assert_eq!(read, 2 * count);
    assert!((1..=limit + depth).contains(&most), "{most} files were open");
}

/// True if the page cache holds the first bytes of a file.
fn is_cached(path: &Path) -> bool {
    use rustix::io::ReadWriteFlags;
    let file = fs::File::open(path).unwrap();
    let mut byte = [0u8];
    let mut into = [std::io::IoSliceMut::new(&mut byte)];
    match rustix::io::preadv2(&file, &mut into, 0, ReadWriteFlags::NOWAIT) {
        Ok(read) => read == 1,
        Err(error) => {
            assert_eq!(error, rustix::io::Errno::AGAIN);
            false
        }
    }
}

#[test]
fn reading_leaves_nothing_in_the_page_cache() {
    let mut model = Model::new(vec![noise(2 * MIB, 5)]);
    let tensor = model.tensor(0, 0..2 * MIB, MIB, true);
    model.piece(PieceId::EMBED, vec![tensor]);
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    model.write(dir.path());
    let path = dir.path().join("f0");
    assert!(is_cached(&path), "the file was just written");
    fs::File::open(&path).unwrap().sync_all().unwrap();
    let reader = MmapReader::new(&model.manifest, dir.path());
    let mut slot = Slot::alone(2 * MIB).unwrap();
    assert_eq!(reader.read_at(0, 0, &mut slot).unwrap(), 2 * MIB);
    assert_eq!(&slot[..], &model.files[0][..]);
    assert!(!is_cached(&path));
    for beyond in [2 * MIB as u64, 4 * MIB as u64] {
        assert_eq!(reader.read_at(0, beyond, &mut slot).unwrap(), 0);
    }
}
