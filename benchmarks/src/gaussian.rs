//! Normally distributed numbers at disk speed, independent of thread count and chunking.
//!
//! A number is a function of `(key, index)` alone: a counter is mixed into 64 random bits, and each
//! 16 of them select one of 65,536 equally likely values of the normal distribution from a table.
//! That costs two multiplications and four loads for four weights, so one core fills buffers faster
//! than any disk can write them. The table ends at 4.3 standard deviations.

use std::sync::LazyLock;

use half::bf16;

const STEPS: usize = 1 << 16;

/// The values of one normal distribution as bf16, ready for sampling.
pub struct Gaussian {
    table: Box<[u16; STEPS]>,
}

impl Gaussian {
    /// A distribution with this mean and standard deviation.
    pub fn new(mean: f32, std: f32) -> Self {
        let mut table = vec![0u16; STEPS].into_boxed_slice();
        for (slot, quantile) in table.iter_mut().zip(QUANTILES.iter()) {
            *slot = bf16::from_f32(mean + std * quantile).to_bits();
        }
        Gaussian { table: table.try_into().expect("the table has STEPS entries") }
    }

    /// Writes the little-endian bf16 numbers `first..` of the stream `key`.
    pub fn fill(&self, key: u64, first: u64, out: &mut [u8]) {
        debug_assert!(out.len().is_multiple_of(2));
        let head = ((4 - first % 4) % 4) as usize * 2;
        let (head, body) = out.split_at_mut(head.min(out.len()));
        self.slow(key, first, head);
        let mut counter = first.div_ceil(4);
        let (quads, tail) = body.as_chunks_mut::<8>();
        for quad in quads {
            let r = mix(key, counter);
            let four = u64::from(self.table[r as u16 as usize])
                | u64::from(self.table[(r >> 16) as u16 as usize]) << 16
                | u64::from(self.table[(r >> 32) as u16 as usize]) << 32
                | u64::from(self.table[(r >> 48) as u16 as usize]) << 48;
            *quad = four.to_le_bytes();
            counter += 1;
        }
        self.slow(key, counter * 4, tail);
    }

    fn slow(&self, key: u64, first: u64, out: &mut [u8]) {
        for (index, bytes) in (first..).zip(out.as_chunks_mut::<2>().0) {
            let r = mix(key, index / 4) >> (index % 4 * 16);
            *bytes = self.table[r as u16 as usize].to_le_bytes();
        }
    }
}

/// The standard normal quantile nearest to that of a share.
pub fn quantile(share: f32) -> f32 {
    QUANTILES[((share * STEPS as f32) as usize).min(STEPS - 1)]
}

/// The key of a stream, from a seed and a word (FNV-1a, then mixed).
pub fn stream(seed: u64, word: &str) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    for byte in word.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    mix(hash, seed)
}

/// 64 random bits of the stream `key` (the SplitMix64 finaliser over a Weyl sequence).
pub fn mix(key: u64, counter: u64) -> u64 {
    let mut z = key.wrapping_add(counter.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The standard normal density.
fn density(x: f64) -> f64 {
    (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt()
}

/// The standard normal quantiles at `(i + 1/2) / STEPS`, from integrating the density upwards from
/// zero; the lower half mirrors the upper.
static QUANTILES: LazyLock<Vec<f32>> = LazyLock::new(|| {
    const STEP: f64 = 1.0 / 65536.0;
    let mut quantiles = vec![0f32; STEPS];
    let mut x = 0.0;
    let mut mass = 0.0;
    for i in 0..STEPS / 2 {
        let wanted = (i as f64 + 0.5) / STEPS as f64;
        let mut slope = density(x + 0.5 * STEP);
        while mass + slope * STEP < wanted {
            mass += slope * STEP;
            x += STEP;
            slope = density(x + 0.5 * STEP);
        }
        let value = (x + (wanted - mass) / slope) as f32;
        quantiles[STEPS / 2 + i] = value;
        quantiles[STEPS / 2 - 1 - i] = -value;
    }
    quantiles
});

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(gaussian: &Gaussian, key: u64, first: u64, n: usize) -> Vec<f32> {
        let mut bytes = vec![0u8; 2 * n];
        gaussian.fill(key, first, &mut bytes);
        bytes.as_chunks::<2>().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect()
    }

    #[test]
    fn quantiles_match_the_normal_distribution() {
        // From tables of the normal distribution.
        for (p, z) in [(0.5, 0.0), (0.841_344_7, 1.0), (0.975, 1.959_964), (0.999, 3.090_232)] {
            let got = QUANTILES[(p * STEPS as f64) as usize];
            assert!((f64::from(got) - z).abs() < 2e-3 * (1.0 + z * z), "{p}: {got} for {z}");
        }
        assert!(QUANTILES.iter().all(|q| q.abs() < 4.5));
    }

    #[test]
    fn any_chunking_gives_the_same_numbers() {
        let g = Gaussian::new(0.0, 0.02);
        let whole = draw(&g, 7, 0, 100);
        for (first, n) in
            [(0, 1), (1, 1), (1, 99), (2, 3), (3, 6), (4, 8), (5, 90), (99, 1), (8, 0)]
        {
            assert_eq!(draw(&g, 7, first as u64, n), whole[first..first + n], "{first}+{n}");
        }
        assert_ne!(draw(&g, 8, 0, 100), whole);
    }

    #[test]
    fn looks_like_trained_weights() {
        let values = draw(&Gaussian::new(0.0, 0.02), stream(0, "some.weight"), 0, 1 << 20);
        let n = values.len() as f64;
        let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
        let std = (values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / n).sqrt();
        assert!(mean.abs() < 1e-4 && (std - 0.02).abs() < 2e-4, "mean {mean}, std {std}");

        let mut counts = [0u32; 256];
        for v in &values {
            counts[(v.to_bits() >> 23 & 0xff) as usize] += 1;
        }
        let entropy: f64 = counts
            .iter()
            .filter(|&&c| c > 0)
            .map(|&c| f64::from(c) / n)
            .map(|p| -p * p.log2())
            .sum();
        assert!((2.4..2.8).contains(&entropy), "exponent entropy {entropy}");
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let escapes = 1.0 - f64::from(counts[..15].iter().sum::<u32>()) / n;
        assert!((1e-6..1e-3).contains(&escapes), "share outside 15 exponents {escapes}");
    }
}
