//! Decoding of bf11: exponents from planes and patches, then their union with signs and mantissas.

use super::{Simd, kept};
use crate::reference::{BLOCK, Escapes, planes};

/// Exponents of the three tiers.
pub(crate) type Tiers = [u8; 9];

/// [`Simd::bf11_exponents`] in plain Rust.
#[inline(always)]
pub(super) fn exponents(tiers: &Tiers, planes: [u64; 2], patches: &mut &[u8]) -> [u8; BLOCK] {
    let mut exponents = [0; BLOCK];
    for (lane, exponent) in exponents.iter_mut().enumerate() {
        // What is written for an escape is replaced.
        *exponent = tiers[code(planes, lane)];
    }
    patch(tiers, planes, &mut exponents, patches);
    exponents
}

/// Writes the exponents of escapes and advances the patches.
#[inline(always)]
pub(super) fn patch(
    tiers: &Tiers,
    planes: [u64; 2],
    exponents: &mut [u8; BLOCK],
    patches: &mut &[u8],
) {
    let escapes = Escapes::new(planes, patches);
    // Places of the escapes from a tier. Each is written, and counted only if it is one: which they
    // are cannot be foreseen, so that branches would cost more than the work.
    let (mut second, mut third) = ([0u8; BLOCK], [0u8; BLOCK]);
    let (mut n, mut m) = (0, 0);
    let mut left = planes[0] & planes[1];
    while left != 0 {
        let place = left.trailing_zeros() as u8;
        left &= left - 1;
        let code = code(escapes.second, n);
        exponents[usize::from(place) % BLOCK] = tiers[3 + code];
        second[m % BLOCK] = place;
        m += usize::from(code == 3);
        n += 1;
    }
    let mut k = 0;
    for (i, place) in second[..m].iter().enumerate() {
        let code = code(escapes.third, i);
        exponents[usize::from(*place) % BLOCK] = tiers[(6 + code).min(8)];
        third[k % BLOCK] = *place;
        k += usize::from(code == 3);
    }
    let bytes = escapes.bits_len();
    for (place, at) in third[..k].iter().zip(bytes..) {
        exponents[usize::from(*place) % BLOCK] = patches.get(at).copied().unwrap_or(255);
    }
    *patches = &patches[escapes.len().min(patches.len())..];
}

#[inline(always)]
fn code(planes: [u64; 2], at: usize) -> usize {
    (planes[0] >> at & 1 | (planes[1] >> at & 1) << 1) as usize
}

/// Decodes the `n` columns after the last whole block of a row and pads them with zeros. They are
/// stored in order: `n` bytes of signs and mantissas, then two planes.
#[inline(always)]
pub(crate) fn bf11_tail<S: Simd>(
    s: S,
    tiers: &S::Tiers,
    tail: &[u8],
    n: usize,
    patches: &mut &[u8],
) -> [S::F; 4] {
    let exponents = s.bf11_exponents(tiers, planes(&tail[n..], n), patches);
    let mut bytes = [0; BLOCK];
    bytes[..n].copy_from_slice(&tail[..n]);
    let kept = kept(n);
    let rest = s.splat_u(0x807f_0000);
    let mut weights = [s.splat(0.0); 4];
    for (k, weights) in weights.iter_mut().enumerate() {
        // SAFETY: 16 of 64 bytes each, and 16 of 64 numbers.
        let (byte, exponent, kept) = unsafe {
            let byte = s.load_u8(bytes.as_ptr().add(16 * k));
            let exponent = s.load_u8(exponents.as_ptr().add(16 * k));
            (byte, exponent, s.load_u32(kept.as_ptr().add(16 * k).cast()))
        };
        let byte = s.and(s.sra::<8>(s.shl::<24>(byte)), rest);
        *weights = s.float(s.and(s.or(byte, s.shl::<23>(exponent)), kept));
    }
    weights
}

/// AVX2: the first tier in byte lanes, escapes one by one. Functions are always inlined, as those of
/// [`Simd`] are, and not compiled for themselves.
#[cfg(target_arch = "x86_64")]
pub(super) mod avx2 {
    use std::arch::x86_64::*;

    use super::{BLOCK, Tiers, patch};

    /// [`Simd::bf11_exponents`](super::Simd::bf11_exponents).
    ///
    /// # Safety
    ///
    /// The CPU must have AVX2.
    #[inline(always)]
    pub(in crate::simd) unsafe fn exponents(
        tiers: &Tiers,
        planes: [u64; 2],
        patches: &mut &[u8],
    ) -> [u8; BLOCK] {
        let mut exponents = [0; BLOCK];
        let to: *mut __m256i = exponents.as_mut_ptr().cast();
        // SAFETY: 32 of 64 bytes each; and by this function's contract.
        unsafe {
            let low = [planes[0] as u32, planes[1] as u32];
            let high = [(planes[0] >> 32) as u32, (planes[1] >> 32) as u32];
            _mm256_storeu_si256(to, first_tier(tiers, low));
            _mm256_storeu_si256(to.add(1), first_tier(tiers, high));
        }
        patch(tiers, planes, &mut exponents, patches);
        exponents
    }

    /// Exponents by the codes of 32 bytes.
    #[inline(always)]
    unsafe fn first_tier(tiers: &Tiers, planes: [u32; 2]) -> __m256i {
        // SAFETY: by the contract of the caller.
        unsafe {
            let found = _mm256_set1_epi8(tiers[0] as i8);
            let second = _mm256_set1_epi8(tiers[1] as i8);
            let third = _mm256_set1_epi8(tiers[2] as i8);
            let found = _mm256_blendv_epi8(found, second, spread(planes[0]));
            _mm256_blendv_epi8(found, third, spread(planes[1]))
        }
    }

    /// Spreads bits over bytes.
    #[inline(always)]
    unsafe fn spread(bits: u32) -> __m256i {
        const OWN: [i64; 4] = [0, 1, 2, 3];
        // SAFETY: by the contract of the caller.
        unsafe {
            let own = |i: usize| OWN[i] * 0x0101_0101_0101_0101;
            let own = _mm256_set_epi64x(own(3), own(2), own(1), own(0));
            let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
            let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(bits as i32), own);
            _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit)
        }
    }

    /// Unites a block's signs and mantissas with its exponents.
    ///
    /// # Safety
    ///
    /// The CPU must have AVX2. 64 bytes at `p` must be readable.
    #[inline(always)]
    pub(in crate::simd) unsafe fn join(p: *const u8, exponents: &[u8; BLOCK]) -> [[__m256; 2]; 4] {
        let (p, exponents): (*const __m256i, *const __m256i) =
            (p.cast(), exponents.as_ptr().cast());
        // SAFETY: by this function's contract; 32 of 64 bytes each.
        unsafe {
            let first = join_half(_mm256_loadu_si256(p), _mm256_loadu_si256(exponents));
            let second =
                join_half(_mm256_loadu_si256(p.add(1)), _mm256_loadu_si256(exponents.add(1)));
            [
                [first[0], second[0]],
                [first[1], second[1]],
                [first[2], second[2]],
                [first[3], second[3]],
            ]
        }
    }

    #[inline(always)]
    unsafe fn join_half(bytes: __m256i, exponents: __m256i) -> [__m256; 4] {
        // SAFETY: by the contract of the caller.
        unsafe {
            let sign = _mm256_set1_epi8(-128);
            let upper = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            // Bit 7 from one, the others from another. A shift by words moves bits of the neighbour
            // to those that are not taken.
            let high = _mm256_or_si256(
                _mm256_and_si256(sign, bytes),
                _mm256_andnot_si256(sign, _mm256_srli_epi16(exponents, 1)),
            );
            let low = _mm256_or_si256(
                _mm256_and_si256(sign, _mm256_slli_epi16(exponents, 7)),
                _mm256_andnot_si256(sign, bytes),
            );
            let (front, back) = (_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high));
            [
                _mm256_castsi256_ps(_mm256_slli_epi32(front, 16)),
                _mm256_castsi256_ps(_mm256_and_si256(front, upper)),
                _mm256_castsi256_ps(_mm256_slli_epi32(back, 16)),
                _mm256_castsi256_ps(_mm256_and_si256(back, upper)),
            ]
        }
    }
}

/// AVX-512: planes are masks, and the codes of escapes become masks when their bits are deposited in
/// the places of escapes. Functions are always inlined, as those of [`Simd`] are.
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512 {
    use std::arch::x86_64::*;

    use super::{BLOCK, Tiers};

    /// Exponents of the tiers, also in all lanes.
    #[derive(Clone, Copy)]
    pub(crate) struct Tiers512 {
        tiers: Tiers,
        lanes: [__m512i; 9],
    }

    /// # Safety
    ///
    /// The CPU must have AVX-512 F and BW.
    #[inline(always)]
    pub(in crate::simd) unsafe fn tiers(tiers: &Tiers) -> Tiers512 {
        // SAFETY: by this function's contract.
        unsafe {
            let mut lanes = [_mm512_setzero_si512(); 9];
            for i in 0..9 {
                lanes[i] = _mm512_set1_epi8(tiers[i] as i8);
            }
            Tiers512 { tiers: *tiers, lanes }
        }
    }

    /// The exponents of a block in byte lanes.
    ///
    /// # Safety
    ///
    /// The CPU must have AVX-512 F and BW, BMI1, BMI2 and POPCNT.
    #[inline(always)]
    pub(in crate::simd) unsafe fn exponents(
        tiers: &Tiers512,
        planes: [u64; 2],
        patches: &mut &[u8],
    ) -> __m512i {
        let escapes = planes[0] & planes[1];
        let n = escapes.count_ones();
        // A copy, because patches whose address is taken would be in memory.
        let from = *patches;
        let enough = from.len() >= 16;
        let p = if enough { from.as_ptr() } else { [0xff; 16].as_ptr() };
        // SAFETY: 8 of 16 bytes; and by this function's contract.
        unsafe {
            let bits = u64::from_le(p.cast::<u64>().read_unaligned());
            let second = [_pdep_u64(bits, escapes), _pdep_u64(bits.wrapping_shr(n), escapes)];
            let both = second[0] & second[1];
            let m = both.count_ones();
            let codes = bits.wrapping_shr(2 * n);
            let third = [_pdep_u64(codes, both), _pdep_u64(codes.wrapping_shr(m), both)];
            let bytes = third[0] & third[1];
            let k = bytes.count_ones();
            // Bits beyond a word, more than two bytes, or the end: one block in a hundred.
            if n + m > 32 || k > 2 || !enough {
                let (exponents, rest) = others(tiers.tiers, planes, from);
                *patches = rest;
                return exponents;
            }
            let used = (n + m).div_ceil(4) as usize;
            // `used` is at most 8 and `k` at most 2, of 16 bytes and more.
            *patches = from.get_unchecked(used + k as usize..);
            let pair = u16::from_le(p.add(used).cast::<u16>().read_unaligned());
            let lowest = bytes & bytes.wrapping_neg();
            let t = &tiers.lanes;
            let e = _mm512_mask_mov_epi8(t[0], planes[0], t[1]);
            let e = _mm512_mask_mov_epi8(e, planes[1], t[2]);
            let e = _mm512_mask_mov_epi8(e, escapes, t[3]);
            let e = _mm512_mask_mov_epi8(e, second[0], t[4]);
            let e = _mm512_mask_mov_epi8(e, second[1], t[5]);
            let e = _mm512_mask_mov_epi8(e, both, t[6]);
            let e = _mm512_mask_mov_epi8(e, third[0], t[7]);
            let e = _mm512_mask_mov_epi8(e, third[1], t[8]);
            let e = _mm512_mask_set1_epi8(e, lowest, pair as i8);
            _mm512_mask_set1_epi8(e, bytes ^ lowest, (pair >> 8) as i8)
        }
    }

    /// [`exponents`] of any block. Everything is passed by value, so that nothing of most blocks has
    /// to be in memory.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi1,bmi2,popcnt")]
    #[cold]
    #[inline(never)]
    fn others(tiers: Tiers, planes: [u64; 2], mut patches: &[u8]) -> (__m512i, &[u8]) {
        let exponents = super::exponents(&tiers, planes, &mut patches);
        // SAFETY: 64 bytes.
        (unsafe { _mm512_loadu_si512(exponents.as_ptr().cast()) }, patches)
    }

    /// # Safety
    ///
    /// The CPU must have AVX-512 F.
    #[inline(always)]
    pub(in crate::simd) unsafe fn stored(exponents: __m512i) -> [u8; BLOCK] {
        let mut bytes = [0; BLOCK];
        // SAFETY: 64 bytes; and by this function's contract.
        unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), exponents) };
        bytes
    }

    /// Unites a block's signs and mantissas with its exponents.
    ///
    /// # Safety
    ///
    /// The CPU must have AVX-512 F and BW.
    #[inline(always)]
    pub(in crate::simd) unsafe fn join(bytes: __m512i, exponents: __m512i) -> [__m512; 4] {
        // SAFETY: by this function's contract.
        unsafe {
            let sign = _mm512_set1_epi8(-128);
            let upper = _mm512_set1_epi32(0xffff_0000_u32 as i32);
            // Bit 7 from one, the others from another. A shift by words moves bits of the neighbour
            // to those that are not taken.
            let shifted = _mm512_srli_epi16::<1>(exponents);
            let high = _mm512_ternarylogic_epi32::<0xca>(sign, bytes, shifted);
            let shifted = _mm512_slli_epi16::<7>(exponents);
            let low = _mm512_ternarylogic_epi32::<0xca>(sign, shifted, bytes);
            let (front, back) = (_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high));
            [
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(front)),
                _mm512_castsi512_ps(_mm512_and_si512(front, upper)),
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(back)),
                _mm512_castsi512_ps(_mm512_and_si512(back, upper)),
            ]
        }
    }
}
