//! int4: codes of four bits with a scale for each group of columns, and a zero point in some.

pub(super) mod act_order;
pub(super) mod coded;
pub(super) mod int8;
pub(super) mod reference;

use super::facts::{Facts, Scales};
use super::parts::PartCut;
use super::{Int4Groups, MatrixPart, ZerosGroup};
use crate::scalar::{CodeForm, Coding};

impl ZerosGroup {
    /// The number of columns.
    pub const fn cols(self) -> u64 {
        match self {
            ZerosGroup::Of32 => 32,
            ZerosGroup::Of64 => 64,
            ZerosGroup::Of128 => 128,
        }
    }

    /// The group of a kernel that is compiled for so many columns.
    const fn of(cols: usize) -> ZerosGroup {
        match cols {
            32 => ZerosGroup::Of32,
            64 => ZerosGroup::Of64,
            _ => ZerosGroup::Of128,
        }
    }
}

impl Int4Groups {
    /// The columns of a group with a zero point; `None` for codes without zero points.
    pub const fn zeros_group(self) -> Option<u64> {
        match self {
            Int4Groups::Zeros(group) | Int4Groups::ActOrder(group) => Some(group.cols()),
            Int4Groups::Symmetric32 | Int4Groups::Symmetric128 => None,
        }
    }

    /// The groups of a kernel that is compiled for so many columns.
    const fn symmetric(cols: usize) -> Int4Groups {
        match cols {
            32 => Int4Groups::Symmetric32,
            _ => Int4Groups::Symmetric128,
        }
    }

    /// True if columns lie in groups in any order, which a part of the matrix gives.
    pub const fn has_order(self) -> bool {
        matches!(self, Int4Groups::ActOrder(_))
    }
}

pub(super) const fn facts(groups: Int4Groups) -> &'static Facts {
    match groups {
        Int4Groups::Symmetric32 => &SYMMETRIC[0],
        Int4Groups::Symmetric128 => &SYMMETRIC[1],
        Int4Groups::Zeros(group) => &ZEROS[group as usize],
        Int4Groups::ActOrder(group) => &ACT_ORDER[group as usize],
    }
}

const INTEGERS: MatrixPart = MatrixPart::rows_of("_packed", 8, 4);

static SYMMETRIC: [Facts; 2] = [
    symmetric("int4", &[INTEGERS, MatrixPart::rows_of("_scale", 32, 2)]),
    symmetric("int4_128", &[INTEGERS, MatrixPart::rows_of("_scale", 128, 2)]),
];

const fn symmetric(name: &'static str, parts: &'static [MatrixPart]) -> Facts {
    Facts {
        scales: Scales::ByRows,
        coding: Some(Coding::neighbours(32, Some(8))),
        form: Some(CodeForm { less: 8, ..CodeForm::NIBBLES }),
        ..Facts::new(name, parts)
    }
}

const CODES: MatrixPart = MatrixPart::rows_of(".codes", 2, 1);
const ORDER: MatrixPart = MatrixPart { suffix: ".order", cut: PartCut::Columns { bytes: 2 } };

/// The groups of so many columns.
const fn groups(cols: u64) -> MatrixPart {
    MatrixPart::rows_of(".groups", cols, 4)
}

static ZEROS: [Facts; 3] = [
    zeros("int4_zeros_32", &[CODES, groups(32)]),
    zeros("int4_zeros_64", &[CODES, groups(64)]),
    zeros("int4_zeros_128", &[CODES, groups(128)]),
];

const fn zeros(name: &'static str, parts: &'static [MatrixPart]) -> Facts {
    Facts {
        scales: Scales::ByRows,
        coding: Some(Coding::neighbours(32, None)),
        form: Some(CodeForm { minima: true, ..CodeForm::NIBBLES }),
        ..Facts::new(name, parts)
    }
}

static ACT_ORDER: [Facts; 3] = [
    act_order("int4_act_order_32", &[CODES, groups(32), ORDER]),
    act_order("int4_act_order_64", &[CODES, groups(64), ORDER]),
    act_order("int4_act_order_128", &[CODES, groups(128), ORDER]),
];

const fn act_order(name: &'static str, parts: &'static [MatrixPart]) -> Facts {
    Facts { scales: Scales::ByRows, order: Some(2), ..Facts::new(name, parts) }
}
