//! Codes of e4m3 whose exponents are packed: they come back, and count as the codes do.

use crate::common::{Encoded, decode, random};
use proptest::prelude::*;
use sws_kernels::{
    Encoding, Fp8Scales, MatmulScratch, Matrix, MatrixError, PartRows, SourceDtype, Tier, matmul,
};

/// Packs a matrix. Returns bits of a code, without the scales.
fn survives(plain: &Encoded) -> f64 {
    let (packed, codes) = (Encoded::fp7(plain), plain.parts()[0]);
    packed.matrix().check().unwrap();
    let mut back = Vec::new();
    packed.matrix().to_source(SourceDtype::E4m3, &mut back).unwrap();
    assert!(back == codes, "{:?}", packed.matrix());
    for row in 0..plain.matrix().row_count() {
        assert!(same(&decode(&packed.matrix(), row), &decode(&plain.matrix(), row)));
    }
    let len: usize = packed.parts()[..3].iter().map(|part| part.len()).sum();
    len as f64 * 8.0 / codes.len() as f64
}

/// NaNs are equal.
fn same(a: &[u32], b: &[u32]) -> bool {
    let is_nan = |bits: &u32| f32::from_bits(*bits).is_nan();
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a == b || is_nan(a) && is_nan(b))
}

/// These codes, with scales of about one.
fn plain(scales: Fp8Scales, codes: &[u8], cols: usize) -> Encoded {
    let rows = codes.len() / cols;
    let sample = Encoded::sample(Encoding::Fp8(scales), rows, cols);
    Encoded::from_parts(
        Encoding::Fp8(scales),
        rows,
        cols,
        &[&codes[..rows * cols], sample.parts()[1]],
    )
}

#[test]
fn every_code_survives_with_scales_of_every_kind() {
    let codes: Vec<u8> = (0..40_960u32).map(|i| (i * 167 + i / 256) as u8).collect();
    for scales in Fp8Scales::ALL {
        for cols in [32, 37, 64, 100, 129, 256, 4096] {
            survives(&plain(scales, &codes, cols));
        }
    }
}

#[test]
fn codes_as_models_have_them_take_less_than_seven_bits() {
    // Blocks of 128×128 whose largest weight is 448, as they are published.
    let uniform = random(12 << 18);
    let normal: Vec<f32> = uniform
        .chunks_exact(12)
        .map(|u| u.iter().map(|&u| f32::from(u)).sum::<f32>() / 255.0 - 6.0)
        .collect();
    for (cols, most) in [(2048, 6.80), (768, 6.82), (192, 6.95)] {
        let rows = normal.len() / cols / 128 * 128;
        let weights: Vec<u8> = normal.iter().flat_map(|w| w.to_le_bytes()).collect();
        let encoder =
            sws_kernels::Encoder::new(Encoding::Fp8(Fp8Scales::Squares), SourceDtype::F32, cols)
                .unwrap();
        let mut encoded = sws_kernels::EncodedRows::default();
        encoder.encode(&weights[..4 * rows * cols], &mut encoded).unwrap();
        let bits = survives(&plain(Fp8Scales::Squares, &encoded.parts[0], cols));
        assert!(bits > 6.5 && bits < most, "{cols}: {bits}");
    }
}

#[test]
fn blocks_of_rows_find_their_scales_and_patches() {
    for scales in Fp8Scales::ALL {
        let (rows, cols) = (300, 192);
        let packed = Encoded::sample(Encoding::Fp7(scales), rows, cols);
        let (whole, encoding) = (packed.matrix(), Encoding::Fp7(scales));
        for range in [0..300, 0..128, 128..300, 256..300, 5..200, 130..131] {
            let parts = encoding.parts().iter().zip(packed.parts());
            let parts: Vec<&[u8]> = parts
                .map(|(kind, part)| {
                    match kind.rows(range.start as u64..range.end as u64, cols as u64).unwrap() {
                        PartRows::Bytes(bytes) => &part[bytes.start as usize..bytes.end as usize],
                        PartRows::Whole => part,
                    }
                })
                .collect();
            let block = Matrix::block(encoding, rows, cols, range.clone(), &parts).unwrap();
            block.check().unwrap();
            let within = block.rows(range.len() / 3..range.len());
            for row in range.clone() {
                let expected = decode(&whole, row);
                assert_eq!(decode(&block, row - range.start), expected, "{scales:?}, {row}");
                if let Some(row) = (row - range.start).checked_sub(range.len() / 3) {
                    assert_eq!(decode(&within, row), expected, "{scales:?}, {row}");
                }
            }
        }
    }
}

#[test]
fn products_are_those_of_plain_codes_on_every_tier() {
    for scales in Fp8Scales::ALL {
        for (rows, cols) in [(1, 64), (5, 33), (131, 200), (9, 1024)] {
            let plain = Encoded::sample(Encoding::Fp8(scales), rows, cols);
            let packed = Encoded::fp7(&plain);
            for tokens in [1, 3, 40] {
                let x: Vec<f32> = (0..tokens * cols).map(|i| (i % 23) as f32 / 7.0 - 1.5).collect();
                let product = |matrix: &Matrix, tier| {
                    let mut y = vec![0.0; tokens * rows];
                    matmul(tier, matrix, &x, tokens, &mut y, &mut MatmulScratch::new());
                    y.into_iter().map(f32::to_bits).collect::<Vec<_>>()
                };
                let expected = product(&plain.matrix(), Tier::best());
                for tier in Tier::available() {
                    let found = product(&packed.matrix(), tier);
                    assert!(
                        same(&found, &expected),
                        "{tier:?}, {scales:?}, {rows} × {cols}, {tokens}"
                    );
                }
            }
        }
    }
}

#[test]
fn wrong_patches_are_detected_and_harmless() {
    let (rows, cols) = (3, 70);
    let codes: Vec<u8> = (0..210u32).map(|i| (i * 151) as u8).collect();
    let packed = Encoded::fp7(&plain(Fp8Scales::Rows, &codes, cols));
    let parts = packed.parts();
    for (place, value) in [(3, 0xff), (4, 1), (6, 0), (7, 0xff), (8, 0), (10, 0), (11, 0xff)] {
        let mut patches = parts[2].to_vec();
        patches[place] = value;
        let parts = [parts[0], parts[1], &patches, parts[3]];
        let matrix = Matrix::new(Encoding::Fp7(Fp8Scales::Rows), rows, cols, &parts).unwrap();
        // An end behind the list is clamped to the true one.
        let error = matrix.check();
        assert!(place == 11 || matches!(error, Err(MatrixError::Patches { .. })), "{place}");
        (0..rows).for_each(|row| drop(decode(&matrix, row)));
    }
}

proptest! {
    /// Few exponents, so that tiers are of every size.
    #[test]
    fn few_exponents_survive(
        exponents in prop::collection::vec(0u8..16, 1..12),
        picks in prop::collection::vec(any::<u16>(), 400),
        cols in prop_oneof![1usize..200, 2040usize..2060],
        rows in 1usize..20,
    ) {
        let codes: Vec<u8> = (0..rows * cols)
            .map(|i| {
                let pick = picks[i % 400].wrapping_add((i / 400) as u16 * 77);
                // The first are the most frequent.
                let rank = pick.trailing_zeros() as usize % exponents.len();
                (pick >> 8) as u8 & 0x87 | exponents[rank] << 3
            })
            .collect();
        survives(&plain(Fp8Scales::SquaresBf16, &codes, cols));
    }
}
