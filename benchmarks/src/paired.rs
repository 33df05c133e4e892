//! Ratios of contenders that take turns, and their confidence intervals.

use serde::Serialize;

/// The median. For an even number of values, the mean of the middle two; NaN for none.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle =
        &values[values.len().saturating_sub(1) / 2..(values.len() / 2 + 1).min(values.len())];
    middle.iter().sum::<f64>() / middle.len() as f64
}

/// Ratios of one contender's values to another's, pair by pair: a temporary slowdown of the machine
/// affects both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ratios(Vec<f64>);

impl Ratios {
    /// Ratios of `above` to `below`, paired by index.
    pub fn new(above: &[f64], below: &[f64]) -> Ratios {
        debug_assert_eq!(above.len(), below.len());
        let mut ratios: Vec<f64> = above.iter().zip(below).map(|(a, b)| a / b).collect();
        ratios.sort_by(f64::total_cmp);
        Ratios(ratios)
    }

    /// Number of pairs.
    pub fn pairs(&self) -> usize {
        self.0.len()
    }

    /// The median ratio.
    pub fn median(&self) -> f64 {
        median(self.0.iter().copied())
    }

    /// Interval of the true median at a confidence of at least 95 %, for any distribution of the
    /// ratios. It lies between the `k`th smallest and the `k`th largest, with the largest `k` at
    /// this confidence (order statistics: each ratio is as likely above the true median as below
    /// it). `None` for fewer than six pairs.
    pub fn interval(&self) -> Option<(f64, f64)> {
        let n = self.0.len();
        // Probability that at most k of n fair coins show heads, k from 0 up.
        let mut term = 0.5f64.powi(n as i32);
        let mut below = term;
        let mut k = 0;
        while below <= 0.025 {
            k += 1;
            term *= (n + 1 - k) as f64 / k as f64;
            below += term;
        }
        (k > 0).then(|| (self.0[k - 1], self.0[n - k]))
    }

    /// True if the whole interval lies above `bar`, or if there is no interval.
    pub fn above(&self, bar: f64) -> bool {
        // NaN counts as above.
        self.interval()
            .is_none_or(|(low, _)| !matches!(low.partial_cmp(&bar), Some(order) if order.is_le()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratios(values: impl IntoIterator<Item = f64>) -> Ratios {
        let above: Vec<f64> = values.into_iter().collect();
        Ratios::new(&above, &vec![1.0; above.len()])
    }

    #[test]
    fn median_of_odd_even_and_no_values() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median([]).is_nan());
    }

    #[test]
    fn values_are_paired_by_index() {
        let pairs = Ratios::new(&[2.0, 9.0, 8.0], &[1.0, 3.0, 2.0]);
        assert_eq!((pairs.median(), pairs.pairs()), (3.0, 3));
    }

    /// The ranks of the limits match published tables of the binomial distribution.
    #[test]
    fn interval_ends_are_order_statistics() {
        let cases = [
            (5, None),
            (6, Some(1)),
            (8, Some(1)),
            (9, Some(2)),
            (12, Some(3)),
            (15, Some(4)),
            (25, Some(8)),
            (32, Some(10)),
        ];
        for (n, expected) in cases {
            let expected = expected.map(|k: usize| (k as f64, (n + 1 - k) as f64));
            assert_eq!(ratios((1..=n).rev().map(|i| i as f64)).interval(), expected, "{n} pairs");
        }
        assert_eq!(ratios([]).interval(), None);
    }

    #[test]
    fn only_an_interval_wholly_above_misses_the_bar() {
        let nine = ratios((1..=9).map(|i| 1.0 + f64::from(i) / 100.0));
        let cases = [(1.01, true), (1.02, false), (1.05, false), (1.2, false)];
        for (bar, expected) in cases {
            assert_eq!(nine.above(bar), expected, "{bar}");
        }
        assert!(ratios([1.0; 5]).above(2.0), "five pairs cannot tell");
        assert!(ratios([f64::NAN; 9]).above(2.0), "NaN meets no bar");
    }
}
