//! The scalar reference: the meaning of every encoding and the canonical reduction, written as
//! plainly as possible. All other tiers are tested against this file, bit for bit.

use crate::{Encoding, Matrix};

/// Columns in a block, the unit of decoding.
pub(crate) const BLOCK: usize = 64;

/// Bytes of 32 columns of q8_0: a scale and the codes.
pub(crate) const Q8_0_BYTES: usize = 34;

/// Partial sums of a dot product: column `c` goes to lane `c % 32`.
pub(crate) const LANES: usize = 32;

/// Calls `y(t, r, weights[r] · x[t])` for all tokens and rows. Tokens are `stride` apart in `x`.
pub(crate) fn matmul(
    weights: &Matrix,
    x: &[f32],
    stride: usize,
    mut y: impl FnMut(usize, usize, f32),
) {
    let mut row = vec![0.0; weights.cols()];
    for r in 0..weights.row_count() {
        decode_row(weights, r, &mut row);
        for (t, x) in x.chunks_exact(stride).enumerate() {
            y(t, r, dot(&row, x));
        }
    }
}

/// `y[t] += Σ x[t][r] · weights[r]`. Tokens are a stride apart, the second of each pair.
pub(crate) fn matmul_transposed(
    weights: &Matrix,
    tokens: usize,
    (x, x_stride): (&[f32], usize),
    (y, y_stride): (&mut [f32], usize),
) {
    let mut row = vec![0.0; weights.cols()];
    for r in 0..weights.row_count() {
        decode_row(weights, r, &mut row);
        for t in 0..tokens {
            let to = &mut y[t * y_stride..][..row.len()];
            for (y, w) in to.iter_mut().zip(&row) {
                *y = w.mul_add(x[t * x_stride + r], *y);
            }
        }
    }
}

/// The canonical dot product.
pub(crate) fn dot(w: &[f32], x: &[f32]) -> f32 {
    let mut acc = [0f32; LANES];
    for (c, (w, x)) in w.iter().zip(x).enumerate() {
        acc[c % LANES] = w.mul_add(*x, acc[c % LANES]);
    }
    reduce(acc)
}

/// The fixed tree: lane i with i+16, then +8, +4, +2, +1.
pub(crate) fn reduce(mut acc: [f32; LANES]) -> f32 {
    for half in [16, 8, 4, 2, 1] {
        for i in 0..half {
            acc[i] += acc[i + half];
        }
    }
    acc[0]
}

/// Decodes all weights of a row.
pub(crate) fn decode_row(m: &Matrix, row: usize, out: &mut [f32]) {
    let mut escapes = escapes(m, row);
    for (block, out) in out.chunks_mut(BLOCK).enumerate() {
        decode_block(m, row, block, &mut escapes, out);
    }
}

/// The patches of a row; empty for all encodings but bf12.
pub(crate) fn escapes<'a>(m: &Matrix<'a>, row: usize) -> &'a [u8] {
    if m.encoding() == Encoding::Bf12 { m.escapes(row) } else { &[] }
}

/// Decodes one block of at most 64 columns. `escapes` holds the patches from this block on and is
/// advanced past those used.
pub(crate) fn decode_block(
    m: &Matrix,
    row: usize,
    block: usize,
    escapes: &mut &[u8],
    out: &mut [f32],
) {
    let col = block * BLOCK;
    let n = out.len();
    let row0 = |part| m.row_bytes(part, row);
    match m.encoding() {
        Encoding::F32 => {
            for (out, b) in out.iter_mut().zip(row0(0)[4 * col..].as_chunks().0) {
                *out = f32::from_le_bytes(*b);
            }
        }
        Encoding::F16 => {
            for (out, b) in out.iter_mut().zip(row0(0)[2 * col..].as_chunks().0) {
                *out = f16_to_f32(u16::from_le_bytes(*b));
            }
        }
        Encoding::Bf16 => {
            for (out, b) in out.iter_mut().zip(row0(0)[2 * col..].as_chunks().0) {
                *out = bf16_to_f32(u16::from_le_bytes(*b));
            }
        }
        Encoding::Bf12 => {
            let mut bits = [0; BLOCK];
            bf12_block(m, row, block, escapes, &mut bits[..n]);
            for (out, bits) in out.iter_mut().zip(bits) {
                *out = bf16_to_f32(bits);
            }
        }
        Encoding::Q8 => {
            let scale = bf16_at(row0(1), block);
            for (out, code) in out.iter_mut().zip(&row0(0)[col..]) {
                *out = f32::from(*code as i8) * scale;
            }
        }
        Encoding::Q4 => {
            let scale = bf16_at(row0(1), block);
            let codes = &row0(0)[col / 2..];
            for (c, out) in out.iter_mut().enumerate() {
                let code = nibble(codes, if n == BLOCK { interleaved(c) } else { c });
                // Four bits of two's complement.
                *out = f32::from((code << 4) as i8 >> 4) * scale;
            }
        }
        Encoding::Fp8 => {
            let scale = f32::from_le_bytes(m.fp8_scales(row).as_chunks().0[col / 128]);
            for (out, code) in out.iter_mut().zip(&row0(0)[col..]) {
                *out = e4m3_to_f32(*code) * scale;
            }
        }
        Encoding::Mxfp4 => {
            let codes = &row0(0)[col / 2..];
            for (c, out) in out.iter_mut().enumerate() {
                let scale = e8m0_to_f32(row0(1)[(col + c) / 32]);
                *out = E2M1[nibble(codes, c) as usize] * scale;
            }
        }
        Encoding::Q8_0 => {
            let (units, _) = row0(0)[col / 32 * Q8_0_BYTES..].as_chunks::<Q8_0_BYTES>();
            for (out, [a, b, codes @ ..]) in out.chunks_mut(32).zip(units) {
                let scale = f16_to_f32(u16::from_le_bytes([*a, *b]));
                for (out, code) in out.iter_mut().zip(codes) {
                    *out = f32::from(*code as i8) * scale;
                }
            }
        }
    }
}

/// Decodes one block of a bf12 row to bf16 bits.
pub(crate) fn bf12_block(
    m: &Matrix,
    row: usize,
    block: usize,
    escapes: &mut &[u8],
    out: &mut [u16],
) {
    let exponents = m.exponents();
    let n = out.len();
    let bytes = &m.row_bytes(0, row)[block * (BLOCK + BLOCK / 2)..];
    for (c, out) in out.iter_mut().enumerate() {
        let at = if n == BLOCK { interleaved(c) } else { c };
        let code = nibble(&bytes[n..], at);
        let mut exponent = exponents[code as usize];
        if code == 15
            && let Some((first, rest)) = escapes.split_first()
        {
            exponent = *first;
            *escapes = rest;
        }
        let byte = u16::from(bytes[if n == BLOCK { interleaved(c) } else { c }]);
        *out = (byte & 0x80) << 8 | u16::from(exponent) << 7 | byte & 0x7f;
    }
}

/// Number of escapes among the codes of a bf12 row.
pub(crate) fn count_escapes(m: &Matrix, row: usize) -> usize {
    let mut count = 0;
    for (block, bytes) in m.row_bytes(0, row).chunks(BLOCK + BLOCK / 2).enumerate() {
        let n = BLOCK.min(m.cols() - block * BLOCK);
        count += (0..n).filter(|&c| nibble(&bytes[n..], c) == 15).count();
    }
    count
}

/// Position of column `c` in a whole block of bf12 or q4: `4i + k` for column `16k + i`.
pub(crate) fn interleaved(c: usize) -> usize {
    4 * (c % 16) + c / 16
}

fn nibble(bytes: &[u8], at: usize) -> u8 {
    bytes[at / 2] >> (4 * (at % 2)) & 15
}

fn bf16_at(bytes: &[u8], index: usize) -> f32 {
    bf16_to_f32(u16::from_le_bytes(bytes.as_chunks().0[index]))
}

/// Widens bf16, which is the upper half of an f32.
pub(crate) fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Widens f16 exactly, subnormals included; a NaN keeps its payload.
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff);
    let wide = match magnitude >> 10 {
        0 => (magnitude as f32 / (1 << 24) as f32).to_bits(),
        31 => 0x7f80_0000 | (magnitude & 0x3ff) << 13,
        _ => (magnitude << 13) + ((127 - 15) << 23),
    };
    f32::from_bits(sign | wide)
}

/// Decodes e4m3, which has no infinities.
pub(crate) const fn e4m3_to_f32(code: u8) -> f32 {
    let magnitude = match code & 0x7f {
        0x7f => f32::NAN,
        m @ 0..8 => m as f32 / 512.0,
        m => f32::from_bits(((m as u32) << 20) + ((127 - 7) << 23)),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The sixteen values of e2m1.
pub(crate) const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Decodes e8m0, a power of two given by its biased exponent; 255 is NaN.
pub(crate) const fn e8m0_to_f32(s: u8) -> f32 {
    match s {
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        _ => f32::from_bits((s as u32) << 23),
    }
}
