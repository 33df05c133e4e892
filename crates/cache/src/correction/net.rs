//! The weights of one layer of a correction during learning.

use super::unit_scale;
use crate::math::{dot, logistic};
use crate::shape::{HORIZONS, STEPS};

/// Factor that gives statistics the magnitude of a state's elements.
pub(crate) const SCALE: f32 = 0.3;
/// Number of steps after which a next use is not distinguished any more.
pub(crate) const LAST: usize = STEPS[HORIZONS - 1];

/// The weights of a layer. Its input is a state of unit mean square, followed by scaled statistics.
#[derive(Clone, Debug)]
pub(crate) struct CorrectionNet {
    pub(crate) rank: usize,
    /// [rank, inputs]
    pub(crate) down: Vec<f32>,
    /// [rank + 1, horizons · experts]
    pub(crate) up: Vec<f32>,
}

/// A training sample: one step of a sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample<'a> {
    pub(crate) inputs: &'a [f32],
    /// Log-odds of use without a correction: [horizons, experts].
    pub(crate) odds: &'a [f32],
    /// For each expert, steps until its next use, up to 255.
    pub(crate) until: &'a [u8],
}

/// Gradients, and working memory for computing them.
#[derive(Clone, Debug)]
pub(crate) struct NetGradients {
    pub(crate) down: Vec<f32>,
    pub(crate) up: Vec<f32>,
    /// [rank + 1]: the projected input, and a constant.
    projected: Vec<f32>,
    /// [horizons, experts]: log-odds, then errors of the chances.
    errors: Vec<f32>,
}

/// A state with a mean square of 1.
pub(crate) fn normed(state: &[f32]) -> impl Iterator<Item = f32> {
    let scale = unit_scale(state);
    state.iter().map(move |x| x * scale)
}

impl CorrectionNet {
    /// Initial weights, which correct nothing.
    pub(crate) fn new(
        rank: usize,
        inputs: usize,
        outputs: usize,
        random: &mut u64,
    ) -> CorrectionNet {
        let scale = (3.0 / inputs.max(1) as f32).sqrt();
        let down = (0..rank * inputs).map(|_| scale * (2.0 * unit(random) - 1.0)).collect();
        CorrectionNet { rank, down, up: vec![0.0; (rank + 1) * outputs] }
    }

    /// Writes the projected inputs and the corrected log-odds.
    fn forward(&self, sample: Sample<'_>, work: &mut NetGradients) {
        let Sample { inputs, odds, .. } = sample;
        let rows = self.down.chunks_exact(inputs.len().max(1));
        for (u, row) in work.projected.iter_mut().zip(rows) {
            *u = dot(row, inputs);
        }
        work.projected[self.rank] = 1.0;
        work.errors.copy_from_slice(odds);
        for (up, u) in self.up.chunks_exact(odds.len()).zip(&work.projected) {
            for (odds, up) in work.errors.iter_mut().zip(up) {
                *odds += u * up;
            }
        }
    }

    /// Adds the gradients of a sample's binary cross-entropy.
    pub(crate) fn learn(&self, sample: Sample<'_>, work: &mut NetGradients) {
        self.forward(sample, work);
        let Sample { inputs, until, .. } = sample;
        let each = work.errors.chunks_exact_mut(until.len());
        for (errors, steps) in each.zip(STEPS) {
            for (error, &until) in errors.iter_mut().zip(until) {
                *error = logistic(*error) - f32::from(usize::from(until) <= steps);
            }
        }
        for (gradient, u) in work.up.chunks_exact_mut(work.errors.len()).zip(&work.projected) {
            for (sum, error) in gradient.iter_mut().zip(&work.errors) {
                *sum += u * error;
            }
        }
        let rows = self.up.chunks_exact(work.errors.len());
        for (gradient, up) in work.down.chunks_exact_mut(inputs.len().max(1)).zip(rows) {
            let error = dot(up, &work.errors);
            for (sum, x) in gradient.iter_mut().zip(inputs) {
                *sum += error * x;
            }
        }
    }

    /// The binary cross-entropy of a sample, summed over experts and horizons.
    pub(crate) fn loss(&self, sample: Sample<'_>, work: &mut NetGradients) -> f64 {
        self.forward(sample, work);
        let odds = &work.errors;
        let until = sample.until;
        let mut sum = 0.0;
        for (odds, steps) in odds.chunks_exact(until.len()).zip(STEPS) {
            for (&z, &until) in odds.iter().zip(until) {
                let y = f32::from(usize::from(until) <= steps);
                sum += f64::from(z.max(0.0) - z * y + (-z.abs()).exp().ln_1p());
            }
        }
        sum
    }

    /// The rows of all weights, each with its gradients.
    pub(crate) fn rows<'a>(
        &'a mut self,
        work: &'a NetGradients,
    ) -> impl Iterator<Item = (&'a mut [f32], &'a [f32])> {
        let inputs = (self.down.len() / self.rank.max(1)).max(1);
        let outputs = work.errors.len().max(1);
        let down = self.down.chunks_exact_mut(inputs).zip(work.down.chunks_exact(inputs));
        let up = self.up.chunks_exact_mut(outputs).zip(work.up.chunks_exact(outputs));
        down.chain(up)
    }
}

impl NetGradients {
    pub(crate) fn new(rank: usize, inputs: usize, outputs: usize) -> NetGradients {
        NetGradients {
            down: vec![0.0; rank * inputs],
            up: vec![0.0; (rank + 1) * outputs],
            projected: vec![0.0; rank + 1],
            errors: vec![0.0; outputs],
        }
    }

    pub(crate) fn clear(&mut self) {
        self.down.fill(0.0);
        self.up.fill(0.0);
    }
}

#[cfg(test)]
impl NetGradients {
    pub(crate) fn bytes(&self) -> usize {
        [&self.down, &self.up, &self.projected, &self.errors]
            .map(|all| size_of_val(&**all))
            .iter()
            .sum()
    }
}

/// The next number of a sequence (splitmix64).
pub(crate) fn next(random: &mut u64) -> u64 {
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
