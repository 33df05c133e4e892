//! Planes of indexes of exponents, made by depositing bits in the places of escapes.

use std::arch::x86_64::*;

use super::reference::Escapes;
use super::simd::Tiers;
use crate::scalar::BLOCK;

/// The exponent of each index: tiers at 0, 4 and 12. Bytes have 15, 11 and 7.
pub(super) fn table(tiers: &Tiers) -> [u8; 16] {
    let mut table = [0; 16];
    for (to, tier) in [0, 4, 12].into_iter().zip(tiers.as_chunks::<3>().0) {
        table[to..to + 3].copy_from_slice(tier);
    }
    table
}

/// Places of the first, second and third byte of a register in the table; elsewhere zeros.
pub(super) const BYTES: [u8; 16] = {
    let mut places = [0x80; 16];
    places[15] = 0;
    places[11] = 1;
    places[7] = 2;
    places
};

/// Bytes that are read from the start of patches.
const READ: usize = 32;

/// Indexes of a block.
pub(super) struct Indexes {
    /// Bits of the indexes, from the lowest up.
    pub(super) planes: [u64; 4],
    /// Three exponents of bytes.
    pub(super) bytes: u32,
}

impl Indexes {
    /// The indexes of a block, if they can be found without another branch; all but one block in
    /// some hundreds. Advances the patches.
    ///
    /// # Safety
    ///
    /// The CPU must have BMI1, BMI2 and POPCNT.
    #[inline(always)]
    pub(super) unsafe fn new(planes: [u64; 2], patches: &mut &[u8]) -> Option<Indexes> {
        // A copy, because patches whose address is taken would be in memory.
        let from = *patches;
        let enough = from.len() >= READ;
        let p = if enough { from.as_ptr() } else { [0xff; READ].as_ptr() };
        let escapes = planes[0] & planes[1];
        let n = escapes.count_ones();
        // SAFETY: 8 of 32 bytes from the start, and from the 16th or one before; and by this
        // function's contract.
        unsafe {
            let bits = u64::from_le(p.cast::<u64>().read_unaligned());
            let second = [_pdep_u64(bits, escapes), _pdep_u64(bits.wrapping_shr(n), escapes)];
            let both = second[0] & second[1];
            let m = both.count_ones();
            let bits = u64::from_le(p.add(n as usize / 4).cast::<u64>().read_unaligned());
            let bits = bits >> (2 * n % 8);
            let third = [_pdep_u64(bits, both), _pdep_u64(bits.wrapping_shr(m), both)];
            let bytes = third[0] & third[1];
            let k = bytes.count_ones();
            // Bits beyond the two words, or more bytes than the table has room for.
            if n > 32 || m > 28 || k > 3 || !enough {
                return None;
            }
            let used = (n + m).div_ceil(4) as usize;
            // `used` is at most 15 and `k` at most 3, of 32 bytes and more.
            *patches = from.get_unchecked(used + k as usize..);
            // The second byte loses bit 2 of its index, the third bit 3.
            let behind = [_blsr_u64(bytes), _blsr_u64(_blsr_u64(bytes))];
            let mut planes = merged(planes, [escapes, both], second, third);
            planes[2] ^= behind[0] ^ behind[1];
            planes[3] ^= behind[1];
            let bytes = u32::from_le(p.add(used).cast::<u32>().read_unaligned());
            Some(Indexes { planes, bytes })
        }
    }
}

/// Planes of the indexes of any block, the lanes whose exponents are bytes, and where these begin in
/// the patches.
///
/// # Safety
///
/// The CPU must have BMI2 and POPCNT.
#[inline(always)]
pub(super) unsafe fn of_any(planes: [u64; 2], patches: &[u8]) -> ([u64; 4], u64, usize) {
    let codes = Escapes::new(planes, patches);
    let escapes = planes[0] & planes[1];
    // SAFETY: by this function's contract.
    unsafe {
        let second = [_pdep_u64(codes.second[0], escapes), _pdep_u64(codes.second[1], escapes)];
        let both = second[0] & second[1];
        let third = [_pdep_u64(codes.third[0], both), _pdep_u64(codes.third[1], both)];
        let planes = merged(planes, [escapes, both], second, third);
        (planes, third[0] & third[1], codes.bits_len())
    }
}

/// Exponents of the lanes whose bytes begin at `at`, written over others, and the patches behind them.
#[inline(always)]
pub(super) fn written<'a>(
    exponents: &mut [u8; BLOCK],
    mut lanes: u64,
    patches: &'a [u8],
    mut at: usize,
) -> &'a [u8] {
    while lanes != 0 {
        exponents[lanes.trailing_zeros() as usize % BLOCK] =
            patches.get(at).copied().unwrap_or(255);
        at += 1;
        lanes &= lanes - 1;
    }
    &patches[at.min(patches.len())..]
}

/// The two lower bits of an index are the code in the last tier of a lane, the others count its tiers.
#[inline(always)]
fn merged(
    planes: [u64; 2],
    [escapes, both]: [u64; 2],
    second: [u64; 2],
    third: [u64; 2],
) -> [u64; 4] {
    let above = escapes ^ both;
    let low = planes[0] ^ above ^ second[0] ^ third[0];
    let high = planes[1] ^ above ^ second[1] ^ third[1];
    [low, high, escapes, both]
}
