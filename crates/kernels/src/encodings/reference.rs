//! The scalar reference: the matches that lead to the meaning of every encoding, written as plainly as possible.
//! All kernels are tested against it, bit for bit.

use super::{
    Encoding, Matrix, MatrixError, bf11, bf12, codes, float, fp7, fp8, gguf, int4, mxfp4, nested,
    nvfp4, q,
};
use crate::scalar::{BLOCK, bf16_to_f32};

impl Matrix<'_> {
    /// Decodes the weights of one row to f32.
    ///
    /// # Panics
    ///
    /// If the row does not exist, or `out` is not one row long.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.row_count() && out.len() == self.cols(), "row {row} of {self:?}");
        decode_row(self, row, out);
    }

    /// Checks that the patches of a matrix that has some match its codes, in a pass over all codes.
    /// Meant for verifying files. Nothing else about the bytes can be wrong.
    pub fn check(&self) -> Result<(), MatrixError> {
        if !self.encoding().has_patches() {
            return Ok(());
        }
        for row in 0..self.row_count() {
            let codes = match self.encoding() {
                Encoding::Bf12 => bf12::reference::count_escapes(self, row),
                _ => patches_of(self, row),
            };
            let patches = self.escapes(row).len();
            if codes != patches {
                return Err(MatrixError::Patches { row, codes, patches });
            }
        }
        Ok(())
    }
}

/// Length of the patches that a row with exponents in tiers needs.
fn patches_of(m: &Matrix, row: usize) -> usize {
    use bf11::reference::{Bf11Planes, patches_of};
    let patches = m.patches(m.encoding(), row);
    let (len, _) = match m.encoding() {
        Encoding::Nested => patches_of::<nested::reference::NestedPlanes>(m, row, patches),
        Encoding::Fp7(_) => patches_of::<fp7::reference::Fp7Planes>(m, row, patches),
        _ => patches_of::<Bf11Planes>(m, row, patches),
    };
    len
}

/// Decodes all weights of a row.
pub(crate) fn decode_row(m: &Matrix, row: usize, out: &mut [f32]) {
    let mut patches = m.patches(m.encoding(), row);
    for (block, out) in out.chunks_mut(BLOCK).enumerate() {
        decode_block(m, row, block, &mut patches, out);
    }
}

/// Decodes one block of a row of bf12, bf11 or nested to bf16 bits.
pub(crate) fn bits(m: &Matrix, row: usize, block: usize, patches: &mut &[u8], out: &mut [u16]) {
    match m.encoding() {
        Encoding::Bf11 => bf11::reference::bits(m, row, block, patches, out),
        Encoding::Nested => nested::reference::bits(m, row, block, patches, out),
        _ => bf12::reference::bits(m, row, block, patches, out),
    }
}

/// Decodes one block of at most 64 columns. `patches` are those from this block on and are advanced
/// past those used.
pub(crate) fn decode_block(
    m: &Matrix,
    row: usize,
    block: usize,
    patches: &mut &[u8],
    out: &mut [f32],
) {
    if let Some(coding) = m.encoding().coding() {
        return codes::weights(coding, m, row, block, out);
    }
    match m.encoding() {
        Encoding::F32 => float::reference::f32(m, row, block, out),
        Encoding::F16 => float::reference::f16(m, row, block, out),
        Encoding::Bf16 => float::reference::bf16(m, row, block, out),
        Encoding::Bf12 | Encoding::Bf11 | Encoding::Nested => {
            let mut numbers = [0; BLOCK];
            bits(m, row, block, patches, &mut numbers[..out.len()]);
            for (out, bits) in out.iter_mut().zip(numbers) {
                *out = bf16_to_f32(bits);
            }
        }
        Encoding::Top => nested::reference::top(m, row, block, out),
        Encoding::Q8 => q::reference::q8(m, row, block, out),
        Encoding::Fp8(scales) => fp8::reference::block(scales, m, row, block, out),
        Encoding::Fp7(scales) => fp7::reference::block(scales, m, row, block, patches, out),
        Encoding::Mxfp4 => mxfp4::reference::block(m, row, block, out),
        Encoding::Int4(_) => int4::reference::in_any_order(m, row, block, out),
        Encoding::Gguf(format) => gguf::reference::block(format, m, row, block, out),
        Encoding::Q4 | Encoding::Nvfp4(_) => unreachable!("it has codes"),
    }
}

/// False only if all weights are finite. It may be true for a finite matrix, where a scale would
/// overflow only with large codes.
pub(super) fn may_hold_one(m: &Matrix<'_>) -> bool {
    match m.encoding() {
        Encoding::F32 => float::reference::has_special_f32(m),
        Encoding::F16 => float::reference::has_special_f16(m),
        Encoding::Bf16 => float::reference::has_special_bf16(m),
        Encoding::Bf12 => bf12::reference::may_be_special(m),
        Encoding::Bf11 => bf11::reference::may_be_special(m),
        Encoding::Nested => nested::reference::has_special_power(m.part(1)),
        Encoding::Top => nested::reference::has_special_power(m.part(0)),
        Encoding::Q8 | Encoding::Q4 => q::reference::may_overflow(m),
        Encoding::Fp8(scales) => fp8::reference::may_be_special(scales, m),
        Encoding::Fp7(scales) => fp7::reference::may_be_special(scales, m),
        Encoding::Mxfp4 => mxfp4::reference::may_overflow(m),
        Encoding::Int4(groups) => int4::reference::may_overflow(groups, m),
        Encoding::Nvfp4(scale) => nvfp4::reference::may_overflow(scale, m),
        Encoding::Gguf(format) => gguf::reference::may_be_special(format, m),
    }
}
