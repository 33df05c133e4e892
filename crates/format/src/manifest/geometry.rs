//! Shapes of packed matrices, and positions of their numbers.

use sws_kernels::{Encoding, Int4Groups, ZerosGroup};

use super::{Packing, Tensor, TensorOrigin};
use crate::Dtype;

/// The tensors of a packed matrix, as the endings that replace `.weight` in its name, in the order
/// of [`Tensor::origins`]. The last one is absent if columns are in order by convention.
pub(crate) const PARTS: [&str; 4] = [".qweight", ".qzeros", ".scales", ".g_idx"];

/// Maximum number of rows, and of columns, of a packed matrix. It bounds the memory for repacking,
/// and keeps the number of groups below 2¹⁶.
const MAX_SIDE: u64 = 1 << 20;

impl Packing {
    /// The position of a row in an integer of eight codes.
    pub fn place(self, row: u64) -> u32 {
        match self {
            Packing::Awq => [0, 4, 1, 5, 2, 6, 3, 7][(row % 8) as usize],
            Packing::Gptq | Packing::GptqV2 => (row % 8) as u32,
        }
    }

    /// The number added to an integer of zero points: one to each of them, with carries, as in
    /// GPTQModel. Without a zero point of 0, none of them carries.
    pub fn offset(self) -> u32 {
        match self {
            Packing::Gptq => 0x1111_1111,
            Packing::Awq | Packing::GptqV2 => 0,
        }
    }
}

/// The shape of a packed matrix and its groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Rows of the matrix.
    pub rows: u64,
    /// Columns of the matrix.
    pub cols: u64,
    /// Number of groups in the checkpoint.
    pub groups: u64,
    /// Number of columns of a group in the checkpoint.
    group: u64,
    /// Number of columns of a group in shards, which split larger groups.
    unit: u64,
}

impl Geometry {
    /// The geometry of a matrix with this number of groups; `None` if no group size gives that
    /// number.
    fn new(rows: u64, cols: u64, groups: u64) -> Option<Geometry> {
        let sides = 1..=MAX_SIDE;
        let whole = rows.is_multiple_of(8) && cols.is_multiple_of(8);
        if !whole || !sides.contains(&rows) || !sides.contains(&cols) {
            return None;
        }
        // For a matrix with a single group, several group sizes fit. All of them mean the same.
        let largest = cols.next_power_of_two().max(128);
        let mut lengths = (5..=largest.ilog2()).rev().map(|log| 1 << log);
        let group = lengths.find(|&group| cols.div_ceil(group) == groups)?;
        Some(Geometry { rows, cols, groups, group, unit: group.min(128) })
    }

    /// The geometry of a matrix from its tensors, in the order of `PARTS`. On failure, the index
    /// of the first tensor that does not fit.
    pub fn of(packing: Packing, origins: &[TensorOrigin]) -> Result<Geometry, usize> {
        let origin = |part: usize| origins.get(part).ok_or(0usize);
        let &[outer, inner] = origin(0)?.shape.as_slice() else { return Err(0) };
        let (rows, cols) = match packing {
            Packing::Awq => (inner.checked_mul(8), Some(outer)),
            Packing::Gptq | Packing::GptqV2 => (Some(inner), outer.checked_mul(8)),
        };
        let rows = rows.ok_or(0usize)?;
        let cols = cols.ok_or(0usize)?;
        let &[groups, _] = origin(2)?.shape.as_slice() else { return Err(2) };
        let this = Geometry::new(rows, cols, groups).ok_or(2usize)?;
        // In GPTQ the last group may have fewer columns.
        let even = packing != Packing::Awq || groups == 1 || cols.is_multiple_of(this.group);
        let fits = |part: usize, shape: &[u64], types: &[Dtype]| {
            let origin = origin(part)?;
            let fits = origin.shape == shape && types.contains(&origin.dtype);
            if fits { Ok(()) } else { Err(part) }
        };
        fits(0, &[outer, inner], &[Dtype::I32])?;
        fits(2, &[groups, rows], if even { &[Dtype::F16, Dtype::BF16] } else { &[] })?;
        fits(1, &[groups, rows / 8], &[Dtype::I32])?;
        if origins.len() > 3 {
            fits(3, &[cols], &[Dtype::I32])?;
        }
        if origins.len() > PARTS.len() { Err(0) } else { Ok(this) }
    }

    /// The geometry of a manifest's tensor; `None` if it does not match the tensor's encoding.
    pub fn of_tensor(packing: Packing, tensor: &Tensor) -> Option<Geometry> {
        let this = Geometry::of(packing, &tensor.origins).ok()?;
        let Some(Encoding::Int4(groups)) = tensor.encoding else { return None };
        let same = tensor.shape == [this.rows, this.cols]
            && this.encoding(groups.has_order()) == Encoding::Int4(groups)
            && (tensor.origins.len() == PARTS.len() || !groups.has_order());
        same.then_some(this)
    }

    /// The encoding in shards. The columns of a single group need no order.
    pub fn encoding(self, act_order: bool) -> Encoding {
        let group = match self.unit {
            32 => ZerosGroup::Of32,
            64 => ZerosGroup::Of64,
            _ => ZerosGroup::Of128,
        };
        Encoding::Int4(match act_order && self.groups > 1 {
            true => Int4Groups::ActOrder(group),
            false => Int4Groups::Zeros(group),
        })
    }

    /// Number of columns of a group in the checkpoint; all columns if there is only one group.
    pub fn columns_of_group(self) -> u64 {
        self.group.min(self.cols)
    }

    /// True if this group size agrees with the checkpoint's configuration.
    pub fn has_groups_of(self, group: u64) -> bool {
        group > 0 && self.cols.div_ceil(group) == self.groups
    }

    /// Number of groups per row in shards.
    pub fn units(self) -> u64 {
        self.cols.div_ceil(self.unit)
    }

    /// Number of groups in shards per group of the checkpoint. The last group may have fewer.
    pub fn units_per_group(self) -> u64 {
        self.group / self.unit
    }

    /// The group of a column, if columns are in order.
    pub fn group_in_order(self, col: u64) -> u64 {
        col / self.group
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(dtype: Dtype, shape: &[u64]) -> TensorOrigin {
        TensorOrigin { name: String::new(), dtype, shape: shape.to_vec() }
    }

    #[test]
    fn groups_are_found_by_their_number() {
        #[rustfmt::skip]
        let cases = [
            // columns, groups, columns of a group in shards, groups there, of one group
            (128, 1, 128, 1, 1),
            (96, 3, 32, 3, 1),
            (256, 4, 64, 4, 1),
            (160, 2, 128, 2, 1),
            (1024, 4, 128, 8, 2),
            (1024, 1, 128, 8, 8),
            (40, 1, 128, 1, 1),
            (2056, 3, 128, 17, 8),
        ];
        for (cols, groups, unit, units, each) in cases {
            let found = Geometry::new(8, cols, groups).unwrap();
            assert_eq!((found.unit, found.units()), (unit, units), "{cols} in {groups}");
            assert_eq!(found.units_per_group().min(units), each, "{cols} in {groups}");
            assert!(found.group_in_order(cols - 1) == groups - 1);
            assert!((groups - 1) * found.units_per_group() < units);
        }
        for (cols, groups) in [(128, 0), (128, 5), (128, 8), (96, 2), (0, 1), (12, 1), (1 << 21, 1)]
        {
            let expected = if (cols, groups) == (96, 2) { Some(64) } else { None };
            let found = Geometry::new(8, cols, groups).map(|found| found.group);
            assert_eq!(found, expected, "{cols} in {groups}");
        }
    }

    #[test]
    fn first_tensor_that_does_not_fit_is_named() {
        let good = || {
            vec![
                origin(Dtype::I32, &[16, 24]),
                origin(Dtype::I32, &[4, 3]),
                origin(Dtype::F16, &[4, 24]),
                origin(Dtype::I32, &[128]),
            ]
        };
        assert!(Geometry::of(Packing::Gptq, &good()).is_ok());
        let cases: [(usize, Dtype, &[u64]); 9] = [
            (0, Dtype::I32, &[16, 24, 1]),
            (1, Dtype::I32, &[4, 24]),
            (1, Dtype::F32, &[4, 3]),
            (2, Dtype::F32, &[4, 24]),
            (2, Dtype::F16, &[0, 24]),
            (2, Dtype::F16, &[4]),
            (2, Dtype::F16, &[4, 32]),
            (3, Dtype::I32, &[127]),
            (3, Dtype::I64, &[128]),
        ];
        for (part, dtype, shape) in cases {
            let mut origins = good();
            origins[part] = origin(dtype, shape);
            assert_eq!(Geometry::of(Packing::Gptq, &origins), Err(part), "{dtype} {shape:?}");
        }
        // Groups of AWQ have all their columns.
        let awq = |groups| {
            [
                origin(Dtype::I32, &[160, 1]),
                origin(Dtype::I32, &[groups, 1]),
                origin(Dtype::BF16, &[groups, 8]),
            ]
        };
        assert_eq!(Geometry::of(Packing::Awq, &awq(2)), Err(2));
        assert!(Geometry::of(Packing::Awq, &awq(5)).is_ok());
    }
}
