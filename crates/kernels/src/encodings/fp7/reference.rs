//! fp7: signs and mantissas of e4m3 in nibbles, planes of codes for exponents, and patches as in bf11.

use super::bf11::{decode_exponents, pair};
use super::{BLOCK, e4m3_to_f32, nibble, paired};
use crate::simd::{Portable, Simd};
use crate::{Fp8Scales, Matrix};

/// Bytes of a whole block: nibbles and two planes.
pub(crate) const FP7_BLOCK: usize = BLOCK / 2 + BLOCK / 4;

/// Place of the nibble that bit `at` of the planes belongs to: halves of whole blocks lie beside each other.
pub(crate) const fn nibble_place(at: usize, n: usize) -> usize {
    if n == BLOCK { 2 * (at % 32) + at / 32 } else { at }
}

/// Decodes one block of an fp7 row to codes of e4m3.
pub(crate) fn codes(m: &Matrix, row: usize, block: usize, patches: &mut &[u8], out: &mut [u8]) {
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

/// True if any code of a row is NaN.
pub(crate) fn has_nan_code(m: &Matrix, row: usize) -> bool {
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
fn any_nan<S: Simd>(s: S, m: &Matrix, row: usize) -> bool {
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
pub(super) fn block(
    scales: Fp8Scales,
    m: &Matrix,
    row: usize,
    block: usize,
    patches: &mut &[u8],
    out: &mut [f32],
) {
    let mut bytes = [0; BLOCK];
    codes(m, row, block, patches, &mut bytes[..out.len()]);
    let of = super::published::fp8_scales(scales, m.scales(m.encoding(), row), block);
    for (c, (out, code)) in out.iter_mut().zip(bytes).enumerate() {
        *out = e4m3_to_f32(code) * of(c);
    }
}
