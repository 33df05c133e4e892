//! Rounding to codes.

/// Adding this to a number below 2²² leaves no bits for a fraction: the sum is rounded to nearest
/// even, and its low bits are the integer. `round_ties_even` is a function call on CPUs without
/// such an instruction.
pub(in crate::encodings) const SHIFT: f32 = (3 << 22) as f32;

/// A small floating-point type of sign, exponent and mantissa, whose codes ascend with the
/// magnitude.
pub(in crate::encodings) struct Small {
    /// Bits of the mantissa.
    pub(in crate::encodings) mantissa: u32,
    /// The exponent of the smallest normal number.
    pub(in crate::encodings) lowest: i32,
    /// The largest number and its code.
    pub(in crate::encodings) largest: (f32, u32),
    /// The sign bit of a code.
    pub(in crate::encodings) sign: u32,
}

impl Small {
    /// Returns the code and the value of the nearest number. A tie goes to the even code;
    /// magnitudes beyond the largest saturate.
    #[inline(always)]
    pub(in crate::encodings) fn round(&self, w: f32) -> (u32, f32) {
        let bits = w.to_bits() & 0x7fff_ffff;
        let magnitude = f32::from_bits(bits);
        let dropped = 23 - self.mantissa;
        let rounded = bits + (1 << (dropped - 1)) - 1 + (bits >> dropped & 1);
        let normal = (rounded >> dropped) as i32 - ((self.lowest + 126) << self.mantissa);
        // Below the smallest normal number all steps are as large as its own. Adding a number whose
        // last bit equals such a step rounds to a multiple of it.
        let steps = self.lowest - self.mantissa as i32;
        let shift = f32::from_bits(((steps + 23 + 127) as u32) << 23 | 1 << 22);
        let shifted = magnitude + shift;
        let is_normal = bits >= ((self.lowest + 127) as u32) << 23;
        let code = if is_normal { normal as u32 } else { shifted.to_bits() & 0xff };
        let value =
            if is_normal { f32::from_bits(rounded >> dropped << dropped) } else { shifted - shift };
        let (largest, largest_code) = self.largest;
        let code = if code > largest_code { largest_code } else { code };
        let value = if value > largest { largest } else { value };
        let negative = w.to_bits() >> 31;
        (code | (negative * self.sign), f32::from_bits(value.to_bits() | negative << 31))
    }
}

/// Rounds a finite, non-negative number to the nearest f16, ties to even; one that is too large
/// becomes the largest.
pub(in crate::encodings) fn round_to_f16(w: f32) -> u16 {
    /// Largest f16, and its bits.
    const LARGEST: (f32, u16) = (65504.0, 0x7bff);
    /// The smallest normal f16, and the number whose last bit is that of a subnormal one.
    const NORMAL: f32 = 1.0 / (1 << 14) as f32;
    const STEPS: f32 = 0.5;
    if w >= LARGEST.0 {
        return LARGEST.1;
    }
    if w < NORMAL {
        // An f32 from 0.5 to 1 has steps of 2⁻²⁴, those of subnormal f16.
        return ((w + STEPS).to_bits() - STEPS.to_bits()) as u16;
    }
    let bits = w.to_bits();
    let rounded = bits + 0xfff + (bits >> 13 & 1);
    ((rounded >> 13) - ((127 - 15) << 10)) as u16
}

/// Rounds a finite, non-negative number to the nearest bf16, ties to even.
pub(in crate::encodings) fn round_to_bf16(w: f32) -> u16 {
    let bits = w.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}
