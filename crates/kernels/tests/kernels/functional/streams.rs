//! Residual streams and pools.

use super::{Noise, assert_same, in_all_tiers};
use sws_kernels::Tier;
use sws_kernels::functional::*;

#[test]
fn streams_have_the_same_bits_in_all_tiers_and_for_a_token_alone() {
    let mut noise = Noise(5);
    let mixed = StreamWriting::Mixed { iterations: 4 };
    let apart = StreamWriting::Apart { magnitude: 1.5 };
    let shapes = [(1, 3), (2, 32), (3, 45), (4, 130), (16, 7)];
    let all = [mixed, apart, StreamWriting::Alone];
    let all = shapes.iter().flat_map(|shape| all.map(|writing| (*shape, writing)));
    for ((count, width), writing) in all {
        let streams = Streams { count, writing, eps: 1e-6 };
        let (tokens, own) = (3, streams.weights());
        let (scale, base) = (noise.vec(streams.scales(), 2.0), noise.vec(own, 1.0));
        let bias = StreamBias { scale: &scale, base: &base };
        let products = noise.vec(tokens * own, 3.0);
        let weights = in_all_tiers(&products, |tier, x| stream_weights(tier, streams, bias, x));
        let x = noise.vec(tokens * count * width, 2.0);
        let branch = noise.vec(tokens * width, 2.0);
        let zeros = vec![0.0; tokens * width];
        let read = |tier: Tier, weights: &[f32], x: &[f32], y: &mut [f32]| match writing {
            // Gates of elements, and the mean of the streams that they multiply.
            StreamWriting::Alone => gated_mean(tier, (count, width), x, x, y),
            _ => read_streams(tier, streams, weights, x, y),
        };
        let all_read = in_all_tiers(&zeros, |tier, y| read(tier, &weights, &x, y));
        let written =
            in_all_tiers(&x, |tier, x| write_streams(tier, streams, &weights, &branch, x));
        for token in 0..tokens {
            let weights = &weights[token * own..][..own];
            let of = |all: &[f32], width: usize| all[token * width..][..width].to_vec();
            let mut y = vec![0.0; width];
            read(Tier::best(), weights, &of(&x, count * width), &mut y);
            assert_same(&y, &of(&all_read, width), "read");
            let mut own = of(&x, count * width);
            write_streams(Tier::best(), streams, weights, &of(&branch, width), &mut own);
            assert_same(&own, &of(&written, count * width), "written");
        }
        let rows = noise.vec(count * count * width, 1.0);
        let base = &base[..count];
        let head = StreamHead { rows: &rows, scale: 1.3, base, norm_eps: 1e-5, eps: 1e-6 };
        in_all_tiers(&zeros[..width], |tier, y| {
            head_of_streams(tier, head, &x[..count * width], y);
        });
    }
}

#[test]
fn rows_and_columns_of_mixing_add_up_to_one() {
    let streams = Streams { count: 4, writing: StreamWriting::Mixed { iterations: 40 }, eps: 1e-6 };
    let (base, scale) = (vec![0.0; 24], [1.0; 3]);
    let bias = StreamBias { scale: &scale, base: &base };
    let mut x = Noise(3).vec(24, 2.0);
    stream_weights(Tier::best(), streams, bias, &mut x);
    for i in 0..4 {
        let row: f32 = (0..4).map(|j| x[8 + i * 4 + j]).sum();
        let column: f32 = (0..4).map(|j| x[8 + j * 4 + i]).sum();
        assert!((row - 1.0).abs() < 1e-4 && (column - 1.0).abs() < 1e-4, "{row} {column}");
    }
}

#[test]
fn gated_means_and_dots_are_those_of_the_formula() {
    let mut noise = Noise(8);
    for (tokens, count, width) in [(1, 2, 3), (3, 4, 40), (2, 3, 71)] {
        let [x, gates] = [2.0, 1.0].map(|scale| noise.vec(tokens * count * width, scale));
        let mut y = vec![0.0; tokens * width];
        gated_mean(Tier::best(), (count, width), &gates, &x, &mut y);
        let products = in_all_tiers(&vec![0.0; tokens * count], |tier, y| {
            dots(tier, &gates, &x, width, y);
        });
        let of = |token: usize, i: usize, d: usize| {
            let at = (token * count + i) * width + d;
            f64::from(gates[at]) * f64::from(x[at])
        };
        for token in 0..tokens {
            for d in 0..width {
                let mean = (0..count).map(|i| of(token, i, d)).sum::<f64>() / count as f64;
                assert!((f64::from(y[token * width + d]) - mean).abs() < 1e-5);
            }
            for i in 0..count {
                let sum: f64 = (0..width).map(|d| of(token, i, d)).sum();
                assert!((f64::from(products[token * count + i]) - sum).abs() < 1e-4);
            }
        }
    }
}

#[test]
fn pools_have_the_same_bits_in_all_tiers() {
    let mut noise = Noise(9);
    for (rows, width) in [(1, 1), (8, 32), (5, 71), (128, 40)] {
        let x = noise.vec(rows * width, 4.0);
        let gates = noise.vec(rows * width, 4.0);
        let y = in_all_tiers(&vec![0.0; width], |tier, y| pool(tier, &x, &gates, y));
        for d in 0..width {
            let of = |all: &[f32], row: usize| f64::from(all[row * width + d]);
            let sum: f64 = (0..rows).map(|row| of(&gates, row).exp()).sum();
            let mixed: f64 = (0..rows).map(|row| of(&gates, row).exp() * of(&x, row)).sum();
            assert!((f64::from(y[d]) - mixed / sum).abs() < 1e-5);
        }
    }
}

#[test]
fn roots_of_softplus_have_the_same_bits_in_all_tiers() {
    let x = [-90.0, -20.0, -1.0, -0.0, 0.0, 0.5, 3.0, 40.0, f32::INFINITY, f32::NAN];
    let y = in_all_tiers(&x, root_softplus);
    for (x, y) in x.iter().zip(y).take(8) {
        let exact = f64::from(*x).exp().ln_1p().sqrt();
        assert!((f64::from(y) - exact).abs() < 1e-6 * exact.max(1e-30), "{x}: {y} {exact}");
    }
}
