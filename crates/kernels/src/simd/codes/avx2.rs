//! [`Codes`] with AVX2.

use std::arch::x86_64::*;

use super::Codes;
use crate::Avx2;
use crate::scalar::BELOW_SCALE;

/// Runs intrinsics that the token allows.
macro_rules! allowed {
    ($($body:tt)*) => {
        // SAFETY: `self` proves that this CPU has the instructions. Pointers that are read or written
        // are valid by the contract of the trait's methods.
        unsafe { $($body)* }
    };
}
pub(super) use allowed;

/// Eight f16 numbers, each `stride` bytes after the one before.
///
/// # Safety
///
/// They must be readable.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) unsafe fn f16_h(p: *const u8, stride: usize) -> __m256 {
    macro_rules! word {
        ($all:expr, $i:literal) => {
            _mm_insert_epi16::<$i>(
                $all,
                // SAFETY: by this function's contract.
                i32::from(unsafe { p.add(stride * $i).cast::<u16>().read_unaligned() }),
            )
        };
    }
    let all = word!(_mm_setzero_si128(), 0);
    let all = word!(word!(word!(all, 1), 2), 3);
    let all = word!(word!(word!(word!(all, 4), 5), 6), 7);
    _mm256_cvtph_ps(all)
}

/// [`Codes::scales_and_minima`].
///
/// # Safety
///
/// As for that.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) unsafe fn scales_and_minima(p: *const u8) -> [__m256; 2] {
    // SAFETY: by this function's contract.
    let block = unsafe { _mm_loadu_si128(p.cast()) };
    // Six bits each of four scales, of four minima, of four scales and of four minima: the upper two of
    // the last eight are those of the first.
    let first = _mm_shuffle_epi32::<0x99>(block);
    let first = _mm_srlv_epi32(first, _mm_set_epi32(2, 2, 0, 0));
    let own = 0x3f3f_3f3f;
    let upper = 0x3030_3030;
    let first = _mm_and_si128(first, _mm_set_epi32(upper, upper, own, own));
    let rest = _mm_srlv_epi32(_mm_shuffle_epi32::<0xff>(block), _mm_set_epi32(4, 0, 0, 0));
    let rest = _mm_and_si128(rest, _mm_set_epi32(0x0f0f_0f0f, 0x0f0f_0f0f, 0, 0));
    let codes = _mm_or_si128(first, rest);
    let low = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(codes));
    let high = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(codes, codes)));
    // Their factors: that of the minima with the other sign.
    let halves = _mm_xor_si128(block, _mm_set_epi32(0, 0, 0, i32::MIN));
    let halves = _mm256_castps128_ps256(_mm_cvtph_ps(halves));
    let halves = _mm256_permutevar8x32_ps(halves, _mm256_set_epi32(1, 1, 1, 1, 0, 0, 0, 0));
    let low = _mm256_mul_ps(low, halves);
    let high = _mm256_mul_ps(high, halves);
    [_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high)]
}

/// Eight lanes of which the first ones are each in so many.
#[target_feature(enable = "avx2")]
#[inline]
fn repeated(lanes: __m256i, times: usize) -> __m256i {
    match times {
        1 => lanes,
        2 => _mm256_permutevar8x32_epi32(lanes, _mm256_set_epi32(3, 3, 2, 2, 1, 1, 0, 0)),
        _ => _mm256_permutevar8x32_epi32(lanes, _mm256_set_epi32(1, 1, 1, 1, 0, 0, 0, 0)),
    }
}

/// [`Codes::bf16_h`].
///
/// # Safety
///
/// As for that.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) unsafe fn bf16_h(p: *const u8, times: usize) -> __m256 {
    // SAFETY: by this function's contract.
    let words = unsafe {
        match times {
            1 => _mm_loadu_si128(p.cast()),
            2 => _mm_loadl_epi64(p.cast()),
            _ => _mm_cvtsi32_si128(p.cast::<i32>().read_unaligned()),
        }
    };
    let lanes = _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(words));
    _mm256_castsi256_ps(repeated(lanes, times))
}

/// [`Codes::zeros_h`].
///
/// # Safety
///
/// As for that.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) unsafe fn zeros_h(p: *const u8, times: usize) -> [__m256; 2] {
    // SAFETY: by this function's contract.
    let units = unsafe {
        match times {
            1 => _mm256_loadu_si256(p.cast()),
            2 => _mm256_castsi128_si256(_mm_loadu_si128(p.cast())),
            _ => _mm256_castsi128_si256(_mm_loadl_epi64(p.cast())),
        }
    };
    let units = repeated(units, times);
    let of_scale = _mm256_set1_epi32(!BELOW_SCALE as i32);
    let scales = _mm256_castsi256_ps(_mm256_and_si256(units, of_scale));
    let points = _mm256_cvtepi32_ps(_mm256_and_si256(units, _mm256_set1_epi32(15)));
    [scales, _mm256_mul_ps(_mm256_xor_ps(points, _mm256_set1_ps(-0.0)), scales)]
}

/// The fixed tree over eight lanes.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn fold(a: __m256) -> f32 {
    let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)))
}

/// The nibbles of 16 bytes, the low one of each first, in bytes whose upper halves are any others.
///
/// # Safety
///
/// They must be readable.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn nibbles(p: *const u8) -> __m256i {
    // SAFETY: by this function's contract.
    let words = _mm256_cvtepu8_epi16(unsafe { _mm_loadu_si128(p.cast()) });
    _mm256_or_si256(words, _mm256_slli_epi16::<4>(words))
}

impl Codes for Avx2 {
    type H = __m256;
    /// The codes twice, and the bits that the largest one has.
    type Table = (__m256i, u8);

    #[inline(always)]
    fn zero_h(self) -> Self::H {
        allowed!(_mm256_setzero_ps())
    }
    #[inline(always)]
    unsafe fn load_h(self, p: *const f32) -> Self::H {
        allowed!(_mm256_loadu_ps(p))
    }
    #[inline(always)]
    unsafe fn store_h(self, a: Self::H, p: *mut f32) {
        allowed!(_mm256_storeu_ps(p, a))
    }
    #[inline(always)]
    fn fma_h(self, a: Self::H, b: Self::H, c: Self::H) -> Self::H {
        allowed!(_mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn fold_h(self, a: Self::H) -> f32 {
        allowed!(fold(a))
    }
    #[inline(always)]
    unsafe fn f16_h(self, p: *const u8, stride: usize) -> Self::H {
        allowed!(f16_h(p, stride))
    }
    #[inline(always)]
    unsafe fn bf16_h(self, p: *const u8, times: usize) -> Self::H {
        allowed!(bf16_h(p, times))
    }
    #[inline(always)]
    unsafe fn zeros_h(self, p: *const u8, times: usize) -> [Self::H; 2] {
        allowed!(zeros_h(p, times))
    }
    #[inline(always)]
    unsafe fn in_eights(self, p: *const f32, pair: usize) -> Self::F {
        allowed! {
            let p = p.add(2 * pair);
            [_mm256_broadcast_ss(&*p), _mm256_broadcast_ss(&*p.add(1))]
        }
    }
    #[inline(always)]
    unsafe fn in_fours(self, p: *const f32) -> Self::F {
        allowed! {
            let four = _mm256_broadcast_ps(&*p.cast());
            [
                _mm256_permutevar_ps(four, _mm256_set_epi32(1, 1, 1, 1, 0, 0, 0, 0)),
                _mm256_permutevar_ps(four, _mm256_set_epi32(3, 3, 3, 3, 2, 2, 2, 2)),
            ]
        }
    }
    #[inline(always)]
    fn fields(self, bytes: Self::B, mask: u8) -> [Self::F; 4] {
        let mut fields = [[allowed!(_mm256_setzero_ps()); 2]; 4];
        for i in 0..2 {
            for k in 0..3 {
                let own = i32::from(mask) << (8 * k);
                fields[k][i] = allowed! {
                    _mm256_cvtepi32_ps(_mm256_and_si256(bytes[i], _mm256_set1_epi32(own)))
                };
            }
            fields[3][i] = allowed! {
                match mask {
                    0..0x80 => {
                        let own = _mm256_set1_epi32(i32::from(mask) << 24);
                        _mm256_cvtepi32_ps(_mm256_and_si256(bytes[i], own))
                    }
                    // As a signed number the byte would be another.
                    _ => {
                        let byte = _mm256_cvtepi32_ps(_mm256_srli_epi32::<24>(bytes[i]));
                        _mm256_mul_ps(byte, _mm256_set1_ps((1 << 24) as f32))
                    }
                }
            };
        }
        fields
    }
    #[inline(always)]
    fn table(self, codes: &[u8; 16]) -> Self::Table {
        let mut bits = 0;
        for code in codes {
            bits |= code;
        }
        allowed!((_mm256_broadcastsi128_si256(_mm_loadu_si128(codes.as_ptr().cast())), bits))
    }
    #[inline(always)]
    fn looked_up(self, (table, most): Self::Table, bytes: Self::B) -> [Self::F; 4] {
        let mut codes = bytes;
        for i in 0..2 {
            codes[i] = allowed! {
                _mm256_shuffle_epi8(table, _mm256_and_si256(bytes[i], _mm256_set1_epi8(15)))
            };
        }
        self.fields(codes, most)
    }
    #[inline(always)]
    unsafe fn nibbles(self, table: Self::Table, p: *const u8) -> [Self::F; 4] {
        allowed! {
            self.looked_up(table, [nibbles(p), nibbles(p.add(16))])
        }
    }
    #[inline(always)]
    unsafe fn plain_nibbles(self, _: Self::Table, p: *const u8) -> [Self::F; 4] {
        allowed!(self.fields([nibbles(p), nibbles(p.add(16))], 15))
    }
    #[inline(always)]
    unsafe fn apart(self, p: *const u8) -> [Self::F; 4] {
        allowed! {
            let inverted = _mm256_set1_epi32(0x8888);
            let words = [
                _mm256_xor_si256(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast())), inverted),
                _mm256_xor_si256(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(16).cast())), inverted),
            ];
            let mut fields = [[_mm256_setzero_ps(); 2]; 4];
            for k in 0..4 {
                for i in 0..2 {
                    let own = _mm256_set1_epi32(15 << (4 * k));
                    fields[k][i] = _mm256_cvtepi32_ps(_mm256_and_si256(words[i], own));
                }
            }
            fields
        }
    }
    #[inline(always)]
    unsafe fn scales_and_minima(self, p: *const u8) -> [Self::H; 2] {
        allowed!(scales_and_minima(p))
    }
}
