//! Encoded numbers decode to the originals: exactly, or as closely as the codes allow.

use crate::common::{Encoded, bf16_bytes, f32_bytes};
use proptest::prelude::*;
use sws_kernels::{
    EncodeError, EncodedRows, Encoder, Encoding, ExponentCounts, ExponentTable, Fp8Scales,
    GgufBlocks, Matrix, MatrixError, PartLen, PartRows, SourceDtype, TensorTally,
};

const SHAPES: [(usize, usize); 12] = [
    (0, 5),
    (1, 1),
    (3, 31),
    (2, 63),
    (5, 64),
    (4, 65),
    (130, 96),
    (7, 127),
    (129, 128),
    (257, 129),
    (2, 200),
    (1, 1000),
];

/// Those with a table of exponents.
const PACKED: [Encoding; 2] = [Encoding::Bf12, Encoding::Bf11];
const PATCHED: [Encoding; 3] = [Encoding::Bf12, Encoding::Bf11, Encoding::Nested];

#[test]
fn every_bf16_bit_pattern_survives() {
    let all: Vec<u16> = (0..=u16::MAX).collect();
    for encoding in PATCHED {
        for cols in [1, 37, 64, 100, 256, 4096] {
            let rows = all.len() / cols;
            survives(encoding, &bf16_bytes(&all[..rows * cols]), cols);
        }
    }
}

/// Encodes and decodes. Returns bits of a weight.
fn survives(encoding: Encoding, source: &[u8], cols: usize) -> f64 {
    let encoded = Encoded::packed(encoding, source, cols);
    encoded.matrix().check().unwrap();
    let mut back = Vec::new();
    encoded.matrix().to_source(SourceDtype::Bf16, &mut back).unwrap();
    assert!(back == source, "{encoding}: {cols} columns");
    encoded.matrix().bytes() as f64 * 16.0 / source.len() as f64
}

#[test]
fn weights_as_models_have_them_take_about_eleven_bits() {
    let uniform = |i: u64| {
        let once = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let twice = (once ^ once >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((twice ^ twice >> 32) >> 11) as f64 / (1u64 << 53) as f64
    };
    // The sum of twelve uniform numbers is about Gaussian.
    let normal = |i: u64| (0..12).map(|k| uniform(12 * i + k)).sum::<f64>() - 6.0;
    for (spread, cols, most) in [(0.0, 2048, 10.8), (0.4, 2048, 11.0), (0.0, 192, 10.9)] {
        let rows = (1 << 17) / cols as u64;
        let scale = |row: u64| 0.02 * (spread * normal(1 << 40 | row)).exp();
        let weights = (0..rows * cols as u64).map(|i| scale(i / cols as u64) * normal(i));
        let bits: Vec<u16> = weights.map(|w| ((w as f32).to_bits() >> 16) as u16).collect();
        let taken = survives(Encoding::Bf11, &bf16_bytes(&bits), cols);
        assert!(taken > 10.5 && taken < most, "{taken}");
        let nested = survives(Encoding::Nested, &bf16_bytes(&bits), cols);
        assert!(nested > taken && nested < 11.15, "{nested}");
    }
    // A constant needs no patches.
    let taken = survives(Encoding::Bf11, &bf16_bytes(&[0x3e80; 1 << 16]), 4096);
    assert!(taken < 10.02, "{taken}");
    let taken = survives(Encoding::Nested, &bf16_bytes(&[0x3e80; 1 << 16]), 4096);
    assert!(taken < 10.27, "{taken}");
}

#[test]
fn a_matrix_in_which_everything_escapes_survives() {
    // Tables of exponents that do not occur.
    let none = ExponentCounts::default();
    for (encoding, rows_cols) in PACKED.into_iter().flat_map(|e| SHAPES.map(|shape| (e, shape))) {
        let (rows, cols) = rows_cols;
        let encoder = Encoder::counted(encoding, cols, &none).unwrap();
        assert_eq!(encoder.table().unwrap()[..3], [0, 1, 2]);
        let bits: Vec<u16> = (0..rows * cols).map(|i| 0x3f80 ^ (i as u16 * 0x8007)).collect();
        let bits: Vec<u16> = bits.iter().map(|b| b | 0x4000).collect();
        let source = bf16_bytes(&bits);
        let encoded = Encoded::with(&encoder, &source, rows, cols, rows);
        // bf11 has four bits before each.
        let blocks = [cols / 64 * 32, (cols % 64).div_ceil(2)].iter().sum::<usize>();
        let before = if encoding == Encoding::Bf11 { rows * blocks } else { 0 };
        assert_eq!(encoded.escapes, rows * cols + before);
        encoded.matrix().check().unwrap();
        let mut back = Vec::new();
        encoded.matrix().to_source(SourceDtype::Bf16, &mut back).unwrap();
        assert_eq!(back, source);
    }
}

#[test]
fn the_table_holds_the_most_frequent_exponents_and_the_smaller_among_equals() {
    let mut histogram = ExponentCounts::default();
    for exponent in 100..130u16 {
        for _ in 0..if exponent == 129 { 3 } else { 2 } {
            histogram.add(&bf16_bytes(&[exponent << 7 | 0x8001]));
        }
    }
    let table = ExponentTable::from_histogram(&histogram);
    let expected: Vec<u8> = (100..114).chain([129, 0]).collect();
    assert_eq!(table.bytes().to_vec(), expected);
    assert_eq!(histogram.escapes(&table), 61 - 14 * 2 - 3);
}

#[test]
fn the_histogram_counts_every_number_once() {
    for n in [0, 1, 3, 4, 5, 1001] {
        let bits: Vec<u16> = (0..n).map(|i| (i * 40503) as u16).collect();
        let mut histogram = ExponentCounts::default();
        histogram.add(&bf16_bytes(&bits));
        let mut expected = [0; 256];
        bits.iter().for_each(|b| expected[usize::from(b >> 7 & 255)] += 1);
        assert_eq!(histogram.0, expected);
    }
}

#[test]
fn parts_have_the_lengths_the_layout_says_and_row_blocks_are_slices_of_them() {
    for encoding in Encoding::ALL {
        for (rows, cols) in SHAPES {
            let whole = Encoded::sample(encoding, rows, cols);
            for (kind, part) in encoding.parts().iter().zip(whole.parts()) {
                let expected = match kind.len(rows as u64, cols as u64).unwrap() {
                    PartLen::Exact(n) => n,
                    PartLen::AtLeast(n) => n + whole.escapes as u64,
                };
                assert_eq!(part.len() as u64, expected, "{encoding} {rows}x{cols} {kind:?}");
            }
            let matrix = whole.matrix();
            for range in [0..rows, 0..rows / 2, rows / 2..rows, rows / 3..rows / 2, rows..rows] {
                let parts: Vec<&[u8]> = encoding
                    .parts()
                    .iter()
                    .zip(whole.parts())
                    .map(|(kind, part)| {
                        let wide = range.start as u64..range.end as u64;
                        match kind.rows(wide, cols as u64).unwrap() {
                            PartRows::Bytes(b) => &part[b.start as usize..b.end as usize],
                            PartRows::Whole => part,
                        }
                    })
                    .collect();
                let block = Matrix::block(encoding, rows, cols, range.clone(), &parts).unwrap();
                let middle = range.len() / 3;
                for (view, first) in [
                    (block, range.start),
                    (matrix.rows(range.clone()), range.start),
                    (block.rows(middle..range.len()), range.start + middle),
                ] {
                    for r in 0..view.row_count() {
                        let expected = crate::common::decode(&matrix, first + r);
                        assert_eq!(
                            crate::common::decode(&view, r),
                            expected,
                            "{encoding} {rows}x{cols} {range:?} row {r}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn blocks_of_rows_encode_as_the_whole_does() {
    for encoding in Encoding::ALL.into_iter().filter(|encoding| encoding.is_made()) {
        let (rows, cols) = (300, 70);
        let source = crate::common::sample_source(encoding, rows, cols);
        let encoder = crate::common::encoder(encoding, &source, cols);
        let whole = Encoded::with(&encoder, &source, rows, cols, rows);
        let step = encoding.row_multiple();
        for block in [step, 2 * step] {
            let pieces = Encoded::with(&encoder, &source, rows, cols, block);
            assert_eq!(pieces.parts(), whole.parts(), "{encoding} in blocks of {block}");
        }
    }
}

#[test]
fn exact_encodings_give_back_the_source() {
    let halves: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let cols = 256;
    for (source, encoding) in [
        (SourceDtype::F16, Encoding::F16),
        (SourceDtype::F16, Encoding::F32),
        (SourceDtype::Bf16, Encoding::Bf16),
        (SourceDtype::Bf16, Encoding::F32),
        (SourceDtype::Bf16, Encoding::Bf12),
        (SourceDtype::Bf16, Encoding::Bf11),
        (SourceDtype::Bf16, Encoding::Nested),
    ] {
        let encoder = match encoding {
            _ if encoding.has_patches() => crate::common::encoder(encoding, &halves, cols),
            _ => Encoder::new(encoding, source, cols).unwrap(),
        };
        let encoded = Encoded::with(&encoder, &halves, 256, cols, 256);
        let mut back = Vec::new();
        encoded.matrix().to_source(source, &mut back).unwrap();
        assert!(back == halves, "{source:?} in {encoding}");
    }
    let single = f32_bytes(&[1.0, 1.0 + f32::EPSILON]);
    let encoded =
        Encoded::with(&Encoder::new(Encoding::F32, SourceDtype::F32, 2).unwrap(), &single, 1, 2, 1);
    for to in [SourceDtype::F16, SourceDtype::Bf16] {
        let error = encoded.matrix().to_source(to, &mut Vec::new()).unwrap_err();
        assert_eq!(error, EncodeError::NotExact { to, row: 0, col: 1 });
    }
}

#[test]
fn f16_widens_like_the_half_crate() {
    let halves: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let matrix = Matrix::new(Encoding::F16, 1, 65536, &[&halves]).unwrap();
    let mut row = vec![0.0; 65536];
    matrix.decode_row(0, &mut row);
    for (bits, ours) in (0..=u16::MAX).zip(row) {
        let theirs = half::f16::from_bits(bits).to_f32();
        assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan());
    }
}

/// Every value that `encoding` can represent under a scale of one.
fn values(encoding: Encoding) -> Vec<f32> {
    match encoding {
        Encoding::Q8 | Encoding::Gguf(GgufBlocks::Q8_0) => (-127..=127).map(|v| v as f32).collect(),
        Encoding::Q4 => (-7..=7).map(|v| v as f32).collect(),
        Encoding::Fp8(Fp8Scales::Squares) => (0..=255u8)
            .map(|code| {
                let one = 1f32.to_le_bytes();
                crate::common::decode(
                    &Matrix::new(Encoding::Fp8(Fp8Scales::Squares), 1, 1, &[&[code], &one])
                        .unwrap(),
                    0,
                )
            })
            .map(|bits| f32::from_bits(bits[0]))
            .filter(|v| !v.is_nan())
            .collect(),
        Encoding::Mxfp4 => {
            [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0].iter().flat_map(|v| [*v, -v]).collect()
        }
        _ => unreachable!(),
    }
}

#[test]
fn lossy_encodings_choose_the_nearest_code() {
    for (encoding, scale_one) in [
        (Encoding::Q8, 127.0),
        (Encoding::Q4, 7.0),
        (Encoding::Fp8(Fp8Scales::Squares), 448.0),
        (Encoding::Mxfp4, 6.0),
        (Encoding::Gguf(GgufBlocks::Q8_0), 127.0),
    ] {
        let values = values(encoding);
        // 64 numbers whose maximum makes the scale one.
        for step in 0..200 {
            let mut row: Vec<f32> =
                (0..64).map(|i| scale_one * (((i * 200 + step) as f32) / 12800.0 - 0.5)).collect();
            row[0] = scale_one;
            row[32] = scale_one;
            let encoder = Encoder::new(encoding, SourceDtype::F32, 64).unwrap();
            let encoded = Encoded::with(&encoder, &f32_bytes(&row), 1, 64, 1);
            for (w, bits) in row.iter().zip(crate::common::decode(&encoded.matrix(), 0)) {
                let got = (f32::from_bits(bits) - w).abs();
                let best = values.iter().map(|v| (v - w).abs()).fold(f32::MAX, f32::min);
                assert_eq!(got, best, "{encoding}: {w} became {}", f32::from_bits(bits));
            }
        }
    }
}

/// Rounding, saturation and zero scales, byte for byte.
#[test]
fn codes_and_scales_are_rounded_as_the_format_says() {
    let tiny = |n: u32| f32::from_bits(n);
    let e4m3_step = 2f32.powi(-9);
    type Case<'a> = (Encoding, &'a [f32], &'a [u8], &'a [u8]);
    let cases: &[Case] = &[
        // Codes: to nearest, ties to even.
        (Encoding::Q8, &[127.0, 0.5, 1.5, -2.5], &[127, 0, 2, 0xfe], &[0x80, 0x3f]),
        (Encoding::Q4, &[7.0, 0.5, 1.5, -2.5], &[0x07, 0xe2], &[0x80, 0x3f]),
        (
            Encoding::Fp8(Fp8Scales::Squares),
            &[448.0, 1.0625, 1.1875, -1.0625],
            &[0x7e, 0x38, 0x3a, 0xb8],
            &[0, 0, 0x80, 0x3f],
        ),
        (
            Encoding::Fp8(Fp8Scales::Squares),
            &[448.0, 0.5 * e4m3_step, 1.5 * e4m3_step, 2.5 * e4m3_step, 7.5 * e4m3_step],
            &[0x7e, 0, 2, 2, 8],
            &[0, 0, 0x80, 0x3f],
        ),
        (
            Encoding::Mxfp4,
            &[6.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0],
            &[0x07, 0x22, 0x44, 0x66, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[127],
        ),
        // Magnitudes beyond the largest code become the largest.
        (
            Encoding::Mxfp4,
            &[7.9, -7.9],
            &[0xf7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[127],
        ),
        (Encoding::Q8, &[tiny(189 << 16), -tiny(189 << 16)], &[127, 0x81], &[1, 0]),
        (Encoding::Q4, &[tiny(10 << 16), -tiny(10 << 16)], &[0x97], &[1, 0]),
        (Encoding::Fp8(Fp8Scales::Squares), &[tiny(627), -tiny(627)], &[0x7e, 0xfe], &[1, 0, 0, 0]),
        // Scales: bf16 to nearest, ties to even.
        (Encoding::Q8, &[127.0 * (1.0 + 1.0 / 256.0)], &[127], &[0x80, 0x3f]),
        (Encoding::Q8, &[127.0 * (1.0 + 3.0 / 256.0)], &[127], &[0x82, 0x3f]),
        // Scales of zero.
        (Encoding::Q8, &[tiny(1), 0.0], &[0, 0], &[0, 0]),
        (Encoding::Q4, &[tiny(1), 0.0], &[0], &[0, 0]),
        (Encoding::Fp8(Fp8Scales::Squares), &[tiny(1), 0.0], &[0, 0], &[0, 0, 0, 0]),
    ];
    for &(encoding, row, codes, scales) in cases {
        let encoder = Encoder::new(encoding, SourceDtype::F32, row.len()).unwrap();
        let mut encoded = EncodedRows::default();
        encoder.encode(&f32_bytes(row), &mut encoded).unwrap();
        assert_eq!(encoded.parts, [codes, scales], "{encoding} of {row:?}");
    }
}

#[test]
fn e4m3_matches_its_fields() {
    // Sign, then exponent and mantissa by arithmetic rather than by bits.
    for code in 0..=255u8 {
        let one = 1f32.to_le_bytes();
        let matrix = Matrix::new(
            Encoding::Fp8(Fp8Scales::Squares),
            1,
            1,
            &[std::slice::from_ref(&code), &one],
        );
        let got = f32::from_bits(crate::common::decode(&matrix.unwrap(), 0)[0]);
        let (e, m) = (i32::from(code >> 3 & 15), f32::from(code & 7));
        let magnitude = match e {
            15 if code & 7 == 7 => f32::NAN,
            0 => m / 8.0 * 2f32.powi(-6),
            _ => (1.0 + m / 8.0) * 2f32.powi(e - 7),
        };
        let expected = if code & 0x80 == 0 { magnitude } else { -magnitude };
        assert!(got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan());
    }
}

#[test]
fn mxfp4_reads_as_published() {
    // Low nibble first; the scale is 2^(s-127), 255 is NaN.
    let mut blocks = [0u8; 32];
    blocks[0] = 0x92;
    blocks[16] = 0x07;
    for (s, expected) in [(127, [1.0, -0.5, 6.0]), (128, [2.0, -1.0, 12.0]), (0, [1.0, -0.5, 6.0])]
    {
        let factor = if s == 0 { 2f32.powi(-126) / 2.0 } else { 1.0 };
        let scales = [s, s];
        let matrix = Matrix::new(Encoding::Mxfp4, 1, 64, &[&blocks, &scales]).unwrap();
        let row: Vec<f32> =
            crate::common::decode(&matrix, 0).iter().map(|b| f32::from_bits(*b) / factor).collect();
        assert_eq!([row[0], row[1], row[32]], expected);
    }
    let matrix = Matrix::new(Encoding::Mxfp4, 1, 64, &[&blocks, &[255, 127]]).unwrap();
    let row = crate::common::decode(&matrix, 0);
    assert!(row[..32].iter().all(|b| f32::from_bits(*b).is_nan()));
    assert_eq!(f32::from_bits(row[32]), 6.0);
}

/// The scale lies before its codes, and a row ends with a whole unit.
#[test]
fn q8_0_reads_as_published() {
    let mut row = vec![0u8; 68];
    row[..5].copy_from_slice(&[0x00, 0x38, 1, 0x80, 0x7f]);
    row[34..37].copy_from_slice(&[0x01, 0x00, 3]);
    let matrix = Matrix::new(Encoding::Gguf(GgufBlocks::Q8_0), 1, 33, &[&row]).unwrap();
    let row: Vec<f32> = crate::common::decode(&matrix, 0).into_iter().map(f32::from_bits).collect();
    assert_eq!(row[..4], [0.5, -64.0, 63.5, 0.0]);
    assert_eq!(row[32], 3.0 * 2f32.powi(-24));
}

#[test]
fn non_finite_weights_and_unsupported_types_are_refused() {
    let lossy = [
        Encoding::Q8,
        Encoding::Q4,
        Encoding::Fp8(Fp8Scales::Squares),
        Encoding::Mxfp4,
        Encoding::Gguf(GgufBlocks::Q8_0),
    ];
    for encoding in lossy {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut rows = vec![0.5; 30];
            rows[17] = bad;
            let encoder = Encoder::new(encoding, SourceDtype::F32, 10).unwrap();
            let error = encoder.encode(&f32_bytes(&rows), &mut EncodedRows::default());
            assert_eq!(error, Err(EncodeError::NotFinite { encoding, row: 1, col: 7 }));
        }
    }
    for (from, to) in [
        (SourceDtype::F32, Encoding::Bf16),
        (SourceDtype::F32, Encoding::F16),
        (SourceDtype::Bf16, Encoding::F16),
        (SourceDtype::F16, Encoding::Bf16),
        (SourceDtype::F16, Encoding::Bf12),
        (SourceDtype::F32, Encoding::Bf12),
        (SourceDtype::F16, Encoding::Bf11),
        (SourceDtype::F32, Encoding::Bf11),
        (SourceDtype::F16, Encoding::Nested),
        (SourceDtype::F32, Encoding::Nested),
    ] {
        let error = Encoder::new(to, from, 10).unwrap_err();
        assert_eq!(error, EncodeError::NotFrom { from, to });
    }
    for encoding in Encoding::ALL.into_iter().filter(|encoding| !encoding.is_made()) {
        for from in [SourceDtype::F32, SourceDtype::E4m3] {
            let error = Encoder::new(encoding, from, 10).unwrap_err();
            let expected = match encoding {
                // It needs the exponents of the whole tensor.
                Encoding::Fp7(_) => EncodeError::NotFrom { from, to: encoding },
                _ => EncodeError::OnlyRead(encoding),
            };
            assert_eq!(error, expected);
        }
    }
    for encoding in Encoding::ALL.into_iter().filter(|encoding| encoding.is_made()) {
        let error = Encoder::new(encoding, SourceDtype::E4m3, 10).unwrap_err();
        assert_eq!(error, EncodeError::NotFrom { from: SourceDtype::E4m3, to: encoding });
    }
    let encoder = Encoder::new(Encoding::F32, SourceDtype::F32, 10).unwrap();
    let error = encoder.encode(&[0; 39], &mut EncodedRows::default());
    assert_eq!(error, Err(EncodeError::NotRows { found: 39, row: 40 }));
}

#[test]
fn wrong_lengths_and_absurd_shapes_are_refused() {
    for encoding in Encoding::ALL {
        let encoded = Encoded::sample(encoding, 5, 70);
        let parts = encoded.parts();
        for (i, kind) in encoding.parts().iter().enumerate() {
            for change in [-1, 1] {
                if kind.suffix == ".patches" && change == 1 {
                    continue;
                }
                let mut broken = parts.clone();
                let mut bytes = broken[i].to_vec();
                // Six entries, which share a base but in bf12.
                let short = if encoding == Encoding::Bf12 { 4 * 6 } else { 4 + 2 * 6 };
                let len = if kind.suffix == ".patches" { short } else { bytes.len() };
                bytes.resize(len.wrapping_add_signed(change), 0);
                broken[i] = &bytes;
                let error = Matrix::new(encoding, 5, 70, &broken).unwrap_err();
                assert!(matches!(error, MatrixError::PartLength { .. }), "{error}");
            }
        }
        for (rows, cols) in [
            (usize::MAX, usize::MAX),
            (1 << 62, 4),
            (2, usize::MAX / 2),
            (0, usize::MAX),
            (5, usize::MAX - 30),
        ] {
            let error = Matrix::new(encoding, rows, cols, &parts).unwrap_err();
            assert!(matches!(error, MatrixError::TooLarge { .. }), "{error}");
        }
        let error = Matrix::new(encoding, 5, 70, &[]).unwrap_err();
        assert!(matches!(error, MatrixError::PartCount { .. }), "{error}");
        let error = Matrix::block(encoding, 5, 70, 4..6, &parts).unwrap_err();
        assert!(matches!(error, MatrixError::NoSuchRows { .. }), "{error}");
    }
}

/// A header may claim any number of columns for a tensor without rows.
#[test]
fn absurdly_wide_matrices_without_rows_are_accepted() {
    for cols in [1 << 40, 1 << 60, usize::MAX / 2] {
        for encoding in Encoding::ALL.into_iter().filter(|encoding| encoding.is_made()) {
            let encoder = crate::common::encoder(encoding, &[], cols);
            let mut encoded = EncodedRows::default();
            encoder.encode(&[], &mut encoded).unwrap();
            assert_eq!(encoded.parts, [[0u8; 0]; 2], "{encoding}");
        }
    }
    let none: &[u8] = &[];
    for (encoding, parts) in [
        (Encoding::F32, &[none][..]),
        (Encoding::Q8, &[none, none]),
        (Encoding::Bf12, &[none, &[0; 16], &[0; 4]]),
        (Encoding::Bf11, &[none, &[0; 16], &[0; 4]]),
        (Encoding::Nested, &[none, none, &[0; 4]]),
    ] {
        let matrix = Matrix::new(encoding, 0, 1 << 55, parts).unwrap();
        matrix.check().unwrap();
        let mut out = Vec::new();
        matrix.to_source(SourceDtype::F16, &mut out).unwrap();
        assert!(out.is_empty());
    }
}

#[test]
fn errors_name_what_is_wrong() {
    for (encoding, parts, expected) in [
        (
            Encoding::Bf16,
            &[&[0u8; 3][..]][..],
            "the weights of a bf16 matrix of 1 x 2 have 3 bytes instead of 4",
        ),
        (
            Encoding::Mxfp4,
            &[&[0; 16][..], &[]],
            "the scales of a mxfp4 matrix of 1 x 2 have 0 bytes instead of 1",
        ),
        (Encoding::Q4, &[&[][..]], "a q4 matrix has 2 parts, not 1"),
    ] {
        let error = Matrix::new(encoding, 1, 2, parts).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn wrong_patches_are_detected_and_harmless() {
    let cols = 70;
    let source = bf16_bytes(&(0..210u16).map(|i| i * 311).collect::<Vec<_>>());
    let encoded = Encoded::packed(Encoding::Bf12, &source, cols);
    let parts = encoded.parts();
    assert!(encoded.escapes > 3);
    for (offset, value) in [(1, u32::MAX), (1, 0), (2, 0), (0, 7), (3, u32::MAX), (3, 0)] {
        let mut patches = parts[2].to_vec();
        patches[4 * offset..4 * offset + 4].copy_from_slice(&value.to_le_bytes());
        let matrix = Matrix::new(Encoding::Bf12, 3, cols, &[parts[0], parts[1], &patches]).unwrap();
        assert!(
            matches!(matrix.check(), Err(MatrixError::Patches { .. }))
                || value == u32::MAX && offset == 3
        );
        (0..3).for_each(|r| drop(crate::common::decode(&matrix, r)));
    }
    // An escape without a patch is infinite or NaN.
    let bare = Matrix::new(Encoding::Bf12, 3, cols, &[parts[0], parts[1], &parts[2][..16]]);
    let bare = bare.unwrap();
    let loud = (0..3).flat_map(|r| crate::common::decode(&bare, r));
    assert!(loud.filter(|b| !f32::from_bits(*b).is_finite()).count() >= encoded.escapes);
}

#[test]
fn wrong_patches_of_bf11_are_detected_and_harmless() {
    let cols = 70;
    let source = bf16_bytes(&(0..210u16).map(|i| i * 311).collect::<Vec<_>>());
    let encoded = Encoded::packed(Encoding::Bf11, &source, cols);
    let parts = encoded.parts();
    assert!(encoded.escapes > 90);
    // Base, then starts of three rows and the end of the last.
    for (place, value) in [(3, 0xff), (4, 1), (6, 0), (7, 0xff), (8, 0), (10, 0), (11, 0xff)] {
        let mut patches = parts[2].to_vec();
        patches[place] = value;
        let matrix = Matrix::new(Encoding::Bf11, 3, cols, &[parts[0], parts[1], &patches]).unwrap();
        // An end behind the list is clamped to the true one.
        let error = matrix.check();
        assert!(place == 11 || matches!(error, Err(MatrixError::Patches { .. })), "{place}");
        (0..3).for_each(|r| drop(crate::common::decode(&matrix, r)));
    }
    // An escape without a patch is infinite or NaN.
    let bare = Matrix::new(Encoding::Bf11, 3, cols, &[parts[0], parts[1], &parts[2][..12]]);
    let bare = bare.unwrap();
    let mut escapes = 0;
    for row in 0..3 {
        assert!(bare.rows(row..row + 1).first_not_finite().is_some());
        for (was, is) in crate::common::decode(&encoded.matrix(), row)
            .into_iter()
            .zip(crate::common::decode(&bare, row))
        {
            assert!(was == is || !f32::from_bits(is).is_finite());
            escapes += u32::from(was != is);
        }
    }
    assert!(escapes > 90);
}

#[test]
fn wrong_bytes_of_nested_are_detected_or_harmless() {
    let cols = 70;
    let source = bf16_bytes(&(0..210u16).map(|i| i * 311).collect::<Vec<_>>());
    let encoded = Encoded::packed(Encoding::Nested, &source, cols);
    let parts = encoded.parts();
    assert!(encoded.escapes > 90);
    for (place, value) in [(3, 0xff), (4, 1), (6, 0), (7, 0xff), (8, 0), (10, 0), (11, 0xff)] {
        let mut patches = parts[2].to_vec();
        patches[place] = value;
        let parts = [parts[0], parts[1], &patches];
        let matrix = Matrix::new(Encoding::Nested, 3, cols, &parts).unwrap();
        // An end behind the list is clamped to the true one.
        let error = matrix.check();
        assert!(place == 11 || matches!(error, Err(MatrixError::Patches { .. })), "{place}");
        (0..3).for_each(|r| drop(crate::common::decode(&matrix, r)));
    }
    // A distance beyond the largest exponent is no exponent of infinity.
    let mut top = parts[1].to_vec();
    for block in top.chunks_mut(34) {
        block[32..].fill(1);
    }
    let matrix = Matrix::new(Encoding::Nested, 3, cols, &[parts[0], &top, parts[2]]).unwrap();
    let numbers = (0..3).flat_map(|r| crate::common::decode(&matrix, r));
    assert!(numbers.map(f32::from_bits).all(|w| w.abs() < 1e-37));
}

/// The top of each number by the definition of the format: sign, distance from the largest exponent
/// of 32 columns, first bit of the mantissa.
#[test]
fn a_top_is_near_its_numbers() {
    let (rows, cols) = (3, 230);
    let source = crate::common::sample_source(Encoding::Nested, rows, cols);
    let whole = Encoded::packed(Encoding::Nested, &source, cols);
    let top = [whole.parts()[1]];
    let top = Matrix::new(Encoding::Top, rows, cols, &top).unwrap();
    for row in 0..rows {
        let exact = crate::common::decode(&whole.matrix(), row);
        let near = crate::common::decode(&top, row);
        for (exact, near) in exact.chunks(32).zip(near.chunks(32)) {
            let power = exact.iter().map(|bits| bits >> 23 & 255).max().unwrap();
            for (bits, near) in exact.iter().zip(near) {
                let distance = power - (bits >> 23 & 255);
                let fraction = if bits >> 22 & 1 == 1 { 1.8125 } else { 1.1875 };
                let value = if distance < 3 { fraction / (1 << distance) as f32 } else { 0.09375 };
                let value = value * f32::from_bits(power << 23);
                let sign = if bits >> 31 == 1 { -1.0 } else { 1.0 };
                assert_eq!(f32::from_bits(*near), sign * value);
            }
        }
    }
}

#[test]
fn error_sums_are_those_of_the_decoded_matrix() {
    let source = f32_bytes(&[3.0, 4.0, 0.0, 0.0]);
    let encoder = Encoder::new(Encoding::Mxfp4, SourceDtype::F32, 4).unwrap();
    let mut rows = EncodedRows::default();
    let mut tally = TensorTally::new(&encoder);
    encoder.encode(&source, &mut rows).unwrap();
    tally.push(&rows).unwrap();
    assert_eq!((tally.error.difference, tally.error.total, tally.error.max), (0.0, 25.0, 0.0));
    encoder.encode(&f32_bytes(&[5.0, 4.0, 0.0, 0.0]), &mut rows).unwrap();
    tally.push(&rows).unwrap();
    assert_eq!((tally.error.difference, tally.error.total, tally.error.max), (1.0, 66.0, 1.0));
    assert_eq!(tally.error.relative(), (1f64 / 66.0).sqrt());
}

proptest! {
    #[test]
    fn random_bf16_survives(bits in prop::collection::vec(any::<u16>(), 1..600), cols in 1usize..200) {
        let rows = bits.len() / cols;
        let source = bf16_bytes(&bits[..rows * cols]);
        for encoding in PATCHED {
            survives(encoding, &source, cols);
        }
    }

    /// Few exponents, so that tiers are of every size, and rows on both sides of the width from
    /// which each has an offset of its own.
    #[test]
    fn few_exponents_survive_bf11_and_nested(
        exponents in prop::collection::vec(0u16..256, 1..12),
        picks in prop::collection::vec(any::<u16>(), 400),
        cols in prop_oneof![1usize..200, 2040usize..2060],
        rows in 1usize..40,
    ) {
        let bits: Vec<u16> = (0..rows * cols)
            .map(|i| {
                let pick = picks[i % 400].wrapping_add((i / 400) as u16 * 77);
                // The first are the most frequent.
                let rank = pick.trailing_zeros() as usize % exponents.len();
                pick & 0x807f | exponents[rank] << 7
            })
            .collect();
        survives(Encoding::Bf11, &bf16_bytes(&bits), cols);
        survives(Encoding::Nested, &bf16_bytes(&bits), cols);
    }

    #[test]
    fn lossy_errors_are_bounded_by_the_step(
        rows in prop::collection::vec(-1e3f32..1e3, 64),
        shift in -60i32..60,
    ) {
        let rows: Vec<f32> = rows.iter().map(|w| w * 2f32.powi(shift)).collect();
        let max = rows.iter().fold(0f32, |m, w| m.max(w.abs()));
        // Half a step at the largest magnitude, with a margin for the rounding of a bf16 scale.
        for (encoding, bound) in [
            (Encoding::Q8, 1.02 / 254.0),
            (Encoding::Q4, 1.02 / 14.0),
            (Encoding::Fp8(Fp8Scales::Squares), 16.1 / 448.0),
            // e2m1 saturates: a maximum just below 8 becomes 6.
            (Encoding::Mxfp4, 2.0 / 8.0),
        ] {
            let encoder = Encoder::new(encoding, SourceDtype::F32, 64).unwrap();
            let encoded = Encoded::with(&encoder, &f32_bytes(&rows), 1, 64, 1);
            for (w, bits) in rows.iter().zip(crate::common::decode(&encoded.matrix(), 0)) {
                prop_assert!((f32::from_bits(bits) - w).abs() <= max * bound, "{} {}", encoding, w);
            }
        }
    }
}
