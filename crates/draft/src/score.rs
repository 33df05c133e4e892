//! Quality of forecasts: recall, precision and calibration.

use serde::Serialize;

/// Number of probability bins for the calibration error.
const BINS: usize = 20;

/// Source of a forecast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ForecastSource {
    /// The micro draft model.
    Draft,
    /// The layer's own router, applied to the earlier state.
    Router,
    /// The experts most often used together with those that the last layer chose.
    Together,
    /// The experts that the previous token used, then the most used ones.
    Previous,
    /// The most used experts.
    Hot,
    /// The micro draft model, from the token alone.
    Token,
    /// The layer's router on its own state. It must find all experts, or the measurement is wrong.
    Control,
}

/// Accumulated results of one kind of forecast.
#[derive(Clone, Debug, Default)]
pub struct ForecastOutcome {
    uses: u64,
    /// Number of uses among the k, 1.5 k and 2 k experts forecast first.
    found: [u64; 3],
    named: [u64; 3],
    misses: u64,
    found_misses: [u64; 3],
    /// For each bin, the number of forecasts, the sum of their probabilities, and the number that
    /// came true.
    bins: [(u64, f64, u64); BINS],
    order: Vec<u32>,
}

/// The figures of a [`ForecastOutcome`].
#[derive(Clone, Debug, Serialize)]
pub struct Score {
    /// Uses of experts.
    pub uses: u64,
    /// Share of the uses among the k, 1.5 k and 2 k experts forecast first.
    pub recall: [f64; 3],
    /// Share of these experts that were used.
    pub precision: [f64; 3],
    /// Uses of experts that were not in memory.
    pub misses: u64,
    /// Share of the misses among the experts forecast first.
    pub recall_on_misses: [f64; 3],
    /// Mean distance of the probabilities from the observed frequencies, over all experts and over
    /// those with a probability of at least 1/20. `None` for forecasts without probabilities.
    pub calibration_error: Option<[f64; 2]>,
}

impl ForecastOutcome {
    /// Adds one forecast. A higher score means a more probable expert; with `probabilities` the
    /// scores are probabilities. `used` are the experts used, and `missed` those of them not in
    /// memory.
    pub fn add(&mut self, scores: &[f32], used: &[u32], missed: &[u32], probabilities: bool) {
        let top_k = used.len();
        self.order.clear();
        self.order.extend(0..scores.len() as u32);
        let by_score =
            |&a: &u32, &b: &u32| scores[b as usize].total_cmp(&scores[a as usize]).then(a.cmp(&b));
        self.order.sort_unstable_by(by_score);
        self.uses += top_k as u64;
        self.misses += missed.len() as u64;
        for (i, n) in [top_k, (3 * top_k).div_ceil(2), 2 * top_k].into_iter().enumerate() {
            let named = &self.order[..n.min(self.order.len())];
            self.named[i] += named.len() as u64;
            self.found[i] += count_among(named, used);
            self.found_misses[i] += count_among(named, missed);
        }
        if probabilities {
            for (expert, &p) in scores.iter().enumerate() {
                let bin = &mut self.bins[((p * BINS as f32) as usize).min(BINS - 1)];
                bin.0 += 1;
                bin.1 += f64::from(p);
                bin.2 += u64::from(used.contains(&(expert as u32)));
            }
        }
    }

    /// Adds the results of another outcome.
    pub fn merge(&mut self, other: &ForecastOutcome) {
        self.uses += other.uses;
        self.misses += other.misses;
        for i in 0..3 {
            self.found[i] += other.found[i];
            self.named[i] += other.named[i];
            self.found_misses[i] += other.found_misses[i];
        }
        for (bin, more) in self.bins.iter_mut().zip(&other.bins) {
            bin.0 += more.0;
            bin.1 += more.1;
            bin.2 += more.2;
        }
    }

    /// Returns the figures.
    pub fn score(&self) -> Score {
        let is_calibrated = self.bins.iter().any(|bin| bin.0 > 0);
        let calibration_error = match is_calibrated {
            true => Some([calibration_error(&self.bins), calibration_error(&self.bins[1..])]),
            false => None,
        };
        Score {
            uses: self.uses,
            recall: shares(self.found, [self.uses; 3]),
            precision: shares(self.found, self.named),
            misses: self.misses,
            recall_on_misses: shares(self.found_misses, [self.misses; 3]),
            calibration_error,
        }
    }
}

/// Number of these experts that are among the named ones.
fn count_among(named: &[u32], experts: &[u32]) -> u64 {
    experts.iter().filter(|expert| named.contains(expert)).count() as u64
}

fn shares(parts: [u64; 3], all: [u64; 3]) -> [f64; 3] {
    let mut shares = [0.0; 3];
    for i in 0..3 {
        if all[i] > 0 {
            shares[i] = parts[i] as f64 / all[i] as f64;
        }
    }
    shares
}

/// Mean distance of the probabilities in these bins from the observed frequencies.
fn calibration_error(bins: &[(u64, f64, u64)]) -> f64 {
    let mut all = 0;
    let mut off = 0.0;
    for &(forecasts, probabilities, came_true) in bins {
        all += forecasts;
        off += (probabilities - came_true as f64).abs();
    }
    if all == 0 { 0.0 } else { off / all as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_have_the_right_denominators() {
        let mut outcome = ForecastOutcome::default();
        // Experts 0 and 3 were used. The first two forecast contain one of them, the first three
        // both; 3 was a miss.
        outcome.add(&[0.9, 0.8, 0.1, 0.7], &[0, 3], &[3], true);
        let score = outcome.score();
        assert_eq!(score.recall, [0.5, 1.0, 1.0]);
        assert_eq!(score.precision, [0.5, 2.0 / 3.0, 0.5]);
        assert_eq!(score.recall_on_misses, [0.0, 1.0, 1.0]);
        // Off by 0.1, 0.8, 0.1 and 0.3.
        let [all, named] = score.calibration_error.unwrap();
        assert!((all - 1.3 / 4.0).abs() < 1e-6 && (named - all).abs() < 1e-6);
    }

    #[test]
    fn true_frequencies_are_calibrated() {
        let mut outcome = ForecastOutcome::default();
        for i in 0..100 {
            let used: &[u32] = if i < 25 { &[0] } else { &[1] };
            outcome.add(&[0.25, 0.75], used, &[], true);
        }
        let score = outcome.score();
        assert!(score.calibration_error.unwrap()[0] < 1e-6);
        assert_eq!(score.recall[0], 0.75);
        assert_eq!(ForecastOutcome::default().score().calibration_error, None);
    }
}
