//! Lossy encodings match their definition in `docs/format.md`, weight by weight.

use crate::common::f32_bytes;
use proptest::prelude::*;
use sws_kernels::{EncodedRows, Encoder, Encoding, Fp8Scales, GgufBlocks, Matrix, SourceDtype};

/// The numbers that the codes stand for, in order of magnitude and without sign.
fn numbers(encoding: Encoding) -> Vec<f64> {
    let fields = |mantissa: i32, lowest: i32, count: i32| {
        let number = |code: i32| {
            let (e, m) = (code >> mantissa, f64::from(code & ((1 << mantissa) - 1)));
            let m = m / f64::from(1 << mantissa) + f64::from(u8::from(e > 0));
            m * 2f64.powi(e.max(1) - 1 + lowest)
        };
        (0..count).map(number).collect()
    };
    match encoding {
        Encoding::Q8 | Encoding::Gguf(GgufBlocks::Q8_0) => (0..=127).map(f64::from).collect(),
        Encoding::Q4 => (0..=7).map(f64::from).collect(),
        Encoding::Fp8(Fp8Scales::Squares) => fields(3, -6, 0x7f),
        _ => fields(1, 0, 8),
    }
}

/// The code of the nearest number; a tie goes to the even code. Far above the largest number all
/// distances are the same in f64.
fn nearest(numbers: &[f64], w: f32) -> usize {
    let w = f64::from(w.abs()).min(numbers[numbers.len() - 1]);
    let distance = |code: &usize| ((numbers[*code] - w).abs(), code % 2);
    let order = |a: &usize, b: &usize| distance(a).partial_cmp(&distance(b)).unwrap();
    (0..numbers.len()).min_by(order).unwrap()
}

/// Index of the group of weights that shares a scale with the given one.
fn group(encoding: Encoding, row: usize, col: usize) -> (usize, usize) {
    match encoding {
        Encoding::Fp8(Fp8Scales::Squares) => (row / 128, col / 128),
        Encoding::Mxfp4 | Encoding::Gguf(GgufBlocks::Q8_0) => (row, col / 32),
        _ => (row, col / 64),
    }
}

/// Code and scale of every weight, by the definition.
fn defined(encoding: Encoding, rows: &[f32], cols: usize) -> Vec<(i32, f32)> {
    let numbers = numbers(encoding);
    let mut maxima = std::collections::HashMap::new();
    for (i, w) in rows.iter().enumerate() {
        let max = maxima.entry(group(encoding, i / cols, i % cols)).or_insert(0f32);
        *max = max.max(w.abs());
    }
    let codes = rows.iter().enumerate().map(|(i, w)| {
        let max = maxima[&group(encoding, i / cols, i % cols)];
        let scale = match encoding {
            Encoding::Q8 => half::bf16::from_f32(max / 127.0).to_f32(),
            Encoding::Q4 => half::bf16::from_f32(max / 7.0).to_f32(),
            Encoding::Gguf(GgufBlocks::Q8_0) => {
                half::f16::from_f32((max / 127.0).min(65504.0)).to_f32()
            }
            Encoding::Fp8(Fp8Scales::Squares) => max / 448.0,
            _ if max == 0.0 => 2f32.powi(-127),
            _ => 2f32.powi((f64::from(max).log2().floor() as i32 - 2).max(-127)),
        };
        if scale == 0.0 {
            return (0, scale);
        }
        let code = nearest(&numbers, w / scale) as i32;
        let negative = w.is_sign_negative();
        let code = match encoding {
            Encoding::Q8 | Encoding::Q4 | Encoding::Gguf(GgufBlocks::Q8_0) => {
                if negative {
                    -code
                } else {
                    code
                }
            }
            Encoding::Fp8(Fp8Scales::Squares) => code | i32::from(negative) << 7,
            _ => code | i32::from(negative) << 3,
        };
        (code, scale)
    });
    codes.collect()
}

/// Code and scale of every weight as encoded, from the layout of the parts.
fn encoded(encoding: Encoding, cols: usize, rows: usize, parts: &[Vec<u8>; 2]) -> Vec<(i32, f32)> {
    let [codes, scales] = parts;
    let bf16 = |at: usize| half::bf16::from_le_bytes([scales[2 * at], scales[2 * at + 1]]).to_f32();
    let nibble = |bytes: &[u8], at: usize| i32::from(bytes[at / 2] >> (4 * (at % 2)) & 15);
    let one = |row: usize, col: usize| match encoding {
        Encoding::Q8 => {
            (i32::from(codes[row * cols + col] as i8), bf16(row * cols.div_ceil(64) + col / 64))
        }
        Encoding::Gguf(GgufBlocks::Q8_0) => {
            let unit = &codes[34 * (row * cols.div_ceil(32) + col / 32)..];
            let scale = half::f16::from_le_bytes([unit[0], unit[1]]).to_f32();
            (i32::from(unit[2 + col % 32] as i8), scale)
        }
        Encoding::Q4 => {
            let (first, c) = (col / 64 * 64, col % 64);
            let bytes = &codes[row * cols.div_ceil(2) + first / 2..];
            let at = if cols - first < 64 { c } else { 4 * (c % 16) + c / 16 };
            ((nibble(bytes, at) ^ 8) - 8, bf16(row * cols.div_ceil(64) + col / 64))
        }
        Encoding::Fp8(Fp8Scales::Squares) => {
            let at = 4 * (row / 128 * cols.div_ceil(128) + col / 128);
            let scale = f32::from_le_bytes(scales[at..at + 4].try_into().unwrap());
            (i32::from(codes[row * cols + col]), scale)
        }
        _ => {
            let block = row * cols.div_ceil(32) + col / 32;
            let scale = 2f64.powi(i32::from(scales[block]) - 127) as f32;
            (nibble(&codes[16 * block..], col % 32), scale)
        }
    };
    (0..rows * cols).map(|i| one(i / cols, i % cols)).collect()
}

#[track_caller]
fn check(rows: &[f32], cols: usize) {
    let rows = &rows[..rows.len() / cols * cols];
    let lossy = [
        Encoding::Q8,
        Encoding::Q4,
        Encoding::Fp8(Fp8Scales::Squares),
        Encoding::Mxfp4,
        Encoding::Gguf(GgufBlocks::Q8_0),
    ];
    for encoding in lossy {
        let encoder = Encoder::new(encoding, SourceDtype::F32, cols).unwrap();
        let mut out = EncodedRows::default();
        encoder.encode(&f32_bytes(rows), &mut out).unwrap();
        let found = encoded(encoding, cols, rows.len() / cols, &out.parts);
        let expected = defined(encoding, rows, cols);
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found, expected, "{encoding}, {cols} columns: weight {i}, {}", rows[i]);
        }
        check_error(encoding, rows, cols, &out);
    }
}

fn check_error(encoding: Encoding, rows: &[f32], cols: usize, out: &EncodedRows) {
    let [codes, scales] = &out.parts;
    let parts = &[codes.as_slice(), scales][..encoding.parts().len()];
    let matrix = Matrix::new(encoding, rows.len() / cols, cols, parts).unwrap();
    let (mut difference, mut total, mut max) = (0f64, 0f64, 0f64);
    for (r, row) in rows.chunks(cols).enumerate() {
        let mut lanes = [[0f64; 8]; 2];
        for (c, (new, old)) in crate::common::decode(&matrix, r).into_iter().zip(row).enumerate() {
            let lost = f64::from(f32::from_bits(new)) - f64::from(*old);
            lanes[0][c % 8] += lost * lost;
            lanes[1][c % 8] += f64::from(*old) * f64::from(*old);
            max = max.max(lost.abs());
        }
        let [d, t] =
            lanes.map(|l| ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7])));
        difference += d;
        total += t;
    }
    assert_eq!((out.error.difference, out.error.total, out.error.max), (difference, total, max));
}

#[test]
fn magnitudes_at_both_ends_and_between_two_codes() {
    let tiny = (0..400).map(f32::from_bits);
    let small = (0..400u32).map(|i| f32::from_bits((i * 7919) << 8));
    let halves = (0..4000u16).map(|i| f32::from(i) / 16.0 - 120.0);
    let large = (0..400u32).map(|i| f32::MAX / (1.0 + i as f32 / 64.0));
    for values in [tiny.collect::<Vec<_>>(), small.collect(), halves.collect(), large.collect()] {
        let signed: Vec<f32> =
            values.iter().enumerate().map(|(i, v)| if i % 3 == 0 { -v } else { *v }).collect();
        for cols in [1, 8, 31, 64, 65, 100, 128, 200] {
            check(&signed, cols);
        }
    }
    check(&[0.0, -0.0, 0.0, -0.0], 2);
}

proptest! {
    #[test]
    fn random_weights(
        weights in prop::collection::vec((-1f32..1.0, 0u32..6), 1..1200),
        grid in prop::sample::select(vec![0f32, 8.0, 64.0, 1024.0]),
        shift in -148i32..127,
        cols in 1usize..300,
    ) {
        let rows: Vec<f32> = weights
            .iter()
            .map(|(w, e)| {
                let w = if grid == 0.0 { *w } else { (w * grid).round() / grid };
                (f64::from(w) * 2f64.powi(shift - *e as i32)) as f32
            })
            .collect();
        prop_assume!(rows.len() >= cols);
        check(&rows, cols);
    }
}
