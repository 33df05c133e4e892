//! The first weight that is not finite, in every encoding.

use sws_kernels::{
    Encoding, Fp8Scales, GgufBlocks, Int4Groups, Matrix, MatrixPart, Nvfp4Scale, Offsets, PartLen,
    ZerosGroup,
};

const ROWS: usize = 2;
const COLS: usize = 64;
/// At least the bytes that a thread scans at a time.
const SHARE: usize = 1 << 18;

/// Parts of a matrix of finite numbers, filled with unremarkable bytes.
fn parts(encoding: Encoding) -> Vec<Vec<u8>> {
    let of_part = |part: &MatrixPart| {
        let len = match part.len(ROWS as u64, COLS as u64).unwrap() {
            PartLen::Exact(len) => len,
            // A patch or two that belong to no row.
            PartLen::AtLeast(len) => match encoding {
                Encoding::Bf12 => len + 1,
                Encoding::Bf11 => len + 2,
                _ => len,
            },
        };
        vec![0x11; len as usize]
    };
    let mut parts: Vec<Vec<u8>> = encoding.parts().iter().map(of_part).collect();
    if encoding == Encoding::Bf12 {
        // Codes of the first exponent, and a patch that belongs to no row.
        parts[0].fill(0);
        parts[1][15] = 0;
        parts[2][..4 * (ROWS + 1)].fill(0);
    }
    if encoding == Encoding::Nested {
        // Distances of zero.
        parts[1].fill(0);
        parts[2].fill(0);
    }
    if matches!(encoding, Encoding::Bf11 | Encoding::Fp7(_)) {
        parts[0].fill(0);
        parts[2][..4 + 2 * (ROWS + 1)].fill(0);
    }
    parts
}

#[test]
fn first_not_finite_is_found_in_every_encoding() {
    type Change = (usize, usize, &'static [u8]);
    type Case = (Encoding, &'static [Change], Option<(usize, usize, f32)>);
    const NAN: f32 = f32::NAN;
    const FP7: Encoding = Encoding::Fp7(Fp8Scales::Rows);
    const INF: f32 = f32::INFINITY;
    const Q8_0: Encoding = Encoding::Gguf(GgufBlocks::Q8_0);
    const IQ1_M: Encoding = Encoding::Gguf(GgufBlocks::Iq1M);
    const TQ1_0: Encoding = Encoding::Gguf(GgufBlocks::Tq1_0);
    const BLOCKS: Encoding = Encoding::Gguf(GgufBlocks::Nvfp4);
    const Q4_K: Encoding = Encoding::Gguf(GgufBlocks::Q4K);
    const HALVES: Encoding = Encoding::Gguf(GgufBlocks::Mxfp4);
    #[rustfmt::skip]
    let cases: [Case; 107] = [
        // encoding, (part, byte, bytes), position and value of the first weight that is not
        // finite
        (Encoding::Fp8(Fp8Scales::SquaresBf16), &[], None),
        (Encoding::Fp8(Fp8Scales::SquaresBf16), &[(1, 0, &[0x80, 0x7f])], Some((0, 0, INF))),
        (Encoding::Fp8(Fp8Scales::SquaresE8m0), &[(1, 0, &[0xff])], Some((0, 0, NAN))),
        (Encoding::Fp8(Fp8Scales::Rows), &[(0, 65, &[0x7f])], Some((1, 1, NAN))),
        (Encoding::Fp8(Fp8Scales::Rows), &[(1, 4, &[0, 0, 0xc0, 0x7f])], Some((1, 0, NAN))),
        (Encoding::Fp8(Fp8Scales::RowsBf16), &[(1, 2, &[0x80, 0x7f])], Some((1, 0, INF))),
        (Encoding::Fp8(Fp8Scales::Whole), &[(1, 0, &[0, 0, 0x80, 0x7f])], Some((0, 0, INF))),
        (Encoding::Fp8(Fp8Scales::WholeBf16), &[(1, 0, &[0xc0, 0x7f])], Some((0, 0, NAN))),
        (Encoding::Fp8(Fp8Scales::Thirtytwos), &[(1, 3, &[0xff])], Some((1, 32, NAN))),
        (Encoding::Int4(Int4Groups::Symmetric32), &[], None),
        (Encoding::Int4(Int4Groups::Symmetric32), &[(1, 6, &[0xc0, 0x7f])], Some((1, 32, NAN))),
        (Encoding::Int4(Int4Groups::Zeros(ZerosGroup::Of32)), &[], None),
        (Encoding::Int4(Int4Groups::Zeros(ZerosGroup::Of32)), &[(1, 12, &[0, 0, 0xc0, 0x7f])], Some((1, 32, NAN))),
        (Encoding::Int4(Int4Groups::Zeros(ZerosGroup::Of128)), &[(1, 4, &[1, 0, 0x80, 0x7f])], Some((1, 0, NAN))),
        // The group of column 0, and of others, is the last.
        (Encoding::Int4(Int4Groups::ActOrder(ZerosGroup::Of32)), &[(1, 4, &[0, 0, 0x80, 0x7f])], Some((0, 0, INF))),
        (Encoding::Int4(Int4Groups::ActOrder(ZerosGroup::Of32)), &[(1, 0, &[0, 0, 0x80, 0x7f]), (2, 6, &[0, 0])], Some((0, 3, INF))),
        (Encoding::Int4(Int4Groups::Symmetric128), &[(1, 2, &[0x80, 0x7f])], Some((1, 0, -INF))),
        (Encoding::Nvfp4(Nvfp4Scale::Times), &[(1, 4, &[0x7f])], Some((1, 0, NAN))),
        (Encoding::Nvfp4(Nvfp4Scale::Times), &[(2, 0, &[0, 0, 0x80, 0x7f])], Some((0, 0, INF))),
        (Encoding::Nvfp4(Nvfp4Scale::Divided), &[(2, 0, &[0; 4])], Some((0, 0, INF))),
        (Encoding::Nvfp4(Nvfp4Scale::Divided), &[(2, 0, &[0, 0, 0x80, 0x7f])], Some((0, 0, INF))),
        (Encoding::Nvfp4(Nvfp4Scale::Divided), &[], None),
        (Encoding::Nvfp4(Nvfp4Scale::OfBlocks), &[], None),
        (Encoding::Nvfp4(Nvfp4Scale::OfBlocks), &[(1, 0, &[0, 0, 0x80, 0x7f])], Some((0, 0, INF))),
        // The largest scale and code times 2^115.
        (Encoding::Nvfp4(Nvfp4Scale::OfBlocks), &[(0, 0, &[0xff; 72]), (1, 0, &[0, 0, 0, 0x79])], None),
        (BLOCKS, &[(0, 0, &[0xff; 72])], None),
        (TQ1_0, &[], None),
        (TQ1_0, &[(0, 54 + 52, &[0, 0x7c])], Some((1, 0, -INF))),
        (IQ1_M, &[], None),
        (IQ1_M, &[(0, 53, &[0xe1, 0x11, 0x71])], Some((0, 0, NAN))),
        (IQ1_M, &[(0, 56 + 53, &[0x81, 0x11, 0x71])], None),
        (Encoding::F32, &[], None),
        (Encoding::F32, &[(0, 4 * 5, &[0, 0, 0xc0, 0x7f])], Some((0, 5, NAN))),
        (Encoding::F32, &[(0, 4 * 70, &[1, 0, 0x80, 0xff])], Some((1, 6, NAN))),
        (Encoding::F32, &[(0, 0, &[0, 0, 0x80, 0x7f])], Some((0, 0, INF))),
        (Encoding::F32, &[(0, 4 * 127, &[0, 0, 0x80, 0xff])], Some((1, 63, -INF))),
        (Encoding::F32, &[(0, 0, &[0xff, 0xff, 0x7f, 0x7f])], None),
        (Encoding::F16, &[], None),
        (Encoding::F16, &[(0, 2 * 5, &[1, 0x7c])], Some((0, 5, NAN))),
        (Encoding::F16, &[(0, 2 * 127, &[0xff, 0xff])], Some((1, 63, NAN))),
        (Encoding::F16, &[(0, 0, &[0, 0x7c])], Some((0, 0, INF))),
        (Encoding::F16, &[(0, 0, &[0xff, 0x7b])], None),
        (Encoding::Bf16, &[], None),
        (Encoding::Bf16, &[(0, 2 * 64, &[0x81, 0x7f])], Some((1, 0, NAN))),
        (Encoding::Bf16, &[(0, 0, &[0x80, 0xff])], Some((0, 0, -INF))),
        (Encoding::Bf16, &[(0, 0, &[0x7f, 0xff])], None),
        (Encoding::Bf12, &[], None),
        (Encoding::Bf12, &[(1, 0, &[0xff]), (0, 0, &[1])], Some((0, 0, NAN))),
        (Encoding::Bf12, &[(1, 0, &[0xff])], Some((0, 0, INF))),
        // The code of row 1, column 0 is an escape: with a patch, with a patch that is not
        // finite, with none.
        (Encoding::Bf12, &[(0, 96, &[1]), (0, 160, &[15]), (2, 8, &[1])], None),
        (Encoding::Bf12, &[(0, 96, &[1]), (0, 160, &[15]), (2, 8, &[1]), (2, 12, &[0xff])], Some((1, 0, NAN))),
        (Encoding::Bf12, &[(0, 96, &[1]), (0, 160, &[15])], Some((1, 0, NAN))),
        (Encoding::Bf12, &[(0, 160, &[15]), (2, 8, &[1]), (2, 12, &[0xff])], Some((1, 0, INF))),
        (Encoding::Bf12, &[(0, 160, &[15])], Some((1, 0, INF))),
        (Encoding::Bf11, &[], None),
        (Encoding::Bf11, &[(1, 0, &[0xff])], Some((0, 0, INF))),
        (Encoding::Bf11, &[(1, 8, &[0xff])], None),
        // Row 1, column 0 is an escape: in the second tier, with a byte, with one that is not
        // finite, with none.
        (Encoding::Bf11, &[(0, 144, &[1]), (0, 152, &[1])], None),
        (Encoding::Bf11, &[(0, 144, &[1]), (0, 152, &[1]), (2, 10, &[0x0f])], None),
        (Encoding::Bf11, &[(0, 144, &[1]), (0, 152, &[1]), (2, 10, &[0x0f, 0xff])], Some((1, 0, INF))),
        (Encoding::Bf11, &[(0, 144, &[1]), (0, 152, &[1]), (2, 6, &[2])], Some((1, 0, INF))),
        (Encoding::Nested, &[], None),
        (Encoding::Nested, &[(1, 33, &[0xff]), (0, 16, &[0; 16]), (0, 40, &[0; 8])], Some((0, 32, NAN))),
        // Distances from the largest exponent, of which the last has no patch.
        (Encoding::Nested, &[(1, 34, &[0x22; 16]), (1, 66, &[0xff])], None),
        (Encoding::Top, &[], None),
        (Encoding::Top, &[(0, 34 + 33, &[0xff])], Some((1, 32, NAN))),
        (Encoding::Q8, &[], None),
        (Encoding::Q8, &[(1, 2, &[0xc0, 0x7f])], Some((1, 0, NAN))),
        (Encoding::Q8, &[(1, 0, &[0x80, 0x7f])], Some((0, 0, INF))),
        (Encoding::Q8, &[(1, 0, &[0x80, 0x7f]), (0, 0, &[0])], Some((0, 0, NAN))),
        // Scales of 2^128 and 2^120, times 17 and 128.
        (Encoding::Q8, &[(1, 0, &[0x7f, 0x7f])], Some((0, 0, INF))),
        (Encoding::Q8, &[(1, 0, &[0x80, 0x7b]), (0, 9, &[0x80])], None),
        (Encoding::Q4, &[], None),
        (Encoding::Q4, &[(1, 2, &[0xff, 0xff])], Some((1, 0, NAN))),
        (Encoding::Q4, &[(1, 2, &[0x80, 0xff])], Some((1, 0, -INF))),
        (Encoding::Q4, &[(1, 2, &[0x7f, 0x7f])], None),
        (Encoding::Q4, &[(1, 2, &[0x7f, 0x7f]), (0, 32, &[0x12])], Some((1, 0, INF))),
        (Encoding::Fp8(Fp8Scales::Squares), &[], None),
        (Encoding::Fp8(Fp8Scales::Squares), &[(0, 70, &[0x7f])], Some((1, 6, NAN))),
        (Encoding::Fp8(Fp8Scales::Squares), &[(0, 3, &[0xff])], Some((0, 3, NAN))),
        (Encoding::Fp8(Fp8Scales::Squares), &[(0, 3, &[0x7e])], None),
        (Encoding::Fp8(Fp8Scales::Squares), &[(1, 0, &[0, 0, 0xc0, 0x7f])], Some((0, 0, NAN))),
        (Encoding::Fp8(Fp8Scales::Squares), &[(1, 0, &[0, 0, 0x80, 0x7f])], Some((0, 0, INF))),
        (Encoding::Fp8(Fp8Scales::Squares), &[(1, 0, &[0, 0, 0x80, 0x7f]), (0, 0, &[0x80])], Some((0, 0, NAN))),
        // A scale of 2^120, also with the largest code.
        (Encoding::Fp8(Fp8Scales::Squares), &[(1, 0, &[0, 0, 0x80, 0x7b])], None),
        (Encoding::Fp8(Fp8Scales::Squares), &[(1, 0, &[0, 0, 0x80, 0x7b]), (0, 66, &[0x7e])], Some((1, 2, INF))),
        (FP7, &[], None),
        // The exponent of all codes, with a mantissa of 7 in row 1, column 25, or with none.
        (FP7, &[(1, 0, &[15]), (0, 48 + 3, &[0x70])], Some((1, 25, NAN))),
        (FP7, &[(1, 0, &[15])], None),
        (FP7, &[(0, 48 + 3, &[0x70])], None),
        (FP7, &[(3, 4, &[0, 0, 0x80, 0x7f])], Some((1, 0, INF))),
        (Encoding::Mxfp4, &[], None),
        (Encoding::Mxfp4, &[(1, 3, &[0xff])], Some((1, 32, NAN))),
        (Encoding::Mxfp4, &[(1, 1, &[0xff])], Some((0, 32, NAN))),
        (Encoding::Mxfp4, &[(1, 1, &[0xfe])], None),
        (Encoding::Mxfp4, &[(1, 1, &[0xfe]), (0, 16, &[0x71])], Some((0, 33, INF))),
        (Q8_0, &[], None),
        (Q8_0, &[(0, 102, &[0, 0x7c])], Some((1, 32, INF))),
        (Q8_0, &[(0, 34, &[1, 0xfc])], Some((0, 32, NAN))),
        (Q8_0, &[(0, 2, &[0xff, 0x7f])], None),
        (Q8_0, &[(0, 0, &[0xff, 0x7b]), (0, 2, &[0x80])], None),
        (Q4_K, &[], None),
        (Q4_K, &[(0, 144, &[0, 0x7c])], Some((1, 0, INF))),
        (Q4_K, &[(0, 2, &[0, 0x7e])], Some((0, 0, NAN))),
        (Q4_K, &[(0, 0, &[0xff, 0x7b])], None),
        (HALVES, &[], None),
        (HALVES, &[(0, 17, &[0xff]), (0, 18, &[0x77])], Some((0, 32, INF))),
    ];
    let pool = pool();
    for (encoding, changes, expected) in cases {
        let mut parts = parts(encoding);
        for &(part, at, bytes) in changes {
            parts[part][at..][..bytes.len()].copy_from_slice(bytes);
        }
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let matrix = Matrix::new(encoding, ROWS, COLS, &parts).unwrap();
        // All NaNs are equivalent.
        let expected = format!("{expected:?}");
        let find = || format!("{:?}", matrix.first_not_finite());
        assert_eq!(find(), expected, "{encoding} {changes:?}");
        assert_eq!(pool.install(find), expected, "{encoding} {changes:?}, in a pool");
    }
}

fn pool() -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap()
}

#[test]
fn every_share_of_a_large_matrix_is_scanned() {
    const COLS: usize = 512;
    let rows = 5 * SHARE / COLS;
    let pool = pool();
    for row in [None, Some(0), Some(rows / 2), Some(rows - 1)] {
        let mut codes = vec![0u8; 2 * rows * COLS];
        if let Some(row) = row {
            codes[2 * ((row + 1) * COLS - 1)..][..2].copy_from_slice(&[0x80, 0x7f]);
        }
        let parts = [codes.as_slice()];
        let matrix = Matrix::new(Encoding::Bf16, rows, COLS, &parts).unwrap();
        let found = pool.install(|| matrix.first_not_finite());
        assert_eq!(found, row.map(|row| (row, COLS - 1, f32::INFINITY)));
    }
}

#[test]
fn every_row_is_scanned_for_escapes() {
    const COLS: usize = 64;
    let rows = 3 * SHARE / COLS + 5;
    let pool = pool();
    let offsets = |encoding| match encoding {
        Encoding::Bf12 => 4 * (rows + 1),
        _ => Offsets::Shared.len(rows as u64).unwrap() as usize,
    };
    // Bytes of a row, and those that make its first weight an escape, which lacks its patch.
    let cases = [(Encoding::Bf12, 96, &[(64, 15)][..]), (Encoding::Bf11, 80, &[(64, 1), (72, 1)])];
    for (encoding, len, escape) in cases {
        for row in [None, Some(0), Some(rows / 2), Some(rows - 1)] {
            let mut codes = vec![0; rows * len];
            for &(at, byte) in row.map_or(&[][..], |_| escape) {
                codes[row.unwrap_or(0) * len + at] = byte;
            }
            let parts = [&codes[..], &[0; 16], &vec![0; offsets(encoding)]];
            let matrix = Matrix::new(encoding, rows, COLS, &parts).unwrap();
            let found = pool.install(|| matrix.first_not_finite());
            assert_eq!(found, row.map(|row| (row, 0, f32::INFINITY)), "{encoding}");
        }
    }
}

/// The second of two rows has an escape, with a patch or without. Its block is not checked
/// against the patches of the first.
#[test]
fn rows_of_a_block_have_their_own_patches() {
    for (patched, expected) in [(true, false), (false, true)] {
        let mut parts = parts(Encoding::Bf12);
        parts[0][96] = 1;
        parts[0][160] = 15;
        // Start of the patches of row 0, of row 1, and their end. A byte of 0xff is no exponent
        // here.
        let offsets = if patched { [0u32, 0, 0xff] } else { [0, 1, 1] };
        for (to, offset) in parts[2].as_chunks_mut::<4>().0.iter_mut().zip(offsets) {
            *to = offset.to_le_bytes();
        }
        let block = [&parts[0][96..], &parts[1], &parts[2]];
        let matrix = Matrix::block(Encoding::Bf12, ROWS, COLS, 1..2, &block).unwrap();
        let found = matrix.first_not_finite();
        assert_eq!(found.is_some_and(|(row, col, _)| (row, col) == (0, 0)), expected, "{found:?}");
    }
}

/// Escapes are counted, in lanes of a byte, before rows are decoded: as many as patches are finite, and one
/// more is not.
#[test]
fn all_escapes_of_a_long_row_are_counted() {
    for cols in [1, 33, 64, 96, 64 * 127, 64 * 300 + 35] {
        let mut codes = Vec::new();
        for block in (0..cols).step_by(64) {
            let len = 64.min(cols - block);
            codes.resize(codes.len() + len, 0x00);
            codes.resize(codes.len() + len.div_ceil(2), 0xff);
        }
        for (patches, expected) in [(cols, None), (cols - 1, Some((0, cols - 1, f32::INFINITY)))] {
            let mut part = [0u32, patches as u32].map(u32::to_le_bytes).concat();
            part.resize(part.len() + patches, 0x11);
            let matrix = Matrix::new(Encoding::Bf12, 1, cols, &[&codes, &[0; 16], &part]).unwrap();
            assert_eq!(matrix.first_not_finite(), expected, "{patches} patches of {cols}");
        }
    }
}
