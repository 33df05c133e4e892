//! Counts of exponents, for the tables of encodings that pack them.

/// Number of times each exponent occurs among bf16 numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExponentCounts(pub [u64; 256]);

impl Default for ExponentCounts {
    fn default() -> Self {
        ExponentCounts([0; 256])
    }
}

impl ExponentCounts {
    /// Adds the exponents of these numbers to the counts.
    pub fn add(&mut self, bf16: &[u8]) {
        // Neighbours often have the same exponent. Four tables keep one increment from waiting for
        // the one before. Chunks keep the 32-bit counts from overflowing.
        for chunk in bf16.chunks(1 << 30) {
            let mut counts = [[0u32; 256]; 4];
            let (eights, rest) = chunk.as_chunks::<8>();
            for b in eights {
                let word = u64::from_le_bytes(*b);
                for (k, counts) in counts.iter_mut().enumerate() {
                    counts[(word >> (16 * k + 7)) as usize & 255] += 1;
                }
            }
            for b in rest.as_chunks().0 {
                counts[0][usize::from(u16::from_le_bytes(*b) >> 7 & 255)] += 1;
            }
            for (i, total) in self.0.iter_mut().enumerate() {
                *total += counts.iter().map(|c| u64::from(c[i])).sum::<u64>();
            }
        }
    }

    /// Adds the exponents of these codes of e4m3 to the counts.
    pub fn add_e4m3(&mut self, codes: &[u8]) {
        let mut counts = [0u64; 256];
        codes.iter().for_each(|code| counts[usize::from(*code)] += 1);
        for (code, count) in (0..=u8::MAX).zip(counts) {
            self.0[usize::from(code >> 3 & 15)] += count;
        }
    }

    /// Adds another's counts.
    pub fn merge(&mut self, other: &ExponentCounts) {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a += b);
    }

    /// All exponents, the most frequent first; of equally frequent ones the smaller.
    pub(in crate::encodings) fn by_frequency(&self) -> Vec<u8> {
        let mut order: Vec<u8> = (0..=255).collect();
        order.sort_by_key(|e| std::cmp::Reverse(self.0[usize::from(*e)]));
        order
    }
}
