//! How many tokens of prompts go through a step.

use std::time::Duration;

/// Tokens of prompts in a step, for all texts that begin, while others have begun: at least.
pub(super) const LEAST: usize = 256;

/// Chooses the tokens of prompts in a step.
///
/// A step with a part of a prompt reads nearly all experts, however short the part is. Texts that have
/// begun get a token each beside the prompts, and wait for it, and so do texts that come meanwhile:
/// computing the prompts takes no longer than reading, or than [`LEAST`] tokens take.
#[derive(Debug)]
pub(super) struct Portion {
    /// Tokens of a step beside which others wait.
    tokens: usize,
    /// Tokens that go through the layers together.
    longest: usize,
    /// Seconds that a token of a prompt takes, as measured so far.
    token: Option<f64>,
}

impl Portion {
    pub(super) fn new(longest: usize) -> Portion {
        Portion { tokens: LEAST, longest, token: None }
    }

    /// Seconds that a token of a prompt has taken of late.
    pub(super) fn token(&self) -> Option<f64> {
        self.token
    }

    /// Tokens of prompts in the next step, beside so many texts that have begun.
    pub(super) fn tokens(&self, begun: usize) -> usize {
        self.tokens.min(self.longest.saturating_sub(begun).max(LEAST))
    }

    /// Counts a step with `prompts` tokens of prompts, among `tokens` in all.
    pub(super) fn passed(
        &mut self,
        prompts: usize,
        tokens: usize,
        time: Duration,
        waited: Duration,
    ) {
        // Of shorter ones most of the time is that of the step itself.
        if prompts < LEAST {
            return;
        }
        let token = time.as_secs_f64() / prompts as f64;
        self.token = Some(self.token.map_or(token, |before| before.midpoint(token)));
        let computing = time.saturating_sub(waited).as_secs_f64() / tokens as f64;
        let while_reading = (waited.as_secs_f64() / computing.max(f64::MIN_POSITIVE)) as usize;
        // Reads that computing hides are no longer waited for: the mean does not swing.
        let mean = self.tokens.midpoint(while_reading.min(self.longest));
        self.tokens = mean.max(LEAST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of a device that takes 10 s for a sweep, which computing hides or not, and a computer that
    /// takes a hundredth of a second for a token, three of texts that have begun included.
    #[test]
    fn a_gap_is_hardly_longer_than_reading() {
        for (overlap, expected, longest_gap) in [(true, 500, 10.0), (false, 1000, 20.1)] {
            let mut portion = Portion::new(4096);
            assert_eq!(portion.tokens(3), LEAST);
            let mut gap = 0.0_f64;
            for _ in 0..20 {
                let tokens = portion.tokens(3);
                let computing = (tokens + 3) as f64 * 0.01;
                let waited = if overlap { (10.0 - computing).max(0.0) } else { 10.0 };
                gap = gap.max(computing + waited);
                let [time, waited] = [computing + waited, waited].map(Duration::from_secs_f64);
                portion.passed(tokens, tokens + 3, time, waited);
            }
            assert!(portion.tokens(3).abs_diff(expected) <= 5, "{portion:?}");
            assert!(gap <= longest_gap, "{gap}");
            // Everything is in memory now.
            for _ in 0..5 {
                let tokens = portion.tokens(3);
                portion.passed(tokens, tokens, Duration::from_secs(1), Duration::ZERO);
            }
            assert_eq!(portion.tokens(3), LEAST);
        }
    }

    #[test]
    fn a_step_fits_into_a_pass_or_has_as_many_tokens_as_ever() {
        let cases = [
            (4096, 0, LEAST),
            (4096, 10, LEAST),
            (300, 0, LEAST),
            (300, 100, LEAST),
            (8, 0, LEAST),
            (8, 7, LEAST),
        ];
        for (longest, begun, tokens) in cases {
            assert_eq!(Portion::new(longest).tokens(begun), tokens, "{longest}, {begun}");
        }
        let portion = Portion { tokens: 4000, ..Portion::new(4096) };
        assert_eq!([0, 96, 200].map(|begun| portion.tokens(begun)), [4000, 4000, 3896]);
    }
}
