//! int4 in scalars.

use crate::encodings::scan::{halves, large};
use crate::scalar::{BLOCK, bf16_at, group_scale, nibble, zero_point};
use crate::{Int4Groups, Matrix};

/// The code of a column.
pub(in crate::encodings) fn code(m: &Matrix, row: usize, col: usize) -> u8 {
    nibble(m.row_bytes(0, row), col)
}

/// The scale of a column.
pub(in crate::encodings) fn scale(groups: Int4Groups, m: &Matrix, row: usize, col: usize) -> f32 {
    let scales = m.row_bytes(1, row);
    match groups {
        Int4Groups::Symmetric32 => bf16_at(scales, col / 32),
        Int4Groups::Symmetric128 => bf16_at(scales, col / 128),
        Int4Groups::Zeros(_) | Int4Groups::ActOrder(_) => group_scale(unit(groups, m, row, col)),
    }
}

/// What a code of zero stands for.
pub(in crate::encodings) fn minimum(groups: Int4Groups, m: &Matrix, row: usize, col: usize) -> f32 {
    let unit = unit(groups, m, row, col);
    -zero_point(unit) * group_scale(unit)
}

/// The scale and zero point of a column whose group is in order.
fn unit(groups: Int4Groups, m: &Matrix, row: usize, col: usize) -> u32 {
    let group = groups.zeros_group().expect("groups with zero points") as usize;
    u32::from_le_bytes(m.row_bytes(1, row).as_chunks().0[col / group])
}

/// Decodes one block of a row whose columns lie in groups in any order.
pub(in crate::encodings) fn in_any_order(m: &Matrix, row: usize, block: usize, out: &mut [f32]) {
    let order = m.part(2).as_chunks().0;
    let codes = &m.row_bytes(0, row)[BLOCK / 2 * block..];
    let units = m.row_bytes(1, row).as_chunks().0;
    let last = units.len().saturating_sub(1);
    for (c, out) in out.iter_mut().enumerate() {
        let group = usize::from(u16::from_le_bytes(order[BLOCK * block + c])).min(last);
        let unit = u32::from_le_bytes(units[group]);
        *out = (f32::from(nibble(codes, c)) - zero_point(unit)) * group_scale(unit);
    }
}

/// True if a scale is NaN, infinite or so large that a code exceeds f32: codes are at most 8, and less zero
/// points 15.
pub(in crate::encodings) fn may_overflow(groups: Int4Groups, m: &Matrix) -> bool {
    match groups {
        Int4Groups::Symmetric32 | Int4Groups::Symmetric128 => halves(m.part(1), (125 + 127) << 7),
        Int4Groups::Zeros(_) | Int4Groups::ActOrder(_) => large(m.part(1), 2f32.powi(123)),
    }
}
