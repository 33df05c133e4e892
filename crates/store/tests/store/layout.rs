use proptest::prelude::*;
use sws_format::{Clock, PieceId, StandIn, Tensor};
use sws_kernels::{Encoding, Matrix};
use sws_store::{Arena, LayoutError, Parts, PieceLayout, Read, SLOT_ALIGN, TensorLayout};
use sws_testing::readers::MemoryReader;

use crate::support::{Model, noise};

const ID: PieceId = PieceId::EMBED;

#[test]
fn neighbours_are_read_as_one() {
    type Ranges = &'static [(usize, usize)];
    type Segments = &'static [(u64, usize, usize)];
    // Byte ranges in one file of 1 MiB and 77 bytes, and the resulting segments.
    let cases: [(Ranges, Segments); 7] = [
        (&[(4096, 8192)], &[(4096, 4096, 4096)]),
        (&[(4096, 5000), (5056, 8192)], &[(4096, 4096, 4096)]),
        (&[(1, 3)], &[(0, 4096, 4096)]),
        (&[(4095, 4097)], &[(0, 8192, 8192)]),
        (&[(100, 200), (60_000, 60_002)], &[(0, 61_440, 61_440)]),
        (&[(100, 200), (200_001, 200_011)], &[(0, 4096, 4096), (196_608, 4096, 4096)]),
        (&[(1_048_577, 1_048_653)], &[(1_048_576, 4096, 77)]),
    ];
    for (ranges, expected) in cases {
        let mut model = Model::new(vec![noise(1_048_653, 1)]);
        let tensors = ranges.iter().rev().map(|&(a, b)| model.tensor(0, a..b, 1, false)).collect();
        model.piece(ID, tensors);
        let layout = PieceLayout::new(&model.manifest, Read::Piece(ID)).unwrap();
        let segments: Vec<_> =
            layout.segments().iter().map(|s| (s.offset, s.len, s.present)).collect();
        assert_eq!(segments, expected, "{ranges:?}");
        assert_eq!(layout.slot_len(), segments.iter().map(|s| s.1).sum::<usize>());
    }
}

/// The last of an expert's large tensors is read last, wherever it lies. Nothing else moves.
#[test]
fn last_matrix_is_read_last() {
    const MIB: usize = 1 << 20;
    let expert = PieceId::expert(3, 1);
    type Ranges = &'static [(usize, usize)];
    type Places = &'static [u64];
    // The piece, the ranges of its tensors in a file of 6 MiB, and the offsets of its segments,
    // both in sixteenths of a MiB.
    let cases: [(PieceId, Ranges, Places); 6] = [
        (expert, &[(16, 32), (32, 48), (48, 64)], &[16]),
        (expert, &[(32, 48), (48, 64), (16, 32)], &[32, 16]),
        (expert, &[(48, 64), (16, 32), (32, 48)], &[16, 48, 32]),
        (expert, &[(32, 47), (48, 63), (16, 31)], &[16]),
        (expert, &[(32, 48), (16, 32), (15, 16)], &[32, 15]),
        (ID, &[(32, 48), (48, 64), (16, 32)], &[16]),
    ];
    for (id, ranges, expected) in cases {
        let mut model = Model::new(vec![noise(6 * MIB, 1)]);
        let at = |n: usize| n * MIB / 16;
        let tensors = ranges.iter().map(|&(a, b)| model.tensor(0, at(a)..at(b), 2048, true));
        let tensors = tensors.collect();
        model.piece(id, tensors);
        let layout = PieceLayout::new(&model.manifest, Read::Piece(id)).unwrap();
        let segments: Vec<_> =
            layout.segments().iter().map(|s| s.offset / (MIB as u64 / 16)).collect();
        assert_eq!(segments, expected, "{ranges:?}");
        let mut slot = vec![0; layout.slot_len()];
        for segment in layout.segments() {
            let from = &model.files[0][segment.offset as usize..][..segment.present];
            slot[segment.at..][..segment.present].copy_from_slice(from);
        }
        for (tensor, &(a, b)) in layout.tensors().iter().zip(ranges) {
            assert_eq!(tensor.part(&slot, 0).unwrap(), &model.files[0][at(a)..at(b)]);
        }
    }
}

/// A tensor in some encoding, stored from an odd offset, with checksums over 4 rows.
fn encoded(encoding: Encoding, rows: u64, cols: u64) -> Model {
    let mut model = Model::new(vec![noise(200_000, 2)]);
    let mut at = 4097;
    let mut parts = Vec::new();
    for part in encoding.parts() {
        let (len, check) = match part.len(rows, cols).unwrap() {
            sws_kernels::PartLen::Exact(n) => (n, n.div_ceil(rows) * 4),
            sws_kernels::PartLen::AtLeast(n) => (n + 5, n),
        };
        let check = if part.is_whole() || part.step_rows() > 1 { len } else { check };
        parts.push(model.extent(0, at..at + len as usize, check as usize, true));
        at += len as usize + 13;
    }
    let tensor = Tensor {
        shape: vec![rows, cols],
        encoding: Some(encoding),
        parts,
        ..model.tensor(0, 0..2, 1, false)
    };
    model.piece(ID, vec![tensor]);
    model
}

#[test]
fn rows_are_rounded_out_to_checksum_runs() {
    let (rows, cols) = (12, 100);
    let arena = Arena::new(1 << 20).unwrap();
    for encoding in Encoding::ALL {
        let model = encoded(encoding, rows, cols);
        let store = model.open(
            std::sync::Arc::new(MemoryReader::new(model.files.clone())),
            1,
            Clock::simulated(),
        );
        let tensor = &model.manifest.pieces[0].tensors[0];
        let parts: Vec<&[u8]> = tensor.parts.iter().map(|extent| model.bytes(extent)).collect();
        let whole = Matrix::new(encoding, rows as usize, cols as usize, &parts).unwrap();
        for (asked, given) in [(0..1, 0..4), (3..5, 0..8), (4..8, 4..8), (9..12, 8..12)] {
            let read = Read::Rows { piece: ID, tensor: 0, rows: asked, parts: Parts::All };
            let done = store.read(read, &arena).unwrap();
            let layout = &done.layout.tensors()[0];
            assert_eq!(layout.range, given, "{encoding}");
            let block = layout.matrix(&done.slot).unwrap().unwrap();
            for (n, row) in given.enumerate() {
                let (mut a, mut b) = (vec![0.0; cols as usize], vec![0.0; cols as usize]);
                block.decode_row(n, &mut a);
                whole.decode_row(row as usize, &mut b);
                assert!(a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits()), "{encoding}");
            }
        }
    }
}

#[test]
fn first_part_and_the_rest_can_be_read_separately() {
    for (encoding, all) in
        [(Encoding::Bf16, 1), (Encoding::Q8, 2), (Encoding::Bf12, 3), (Encoding::Bf11, 3)]
    {
        let model = encoded(encoding, 12, 100);
        let present = |parts| {
            let read = Read::Rows { piece: ID, tensor: 0, rows: 0..1, parts };
            let layout = PieceLayout::new(&model.manifest, read).unwrap();
            layout.tensors()[0].parts.iter().map(Option::is_some).collect::<Vec<_>>()
        };
        assert_eq!(present(Parts::All), vec![true; all], "{encoding}");
        let first: Vec<bool> = (0..all).map(|part| part == 0).collect();
        let rest: Vec<bool> = (0..all).map(|part| part > 0).collect();
        assert_eq!((present(Parts::First), present(Parts::Rest)), (first, rest), "{encoding}");
    }
}

/// The top of a nested matrix is read with the stand-in, and all else beside it.
#[test]
fn what_a_stand_in_shares_is_read_once() {
    let mut model = encoded(Encoding::Nested, 24, 6000);
    let raw = model.tensor(0, 3000..3400, 100, true);
    model.manifest.pieces[0].tensors.push(raw);
    let layout = |read| PieceLayout::new(&model.manifest, read).unwrap();
    let present = |read| {
        let tensors = layout(read).tensors().to_vec();
        let of = |tensor: &TensorLayout| tensor.parts.iter().map(Option::is_some).collect();
        tensors.iter().map(of).collect::<Vec<Vec<bool>>>()
    };
    assert_eq!(present(Read::Piece(ID)), [vec![true; 3], vec![true]]);
    assert_eq!(present(Read::StandIn(ID)), [vec![true], vec![true]]);
    assert_eq!(present(Read::Beside(ID)), [vec![true, false, true], vec![false]]);
    assert_eq!(layout(Read::StandIn(ID)).tensors()[0].encoding, Some(Encoding::Top));
    let [whole, beside, top] = [Read::Piece(ID), Read::Beside(ID), Read::StandIn(ID)]
        .map(|read| layout(read).slot_len() as u64);
    let nibbles = 24 * 6000_u64.div_ceil(64) * 34;
    assert!(beside + nibbles <= whole + 3 * 4096, "{beside} and {nibbles} of {whole}");
    assert!(top < nibbles + 4 * 4096, "{top}");
    // One with bytes of its own shares none.
    let piece = &mut model.manifest.pieces[0];
    let tensors = piece.tensors.iter().map(|tensor| Tensor { parts: Vec::new(), ..tensor.clone() });
    piece.stand_in = Some(StandIn { encoding: Encoding::Q4, tensors: tensors.collect() });
    let beside = PieceLayout::new(&model.manifest, Read::Beside(ID)).unwrap();
    assert!(beside.tensors().iter().all(|tensor| tensor.parts.iter().all(Option::is_some)));
}

#[test]
fn missing_pieces_tensors_and_rows_are_refused() {
    let mut model = Model::new(vec![noise(10_000, 3)]);
    let tensor = model.tensor(0, 0..8000, 100, true);
    model.piece(ID, vec![tensor]);
    let rows = |rows| Read::Rows { piece: ID, tensor: 0, rows, parts: Parts::All };
    #[allow(clippy::reversed_empty_ranges, reason = "that is the case")]
    let cases = [
        (Read::Piece(PieceId::LM_HEAD), "the model has no piece `lm_head`"),
        (Read::StandIn(ID), "has no stand-in"),
        (Read::Tensor(ID, 1), "has no tensor 1"),
        (rows(39..41), "has 40 rows; there are none from 39 to 41"),
        (rows(3..3), "there are none from 3 to 3"),
        (rows(4..3), "there are none from 4 to 3"),
        (rows(0..u64::MAX), "there are none"),
    ];
    for (read, message) in cases {
        let error = PieceLayout::new(&model.manifest, read).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
    }
}

#[test]
fn a_manifest_that_contradicts_itself_is_refused() {
    type Edit = fn(&mut Tensor);
    let cases: [(Edit, &str); 9] = [
        (|t| t.parts[0].file = 1, "no such file"),
        (|t| t.parts[0].offset = 9_000, "beyond the end"),
        (|t| t.parts[0].offset = u64::MAX, "beyond the end"),
        (|t| t.parts[0].check_len = 0, "checksums does not fit"),
        (|t| t.parts[0].check_len = 7, "checksums does not fit"),
        (|t| t.shape = vec![u64::MAX, u64::MAX, 2], "larger than any memory"),
        (|t| t.shape = vec![u64::MAX, u64::MAX], "larger than any memory"),
        (|t| t.shape = vec![41, 100], "too short"),
        (|t| t.encoding = Some(Encoding::Bf12), "number of its parts"),
    ];
    for (edit, message) in cases {
        let mut model = Model::new(vec![noise(10_000, 3)]);
        let mut tensor = model.tensor(0, 0..8000, 100, true);
        edit(&mut tensor);
        model.piece(ID, vec![tensor]);
        let error = PieceLayout::new(&model.manifest, Read::Piece(ID)).unwrap_err();
        assert!(matches!(error, LayoutError::Manifest { .. }), "{error}");
        assert!(error.to_string().contains(message), "{error}");
    }
}

proptest! {
    /// Wherever tensors lie, each part's bytes are found in the slot.
    #[test]
    fn every_byte_is_found(
        spans in prop::collection::vec((0u32..3, 0usize..300_000, 0usize..9_000), 1..8),
        checked in any::<bool>(),
    ) {
        let mut model = Model::new((0..3).map(|n| noise(309_001 + 17 * n, n as u64)).collect());
        let tensors = spans
            .iter()
            .map(|&(file, at, len)| model.tensor(file, at..at + 2 * (len / 2), len / 2, checked))
            .collect();
        model.piece(ID, tensors);
        let reader = std::sync::Arc::new(MemoryReader::new(model.files.clone()));
        let store = model.open(reader, 2, Clock::simulated());
        let done = store.read(Read::Piece(ID), &Arena::new(4 << 20).unwrap()).unwrap();
        for (layout, tensor) in done.layout.tensors().iter().zip(&model.manifest.pieces[0].tensors) {
            prop_assert_eq!(layout.part(&done.slot, 0).unwrap(), model.bytes(&tensor.parts[0]));
        }
        for segment in done.layout.segments() {
            prop_assert_eq!(segment.offset as usize % SLOT_ALIGN, 0);
            prop_assert_eq!(segment.len % SLOT_ALIGN, 0);
            prop_assert_eq!(segment.at % SLOT_ALIGN, 0);
        }
    }
}
