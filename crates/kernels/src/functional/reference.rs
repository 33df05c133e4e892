//! The scalar reference: every functional in the plainest form, as its definition reads.
//!
//! The canonical reduction is that of `crate::scalar`. Only definitions for single numbers (the
//! elementary functions and [`Activation::at`]) and the softmax of a few are shared with the other
//! tiers.

use super::activation::Activation;
use super::attention::{Attention, Distances, IndexQuery, KvCache, KvData, Queries};
use super::elementary::{self, capped, exp, turn};
use super::shapes::{
    ConvInput, NormWeight, Rates, Recurrence, RecurrenceInputs, RopePairs, RopeShape, ShortConv,
    StateWeights, StreamHead, StreamWriting, Streams,
};
use crate::scalar::{LANES, dot, fma, reduce};

/// Sums `terms` into lane = index mod 32 by `add`, then reduces the lanes.
fn sum_by(terms: impl Iterator<Item = f32>, add: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    for (i, term) in terms.enumerate() {
        lanes[i % LANES] = add(lanes[i % LANES], term);
    }
    reduce(lanes)
}

pub(super) fn rms_norm(x: &mut [f32], width: usize, weight: NormWeight, eps: f32) {
    for row in x.chunks_mut(width) {
        let scale = 1.0 / (dot(row, row) / width as f32 + eps).sqrt();
        for (i, x) in row.iter_mut().enumerate() {
            *x *= scale;
            match weight {
                NormWeight::None => {}
                NormWeight::Plain(w) => *x *= w[i],
                NormWeight::OnePlus(w) => *x *= 1.0 + w[i],
            }
        }
    }
}

pub(super) fn layer_norm(
    x: &mut [f32],
    width: usize,
    weight: &[f32],
    bias: Option<&[f32]>,
    eps: f32,
) {
    for row in x.chunks_mut(width) {
        let mean = sum_by(row.iter().copied(), |acc, x| acc + x) / width as f32;
        let add_square = |acc, x: f32| fma(x - mean, x - mean, acc);
        let squares = sum_by(row.iter().copied(), add_square) / width as f32;
        let scale = 1.0 / (squares + eps).sqrt();
        for (i, x) in row.iter_mut().enumerate() {
            let unit = (*x - mean) * scale;
            *x = match bias {
                Some(bias) => fma(unit, weight[i], bias[i]),
                None => unit * weight[i],
            };
        }
    }
}

pub(super) fn softmax(x: &mut [f32], width: usize) {
    for row in x.chunks_mut(width) {
        let maximum = row.iter().fold(f32::NEG_INFINITY, |m, &x| if x > m { x } else { m });
        for x in row.iter_mut() {
            *x = exp(*x - maximum);
        }
        let sum = sum_by(row.iter().copied(), |acc, x| acc + x);
        for x in row {
            *x /= sum;
        }
    }
}

pub(super) fn gate(activation: Activation, gate: &mut [f32], up: &[f32]) {
    for (g, &u) in gate.iter_mut().zip(up) {
        *g = activation.at(*g, u);
    }
}

pub(super) fn gate_interleaved(activation: Activation, gate_up: &[f32], y: &mut [f32]) {
    for (i, y) in y.iter_mut().enumerate() {
        *y = activation.at(gate_up[2 * i], gate_up[2 * i + 1]);
    }
}

pub(super) fn axpy(scale: f32, x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = fma(scale, *x, *y);
    }
}

pub(super) fn add(x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += x;
    }
}

pub(super) fn dots(a: &[f32], b: &[f32], width: usize, y: &mut [f32]) {
    for (row, y) in y.iter_mut().enumerate() {
        let part = row * width..(row + 1) * width;
        *y = dot(&a[part.clone()], &b[part]);
    }
}

pub(super) fn sigmoid(x: &mut [f32]) {
    for x in x {
        *x = elementary::sigmoid(*x);
    }
}

pub(super) fn root_softplus(x: &mut [f32]) {
    for x in x {
        *x = elementary::softplus(*x).sqrt();
    }
}

pub(super) fn soft_cap(x: &mut [f32], cap: f32) {
    for x in x {
        *x = capped(*x, cap);
    }
}

pub(super) fn pool(x: &[f32], gates: &[f32], y: &mut [f32]) {
    let width = y.len();
    for (d, y) in y.iter_mut().enumerate() {
        let gates = gates.iter().skip(d).step_by(width);
        let larger = |m: f32, &x: &f32| if x > m { x } else { m };
        let largest = gates.clone().fold(f32::NEG_INFINITY, larger);
        let mut total = 0.0;
        let mut mixed = 0.0;
        for (gate, x) in gates.zip(x.iter().skip(d).step_by(width)) {
            let weight = exp(gate - largest);
            total += weight;
            mixed = fma(weight, *x, mixed);
        }
        *y = mixed / total;
    }
}

pub(super) fn read_streams(streams: Streams, weights: &[f32], x: &[f32], y: &mut [f32]) {
    let width = (y.len() * streams.weights()).checked_div(weights.len()).unwrap_or(0);
    for (i, y) in y.iter_mut().enumerate() {
        let token = i / width;
        let d = i % width;
        let stream = |s: usize| x[(token * streams.count + s) * width + d];
        let weight = |s: usize| weights[token * streams.weights() + s];
        *y = (0..streams.count).fold(0.0, |sum, s| fma(weight(s), stream(s), sum));
    }
}

pub(super) fn write_streams(streams: Streams, weights: &[f32], branch: &[f32], x: &mut [f32]) {
    let n = streams.count;
    let old = x.to_vec();
    let width = (branch.len() * streams.weights()).checked_div(weights.len()).unwrap_or(0);
    for (at, x) in x.iter_mut().enumerate() {
        let token = at / width / n;
        let i = at / width % n;
        let d = at % width;
        let weights = &weights[token * streams.weights()..];
        let stream = |s: usize| old[(token * n + s) * width + d];
        let write = match streams.writing {
            StreamWriting::Mixed { .. } => None,
            StreamWriting::Apart { .. } => Some(weights[n + i]),
            StreamWriting::Alone => Some(weights[i]),
        };
        if let Some(write) = write {
            *x = fma(write, branch[token * width + d], *x);
            continue;
        }
        let mixing = |s: usize| weights[2 * n + s * n + i];
        let written = weights[n + i] * branch[token * width + d];
        *x = (0..n).fold(written, |sum, s| fma(mixing(s), stream(s), sum));
    }
}

pub(super) fn gated_mean(count: usize, width: usize, gates: &[f32], x: &[f32], y: &mut [f32]) {
    for (at, y) in y.iter_mut().enumerate() {
        let stream = |i: usize| (at / width * count + i) * width + at % width;
        let sum = (0..count).fold(0.0, |sum: f32, i| fma(gates[stream(i)], x[stream(i)], sum));
        *y = sum / count as f32;
    }
}

pub(super) fn head_of_streams(head: StreamHead, x: &[f32], y: &mut [f32]) {
    let factor = 1.0 / (dot(x, x) / x.len() as f32 + head.norm_eps).sqrt();
    let normed: Vec<f32> = x.iter().map(|x| x * factor).collect();
    let products = head.rows.chunks(x.len()).map(|row| dot(&normed, row));
    let weights: Vec<f32> = (products.zip(head.base))
        .map(|(m, base)| elementary::sigmoid(fma(m, head.scale, *base)) + head.eps)
        .collect();
    let width = y.len();
    for (d, y) in y.iter_mut().enumerate() {
        let streams = weights.iter().enumerate();
        *y = streams.fold(0.0, |sum, (s, weight)| fma(*weight, x[s * width + d], sum));
    }
}

pub(super) fn mix_states(weights: StateWeights, x: &[f32], y: &mut [f32]) {
    let width = y.len();
    let mut shares: Vec<f32> = (x.chunks(width))
        .map(|x| {
            let mut normed = x.to_vec();
            rms_norm(&mut normed, width, NormWeight::Plain(weights.norm), weights.eps);
            dot(&normed, weights.row)
        })
        .collect();
    softmax_ascending(&mut shares);
    for (d, y) in y.iter_mut().enumerate() {
        let states = shares.iter().enumerate();
        *y = states.fold(0.0, |sum, (s, share)| fma(*share, x[s * width + d], sum));
    }
}

/// The softmax of a few numbers: in the plainest form, which all tiers use.
#[inline(always)]
pub(super) fn softmax_ascending(x: &mut [f32]) {
    let mut largest = f32::NEG_INFINITY;
    for &x in &*x {
        largest = if x > largest { x } else { largest };
    }
    let mut sum = 0.0;
    for x in &mut *x {
        *x = exp(*x - largest);
        sum += *x;
    }
    for x in x {
        *x /= sum;
    }
}

pub(super) fn rope(x: &mut [f32], shape: RopeShape, pairs: usize, cos: &[f32], sin: &[f32]) {
    for (head, x) in x.chunks_mut(shape.head_dim).enumerate() {
        let token = head / shape.heads;
        for i in 0..pairs {
            let (a, b) = match shape.pairs {
                RopePairs::HalfSplit => (shape.offset + i, shape.offset + i + pairs),
                RopePairs::Interleaved => (shape.offset + 2 * i, shape.offset + 2 * i + 1),
            };
            let at = token * pairs + i;
            (x[a], x[b]) = turn(x[a], x[b], cos[at], sin[at]);
        }
    }
}

pub(super) fn attention(
    spec: &Attention,
    cache: &KvCache,
    Queries { first: first_position, q, selected, distances }: Queries,
    y: &mut [f32],
) {
    let group = spec.heads / spec.kv_heads;
    let key = |head, position| {
        let (page, at) = cache.keys.place(head, position);
        match cache.data {
            KvData::F32 { keys, .. } => keys[page][at..at + spec.key_dim].to_vec(),
            KvData::Bf16 { keys, .. } => widened(&keys[page][at..at + spec.key_dim]),
            KvData::Q8 { keys, .. } => scaled(&keys[page][at..], spec.key_dim),
        }
    };
    let value = |head, position| {
        let (page, at) = cache.values.place(head, position);
        match cache.data {
            KvData::F32 { values, .. } => values[page][at..at + spec.value_dim].to_vec(),
            KvData::Bf16 { values, .. } => widened(&values[page][at..at + spec.value_dim]),
            KvData::Q8 { values, .. } => scaled(&values[page][at..], spec.value_dim),
        }
    };
    let queries = q.chunks(spec.key_dim).zip(y.chunks_mut(spec.value_dim));
    for (i, (q, y)) in queries.enumerate() {
        let token = i / spec.heads;
        let head = i % spec.heads;
        let position = first_position + token;
        let first = match spec.window {
            Some(window) if spec.aligned && window > 0 => position / window * window,
            window => window.map_or(0, |window| (position + 1).saturating_sub(window)),
        };
        // Each with the lane in which it is summed.
        let visible: Vec<(usize, usize)> = match selected {
            None => (first..position + 1).map(|j| (j % LANES, j)).collect(),
            Some(selected) => {
                let list = selected.of(token, head * selected.lists / spec.heads);
                let list = list.iter().enumerate();
                list.map(|(place, &j)| (place % LANES, j as usize)).collect()
            }
        };
        if visible.is_empty() {
            y.fill(0.0);
            continue;
        }
        let mut scores = Vec::new();
        for &(_, j) in &visible {
            let score = dot(q, &key(head / group, j)) * spec.scale;
            let mut score = spec.soft_cap.map_or(score, |cap| capped(score, cap));
            if let Some(Distances { bias, extent }) = distances
                && position - j < extent
            {
                score += bias[i * extent + position - j];
            }
            scores.push(score);
        }
        let mut largest = spec.sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[head]);
        for &score in &scores {
            // The second condition replaces a sink that is NaN.
            if score > largest || largest.is_nan() {
                largest = score;
            }
        }
        let mut sum = [0.0; LANES];
        let mut acc = vec![[0.0; LANES]; spec.value_dim];
        for ((lane, j), score) in visible.into_iter().zip(scores) {
            let weight = exp(score - largest);
            sum[lane] += weight;
            for (acc, v) in acc.iter_mut().zip(value(head / group, j)) {
                acc[lane] = fma(weight, v, acc[lane]);
            }
        }
        let mut denominator = reduce(sum);
        if let Some(sinks) = spec.sinks {
            denominator += exp(sinks[head] - largest);
        }
        for (y, acc) in y.iter_mut().zip(acc) {
            *y = reduce(acc) / denominator;
        }
    }
}

/// Columns `unit` · 32 and following, of all heads' padded columns.
pub(super) fn recur(
    spec: &Recurrence,
    inputs: &RecurrenceInputs,
    unit: usize,
    state: &mut [f32],
    y: &mut [f32],
) {
    let head = unit / spec.blocks();
    let column = unit % spec.blocks() * LANES;
    for token in 0..inputs.tokens {
        let [q, k] = inputs.query_and_key(spec, token, head);
        let decays = spec.decays(inputs.decay, token, head);
        let beta = inputs.beta[token * spec.heads + head];
        for lane in 0..LANES {
            let at = token * inputs.v.stride + head * spec.value_dim + column + lane;
            let v = if column + lane < spec.value_dim { inputs.v.numbers[at] } else { 0.0 };
            let mut known = 0.0;
            for i in 0..spec.key_dim {
                let decay = decays[if spec.decay_per_key { i } else { 0 }];
                state[i * LANES + lane] *= decay;
                known = fma(k[i], state[i * LANES + lane], known);
            }
            let write = beta * if spec.delta { v - known } else { v };
            let mut sum = 0.0;
            for i in 0..spec.key_dim {
                let kept = &mut state[i * LANES + lane];
                *kept = fma(k[i], write, *kept);
                sum = fma(q[i], *kept, sum);
            }
            y[token * LANES + lane] = sum;
        }
    }
}

pub(super) fn short_conv(conv: &ShortConv, input: ConvInput, first: usize, y: &mut [f32]) {
    let channels = conv.weight.len() / conv.taps;
    for (i, y) in y.iter_mut().enumerate() {
        let token = first + i / channels;
        let channel = i % channels;
        let mut sum = conv.bias.map_or(0.0, |bias| bias[channel]);
        for tap in 0..conv.taps {
            let back = (conv.taps - 1 - tap) * conv.dilation;
            let x = input.row(channels, token, back)[channel];
            sum = fma(conv.weight[channel * conv.taps + tap], x, sum);
        }
        *y = if conv.silu { elementary::silu(sum) } else { sum };
    }
}

pub(super) fn l2_norm(x: &mut [f32], width: usize, eps: f32, scale: f32) {
    for row in x.chunks_mut(width) {
        let by = 1.0 / (dot(row, row) + eps).sqrt();
        row.iter_mut().for_each(|x| *x = *x * by * scale);
    }
}

pub(super) fn decays(x: &mut [f32], bias: &[f32], each: usize, rates: Rates) {
    for (i, x) in x.iter_mut().enumerate() {
        let i = i % bias.len();
        let at = *x + bias[i];
        let factor = rates.factor(i / each);
        *x = match rates {
            Rates::Bounded(_, bound) => elementary::bounded_decay(at, factor, bound),
            _ => elementary::decay(at, factor),
        };
    }
}

pub(super) fn steps(x: &mut [f32], bias: &[f32]) {
    for (i, x) in x.iter_mut().enumerate() {
        *x = elementary::softplus(*x + bias[i % bias.len()]);
    }
}

pub(super) fn key_products(q: &[f32], keys: &KvCache, first: usize, products: &mut [f32]) {
    for (position, product) in (first..).zip(products) {
        *product = dot(q, &key_at(keys, position));
    }
}

pub(super) fn index_scores(query: IndexQuery, keys: &KvCache, first: usize, scores: &mut [f32]) {
    let dim = keys.key_dim();
    for (position, score) in (first..).zip(scores) {
        let key = key_at(keys, position);
        *score = 0.0;
        for (q, &weight) in query.q.chunks(dim).zip(query.weights) {
            let product = dot(q, &key);
            let positive = if product > 0.0 { product } else { 0.0 };
            *score = fma(weight, positive, *score);
        }
    }
}

/// The key of a position in a cache of one head.
fn key_at(cache: &KvCache, position: usize) -> Vec<f32> {
    let (page, at) = cache.keys.place(0, position);
    let dim = cache.key_dim();
    match cache.data {
        KvData::F32 { keys, .. } => keys[page][at..at + dim].to_vec(),
        KvData::Bf16 { keys, .. } => widened(&keys[page][at..at + dim]),
        KvData::Q8 { keys, .. } => scaled(&keys[page][at..], dim),
    }
}

fn widened(row: &[u16]) -> Vec<f32> {
    row.iter().map(|&bits| f32::from_bits(u32::from(bits) << 16)).collect()
}

/// A row of so many numbers in 8 bits: blocks of a scale and 32 codes.
fn scaled(row: &[u8], numbers: usize) -> Vec<f32> {
    let at = |i: usize| {
        let block = &row[i / 32 * 34..];
        let scale = half::bf16::from_le_bytes([block[0], block[1]]);
        f32::from(block[2 + i % 32].cast_signed()) * scale.to_f32()
    };
    (0..numbers).map(at).collect()
}
