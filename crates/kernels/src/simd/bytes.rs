//! Operations on 64 bytes: codes of fewer than eight bits are put together in bytes, a quarter as
//! many instructions as in lanes of 32 bits.

use crate::scalar::BLOCK;

/// Operations on 64 bytes. Halves are the first 32 and the last.
///
/// Every method is `#[inline(always)]`, and none of them, nor their callers, have closures: those are
/// compiled for the baseline CPU wherever the compiler does not inline them, and were, with a call
/// for every instruction. Q6_K then ran at a thirtieth of the speed of memory.
///
/// # Safety
///
/// Methods that take a pointer read the stated number of bytes, with any alignment.
pub(crate) trait Bytes: Copy {
    /// 64 × u8.
    type B: Copy;

    /// Reads 64 bytes.
    unsafe fn load_b(self, p: *const u8) -> Self::B;
    /// Reads 32 bytes for each half, shifted right. Bits above those of each byte are any of its
    /// neighbours'.
    unsafe fn load_b_shifted(self, p: *const u8, by: [u32; 2]) -> Self::B;
    /// Reads 16 bytes for each half: their low nibbles, then their high ones. Bits above those are any
    /// others.
    unsafe fn load_halved(self, first: *const u8, second: *const u8) -> Self::B;
    /// Reads 8 bytes for each quarter: their low nibbles, then their high ones. Bits above those are any
    /// others.
    #[inline(always)]
    unsafe fn load_eighths(self, p: *const u8) -> Self::B {
        let mut eights = [0; 8];
        for quarter in 0..4 {
            // SAFETY: by the contract of the trait.
            let read = u64::from_le(unsafe { p.cast::<u64>().add(quarter).read_unaligned() });
            eights[2 * quarter] = read;
            eights[2 * quarter + 1] = read >> 4;
        }
        self.of_eights(eights)
    }
    /// Eight bytes from each of these, the lowest first.
    fn of_eights(self, eights: [u64; 8]) -> Self::B;
    /// Shifts each two bytes right as a number of 16 bits.
    fn shr_b(self, a: Self::B, by: u32) -> Self::B;
    /// Shifts each two bytes left by four as a number of 16 bits.
    fn shl4_b(self, a: Self::B) -> Self::B;
    fn and_b(self, a: Self::B, mask: u8) -> Self::B;
    fn or_b(self, a: Self::B, b: Self::B) -> Self::B;
    /// Adds a number to all bytes, which wrap around.
    fn add_b(self, a: Self::B, value: u8) -> Self::B;
    /// Adds a number to the bytes whose bit is set.
    fn add_where(self, a: Self::B, bits: u64, value: u8) -> Self::B;
    /// Adds a power of two to the bytes for which `bits` has the bit that is tested in their half.
    fn add_tested(self, a: Self::B, bits: Self::B, tested: [u8; 2], value: u8) -> Self::B;
    /// Negates the bytes whose bit is set.
    fn negate_where(self, a: Self::B, bits: u64) -> Self::B;
}

impl Bytes for super::Portable {
    type B = [u8; BLOCK];

    #[inline(always)]
    unsafe fn load_b(self, p: *const u8) -> Self::B {
        // SAFETY: by the contract of the trait.
        unsafe { p.cast::<Self::B>().read_unaligned() }
    }
    #[inline(never)]
    unsafe fn load_b_shifted(self, p: *const u8, by: [u32; 2]) -> Self::B {
        // SAFETY: by the contract of the trait.
        let read = unsafe { p.cast::<[u8; 32]>().read_unaligned() };
        let mut both = [0; BLOCK];
        both[..32].copy_from_slice(&read);
        both[32..].copy_from_slice(&read);
        let [first, second] = by;
        let mut shifted = self.shr_b(both, first);
        shifted[32..].copy_from_slice(&self.shr_b(both, second)[32..]);
        shifted
    }
    #[inline(never)]
    unsafe fn load_halved(self, first: *const u8, second: *const u8) -> Self::B {
        let mut halved = [0; BLOCK];
        for (half, p) in [first, second].into_iter().enumerate() {
            // SAFETY: by the contract of the trait.
            let read = unsafe { p.cast::<[u8; 16]>().read_unaligned() };
            for i in 0..16 {
                halved[32 * half + i] = read[i] & 15;
                halved[32 * half + 16 + i] = read[i] >> 4;
            }
        }
        halved
    }
    #[inline(always)]
    fn of_eights(self, eights: [u64; 8]) -> Self::B {
        let mut bytes = [0; BLOCK];
        for (to, eight) in bytes.as_chunks_mut().0.iter_mut().zip(eights) {
            *to = eight.to_le_bytes();
        }
        bytes
    }
    #[inline(never)]
    fn shr_b(self, mut a: Self::B, by: u32) -> Self::B {
        for two in a.as_chunks_mut().0 {
            *two = (u16::from_le_bytes(*two) >> by).to_le_bytes();
        }
        a
    }
    #[inline(never)]
    fn shl4_b(self, mut a: Self::B) -> Self::B {
        for two in a.as_chunks_mut().0 {
            *two = (u16::from_le_bytes(*two) << 4).to_le_bytes();
        }
        a
    }
    #[inline(never)]
    fn and_b(self, a: Self::B, mask: u8) -> Self::B {
        a.map(|a| a & mask)
    }
    #[inline(never)]
    fn or_b(self, a: Self::B, b: Self::B) -> Self::B {
        std::array::from_fn(|i| a[i] | b[i])
    }
    #[inline(never)]
    fn add_b(self, a: Self::B, value: u8) -> Self::B {
        a.map(|a| a.wrapping_add(value))
    }
    #[inline(never)]
    fn add_where(self, a: Self::B, bits: u64, value: u8) -> Self::B {
        std::array::from_fn(|i| a[i].wrapping_add((bits >> i & 1) as u8 * value))
    }
    #[inline(never)]
    fn add_tested(self, a: Self::B, bits: Self::B, tested: [u8; 2], value: u8) -> Self::B {
        std::array::from_fn(|i| {
            let is_set = bits[i] & tested[i / 32] != 0;
            a[i].wrapping_add(u8::from(is_set) * value)
        })
    }
    #[inline(never)]
    fn negate_where(self, a: Self::B, bits: u64) -> Self::B {
        std::array::from_fn(|i| if bits >> i & 1 == 1 { a[i].wrapping_neg() } else { a[i] })
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Bytes;
    use crate::{Avx2, Avx512};

    /// Runs intrinsics that the token allows.
    macro_rules! allowed {
        ($($body:tt)*) => {
            // SAFETY: `self` proves that this CPU has the instructions. Pointers that are read are
            // valid by the contract of the trait's methods.
            unsafe { $($body)* }
        };
    }

    impl Bytes for Avx512 {
        type B = __m512i;

        #[inline(always)]
        unsafe fn load_b(self, p: *const u8) -> Self::B {
            allowed!(_mm512_loadu_epi8(p.cast()))
        }
        #[inline(always)]
        unsafe fn load_b_shifted(self, p: *const u8, by: [u32; 2]) -> Self::B {
            allowed! {
                let both = _mm512_broadcast_i64x4(_mm256_loadu_si256(p.cast()));
                let [first, second] = [i64::from(by[0]), i64::from(by[1])];
                let by = _mm512_set_epi64(
                    second, second, second, second, first, first, first, first,
                );
                _mm512_srlv_epi64(both, by)
            }
        }
        #[inline(always)]
        unsafe fn load_halved(self, first: *const u8, second: *const u8) -> Self::B {
            allowed! {
                let first = _mm512_broadcast_i32x4(_mm_loadu_si128(first.cast()));
                let second = _mm_loadu_si128(second.cast());
                let both = _mm512_mask_broadcast_i32x4(first, 0xff00, second);
                let by = _mm512_set_epi64(4, 4, 0, 0, 4, 4, 0, 0);
                _mm512_srlv_epi64(both, by)
            }
        }
        #[inline(always)]
        unsafe fn load_eighths(self, p: *const u8) -> Self::B {
            allowed! {
                let read = _mm512_castsi256_si512(_mm256_loadu_si256(p.cast()));
                let twice = _mm512_set_epi64(3, 3, 2, 2, 1, 1, 0, 0);
                let by = _mm512_set_epi64(4, 0, 4, 0, 4, 0, 4, 0);
                _mm512_srlv_epi64(_mm512_permutexvar_epi64(twice, read), by)
            }
        }
        #[inline(always)]
        fn of_eights(self, eights: [u64; 8]) -> Self::B {
            let [a, b, c, d, e, f, g, h] = eights;
            allowed! {
                _mm512_set_epi64(
                    h as i64, g as i64, f as i64, e as i64, d as i64, c as i64, b as i64, a as i64,
                )
            }
        }
        #[inline(always)]
        fn shr_b(self, a: Self::B, by: u32) -> Self::B {
            allowed!(_mm512_srl_epi16(a, _mm_cvtsi32_si128(by as i32)))
        }
        #[inline(always)]
        fn shl4_b(self, a: Self::B) -> Self::B {
            allowed!(_mm512_slli_epi16::<4>(a))
        }
        #[inline(always)]
        fn and_b(self, a: Self::B, mask: u8) -> Self::B {
            allowed!(_mm512_and_si512(a, _mm512_set1_epi8(mask as i8)))
        }
        #[inline(always)]
        fn or_b(self, a: Self::B, b: Self::B) -> Self::B {
            allowed!(_mm512_or_si512(a, b))
        }
        #[inline(always)]
        fn add_b(self, a: Self::B, value: u8) -> Self::B {
            allowed!(_mm512_add_epi8(a, _mm512_set1_epi8(value as i8)))
        }
        #[inline(always)]
        fn add_where(self, a: Self::B, bits: u64, value: u8) -> Self::B {
            allowed!(_mm512_mask_add_epi8(a, bits, a, _mm512_set1_epi8(value as i8)))
        }
        #[inline(always)]
        fn add_tested(self, a: Self::B, bits: Self::B, tested: [u8; 2], value: u8) -> Self::B {
            allowed! {
                let first = _mm512_castsi256_si512(_mm256_set1_epi8(tested[0] as i8));
                let second = _mm256_set1_epi8(tested[1] as i8);
                let tested = _mm512_inserti64x4::<1>(first, second);
                self.add_where(a, _mm512_test_epi8_mask(bits, tested), value)
            }
        }
        #[inline(always)]
        fn negate_where(self, a: Self::B, bits: u64) -> Self::B {
            allowed!(_mm512_mask_sub_epi8(a, bits, _mm512_setzero_si512(), a))
        }
    }

    /// All bits of the bytes whose bit is set.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn spread(bits: u32) -> __m256i {
        let own = _mm256_set_epi64x(
            0x0303_0303_0303_0303,
            0x0202_0202_0202_0202,
            0x0101_0101_0101_0101,
            0,
        );
        let of_byte = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(bits as i32), own);
        _mm256_cmpeq_epi8(_mm256_and_si256(bytes, of_byte), of_byte)
    }

    impl Bytes for Avx2 {
        type B = [__m256i; 2];

        #[inline(always)]
        unsafe fn load_b(self, p: *const u8) -> Self::B {
            allowed!([_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())])
        }
        #[inline(always)]
        unsafe fn load_b_shifted(self, p: *const u8, by: [u32; 2]) -> Self::B {
            allowed! {
                let read = _mm256_loadu_si256(p.cast());
                [
                    _mm256_srl_epi16(read, _mm_cvtsi32_si128(by[0] as i32)),
                    _mm256_srl_epi16(read, _mm_cvtsi32_si128(by[1] as i32)),
                ]
            }
        }
        #[inline(always)]
        unsafe fn load_halved(self, first: *const u8, second: *const u8) -> Self::B {
            allowed! {
                let by = _mm256_set_epi64x(4, 4, 0, 0);
                let first = _mm256_broadcastsi128_si256(_mm_loadu_si128(first.cast()));
                let second = _mm256_broadcastsi128_si256(_mm_loadu_si128(second.cast()));
                [_mm256_srlv_epi64(first, by), _mm256_srlv_epi64(second, by)]
            }
        }
        #[inline(always)]
        unsafe fn load_eighths(self, p: *const u8) -> Self::B {
            allowed! {
                let read = _mm256_loadu_si256(p.cast());
                let by = _mm256_set_epi64x(4, 0, 4, 0);
                [
                    _mm256_srlv_epi64(_mm256_permute4x64_epi64::<0b01_01_00_00>(read), by),
                    _mm256_srlv_epi64(_mm256_permute4x64_epi64::<0b11_11_10_10>(read), by),
                ]
            }
        }
        #[inline(always)]
        fn of_eights(self, eights: [u64; 8]) -> Self::B {
            let [a, b, c, d, e, f, g, h] = eights;
            allowed! {
                [
                    _mm256_set_epi64x(d as i64, c as i64, b as i64, a as i64),
                    _mm256_set_epi64x(h as i64, g as i64, f as i64, e as i64),
                ]
            }
        }
        #[inline(always)]
        fn shr_b(self, a: Self::B, by: u32) -> Self::B {
            allowed! {
                let by = _mm_cvtsi32_si128(by as i32);
                [_mm256_srl_epi16(a[0], by), _mm256_srl_epi16(a[1], by)]
            }
        }
        #[inline(always)]
        fn shl4_b(self, a: Self::B) -> Self::B {
            allowed!([_mm256_slli_epi16::<4>(a[0]), _mm256_slli_epi16::<4>(a[1])])
        }
        #[inline(always)]
        fn and_b(self, a: Self::B, mask: u8) -> Self::B {
            allowed! {
                let mask = _mm256_set1_epi8(mask as i8);
                [_mm256_and_si256(a[0], mask), _mm256_and_si256(a[1], mask)]
            }
        }
        #[inline(always)]
        fn or_b(self, a: Self::B, b: Self::B) -> Self::B {
            allowed!([_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])])
        }
        #[inline(always)]
        fn add_b(self, a: Self::B, value: u8) -> Self::B {
            allowed! {
                let value = _mm256_set1_epi8(value as i8);
                [_mm256_add_epi8(a[0], value), _mm256_add_epi8(a[1], value)]
            }
        }
        #[inline(always)]
        fn add_where(self, a: Self::B, bits: u64, value: u8) -> Self::B {
            allowed! {
                let value = _mm256_set1_epi8(value as i8);
                let first = _mm256_and_si256(spread(bits as u32), value);
                let second = _mm256_and_si256(spread((bits >> 32) as u32), value);
                [_mm256_add_epi8(a[0], first), _mm256_add_epi8(a[1], second)]
            }
        }
        #[inline(always)]
        fn add_tested(self, a: Self::B, bits: Self::B, tested: [u8; 2], value: u8) -> Self::B {
            allowed! {
                let mut sums = a;
                for half in 0..2 {
                    let from = tested[half].trailing_zeros();
                    let to = value.trailing_zeros();
                    let left = _mm_cvtsi32_si128(to.saturating_sub(from) as i32);
                    let right = _mm_cvtsi32_si128(from.saturating_sub(to) as i32);
                    let moved = _mm256_srl_epi16(_mm256_sll_epi16(bits[half], left), right);
                    let added = _mm256_and_si256(moved, _mm256_set1_epi8(value as i8));
                    sums[half] = _mm256_add_epi8(a[half], added);
                }
                sums
            }
        }
        #[inline(always)]
        fn negate_where(self, a: Self::B, bits: u64) -> Self::B {
            allowed! {
                let [first, second] = [spread(bits as u32), spread((bits >> 32) as u32)];
                [
                    _mm256_sub_epi8(_mm256_xor_si256(a[0], first), first),
                    _mm256_sub_epi8(_mm256_xor_si256(a[1], second), second),
                ]
            }
        }
    }
}
