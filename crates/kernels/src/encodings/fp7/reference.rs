//! fp7 in scalars.

use super::simd::Fp7Simd;
use super::{FP7_BLOCK, nibble_place};
use crate::encodings::bf11::reference::{Planes, decode_exponents, pair, planes};
use crate::encodings::fp8;
use crate::encodings::scan::any_row;
use crate::scalar::{BLOCK, e4m3_to_f32, nibble, paired};
use crate::simd::Portable;
use crate::{Fp8Scales, Matrix};

/// Decodes one block of an fp7 row to codes of e4m3.
pub(in crate::encodings) fn codes(
    m: &Matrix,
    row: usize,
    block: usize,
    patches: &mut &[u8],
    out: &mut [u8],
) {
    let n = out.len();
    let bytes = &m.row_bytes(0, row)[block * FP7_BLOCK..];
    let planes = &bytes[n.div_ceil(2)..];
    let code = |at: usize| pair(planes, at, 8 * n.div_ceil(8) + at);
    let mut exponents = [0; BLOCK];
    decode_exponents(&m.tiers(), code, patches, &mut exponents[..n]);
    for (c, out) in out.iter_mut().enumerate() {
        let at = if n == BLOCK { paired(c) } else { c };
        let rest = nibble(bytes, nibble_place(at, n));
        *out = (rest & 8) << 4 | (exponents[at] & 15) << 3 | rest & 7;
    }
}

/// [`Planes`] of fp7.
pub(in crate::encodings) struct Fp7Planes;

impl Planes for Fp7Planes {
    #[inline(always)]
    fn of(m: &Matrix, row: usize, block: usize, n: usize) -> [u64; 2] {
        planes(&m.row_bytes(0, row)[block * FP7_BLOCK + n.div_ceil(2)..], n)
    }
}

/// True if any code of a row is NaN.
fn has_nan_code(m: &Matrix, row: usize) -> bool {
    #[cfg(target_arch = "x86_64")]
    if let Some(token) = crate::Avx2::detect() {
        // SAFETY: the token exists only on a CPU that has these features.
        return unsafe { with_vectors(token, m, row) };
    }
    any_nan(Portable, m, row)
}

/// [`any_nan`] with vectors: the first prompt walks over the whole model.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
fn with_vectors(token: crate::Avx2, m: &Matrix, row: usize) -> bool {
    any_nan(token, m, row)
}

#[inline(always)]
fn any_nan<S: Fp7Simd>(s: S, m: &Matrix, row: usize) -> bool {
    let tiers = s.tiers(&m.tiers());
    let mut patches = m.patches(m.encoding(), row);
    let (blocks, _) = m.row_bytes(0, row).as_chunks::<FP7_BLOCK>();
    let whole = m.cols() / BLOCK;
    let n = m.cols() % BLOCK;
    for block in &blocks[..whole] {
        // SAFETY: 48 bytes.
        if unsafe { s.fp7(&tiers, block.as_ptr(), &mut patches) }.1 {
            return true;
        }
    }
    let mut tail = [0; BLOCK];
    codes(m, row, whole, &mut patches, &mut tail[..n]);
    tail.iter().any(|code| code & 0x7f == 0x7f)
}

/// Decodes one block of an fp7 row.
pub(in crate::encodings) fn block(
    scales: Fp8Scales,
    m: &Matrix,
    row: usize,
    block: usize,
    patches: &mut &[u8],
    out: &mut [f32],
) {
    let mut bytes = [0; BLOCK];
    codes(m, row, block, patches, &mut bytes[..out.len()]);
    let of = fp8::reference::scales(scales, m.scales(m.encoding(), row), block);
    for (c, (out, code)) in out.iter_mut().zip(bytes).enumerate() {
        *out = e4m3_to_f32(code) * of(c);
    }
}

/// True if a code is NaN, or a scale may make one.
pub(in crate::encodings) fn may_be_special(kind: Fp8Scales, m: &Matrix) -> bool {
    any_row(m, |row| has_nan_code(m, row)) || fp8::reference::may_overflow(kind, m.part(3))
}
