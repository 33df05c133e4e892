//! Encodings of matrices, a folder for each.
//!
//! | file of a folder | contents |
//! |---|---|
//! | `mod.rs` | what the encoding is: its parts and all else that is known of it without a matrix ([`Facts`]) |
//! | `reference.rs` | its definition in scalars |
//! | `encode.rs` | how rows of a checkpoint become it, if they do |
//! | `decode.rs` | its kernel, for any instruction set; `coded.rs` and `int8.rs` where codes are summed |
//! | `simd.rs` and one file for each instruction set | operations that only this encoding needs |
//!
//! `encoding.rs` is below the folders. Above them, `lookup.rs` leads to their facts and has the answers to
//! everybody's questions, `reference.rs` leads to their definitions, and `dispatch.rs` to their kernels.

// Loops over registers by index are unrolled; some with iterators were not. Kernels have no closures,
// which are compiled for the baseline CPU where they are not inlined.
#![allow(clippy::needless_range_loop)]

/// For decoders whose blocks have nothing in common.
macro_rules! nothing_shared {
    () => {
        type Shared = ();

        #[inline(always)]
        unsafe fn shared(self, _: S, _: &RowCursor, _: usize) {}
    };
}

mod bf11;
mod bf12;
mod codes;
mod cursor;
mod decode;
mod dispatch;
mod encode;
mod encoding;
mod facts;
mod finite;
mod float;
mod fp7;
mod fp8;
mod gguf;
mod int4;
mod int8;
mod lookup;
mod matrix;
mod mxfp4;
mod nested;
mod nvfp4;
mod offsets;
mod parts;
mod q;
mod reference;
mod scan;
mod source;

pub(crate) use codes::{Coded, ForCoded, RunScales, unit_codes};
pub(crate) use cursor::RowCursor;
pub(crate) use decode::{Decoder, ForDecoder, Take};
pub(crate) use dispatch::{EncodingSimd, for_coded, for_common_decoder, for_decoder, for_eights};
pub use encode::{
    EncodeError, EncodedRows, Encoder, ErrorSums, ExponentCounts, ExponentTable, ExponentTiers,
    TensorTally,
};
pub use encoding::{Encoding, Fp8Scales, GgufBlocks, Int4Groups, Nvfp4Scale, ZerosGroup};
pub(crate) use int8::{Eights, ForEights, SpanFactors, SpanScales, int8_code};
pub use lookup::UnknownEncoding;
pub use matrix::{Matrix, MatrixError};
pub use offsets::{OffsetWriter, Offsets};
pub use parts::{MatrixPart, PartLen, PartRows};
pub(crate) use reference::decode_row;
pub use source::SourceDtype;
