//! Operations on codes that are summed before they are scaled: see
//! [`Coding`](crate::scalar::Coding).

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

use super::Groups;
use crate::scalar::{bf16_to_f32, fma, fold, group_scale, zero_point};

/// Operations on the codes of a unit, and on the scales of runs.
///
/// Four registers hold a unit: the first columns of its 16 fours, the second ones and so on. The codes
/// are times 1, 2⁸, 2¹⁶ and 2²⁴, or with [`apart`](Self::apart) times 1, 2⁴, 2⁸ and 2¹².
///
/// Every method is `#[inline(always)]`, as those of [`Bytes`](super::Bytes) are.
///
/// # Safety
///
/// Methods that take a pointer read or write the stated numbers, with any alignment.
pub(crate) trait Codes: Groups {
    /// 8 × f32.
    type H: Copy;
    /// The codes of sixteen nibbles.
    type Table: Copy;

    fn zero_h(self) -> Self::H;
    /// Reads 8 numbers.
    unsafe fn load_h(self, p: *const f32) -> Self::H;
    /// Writes 8 numbers.
    unsafe fn store_h(self, a: Self::H, p: *mut f32);
    /// `a · b + c`, rounded once.
    fn fma_h(self, a: Self::H, b: Self::H, c: Self::H) -> Self::H;
    /// The fixed tree over the lanes.
    fn fold_h(self, a: Self::H) -> f32;
    /// Eight f16 numbers, each `stride` bytes after the one before.
    unsafe fn f16_h(self, p: *const u8, stride: usize) -> Self::H;
    /// bf16 numbers, each in so many lanes: 1, 2 or 4.
    unsafe fn bf16_h(self, p: *const u8, times: usize) -> Self::H;
    /// Scales of units of groups, and their minima, each in so many lanes: 1, 2 or 4.
    unsafe fn zeros_h(self, p: *const u8, times: usize) -> [Self::H; 2];

    /// Of eight numbers the one with twice this index, below eight, in the first eight lanes, and the next
    /// in the others.
    unsafe fn in_eights(self, p: *const f32, pair: usize) -> Self::F;
    /// Four numbers in four lanes each.
    unsafe fn in_fours(self, p: *const f32) -> Self::F;

    /// The bits of `mask` of each byte.
    fn fields(self, bytes: Self::B, mask: u8) -> [Self::F; 4];
    fn table(self, codes: &[u8; 16]) -> Self::Table;
    /// The codes of the low nibbles of bytes.
    fn looked_up(self, table: Self::Table, bytes: Self::B) -> [Self::F; 4];
    /// The codes of the nibbles of 32 bytes, the low one of each first.
    unsafe fn nibbles(self, table: Self::Table, p: *const u8) -> [Self::F; 4];
    /// The same where `table` has every nibble as its own code.
    unsafe fn plain_nibbles(self, table: Self::Table, p: *const u8) -> [Self::F; 4];
    /// The nibbles of 16 words of two bytes, from the low one up, with their highest bits inverted.
    unsafe fn apart(self, p: *const u8) -> [Self::F; 4];
    /// Scales of eight runs of 32 columns, and their minima with the other sign: a block that begins
    /// with an f16 number for each and six bits for each of the runs. Reads 16 bytes.
    #[inline(always)]
    unsafe fn scales_and_minima(self, p: *const u8) -> [Self::H; 2] {
        // SAFETY: by the contract of the trait.
        let scales = unsafe { scales_and_minima(self, p) };
        let mut both = [0.0f32; 16];
        // SAFETY: 16 numbers, and eight of them twice.
        unsafe {
            (&raw mut both).cast::<Self::F>().write_unaligned(scales);
            [self.load_h(both.as_ptr()), self.load_h(both.as_ptr().add(8))]
        }
    }
}

/// The scales of eight groups in the first lanes, and their minima with the other sign in the rest.
///
/// # Safety
///
/// 16 bytes must be readable at `p`.
#[inline(always)]
unsafe fn scales_and_minima<S: Groups>(s: S, p: *const u8) -> S::F {
    // SAFETY: by this function's contract.
    let [halves, scales, minima, rest] =
        unsafe { p.cast::<[u32; 4]>().read_unaligned() }.map(u32::from_le);
    let [low_scales, low_minima] = [scales & 0x3f3f_3f3f, minima & 0x3f3f_3f3f];
    let high_scales = rest & 0x0f0f_0f0f | scales >> 2 & 0x3030_3030;
    let high_minima = rest >> 4 & 0x0f0f_0f0f | minima >> 2 & 0x3030_3030;
    let both = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let bytes = [both(low_scales, high_scales), both(low_minima, high_minima)];
    s.times_bytes(s.halves_f16([halves as u16, (halves >> 16) as u16 ^ 0x8000]), bytes)
}

impl Codes for super::Portable {
    type H = [f32; 8];
    type Table = [u8; 16];

    #[inline(always)]
    fn zero_h(self) -> Self::H {
        [0.0; 8]
    }
    #[inline(always)]
    unsafe fn load_h(self, p: *const f32) -> Self::H {
        // SAFETY: by the contract of the trait.
        unsafe { p.cast::<Self::H>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_h(self, a: Self::H, p: *mut f32) {
        // SAFETY: by the contract of the trait.
        unsafe { p.cast::<Self::H>().write_unaligned(a) };
    }
    #[inline(never)]
    fn fma_h(self, a: Self::H, b: Self::H, c: Self::H) -> Self::H {
        std::array::from_fn(|i| fma(a[i], b[i], c[i]))
    }
    #[inline(always)]
    fn fold_h(self, a: Self::H) -> f32 {
        fold(a)
    }
    #[inline(never)]
    unsafe fn f16_h(self, p: *const u8, stride: usize) -> Self::H {
        std::array::from_fn(|i| {
            // SAFETY: by the contract of the trait.
            let bits = unsafe { p.add(stride * i).cast::<[u8; 2]>().read_unaligned() };
            crate::scalar::f16_to_f32(u16::from_le_bytes(bits))
        })
    }
    #[inline(always)]
    unsafe fn bf16_h(self, p: *const u8, times: usize) -> Self::H {
        std::array::from_fn(|i| {
            // SAFETY: by the contract of the trait.
            let bits = unsafe { p.add(2 * (i / times)).cast::<[u8; 2]>().read_unaligned() };
            bf16_to_f32(u16::from_le_bytes(bits))
        })
    }
    #[inline(always)]
    unsafe fn zeros_h(self, p: *const u8, times: usize) -> [Self::H; 2] {
        let units: [u32; 8] = std::array::from_fn(|i| {
            // SAFETY: by the contract of the trait.
            let unit = unsafe { p.add(4 * (i / times)).cast::<[u8; 4]>().read_unaligned() };
            u32::from_le_bytes(unit)
        });
        let minimum = |unit| -zero_point(unit) * group_scale(unit);
        [units.map(group_scale), units.map(minimum)]
    }
    #[inline(always)]
    unsafe fn in_eights(self, p: *const f32, pair: usize) -> Self::F {
        // SAFETY: by the contract of the trait.
        let numbers = unsafe { p.add(2 * pair).cast::<[f32; 2]>().read_unaligned() };
        std::array::from_fn(|i| numbers[i / 8])
    }
    #[inline(always)]
    unsafe fn in_fours(self, p: *const f32) -> Self::F {
        // SAFETY: by the contract of the trait.
        let numbers = unsafe { p.cast::<[f32; 4]>().read_unaligned() };
        std::array::from_fn(|i| numbers[i / 4])
    }
    #[inline(never)]
    fn fields(self, bytes: Self::B, mask: u8) -> [Self::F; 4] {
        std::array::from_fn(|k| {
            std::array::from_fn(|i| (u32::from(bytes[4 * i + k] & mask) << (8 * k)) as f32)
        })
    }
    #[inline(always)]
    fn table(self, codes: &[u8; 16]) -> Self::Table {
        *codes
    }
    #[inline(never)]
    fn looked_up(self, table: Self::Table, bytes: Self::B) -> [Self::F; 4] {
        self.fields(bytes.map(|byte| table[usize::from(byte & 15)]), 0xff)
    }
    #[inline(never)]
    unsafe fn nibbles(self, table: Self::Table, p: *const u8) -> [Self::F; 4] {
        // SAFETY: by the contract of the trait.
        let bytes = unsafe { p.cast::<[u8; 32]>().read_unaligned() };
        let codes = std::array::from_fn(|i| bytes[i / 2] >> (4 * (i % 2)) & 15);
        self.looked_up(table, codes)
    }
    #[inline(always)]
    unsafe fn plain_nibbles(self, table: Self::Table, p: *const u8) -> [Self::F; 4] {
        // SAFETY: by the contract of the trait.
        unsafe { self.nibbles(table, p) }
    }
    #[inline(never)]
    unsafe fn apart(self, p: *const u8) -> [Self::F; 4] {
        // SAFETY: by the contract of the trait.
        let bytes = unsafe { p.cast::<[[u8; 2]; 16]>().read_unaligned() };
        let words = bytes.map(|two| u16::from_le_bytes(two) ^ 0x8888);
        std::array::from_fn(|k| words.map(|word| f32::from(word & 15 << (4 * k))))
    }
}
