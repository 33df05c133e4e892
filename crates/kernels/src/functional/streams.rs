//! Residual streams: weights by which a branch reads a mix of them and is added to each.
//!
//! For n streams a token has n weights of reading, n of writing and n × n of mixing; the last not
//! in all models. Every sum goes over streams in ascending order, each step fused. The matrix of
//! mixing is brought close to one whose rows and columns add up to 1, by a fixed number of
//! divisions.

use super::elementary::{exp, sigmoid};
use super::lanes::{LANES, Lanes, dot, padded, tree};
use super::shapes::{MAX_STREAMS, StreamBias, StreamHead, StreamWriting, Streams};
use super::{reference, tiered};
use crate::Tier;
use crate::scalar::fma;

/// Turns products m [tokens, weights] into weights, in place: for each token
///
/// reading = sigmoid(m · scale + base) + eps, writing = 2 · sigmoid(m · scale + base), and of the
/// matrix of mixing, whose rows follow each other, the softmax of each row + eps; then columns are
/// divided by their sums + eps, then rows and columns in turn.
///
/// Where streams are not mixed, writing = magnitude · sigmoid(m · scale + base) + eps. With weights of
/// writing alone, writing = 2 · sigmoid(m · scale + base).
pub fn stream_weights(tier: Tier, streams: Streams, bias: StreamBias, x: &mut [f32]) {
    let weights = streams.weights();
    assert!(
        (1..=MAX_STREAMS).contains(&streams.count)
            && x.len().is_multiple_of(weights)
            && bias.base.len() == weights
            && bias.scale.len() == streams.scales(),
        "stream_weights: shapes"
    );
    stream_weights_tiered(tier, streams, bias, x);
}

/// y = Σ reading · stream for each token, where `x` has the streams [tokens, count, width] and `y`
/// the sums [tokens, width].
///
/// # Panics
///
/// If there are weights of writing alone.
pub fn read_streams(tier: Tier, streams: Streams, weights: &[f32], x: &[f32], y: &mut [f32]) {
    assert!(streams.writing != StreamWriting::Alone, "read_streams: weights of writing alone");
    check(streams, weights, (x, y));
    read_streams_tiered(tier, streams, weights, x, y);
}

/// y = Σ gate_i · x_i / count for each token and element, where `x` and `gates` have the streams
/// [tokens, count, width] and `y` the means [tokens, width].
pub fn gated_mean(
    tier: Tier,
    (count, width): (usize, usize),
    gates: &[f32],
    x: &[f32],
    y: &mut [f32],
) {
    assert!(
        count > 0
            && width > 0
            && y.len().is_multiple_of(width)
            && x.len() == y.len() * count
            && gates.len() == x.len(),
        "gated_mean: shapes"
    );
    gated_mean_tiered(tier, count, width, gates, x, y);
}

/// Mixes the streams `x` [tokens, count, width] of each token and adds a branch [tokens, width]:
///
/// x_i = writing_i · branch + Σ_j mixing_ji · x_j, or x_i += writing_i · branch, fused.
pub fn write_streams(tier: Tier, streams: Streams, weights: &[f32], branch: &[f32], x: &mut [f32]) {
    check(streams, weights, (x, branch));
    write_streams_tiered(tier, streams, weights, branch, x);
}

fn check(streams: Streams, weights: &[f32], (x, y): (&[f32], &[f32])) {
    let tokens = weights.len() / streams.weights();
    assert!(
        (1..=MAX_STREAMS).contains(&streams.count)
            && weights.len() == tokens * streams.weights()
            && (tokens == 0 || y.len().is_multiple_of(tokens))
            && Some(x.len()) == y.len().checked_mul(streams.count),
        "streams: shapes"
    );
}

/// y = Σ (sigmoid(row_i · x / √(mean(x²) + norm_eps) · scale + base_i) + eps) · x_i for one token,
/// whose streams `x` are [count, width]. The product is the canonical dot.
pub fn head_of_streams(tier: Tier, head: StreamHead, x: &[f32], y: &mut [f32]) {
    let count = head.base.len();
    assert!(
        (1..=MAX_STREAMS).contains(&count)
            && Some(x.len()) == y.len().checked_mul(count)
            && Some(head.rows.len()) == x.len().checked_mul(count),
        "head_of_streams: shapes"
    );
    head_of_streams_tiered(tier, head, x, y);
}

tiered! {
    stream_weights_tiered(streams: Streams, bias: StreamBias, x: &mut [f32])
    lanes: stream_weights_lanes, reference: stream_weights_lanes
}

tiered! {
    read_streams_tiered(streams: Streams, weights: &[f32], x: &[f32], y: &mut [f32])
    lanes: read_streams_lanes, reference: reference::read_streams
}

tiered! {
    gated_mean_tiered(count: usize, width: usize, gates: &[f32], x: &[f32], y: &mut [f32])
    lanes: gated_mean_lanes, reference: reference::gated_mean
}

tiered! {
    write_streams_tiered(streams: Streams, weights: &[f32], branch: &[f32], x: &mut [f32])
    lanes: write_streams_lanes, reference: reference::write_streams
}

tiered! {
    head_of_streams_tiered(head: StreamHead, x: &[f32], y: &mut [f32])
    lanes: head_of_streams_lanes, reference: reference::head_of_streams
}

/// A few dozen numbers per token: in the plainest form, which is also the reference.
#[inline(always)]
fn stream_weights_lanes(streams: Streams, StreamBias { scale, base }: StreamBias, x: &mut [f32]) {
    let Streams { count: n, writing, eps } = streams;
    for x in x.chunks_exact_mut(streams.weights()) {
        for (i, (x, base)) in x.iter_mut().zip(base).enumerate() {
            *x = fma(*x, scale[(i / n).min(2)], *base);
        }
        if writing == StreamWriting::Alone {
            for x in x {
                *x = 2.0 * sigmoid(*x);
            }
            continue;
        }
        let (read, x) = x.split_at_mut(n);
        let (write, mix) = x.split_at_mut(n);
        for x in read {
            *x = sigmoid(*x) + eps;
        }
        let iterations = match writing {
            StreamWriting::Mixed { iterations } => iterations,
            StreamWriting::Apart { magnitude } => {
                for x in write {
                    *x = magnitude * sigmoid(*x) + eps;
                }
                continue;
            }
            StreamWriting::Alone => continue,
        };
        for x in write {
            *x = 2.0 * sigmoid(*x);
        }
        for row in mix.chunks_exact_mut(n) {
            let mut largest = f32::NEG_INFINITY;
            for &x in &*row {
                largest = if x > largest { x } else { largest };
            }
            for x in &mut *row {
                *x = exp(*x - largest);
            }
            let mut sum = 0.0;
            for x in &*row {
                sum += x;
            }
            for x in row {
                *x = *x / sum + eps;
            }
        }
        for round in 0..2 * iterations.max(1) - 1 {
            // Columns first: their numbers are n apart.
            let (step, next) = if round % 2 == 0 { (n, 1) } else { (1, n) };
            for line in 0..n {
                let mut sum = 0.0;
                for i in 0..n {
                    sum += mix[line * next + i * step];
                }
                for i in 0..n {
                    mix[line * next + i * step] /= sum + eps;
                }
            }
        }
    }
}

#[inline(always)]
fn read_streams_lanes(streams: Streams, weights: &[f32], x: &[f32], y: &mut [f32]) {
    let tokens = weights.len() / streams.weights();
    if tokens == 0 || y.is_empty() {
        return;
    }
    let width = y.len() / tokens;
    let all = x.chunks_exact(streams.count * width).zip(weights.chunks_exact(streams.weights()));
    for (y, (x, weights)) in y.chunks_exact_mut(width).zip(all) {
        mixed(weights, x, y);
    }
}

#[inline(always)]
fn gated_mean_lanes(count: usize, width: usize, gates: &[f32], x: &[f32], y: &mut [f32]) {
    let rows = gates.chunks_exact(count * width).zip(x.chunks_exact(count * width));
    for (y, (gates, x)) in y.chunks_exact_mut(width).zip(rows) {
        y.fill(0.0);
        for (gates, x) in gates.chunks_exact(width).zip(x.chunks_exact(width)) {
            for (y, (gate, x)) in y.iter_mut().zip(gates.iter().zip(x)) {
                *y = fma(*gate, *x, *y);
            }
        }
        for y in y {
            *y /= count as f32;
        }
    }
}

/// y = Σ weight · stream.
#[inline(always)]
pub(super) fn mixed(weights: &[f32], x: &[f32], y: &mut [f32]) {
    y.fill(0.0);
    for (x, weight) in x.chunks_exact(y.len()).zip(weights) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = fma(*weight, *x, *y);
        }
    }
}

#[inline(always)]
fn write_streams_lanes(streams: Streams, weights: &[f32], branch: &[f32], x: &mut [f32]) {
    let n = streams.count;
    let tokens = weights.len() / streams.weights();
    if tokens == 0 || branch.is_empty() {
        return;
    }
    let width = branch.len() / tokens;
    let all = branch.chunks_exact(width).zip(weights.chunks_exact(streams.weights()));
    let mut old: [Lanes; MAX_STREAMS] = [[0.0; LANES]; MAX_STREAMS];
    for (x, (branch, weights)) in x.chunks_exact_mut(n * width).zip(all) {
        if let Some(writes) = streams.writes(weights) {
            for (x, write) in x.chunks_exact_mut(width).zip(writes) {
                for (x, branch) in x.iter_mut().zip(branch) {
                    *x = fma(*write, *branch, *x);
                }
            }
            continue;
        }
        let (write, mix) = weights[n..].split_at(n);
        for (block, branch) in branch.chunks(LANES).enumerate() {
            let at = block * LANES;
            let len = branch.len();
            for (old, x) in old.iter_mut().zip(x.chunks_exact(width)) {
                old[..len].copy_from_slice(&x[at..at + len]);
            }
            let branch = padded(branch, 0.0);
            for (i, x) in x.chunks_exact_mut(width).enumerate() {
                let mut sum = [0.0; LANES];
                for lane in 0..LANES {
                    sum[lane] = write[i] * branch[lane];
                }
                for (old, mix) in old[..n].iter().zip(mix.chunks_exact(n)) {
                    for lane in 0..LANES {
                        sum[lane] = fma(mix[i], old[lane], sum[lane]);
                    }
                }
                x[at..at + len].copy_from_slice(&sum[..len]);
            }
        }
    }
}

#[inline(always)]
fn head_of_streams_lanes(head: StreamHead, x: &[f32], y: &mut [f32]) {
    let factor = 1.0 / (dot(x, x) / x.len() as f32 + head.norm_eps).sqrt();
    let mut weights = [0.0; MAX_STREAMS];
    let rows = head.rows.chunks_exact(x.len());
    for ((weight, row), base) in weights.iter_mut().zip(rows).zip(head.base) {
        let product = normed_dot(x, factor, row);
        *weight = sigmoid(fma(product, head.scale, *base)) + head.eps;
    }
    mixed(&weights[..head.base.len()], x, y);
}

/// Σ (x · factor) · w.
#[inline(always)]
fn normed_dot(x: &[f32], factor: f32, w: &[f32]) -> f32 {
    let mut acc = [0.0; LANES];
    for (x, w) in x.chunks(LANES).zip(w.chunks(LANES)) {
        // 0 · -0 leaves every accumulator unchanged.
        let x = padded(x, 0.0);
        let w = padded(w, -0.0);
        for lane in 0..LANES {
            acc[lane] = fma(x[lane] * factor, w[lane], acc[lane]);
        }
    }
    tree(acc)
}
