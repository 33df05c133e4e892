//! The mix of residual states.

use super::*;
use sws_kernels::functional::*;

#[test]
fn mixes_of_states_have_the_same_bits_in_all_tiers_and_those_of_the_definition() {
    let mut noise = Noise(8);
    for (count, width) in [(1, 3), (2, 32), (3, 45), (9, 130), (MAX_STATES, 7)] {
        let (x, norm) = (noise.vec(count * width, 2.0), noise.vec(width, 1.5));
        let row = noise.vec(width, 1.0);
        let weights = StateWeights { norm: &norm, row: &row, eps: 1e-5 };
        let y = in_all_tiers(&vec![0.0; width], |tier, y| mix_states(tier, weights, &x, y));
        let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
        let (norm, row) = (wide(&norm), wide(&row));
        let logits = x.chunks(width).map(|x| {
            let x = wide(x);
            let square = x.iter().map(|x| x * x).sum::<f64>() / width as f64;
            let terms = x.iter().zip(&norm).zip(&row).map(|((x, norm), row)| x * norm * row);
            terms.sum::<f64>() / (square + 1e-5).sqrt()
        });
        let shares: Vec<f64> = logits.map(f64::exp).collect();
        for (d, y) in y.iter().enumerate() {
            let mixed = shares.iter().enumerate().map(|(s, p)| p * f64::from(x[s * width + d]));
            let exact = mixed.sum::<f64>() / shares.iter().sum::<f64>();
            assert!((f64::from(*y) - exact).abs() < 1e-5, "{count} {width}: {y} {exact}");
        }
    }
}

#[test]
fn one_state_is_its_own_mix() {
    let x = Noise(2).vec(70, 3.0);
    let (norm, row) = (vec![1.0; 70], vec![-2.0; 70]);
    let weights = StateWeights { norm: &norm, row: &row, eps: 1e-5 };
    let y = in_all_tiers(&[0.0; 70], |tier, y| mix_states(tier, weights, &x, y));
    assert_same(&y, &x, "of one state");
}
