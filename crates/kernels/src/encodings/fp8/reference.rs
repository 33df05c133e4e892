//! fp8 in scalars.

use crate::encodings::scan::{any_share, bytes, halves, large};
use crate::scalar::{BLOCK, bf16_at, e4m3_to_f32, e8m0_to_f32, f32_at};
use crate::{Fp8Scales, Matrix};

/// Decodes one block of a row.
pub(in crate::encodings) fn block(
    kind: Fp8Scales,
    m: &Matrix,
    row: usize,
    block: usize,
    out: &mut [f32],
) {
    let scale = scales(kind, m.scales(m.encoding(), row), block);
    let codes = &m.row_bytes(0, row)[BLOCK * block..];
    for (c, (out, code)) in out.iter_mut().zip(codes).enumerate() {
        *out = e4m3_to_f32(*code) * scale(c);
    }
}

/// The scale of each column of a block, from those of its row.
pub(in crate::encodings) fn scales(
    kind: Fp8Scales,
    scales: &[u8],
    block: usize,
) -> impl Fn(usize) -> f32 {
    move |c| match kind {
        Fp8Scales::Squares => f32_at(scales, block / 2),
        Fp8Scales::SquaresBf16 => bf16_at(scales, block / 2),
        Fp8Scales::SquaresE8m0 => e8m0_to_f32(scales[block / 2]),
        Fp8Scales::Rows | Fp8Scales::Whole => f32_at(scales, 0),
        Fp8Scales::RowsBf16 | Fp8Scales::WholeBf16 => bf16_at(scales, 0),
        Fp8Scales::Thirtytwos => e8m0_to_f32(scales[(BLOCK * block + c) / 32]),
    }
}

/// True if a code is NaN, or a scale may make one.
pub(in crate::encodings) fn may_be_special(kind: Fp8Scales, m: &Matrix) -> bool {
    any_share(m.part(0), |codes| bytes(codes, 0x7f)) || may_overflow(kind, m.part(1))
}

/// True if a scale is NaN, or so large that the largest code exceeds f32: from 2¹¹⁹ on for 448.
pub(in crate::encodings) fn may_overflow(kind: Fp8Scales, scales: &[u8]) -> bool {
    match kind {
        Fp8Scales::Squares | Fp8Scales::Rows | Fp8Scales::Whole => large(scales, 2f32.powi(119)),
        Fp8Scales::SquaresBf16 | Fp8Scales::RowsBf16 | Fp8Scales::WholeBf16 => {
            halves(scales, (119 + 127) << 7)
        }
        Fp8Scales::SquaresE8m0 | Fp8Scales::Thirtytwos => scales.iter().any(|&n| n >= 119 + 127),
    }
}
