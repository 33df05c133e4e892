//! The codebooks of [`codebook`](super::codebook) in two bytes an entry, for lookups in registers: the numbers
//! stay codes, which with their signs stand for one of sixteen numbers.

use super::codebook::{IQ1_NUMBERS, IQ2_NUMBERS, IQ3_S_NUMBERS, IQ3_XXS_NUMBERS, packed};
use crate::GgufBlocks;

/// Entries of eight numbers from `first` on: two bits each, the first one lowest.
pub(crate) const fn words<const N: usize>(first: usize) -> [[u16; 32]; N] {
    let mut words = [[0; 32]; N];
    let mut i = 0;
    while i < 32 * N {
        words[i / 32][i % 32] = packed(first + i) as u16;
        i += 1;
    }
    words
}

/// Entries of four numbers from `first` on: four bits each, the first and the third in the lower byte.
pub(crate) const fn words_of_four<const N: usize>(first: usize) -> [[u16; 32]; N] {
    let mut words = [[0; 32]; N];
    let mut i = 0;
    while i < 32 * N {
        let point = packed(first + i);
        let even = point & 15 | (point >> 8 & 15) << 4;
        let odd = point >> 4 & 15 | (point >> 12 & 15) << 4;
        words[i / 32][i % 32] = (even | odd << 8) as u16;
        i += 1;
    }
    words
}

/// Entries of eight numbers from `first` on: four bits each, of which two are used. Those of even
/// columns are in the lower half.
pub(crate) const fn apart<const N: usize>(first: usize) -> [u32; N] {
    let mut points = [0; N];
    let mut i = 0;
    while i < N {
        let point = packed(first + i) as u32;
        points[i] = point & 0x3333 | (point >> 2 & 0x3333) << 16;
        i += 1;
    }
    points
}

/// The numbers of codes of four bits.
pub(crate) type Numbers = [f32; 16];

/// The numbers of a format with a codebook. The codes have a sign or a shift above two bits, where the fourth
/// does not matter, or a sign above three.
pub(crate) fn numbers(format: GgufBlocks) -> &'static Numbers {
    static IQ1: Numbers = with_top(IQ1_NUMBERS, 1, 1);
    static IQ2: Numbers = with_top(IQ2_NUMBERS, -1, 0);
    static IQ3_XXS: Numbers = with_top(IQ3_XXS_NUMBERS, -1, 0);
    static IQ3_S: Numbers = with_top(IQ3_S_NUMBERS, -1, 0);
    match format {
        GgufBlocks::Iq1S | GgufBlocks::Iq1M => &IQ1,
        GgufBlocks::Iq2Xxs | GgufBlocks::Iq2Xs | GgufBlocks::Iq2S => &IQ2,
        GgufBlocks::Iq3Xxs => &IQ3_XXS,
        GgufBlocks::Iq3S => &IQ3_S,
        _ => unreachable!("a format without points"),
    }
}

/// Numbers and `shift`, and then the numbers times `factor` less `shift`, again and again.
const fn with_top<const N: usize>(numbers: [i8; N], factor: i8, shift: i8) -> Numbers {
    let mut all = [0.0; 16];
    let mut i = 0;
    while i < 16 {
        let number = numbers[i % N];
        all[i] =
            if (i / N).is_multiple_of(2) { number + shift } else { number * factor - shift } as f32;
        i += 1;
    }
    all
}
