//! Conversion to a narrower float type. Exact if every number fits; otherwise the error is
//! measured.

use half::{bf16, f16};
use sws_kernels::{EncodeError, EncodedRows, Encoding, ErrorSums, SourceDtype};

/// Encodes rows of `from` as `to`, which is f16 or bf16. Infinities, and NaNs that the narrower
/// type can represent, are accepted. Finite numbers must stay finite.
pub(super) fn encode(
    from: SourceDtype,
    to: Encoding,
    cols: usize,
    rows: &[u8],
    out: &mut EncodedRows,
) -> Result<(), EncodeError> {
    out.parts.iter_mut().for_each(Vec::clear);
    out.escapes.clear();
    out.exponents.clear();
    out.error = ErrorSums::default();
    for (row, bytes) in rows.chunks(cols * from.size()).enumerate() {
        let mut sums = ErrorSums::default();
        for (col, number) in bytes.chunks_exact(from.size()).enumerate() {
            let wide = match (from, number) {
                (SourceDtype::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
                (SourceDtype::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
                (_, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
                // Unreachable: `chunks_exact` yields only these lengths.
                _ => continue,
            };
            let (bytes, back) = match to {
                Encoding::F16 => (f16::from_f32(wide).to_le_bytes(), f16::from_f32(wide).to_f32()),
                _ => (bf16::from_f32(wide).to_le_bytes(), bf16::from_f32(wide).to_f32()),
            };
            out.parts[0].extend_from_slice(&bytes);
            if wide.to_bits() == back.to_bits() {
                if wide.is_finite() {
                    sums.total += f64::from(wide) * f64::from(wide);
                }
                continue;
            }
            if !wide.is_finite() || !back.is_finite() {
                return Err(EncodeError::NotFinite { encoding: to, row, col });
            }
            let difference = f64::from(back) - f64::from(wide);
            sums.difference += difference * difference;
            sums.total += f64::from(wide) * f64::from(wide);
            sums.max = sums.max.max(difference.abs());
        }
        out.error.difference += sums.difference;
        out.error.total += sums.total;
        out.error.max = out.error.max.max(sums.max);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fitting_numbers_are_exact_and_others_measured() {
        let f32s = |v: &[f32]| v.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let halves = |v: &[f16]| v.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        #[rustfmt::skip]
        let cases = [
            // from, to, numbers, largest error (`None` if refused)
            (SourceDtype::F32, Encoding::Bf16, f32s(&[1.0, -0.0, -100f32.exp2(), f32::INFINITY]), Some(0.0)),
            (SourceDtype::F32, Encoding::Bf16, f32s(&[1.0, 1.0 + 1.0 / 256.0]), Some(1.0 / 256.0)),
            (SourceDtype::F32, Encoding::Bf16, f32s(&[f32::MAX]), None),
            (SourceDtype::F32, Encoding::F16, f32s(&[65504.0, 5.9604645e-8]), Some(0.0)),
            (SourceDtype::F32, Encoding::F16, f32s(&[65520.0]), None),
            (SourceDtype::F32, Encoding::F16, f32s(&[f32::from_bits(0x7f80_0001)]), None),
            (SourceDtype::F16, Encoding::Bf16, halves(&[f16::ONE, f16::NEG_INFINITY]), Some(0.0)),
            (SourceDtype::F16, Encoding::Bf16, halves(&[f16::from_f32(1.0 + 1.0 / 1024.0)]), Some(1.0 / 1024.0)),
        ];
        for (from, to, bytes, expected) in cases {
            let mut out = EncodedRows::default();
            let cols = bytes.len() / from.size();
            let found = encode(from, to, cols, &bytes, &mut out).ok().map(|()| out.error.max);
            assert_eq!(found, expected, "{from:?} to {to}: {bytes:?}");
        }
    }
}
