//! Contenders that take turns, and how sure one may be of what their ratio says.

use serde::Serialize;

/// The middle one, of an even number the mean of the two in the middle; NaN of none.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle =
        &values[values.len().saturating_sub(1) / 2..(values.len() / 2 + 1).min(values.len())];
    middle.iter().sum::<f64>() / middle.len() as f64
}

/// What one contender took over what another took, in each pair of turns: what slows the machine for a
/// while slows both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ratios(Vec<f64>);

impl Ratios {
    /// Of values that belong together by their place.
    pub fn new(above: &[f64], below: &[f64]) -> Ratios {
        debug_assert_eq!(above.len(), below.len());
        let mut ratios: Vec<f64> = above.iter().zip(below).map(|(a, b)| a / b).collect();
        ratios.sort_by(f64::total_cmp);
        Ratios(ratios)
    }

    /// How many.
    pub fn pairs(&self) -> usize {
        self.0.len()
    }

    /// The middle one.
    pub fn median(&self) -> f64 {
        median(self.0.iter().copied())
    }

    /// Where the true median lies with a probability of at least 95 %, however ratios are distributed:
    /// between the `k`th smallest and the `k`th largest, with the largest `k` that such a probability
    /// allows (order statistics: each ratio is as likely above the true median as below it). Fewer than six
    /// pairs cannot tell.
    pub fn interval(&self) -> Option<(f64, f64)> {
        let n = self.0.len();
        // The probability that at most k of n fair coins show heads, k from 0 up.
        let mut term = 0.5f64.powi(n as i32);
        let (mut below, mut k) = (term, 0);
        while below <= 0.025 {
            k += 1;
            term *= (n + 1 - k) as f64 / k as f64;
            below += term;
        }
        (k > 0).then(|| (self.0[k - 1], self.0[n - k]))
    }

    /// Whether the whole interval lies above `bar`, or nothing can be told.
    pub fn above(&self, bar: f64) -> bool {
        // NaN is above anything.
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
    fn the_middle_one() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median([]).is_nan());
    }

    #[test]
    fn pairs_belong_together_by_their_place() {
        let pairs = Ratios::new(&[2.0, 9.0, 8.0], &[1.0, 3.0, 2.0]);
        assert_eq!((pairs.median(), pairs.pairs()), (3.0, 3));
    }

    /// The places of the limits are those of published tables of the binomial distribution.
    #[test]
    fn the_interval_is_between_two_of_the_ratios() {
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
    fn a_bar_is_missed_only_where_the_whole_interval_is_above_it() {
        let nine = ratios((1..=9).map(|i| 1.0 + f64::from(i) / 100.0));
        let cases = [(1.01, true), (1.02, false), (1.05, false), (1.2, false)];
        for (bar, expected) in cases {
            assert_eq!(nine.above(bar), expected, "{bar}");
        }
        assert!(ratios([1.0; 5]).above(2.0), "five pairs cannot tell");
        assert!(ratios([f64::NAN; 9]).above(2.0), "what is no number has not met a bar");
    }
}
