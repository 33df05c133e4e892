//! Forecasts from the use of experts so far.
//!
//! A [`History`] keeps:
//!
//! - the recent use of every expert of every layer, as moving averages over five spans of time,
//! - the total use of every expert, and the time since its last use,
//! - for pairs of experts of a layer, how often one followed the other after one step and after
//!   two,
//! - for tokens, how often each expert was used one step later.
//!
//! A logistic model of these gives the chance that an expert is *not* used within the next 1, 4, 16
//! and 64 steps. The weights of that model are the same for all layers and models. They were
//! learned on the routes of one model; frozen, they forecast those of three other models as well as
//! weights learned on those models.
//!
//! ```
//! use sws_cache::history::{History, Shape};
//!
//! let mut history = History::new(Shape { layers: 1, experts: 8, top_k: 2 });
//! for step in 0..50 {
//!     history.step(0, &[1, if step % 2 == 0 { 2 } else { 3 }]);
//! }
//! let absent = history.absence(0);
//! // Expert 1 is always used; after 3, which was used last, comes 2; 7 never was.
//! assert!(absent.within_1[1] < absent.within_1[2]);
//! assert!(absent.within_1[2] < absent.within_1[3]);
//! assert!(absent.within_64[3] < absent.within_64[7]);
//! ```

mod followers;
mod math;
mod saved;

use followers::Followers;
use math::ln;
pub use math::logistic;

/// The half-lives of the moving averages, in steps.
const HALF_LIVES: [f32; 5] = [2.0, 8.0, 32.0, 128.0, 1024.0];

/// Number of inputs of the logistic model for an expert. In order, they are:
///
/// - a constant,
/// - the log-odds of the five moving averages,
/// - the log-odds of the use over all time,
/// - the time since the last use,
/// - the log-odds of following the experts used last,
/// - the log-odds of following the experts used two steps ago, less those of the use over all time,
/// - the log-odds of following the last token, less those of following the last experts.
const FEATURES: usize = 11;

/// Weight, in steps, of the average over all time where pairs of experts were rarely seen.
const PRIOR: f32 = 4.0;

/// Weight, in steps, of an even use of all experts in the average over all time.
const EVEN: f32 = 20.0;

/// Weights for 1, 4, 16 and 64 steps: the mean of two fits to the routes of 12,000 tokens of
/// gpt-oss-20b and 5,630 of tales-moe that are not used for measurements. One of the fits adds
/// synthetic routes in which experts tend to stay in use. Neither has seen routes of DeepSeek or
/// Qwen.
#[rustfmt::skip]
const WEIGHTS: [[f32; FEATURES]; 4] = [
    [-0.143, 0.037, -0.017, 0.383, -0.270, 0.005, -0.789, -0.376, 1.490, 0.209, 0.776],
    [1.470, 0.027, 0.016, 0.328, -0.010, -0.017, -0.242, -0.404, 0.754, 0.322, 0.223],
    [3.471, 0.026, 0.025, 0.285, 0.138, -0.022, 0.054, -0.698, 0.426, 0.294, 0.021],
    [5.772, 0.064, 0.082, 0.302, 0.089, 0.045, 0.205, -0.739, 0.225, 0.312, -0.014],
];

/// Weights of the second fit for use without token ids.
#[rustfmt::skip]
const WITHOUT_TOKENS: [[f32; FEATURES]; 4] = [
    [-0.114, 0.017, -0.059, 0.357, -0.315, -0.028, -0.787, -0.631, 1.657, 0.128, 0.000],
    [1.404, 0.005, -0.034, 0.239, 0.010, 0.071, -0.374, -0.879, 0.875, 0.184, 0.000],
    [3.187, -0.032, -0.044, 0.102, 0.196, -0.014, 0.001, -1.620, 0.491, 0.154, 0.000],
    [5.377, 0.031, 0.009, 0.179, 0.137, -0.043, 0.296, -1.215, 0.263, 0.139, 0.000],
];

/// Most pairs of experts in all layers. A model with more has no pair tables.
const MAX_PAIRS: usize = 64 << 20;

/// Numbers of layers and experts of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Layers that have experts.
    pub layers: usize,
    /// Experts per layer.
    pub experts: usize,
    /// Experts that a token uses per layer.
    pub top_k: usize,
}

/// The use of the experts of a model so far.
#[derive(Clone, Debug)]
pub struct History {
    shape: Shape,
    layers: Vec<Layer>,
    followers: Followers,
    /// Factor by which each moving average decays per step.
    keep: [f32; HALF_LIVES.len()],
    used: Vec<f32>,
    previous: Vec<u32>,
    features: Vec<f32>,
}

/// The chance that each expert of a layer is not used within 1, 4, 16 and 64 steps. It never
/// increases with the number of steps.
#[derive(Clone, Copy, Debug)]
pub struct Absence<'a> {
    /// In the next step.
    pub within_1: &'a [f32],
    /// In the next 4.
    pub within_4: &'a [f32],
    /// In the next 16.
    pub within_16: &'a [f32],
    /// In the next 64.
    pub within_64: &'a [f32],
}

#[derive(Clone, Debug)]
struct Layer {
    steps: f32,
    /// [half-lives, experts]
    averages: Vec<f32>,
    /// For each expert, the number of steps that used it, and of steps since the last use.
    count: Vec<f32>,
    age: Vec<f32>,
    /// The experts of the last step, and of the one before.
    last: Vec<u32>,
    before: Vec<u32>,
    /// The tokens of the last step, if they are known.
    tokens: Vec<u32>,
    /// Experts used one step after an expert, and two steps after it.
    pairs: Option<[Pairs; 2]>,
    /// [horizons, experts]
    absence: Vec<f32>,
    stale: bool,
}

/// Counts of how often the experts of one step were followed by those of a later one.
#[derive(Clone, Debug)]
pub struct Pairs {
    /// Steps with expert `a` that had a successor.
    pub seen: Vec<u16>,
    /// By `a`, then by the expert that followed.
    ///
    /// A byte is enough: when a count is full, all counts of `a` are halved. The table then adapts
    /// to the text, and is small compared with the weights of a single expert.
    pub followed: Vec<u8>,
}

impl Shape {
    fn pairs(&self) -> bool {
        let pairs = self.experts.checked_mul(self.experts).and_then(|n| n.checked_mul(self.layers));
        pairs.is_some_and(|pairs| pairs <= MAX_PAIRS)
    }
}

impl History {
    /// An empty history.
    pub fn new(shape: Shape) -> History {
        let experts = shape.experts;
        let even = shape.top_k as f32 / experts.max(1) as f32;
        let layer = Layer {
            steps: 0.0,
            averages: vec![even; HALF_LIVES.len() * experts],
            count: vec![0.0; experts],
            age: vec![0.0; experts],
            last: Vec::new(),
            before: Vec::new(),
            tokens: Vec::new(),
            pairs: shape.pairs().then(|| [Pairs::new(experts), Pairs::new(experts)]),
            absence: vec![0.0; WEIGHTS.len() * experts],
            stale: true,
        };
        History {
            shape,
            layers: vec![layer; shape.layers],
            followers: Followers::default(),
            keep: HALF_LIVES.map(|half| (-1.0 / half).exp2()),
            used: vec![0.0; experts],
            previous: Vec::new(),
            features: vec![0.0; FEATURES * experts],
        }
    }

    /// An empty history that also learns which experts follow each token, for
    /// [announced](Self::announce) tokens.
    pub fn with_tokens(shape: Shape) -> History {
        let followers = Followers::new(shape.layers, shape.experts);
        History { followers, ..History::new(shape) }
    }

    /// The numbers of layers and experts it covers.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Number of steps seen of a layer.
    pub fn steps(&self, layer: usize) -> usize {
        self.layers[layer].steps as usize
    }

    /// Announces tokens of the next steps, so that the experts that follow them can be counted.
    pub fn announce(&mut self, tokens: &[u32]) {
        tokens.iter().for_each(|&token| self.followers.admit(token));
    }

    /// Records that a step uses these experts of a layer. `layer` is an index among the layers with
    /// experts. An expert may be listed several times; ids that the model does not have are
    /// ignored.
    pub fn step(&mut self, layer: usize, experts: &[u32]) {
        self.step_of(layer, experts, &[]);
    }

    /// As [`step`](Self::step), for a step whose tokens are known.
    pub fn step_of(&mut self, layer: usize, experts: &[u32], tokens: &[u32]) {
        let (number, followers) = (layer, &mut self.followers);
        let Some(layer) = self.layers.get_mut(layer) else { return };
        let used = &mut self.used[..];
        used.fill(0.0);
        let second = &mut self.previous;
        std::mem::swap(second, &mut layer.before);
        std::mem::swap(&mut layer.before, &mut layer.last);
        layer.last.clear();
        for &expert in experts {
            if let Some(used) = used.get_mut(expert as usize)
                && *used == 0.0
            {
                *used = 1.0;
                layer.last.push(expert);
            }
        }
        layer.steps += 1.0;
        layer.stale = true;
        for (averages, keep) in layer.averages.chunks_exact_mut(used.len()).zip(self.keep) {
            for (average, used) in averages.iter_mut().zip(&*used) {
                *average = used + keep * (*average - used);
            }
        }
        for ((count, age), used) in layer.count.iter_mut().zip(&mut layer.age).zip(&*used) {
            *count += used;
            *age = (1.0 - used) * (*age + 1.0);
        }
        if let Some(pairs) = &mut layer.pairs {
            for (pairs, before) in pairs.iter_mut().zip([&layer.before, &*second]) {
                for &before in before {
                    pairs.note(before as usize, &layer.last);
                }
            }
        }
        for &token in &layer.tokens {
            followers.note(token, number, &layer.last);
        }
        layer.tokens.clear();
        layer.tokens.extend(tokens);
    }

    /// The chances, as of the last step of a layer, that its experts are not used soon.
    pub fn absence(&mut self, layer: usize) -> Absence<'_> {
        let even = EVEN * self.shape.top_k as f32 / self.shape.experts.max(1) as f32;
        let (number, layer) = (layer, &mut self.layers[layer]);
        if std::mem::take(&mut layer.stale) {
            layer.weigh(number, even, &self.followers, &mut self.features);
        }
        let mut horizons = layer.absence.chunks_exact(self.shape.experts.max(1));
        let mut next = || horizons.next().unwrap_or_default();
        Absence { within_1: next(), within_4: next(), within_16: next(), within_64: next() }
    }

    /// Memory held, in bytes.
    pub fn bytes(&self) -> usize {
        History::bytes_for(self.shape) + self.followers.bytes()
    }

    /// Additional memory of a history [with tokens](Self::with_tokens): at most 2 MiB.
    pub fn bytes_of_tokens(shape: Shape) -> usize {
        Followers::bytes_for(shape.layers, shape.experts)
    }

    /// Memory of a history for a model of this shape: 1.9 MiB for 48 layers of 128 experts, 8.3 MiB
    /// for 58 layers of 256.
    pub fn bytes_for(shape: Shape) -> usize {
        let floats = HALF_LIVES.len() + 2 + WEIGHTS.len();
        let pairs = if shape.pairs() { 2 * (shape.experts + size_of::<u16>()) } else { 0 };
        let last = 2 * size_of::<u32>();
        let expert = size_of::<f32>() * floats + pairs + last;
        let layer = size_of::<Layer>() + shape.experts * expert;
        shape.layers * layer + size_of::<f32>() * (FEATURES + 1) * shape.experts
    }
}

impl Pairs {
    /// An empty table.
    pub fn new(experts: usize) -> Pairs {
        Pairs { seen: vec![0; experts], followed: vec![0; experts * experts] }
    }

    /// Memory of a table.
    pub fn bytes_for(experts: usize) -> usize {
        size_of::<Pairs>() + experts * (experts + size_of::<u16>())
    }

    /// Counts that the experts `after` followed `before`.
    pub fn note(&mut self, before: usize, after: &[u32]) {
        let experts = self.seen.len();
        let row = &mut self.followed[before * experts..][..experts];
        let full = self.seen[before] == u16::MAX
            || after.iter().any(|&expert| row[expert as usize] == u8::MAX);
        if full {
            row.iter_mut().for_each(|count| *count /= 2);
            self.seen[before] /= 2;
        }
        self.seen[before] += 1;
        for &expert in after {
            row[expert as usize] += 1;
        }
    }

    /// Writes to `chances` the probability of each expert after those of `last`. `prior` is the
    /// probability without any counts.
    pub fn chances(&self, last: &[u32], prior: &[f32], chances: &mut [f32]) {
        let experts = self.seen.len();
        let share = 1.0 / last.len() as f32;
        let mut rest = 0.0;
        chances.fill(0.0);
        for &before in last {
            let before = before as usize;
            let weight = share / (f32::from(self.seen[before]) + PRIOR);
            rest += PRIOR * weight;
            let row = &self.followed[before * experts..][..experts];
            for (chance, &count) in chances.iter_mut().zip(row) {
                *chance += weight * f32::from(count);
            }
        }
        for (chance, prior) in chances.iter_mut().zip(prior) {
            *chance += rest * prior;
        }
    }
}

impl Layer {
    /// Computes `absence` from everything else.
    fn weigh(&mut self, layer: usize, even: f32, followers: &Followers, features: &mut [f32]) {
        let experts = self.count.len();
        if experts == 0 {
            return;
        }
        let (averages, rest) = features.split_at_mut(HALF_LIVES.len() * experts);
        let (overall, rest) = rest.split_at_mut(experts);
        let (age, rest) = rest.split_at_mut(experts);
        let (follows, rest) = rest.split_at_mut(experts);
        let (second, rest) = rest.split_at_mut(experts);
        let (token, _) = rest.split_at_mut(experts);

        for (odds, average) in averages.iter_mut().zip(&self.averages) {
            *odds = log_odds(*average);
        }
        let scale = 1.0 / (self.steps + EVEN);
        for (share, count) in overall.iter_mut().zip(&self.count) {
            *share = (count + even) * scale;
        }
        follows.copy_from_slice(overall);
        second.copy_from_slice(overall);
        if let Some(pairs) = &self.pairs {
            let of = [(&self.last, &mut *follows), (&self.before, &mut *second)];
            for (pairs, (before, chances)) in pairs.iter().zip(of) {
                if !before.is_empty() {
                    pairs.chances(before, overall, chances);
                }
            }
        }
        self.after_tokens(layer, followers, follows, token);
        let all = overall.iter_mut().chain(&mut *follows).chain(&mut *second).chain(&mut *token);
        for chance in all {
            *chance = log_odds(*chance);
        }
        for (second, overall) in second.iter_mut().zip(&*overall) {
            *second -= overall;
        }
        for (token, follows) in token.iter_mut().zip(&*follows) {
            *token -= follows;
        }
        for (log, steps) in age.iter_mut().zip(&self.age) {
            *log = 0.3 * ln(1.0 + steps);
        }

        for (absence, weights) in
            self.absence.chunks_exact_mut(experts).zip(match self.tokens.is_empty() {
                false => &WEIGHTS,
                true => &WITHOUT_TOKENS,
            })
        {
            absence.fill(weights[0]);
            for (feature, weight) in features.chunks_exact(experts).zip(&weights[1..]) {
                for (sum, value) in absence.iter_mut().zip(feature) {
                    *sum += weight * value;
                }
            }
            absence.iter_mut().for_each(|sum| *sum = logistic(-*sum));
        }
        for horizon in 1..WEIGHTS.len() {
            let (nearer, this) = self.absence.split_at_mut(horizon * experts);
            let nearer = &nearer[(horizon - 1) * experts..];
            for (this, nearer) in this.iter_mut().zip(nearer) {
                *this = this.min(*nearer);
            }
        }
    }
}

impl Layer {
    /// Writes to `chances` the probability of each expert after the last tokens. `prior` is the
    /// probability without any counts.
    fn after_tokens(
        &self,
        layer: usize,
        followers: &Followers,
        prior: &[f32],
        chances: &mut [f32],
    ) {
        let known = || self.tokens.iter().filter_map(|&token| followers.after(token, layer));
        let count = known().count();
        if count == 0 {
            chances.copy_from_slice(prior);
            return;
        }
        chances.fill(0.0);
        for (seen, counts) in known() {
            let weight = 1.0 / (count as f32 * (f32::from(seen) + PRIOR));
            for ((chance, &count), prior) in chances.iter_mut().zip(counts).zip(prior) {
                *chance += weight * (f32::from(count) + PRIOR * prior);
            }
        }
    }
}

/// ln(p / (1 - p)), with p kept at least 0.0005 away from 0 and 1.
pub fn log_odds(p: f32) -> f32 {
    let p = p.clamp(0.0005, 0.9995);
    ln(p / (1.0 - p))
}

#[cfg(test)]
mod tests;
