//! Detection of weights that are NaN or infinite.

use rayon::prelude::*;
use sws_kernels::{Encoding, Fp8Scales, GgufBlocks, Matrix, Published};

/// Weights, or bytes of them, that a thread takes at a time.
const SHARE: usize = 1 << 18;

/// The row, column and value of the first weight that is not finite, in a matrix or a block of its
/// rows, given together with its parts.
///
/// A quick scan of the parts shows whether there can be one; weights are decoded only then.
pub fn first_not_finite(matrix: &Matrix<'_>, parts: &[&[u8]]) -> Option<(usize, usize, f32)> {
    if !may_hold_one(matrix, parts) {
        return None;
    }
    // An infinite divisor would make all weights zero.
    if let (Encoding::Published(Published::Nvfp4Divided), Some(number)) =
        (matrix.encoding(), parts.get(2).and_then(|part| part.first_chunk()))
        && f32::from_le_bytes(*number).is_infinite()
    {
        return Some((0, 0, f32::from_le_bytes(*number)));
    }
    let mut row = vec![0.0; matrix.cols()];
    (0..matrix.row_count()).find_map(|r| {
        matrix.decode_row(r, &mut row);
        row.iter().position(|w| !w.is_finite()).map(|col| (r, col, row[col]))
    })
}

/// False only if all weights are finite. It may be true for a finite matrix, where a scale would
/// overflow only with large codes.
fn may_hold_one(matrix: &Matrix<'_>, parts: &[&[u8]]) -> bool {
    match matrix.encoding() {
        Encoding::F32 => any_share(parts[0], f32s),
        Encoding::F16 => any_share(parts[0], |bytes| halves(bytes, 0x7c00)),
        Encoding::Bf16 => any_share(parts[0], |bytes| halves(bytes, 0x7f80)),
        // The largest exponent can be in the table or, verbatim, among the patches. Escapes without
        // a patch also decode to it. The offsets before the patches contain a byte of 0xff in most
        // matrices, which means nothing.
        Encoding::Bf12 => {
            let len = matrix.cols() + matrix.cols().div_ceil(2);
            let patched = |row| {
                let patches = matrix.escapes(row);
                bytes(patches, 0xff) || escapes(&parts[0][row * len..][..len]) > patches.len()
            };
            bytes(parts[1], 0xff) || any_row(matrix, patched)
        }
        Encoding::Bf11 => {
            bytes(&parts[1][..9], 0xff) || any_row(matrix, |row| matrix.has_infinite_escape(row))
        }
        // An exponent is that of its half at most.
        Encoding::Nested => infinite_powers(parts[1]),
        Encoding::Top => infinite_powers(parts[0]),
        // Codes are always finite. Only a scale can be NaN, infinite or too large: from 2^120 on
        // for codes up to 127, from 2^119 on for those up to 448, from 2^126 on for those up to 6.
        Encoding::Q8 | Encoding::Q4 => halves(parts[1], (120 + 127) << 7),
        Encoding::Fp7(scales) => {
            any_row(matrix, |row| matrix.has_nan_code(row)) || fp8_may_overflow(scales, parts[3])
        }
        Encoding::Fp8 => nan_in_fp8(parts[0]) || fp8_may_overflow(Fp8Scales::Squares, parts[1]),
        Encoding::Published(layout) => published_may_hold_one(layout, parts),
        Encoding::Mxfp4 => parts[1].iter().any(|&n| n >= 126 + 127),
        // The largest f16 times a scale and a code is far from the largest f32.
        Encoding::Gguf(format) => {
            let blocks = parts[0].chunks_exact(format.bytes());
            let powers = format == GgufBlocks::Mxfp4;
            // The exponent of a scale that is in parts.
            if format == GgufBlocks::Iq1M {
                return blocks.clone().any(|b| b[55] & 0x70 == 0x70 && b[53] & 0xc0 == 0xc0);
            }
            (powers && blocks.clone().any(|block| block[0] >= 126 + 127))
                || format.scales().iter().any(|&at| {
                    blocks.clone().fold(false, |any, b| any | halves(&b[at..at + 2], 0x7c00))
                })
        }
    }
}

/// True if this holds for any row of a matrix. On a thread of a pool, all of them take part: the first
/// prompt of a model scans all its weights.
fn any_row(matrix: &Matrix<'_>, has: impl Fn(usize) -> bool + Send + Sync) -> bool {
    let rows = matrix.row_count();
    let cols = matrix.cols();
    match rayon::current_thread_index() {
        Some(_) => (0..rows).into_par_iter().with_min_len(SHARE / cols.max(1) + 1).any(has),
        None => (0..rows).any(has),
    }
}

/// The same for any part of a tensor's bytes, cut where numbers begin.
fn any_share(bytes: &[u8], has: impl Fn(&[u8]) -> bool + Send + Sync) -> bool {
    match rayon::current_thread_index() {
        Some(_) => bytes.par_chunks(SHARE).any(has),
        None => has(bytes),
    }
}

/// True if a half of a block has the exponent of infinity and NaN.
fn infinite_powers(top: &[u8]) -> bool {
    top.chunks_exact(34).any(|block| block[32] == 0xff || block[33] == 0xff)
}

/// True if any code of eight bits is NaN.
fn nan_in_fp8(codes: &[u8]) -> bool {
    any_share(codes, |codes| bytes(codes, 0x7f))
}

/// True if a scale of e4m3 codes is NaN, or so large that the largest code exceeds f32.
fn fp8_may_overflow(kind: Fp8Scales, scales: &[u8]) -> bool {
    match kind {
        Fp8Scales::Squares | Fp8Scales::Rows | Fp8Scales::Whole => large(scales, 2f32.powi(119)),
        Fp8Scales::SquaresBf16 | Fp8Scales::RowsBf16 | Fp8Scales::WholeBf16 => {
            halves(scales, (119 + 127) << 7)
        }
        Fp8Scales::SquaresE8m0 | Fp8Scales::Thirtytwos => scales.iter().any(|&n| n >= 119 + 127),
    }
}

/// True if any of the numbers has all exponent bits set.
fn f32s(bytes: &[u8]) -> bool {
    let (numbers, _) = bytes.as_chunks::<4>();
    numbers.iter().fold(false, |any, n| any | (u32::from_le_bytes(*n) << 1 >= 0xff00_0000))
}
fn halves(bytes: &[u8], from: u16) -> bool {
    let (numbers, _) = bytes.as_chunks::<2>();
    numbers.iter().fold(false, |any, n| any | (u16::from_le_bytes(*n) & 0x7fff >= from))
}
fn bytes(bytes: &[u8], mask: u8) -> bool {
    bytes.iter().fold(false, |any, n| any | (n & mask == mask))
}

/// True if a number of 32 bits is NaN or at least this large.
fn large(bytes: &[u8], from: f32) -> bool {
    let mut numbers = bytes.as_chunks::<4>().0.iter().map(|n| f32::from_le_bytes(*n));
    numbers.any(|n| n.is_nan() || n.abs() >= from)
}

/// [`may_hold_one`] for codes of up to 448 = 2⁹ · .875 in e4m3, 8 in int4 and 6 in e2m1.
fn published_may_hold_one(layout: Published, parts: &[&[u8]]) -> bool {
    let scales = parts[1];
    if let Some(kind) = Fp8Scales::of(Encoding::Published(layout)) {
        return nan_in_fp8(parts[0]) || fp8_may_overflow(kind, scales);
    }
    match layout {
        Published::Int4 | Published::Int4By128 => halves(scales, (125 + 127) << 7),
        // Codes less zero points are at most 15.
        Published::Int4Zeros32
        | Published::Int4Zeros64
        | Published::Int4Zeros128
        | Published::Int4ActOrder32
        | Published::Int4ActOrder64
        | Published::Int4ActOrder128 => large(scales, 2f32.powi(123)),
        Published::Nvfp4 => bytes(scales, 0x7f) || large(parts[2], 2f32.powi(116)),
        Published::Nvfp4Divided => {
            let small = |n: &[u8; 4]| f32::from_le_bytes(*n).abs() <= 2f32.powi(-116);
            bytes(scales, 0x7f)
                || large(parts[2], f32::INFINITY)
                || parts[2].as_chunks().0.iter().any(small)
        }
        _ => unreachable!("codes of e4m3"),
    }
}

/// Number of escapes among the codes of a row.
///
/// Counts in byte lanes, which the compiler vectorizes: a long prompt scans the whole model, and
/// counting one by one took a quarter of its time.
fn escapes(row: &[u8]) -> usize {
    /// Number of blocks whose escape counts fit into a byte.
    const BLOCKS: usize = 127;
    // In a block of n columns the first n bytes are signs and mantissas; the others hold two codes
    // each.
    let (blocks, rest) = row.as_chunks::<96>();
    let whole = blocks.chunks(BLOCKS).map(|blocks| {
        let mut lanes = [0u8; 32];
        for block in blocks {
            for (lane, &codes) in lanes.iter_mut().zip(&block[64..]) {
                *lane += of_two(codes);
            }
        }
        lanes.iter().map(|&n| u32::from(n)).sum::<u32>()
    });
    let rest = &rest[rest.len() * 2 / 3..];
    let rest: u32 = rest.iter().map(|&codes| u32::from(of_two(codes))).sum();
    (whole.sum::<u32>() + rest) as usize
}

/// Number of escapes among two codes.
fn of_two(codes: u8) -> u8 {
    u8::from(codes & 15 == 15) + u8::from(codes >> 4 == 15)
}

#[cfg(test)]
mod tests {
    use sws_kernels::Offsets;

    use super::*;

    const ROWS: usize = 2;
    const COLS: usize = 64;

    /// Parts of a matrix of finite numbers, filled with unremarkable bytes.
    fn parts(encoding: Encoding) -> Vec<Vec<u8>> {
        use Published::*;
        let lens: &[usize] = match encoding {
            Encoding::F32 => &[4 * ROWS * COLS],
            Encoding::F16 | Encoding::Bf16 => &[2 * ROWS * COLS],
            Encoding::Bf12 => &[ROWS * (COLS + COLS / 2), 16, 4 * (ROWS + 1) + 1],
            Encoding::Bf11 => &[ROWS * (COLS + COLS / 4), 16, 4 + 2 * (ROWS + 1) + 2],
            Encoding::Nested => &[ROWS * 48, ROWS * 34, 4 + 2 * (ROWS + 1)],
            Encoding::Top => &[ROWS * 34],
            Encoding::Q8 => &[ROWS * COLS, 2 * ROWS],
            Encoding::Q4 => &[ROWS * COLS / 2, 2 * ROWS],
            Encoding::Fp8 => &[ROWS * COLS, 4],
            Encoding::Fp7(_) => &[ROWS * 48, 16, 4 + 2 * (ROWS + 1), 4 * ROWS],
            Encoding::Mxfp4 => &[ROWS * COLS / 2, ROWS * COLS / 32],
            Encoding::Published(Fp8E8m0) => &[ROWS * COLS, 1],
            Encoding::Published(Fp8Bf16 | Fp8WholeBf16) => &[ROWS * COLS, 2],
            Encoding::Published(Fp8Whole) => &[ROWS * COLS, 4],
            Encoding::Published(Fp8Rows) => &[ROWS * COLS, 4 * ROWS],
            Encoding::Published(Fp8RowsBf16) => &[ROWS * COLS, 2 * ROWS],
            Encoding::Published(Mxfp8) => &[ROWS * COLS, ROWS * COLS / 32],
            Encoding::Published(Int4) => &[ROWS * COLS / 2, ROWS * COLS / 16],
            Encoding::Published(Int4By128) => &[ROWS * COLS / 2, 2 * ROWS],
            Encoding::Published(Int4Zeros32) => &[ROWS * COLS / 2, 8 * ROWS],
            Encoding::Published(Int4Zeros64 | Int4Zeros128) => &[ROWS * COLS / 2, 4 * ROWS],
            Encoding::Published(Int4ActOrder32) => &[ROWS * COLS / 2, 8 * ROWS, 2 * COLS],
            Encoding::Published(Int4ActOrder64 | Int4ActOrder128) => {
                &[ROWS * COLS / 2, 4 * ROWS, 2 * COLS]
            }
            Encoding::Published(Nvfp4 | Nvfp4Divided) => &[ROWS * COLS / 2, ROWS * COLS / 16, 4],
            Encoding::Gguf(format) => &[ROWS * COLS.div_ceil(format.cols()) * format.bytes()],
        };
        let mut parts: Vec<Vec<u8>> = lens.iter().map(|&len| vec![0x11; len]).collect();
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
        const Q4_K: Encoding = Encoding::Gguf(GgufBlocks::Q4K);
        const HALVES: Encoding = Encoding::Gguf(GgufBlocks::Mxfp4);
        #[rustfmt::skip]
        let cases: [Case; 101] = [
            // encoding, (part, byte, bytes), position and value of the first weight that is not
            // finite
            (Encoding::Published(Published::Fp8Bf16), &[], None),
            (Encoding::Published(Published::Fp8Bf16), &[(1, 0, &[0x80, 0x7f])], Some((0, 0, INF))),
            (Encoding::Published(Published::Fp8E8m0), &[(1, 0, &[0xff])], Some((0, 0, NAN))),
            (Encoding::Published(Published::Fp8Rows), &[(0, 65, &[0x7f])], Some((1, 1, NAN))),
            (Encoding::Published(Published::Fp8Rows), &[(1, 4, &[0, 0, 0xc0, 0x7f])], Some((1, 0, NAN))),
            (Encoding::Published(Published::Fp8RowsBf16), &[(1, 2, &[0x80, 0x7f])], Some((1, 0, INF))),
            (Encoding::Published(Published::Fp8Whole), &[(1, 0, &[0, 0, 0x80, 0x7f])], Some((0, 0, INF))),
            (Encoding::Published(Published::Fp8WholeBf16), &[(1, 0, &[0xc0, 0x7f])], Some((0, 0, NAN))),
            (Encoding::Published(Published::Mxfp8), &[(1, 3, &[0xff])], Some((1, 32, NAN))),
            (Encoding::Published(Published::Int4), &[], None),
            (Encoding::Published(Published::Int4), &[(1, 6, &[0xc0, 0x7f])], Some((1, 32, NAN))),
            (Encoding::Published(Published::Int4Zeros32), &[], None),
            (Encoding::Published(Published::Int4Zeros32), &[(1, 12, &[0, 0, 0xc0, 0x7f])], Some((1, 32, NAN))),
            (Encoding::Published(Published::Int4Zeros128), &[(1, 4, &[1, 0, 0x80, 0x7f])], Some((1, 0, NAN))),
            // The group of column 0, and of others, is the last.
            (Encoding::Published(Published::Int4ActOrder32), &[(1, 4, &[0, 0, 0x80, 0x7f])], Some((0, 0, INF))),
            (Encoding::Published(Published::Int4ActOrder32), &[(1, 0, &[0, 0, 0x80, 0x7f]), (2, 6, &[0, 0])], Some((0, 3, INF))),
            (Encoding::Published(Published::Int4By128), &[(1, 2, &[0x80, 0x7f])], Some((1, 0, -INF))),
            (Encoding::Published(Published::Nvfp4), &[(1, 4, &[0x7f])], Some((1, 0, NAN))),
            (Encoding::Published(Published::Nvfp4), &[(2, 0, &[0, 0, 0x80, 0x7f])], Some((0, 0, INF))),
            (Encoding::Published(Published::Nvfp4Divided), &[(2, 0, &[0; 4])], Some((0, 0, INF))),
            (Encoding::Published(Published::Nvfp4Divided), &[(2, 0, &[0, 0, 0x80, 0x7f])], Some((0, 0, INF))),
            (Encoding::Published(Published::Nvfp4Divided), &[], None),
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
            (Encoding::Fp8, &[], None),
            (Encoding::Fp8, &[(0, 70, &[0x7f])], Some((1, 6, NAN))),
            (Encoding::Fp8, &[(0, 3, &[0xff])], Some((0, 3, NAN))),
            (Encoding::Fp8, &[(0, 3, &[0x7e])], None),
            (Encoding::Fp8, &[(1, 0, &[0, 0, 0xc0, 0x7f])], Some((0, 0, NAN))),
            (Encoding::Fp8, &[(1, 0, &[0, 0, 0x80, 0x7f])], Some((0, 0, INF))),
            (Encoding::Fp8, &[(1, 0, &[0, 0, 0x80, 0x7f]), (0, 0, &[0x80])], Some((0, 0, NAN))),
            // A scale of 2^120, also with the largest code.
            (Encoding::Fp8, &[(1, 0, &[0, 0, 0x80, 0x7b])], None),
            (Encoding::Fp8, &[(1, 0, &[0, 0, 0x80, 0x7b]), (0, 66, &[0x7e])], Some((1, 2, INF))),
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
            let find = || format!("{:?}", first_not_finite(&matrix, &parts));
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
            let found = pool.install(|| first_not_finite(&matrix, &parts));
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
        let cases =
            [(Encoding::Bf12, 96, &[(64, 15)][..]), (Encoding::Bf11, 80, &[(64, 1), (72, 1)])];
        for (encoding, len, escape) in cases {
            for row in [None, Some(0), Some(rows / 2), Some(rows - 1)] {
                let mut codes = vec![0; rows * len];
                for &(at, byte) in row.map_or(&[][..], |_| escape) {
                    codes[row.unwrap_or(0) * len + at] = byte;
                }
                let parts = [&codes[..], &[0; 16], &vec![0; offsets(encoding)]];
                let matrix = Matrix::new(encoding, rows, COLS, &parts).unwrap();
                let found = pool.install(|| first_not_finite(&matrix, &parts));
                assert_eq!(found, row.map(|row| (row, 0, f32::INFINITY)), "{encoding}");
            }
        }
    }

    #[test]
    fn all_escapes_of_a_long_row_are_counted() {
        for cols in [1_usize, 33, 64, 96, 64 * 127, 64 * 300 + 35] {
            let full = vec![0xff; cols + cols.div_ceil(2)];
            assert_eq!(escapes(&full), 2 * cols.div_ceil(2), "{cols} columns");
            assert_eq!(escapes(&vec![0xef; full.len()]), cols.div_ceil(2), "{cols} columns");
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
            let found = first_not_finite(&matrix, &block);
            assert_eq!(
                found.is_some_and(|(row, col, _)| (row, col) == (0, 0)),
                expected,
                "{found:?}"
            );
        }
    }
}
