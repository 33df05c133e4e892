//! The matches that lead to the kernel of each encoding, and to the encoder of those that round.

use super::bf11::simd::Bf11Simd;
use super::bf12::simd::Bf12Simd;
use super::fp7::simd::Fp7Simd;
use super::gguf::simd::Codebook;
use super::nested::simd::NestedSimd;
use super::{
    EncodedRows, Encoding, ForCoded, ForDecoder, ForEights, Fp8Scales, GgufBlocks, Int4Groups,
    Nvfp4Scale, ZerosGroup, bf11, bf12, float, fp7, fp8, gguf, int4, mxfp4, nested, nvfp4, q,
};
use crate::simd::Simd;
use crate::simd::int8::Integers;

/// All operations that kernels of encodings need.
pub(crate) trait EncodingSimd:
    Simd + Bf12Simd + Bf11Simd + Fp7Simd + NestedSimd + Codebook
{
}

impl<S: Bf12Simd + Bf11Simd + Fp7Simd + NestedSimd + Codebook> EncodingSimd for S {}

/// Runs `code` with the decoder of an encoding.
#[inline(always)]
pub(crate) fn for_decoder<S: EncodingSimd>(s: S, encoding: Encoding, code: impl ForDecoder<S>) {
    let Some(code) = for_common_decoder(s, encoding, code) else { return };
    match encoding {
        Encoding::Fp8(scales) => for_fp8(s, scales, code),
        Encoding::Fp7(scales) => for_fp7(s, scales, code),
        Encoding::Int4(Int4Groups::ActOrder(_)) => code.run::<int4::act_order::ActOrder>(s),
        Encoding::Gguf(GgufBlocks::Q8_0) => code.run::<gguf::decode::Q8_0>(s),
        Encoding::Gguf(GgufBlocks::Mxfp4) => code.run::<gguf::decode::Mxfp4<S>>(s),
        _ => unreachable!("the others are common, or summed as codes"),
    }
}

/// The same for encodings that the sharder makes, and plain numbers. Returns the code for all others.
#[inline(always)]
pub(crate) fn for_common_decoder<S: EncodingSimd, C: ForDecoder<S>>(
    s: S,
    encoding: Encoding,
    code: C,
) -> Option<C> {
    use fp8::decode::{Fp8, Squares};
    match encoding {
        Encoding::F32 => code.run::<float::decode::F32>(s),
        Encoding::F16 => code.run::<float::decode::F16>(s),
        Encoding::Bf16 => code.run::<float::decode::Bf16>(s),
        Encoding::Bf12 => code.run::<bf12::decode::Bf12<S>>(s),
        Encoding::Bf11 => code.run::<bf11::decode::Bf11<S>>(s),
        Encoding::Nested => code.run::<nested::decode::Nested<S>>(s),
        Encoding::Top => code.run::<nested::decode::Top<S>>(s),
        Encoding::Q8 => code.run::<q::decode::Q8>(s),
        Encoding::Fp8(Fp8Scales::Squares) => code.run::<Fp8<Squares>>(s),
        Encoding::Fp7(Fp8Scales::Squares) => code.run::<fp7::decode::Fp7<S, Squares>>(s),
        Encoding::Mxfp4 => code.run::<mxfp4::decode::Mxfp4<S>>(s),
        Encoding::Q4
        | Encoding::Fp8(_)
        | Encoding::Fp7(_)
        | Encoding::Int4(_)
        | Encoding::Nvfp4(_)
        | Encoding::Gguf(_) => return Some(code),
    }
    None
}

#[inline(always)]
fn for_fp8<S: EncodingSimd>(s: S, scales: Fp8Scales, code: impl ForDecoder<S>) {
    use fp8::decode::{self, Fp8};
    match scales {
        Fp8Scales::Squares => unreachable!("it is common"),
        Fp8Scales::SquaresBf16 => code.run::<Fp8<decode::SquaresBf16>>(s),
        Fp8Scales::SquaresE8m0 => code.run::<Fp8<decode::SquaresE8m0>>(s),
        Fp8Scales::Rows => code.run::<Fp8<decode::Rows>>(s),
        Fp8Scales::RowsBf16 => code.run::<Fp8<decode::RowsBf16>>(s),
        Fp8Scales::Whole => code.run::<Fp8<decode::Whole>>(s),
        Fp8Scales::WholeBf16 => code.run::<Fp8<decode::WholeBf16>>(s),
        Fp8Scales::Thirtytwos => code.run::<Fp8<decode::Thirtytwos>>(s),
    }
}

#[inline(always)]
fn for_fp7<S: EncodingSimd>(s: S, scales: Fp8Scales, code: impl ForDecoder<S>) {
    use fp7::decode::Fp7;
    use fp8::decode;
    match scales {
        Fp8Scales::Squares => unreachable!("it is common"),
        Fp8Scales::SquaresBf16 => code.run::<Fp7<S, decode::SquaresBf16>>(s),
        Fp8Scales::SquaresE8m0 => code.run::<Fp7<S, decode::SquaresE8m0>>(s),
        Fp8Scales::Rows => code.run::<Fp7<S, decode::Rows>>(s),
        Fp8Scales::RowsBf16 => code.run::<Fp7<S, decode::RowsBf16>>(s),
        Fp8Scales::Whole => code.run::<Fp7<S, decode::Whole>>(s),
        Fp8Scales::WholeBf16 => code.run::<Fp7<S, decode::WholeBf16>>(s),
        Fp8Scales::Thirtytwos => code.run::<Fp7<S, decode::Thirtytwos>>(s),
    }
}

/// Runs `code` with the decoder of an encoding that has codes.
#[inline(always)]
pub(crate) fn for_coded<S: EncodingSimd>(s: S, encoding: Encoding, code: impl ForCoded<S>) {
    use gguf::blocks::{self, Blocks};
    use gguf::nvfp4::{Number, Nvfp4, One};
    use gguf::{coded, quarters, ternary};
    use int4::coded::{Pairs, Symmetric, Zeros};
    match encoding {
        Encoding::Q4 => code.run::<q::coded::Q4>(s),
        Encoding::Int4(groups) => match groups {
            Int4Groups::Symmetric32 => code.run::<Pairs<S, Symmetric<32>>>(s),
            Int4Groups::Symmetric128 => code.run::<Pairs<S, Symmetric<128>>>(s),
            Int4Groups::Zeros(ZerosGroup::Of32) => code.run::<Pairs<S, Zeros<32>>>(s),
            Int4Groups::Zeros(ZerosGroup::Of64) => code.run::<Pairs<S, Zeros<64>>>(s),
            Int4Groups::Zeros(ZerosGroup::Of128) => code.run::<Pairs<S, Zeros<128>>>(s),
            Int4Groups::ActOrder(_) => unreachable!("groups in any order, without codes"),
        },
        Encoding::Nvfp4(Nvfp4Scale::Times) => code.run::<Pairs<S, nvfp4::coded::Times>>(s),
        Encoding::Nvfp4(Nvfp4Scale::Divided) => code.run::<Pairs<S, nvfp4::coded::Divided>>(s),
        Encoding::Nvfp4(Nvfp4Scale::OfBlocks) => code.run::<Nvfp4<S, Number>>(s),
        Encoding::Gguf(format) => match format {
            GgufBlocks::Q4_0 => code.run::<Blocks<S, blocks::Q4_0>>(s),
            GgufBlocks::Q4_1 => code.run::<Blocks<S, blocks::Q4_1>>(s),
            GgufBlocks::Q5_0 => code.run::<Blocks<S, blocks::Q5_0>>(s),
            GgufBlocks::Q5_1 => code.run::<Blocks<S, blocks::Q5_1>>(s),
            GgufBlocks::Iq4Nl => code.run::<Blocks<S, blocks::Iq4Nl>>(s),
            GgufBlocks::Iq4Xs => code.run::<blocks::Iq4Xs<S>>(s),
            GgufBlocks::Q2K => code.run::<quarters::Q2K>(s),
            GgufBlocks::Q3K => code.run::<quarters::Q3K>(s),
            GgufBlocks::Q4K => code.run::<quarters::Q4K>(s),
            GgufBlocks::Q5K => code.run::<quarters::Q5K>(s),
            GgufBlocks::Q6K => code.run::<quarters::Q6K>(s),
            GgufBlocks::Iq1S => code.run::<coded::Iq1S<S>>(s),
            GgufBlocks::Iq1M => code.run::<coded::Iq1M<S>>(s),
            GgufBlocks::Iq2Xxs => code.run::<coded::Iq2Xxs<S>>(s),
            GgufBlocks::Iq2Xs => code.run::<coded::Iq2Xs<S>>(s),
            GgufBlocks::Iq2S => code.run::<coded::Iq2S<S>>(s),
            GgufBlocks::Iq3Xxs => code.run::<coded::Iq3Xxs<S>>(s),
            GgufBlocks::Iq3S => code.run::<coded::Iq3S<S>>(s),
            GgufBlocks::Tq1_0 => code.run::<ternary::Tq1_0>(s),
            GgufBlocks::Tq2_0 => code.run::<quarters::Tq2_0>(s),
            GgufBlocks::Nvfp4 => code.run::<Nvfp4<S, One>>(s),
            GgufBlocks::Q8_0 | GgufBlocks::Mxfp4 => unreachable!("a format without codes"),
        },
        _ => unreachable!("an encoding without codes"),
    }
}

/// Runs `code` with the decoder of an encoding that has whole numbers.
pub(crate) fn for_eights<N: Integers>(n: N, encoding: Encoding, code: impl ForEights<N>) {
    use gguf::int8 as blocks;
    use int4::int8::{Symmetric, Zeros};
    match encoding {
        Encoding::Q4 => code.run::<q::int8::Q4>(n),
        Encoding::Q8 => code.run::<q::int8::Q8>(n),
        Encoding::Mxfp4 => code.run::<mxfp4::int8::Mxfp4>(n),
        Encoding::Int4(groups) => match groups {
            Int4Groups::Symmetric32 => code.run::<Symmetric<32>>(n),
            Int4Groups::Symmetric128 => code.run::<Symmetric<128>>(n),
            Int4Groups::Zeros(ZerosGroup::Of32) => code.run::<Zeros<32>>(n),
            Int4Groups::Zeros(ZerosGroup::Of64) => code.run::<Zeros<64>>(n),
            Int4Groups::Zeros(ZerosGroup::Of128) => code.run::<Zeros<128>>(n),
            Int4Groups::ActOrder(_) => unreachable!("groups in any order, without a form"),
        },
        Encoding::Gguf(format) => match format {
            GgufBlocks::Q4_0 => code.run::<blocks::Q4_0>(n),
            GgufBlocks::Q4_1 => code.run::<blocks::Q4_1>(n),
            GgufBlocks::Q5_0 => code.run::<blocks::Q5_0>(n),
            GgufBlocks::Q5_1 => code.run::<blocks::Q5_1>(n),
            GgufBlocks::Q8_0 => code.run::<blocks::Q8_0>(n),
            GgufBlocks::Q2K => code.run::<blocks::Q2K>(n),
            GgufBlocks::Q3K => code.run::<blocks::Q3K>(n),
            GgufBlocks::Q4K => code.run::<blocks::Q4K>(n),
            GgufBlocks::Q5K => code.run::<blocks::Q5K>(n),
            GgufBlocks::Q6K => code.run::<blocks::Q6K>(n),
            GgufBlocks::Iq4Nl => code.run::<blocks::Iq4Nl>(n),
            GgufBlocks::Iq4Xs => code.run::<blocks::Iq4Xs>(n),
            GgufBlocks::Tq2_0 => code.run::<blocks::Tq2_0>(n),
            GgufBlocks::Mxfp4 => code.run::<blocks::Mxfp4>(n),
            _ => unreachable!("a format without a form"),
        },
        _ => unreachable!("an encoding without a form"),
    }
}

/// Encodes rows of `cols` finite numbers in an encoding that rounds them.
pub(super) fn encode_rounded(encoding: Encoding, wide: &[f32], cols: usize, out: &mut EncodedRows) {
    let rows = wide.chunks(cols);
    match encoding {
        Encoding::Q8 => rows.for_each(|row| q::encode::q8_row(row, out)),
        Encoding::Q4 => rows.for_each(|row| q::encode::q4_row(row, out)),
        Encoding::Fp8(_) => {
            wide.chunks(128 * cols).for_each(|rows| fp8::encode::fp8(rows, cols, out));
        }
        Encoding::Mxfp4 => rows.for_each(|row| mxfp4::encode::mxfp4_row(row, out)),
        Encoding::Gguf(GgufBlocks::Q8_0) => {
            rows.for_each(|row| gguf::encode::q8_0_row(row, out));
        }
        _ => unreachable!("no encoding that rounds"),
    }
}
