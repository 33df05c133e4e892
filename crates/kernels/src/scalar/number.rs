//! Numbers narrower than f32.

/// Widens bf16, which is the upper half of an f32.
pub(crate) fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Widens f16 exactly, subnormals included; a NaN keeps its payload.
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff);
    let wide = match magnitude >> 10 {
        0 => (magnitude as f32 / (1 << 24) as f32).to_bits(),
        31 => 0x7f80_0000 | (magnitude & 0x3ff) << 13,
        _ => (magnitude << 13) + ((127 - 15) << 23),
    };
    f32::from_bits(sign | wide)
}

/// Decodes e4m3, which has no infinities.
pub(crate) const fn e4m3_to_f32(code: u8) -> f32 {
    let magnitude = match code & 0x7f {
        0x7f => f32::NAN,
        m @ 0..8 => m as f32 / 512.0,
        m => f32::from_bits(((m as u32) << 20) + ((127 - 7) << 23)),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The sixteen values of e2m1.
pub(crate) const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Decodes e8m0, a power of two given by its biased exponent; 255 is NaN.
pub(crate) const fn e8m0_to_f32(s: u8) -> f32 {
    match s {
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        _ => f32::from_bits((s as u32) << 23),
    }
}

/// The values of e8m0.
pub(crate) static E8M0: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        values[code] = e8m0_to_f32(code as u8);
        code += 1;
    }
    values
};

/// Twice the values of e2m1, and 12 more.
pub(crate) const E2M1_CODES: [u8; 16] = {
    let mut codes = [0; 16];
    let mut i = 0;
    while i < 16 {
        codes[i] = (2.0 * E2M1[i] + 12.0) as u8;
        i += 1;
    }
    codes
};

/// Nibble `at`, the low one of a byte first.
pub(crate) fn nibble(bytes: &[u8], at: usize) -> u8 {
    bytes[at / 2] >> (4 * (at % 2)) & 15
}

/// The bf16 number at an index.
pub(crate) fn bf16_at(bytes: &[u8], index: usize) -> f32 {
    bf16_to_f32(u16::from_le_bytes(bytes.as_chunks().0[index]))
}

/// The f32 number at an index.
pub(crate) fn f32_at(bytes: &[u8], index: usize) -> f32 {
    f32::from_le_bytes(bytes.as_chunks().0[index])
}

/// The bits of a scale with a zero point, below those of a scale that was f16 or bf16.
pub(crate) const BELOW_SCALE: u32 = 0x1fff;

/// The scale of a group, from its scale with a zero point.
pub(crate) fn group_scale(unit: u32) -> f32 {
    f32::from_bits(unit & !BELOW_SCALE)
}

/// The zero point of a group, from its scale with a zero point.
pub(crate) fn zero_point(unit: u32) -> f32 {
    (unit & 15) as f32
}
