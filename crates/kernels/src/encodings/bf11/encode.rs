//! Encoding of bf16 as bf11.

use crate::encodings::EncodedRows;
use crate::encodings::bf12::encode::{exponent, sign_mantissa};
use crate::encodings::encode::ExponentCounts;
use crate::encodings::parts::TABLE_LEN;
use crate::scalar::{BLOCK, paired};

/// The nine exponents that bf11 has codes for: three in each tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExponentTiers([u8; 9]);

impl ExponentTiers {
    /// The most frequent exponents, ascending within a tier; of equally frequent ones the smaller
    /// is in the earlier tier.
    pub fn from_histogram(histogram: &ExponentCounts) -> Self {
        let order = histogram.by_frequency();
        let mut tiers = std::array::from_fn(|i| order[i]);
        tiers.as_chunks_mut::<3>().0.iter_mut().for_each(|tier| tier.sort());
        ExponentTiers(tiers)
    }

    /// The bytes of the part `.table`.
    pub fn bytes(&self) -> [u8; TABLE_LEN] {
        let mut bytes = [0; TABLE_LEN];
        bytes[..9].copy_from_slice(&self.0);
        bytes
    }

    /// Bits that the counted numbers of bf16 take, without the padding of patches and their offsets.
    pub fn bits(&self, histogram: &ExponentCounts) -> u64 {
        10 * histogram.0.iter().sum::<u64>() + self.patch_bits(histogram)
    }

    /// Bits of the patches of the counted exponents.
    pub fn patch_bits(&self, histogram: &ExponentCounts) -> u64 {
        let mut left: u64 = histogram.0.iter().sum();
        let mut bits = 0;
        for (number, tier) in self.0.as_chunks::<3>().0.iter().enumerate() {
            bits += if number == 0 { 0 } else { 2 * left };
            left -= tier.iter().map(|e| histogram.0[usize::from(*e)]).sum::<u64>();
        }
        bits + 8 * left
    }

    /// The code of each exponent: four times its tier, and its place there.
    pub(in crate::encodings) fn codes(&self) -> [u8; 256] {
        let mut codes = [ESCAPE; 256];
        for (i, exponent) in (0..).zip(self.0) {
            codes[usize::from(exponent)] = i / 3 * 4 + i % 3;
        }
        codes
    }
}

/// Code of an exponent in no tier.
pub(in crate::encodings) const ESCAPE: u8 = 12;

/// Encodes whole rows.
pub(in crate::encodings) fn encode(
    codes: &[u8; 256],
    cols: usize,
    rows: &[u8],
    out: &mut EncodedRows,
) {
    for source in rows.chunks_exact(2 * cols) {
        let before = out.exponents.len();
        let (blocks, tail) = source.as_chunks::<{ 2 * BLOCK }>();
        for source in blocks {
            let mut numbers = [0; BLOCK];
            for (c, b) in source.as_chunks().0.iter().enumerate() {
                numbers[paired(c)] = u16::from_le_bytes(*b);
            }
            block(codes, &numbers, out);
        }
        if !tail.is_empty() {
            let mut numbers = [0; BLOCK];
            let tail = tail.as_chunks().0;
            for (number, b) in numbers.iter_mut().zip(tail) {
                *number = u16::from_le_bytes(*b);
            }
            block(codes, &numbers[..tail.len()], out);
        }
        out.escapes.push((out.exponents.len() - before) as u32);
    }
}

/// Encodes a block of at most 64 numbers, which are in the order of its bytes.
#[inline(always)]
pub(in crate::encodings) fn block(codes: &[u8; 256], numbers: &[u16], out: &mut EncodedRows) {
    out.parts[0].extend(numbers.iter().map(|number| sign_mantissa(*number)));
    in_tiers(codes, numbers.iter().map(|number| exponent(*number)), out);
}

/// Writes the planes and the patches of at most 64 exponents.
#[inline(always)]
pub(in crate::encodings) fn in_tiers(
    codes: &[u8; 256],
    exponents: impl ExactSizeIterator<Item = usize>,
    out: &mut EncodedRows,
) {
    let len = exponents.len().div_ceil(8);
    // Without branches, because which tier a number is in cannot be foreseen: each number is written
    // to all tiers, as zero where it has none, and only counted where it has one.
    let mut planes = [[0u64; 2]; 3];
    let mut counts = [0u32; 3];
    let mut bytes = [0; BLOCK];
    let mut escapes = 0;
    for exponent in exponents {
        let code = codes[exponent];
        for (first, (planes, count)) in
            [0, 4, 8].into_iter().zip(planes.iter_mut().zip(&mut counts))
        {
            let in_tier = u64::from(code.saturating_sub(first).min(3));
            planes[0] |= (in_tier & 1) << *count;
            planes[1] |= (in_tier >> 1) << *count;
            *count += u32::from(code >= first);
        }
        bytes[escapes] = exponent as u8;
        escapes += usize::from(code == ESCAPE);
    }
    let rows = &mut out.parts[0];
    planes[0].iter().for_each(|plane| rows.extend_from_slice(&plane.to_le_bytes()[..len]));
    let mut bits = 0u128;
    let mut n = 0;
    for (planes, count) in planes.iter().zip(counts).skip(1) {
        for plane in planes {
            bits |= u128::from(*plane) << n;
            n += count;
            while n >= 8 {
                out.exponents.push(bits as u8);
                bits >>= 8;
                n -= 8;
            }
        }
    }
    if n > 0 {
        out.exponents.push(bits as u8);
    }
    out.exponents.extend_from_slice(&bytes[..escapes]);
}
