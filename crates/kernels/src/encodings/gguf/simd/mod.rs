//! Weights of formats whose codes are indices into a codebook.

#[cfg(target_arch = "x86_64")]
mod avx512;

use super::codebook::{self, Shift};
use crate::GgufBlocks;
use crate::simd::{Bytes, Codes, Groups, Portable, Simd};

/// Decoding of blocks of 256 columns whose codes are indices into a codebook.
///
/// # Safety
///
/// Methods that take a pointer to bytes read a block of the format there.
pub(crate) trait Codebook: Simd {
    /// What the units of a block share.
    type Block: Copy;
    /// The codes of a format.
    type Numbers: Copy;

    fn numbers_of_codebook(self, format: GgufBlocks) -> Self::Numbers;

    /// Decodes what the units of a block share. Only for formats with a codebook.
    unsafe fn codebook_block(self, format: GgufBlocks, p: *const u8) -> Self::Block;

    /// Writes the scales of a block: 16 numbers, or eight and any others.
    unsafe fn scales_of_codebook(
        self,
        format: GgufBlocks,
        block: &Self::Block,
        p: *const u8,
        to: *mut f32,
    );

    /// The codes of unit `q` of the block, below four, as [`Codes`] has them.
    unsafe fn codebook(
        self,
        format: GgufBlocks,
        numbers: Self::Numbers,
        block: &Self::Block,
        p: *const u8,
        q: usize,
    ) -> [Self::F; 4];
}

/// [`Codebook`] in terms of bytes: entries of eight numbers are read one by one.
macro_rules! by_bytes {
    ($($simd:ty)*) => {$(
        impl Codebook for $simd {
            type Block = ();
            type Numbers = ();

            #[inline(always)]
            fn numbers_of_codebook(self, _: GgufBlocks) {}
            #[inline(always)]
            unsafe fn codebook_block(self, _: GgufBlocks, _: *const u8) {}
            #[inline(always)]
            unsafe fn scales_of_codebook(
                self,
                format: GgufBlocks,
                (): &(),
                p: *const u8,
                to: *mut f32,
            ) {
                // SAFETY: by the contract of the trait.
                let block = unsafe { std::slice::from_raw_parts(p, format.bytes()) };
                let (scale, power) = codebook::scale(format, block);
                let scale = self.mul(self.splat_f16(scale), self.splat(power));
                let scales = self.times_bytes(scale, codebook::factors(format, block));
                // SAFETY: by the contract of the trait, in slices one after another.
                unsafe { self.store_slices(scales, to, Self::TILE_LANES) };
            }
            #[inline(always)]
            unsafe fn codebook(
                self,
                format: GgufBlocks,
                (): (),
                (): &(),
                p: *const u8,
                q: usize,
            ) -> [Self::F; 4] {
                // SAFETY: by the contract of the trait.
                let block = unsafe { std::slice::from_raw_parts(p, format.bytes()) };
                // The mask tells the compiler that there are four, so that it checks no bounds.
                let codebook::Quarter { points, shift } = codebook::quarter(format, block, q & 3);
                let points = self.of_eights(points);
                let less = codebook::less(format);
                let codes = match shift {
                    Shift::Signs(negative) => {
                        self.add_b(self.negate_where(points, negative), less)
                    }
                    // An eighth more than the entry, or less.
                    Shift::Less(bits) => {
                        self.add_where(self.add_b(points, less + 1), bits, -2i8 as u8)
                    }
                };
                self.fields(codes, 0x7f)
            }
        }
    )*};
}

by_bytes!(Portable);
#[cfg(target_arch = "x86_64")]
by_bytes!(crate::Avx2);
#[cfg(target_arch = "aarch64")]
by_bytes!(crate::Neon);
