//! Arithmetic on encoded weights.

mod buffer;
mod encode;
mod encoding;
pub mod functional;
mod isa;
mod layout;
mod matmul;
mod matrix;
mod reference;
mod simd;

pub use encode::{
    EncodeError, EncodedRows, Encoder, ErrorSums, ExponentTable, Histogram, Source, Tally,
};
pub use encoding::{Encoding, UnknownEncoding};
#[cfg(target_arch = "x86_64")]
pub use isa::{Avx2, Avx512};
pub use isa::{TIER_VARIABLE, Tier, UnknownTier};
pub use layout::{Part, PartLen, PartRows};
pub use matmul::{Input, Output, Scratch, Scratch1, matmul, matmul_packed, matmul_rows};
pub use matrix::{Matrix, MatrixError};
