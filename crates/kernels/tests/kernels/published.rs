//! Weights of published quantised checkpoints, against the formulas of docs/format.md.

use crate::common::{Encoded, decode, order, published, random};
use sws_kernels::{Encoding, Fp8Scales, Int4Groups, Nvfp4Scale, PartLen, fma};

/// e4m3 by its fields.
fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 8.0 * 2f32.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if code >= 0x80 { -magnitude } else { magnitude }
}

/// e4m3 without a sign and NaN.
fn ue4m3(code: u8) -> f32 {
    match code {
        0x7f => 0.0,
        0xff => 480.0,
        _ => e4m3(code & 0x7f),
    }
}

/// e2m1 by its fields.
fn e2m1(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 1 & 3), f32::from(code & 1));
    let magnitude = match exponent {
        0 => mantissa / 2.0,
        _ => (1.0 + mantissa / 2.0) * 2f32.powi(exponent - 1),
    };
    if code >= 8 { -magnitude } else { magnitude }
}

fn power(code: u8) -> f32 {
    if code == 255 { f32::NAN } else { 2f64.powi(i32::from(code) - 127) as f32 }
}

fn nibble(bytes: &[u8], at: usize) -> u8 {
    bytes[at / 2] >> (4 * (at % 2)) & 15
}

fn single(bytes: &[u8], at: usize) -> f32 {
    f32::from_le_bytes(bytes[4 * at..][..4].try_into().unwrap())
}

/// The value of a code under the unit of its group: a scale, whose lowest bits are a zero point.
fn less_zero(code: u8, units: &[u8], at: usize) -> f32 {
    let unit = u32::from_le_bytes(units[4 * at..][..4].try_into().unwrap());
    (f32::from(code) - (unit & 15) as f32) * f32::from_bits(unit & !0x1fff)
}

/// The same, with the zero point's product taken off that of the code.
fn from_zero(code: u8, units: &[u8], at: usize) -> f32 {
    let unit = u32::from_le_bytes(units[4 * at..][..4].try_into().unwrap());
    let scale = f32::from_bits(unit & !0x1fff);
    fma(f32::from(code), scale, -((unit & 15) as f32) * scale)
}

fn half(bytes: &[u8], at: usize) -> f32 {
    half::bf16::from_le_bytes(bytes[2 * at..][..2].try_into().unwrap()).to_f32()
}

#[test]
fn weights_are_those_of_the_formulas() {
    for encoding in published() {
        for (rows, cols) in [(1, 128), (3, 256), (130, 384), (259, 160), (2, 32)] {
            let parts: Vec<Vec<u8>> = encoding
                .parts()
                .iter()
                .map(|part| match part.len(rows as u64, cols as u64).unwrap() {
                    // The groups of columns: few indices are too large.
                    PartLen::Exact(len) if part.suffix == ".order" => order(len as usize),
                    PartLen::Exact(len) => random(len as usize),
                    PartLen::AtLeast(_) => unreachable!(),
                })
                .collect();
            let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let encoded = Encoded::from_parts(encoding, rows, cols, &slices);
            let (codes, scales) = (slices[0], slices[1]);
            let squares = cols.div_ceil(128);
            for r in 0..rows {
                for (c, found) in decode(&encoded.matrix(), r).into_iter().enumerate() {
                    let (at, square) = (r * cols + c, r / 128 * squares + c / 128);
                    let expected = match encoding {
                        Encoding::Fp8(Fp8Scales::SquaresBf16) => {
                            e4m3(codes[at]) * half(scales, square)
                        }
                        Encoding::Fp8(Fp8Scales::SquaresE8m0) => {
                            e4m3(codes[at]) * power(scales[square])
                        }
                        Encoding::Fp8(Fp8Scales::Rows) => e4m3(codes[at]) * single(scales, r),
                        Encoding::Fp8(Fp8Scales::RowsBf16) => e4m3(codes[at]) * half(scales, r),
                        Encoding::Fp8(Fp8Scales::Whole) => e4m3(codes[at]) * single(scales, 0),
                        Encoding::Fp8(Fp8Scales::WholeBf16) => e4m3(codes[at]) * half(scales, 0),
                        Encoding::Fp8(Fp8Scales::Thirtytwos) => {
                            e4m3(codes[at]) * power(scales[at / 32])
                        }
                        Encoding::Int4(Int4Groups::Symmetric32) => {
                            (f32::from(nibble(codes, at)) - 8.0) * half(scales, at / 32)
                        }
                        Encoding::Int4(Int4Groups::Symmetric128) => {
                            let scale = half(scales, r * squares + c / 128);
                            (f32::from(nibble(codes, at)) - 8.0) * scale
                        }
                        Encoding::Int4(groups) => {
                            let columns = groups.zeros_group().unwrap() as usize;
                            let count = cols.div_ceil(columns);
                            let group = match slices.get(2) {
                                // Past the last group is the last.
                                Some(order) => {
                                    let index = [order[2 * c], order[2 * c + 1]];
                                    usize::from(u16::from_le_bytes(index)).min(count - 1)
                                }
                                None => c / columns,
                            };
                            let (code, unit) = (nibble(codes, at), r * count + group);
                            match groups.has_order() {
                                true => less_zero(code, scales, unit),
                                false => from_zero(code, scales, unit),
                            }
                        }
                        Encoding::Nvfp4(Nvfp4Scale::Times) => {
                            let half = single(slices[2], 0) * 0.5;
                            (2.0 * e2m1(nibble(codes, at)) + 0.0) * (e4m3(scales[at / 16]) * half)
                        }
                        Encoding::Nvfp4(Nvfp4Scale::Divided) => {
                            let scale = e4m3(scales[at / 16]) / single(slices[2], 0);
                            (e2m1(nibble(codes, at)) + 0.0) * scale
                        }
                        Encoding::Nvfp4(Nvfp4Scale::OfBlocks) => {
                            let block = &codes[36 * (r * cols.div_ceil(64) + c / 64)..][..36];
                            let (run, i) = (c % 64 / 16, c % 16);
                            let code = block[4 + 8 * run + i % 8] >> (i / 8 * 4) & 15;
                            let half = single(scales, 0) * 0.5;
                            (2.0 * e2m1(code) + 0.0) * (ue4m3(block[run]) * half)
                        }
                        _ => unreachable!("{encoding}"),
                    };
                    let same = found == expected.to_bits()
                        || f32::from_bits(found).is_nan() && expected.is_nan();
                    assert!(same, "{encoding}, {rows} x {cols}, row {r}, column {c}");
                }
            }
        }
    }
}
