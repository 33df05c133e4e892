//! Decoding of encoded rows to the bytes of a checkpoint.

use super::EncodeError;
use crate::encodings::{SourceDtype, fp7, reference};
use crate::scalar::{BLOCK, f16_to_f32};
use crate::{Encoding, Matrix};

impl Matrix<'_> {
    /// Appends all rows in view as the checkpoint had them, bit for bit: bf12, bf11 and
    /// nested give back their bf16, fp7 its codes of e4m3, f32 the type it was widened from.
    ///
    /// # Errors
    ///
    /// If `to` cannot hold a number exactly.
    pub fn to_source(&self, to: SourceDtype, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let encoding = self.encoding();
        if encoding == to.encoding() {
            out.extend_from_slice(self.part(0));
            return Ok(());
        }
        if self.row_count() == 0 {
            // Without rows, the number of columns does not matter.
            return Ok(());
        }
        out.reserve(self.row_count() * self.cols() * to.size());
        match (encoding, to) {
            (Encoding::Bf12 | Encoding::Bf11 | Encoding::Nested, SourceDtype::Bf16) => {
                let mut bits = [0; BLOCK];
                self.each_block(|row, block, n, patches| {
                    reference::bits(self, row, block, patches, &mut bits[..n]);
                    out.extend(bits[..n].iter().flat_map(|b| b.to_le_bytes()));
                });
                return Ok(());
            }
            (Encoding::Fp7(_), SourceDtype::E4m3) => {
                let mut codes = [0; BLOCK];
                self.each_block(|row, block, n, patches| {
                    fp7::reference::codes(self, row, block, patches, &mut codes[..n]);
                    out.extend_from_slice(&codes[..n]);
                });
                return Ok(());
            }
            _ => {}
        }
        let mut wide = vec![0.0; self.cols()];
        for row in 0..self.row_count() {
            self.decode_row(row, &mut wide);
            for (col, w) in wide.iter().enumerate() {
                let not_exact = EncodeError::NotExact { to, row, col };
                match to {
                    SourceDtype::F32 => out.extend_from_slice(&w.to_le_bytes()),
                    SourceDtype::F16 => {
                        out.extend_from_slice(&to_f16(*w).ok_or(not_exact)?.to_le_bytes());
                    }
                    SourceDtype::Bf16 => {
                        let bits = w.to_bits();
                        if bits & 0xffff != 0 {
                            return Err(not_exact);
                        }
                        out.extend_from_slice(&((bits >> 16) as u16).to_le_bytes());
                    }
                    // No number is stored as a code without its scale.
                    SourceDtype::E4m3 => return Err(not_exact),
                }
            }
        }
        Ok(())
    }

    /// Calls `decode` with the row, number and columns of each block, and the patches from it on.
    fn each_block(&self, mut decode: impl FnMut(usize, usize, usize, &mut &[u8])) {
        for row in 0..self.row_count() {
            let mut patches = self.patches(self.encoding(), row);
            for block in 0..self.cols().div_ceil(BLOCK) {
                let n = BLOCK.min(self.cols() - block * BLOCK);
                decode(row, block, n, &mut patches);
            }
        }
    }
}

/// The f16 that widens to exactly these bits, if there is one.
fn to_f16(w: f32) -> Option<u16> {
    let bits = w.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    let narrow = match magnitude >> 23 {
        255 => 0x7c00 | (magnitude >> 13 & 0x3ff) as u16,
        // 2⁻¹⁴ and above: the exponent is biased by 15 instead of 127.
        113..143 => ((magnitude - (112 << 23)) >> 13) as u16,
        _ => (f32::from_bits(magnitude) * (1 << 24) as f32) as u16,
    };
    let narrow = sign | narrow;
    (f16_to_f32(narrow).to_bits() == bits).then_some(narrow)
}
