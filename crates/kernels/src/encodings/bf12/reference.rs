//! bf12: signs and mantissas, codes of exponents, patches.

use super::{BLOCK, interleaved, nibble};
use crate::Matrix;

/// Decodes one block of a bf12 row to bf16 bits.
pub(super) fn bf12_block(
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
