//! Four-bit codes that a checkpoint packs along the columns of a matrix, as AWQ and GPTQ do. Shards
//! have the codes of each row together.

use serde::{Deserialize, Serialize};

/// The way in which a checkpoint packs codes and zero points into integers of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Packing {
    /// AWQ: eight rows to an integer, first those of even and then those of odd numbers.
    Awq,
    /// GPTQ: eight columns to an integer, zero points less one.
    Gptq,
    /// The second version of GPTQ: zero points as they are.
    GptqV2,
}

/// The packed matrices of a checkpoint, as its configuration describes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    /// The way in which all of them are packed.
    pub packing: Packing,
    /// Columns of a group, where all matrices have the same.
    pub group: Option<u64>,
    /// True if columns can lie in groups in any order.
    pub act_order: bool,
}
