//! The scalar reference: the meaning of every encoding and the canonical reduction, written as
//! plainly as possible. All other tiers are tested against this module, bit for bit.

#[path = "bf11/reference.rs"]
mod bf11;
#[path = "bf12/reference.rs"]
mod bf12;
#[path = "../matmul/reference/coded.rs"]
mod coded;
#[path = "float/reference.rs"]
mod float;
#[path = "fp7/reference.rs"]
mod fp7;
#[path = "gguf/reference.rs"]
mod gguf;
#[path = "../matmul/reference/int8.rs"]
mod int8;
#[path = "nested/reference.rs"]
mod nested;
#[path = "../scalar/number.rs"]
mod number;
#[path = "fp8/reference.rs"]
mod published;
#[path = "q/reference.rs"]
mod quant;

use crate::{Activations, Encoding, GgufBlocks, Matrix};

pub(crate) use bf11::{BF11_BLOCK, Escapes, patches_of, planes};
pub(crate) use bf12::count_escapes;
pub(crate) use coded::{
    Coding, E2M1_CODES, Fours, MINIMA_LANES, RunScales, SMALLEST, SPAN_COLS, UNIT_COLS, counted,
    fold, sum_of_16, unit_codes,
};
pub(crate) use fp7::{FP7_BLOCK, codes, has_nan_code, nibble_place};
pub(crate) use gguf::{DOUBLE_E2M1, IQ4_CODES, half_e8m0_to_f32};
pub(crate) use int8::{
    CodeForm, ROUND_COLS, SPAN_BLOCKS, SpanFactors as Int8Scales, code as int8_code,
};
pub(crate) use nested::{DISTANCES, REST_BLOCK, TOP_BLOCK, TOP_VALUES, split, united};
pub(crate) use number::{E2M1, bf16_to_f32, e4m3_to_f32, e8m0_to_f32, f16_to_f32};
pub(crate) use published::{BELOW_SCALE, group_scale, zero_point};

/// Columns in a block, the unit of decoding.
pub(crate) const BLOCK: usize = 64;

/// Partial sums of a dot product: column `c` goes to lane `c % 32`.
pub(crate) const LANES: usize = 32;

/// Calls `y(t, r, weights[r] · x[t])` for all tokens and rows. Tokens are `stride` apart in `x`.
pub(crate) fn matmul(
    activations: Activations,
    weights: &Matrix,
    x: &[f32],
    stride: usize,
    mut y: impl FnMut(usize, usize, f32),
) {
    let coding = Coding::of(weights.encoding());
    let cols = weights.cols();
    let form = match activations {
        Activations::F32 => None,
        Activations::Int8 => CodeForm::of(weights.encoding()),
    };
    let mut row = vec![0.0; cols];
    for r in 0..weights.row_count() {
        if coding.is_none() && form.is_none() {
            decode_row(weights, r, &mut row);
        }
        for (t, x) in x.chunks_exact(stride).enumerate() {
            y(
                t,
                r,
                match (form, coding) {
                    (Some(form), _) => int8::dot(form, weights, r, &x[..cols]),
                    (None, Some(coding)) => coded::dot(coding, weights, r, &x[..cols]),
                    (None, None) => dot(&row, x),
                },
            );
        }
    }
}

/// `y[t] += Σ x[t][r] · weights[r]`. Tokens are a stride apart, the second of each pair.
pub(crate) fn matmul_transposed(
    weights: &Matrix,
    tokens: usize,
    (x, x_stride): (&[f32], usize),
    (y, y_stride): (&mut [f32], usize),
) {
    let mut row = vec![0.0; weights.cols()];
    for r in 0..weights.row_count() {
        decode_row(weights, r, &mut row);
        for t in 0..tokens {
            let to = &mut y[t * y_stride..][..row.len()];
            for (y, w) in to.iter_mut().zip(&row) {
                *y = w.mul_add(x[t * x_stride + r], *y);
            }
        }
    }
}

/// The canonical dot product.
pub(crate) fn dot(w: &[f32], x: &[f32]) -> f32 {
    let mut acc = [0f32; LANES];
    for (c, (w, x)) in w.iter().zip(x).enumerate() {
        acc[c % LANES] = w.mul_add(*x, acc[c % LANES]);
    }
    reduce(acc)
}

/// The fixed tree: lane i with i+16, then +8, +4, +2, +1.
pub(crate) fn reduce(mut acc: [f32; LANES]) -> f32 {
    for half in [16, 8, 4, 2, 1] {
        for i in 0..half {
            acc[i] += acc[i + half];
        }
    }
    acc[0]
}

/// Decodes all weights of a row.
pub(crate) fn decode_row(m: &Matrix, row: usize, out: &mut [f32]) {
    let mut patches = m.patches(m.encoding(), row);
    for (block, out) in out.chunks_mut(BLOCK).enumerate() {
        decode_block(m, row, block, &mut patches, out);
    }
}

/// Decodes one block of a row of bf12, bf11 or nested to bf16 bits.
pub(crate) fn bits(m: &Matrix, row: usize, block: usize, patches: &mut &[u8], out: &mut [u16]) {
    match m.encoding() {
        Encoding::Bf11 => bf11::bf11_block(m, row, block, patches, out),
        Encoding::Nested => nested::block(m, row, block, patches, out),
        _ => bf12::bf12_block(m, row, block, patches, out),
    }
}

/// Decodes one block of at most 64 columns. `patches` are those from this block on and are advanced
/// past those used.
pub(crate) fn decode_block(
    m: &Matrix,
    row: usize,
    block: usize,
    patches: &mut &[u8],
    out: &mut [f32],
) {
    if let Some(coding) = Coding::of(m.encoding()) {
        return coded::weights(coding, m, row, block, out);
    }
    match m.encoding() {
        Encoding::F32 => float::f32(m, row, block, out),
        Encoding::F16 => float::f16(m, row, block, out),
        Encoding::Bf16 => float::bf16(m, row, block, out),
        Encoding::Bf12 | Encoding::Bf11 | Encoding::Nested => {
            let mut numbers = [0; BLOCK];
            bits(m, row, block, patches, &mut numbers[..out.len()]);
            for (out, bits) in out.iter_mut().zip(numbers) {
                *out = bf16_to_f32(bits);
            }
        }
        Encoding::Top => nested::top(m, row, block, out),
        Encoding::Fp7(scales) => fp7::block(scales, m, row, block, patches, out),
        Encoding::Q8 => quant::q8(m, row, block, out),
        Encoding::Fp8 => published::e4m3(m, row, block, out),
        Encoding::Mxfp4 => quant::mxfp4(m, row, block, out),
        Encoding::Gguf(GgufBlocks::Q8_0) => gguf::q8_0(m, row, block, out),
        Encoding::Gguf(_) => gguf::mxfp4(m, row, block, out),
        Encoding::Published(layout) => published::decode(layout, m, row, block, out),
        Encoding::Q4 => unreachable!("it has codes"),
    }
}

/// Position of column `c` in a whole block of bf12 or q4: `4i + k` for column `16k + i`.
pub(crate) fn interleaved(c: usize) -> usize {
    4 * (c % 16) + c / 16
}

/// Position of column `c` in a whole block of bf11 or nested. Bytes that are unpacked to pairs of neighbours
/// within each sixteen bytes then have their columns in order.
pub(crate) const fn paired(c: usize) -> usize {
    let k = c / 16;
    let i = c % 16;
    16 * (i / 4) + 8 * (k / 2) + 2 * (i % 4) + k % 2
}

/// Nibble `at`, the low one of a byte first.
fn nibble(bytes: &[u8], at: usize) -> u8 {
    bytes[at / 2] >> (4 * (at % 2)) & 15
}
