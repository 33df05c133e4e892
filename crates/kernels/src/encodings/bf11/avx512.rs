//! AVX-512: planes are masks. Functions are always inlined, as those of [`Simd`](crate::simd::Simd)
//! are.

use std::arch::x86_64::*;

use super::indexes::{BYTES, Indexes, of_any, table, written};
use super::simd::{Bf11Simd, Tiers, planes_of};
use crate::Avx512;
use crate::scalar::BLOCK;

/// Runs intrinsics that the token allows.
macro_rules! allowed {
    ($($body:tt)*) => {
        // SAFETY: `self` proves that this CPU has the instructions. Pointers that are read are
        // valid by the contract of the trait's methods.
        unsafe { $($body)* }
    };
}

impl Bf11Simd for Avx512 {
    type Tiers = Tiers512;

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
            let exponents = exponents(*tiers, planes_of(p), patches);
            join(_mm512_loadu_epi8(p.cast()), exponents)
        }
    }
}

/// The table of exponents in each quarter of a register.
pub(crate) type Tiers512 = __m512i;

/// # Safety
///
/// The CPU must have AVX-512 F.
#[inline(always)]
unsafe fn lookup_table(tiers: &Tiers) -> Tiers512 {
    // SAFETY: by this function's contract.
    unsafe { quarters(&table(tiers)) }
}

/// The exponents of a block in byte lanes.
///
/// # Safety
///
/// The CPU must have AVX-512 F and BW, BMI1, BMI2 and POPCNT.
#[inline(always)]
pub(in crate::encodings) unsafe fn exponents(
    table: Tiers512,
    planes: [u64; 2],
    patches: &mut &[u8],
) -> __m512i {
    // SAFETY: by this function's contract.
    unsafe {
        let Some(found) = Indexes::new(planes, patches) else {
            let (exponents, rest) = others(table, planes, patches);
            *patches = rest;
            return exponents;
        };
        let bytes = _mm512_shuffle_epi8(_mm512_set1_epi32(found.bytes as i32), quarters(&BYTES));
        looked_up(_mm512_or_si512(table, bytes), found.planes)
    }
}

/// [`exponents`] of any block. Everything is passed by value, so that nothing of most blocks has to be
/// in memory.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[cold]
#[inline(never)]
fn others(table: Tiers512, planes: [u64; 2], patches: &[u8]) -> (__m512i, &[u8]) {
    // SAFETY: this function has the features; 64 bytes.
    unsafe {
        let (indexes, lanes, at) = of_any(planes, patches);
        let mut exponents = stored(looked_up(table, indexes));
        let rest = written(&mut exponents, lanes, patches, at);
        (_mm512_loadu_si512(exponents.as_ptr().cast()), rest)
    }
}

/// Entries of the table by the indexes of 64 bytes.
#[inline(always)]
unsafe fn looked_up(table: __m512i, planes: [u64; 4]) -> __m512i {
    // SAFETY: by the contract of the callers.
    unsafe {
        let index = _mm512_maskz_mov_epi8(planes[0], _mm512_set1_epi8(1));
        let index = _mm512_mask_add_epi8(index, planes[1], index, _mm512_set1_epi8(2));
        let index = _mm512_mask_add_epi8(index, planes[2], index, _mm512_set1_epi8(4));
        let index = _mm512_mask_add_epi8(index, planes[3], index, _mm512_set1_epi8(8));
        _mm512_shuffle_epi8(table, index)
    }
}

#[inline(always)]
unsafe fn quarters(bytes: &[u8; 16]) -> __m512i {
    // SAFETY: 16 bytes; and by the contract of the callers.
    unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(bytes.as_ptr().cast())) }
}

/// # Safety
///
/// The CPU must have AVX-512 F.
#[inline(always)]
unsafe fn stored(exponents: __m512i) -> [u8; BLOCK] {
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
pub(in crate::encodings) unsafe fn join(bytes: __m512i, exponents: __m512i) -> [__m512; 4] {
    // SAFETY: by this function's contract.
    unsafe {
        let sign = _mm512_set1_epi8(-128);
        let upper = _mm512_set1_epi32(0xffff_0000_u32 as i32);
        // Bit 7 from one, the others from another. A shift by words moves bits of the neighbour to
        // those that are not taken.
        let shifted = _mm512_srli_epi16::<1>(exponents);
        let high = _mm512_ternarylogic_epi32::<0xca>(sign, bytes, shifted);
        let shifted = _mm512_slli_epi16::<7>(exponents);
        let low = _mm512_ternarylogic_epi32::<0xca>(sign, shifted, bytes);
        let front = _mm512_unpacklo_epi8(low, high);
        let back = _mm512_unpackhi_epi8(low, high);
        [
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(front)),
            _mm512_castsi512_ps(_mm512_and_si512(front, upper)),
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(back)),
            _mm512_castsi512_ps(_mm512_and_si512(back, upper)),
        ]
    }
}
