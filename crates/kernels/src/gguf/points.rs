//! Formats whose codes are numbers of points in tables: eight weights, or four, share a code.
//!
//! A weight is an f16 scale, times a power of two, times a small whole number for 16 or 32 columns,
//! times the point's number. All these products are exact.

use super::GgufBlocks;

/// The tables, one after another: two bytes for each point, with two bits for each of eight numbers,
/// or four for each of four. Made by `tests/goldens/gguf_points.py`.
const PACKED: &[u8; 2 * 4608] = include_bytes!("points.bin");

static IQ2_XXS: [[i8; 8]; 256] = eights(0, [8, 25, 43, 0]);
static IQ2_XS: [[i8; 8]; 512] = eights(256, [8, 25, 43, 0]);
static IQ2_S: [[i8; 8]; 1024] = eights(768, [8, 25, 43, 0]);
/// Times eight.
static IQ1: [[i8; 8]; 2048] = eights(1792, [-8, 0, 8, 0]);
static IQ3_XXS: [[i8; 4]; 256] = fours(3840, [4, 12, 20, 28, 36, 44, 52, 62]);
static IQ3_S: [[i8; 4]; 512] = fours(4096, [1, 3, 5, 7, 9, 11, 13, 15]);

const fn packed(point: usize) -> usize {
    PACKED[2 * point] as usize | (PACKED[2 * point + 1] as usize) << 8
}

/// Points from `first` on, of these numbers.
const fn eights<const N: usize>(first: usize, numbers: [i8; 4]) -> [[i8; 8]; N] {
    let mut points = [[0; 8]; N];
    let mut i = 0;
    while i < 8 * N {
        points[i / 8][i % 8] = numbers[packed(first + i / 8) >> (2 * (i % 8)) & 3];
        i += 1;
    }
    points
}

const fn fours<const N: usize>(first: usize, numbers: [i8; 8]) -> [[i8; 4]; N] {
    let mut points = [[0; 4]; N];
    let mut i = 0;
    while i < 4 * N {
        points[i / 4][i % 4] = numbers[packed(first + i / 4) >> (4 * (i % 4)) & 7];
        i += 1;
    }
    points
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

/// Weights `8·g` to `8·g + 7` of a block. Only for formats with points.
#[inline(always)]
pub(crate) fn group(format: GgufBlocks, b: &[u8], g: usize) -> Group {
    let (s, of_s) = (g / 4, g % 4);
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
fn both(first: [i8; 4], second: [i8; 4]) -> [i8; 8] {
    let ([a, b, c, d], [e, f, g, h]) = (first, second);
    [a, b, c, d, e, f, g, h]
}

#[inline(always)]
fn signed(point: [i8; 8], signs: u8) -> [i8; 8] {
    let mut numbers = point;
    for (i, number) in numbers.iter_mut().enumerate() {
        let sign = -((signs >> i & 1) as i8);
        *number = (*number ^ sign) - sign;
    }
    numbers
}

/// An eighth more than the point, or less.
#[inline(always)]
fn shifted(point: [i8; 8], less: u16) -> [i8; 8] {
    let by = 1 - 2 * less as i8;
    point.map(|number| number + by)
}
