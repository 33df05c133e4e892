//! bf11 in scalars, and what fp7 and nested share with it: exponents in tiers.

use super::BF11_BLOCK;
use crate::Matrix;
use crate::encodings::scan::{any_row, bytes};
use crate::scalar::{BLOCK, paired};

/// Decodes one block of a bf11 row to bf16 bits.
pub(in crate::encodings) fn bits(
    m: &Matrix,
    row: usize,
    block: usize,
    patches: &mut &[u8],
    out: &mut [u16],
) {
    let n = out.len();
    let bytes = &m.row_bytes(0, row)[block * BF11_BLOCK..];
    let planes = &bytes[n..];
    let code = |at: usize| pair(planes, at, 8 * n.div_ceil(8) + at);
    let mut exponents = [0; BLOCK];
    decode_exponents(&m.tiers(), code, patches, &mut exponents[..n]);
    for (c, out) in out.iter_mut().enumerate() {
        let at = if n == BLOCK { paired(c) } else { c };
        let byte = u16::from(bytes[at]);
        *out = (byte & 0x80) << 8 | u16::from(exponents[at]) << 7 | byte & 0x7f;
    }
}

/// The exponents of a block whose codes in the first tier are given. Advances the patches past those
/// used; behind their end all bits are ones.
pub(in crate::encodings) fn decode_exponents(
    tiers: &[u8; 9],
    first: impl Fn(usize) -> usize,
    patches: &mut &[u8],
    out: &mut [u8],
) {
    let n = (0..out.len()).filter(|&i| first(i) == 3).count();
    let second = |i| pair(patches, i, n + i);
    let m = (0..n).filter(|&i| second(i) == 3).count();
    let third = |i| pair(patches, 2 * n + i, 2 * n + m + i);
    let mut i = 0;
    let mut j = 0;
    let mut used = (2 * n + 2 * m).div_ceil(8);
    for (at, out) in out.iter_mut().enumerate() {
        let mut tier = 0;
        let mut code = first(at);
        if code == 3 {
            (tier, code) = (1, second(i));
            i += 1;
        }
        if (tier, code) == (1, 3) {
            (tier, code) = (2, third(j));
            j += 1;
        }
        *out = if (tier, code) == (2, 3) {
            used += 1;
            patches.get(used - 1).copied().unwrap_or(255)
        } else {
            tiers[3 * tier + code]
        };
    }
    *patches = &patches[used.min(patches.len())..];
}

/// The planes of an encoding with exponents in tiers.
pub(in crate::encodings) trait Planes {
    /// Those of a block of a row, which has `n` columns.
    fn of(m: &Matrix, row: usize, block: usize, n: usize) -> [u64; 2];
}

/// [`Planes`] of bf11.
pub(in crate::encodings) struct Bf11Planes;

impl Planes for Bf11Planes {
    #[inline(always)]
    fn of(m: &Matrix, row: usize, block: usize, n: usize) -> [u64; 2] {
        planes(&m.row_bytes(0, row)[block * BF11_BLOCK + n..], n)
    }
}

/// Length of the patches that a row needs, and whether any of its bytes is 255.
pub(in crate::encodings) fn patches_of<P: Planes>(
    m: &Matrix,
    row: usize,
    patches: &[u8],
) -> (usize, bool) {
    #[cfg(target_arch = "x86_64")]
    if let Some(token) = crate::Avx2::detect() {
        // SAFETY: the token exists only on a CPU that has these features.
        return unsafe { with_counts::<P>(token, m, row, patches) };
    }
    walked::<P>(m, row, patches)
}

/// [`walked`] with instructions that count bits: the first prompt walks over the whole model.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "bmi1,bmi2,popcnt")]
fn with_counts<P: Planes>(_: crate::Avx2, m: &Matrix, row: usize, patches: &[u8]) -> (usize, bool) {
    walked::<P>(m, row, patches)
}

/// [`patches_of`] for any CPU.
#[inline(always)]
fn walked<P: Planes>(m: &Matrix, row: usize, patches: &[u8]) -> (usize, bool) {
    let mut used = 0;
    let mut any = false;
    for block in 0..m.cols().div_ceil(BLOCK) {
        let n = BLOCK.min(m.cols() - block * BLOCK);
        let tiers = Escapes::new(P::of(m, row, block, n), &patches[used.min(patches.len())..]);
        let bytes = used + tiers.bits_len()..used + tiers.len();
        any |= bytes.clone().any(|at| patches.get(at).is_none_or(|byte| *byte == 255));
        used = bytes.end;
    }
    (used, any)
}

/// True if a weight may be NaN or infinite: by an exponent of the table, or by an escape that has this exponent
/// or lacks its patch.
pub(in crate::encodings) fn may_be_special(m: &Matrix) -> bool {
    let escapes = |row| patches_of::<Bf11Planes>(m, row, m.patches(m.encoding(), row)).1;
    bytes(&m.part(1)[..9], 0xff) || any_row(m, escapes)
}

/// The two planes of a block of `n` columns.
#[inline(always)]
pub(in crate::encodings) fn planes(bytes: &[u8], n: usize) -> [u64; 2] {
    let len = n.div_ceil(8);
    let kept = u64::MAX >> (BLOCK - n);
    [&bytes[..len], &bytes[len..2 * len]].map(|plane| {
        let mut word = [0; 8];
        word[..len].copy_from_slice(plane);
        u64::from_le_bytes(word) & kept
    })
}

/// Codes in the second and third tier of a block, each in two planes without gaps.
pub(super) struct Escapes {
    pub(super) second: [u64; 2],
    pub(super) third: [u64; 2],
    counts: [usize; 3],
}

impl Escapes {
    /// The codes of a block with these planes, at the start of `patches`.
    #[inline(always)]
    pub(super) fn new(planes: [u64; 2], patches: &[u8]) -> Escapes {
        /// Maximum bytes of the bits of a block, and what is read behind them.
        const MOST: usize = BLOCK / 2 + 16;
        let mut padded = [0xff; MOST];
        let bits = patches.first_chunk().unwrap_or_else(|| {
            padded[..patches.len()].copy_from_slice(patches);
            &padded
        });
        let read = |at: usize, n: usize| {
            let word: &[u8; 16] = bits[at / 8..].first_chunk().expect("16 bytes");
            let kept = u64::MAX.checked_shr(BLOCK as u32 - n as u32).unwrap_or(0);
            (u128::from_le_bytes(*word) >> (at % 8)) as u64 & kept
        };
        let count = |[low, high]: [u64; 2]| (low & high).count_ones() as usize;
        let n = count(planes);
        let second = [read(0, n), read(n, n)];
        let m = count(second);
        let third = [read(2 * n, m), read(2 * n + m, m)];
        Escapes { second, third, counts: [n, m, count(third)] }
    }

    /// Length of the bits of both tiers.
    #[inline(always)]
    pub(super) fn bits_len(&self) -> usize {
        (self.counts[0] + self.counts[1]).div_ceil(4)
    }

    /// The same with the bytes behind them.
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.bits_len() + self.counts[2]
    }
}

/// The number of two bits whose places are given; beyond the end they are ones.
pub(in crate::encodings) fn pair(bytes: &[u8], low: usize, high: usize) -> usize {
    let bit = |at: usize| bytes.get(at / 8).map_or(1, |byte| usize::from(byte >> (at % 8) & 1));
    bit(low) | bit(high) << 1
}
