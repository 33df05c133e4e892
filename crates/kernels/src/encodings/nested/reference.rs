//! nested in scalars.

use super::{DISTANCES, REST_BLOCK, TOP_BLOCK};
use crate::Matrix;
use crate::encodings::bf11::reference::{Planes, decode_exponents};
use crate::scalar::{BLOCK, e8m0_to_f32, nibble, paired};

/// What the codes of a top stand for, over the power of two of their half. From its lowest bit up, a
/// code has the first bit of the mantissa, the distance of the exponent and the sign. A distance of 3
/// means 3 or more.
pub(super) const TOP_VALUES: [f32; 16] = {
    const HALVES: [f32; 2] = [1.1875, 1.8125];
    const FAR: f32 = 0.09375;
    let mut values = [0.0; 16];
    let mut code = 0;
    while code < 16 {
        let value = match code >> 1 & 3 {
            3 => FAR,
            distance => HALVES[code & 1] / (1 << distance) as f32,
        };
        values[code] = if code < 8 { value } else { -value };
        code += 1;
    }
    values
};

/// Splits a block of signs and mantissas, and the planes of its distances, into rest and codes.
pub(super) fn split(bytes: &[u8; BLOCK], planes: [u64; 2]) -> ([u8; REST_BLOCK], [u8; BLOCK / 2]) {
    let mut rest = [0; REST_BLOCK];
    let mut codes = [0; BLOCK / 2];
    for c in 0..BLOCK {
        let p = paired(c);
        let bit = |plane: u64| (plane >> p & 1) as u8;
        let byte = bytes[p];
        let code = byte >> 7 << 3 | bit(planes[1]) << 2 | bit(planes[0]) << 1 | byte >> 6 & 1;
        codes[c / 2] |= code << (4 * (c % 2));
        rest[p / 2] |= (byte & 15) << (4 * (p % 2));
        rest[BLOCK / 2 + p % 16] |= (byte >> 4 & 3) << (2 * (p / 16));
    }
    (rest, codes)
}

/// The inverse of [`split`].
#[inline(always)]
pub(super) fn united(rest: &[u8; REST_BLOCK], codes: &[u8; BLOCK / 2]) -> ([u8; BLOCK], [u64; 2]) {
    let mut bytes = [0; BLOCK];
    let mut planes = [0; 2];
    for c in 0..BLOCK {
        let p = paired(c);
        let code = nibble(codes, c);
        planes[0] |= u64::from(code >> 1 & 1) << p;
        planes[1] |= u64::from(code >> 2 & 1) << p;
        let high = rest[BLOCK / 2 + p % 16] >> (2 * (p / 16)) & 3;
        bytes[p] = code >> 3 << 7 | (code & 1) << 6 | high << 4 | nibble(rest, p);
    }
    (bytes, planes)
}

fn top_of<'a>(m: &Matrix<'a>, part: usize, row: usize, block: usize) -> &'a [u8; TOP_BLOCK] {
    &m.row_bytes(part, row).as_chunks().0[block]
}

fn codes(top: &[u8; TOP_BLOCK]) -> &[u8; BLOCK / 2] {
    top.first_chunk().expect("they come first")
}

/// [`Planes`] of nested: those of its distances.
pub(in crate::encodings) struct NestedPlanes;

impl Planes for NestedPlanes {
    #[inline(always)]
    fn of(m: &Matrix, row: usize, block: usize, _: usize) -> [u64; 2] {
        united(&[0; REST_BLOCK], codes(top_of(m, 1, row, block))).1
    }
}

/// Decodes one block of a row to bf16 bits.
pub(in crate::encodings) fn bits(
    m: &Matrix,
    row: usize,
    block: usize,
    patches: &mut &[u8],
    out: &mut [u16],
) {
    let top = top_of(m, 1, row, block);
    let (bytes, planes) = united(&m.row_bytes(0, row).as_chunks().0[block], codes(top));
    let first = |at: usize| (planes[0] >> at & 1 | (planes[1] >> at & 1) << 1) as usize;
    let mut distances = [0; BLOCK];
    decode_exponents(&DISTANCES, first, patches, &mut distances);
    for (c, out) in out.iter_mut().enumerate() {
        let at = paired(c);
        let exponent = top[BLOCK / 2 + c / 32].saturating_sub(distances[at]);
        let byte = u16::from(bytes[at]);
        *out = (byte & 0x80) << 8 | u16::from(exponent) << 7 | byte & 0x7f;
    }
}

/// Decodes one block of a row of a top.
pub(in crate::encodings) fn top(m: &Matrix, row: usize, block: usize, out: &mut [f32]) {
    let top = top_of(m, 0, row, block);
    for (c, out) in out.iter_mut().enumerate() {
        let power = e8m0_to_f32(top[BLOCK / 2 + c / 32]);
        *out = TOP_VALUES[usize::from(nibble(top, c))] * power;
    }
}

/// True if a half of a block has the exponent of infinity and NaN. That of a weight is no larger.
pub(in crate::encodings) fn has_special_power(top: &[u8]) -> bool {
    let mut blocks = top.as_chunks::<TOP_BLOCK>().0.iter();
    blocks.any(|block| block[BLOCK / 2] == 0xff || block[BLOCK / 2 + 1] == 0xff)
}
