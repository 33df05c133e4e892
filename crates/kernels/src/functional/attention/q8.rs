//! Rows of the KV cache in 8 bits.
//!
//! A row is stored in blocks of 32 numbers, the last of which may have fewer: a scale in bf16, little-endian,
//! and a signed byte for each number. So the beginning of a row is the row of its beginning, as latent
//! attention needs.
//!
//! For the block x with the largest magnitude m:
//!
//! - scale = bf16(m / 127), the quotient in f32, both rounded to nearest, ties to even; 0 if that is
//!   below 2^-126, the least normal number.
//! - code = x / scale, the quotient in f32, rounded to the nearest whole number, ties to even; 0 if the
//!   scale is
//!   0. It is at most 127, as the scale is too small by less than one part in 256.
//! - value = code · scale, which f32 has exactly: a product of seven bits with eight, and 127 times the
//!   scale of the largest f32 is below it.
//!
//! A block with a number that is NaN or infinite is NaN throughout, so that it is never hidden.
//!
//! bf16 has the range of f32, so a value is within half a scale of its number, whatever the magnitude,
//! except that a block below 2^-119 becomes zeros. Scales in f16 would end at 65,504 and lose bits below
//! 2^-14. They would have three bits more, which gain nothing: the error is that of the codes. Without scales
//! below 2^-126, a block of values that is stored again keeps its bytes.

use half::bf16;

use super::super::lanes::LANES;

/// Bytes of a scale.
const SCALE: usize = size_of::<u16>();
/// Bytes of a whole block.
pub(super) const BLOCK: usize = SCALE + LANES;
/// The bits of infinity: those of a magnitude that is not finite are no less.
const INFINITE: u32 = 0x7f80_0000;
/// 1.5 · 2^23. A number below 2^22 added to it is rounded to a whole one, which is in the low bits.
const WHOLE: f32 = 12_582_912.0;

/// Bytes of a row of `numbers`.
pub const fn bytes(numbers: usize) -> usize {
    numbers + SCALE * numbers.div_ceil(LANES)
}

/// Numbers of a row of `bytes`.
pub const fn numbers(bytes: usize) -> usize {
    bytes.saturating_sub(SCALE * bytes.div_ceil(BLOCK))
}

/// Appends the values of a row to `to`.
pub fn read(row: &[u8], to: &mut Vec<f32>) {
    for block in row.chunks(BLOCK) {
        let (scale, codes) = split(block);
        to.extend(codes.iter().map(|&code| f32::from(code as i8) * scale));
    }
}

/// Stores a row.
pub fn store(to: &mut [u8], row: &[f32]) {
    for (to, numbers) in to.chunks_mut(BLOCK).zip(row.chunks(LANES)) {
        let (to_scale, codes) = to.split_at_mut(SCALE);
        // Bits of magnitudes are in the order of magnitudes, with NaN above infinity.
        let largest = numbers.iter().map(|x| x.abs().to_bits()).fold(0, u32::max);
        let scale = match largest {
            INFINITE.. => bf16::NAN,
            _ => bf16::from_f32(f32::from_bits(largest) / 127.0),
        };
        let scale = if scale < bf16::MIN_POSITIVE { bf16::ZERO } else { scale };
        to_scale.copy_from_slice(&scale.to_le_bytes());
        let scale = scale.to_f32();
        if scale > 0.0 {
            for (code, x) in codes.iter_mut().zip(numbers) {
                *code = (x / scale + WHOLE).to_bits() as u8;
            }
        } else {
            codes.fill(0);
        }
    }
}

/// The scale and the codes of a block.
#[inline(always)]
pub(super) fn split(block: &[u8]) -> (f32, &[u8]) {
    let (scale, codes) = block.split_at(SCALE);
    let bits = u16::from_le_bytes([scale[0], scale[1]]);
    (f32::from_bits(u32::from(bits) << 16), codes)
}
