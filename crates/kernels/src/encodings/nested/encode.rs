//! Encoding of bf16 as nested.

use super::DISTANCES;
use super::reference::split;
use crate::encodings::EncodedRows;
use crate::encodings::bf11::BF11_BLOCK;
use crate::encodings::bf11::encode::{self as bf11, ESCAPE};
use crate::encodings::bf11::reference::planes;
use crate::encodings::bf12::encode::exponent;
use crate::scalar::{BLOCK, paired};

/// The code of each distance of an exponent from the largest of its half.
const CODES: [u8; 256] = {
    let mut codes = [ESCAPE; 256];
    let mut i = 0;
    while i < DISTANCES.len() {
        codes[DISTANCES[i] as usize] = (i / 3 * 4 + i % 3) as u8;
        i += 1;
    }
    codes
};

/// Encodes whole rows. The last block of each is filled up with numbers that need no patches.
pub(in crate::encodings) fn encode(cols: usize, rows: &[u8], out: &mut EncodedRows) {
    for source in rows.chunks_exact(2 * cols) {
        let before = out.exponents.len();
        for source in source.as_chunks::<2>().0.chunks(BLOCK) {
            block(source, out);
        }
        out.escapes.push((out.exponents.len() - before) as u32);
    }
}

fn block(source: &[[u8; 2]], out: &mut EncodedRows) {
    let mut numbers = [0; BLOCK];
    let mut powers = [0; 2];
    for (half, (source, power)) in source.chunks(BLOCK / 2).zip(&mut powers).enumerate() {
        let bits = source.iter().map(|b| u16::from_le_bytes(*b));
        *power = bits.clone().map(exponent).max().unwrap_or_default() as u8;
        for (i, bits) in bits.enumerate() {
            let distance = u16::from(*power) - exponent(bits) as u16;
            numbers[paired(BLOCK / 2 * half + i)] = bits & 0x807f | distance << 7;
        }
    }
    bf11::block(&CODES, &numbers, out);
    let [rest, tops] = &mut out.parts;
    let whole: &[u8; BF11_BLOCK] = rest.last_chunk().expect("a whole block");
    let (bytes, distances) = whole.split_first_chunk().expect("signs and mantissas come first");
    let (kept, codes) = split(bytes, planes(distances, BLOCK));
    rest.truncate(rest.len() - BF11_BLOCK);
    rest.extend_from_slice(&kept);
    tops.extend_from_slice(&codes);
    tops.extend_from_slice(&powers);
}
