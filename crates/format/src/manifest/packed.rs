//! Four-bit codes packed along the columns of a matrix, as in AWQ and GPTQ checkpoints. Shards
//! store the codes row by row.

use serde::{Deserialize, Serialize};

/// The packing of codes and zero points into 32-bit integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Packing {
    /// AWQ: an integer has codes of eight rows, first the even and then the odd ones.
    Awq,
    /// GPTQ: an integer has codes of eight columns. Stored zero points are smaller by one.
    Gptq,
    /// The second version of GPTQ: zero points are stored unchanged.
    GptqV2,
}

/// The packed matrices of a checkpoint, as its configuration describes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    /// The packing of all of these matrices.
    pub packing: Packing,
    /// Number of columns of a group, if all matrices have the same.
    pub group: Option<u64>,
    /// True if the columns of a group need not be adjacent.
    pub act_order: bool,
}
