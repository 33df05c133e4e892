//! Fitting a correction to recorded routes.

use std::ops::Range;

use sws_format::Pass;

use crate::Trace;
use crate::correction::Correction;
use crate::correction::net::{CorrectionNet, LAST, NetGradients, SCALE, Sample, next, normed};
use crate::history::History;
use crate::shape::{HORIZONS, HistoryShape, STATISTICS};

/// Samples per step of the optimiser.
const BATCH: usize = 512;
const RATE: f32 = 3e-3;
/// Share of a weight that a step removes at the full rate.
const DECAY: f32 = 1e-3;
/// Decay of the moving averages of gradients and squared gradients (Adam).
const MEAN: f32 = 0.9;
const SQUARE: f32 = 0.999;
/// Maximum number of first tokens that are skipped, because the tables of a history are still
/// empty.
const EMPTY: usize = 1024;

/// Parameters of a fit.
#[derive(Clone, Copy, Debug)]
pub struct Fit {
    /// Elements of a router's hidden state; 0 to fit to expert usage alone.
    pub hidden: usize,
    /// Rank of the correction.
    pub rank: usize,
    /// Number of passes over the samples.
    pub epochs: usize,
    /// Seed of the initial weights and of the order of samples.
    pub seed: u64,
    /// Maximum bytes of the samples of a layer.
    pub memory: usize,
}

/// Result of a fit.
#[derive(Clone, Debug)]
pub struct Fitted {
    /// The correction.
    pub correction: Correction,
    /// For each layer, the loss on the held-out sequences, in nats per expert and horizon: without
    /// the correction, and with it.
    pub losses: Vec<[f32; 2]>,
}

/// Training sequences, in the order in which they run. Every `held_out`-th one is not trained on,
/// and selects the weights.
#[derive(Clone, Copy, Debug)]
pub struct FitSequences<'a> {
    /// Recorded routes of the sequences.
    pub trace: &'a Trace,
    /// Token range of each sequence in the trace.
    pub sequences: &'a [Range<usize>],
    /// One sequence in this many is held out.
    pub held_out: usize,
}

impl<'a> FitSequences<'a> {
    /// All these sequences, with one in ten held out.
    pub fn new(trace: &'a Trace, sequences: &'a [Range<usize>]) -> FitSequences<'a> {
        FitSequences { trace, sequences, held_out: 10 }
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
    /// Fits a correction. `state` is not called if there are no states. `progress` gets the number
    /// of finished samples and of all samples. If it returns false, the result is `None`.
    pub fn run<E>(
        &self,
        recorded: FitSequences<'_>,
        state: ReadState<'_, E>,
        progress: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<Option<Fitted>, E> {
        let shape = recorded.trace.shape();
        let mut correction = Correction::new(shape, self.hidden, self.rank);
        let mut losses = Vec::with_capacity(shape.layers);
        for layer in 0..shape.layers {
            let samples = FitSamples::collect(self, recorded, layer, state)?;
            let each = self.epochs * samples.learned.len();
            let mut fitting = Fitting::new(self, samples.inputs, HORIZONS * shape.experts, layer);
            let mut step = |done| progress(layer * each + done, shape.layers * each);
            let Some(loss) = fitting.fit(self, &samples, &mut step) else { return Ok(None) };
            losses.push(loss);
            correction.set(layer, &fitting.net);
        }
        Ok(Some(Fitted { correction, losses }))
    }
}

/// Samples of a layer. Rows are steps.
struct FitSamples {
    /// Length of an input.
    inputs: usize,
    experts: usize,
    /// [rows, inputs]
    x: Vec<f32>,
    /// Log-odds without a correction: [rows, horizons, experts].
    odds: Vec<f32>,
    /// Steps until the next use, up to 255: [rows, experts].
    until: Vec<u8>,
    /// Rows to train on, and held-out rows.
    learned: Vec<usize>,
    held: Vec<usize>,
}

impl FitSamples {
    fn collect<E>(
        fit: &Fit,
        recorded: FitSequences<'_>,
        layer: usize,
        state: ReadState<'_, E>,
    ) -> Result<FitSamples, E> {
        let FitSequences { trace, sequences, held_out } = recorded;
        let HistoryShape { experts, .. } = trace.shape();
        let inputs = fit.hidden + STATISTICS * experts;
        let row = (inputs + HORIZONS * experts) * size_of::<f32>() + experts;
        let all: usize = sequences.iter().map(|sequence| sequence.len()).sum();
        let every = all.div_ceil((fit.memory / row).max(1)).max(1);
        let skipped = EMPTY.min(all / 8);
        // The next uses of the last steps are unknown.
        let last = all.saturating_sub(LAST);

        let mut samples = FitSamples {
            inputs,
            experts,
            x: Vec::new(),
            odds: Vec::new(),
            until: Vec::new(),
            learned: Vec::new(),
            held: Vec::new(),
        };
        let mut history = History::with_tokens(trace.shape(), 1);
        let mut taken = Vec::new();
        let mut seen = vec![0.0; fit.hidden];
        let mut done = 0;
        for (number, sequence) in sequences.iter().enumerate() {
            let is_held = number % held_out == held_out.min(sequences.len()) - 1;
            for token in sequence.clone() {
                let position = token - sequence.start;
                let id = trace.tokens().get(token).copied();
                let mut pass = Pass::default();
                match id {
                    Some(id) => pass.push(0, position, &[id]),
                    None => pass.push_unknown(0, position, 1),
                }
                history.begin(&pass);
                // Layers are independent of each other, but the history counts tokens in the first
                // layer only.
                for l in [0, layer].into_iter().take(if layer == 0 { 1 } else { 2 }) {
                    let chosen: Vec<u32> =
                        trace.experts(token, l).iter().copied().map(u32::from).collect();
                    history.step(l, 0, &chosen, id);
                }
                if done >= skipped && done < last && done % every == 0 {
                    if fit.hidden > 0 {
                        state(token, layer, &mut seen)?;
                        samples.x.extend(normed(&seen));
                    }
                    let (statistics, odds) = history.latest_odds(layer);
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

    fn sample(&self, row: usize) -> Sample<'_> {
        let FitSamples { inputs, experts, .. } = *self;
        Sample {
            inputs: &self.x[row * inputs..][..inputs],
            odds: &self.odds[row * HORIZONS * experts..][..HORIZONS * experts],
            until: &self.until[row * experts..][..experts],
        }
    }
}

/// For each expert of a layer and each step in `taken`, the number of steps until the expert's next
/// use, counted through all sequences: [taken, experts].
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
        for &expert in trace.experts(token, layer) {
            next[usize::from(expert)] = step;
        }
    }
    until
}

/// The fit of a layer: its weights, and the optimiser's state.
struct Fitting {
    net: CorrectionNet,
    /// Moving averages of the gradients of all weights, and of their squares.
    moments: [Vec<f32>; 2],
    steps: i32,
    random: u64,
}

impl Fitting {
    fn new(fit: &Fit, inputs: usize, outputs: usize, layer: usize) -> Fitting {
        let mut random = fit.seed ^ ((layer as u64) << 32);
        let net = CorrectionNet::new(fit.rank, inputs, outputs, &mut random);
        let moments = [0, 1].map(|_| vec![0.0; net.down.len() + net.up.len()]);
        Fitting { net, moments, steps: 0, random }
    }

    /// Fits to the samples, and keeps the weights with the lowest held-out loss. Returns the
    /// held-out loss before and after.
    fn fit(
        &mut self,
        fit: &Fit,
        samples: &FitSamples,
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Option<[f32; 2]> {
        let mut work = NetGradients::new(fit.rank, samples.inputs, HORIZONS * samples.experts);
        let before = self.loss(samples, &mut work);
        let mut best = (before, self.net.clone());
        let mut order = samples.learned.clone();
        let steps = (fit.epochs * order.len().div_ceil(BATCH)) as f32;
        let mut done = 0;
        for _ in 0..fit.epochs {
            shuffle(&mut order, &mut self.random);
            for batch in order.chunks(BATCH) {
                if !progress(done) {
                    return None;
                }
                work.clear();
                for &row in batch {
                    self.net.learn(samples.sample(row), &mut work);
                }
                let turn = std::f32::consts::PI * self.steps as f32 / steps;
                let scale = 1.0 / (batch.len() * HORIZONS * samples.experts) as f32;
                self.step(RATE * 0.5 * (1.0 + turn.cos()), scale, &work);
                done += batch.len();
            }
            let loss = self.loss(samples, &mut work);
            if loss < best.0 {
                best = (loss, self.net.clone());
            }
        }
        self.net = best.1;
        Some([before, best.0])
    }

    /// A step of AdamW against the gradients times `scale`.
    fn step(&mut self, rate: f32, scale: f32, work: &NetGradients) {
        self.steps += 1;
        let mean_left = 1.0 - MEAN.powi(self.steps);
        let square_left = 1.0 - SQUARE.powi(self.steps);
        let weights = self.net.down.iter_mut().chain(&mut self.net.up);
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

    /// Mean binary cross-entropy of the held-out rows.
    fn loss(&self, samples: &FitSamples, work: &mut NetGradients) -> f32 {
        let all = samples.held.iter().map(|&row| self.net.loss(samples.sample(row), work));
        let sum: f64 = all.sum();
        (sum / (samples.held.len() * HORIZONS * samples.experts).max(1) as f64) as f32
    }
}

fn shuffle(order: &mut [usize], random: &mut u64) {
    for i in (1..order.len()).rev() {
        order.swap(i, (next(random) % (i as u64 + 1)) as usize);
    }
}
