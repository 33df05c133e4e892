//! Products of weights that are summed as codes are those of the weights, to f32's precision.

use crate::common::{Encoded, decode};
use sws_kernels::{Encoding, MatmulScratch, Tier, matmul};

/// Largest error over the sum of the magnitudes that are added and taken off.
const LIMIT: f64 = 2e-7;

#[test]
fn sums_of_codes_are_those_of_weights() {
    for encoding in Encoding::ALL.into_iter().filter(|encoding| encoding.arithmetic() == 2) {
        for (rows, cols) in [(7, 2048), (3, 7168), (5, 192), (4, 96), (3, 777)] {
            // Activations of one sign, the worst for a minimum that is taken off; of both, and with a few
            // far larger than the others.
            let of_one_sign: Vec<f32> =
                (0..cols).map(|i| 1.0 + (i * 37 % 101) as f32 / 101.0).collect();
            let of_both: Vec<f32> =
                (0..cols).map(|i| (i * 7919 % 1013) as f32 / 37.0 - 13.7).collect();
            let spread = |i: usize| if i.is_multiple_of(97) { 50.0 } else { 1.0 };
            let heavy: Vec<f32> = of_both.iter().enumerate().map(|(i, x)| x * spread(i)).collect();
            let encoded = Encoded::sample(encoding, rows, cols);
            let matrix = encoded.matrix();
            let x = [of_one_sign, of_both, heavy].concat();
            let mut y = vec![0.0; 3 * rows];
            matmul(Tier::best(), &matrix, &x, 3, &mut y, &mut MatmulScratch::new());
            for r in 0..rows {
                let weights: Vec<f64> = decode(&matrix, r)
                    .into_iter()
                    .map(|bits| f32::from_bits(bits).into())
                    .collect();
                let largest = weights.iter().fold(0.0, |largest: f64, w| largest.max(w.abs()));
                for (t, x) in x.chunks_exact(cols).enumerate() {
                    let products = weights.iter().zip(x);
                    let (mut sum, mut magnitude) = (0.0, 0.0);
                    for (w, x) in products {
                        sum += w * f64::from(*x);
                        magnitude += (w.abs() + largest) * f64::from(x.abs());
                    }
                    let error = (f64::from(y[t * rows + r]) - sum).abs() / magnitude;
                    assert!(error <= LIMIT, "{encoding} {rows} x {cols}, token {t}: {error:e}");
                }
            }
        }
    }
}

/// Activations below the smallest that counts are zero, and do not become subnormal on the way.
#[test]
fn tiny_activations_count_as_zero() {
    for encoding in [Encoding::Q4, "q4_k".parse().unwrap(), "int4".parse().unwrap()] {
        let encoded = Encoded::sample(encoding, 5, 512);
        for x in [2f32.powi(-101), -2f32.powi(-120), f32::from_bits(1)] {
            for tier in Tier::available() {
                for tokens in [1, 3] {
                    let mut y = vec![f32::NAN; 5 * tokens];
                    let x = vec![x; 512 * tokens];
                    matmul(tier, &encoded.matrix(), &x, tokens, &mut y, &mut MatmulScratch::new());
                    assert!(y.iter().all(|y| *y == 0.0), "{encoding} {tier} {y:?}");
                }
            }
        }
    }
}
