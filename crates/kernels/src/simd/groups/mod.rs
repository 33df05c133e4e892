//! Operations on scales of groups of columns, as many as a register has, and on small tables.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

/// Registers of 16 lanes, and operations for the scales of many groups at once: taken one by one
/// they cost more than the decoding of their columns.
///
/// Every method is `#[inline(always)]`, as those of [`Bytes`](super::Bytes) are.
///
/// # Safety
///
/// Methods that take a pointer read the stated number of bytes, with any alignment.
pub(crate) trait Groups: super::Bytes {
    /// 16 × f32.
    type F: Copy;
    /// 16 × u32.
    type U: Copy;
    /// A table of sixteen numbers.
    type Sixteen: Copy;

    /// The first f16 number, widened, in the first eight lanes, and the second in the others.
    fn halves_f16(self, bits: [u16; 2]) -> Self::F;
    /// Multiplies each lane by a signed byte, the lowest first.
    fn times_bytes(self, a: Self::F, bytes: [u64; 2]) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// Converts signed integers.
    fn integers(self, a: Self::U) -> Self::F;
    fn sub_u(self, a: Self::U, b: Self::U) -> Self::U;
    /// Sixteen numbers that bf16 has.
    fn sixteen(self, numbers: &[f32; 16]) -> Self::Sixteen;
    /// The mapped numbers for the low nibbles of 16 bytes, then for the high ones.
    unsafe fn halves<M: ScaleMap<Self>>(
        self,
        numbers: Self::Sixteen,
        maps: [M; 2],
        p: *const u8,
    ) -> [Self::F; 2];
    /// The mapped numbers for the nibbles of 8 bytes, the low one of each first, then of 8 others.
    unsafe fn pairs<M: ScaleMap<Self>>(
        self,
        numbers: Self::Sixteen,
        maps: [M; 2],
        p: *const u8,
    ) -> [Self::F; 2];
    /// The 32-bit numbers at `p` with these indices, or the last where there is none. Reads the
    /// numbers up to `last`.
    unsafe fn gather(self, p: *const u8, last: usize, index: [Self::U; 4]) -> [Self::U; 4];
}

/// A scale, or another function of numbers. Where lookups are cheap, it is applied to a table before them.
pub(crate) trait ScaleMap<S: Groups>: Copy {
    /// The function's value.
    fn of(self, s: S, number: S::F) -> S::F;

    /// The function's values for the numbers of a lookup, if there are so few functions that tables of
    /// all are kept.
    #[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]
    #[inline(always)]
    fn kept(self) -> Option<&'static Bf16s> {
        None
    }
}

/// The upper bytes of sixteen numbers that bf16 has, and the lower ones.
pub(crate) type Bf16s = [[u8; 16]; 2];

/// Splits numbers that bf16 has.
pub(crate) const fn bf16s(numbers: &[f32; 16]) -> Bf16s {
    let mut bytes = [[0; 16]; 2];
    let mut i = 0;
    while i < 16 {
        let bits = numbers[i].to_bits();
        (bytes[0][i], bytes[1][i]) = ((bits >> 24) as u8, (bits >> 16) as u8);
        i += 1;
    }
    bytes
}

/// Numbers that bf16 has, times a power of two, with which it has them too.
pub(crate) const fn scaled(numbers: &[f32; 16], scale: f32) -> Bf16s {
    let mut products = [0.0; 16];
    let mut i = 0;
    while i < 16 {
        products[i] = numbers[i] * scale;
        i += 1;
    }
    bf16s(&products)
}

impl Groups for super::Portable {
    type F = [f32; 16];
    type U = [u32; 16];
    type Sixteen = [f32; 16];

    #[inline(never)]
    fn halves_f16(self, bits: [u16; 2]) -> Self::F {
        let numbers = bits.map(crate::scalar::f16_to_f32);
        std::array::from_fn(|i| numbers[i / 8])
    }
    #[inline(never)]
    fn times_bytes(self, a: Self::F, bytes: [u64; 2]) -> Self::F {
        let bytes = bytes.map(u64::to_le_bytes);
        std::array::from_fn(|i| a[i] * f32::from(bytes[i / 8][i % 8] as i8))
    }
    #[inline(never)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i] / b[i])
    }
    #[inline(always)]
    fn integers(self, a: Self::U) -> Self::F {
        a.map(|a| a as i32 as f32)
    }
    #[inline(always)]
    fn sub_u(self, a: Self::U, b: Self::U) -> Self::U {
        std::array::from_fn(|i| a[i].wrapping_sub(b[i]))
    }
    #[inline(always)]
    fn sixteen(self, numbers: &[f32; 16]) -> Self::Sixteen {
        *numbers
    }
    #[inline(always)]
    unsafe fn halves<M: ScaleMap<Self>>(
        self,
        numbers: Self::Sixteen,
        maps: [M; 2],
        p: *const u8,
    ) -> [Self::F; 2] {
        // SAFETY: by the contract of the trait.
        let bytes = unsafe { p.cast::<[u8; 16]>().read_unaligned() };
        let [low, high] = maps.map(|map| map.of(self, numbers));
        [bytes.map(|b| low[usize::from(b & 15)]), bytes.map(|b| high[usize::from(b >> 4)])]
    }
    #[inline(always)]
    unsafe fn pairs<M: ScaleMap<Self>>(
        self,
        numbers: Self::Sixteen,
        maps: [M; 2],
        p: *const u8,
    ) -> [Self::F; 2] {
        // SAFETY: by the contract of the trait.
        let bytes = unsafe { p.cast::<[u8; 16]>().read_unaligned() };
        let tables = maps.map(|map| map.of(self, numbers));
        let nibble = |i: usize| usize::from(bytes[i / 2] >> (4 * (i % 2)) & 15);
        std::array::from_fn(|k| std::array::from_fn(|i| tables[k][nibble(16 * k + i)]))
    }
    #[inline(never)]
    unsafe fn gather(self, p: *const u8, last: usize, mut index: [Self::U; 4]) -> [Self::U; 4] {
        for i in index.iter_mut().flatten() {
            let at = 4 * (*i as usize).min(last);
            // SAFETY: by the contract of the trait.
            *i = u32::from_le_bytes(unsafe { p.add(at).cast::<[u8; 4]>().read_unaligned() });
        }
        index
    }
}
