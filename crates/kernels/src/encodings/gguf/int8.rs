//! Kernels of GGUF's formats for products with rounded activations.

use super::blocks::iq4_xs_scales;
use super::quarters::{both, of_16, of_32, of_64, q3_k_runs};
use super::reference::{IQ4_CODES, half_e8m0_to_f32};
use crate::encodings::SpanScales;
use crate::encodings::int8::{eights, of_bytes};
use crate::scalar::E2M1_CODES;
use crate::simd::int8::{Eight, Integers};
use crate::simd::{Bytes, Codes};
use crate::{Encoding, GgufBlocks};

/// Scales of twice the values of e2m1, of which none is NaN.
const HALVES: [f32; 256] = {
    let mut all = [0.0; 256];
    let mut i = 0;
    while i < 256 {
        all[i] = half_e8m0_to_f32(i as u8);
        i += 1;
    }
    all
};

/// The values of iq4_nl and iq4_xs.
const IQ4: [u8; 16] = {
    let mut values = [0; 16];
    let mut i = 0;
    while i < 16 {
        values[i] = IQ4_CODES[i].wrapping_sub(127);
        i += 1;
    }
    values
};

/// Offset of block `2 · unit` of 32 columns, and the bytes of a block.
const fn blocks(format: GgufBlocks, unit: usize) -> (usize, usize) {
    (2 * unit * format.bytes(), format.bytes())
}

/// An f16 number in eight lanes, with the bits of `sign` inverted.
///
/// # Safety
///
/// Two bytes must be readable.
#[inline(always)]
unsafe fn half<N: Integers>(n: N, p: *const u8, sign: u16) -> Eight<N> {
    // SAFETY: by this function's contract, and eight equal numbers.
    unsafe {
        let bits = [of_16(p) ^ sign; 8];
        n.simd().f16_h(bits.as_ptr().cast(), 2)
    }
}

const LOW: u64 = 0x0f0f_0f0f_0f0f_0f0f;

eights! {
    Q4_0, Encoding::Gguf(GgufBlocks::Q4_0), 144, 0, |n, p, unit| {
        let (at, bytes) = blocks(GgufBlocks::Q4_0, unit);
        let first = p.add(at + 2);
        n.simd().and_b(n.simd().load_halved(first, first.add(bytes)), 15)
    }, |n, p, _scales, span| {
        SpanScales::new(n, n.simd().f16_h(p.add(144 * span), 18))
    }
    Q4_1, Encoding::Gguf(GgufBlocks::Q4_1), 160, 0, |n, p, unit| {
        let (at, bytes) = blocks(GgufBlocks::Q4_1, unit);
        let first = p.add(at + 4);
        n.simd().and_b(n.simd().load_halved(first, first.add(bytes)), 15)
    }, |n, p, _scales, span| {
        let p = p.add(160 * span);
        SpanScales { minima: n.simd().f16_h(p.add(2), 20), ..SpanScales::new(n, n.simd().f16_h(p, 20)) }
    }
    Q5_0, Encoding::Gguf(GgufBlocks::Q5_0), 176, 0, |n, p, unit| {
        let (at, bytes) = blocks(GgufBlocks::Q5_0, unit);
        let first = p.add(at);
        let second = p.add(at + bytes);
        let codes = n.simd().and_b(n.simd().load_halved(first.add(6), second.add(6)), 15);
        n.simd().add_where(codes, both(of_32(first.add(2)), of_32(second.add(2))), 16)
    }, |n, p, _scales, span| {
        SpanScales::new(n, n.simd().f16_h(p.add(176 * span), 22))
    }
    Q5_1, Encoding::Gguf(GgufBlocks::Q5_1), 192, 0, |n, p, unit| {
        let (at, bytes) = blocks(GgufBlocks::Q5_1, unit);
        let first = p.add(at);
        let second = p.add(at + bytes);
        let codes = n.simd().and_b(n.simd().load_halved(first.add(8), second.add(8)), 15);
        n.simd().add_where(codes, both(of_32(first.add(4)), of_32(second.add(4))), 16)
    }, |n, p, _scales, span| {
        let p = p.add(192 * span);
        SpanScales { minima: n.simd().f16_h(p.add(2), 24), ..SpanScales::new(n, n.simd().f16_h(p, 24)) }
    }
    Q8_0, Encoding::Gguf(GgufBlocks::Q8_0), 272, 0, |n, p, unit| {
        let (at, bytes) = blocks(GgufBlocks::Q8_0, unit);
        n.load_two(p.add(at + 2), p.add(at + bytes + 2))
    }, |n, p, _scales, span| {
        SpanScales::new(n, n.simd().f16_h(p.add(272 * span), 34))
    }
    Iq4Nl, Encoding::Gguf(GgufBlocks::Iq4Nl), 144, 0, |n, p, unit| {
        let (at, bytes) = blocks(GgufBlocks::Iq4Nl, unit);
        let first = p.add(at + 2);
        let nibbles = n.simd().load_halved(first, first.add(bytes));
        n.lookup_b(&IQ4, n.simd().and_b(nibbles, 15))
    }, |n, p, _scales, span| {
        SpanScales::new(n, n.simd().f16_h(p.add(144 * span), 18))
    }
    Mxfp4, Encoding::Gguf(GgufBlocks::Mxfp4), 136, 0, |n, p, unit| {
        let (at, bytes) = blocks(GgufBlocks::Mxfp4, unit);
        let first = p.add(at + 1);
        let nibbles = n.simd().load_halved(first, first.add(bytes));
        n.lookup_b(&E2M1_CODES, n.simd().and_b(nibbles, 15))
    }, |n, p, _scales, span| {
        of_bytes(n, &HALVES, p.add(136 * span), 17)
    }
    Iq4Xs, Encoding::Gguf(GgufBlocks::Iq4Xs), 136, 0, |n, p, unit| {
        let p = p.add(136 * (unit / 4) + 8 + 32 * (unit % 4));
        n.lookup_b(&IQ4, n.simd().and_b(n.simd().load_halved(p, p.add(16)), 15))
    }, |n, p, _scales, span| {
        let mut scales = [0.0f32; 16];
        iq4_xs_scales(n.simd(), p.add(136 * span), scales.as_mut_ptr());
        SpanScales::new(n, n.simd().load_h(scales.as_ptr()))
    }
    Q2K, Encoding::Gguf(GgufBlocks::Q2K), 84, 0, |n, p, unit| {
        let q = unit % 4;
        let by = 4 * (q % 2) as u32;
        let p = p.add(84 * (unit / 4) + 16 + 32 * (q / 2));
        n.simd().and_b(n.simd().load_b_shifted(p, [by, by + 2]), 3)
    }, |n, p, _scales, span| {
        let p = p.add(84 * span);
        let codes = [of_64(p), of_64(p.add(8))];
        SpanScales {
            scales: half(n, p.add(80), 0),
            minima: half(n, p.add(82), 0x8000),
            runs: [codes[0] & LOW, codes[1] & LOW],
            minima_of_runs: [codes[0] >> 4 & LOW, codes[1] >> 4 & LOW],
        }
    }
    Tq2_0, Encoding::Gguf(GgufBlocks::Tq2_0), 66, 0, |n, p, unit| {
        let q = unit % 4;
        let by = 4 * (q % 2) as u32;
        let p = p.add(66 * (unit / 4) + 32 * (q / 2));
        n.simd().and_b(n.simd().load_b_shifted(p, [by, by + 2]), 3)
    }, |n, p, _scales, span| {
        SpanScales::new(n, half(n, p.add(66 * span + 64), 0))
    }
    Q3K, Encoding::Gguf(GgufBlocks::Q3K), 110, 0, |n, p, unit| {
        let p = p.add(110 * (unit / 4));
        let q = unit % 4;
        let by = 4 * (q % 2) as u32;
        let codes = n.simd().load_b_shifted(p.add(32 + 32 * (q / 2)), [by, by + 2]);
        let codes = n.simd().and_b(codes, 3);
        let thirds = n.simd().load_b_shifted(p, [0, 0]);
        n.simd().add_tested(codes, thirds, [1 << (2 * q), 2 << (2 * q)], 4)
    }, |n, p, _scales, span| {
        let p = p.add(110 * span);
        let runs = q3_k_runs(p);
        SpanScales { runs, ..SpanScales::new(n, half(n, p.add(108), 0)) }
    }
    Q4K, Encoding::Gguf(GgufBlocks::Q4K), 144, 0, |n, p, unit| {
        let p = p.add(144 * (unit / 4) + 16 + 32 * (unit % 4));
        n.simd().and_b(n.simd().load_b_shifted(p, [0, 4]), 15)
    }, |n, p, _scales, span| {
        let [scales, minima] = n.simd().scales_and_minima(p.add(144 * span));
        SpanScales { minima, ..SpanScales::new(n, scales) }
    }
    Q5K, Encoding::Gguf(GgufBlocks::Q5K), 176, 0, |n, p, unit| {
        let p = p.add(176 * (unit / 4));
        let q = unit % 4;
        let codes = n.simd().and_b(n.simd().load_b_shifted(p.add(48 + 32 * q), [0, 4]), 15);
        let fifths = n.simd().load_b_shifted(p.add(16), [0, 0]);
        n.simd().add_tested(codes, fifths, [1 << (2 * q), 2 << (2 * q)], 16)
    }, |n, p, _scales, span| {
        let [scales, minima] = n.simd().scales_and_minima(p.add(176 * span));
        SpanScales { minima, ..SpanScales::new(n, scales) }
    }
    Q6K, Encoding::Gguf(GgufBlocks::Q6K), 210, 0, |n, p, unit| {
        let p = p.add(210 * (unit / 4));
        let q = unit % 4;
        let odd = 4 * (q % 2) as u32;
        let low = n.simd().and_b(n.simd().shr_b(n.simd().load_b(p.add(64 * (q / 2))), odd), 15);
        let high = n.simd().load_b_shifted(p.add(128 + 32 * (q / 2)), [odd, odd + 2]);
        n.simd().or_b(low, n.simd().shl4_b(n.simd().and_b(high, 3)))
    }, |n, p, _scales, span| {
        let p = p.add(210 * span);
        let runs = [of_64(p.add(192)), of_64(p.add(200))];
        SpanScales { runs, ..SpanScales::new(n, half(n, p.add(208), 0)) }
    }
}
