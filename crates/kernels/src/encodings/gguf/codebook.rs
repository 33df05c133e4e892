//! Formats whose codes are indices into a codebook: eight weights, or four, share a code.
//!
//! A weight is an f16 scale, times a power of two, times a small whole number for 16 or 32 columns,
//! times the entry's number. All these products are exact.

// Loops by index are unrolled, and the bytes of a group are not in order.
#![allow(clippy::needless_range_loop)]

use crate::GgufBlocks;

/// The codebooks, one after another: two bytes for each entry, with two bits for each of eight numbers,
/// or four for each of four. Made by `tests/goldens/gguf_codebook.py`.
const PACKED: &[u8; 2 * 4608] = include_bytes!("codebook.bin");

/// The first entry of each codebook.
pub(crate) const IQ2_XXS_FIRST: usize = 0;
pub(crate) const IQ2_XS_FIRST: usize = 256;
pub(crate) const IQ2_S_FIRST: usize = 768;
pub(crate) const IQ1_FIRST: usize = 1792;
pub(crate) const IQ3_XXS_FIRST: usize = 3840;
pub(crate) const IQ3_S_FIRST: usize = 4096;

pub(super) const IQ2_NUMBERS: [i8; 4] = [8, 25, 43, 0];
/// Times eight.
pub(super) const IQ1_NUMBERS: [i8; 4] = [-8, 0, 8, 0];
pub(super) const IQ3_XXS_NUMBERS: [i8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];
pub(super) const IQ3_S_NUMBERS: [i8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];

// Signed bytes, the first one lowest.
static IQ2_XXS: [u64; 256] = eights(IQ2_XXS_FIRST, IQ2_NUMBERS);
static IQ2_XS: [u64; 512] = eights(IQ2_XS_FIRST, IQ2_NUMBERS);
static IQ2_S: [u64; 1024] = eights(IQ2_S_FIRST, IQ2_NUMBERS);
static IQ1: [u64; 2048] = eights(IQ1_FIRST, IQ1_NUMBERS);
static IQ3_XXS: [u32; 256] = fours(IQ3_XXS_FIRST, IQ3_XXS_NUMBERS);
static IQ3_S: [u32; 512] = fours(IQ3_S_FIRST, IQ3_S_NUMBERS);

/// The numbers of an entry: two bits for each of eight, or four for each of four.
pub(super) const fn packed(point: usize) -> usize {
    PACKED[2 * point] as usize | (PACKED[2 * point + 1] as usize) << 8
}

/// Entries from `first` on, of these numbers.
const fn eights<const N: usize>(first: usize, numbers: [i8; 4]) -> [u64; N] {
    let mut points = [0; N];
    let mut i = 0;
    while i < 8 * N {
        let number = numbers[packed(first + i / 8) >> (2 * (i % 8)) & 3] as u8;
        points[i / 8] |= (number as u64) << (8 * (i % 8));
        i += 1;
    }
    points
}

const fn fours<const N: usize>(first: usize, numbers: [i8; 8]) -> [u32; N] {
    let mut points = [0; N];
    let mut i = 0;
    while i < 4 * N {
        let number = numbers[packed(first + i / 4) >> (4 * (i % 4)) & 7] as u8;
        points[i / 4] |= (number as u32) << (8 * (i % 4));
        i += 1;
    }
    points
}

/// The largest of the numbers of entries with a sign or a shift.
pub(crate) const fn less(format: GgufBlocks) -> u8 {
    match format {
        GgufBlocks::Iq1S | GgufBlocks::Iq1M => 9,
        GgufBlocks::Iq3Xxs => 62,
        GgufBlocks::Iq3S => 15,
        _ => 43,
    }
}

/// Eight weights of a block in units of its scale: their numbers, and the factor of all.
pub(crate) struct Group {
    pub(crate) numbers: [i8; 8],
    pub(crate) factor: i32,
}

/// The bits of the f16 scale of a block, and the power of two that it is multiplied by.
#[inline(always)]
pub(crate) fn scale(format: GgufBlocks, b: &[u8]) -> (u16, f32) {
    let power = match format {
        GgufBlocks::Iq3S => 1.0,
        GgufBlocks::Iq3Xxs => 0.25,
        _ => 0.125,
    };
    let bits = match format {
        // In the upper four bits of four numbers.
        GgufBlocks::Iq1M => {
            let part = |k: usize| word(b, 48 + 2 * k) >> 12 << (4 * k);
            part(0) | part(1) | part(2) | part(3)
        }
        _ => word(b, 0),
    };
    (bits, power)
}

/// Weights `8·g` to `8·g + 7` of a block. Only for formats with a codebook.
#[inline(always)]
pub(crate) fn group(format: GgufBlocks, b: &[u8], g: usize) -> Group {
    let s = g / 4;
    let of_s = g % 4;
    // Two bits, or three, that a code has beside its byte.
    let top = |bits: u16, by: usize, mask: u16| usize::from(bits >> by & mask) << 8;
    match format {
        GgufBlocks::Iq2Xxs => {
            let rest = long(b, 6 + 8 * s);
            let point = IQ2_XXS[usize::from(b[2 + 8 * s + of_s])];
            Group { numbers: signed(point, seven(rest, of_s)), factor: odd(rest >> 28) }
        }
        GgufBlocks::Iq2Xs => {
            let code = word(b, 2 + 2 * g);
            let numbers = signed(IQ2_XS[usize::from(code & 511)], even(code >> 9));
            Group { numbers, factor: odd(u32::from(b[66 + s] >> (4 * (g / 2 % 2)) & 15)) }
        }
        GgufBlocks::Iq2S => {
            let code = usize::from(b[2 + g]) | top(b[66 + s].into(), 2 * of_s, 3);
            let numbers = signed(IQ2_S[code], b[34 + g]);
            Group { numbers, factor: odd(u32::from(b[74 + s] >> (4 * (g / 2 % 2)) & 15)) }
        }
        GgufBlocks::Iq3Xxs => {
            let rest = long(b, 66 + 4 * s);
            let half = |k: usize| IQ3_XXS[usize::from(b[2 + 2 * g + k])];
            let numbers = signed(both(half(0), half(1)), seven(rest, of_s));
            Group { numbers, factor: odd(rest >> 28) }
        }
        GgufBlocks::Iq3S => {
            let half = |k: usize| {
                let code = 2 * g + k;
                IQ3_S[usize::from(b[2 + code]) | top(b[66 + s].into(), code % 8, 1)]
            };
            let numbers = signed(both(half(0), half(1)), b[74 + g]);
            Group { numbers, factor: odd(u32::from(b[106 + g / 8] >> (4 * (s % 2)) & 15)) }
        }
        GgufBlocks::Iq1S => {
            let rest = word(b, 34 + 2 * s);
            let point = IQ1[usize::from(b[2 + g]) | top(rest, 3 * of_s, 7)];
            Group { numbers: shifted(point, rest >> 15), factor: odd(u32::from(rest >> 12 & 7)) }
        }
        GgufBlocks::Iq1M => {
            let rest = u16::from(b[32 + g / 2] >> (4 * (g % 2)));
            let point = IQ1[usize::from(b[g]) | top(rest, 0, 7)];
            let factor = word(b, 48 + g / 8 * 2) >> (3 * (g / 2 % 4)) & 7;
            Group { numbers: shifted(point, rest >> 3 & 1), factor: odd(factor.into()) }
        }
        _ => unreachable!("a format without points"),
    }
}

#[inline(always)]
fn word(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

#[inline(always)]
fn long(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

#[inline(always)]
fn odd(factor: u32) -> i32 {
    2 * factor as i32 + 1
}

/// Seven of the signs that groups of 32 columns have together, and the eighth.
#[inline(always)]
fn seven(rest: u32, group: usize) -> u8 {
    even((rest >> (7 * group) & 127) as u16)
}

/// Seven signs, and an eighth with which an even number of them is set.
#[inline(always)]
fn even(signs: u16) -> u8 {
    signs as u8 | (signs.count_ones() as u8 & 1) << 7
}

#[inline(always)]
fn both(first: u32, second: u32) -> u64 {
    u64::from(first) | u64::from(second) << 32
}

#[inline(always)]
fn signed(point: u64, signs: u8) -> [i8; 8] {
    let mut numbers = point.to_le_bytes().map(|byte| byte as i8);
    for (i, number) in numbers.iter_mut().enumerate() {
        let sign = -((signs >> i & 1) as i8);
        *number = (*number ^ sign) - sign;
    }
    numbers
}

/// An eighth more than the entry, or less.
#[inline(always)]
fn shifted(point: u64, less: u16) -> [i8; 8] {
    let by = 1 - 2 * less as i8;
    point.to_le_bytes().map(|byte| byte as i8 + by)
}

/// 64 weights of a block in units of its scale.
pub(crate) struct Quarter {
    /// Eight entries.
    pub(crate) points: [u64; 8],
    /// What is done to their numbers.
    pub(crate) shift: Shift,
}

/// The change of the numbers of entries.
pub(crate) enum Shift {
    /// Those whose bit is set are negated.
    Signs(u64),
    /// Those whose bit is set are an eighth less, the others an eighth more.
    Less(u64),
}

/// Weights `64·q` to `64·q + 63` of a block: eight [`group`]s. Only for formats with a codebook.
#[inline(always)]
pub(crate) fn quarter(format: GgufBlocks, b: &[u8], q: usize) -> Quarter {
    let mut points = [0; 8];
    match format {
        GgufBlocks::Iq2Xxs => {
            let first = long(b, 6 + 16 * q);
            let second = long(b, 14 + 16 * q);
            for i in 0..8 {
                points[i] = IQ2_XXS[usize::from(b[2 + 16 * q + i / 4 * 8 + i % 4])];
            }
            let signs = evened(both(apart(first), apart(second)));
            Quarter { points, shift: Shift::Signs(signs) }
        }
        GgufBlocks::Iq2Xs => {
            let mut signs = 0;
            for i in 0..8 {
                let code = word(b, 2 + 16 * q + 2 * i);
                points[i] = IQ2_XS[usize::from(code & 511)];
                signs |= u64::from(code >> 9) << (8 * i);
            }
            Quarter { points, shift: Shift::Signs(evened(signs)) }
        }
        GgufBlocks::Iq2S => {
            let top = u32::from(word(b, 66 + 2 * q)) << 8;
            for i in 0..8 {
                let code = usize::from(b[2 + 8 * q + i]) | (top >> (2 * i)) as usize & 0x300;
                points[i] = IQ2_S[code];
            }
            let signs = both(long(b, 34 + 8 * q), long(b, 38 + 8 * q));
            Quarter { points, shift: Shift::Signs(signs) }
        }
        GgufBlocks::Iq3Xxs => {
            let first = long(b, 66 + 8 * q);
            let second = long(b, 70 + 8 * q);
            for i in 0..8 {
                let at = 2 + 16 * q + 2 * i;
                points[i] = both(IQ3_XXS[usize::from(b[at])], IQ3_XXS[usize::from(b[at + 1])]);
            }
            let signs = evened(both(apart(first), apart(second)));
            Quarter { points, shift: Shift::Signs(signs) }
        }
        GgufBlocks::Iq3S => {
            let top = u32::from(word(b, 66 + 2 * q)) << 8;
            for i in 0..8 {
                let at = 2 + 16 * q + 2 * i;
                let first = usize::from(b[at]) | (top >> (2 * i)) as usize & 0x100;
                let second = usize::from(b[at + 1]) | (top >> (2 * i + 1)) as usize & 0x100;
                points[i] = both(IQ3_S[first], IQ3_S[second]);
            }
            let signs = both(long(b, 74 + 8 * q), long(b, 78 + 8 * q));
            Quarter { points, shift: Shift::Signs(signs) }
        }
        GgufBlocks::Iq1S => {
            let mut less = 0;
            for half in 0..2 {
                let rest = u32::from(word(b, 34 + 4 * q + 2 * half));
                for i in 0..4 {
                    let code = usize::from(b[2 + 8 * q + 4 * half + i]);
                    points[4 * half + i] = IQ1[code | (rest << 8 >> (3 * i)) as usize & 0x700];
                }
                less |= (u64::from(rest >> 15) * 0xffff_ffff) << (32 * half);
            }
            Quarter { points, shift: Shift::Less(less) }
        }
        GgufBlocks::Iq1M => {
            let rest = long(b, 32 + 4 * q);
            let mut less = 0;
            for i in 0..8 {
                let own = rest >> (4 * i);
                points[i] = IQ1[usize::from(b[8 * q + i]) | (own << 8) as usize & 0x700];
                less |= (u64::from(own >> 3 & 1) * 0xff) << (8 * i);
            }
            Quarter { points, shift: Shift::Less(less) }
        }
        _ => unreachable!("a format without points"),
    }
}

/// Four times seven bits, each in a byte of its own.
#[inline(always)]
fn apart(rest: u32) -> u32 {
    rest & 0x7f | (rest & 0x3f80) << 1 | (rest & 0x1f_c000) << 2 | (rest & 0xfe0_0000) << 3
}

/// Sets the eighth bit of each byte of seven so that an even number is set.
#[inline(always)]
fn evened(sevens: u64) -> u64 {
    let folded = sevens ^ sevens >> 4;
    let folded = folded ^ folded >> 2;
    let folded = folded ^ folded >> 1;
    sevens | (folded & 0x0101_0101_0101_0101) << 7
}

/// The factors of the runs of a block, each in a byte: of eight runs of 32 columns, or of 16 of 16.
#[inline(always)]
pub(crate) fn factors(format: GgufBlocks, b: &[u8]) -> [u64; 2] {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let mut factors = [0u64; 2];
    match format {
        GgufBlocks::Iq2Xxs | GgufBlocks::Iq3Xxs | GgufBlocks::Iq1S => {
            for s in 0..8 {
                let factor = match format {
                    GgufBlocks::Iq2Xxs => long(b, 6 + 8 * s) >> 28,
                    GgufBlocks::Iq3Xxs => long(b, 66 + 4 * s) >> 28,
                    _ => u32::from(word(b, 34 + 2 * s)) >> 12 & 7,
                };
                factors[0] |= u64::from(factor) << (8 * s);
            }
        }
        GgufBlocks::Iq3S => factors[0] = nibbles(long(b, 106)),
        GgufBlocks::Iq2Xs => factors = [nibbles(long(b, 66)), nibbles(long(b, 70))],
        GgufBlocks::Iq2S => factors = [nibbles(long(b, 74)), nibbles(long(b, 78))],
        _ => {
            for run in 0..16 {
                let factor = word(b, 48 + run / 4 * 2) >> (3 * (run % 4)) & 7;
                factors[run / 8] |= u64::from(factor) << (8 * (run % 8));
            }
        }
    }
    factors.map(|factors| (2 * factors) | ONES)
}

/// Eight nibbles, each in a byte.
#[inline(always)]
fn nibbles(packed: u32) -> u64 {
    let spread = u64::from(packed);
    let spread = (spread | spread << 16) & 0x0000_ffff_0000_ffff;
    let spread = (spread | spread << 8) & 0x00ff_00ff_00ff_00ff;
    (spread | spread << 4) & 0x0f0f_0f0f_0f0f_0f0f
}
