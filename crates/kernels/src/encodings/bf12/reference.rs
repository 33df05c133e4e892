//! bf12 in scalars.

use crate::Matrix;
use crate::encodings::scan::{any_row, bytes};
use crate::scalar::{BLOCK, interleaved, nibble};

/// Decodes one block of a bf12 row to bf16 bits.
pub(in crate::encodings) fn bits(
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
pub(in crate::encodings) fn count_escapes(m: &Matrix, row: usize) -> usize {
    let mut count = 0;
    for (block, bytes) in m.row_bytes(0, row).chunks(BLOCK + BLOCK / 2).enumerate() {
        let n = BLOCK.min(m.cols() - block * BLOCK);
        count += (0..n).filter(|&c| nibble(&bytes[n..], c) == 15).count();
    }
    count
}

/// True if a weight may be NaN or infinite.
///
/// The largest exponent can be in the table or, verbatim, among the patches. Escapes without a patch also
/// decode to it. The offsets before the patches contain a byte of 0xff in most matrices, which means nothing.
pub(in crate::encodings) fn may_be_special(m: &Matrix) -> bool {
    let patched = |row| {
        let patches = m.escapes(row);
        bytes(patches, 0xff) || escapes(m.row_bytes(0, row)) > patches.len()
    };
    bytes(m.part(1), 0xff) || any_row(m, patched)
}

/// Number of escapes among the codes of a row.
///
/// Counts in byte lanes, which the compiler vectorizes: a long prompt scans the whole model, and
/// counting one by one took a quarter of its time.
fn escapes(row: &[u8]) -> usize {
    /// Number of blocks whose escape counts fit into a byte.
    const BLOCKS: usize = 127;
    // In a block of n columns the first n bytes are signs and mantissas; the others hold two codes
    // each.
    let (blocks, rest) = row.as_chunks::<96>();
    let whole = blocks.chunks(BLOCKS).map(|blocks| {
        let mut lanes = [0u8; 32];
        for block in blocks {
            for (lane, &codes) in lanes.iter_mut().zip(&block[64..]) {
                *lane += of_two(codes);
            }
        }
        lanes.iter().map(|&n| u32::from(n)).sum::<u32>()
    });
    let rest = &rest[rest.len() * 2 / 3..];
    let rest: u32 = rest.iter().map(|&codes| u32::from(of_two(codes))).sum();
    (whole.sum::<u32>() + rest) as usize
}

/// Number of escapes among two codes.
fn of_two(codes: u8) -> u8 {
    u8::from(codes & 15 == 15) + u8::from(codes >> 4 == 15)
}
