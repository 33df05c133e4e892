//! AVX2: planes of indexes are transposed to nibbles. Functions are always inlined, as those of
//! [`Simd`](crate::simd::Simd) are.

use std::arch::x86_64::*;

use super::indexes::{BYTES, Indexes, of_any, table, written};
use super::simd::{Bf11Simd, Tiers, planes_of};
use crate::Avx2;
use crate::scalar::BLOCK;

/// Runs intrinsics that the token allows.
macro_rules! allowed {
    ($($body:tt)*) => {
        // SAFETY: `self` proves that this CPU has the instructions. Pointers that are read are
        // valid by the contract of the trait's methods.
        unsafe { $($body)* }
    };
}

impl Bf11Simd for Avx2 {
    type Tiers = Tiers256;

    #[inline(always)]
    fn tiers(self, tiers: &Tiers) -> Self::Tiers {
        allowed!(lookup_table(tiers))
    }
    #[inline(always)]
    fn bf11_exponents(
        self,
        tiers: &Self::Tiers,
        planes: [u64; 2],
        patches: &mut &[u8],
    ) -> [u8; BLOCK] {
        allowed!(stored(exponents(*tiers, planes, patches)))
    }
    #[inline(always)]
    unsafe fn bf11(self, tiers: &Self::Tiers, p: *const u8, patches: &mut &[u8]) -> [Self::F; 4] {
        allowed! {
            let bytes = [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())];
            join(bytes, exponents(*tiers, planes_of(p), patches))
        }
    }
}

/// The table of exponents in both halves of a register.
pub(crate) type Tiers256 = __m256i;

/// # Safety
///
/// The CPU must have AVX2.
#[inline(always)]
unsafe fn lookup_table(tiers: &Tiers) -> Tiers256 {
    // SAFETY: by this function's contract.
    unsafe { halves(&table(tiers)) }
}

/// The exponents of a block in byte lanes.
///
/// # Safety
///
/// The CPU must have AVX2, BMI1, BMI2 and POPCNT.
#[inline(always)]
pub(in crate::encodings) unsafe fn exponents(
    table: Tiers256,
    planes: [u64; 2],
    patches: &mut &[u8],
) -> [__m256i; 2] {
    // SAFETY: by this function's contract.
    unsafe {
        let Some(found) = Indexes::new(planes, patches) else {
            let (exponents, rest) = others(table, planes, patches);
            *patches = rest;
            return exponents;
        };
        let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(found.bytes as i32), halves(&BYTES));
        looked_up(_mm256_or_si256(table, bytes), found.planes)
    }
}

/// [`exponents`] of any block. Everything is passed by value, so that nothing of most blocks has to be
/// in memory.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[cold]
#[inline(never)]
fn others(table: Tiers256, planes: [u64; 2], patches: &[u8]) -> ([__m256i; 2], &[u8]) {
    // SAFETY: this function has the features; 32 of 64 bytes each.
    unsafe {
        let (indexes, lanes, at) = of_any(planes, patches);
        let mut exponents = stored(looked_up(table, indexes));
        let rest = written(&mut exponents, lanes, patches, at);
        let p: *const __m256i = exponents.as_ptr().cast();
        ([_mm256_loadu_si256(p), _mm256_loadu_si256(p.add(1))], rest)
    }
}

/// Entries of the table by the indexes of 64 bytes.
#[inline(always)]
unsafe fn looked_up(table: __m256i, planes: [u64; 4]) -> [__m256i; 2] {
    const ORDER: [u8; 16] = [0, 8, 2, 10, 1, 9, 3, 11, 4, 12, 6, 14, 5, 13, 7, 15];
    // SAFETY: by the contract of the callers.
    unsafe {
        let low = _mm_set_epi64x(planes[1] as i64, planes[0] as i64);
        let high = _mm_set_epi64x(planes[3] as i64, planes[2] as i64);
        // The even words of all planes, and the odd ones: the 16 lanes that each is for will be the
        // first and third quarter of the 64, and the second and fourth.
        let even = _mm_blend_epi16::<0xaa>(low, _mm_slli_epi32::<16>(high));
        let odd = _mm_blend_epi16::<0xaa>(_mm_srli_epi32::<16>(low), high);
        // In each 32 bits a byte of every plane: bit `8p + l` is that of plane `p` in lane `l`.
        let bits = _mm256_shuffle_epi8(_mm256_set_m128i(odd, even), halves(&ORDER));
        // Exchanges bits 1 and 4 of these places, then bits 0 and 3. What was at `8p + l` is in
        // nibble `2·(l mod 4) + l div 4`, at `p`.
        let moved = _mm256_xor_si256(bits, _mm256_srli_epi32::<14>(bits));
        let moved = _mm256_and_si256(moved, _mm256_set1_epi32(0x0000_cccc));
        let bits = _mm256_xor_si256(bits, _mm256_xor_si256(moved, _mm256_slli_epi32::<14>(moved)));
        let moved = _mm256_xor_si256(bits, _mm256_srli_epi32::<7>(bits));
        let moved = _mm256_and_si256(moved, _mm256_set1_epi32(0x00aa_00aa));
        let bits = _mm256_xor_si256(bits, _mm256_xor_si256(moved, _mm256_slli_epi32::<7>(moved)));
        let fifteen = _mm256_set1_epi8(15);
        let first = _mm256_shuffle_epi8(table, _mm256_and_si256(bits, fifteen));
        let second = _mm256_and_si256(_mm256_srli_epi16::<4>(bits), fifteen);
        let second = _mm256_shuffle_epi8(table, second);
        [_mm256_unpacklo_epi32(first, second), _mm256_unpackhi_epi32(first, second)]
    }
}

#[inline(always)]
unsafe fn halves(bytes: &[u8; 16]) -> __m256i {
    // SAFETY: 16 bytes; and by the contract of the callers.
    unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(bytes.as_ptr().cast())) }
}

/// # Safety
///
/// The CPU must have AVX2.
#[inline(always)]
unsafe fn stored(exponents: [__m256i; 2]) -> [u8; BLOCK] {
    let mut bytes = [0; BLOCK];
    let to: *mut __m256i = bytes.as_mut_ptr().cast();
    // SAFETY: 32 of 64 bytes each; and by this function's contract.
    unsafe {
        _mm256_storeu_si256(to, exponents[0]);
        _mm256_storeu_si256(to.add(1), exponents[1]);
    }
    bytes
}

/// Unites a block's signs and mantissas with its exponents.
///
/// # Safety
///
/// The CPU must have AVX2.
#[inline(always)]
pub(in crate::encodings) unsafe fn join(
    bytes: [__m256i; 2],
    exponents: [__m256i; 2],
) -> [[__m256; 2]; 4] {
    // SAFETY: by this function's contract.
    unsafe {
        let first = join_half(bytes[0], exponents[0]);
        let second = join_half(bytes[1], exponents[1]);
        [[first[0], second[0]], [first[1], second[1]], [first[2], second[2]], [first[3], second[3]]]
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
        let front = _mm256_unpacklo_epi8(low, high);
        let back = _mm256_unpackhi_epi8(low, high);
        [
            _mm256_castsi256_ps(_mm256_slli_epi32(front, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(front, upper)),
            _mm256_castsi256_ps(_mm256_slli_epi32(back, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(back, upper)),
        ]
    }
}
