//! Number of prompt tokens in a step.

use std::time::Duration;

/// Minimum number of prompt tokens in a step while other texts are generating, for all prompts
/// together.
pub(super) const LEAST: usize = 256;

/// Chooses the tokens of prompts in a step.
///
/// A step with a part of a prompt reads nearly all experts, however short the part is. Generating
/// texts get one token in the same step, and have to wait for its prompts. The number of prompt
/// tokens is therefore limited: computing them takes no longer than reading does, or than computing
/// [`LEAST`] tokens.
#[derive(Debug)]
pub(super) struct Portion {
    /// Prompt tokens in a step while other texts are generating.
    tokens: usize,
    /// Maximum number of tokens that go through the layers together.
    longest: usize,
    /// Average seconds per prompt token, as measured so far.
    token: Option<f64>,
}

impl Portion {
    pub(super) fn new(longest: usize) -> Portion {
        Portion { tokens: LEAST, longest, token: None }
    }

    /// Recent seconds per prompt token.
    pub(super) fn token(&self) -> Option<f64> {
        self.token
    }

    /// Prompt tokens in the next step, beside `begun` generating texts.
    pub(super) fn tokens(&self, begun: usize) -> usize {
        self.tokens.min(self.longest.saturating_sub(begun).max(LEAST))
    }

    /// Counts a step with `prompts` prompt tokens, among `tokens` in all.
    pub(super) fn passed(
        &mut self,
        prompts: usize,
        tokens: usize,
        time: Duration,
        waited: Duration,
    ) {
        // With fewer prompt tokens, most of the time is that of the step itself.
        if prompts < LEAST {
            return;
        }
        let token = time.as_secs_f64() / prompts as f64;
        self.token = Some(self.token.map_or(token, |before| before.midpoint(token)));
        let computing = time.saturating_sub(waited).as_secs_f64() / tokens as f64;
        let while_reading = (waited.as_secs_f64() / computing.max(f64::MIN_POSITIVE)) as usize;
        // Reads hidden behind computing are no longer waited for. The mean keeps the number from
        // swinging.
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
