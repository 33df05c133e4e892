//! Fitting a correction to recorded routes.

use std::ops::Range;

use sws_store::Pass;

use super::{Bf16, Correction};
use crate::Trace;
use crate::history::math::dot;
use crate::history::{HORIZONS, History, STATISTICS, STEPS, Shape, logistic};

/// Samples per step of the optimiser.
const BATCH: usize = 512;
const RATE: f32 = 3e-3;
/// Share of a weight that a step removes at the full rate.
const DECAY: f32 = 1e-3;
/// Decay of the averages of gradients and of their squares (Adam).
const MEAN: f32 = 0.9;
const SQUARE: f32 = 0.999;
/// Factor that gives statistics the magnitude of a state's elements.
const SCALE: f32 = 0.3;
/// Most tokens at the beginning that are not learned from: the tables of a history are still empty.
const EMPTY: usize = 1024;

/// Parameters of a fit.
#[derive(Clone, Copy, Debug)]
pub struct Fit {
    /// Elements of a router's state; 0 to fit to the use of experts alone.
    pub hidden: usize,
    /// Rank of the correction.
    pub rank: usize,
    /// Number of passes over the samples.
    pub epochs: usize,
    /// Seed of the initial weights and of the order of samples.
    pub seed: u64,
    /// Most bytes of the samples of a layer.
    pub memory: usize,
}

/// Result of a fit.
#[derive(Clone, Debug)]
pub struct Fitted {
    /// The correction.
    pub correction: Correction,
    /// For each layer, the loss on the sequences held out, in nats per expert and span of time: without
    /// the correction, and with it.
    pub losses: Vec<[f32; 2]>,
}

/// Sequences to learn from, in the order in which they run. One in `held_out` chooses the weights, and
/// is not learned from.
#[derive(Clone, Copy, Debug)]
pub struct Recorded<'a> {
    /// Their routes.
    pub trace: &'a Trace,
    /// Their tokens.
    pub sequences: &'a [Range<usize>],
    /// One sequence in this many is held out.
    pub held_out: usize,
}

impl<'a> Recorded<'a> {
    /// All these sequences, of which one in ten is held out.
    pub fn new(trace: &'a Trace, sequences: &'a [Range<usize>]) -> Recorded<'a> {
        Recorded { trace, sequences, held_out: 10 }
    }
}

impl Default for Fit {
    fn default() -> Fit {
        Fit { hidden: 0, rank: 16, epochs: 6, seed: 1, memory: 256 << 20 }
    }
}

/// Writes the state that the router of a layer saw for a token.
pub type ReadState<'a, E> = &'a mut dyn FnMut(usize, usize, &mut [f32]) -> Result<(), E>;

impl Fit {
    /// Fits a correction. `state` is not called if there are no states. `progress` gets the samples
    /// that are done and those in all; if it returns false, the result is `None`.
    pub fn run<E>(
        &self,
        recorded: Recorded<'_>,
        state: ReadState<'_, E>,
        progress: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<Option<Fitted>, E> {
        let shape = recorded.trace.shape();
        let mut correction = Correction::new(shape, self.hidden, self.rank);
        let mut losses = Vec::with_capacity(shape.layers);
        for layer in 0..shape.layers {
            let samples = Samples::collect(self, recorded, layer, state)?;
            let each = self.epochs * samples.learned.len();
            let mut net = Net::new(self, samples.inputs, HORIZONS * shape.experts, layer);
            let mut step = |done| progress(layer * each + done, shape.layers * each);
            let Some(loss) = net.fit(self, &samples, &mut step) else { return Ok(None) };
            losses.push(loss);
            correction.set(layer, &net.down, &net.up);
        }
        Ok(Some(Fitted { correction, losses }))
    }
}

impl Correction {
    /// Sets a layer. `down` is [rank, hidden + statistics · experts], for scaled statistics.
    fn set(&mut self, layer: usize, down: &[f32], up: &[f32]) {
        let (hidden, statistics) = (self.hidden, STATISTICS * self.shape.experts);
        for (r, row) in down.chunks_exact(hidden + statistics).enumerate() {
            let (states, scaled) = row.split_at(hidden);
            let at = layer * self.rank + r;
            let to = &mut self.states[at * hidden..][..hidden];
            to.iter_mut().zip(states).for_each(|(to, &x)| *to = Bf16::of(x));
            let to = &mut self.statistics[at * statistics..][..statistics];
            to.iter_mut().zip(scaled).for_each(|(to, x)| *to = Bf16::of(SCALE * x));
        }
        self.up[layer * up.len()..][..up.len()].copy_from_slice(up);
    }
}

/// Samples of a layer. Rows are steps.
struct Samples {
    /// Length of an input.
    inputs: usize,
    experts: usize,
    /// [rows, inputs]
    x: Vec<f32>,
    /// Log-odds without a correction: [rows, horizons, experts].
    odds: Vec<f32>,
    /// Steps until the next use, up to 255: [rows, experts].
    until: Vec<u8>,
    /// Rows to learn from, and rows to choose by.
    learned: Vec<usize>,
    held: Vec<usize>,
}

impl Samples {
    fn collect<E>(
        fit: &Fit,
        recorded: Recorded<'_>,
        layer: usize,
        state: ReadState<'_, E>,
    ) -> Result<Samples, E> {
        let Recorded { trace, sequences, held_out } = recorded;
        let Shape { experts, .. } = trace.shape();
        let inputs = fit.hidden + STATISTICS * experts;
        let row = (inputs + HORIZONS * experts) * size_of::<f32>() + experts;
        let all: usize = sequences.iter().map(|sequence| sequence.len()).sum();
        let every = all.div_ceil((fit.memory / row).max(1)).max(1);
        let skipped = EMPTY.min(all / 8);
        // The next use is not known of the last steps.
        let last = all.saturating_sub(STEPS[HORIZONS - 1]);

        let (x, odds, until) = Default::default();
        let (learned, held) = Default::default();
        let mut samples = Samples { inputs, experts, x, odds, until, learned, held };
        let mut history = History::with_tokens(trace.shape(), 1);
        let (mut taken, mut normed, mut done) = (Vec::new(), vec![0.0; fit.hidden], 0);
        for (number, sequence) in sequences.iter().enumerate() {
            let is_held = number % held_out == held_out.min(sequences.len()) - 1;
            for token in sequence.clone() {
                let position = token - sequence.start;
                let id = trace.tokens().get(token).copied();
                let pass = id.map_or_else(
                    || {
                        let mut pass = Pass::default();
                        pass.push_unknown(0, position, 1);
                        pass
                    },
                    |id| Pass::single(position, &[id]),
                );
                history.begin(&pass);
                // Layers are independent of each other, but the first counts the tokens.
                for l in [0, layer].into_iter().take(if layer == 0 { 1 } else { 2 }) {
                    let chosen: Vec<u32> =
                        trace.experts(token, l).iter().map(|&expert| expert.into()).collect();
                    history.step(l, 0, &chosen, id);
                }
                if done >= skipped && done < last && done % every == 0 {
                    if fit.hidden > 0 {
                        state(token, layer, &mut normed)?;
                        let mean = dot(&normed, &normed) / normed.len() as f32;
                        let scale = 1.0 / (mean + 1e-6).sqrt();
                        samples.x.extend(normed.iter().map(|x| x * scale));
                    }
                    let (statistics, odds) = history.odds(layer);
                    samples.x.extend(statistics.iter().map(|x| SCALE * x));
                    samples.odds.extend_from_slice(odds);
                    let rows = if is_held { &mut samples.held } else { &mut samples.learned };
                    rows.push(taken.len());
                    taken.push(done);
                }
                done += 1;
            }
        }
        samples.until = until_use(trace, sequences, layer, &taken);
        Ok(samples)
    }

    fn rows(&self, row: usize) -> (&[f32], &[f32], &[u8]) {
        let Samples { inputs, experts, .. } = *self;
        let odds = &self.odds[row * HORIZONS * experts..][..HORIZONS * experts];
        (&self.x[row * inputs..][..inputs], odds, &self.until[row * experts..][..experts])
    }
}

/// For each expert of a layer, the steps until its next use after each of the steps `taken`, counted
/// through all sequences: [taken, experts].
fn until_use(trace: &Trace, sequences: &[Range<usize>], layer: usize, taken: &[usize]) -> Vec<u8> {
    let experts = trace.shape().experts;
    let mut until = vec![u8::MAX; taken.len() * experts];
    let mut next = vec![usize::MAX; experts];
    let mut step: usize = sequences.iter().map(|sequence| sequence.len()).sum();
    let mut row = taken.len();
    for token in sequences.iter().rev().flat_map(|sequence| sequence.clone().rev()) {
        step -= 1;
        if row > 0 && taken[row - 1] == step {
            row -= 1;
            for (until, next) in until[row * experts..][..experts].iter_mut().zip(&next) {
                *until = next.saturating_sub(step).min(u8::MAX.into()) as u8;
            }
        }
        trace.experts(token, layer).iter().for_each(|&expert| next[usize::from(expert)] = step);
    }
    until
}

/// The weights of a layer, and the optimiser's state.
#[derive(Clone)]
struct Net {
    rank: usize,
    /// [rank, inputs]
    down: Vec<f32>,
    /// [rank + 1, horizons · experts]
    up: Vec<f32>,
    /// Averages of the gradients of both and of their squares.
    moments: [Vec<f32>; 2],
    steps: i32,
    random: u64,
}

/// Gradients, and what a row needs on the way to them.
struct Work {
    down: Vec<f32>,
    up: Vec<f32>,
    u: Vec<f32>,
    errors: Vec<f32>,
}

impl Net {
    fn new(fit: &Fit, inputs: usize, outputs: usize, layer: usize) -> Net {
        let rank = fit.rank;
        let mut random = fit.seed ^ ((layer as u64) << 32);
        let scale = (3.0 / inputs.max(1) as f32).sqrt();
        let down = (0..rank * inputs).map(|_| scale * (2.0 * unit(&mut random) - 1.0)).collect();
        let up = vec![0.0; (rank + 1) * outputs];
        let moments = [0, 1].map(|_| vec![0.0; rank * inputs + (rank + 1) * outputs]);
        Net { rank, down, up, moments, steps: 0, random }
    }

    /// Fits to the samples, and keeps the weights with the lowest loss on those held out. Returns that
    /// loss before and after.
    fn fit(
        &mut self,
        fit: &Fit,
        samples: &Samples,
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Option<[f32; 2]> {
        let mut work = Work {
            down: vec![0.0; self.down.len()],
            up: vec![0.0; self.up.len()],
            u: vec![0.0; self.rank + 1],
            errors: vec![0.0; HORIZONS * samples.experts],
        };
        let before = self.loss(samples, &mut work);
        let mut best = (before, self.down.clone(), self.up.clone());
        let mut order = samples.learned.clone();
        let steps = (fit.epochs * order.len().div_ceil(BATCH)) as f32;
        let mut done = 0;
        for _ in 0..fit.epochs {
            shuffle(&mut order, &mut self.random);
            for batch in order.chunks(BATCH) {
                if !progress(done) {
                    return None;
                }
                work.down.fill(0.0);
                work.up.fill(0.0);
                batch.iter().for_each(|&row| self.learn(samples, row, &mut work));
                let turn = std::f32::consts::PI * self.steps as f32 / steps;
                let scale = 1.0 / (batch.len() * work.errors.len()) as f32;
                self.step(RATE * 0.5 * (1.0 + turn.cos()), scale, &work);
                done += batch.len();
            }
            let loss = self.loss(samples, &mut work);
            if loss < best.0 {
                best = (loss, self.down.clone(), self.up.clone());
            }
        }
        (self.down, self.up) = (best.1, best.2);
        Some([before, best.0])
    }

    /// Writes the projected input and the corrected odds of a row.
    fn forward(&self, samples: &Samples, row: usize, work: &mut Work) {
        let (x, odds, _) = samples.rows(row);
        let rows = self.down.chunks_exact(x.len().max(1));
        work.u.iter_mut().zip(rows).for_each(|(u, row)| *u = dot(row, x));
        work.u[self.rank] = 1.0;
        work.errors.copy_from_slice(odds);
        for (up, u) in self.up.chunks_exact(odds.len()).zip(&work.u) {
            work.errors.iter_mut().zip(up).for_each(|(odds, up)| *odds += u * up);
        }
    }

    /// Adds the gradients of a row's binary cross-entropy.
    fn learn(&self, samples: &Samples, row: usize, work: &mut Work) {
        self.forward(samples, row, work);
        let (x, _, until) = samples.rows(row);
        let each = work.errors.chunks_exact_mut(samples.experts);
        for (errors, steps) in each.zip(STEPS) {
            for (error, &until) in errors.iter_mut().zip(until) {
                *error = logistic(*error) - f32::from(usize::from(until) <= steps);
            }
        }
        for (gradient, u) in work.up.chunks_exact_mut(work.errors.len()).zip(&work.u) {
            gradient.iter_mut().zip(&work.errors).for_each(|(sum, error)| *sum += u * error);
        }
        let rows = self.up.chunks_exact(work.errors.len());
        for (gradient, up) in work.down.chunks_exact_mut(x.len().max(1)).zip(rows) {
            let error = dot(up, &work.errors);
            gradient.iter_mut().zip(x).for_each(|(sum, x)| *sum += error * x);
        }
    }

    /// A step of AdamW against the gradients times `scale`.
    fn step(&mut self, rate: f32, scale: f32, work: &Work) {
        self.steps += 1;
        let [mean_left, square_left] = [MEAN, SQUARE].map(|decay| 1.0 - decay.powi(self.steps));
        let weights = self.down.iter_mut().chain(&mut self.up);
        let gradients = work.down.iter().chain(&work.up);
        let [means, squares] = &mut self.moments;
        for (((weight, gradient), mean), square) in weights.zip(gradients).zip(means).zip(squares) {
            let gradient = gradient * scale;
            *mean = MEAN * *mean + (1.0 - MEAN) * gradient;
            *square = SQUARE * *square + (1.0 - SQUARE) * gradient * gradient;
            let root = (*square / square_left).sqrt() + 1e-8;
            *weight -= rate * (DECAY * *weight + *mean / mean_left / root);
        }
    }

    /// Mean binary cross-entropy of the rows held out.
    fn loss(&self, samples: &Samples, work: &mut Work) -> f32 {
        let mut sum = 0.0f64;
        for &row in &samples.held {
            self.forward(samples, row, work);
            let (_, _, until) = samples.rows(row);
            let each = work.errors.chunks_exact(samples.experts);
            for (odds, steps) in each.zip(STEPS) {
                for (&z, &until) in odds.iter().zip(until) {
                    let y = f32::from(usize::from(until) <= steps);
                    sum += f64::from(z.max(0.0) - z * y + (-z.abs()).exp().ln_1p());
                }
            }
        }
        (sum / (samples.held.len() * work.errors.len()).max(1) as f64) as f32
    }
}

/// The next number of a sequence (splitmix64).
fn next(random: &mut u64) -> u64 {
    *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *random;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A uniform number from 0 to 1.
fn unit(random: &mut u64) -> f32 {
    (next(random) >> 40) as f32 / (1u64 << 24) as f32
}

fn shuffle(order: &mut [usize], random: &mut u64) {
    for i in (1..order.len()).rev() {
        order.swap(i, (next(random) % (i as u64 + 1)) as usize);
    }
}
