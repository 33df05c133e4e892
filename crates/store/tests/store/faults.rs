use std::collections::BTreeSet;
use std::sync::Arc;

use sws_format::{Clock, PieceId, ShardReader};
use sws_store::{Arena, FetchError, NVMeWeightStore, Read};
use sws_testing::readers::{BitFlip, Failing, Flip, MemoryReader, Short};

use crate::support::{MIB, Model, noise};

fn read_all(store: &NVMeWeightStore, arena: &Arena) -> Vec<(PieceId, Result<(), FetchError>)> {
    let selection: Vec<Read> =
        store.manifest().pieces.iter().map(|piece| Read::Piece(piece.id)).collect();
    let mut ends = Vec::new();
    store
        .extract_pieces(&selection, arena, |done| {
            ends.push((done.layout.read().piece(), done.result))
        })
        .unwrap();
    ends.sort_by_key(|(id, _)| *id);
    ends
}

#[test]
fn a_failed_read_names_piece_and_file_and_the_store_goes_on() {
    let model = Model::experts(4, 2 * MIB);
    let disk = MemoryReader::new(model.files.clone());
    let store = model.open(Arc::new(Failing::nth(disk, 3)), 1, Clock::simulated());
    let arena = Arena::new(8 * MIB).unwrap();
    let ends = read_all(&store, &arena);
    let failed: Vec<_> =
        ends.iter().filter_map(|(id, end)| Some((id, end.as_ref().err()?))).collect();
    let [(id, error)] = failed[..] else { panic!("{failed:?}") };
    assert_eq!(*id, PieceId::expert(0, 1));
    let text = error.to_string();
    for part in ["/nowhere/f1", "`layer_0/expert_1`", "injected failure", "sws verify"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(read_all(&store, &arena).iter().all(|(_, end)| end.is_ok()));
    assert_eq!(store.stats().demanded.failed, 1);
}

#[test]
fn a_device_that_fails_for_ever_fails_every_fetch() {
    let model = Model::experts(4, 2 * MIB);
    let disk = MemoryReader::new(model.files.clone());
    let store = model.open(Arc::new(Failing::from(disk, 2)), 3, Clock::simulated());
    let arena = Arena::new(8 * MIB).unwrap();
    for _ in 0..3 {
        let ends = read_all(&store, &arena);
        let failed = |end: &Result<(), FetchError>| matches!(end, Err(FetchError::Read { .. }));
        assert!(ends.iter().filter(|(_, end)| failed(end)).count() >= 3, "{ends:?}");
    }
    assert_eq!(arena.free_bytes(), arena.bytes());
}

#[test]
fn a_short_read_is_an_error_except_at_the_end_of_the_file() {
    // The file ends 77 bytes into its last page: that page may come back with 77 bytes, not less.
    let mut model = Model::new(vec![noise(2 * MIB + 77, 1)]);
    let tensor = model.tensor(0, 0..2 * MIB + 76, MIB + 38, true);
    model.piece(PieceId::EMBED, vec![tensor]);
    let arena = Arena::new(4 * MIB).unwrap();
    // (index of the shortened read, bytes cut, true if it is an error)
    for (nth, by, wrong) in
        [(0, 0, false), (0, 1, true), (1, MIB, true), (2, 0, false), (2, 1, true)]
    {
        let disk = MemoryReader::new(model.files.clone());
        let store = model.open(Arc::new(Short::new(disk, nth, by)), 1, Clock::simulated());
        let result = store.read(Read::Piece(PieceId::EMBED), &arena);
        match result {
            Ok(_) => assert!(!wrong, "read {nth} by {by}"),
            Err(FetchError::Short { wanted, got, .. }) => {
                assert!(wrong, "read {nth} by {by}");
                assert_eq!(wanted - got, by);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Pieces of several tensors without gaps, so that every byte read has a checksum.
fn dense_model() -> Model {
    let mut model = Model::new((0..6).map(|n| noise(3 * MIB, n)).collect());
    for n in 0..6u32 {
        let cuts = [0, 300_002, 1_000_000, 2 * MIB + 2, 3 * MIB];
        let tensors = cuts
            .windows(2)
            .map(|cut| model.tensor(n, cut[0]..cut[1], (cut[1] - cut[0]) / 2, true))
            .collect();
        model.piece(PieceId::expert(0, n), tensors);
    }
    model
}

/// The blocks that contain these flips.
fn blocks(model: &Model, flips: &[Flip]) -> BTreeSet<(u32, u64)> {
    let extents = model.manifest.pieces.iter().flat_map(|p| &p.tensors).flat_map(|t| &t.parts);
    let holds = |e: &&sws_format::Extent, flip: &Flip| {
        e.file == flip.file && (e.offset..e.offset + e.len).contains(&flip.offset)
    };
    flips
        .iter()
        .map(|flip| {
            let extent = extents.clone().find(|e| holds(e, flip)).unwrap();
            (flip.file, extent.offset)
        })
        .collect()
}

#[test]
fn transfer_errors_are_all_detected_and_corrected() {
    let model = dense_model();
    let arena = Arena::new(18 * MIB).unwrap();
    let mut injected = 0;
    for seed in 0..40 {
        let flips = Arc::new(BitFlip::passing(MemoryReader::new(model.files.clone()), seed, 5));
        let store = model.open(flips.clone(), 3, Clock::simulated());
        for piece in &model.manifest.pieces {
            let done = store.read(Read::Piece(piece.id), &arena).unwrap();
            for (layout, tensor) in done.layout.tensors().iter().zip(&piece.tensors) {
                assert_eq!(layout.part(&done.slot, 0).unwrap(), model.bytes(&tensor.parts[0]));
            }
        }
        let wrong = blocks(&model, &flips.injected());
        assert_eq!(store.stats().mismatches, wrong.len() as u64);
        assert_eq!(store.stats().corrected, wrong.len() as u64);
        injected += wrong.len();
    }
    assert!(injected > 50, "{injected}");
}

#[test]
fn errors_on_disk_are_all_reported() {
    let model = dense_model();
    let arena = Arena::new(18 * MIB).unwrap();
    let (mut injected, mut detected) = (0, 0);
    for seed in 0..40u32 {
        let bytes = noise(8 * 8, u64::from(seed) + 100);
        let flips: Vec<Flip> = bytes
            .chunks(8)
            .map(|b| Flip {
                file: u32::from(b[0] % 6),
                offset: u64::from(u32::from_le_bytes([b[1], b[2], b[3], 0])) % (3 * MIB as u64),
                bit: b[4] % 8,
            })
            .collect();
        let wrong = blocks(&model, &flips);
        let disk = BitFlip::lasting(MemoryReader::new(model.files.clone()), flips);
        let store = model.open(Arc::new(disk), 3, Clock::simulated());
        let mut reported = BTreeSet::new();
        // Tensor by tensor: a fetch ends at its first error.
        for piece in &model.manifest.pieces {
            for (index, tensor) in piece.tensors.iter().enumerate() {
                let Err(error) = store.read(Read::Tensor(piece.id, index), &arena) else {
                    continue;
                };
                let text = error.to_string();
                let FetchError::Corrupt { piece: id, tensor: name, file, offset } = error else {
                    panic!("{error}")
                };
                assert_eq!((id, &name), (piece.id, &tensor.name));
                assert!(text.contains("sws verify") && text.contains(&name), "{text}");
                let number = file.to_str().unwrap().trim_start_matches("/nowhere/f");
                reported.insert((number.parse::<u32>().unwrap(), offset));
            }
        }
        assert_eq!(reported, wrong);
        assert_eq!(store.stats().mismatches, wrong.len() as u64);
        assert_eq!(store.stats().corrected, 0);
        injected += wrong.len();
        detected += reported.len();
    }
    assert!(injected == detected && injected > 200, "{injected} {detected}");
}

#[test]
fn flipped_bits_are_errors_only_inside_tensors() {
    let mut model = Model::new(vec![noise(20_000, 9)]);
    let tensors = [(64, 4000), (4097, 9001), (12_288, 19_999)]
        .map(|(a, b)| model.tensor(0, a..b - (b - a) % 2, (b - a) / 2, true))
        .to_vec();
    model.piece(PieceId::EMBED, tensors);
    let arena = Arena::new(MIB).unwrap();
    for byte in
        (0..20_000).step_by(61).chain([63, 64, 3999, 4000, 4096, 4097, 8999, 9000, 9001, 19_999])
    {
        let mut files = model.files.clone();
        files[0][byte] ^= 0x10;
        let store = model.open(Arc::new(MemoryReader::new(files)), 2, Clock::simulated());
        let extents: Vec<_> =
            model.manifest.pieces[0].tensors.iter().map(|t| &t.parts[0]).collect();
        let inside = extents.iter().any(|e| (e.offset..e.offset + e.len).contains(&(byte as u64)));
        assert_eq!(store.read(Read::Piece(PieceId::EMBED), &arena).is_err(), inside, "byte {byte}");
    }
}

/// Returns damaged bytes, and panics on the second read of them.
struct Panicking(MemoryReader);

impl ShardReader for Panicking {
    fn name(&self) -> &'static str {
        "panicking"
    }

    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> std::io::Result<usize> {
        let read = self.0.read_at(file, offset, into)?;
        if (file, offset) == (1, 0) {
            into[7] ^= 1;
        }
        Ok(read)
    }

    fn reread_at(&self, _: u32, _: u64, _: &mut [u8]) -> std::io::Result<usize> {
        panic!("injected panic")
    }
}

#[test]
fn a_panic_while_hashing_lets_nothing_pass_unverified() {
    // Four chunks in two blocks. Hashing the first block panics, and the others land after it.
    let model = Model::experts(3, 4 * MIB);
    for depth in [1, 4] {
        let disk = Panicking(MemoryReader::new(model.files.clone()));
        let store = model.open(Arc::new(disk), depth, Clock::real());
        let arena = Arena::new(16 * MIB).unwrap();
        for _ in 0..2 {
            for (id, end) in read_all(&store, &arena) {
                match id == PieceId::expert(0, 1) {
                    true => assert!(matches!(end, Err(FetchError::Unverified { .. })), "{end:?}"),
                    false => end.unwrap(),
                }
            }
        }
        assert_eq!(arena.free_bytes(), arena.bytes());
    }
}
