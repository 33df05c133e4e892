//! Codes of published checkpoints, with scales in tensors of their own.

use super::quant::bf16_at;
use super::{BLOCK, e4m3_to_f32, e8m0_to_f32, nibble};
use crate::{Fp8Scales, Matrix, Published};

pub(super) fn decode(layout: Published, m: &Matrix, row: usize, block: usize, out: &mut [f32]) {
    let scales = m.scales(m.encoding(), row);
    match layout {
        Published::Fp8Bf16
        | Published::Fp8E8m0
        | Published::Fp8Rows
        | Published::Fp8RowsBf16
        | Published::Fp8Whole
        | Published::Fp8WholeBf16
        | Published::Mxfp8 => e4m3(m, row, block, out),
        Published::Int4ActOrder32 | Published::Int4ActOrder64 | Published::Int4ActOrder128 => {
            let order = m.part(2).as_chunks().0;
            let last = (scales.len() / 4).saturating_sub(1);
            zeros(m, row, block, out, |c| usize::from(u16::from_le_bytes(order[c])).min(last));
        }
        _ => unreachable!("it has codes"),
    }
}

pub(super) fn e4m3(m: &Matrix, row: usize, block: usize, out: &mut [f32]) {
    let kind = Fp8Scales::of(m.encoding()).expect("an encoding of e4m3");
    let scale = fp8_scales(kind, m.scales(m.encoding(), row), block);
    let codes = &m.row_bytes(0, row)[BLOCK * block..];
    for (c, (out, code)) in out.iter_mut().zip(codes).enumerate() {
        *out = e4m3_to_f32(*code) * scale(c);
    }
}

/// The scale of each column of a block, from those of its row.
pub(super) fn fp8_scales(kind: Fp8Scales, scales: &[u8], block: usize) -> impl Fn(usize) -> f32 {
    move |c| match kind {
        Fp8Scales::Squares => f32_at(scales, block / 2),
        Fp8Scales::SquaresBf16 => bf16_at(scales, block / 2),
        Fp8Scales::SquaresE8m0 => e8m0_to_f32(scales[block / 2]),
        Fp8Scales::Rows | Fp8Scales::Whole => f32_at(scales, 0),
        Fp8Scales::RowsBf16 | Fp8Scales::WholeBf16 => bf16_at(scales, 0),
        Fp8Scales::Thirtytwos => e8m0_to_f32(scales[(BLOCK * block + c) / 32]),
    }
}

/// Codes less the zero point of their group; `group` has that of each column of the matrix.
fn zeros(m: &Matrix, row: usize, block: usize, out: &mut [f32], group: impl Fn(usize) -> usize) {
    let codes = &m.row_bytes(0, row)[BLOCK / 2 * block..];
    let units = m.row_bytes(1, row).as_chunks().0;
    for (c, out) in out.iter_mut().enumerate() {
        let unit = u32::from_le_bytes(units[group(BLOCK * block + c)]);
        *out = (f32::from(nibble(codes, c)) - zero_point(unit)) * group_scale(unit);
    }
}

/// The bits of a unit below those of a scale that was f16 or bf16.
pub(crate) const BELOW_SCALE: u32 = 0x1fff;

/// The scale of a group, from its unit.
pub(crate) fn group_scale(unit: u32) -> f32 {
    f32::from_bits(unit & !BELOW_SCALE)
}

/// The zero point of a group, from its unit.
pub(crate) fn zero_point(unit: u32) -> f32 {
    (unit & 15) as f32
}

pub(super) fn f32_at(bytes: &[u8], index: usize) -> f32 {
    f32::from_le_bytes(bytes.as_chunks().0[index])
}
