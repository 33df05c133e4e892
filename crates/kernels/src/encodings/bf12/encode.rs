//! Encoding of bf16 as bf12.

use crate::encodings::EncodedRows;
use crate::encodings::encode::ExponentCounts;
use crate::encodings::parts::TABLE_LEN;
use crate::scalar::BLOCK;

impl ExponentCounts {
    /// Number of counted values that would be escapes.
    pub fn escapes(&self, table: &ExponentTable) -> u64 {
        let kept: u64 = table.0.iter().map(|e| self.0[usize::from(*e)]).sum();
        self.0.iter().sum::<u64>() - kept
    }
}

/// The fifteen exponents that bf12 has codes for, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExponentTable([u8; 15]);

impl ExponentTable {
    /// The most frequent exponents; of equally frequent ones the smaller.
    pub fn from_histogram(histogram: &ExponentCounts) -> Self {
        let order = histogram.by_frequency();
        let mut table: [u8; 15] = std::array::from_fn(|i| order[i]);
        table.sort();
        ExponentTable(table)
    }

    /// The bytes of the part `.table`.
    pub fn bytes(&self) -> [u8; TABLE_LEN] {
        let mut bytes = [0; TABLE_LEN];
        bytes[..15].copy_from_slice(&self.0);
        bytes
    }

    pub(in crate::encodings) fn codes(&self) -> [u8; 256] {
        let mut codes = [15; 256];
        for (code, exponent) in (0..).zip(self.0) {
            codes[usize::from(exponent)] = code;
        }
        codes
    }
}

/// Encodes whole rows.
pub(in crate::encodings) fn encode(
    codes: &[u8; 256],
    cols: usize,
    rows: &[u8],
    out: &mut EncodedRows,
) {
    let row_len = cols + cols.div_ceil(2);
    let n = rows.len() / (2 * cols);
    out.parts[0].resize(n * row_len, 0);
    for (source, packed) in rows.chunks_exact(2 * cols).zip(out.parts[0].chunks_exact_mut(row_len))
    {
        let before = out.exponents.len();
        let (blocks, tail) = source.as_chunks::<{ 2 * BLOCK }>();
        let (packed_blocks, packed_tail) = packed.as_chunks_mut::<{ BLOCK + BLOCK / 2 }>();
        for (source, packed) in blocks.iter().zip(packed_blocks) {
            if block(codes, source, packed) {
                push_escapes(codes, source, &mut out.exponents);
            }
        }
        if !tail.is_empty() {
            let n = tail.len() / 2;
            for (c, b) in tail.as_chunks().0.iter().enumerate() {
                let bits = u16::from_le_bytes(*b);
                packed_tail[c] = sign_mantissa(bits);
                packed_tail[n + c / 2] |= codes[exponent(bits)] << (4 * (c % 2));
            }
            push_escapes(codes, tail, &mut out.exponents);
        }
        out.escapes.push((out.exponents.len() - before) as u32);
    }
}

/// Encodes a whole block. Returns true if any of it escaped.
#[inline(always)]
fn block(codes: &[u8; 256], source: &[u8; 2 * BLOCK], out: &mut [u8; BLOCK + BLOCK / 2]) -> bool {
    let column = |c: usize| u16::from_le_bytes([source[2 * c], source[2 * c + 1]]);
    let mut escaped = false;
    for i in 0..16 {
        let bits = [column(i), column(16 + i), column(32 + i), column(48 + i)];
        let code = bits.map(|b| codes[exponent(b)]);
        escaped |= code.contains(&15);
        out[4 * i..4 * i + 4].copy_from_slice(&bits.map(sign_mantissa));
        let at = BLOCK + 2 * i;
        out[at..at + 2].copy_from_slice(&[code[0] | code[1] << 4, code[2] | code[3] << 4]);
    }
    escaped
}

#[cold]
fn push_escapes(codes: &[u8; 256], source: &[u8], out: &mut Vec<u8>) {
    let exponents = source.as_chunks().0.iter().map(|b| exponent(u16::from_le_bytes(*b)));
    out.extend(exponents.filter(|e| codes[*e] == 15).map(|e| e as u8));
}

pub(in crate::encodings) fn exponent(bits: u16) -> usize {
    usize::from(bits >> 7 & 255)
}

pub(in crate::encodings) fn sign_mantissa(bits: u16) -> u8 {
    (bits >> 8 & 0x80 | bits & 0x7f) as u8
}
