//! Encoding of e4m3 codes as fp7.

use super::nibble_place;
use crate::encodings::EncodedRows;
use crate::encodings::bf11::encode::in_tiers;
use crate::scalar::{BLOCK, paired};

/// The exponent of a code.
fn exponent(code: u8) -> usize {
    usize::from(code >> 3 & 15)
}

/// Encodes whole rows.
pub(in crate::encodings) fn encode(
    tiers: &[u8; 256],
    cols: usize,
    rows: &[u8],
    out: &mut EncodedRows,
) {
    for row in rows.chunks_exact(cols) {
        let before = out.exponents.len();
        let (blocks, tail) = row.as_chunks::<BLOCK>();
        for source in blocks {
            let mut codes = [0; BLOCK];
            for (c, code) in source.iter().enumerate() {
                codes[paired(c)] = *code;
            }
            block(tiers, &codes, out);
        }
        if !tail.is_empty() {
            block(tiers, tail, out);
        }
        out.escapes.push((out.exponents.len() - before) as u32);
    }
}

/// Encodes a block of at most 64 codes, which are in the order of its planes.
#[inline(always)]
fn block(tiers: &[u8; 256], codes: &[u8], out: &mut EncodedRows) {
    let n = codes.len();
    let mut nibbles = [0; BLOCK / 2];
    for (at, code) in codes.iter().enumerate() {
        let place = nibble_place(at, n);
        nibbles[place / 2] |= (code >> 4 & 8 | code & 7) << (4 * (place % 2));
    }
    out.parts[0].extend_from_slice(&nibbles[..n.div_ceil(2)]);
    in_tiers(tiers, codes.iter().map(|code| exponent(*code)), out);
}
