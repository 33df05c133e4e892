//! The layouts of quantised checkpoints that have no encoder here.

/// Layout of a matrix that checkpoints publish as codes, with scales in tensors of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Published {
    /// e4m3 with a bf16 scale for each block of 128×128.
    Fp8Bf16,
    /// e4m3 with an e8m0 scale for each block of 128×128.
    Fp8E8m0,
    /// e4m3 with an f32 scale for each row.
    Fp8Rows,
    /// e4m3 with a bf16 scale for each row.
    Fp8RowsBf16,
    /// e4m3 with one f32 scale.
    Fp8Whole,
    /// e4m3 with one bf16 scale.
    Fp8WholeBf16,
    /// e4m3 with an e8m0 scale for 32 weights.
    Mxfp8,
    /// Four bits less 8, with a bf16 scale for 32 weights.
    Int4,
    /// Four bits less 8, with a bf16 scale for 128 weights.
    Int4By128,
    /// Four bits less a zero point, with a scale and a zero point for 32 weights.
    Int4Zeros32,
    /// Four bits less a zero point, with a scale and a zero point for 64 weights.
    Int4Zeros64,
    /// Four bits less a zero point, with a scale and a zero point for 128 weights.
    Int4Zeros128,
    /// As many groups as there are 32 columns, with act-order: columns lie in any order.
    Int4ActOrder32,
    /// As many groups as there are 64 columns, with act-order: columns lie in any order.
    Int4ActOrder64,
    /// As many groups as there are 128 columns, with act-order: columns lie in any order.
    Int4ActOrder128,
    /// e2m1 with an e4m3 scale for 16 weights, and an f32 scale of the matrix.
    Nvfp4,
    /// e2m1 with an e4m3 scale for 16 weights, divided by an f32 number of the matrix.
    Nvfp4Divided,
}

impl Published {
    /// Every layout, in the order in which tables list them.
    pub const ALL: [Published; 17] = [
        Published::Fp8Bf16,
        Published::Fp8E8m0,
        Published::Fp8Rows,
        Published::Fp8RowsBf16,
        Published::Fp8Whole,
        Published::Fp8WholeBf16,
        Published::Mxfp8,
        Published::Int4,
        Published::Int4By128,
        Published::Int4Zeros32,
        Published::Int4Zeros64,
        Published::Int4Zeros128,
        Published::Int4ActOrder32,
        Published::Int4ActOrder64,
        Published::Int4ActOrder128,
        Published::Nvfp4,
        Published::Nvfp4Divided,
    ];

    /// The name used in manifests.
    pub const fn name(self) -> &'static str {
        match self {
            Published::Fp8Bf16 => "fp8_bf16",
            Published::Fp8E8m0 => "fp8_e8m0",
            Published::Fp8Rows => "fp8_rows",
            Published::Fp8RowsBf16 => "fp8_rows_bf16",
            Published::Fp8Whole => "fp8_whole",
            Published::Fp8WholeBf16 => "fp8_whole_bf16",
            Published::Mxfp8 => "mxfp8",
            Published::Int4 => "int4",
            Published::Int4By128 => "int4_128",
            Published::Int4Zeros32 => "int4_zeros_32",
            Published::Int4Zeros64 => "int4_zeros_64",
            Published::Int4Zeros128 => "int4_zeros_128",
            Published::Int4ActOrder32 => "int4_act_order_32",
            Published::Int4ActOrder64 => "int4_act_order_64",
            Published::Int4ActOrder128 => "int4_act_order_128",
            Published::Nvfp4 => "nvfp4",
            Published::Nvfp4Divided => "nvfp4_divided",
        }
    }

    /// Columns that a scale with a zero point counts for: every so many in a row, or, with act-order,
    /// on average. None for layouts without zero points.
    pub const fn zeros_group(self) -> Option<u64> {
        match self {
            Published::Int4Zeros32 | Published::Int4ActOrder32 => Some(32),
            Published::Int4Zeros64 | Published::Int4ActOrder64 => Some(64),
            Published::Int4Zeros128 | Published::Int4ActOrder128 => Some(128),
            _ => None,
        }
    }

    /// True if columns lie in groups in any order, which a part of the matrix gives.
    pub const fn has_order(self) -> bool {
        matches!(
            self,
            Published::Int4ActOrder32 | Published::Int4ActOrder64 | Published::Int4ActOrder128
        )
    }
}
