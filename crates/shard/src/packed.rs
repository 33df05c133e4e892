//! Integers of eight four-bit codes, and scales and zero points of groups.

use half::{bf16, f16};

use sws_format::{Dtype, Packing};

/// Converts integers of AWQ, each with codes of eight rows, to these rows, one after another.
pub(super) fn rows_of_integers(copy: &mut Vec<u8>, bytes: &mut [u8]) {
    copy.clear();
    copy.extend_from_slice(bytes);
    let integers = copy.as_chunks::<4>().0.as_chunks::<2>().0;
    for (row, out) in (0..).zip(bytes.chunks_exact_mut(integers.len())) {
        let shift = 4 * Packing::Awq.place(row);
        for (pair, out) in integers.iter().zip(out) {
            let [low, high] = pair.map(|bytes| (u32::from_le_bytes(bytes) >> shift & 15) as u8);
            *out = low | high << 4;
        }
    }
}

/// Converts eight rows of codes to integers of AWQ.
pub(super) fn integers_of_rows(copy: &mut Vec<u8>, bytes: &mut [u8]) {
    copy.clear();
    copy.extend_from_slice(bytes);
    bytes.fill(0);
    let integers = bytes.as_chunks_mut::<4>().0.as_chunks_mut::<2>().0;
    for (row, codes) in (0..).zip(copy.chunks_exact(integers.len())) {
        let shift = 4 * Packing::Awq.place(row);
        for ([low, high], codes) in integers.iter_mut().zip(codes) {
            for (integer, code) in [(low, codes & 15), (high, codes >> 4)] {
                let with = u32::from_le_bytes(*integer) | u32::from(code) << shift;
                *integer = with.to_le_bytes();
            }
        }
    }
}

/// The numbers of one group: a scale or a zero point for each row.
pub(super) struct GroupLine<'a> {
    pub(super) packing: Packing,
    /// The type of the scales, or of the integers with eight zero points.
    pub(super) dtype: Dtype,
    pub(super) line: &'a [u8],
}

impl GroupLine<'_> {
    /// The bits of a row's number in the unit of the group; `None` for a scale that is not finite.
    pub(super) fn bits(&self, row: u64) -> Option<u32> {
        if self.dtype != Dtype::I32 {
            return Some(self.scale(row)).filter(|scale| scale.is_finite()).map(f32::to_bits);
        }
        let integers = self.line.as_chunks().0;
        let eight = u32::from_le_bytes(integers[(row / 8) as usize]);
        let eight = eight.wrapping_add(self.packing.offset());
        Some(eight >> (4 * self.packing.place(row)) & 15)
    }

    /// The scale of a row.
    pub(super) fn scale(&self, row: u64) -> f32 {
        let bits = u16::from_le_bytes(self.line.as_chunks().0[row as usize]);
        match self.dtype {
            Dtype::BF16 => bf16::from_bits(bits).to_f32(),
            _ => f16::from_bits(bits).to_f32(),
        }
    }
}

/// The bytes of a scale in its original type, from the unit of its group.
pub(super) fn scale_of(unit: u32, dtype: Dtype) -> [u8; 2] {
    let scale = f32::from_bits(unit & !0x1fff);
    match dtype {
        Dtype::BF16 => bf16::from_f32(scale).to_le_bytes(),
        _ => f16::from_f32(scale).to_le_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_awq_become_rows_and_back() {
        let bytes: Vec<u8> = (0..4 * 16).map(|i| (i * 89 + 7) as u8).collect();
        let mut rows = bytes.clone();
        let mut copy = Vec::new();
        rows_of_integers(&mut copy, &mut rows);
        // The third integer has the codes of column 2; 6 is fourth in the order 0, 2, 4, 6, 1 …
        let integer = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
        assert_eq!(u32::from(rows[6 * 8 + 1] & 15), integer >> 12 & 15);
        integers_of_rows(&mut copy, &mut rows);
        assert_eq!(rows, bytes);
    }

    #[test]
    fn every_scale_and_zero_point_comes_back() {
        for dtype in [Dtype::F16, Dtype::BF16] {
            for bits in 0..=u16::MAX {
                let bytes = bits.to_le_bytes();
                let line = GroupLine { packing: Packing::Gptq, dtype, line: &bytes };
                match line.bits(0) {
                    Some(unit) => {
                        assert_eq!(unit & 0x1fff, 0, "{dtype} {bits:x}");
                        assert_eq!(scale_of(unit | 15, dtype), bytes, "{dtype} {bits:x}");
                    }
                    None => assert!(!line.scale(0).is_finite()),
                }
            }
        }
        for packing in [Packing::Awq, Packing::Gptq, Packing::GptqV2] {
            let stored = 0x7f31_9ce4_u32;
            let line = GroupLine { packing, dtype: Dtype::I32, line: &stored.to_le_bytes() };
            let all = (0..8).map(|row| line.bits(row).unwrap() << (4 * packing.place(row)));
            let back = all.fold(0, |all, one| all | one).wrapping_sub(packing.offset());
            assert_eq!(back, stored);
        }
    }
}
