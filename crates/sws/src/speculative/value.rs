//! The value of draft tokens: measured time per token with and without them.
//!
//! A round drafts tokens and verifies them in one pass. It costs the time of both, and yields the
//! right tokens and one more. Plain decoding costs one pass per token. The share of right tokens is
//! measured beforehand, at little cost or none: draft tokens that are not verified are compared
//! with the tokens that are chosen. The time of a pass over several tokens is unknown before the
//! first such pass. It is tried with few tokens, and only while the possible loss is a small share
//! of the time so far.

/// Possible numbers of draft tokens in a round.
const SIZES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Maximum number of draft tokens in a round.
pub(super) const MOST: usize = SIZES[SIZES.len() - 1];
/// Share of the total time that rounds may lose, and their initial credit in plain tokens. One bad
/// round at the beginning costs two of them, and the rest has to suffice for another.
const LOSS: f64 = 1.0 / 200.0;
const CREDIT: f64 = 3.0;
/// Maximum of the gains in this text that rounds may lose again, in plain tokens. A long round that
/// pays on average can have few right tokens.
const RESERVE: f64 = 48.0;
/// Share of a plain token's time that a round has to save to be worth it.
const WORTH: f64 = 1.0 / 32.0;
/// Exponent that limits the time of a pass over n tokens, relative to a pass over one: measured
/// with Mixtral 8x7B from a disk, which shares the most experts of all measured models.
const GROWTH: f64 = 0.6;
/// Weight of a new plain token, and of a new round, in the moving average.
const PLAIN: f64 = 1.0 / 16.0;
const ROUND: f64 = 1.0 / 6.0;
/// Minimum number of plain tokens before anything is compared with them.
const LEARNING: u32 = 4;
/// Time after which a measured round size counts as unmeasured again, and time in which two plain
/// tokens are computed in any case, both in plain tokens. Both costs change with the resident
/// experts.
const OLD: f64 = 1000.0;
const REFRESH: f64 = 200.0;
/// Decay of earlier outcomes with each new one.
const FADING: f64 = 0.99;
/// Number of tokens drafted to measure how many are right, once the time of one is known.
const TRIED: usize = 8;
/// Number of first measurements of a token on stand-ins. The fastest of them counts.
const FIRST: u32 = 2;
/// Minimum outcomes of a known source. An unknown source is tried without verifying as often as the
/// time allows.
const KNOWN: f64 = 16.0;

/// Share of a source's tokens that are right.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Share {
    right: f64,
    all: f64,
}

/// Draft tokens that a source offers.
#[derive(Clone, Copy, Debug)]
pub(super) struct DraftOffer {
    pub(super) share: Share,
    /// Maximum number of tokens offered.
    pub(super) most: usize,
    /// True if each token takes the time of one on stand-ins.
    pub(super) drafts: bool,
}

/// Measured costs of tokens, in seconds.
#[derive(Debug, Default)]
pub(super) struct DraftValue {
    plain: Mean,
    drafted: Mean,
    /// Times of passes with each of [`SIZES`] draft tokens, plus the last token.
    verified: [Mean; SIZES.len()],
    /// Total time so far.
    spent: f64,
    /// Time gained by rounds, less the time lost, up to a maximum.
    balance: f64,
    /// Number of plain tokens to compute in any case, and the time of the last one.
    refresh: u32,
    refreshed: f64,
}

/// A moving average with a weight for new values.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    value: f64,
    count: u32,
    /// Time of the last measurement.
    at: f64,
}

impl Share {
    /// Records an outcome.
    pub(super) fn came(&mut self, right: bool) {
        self.right = self.right * FADING + f64::from(u8::from(right));
        self.all = self.all * FADING + 1.0;
    }

    /// Reduces the weight of earlier outcomes, as another text begins.
    pub(super) fn begins(&mut self) {
        let kept = (KNOWN / 4.0 / self.all.max(1.0)).min(1.0);
        (self.right, self.all) = (self.right * kept, self.all * kept);
    }

    /// The probability that the next token is right, if those before it were.
    fn probability(self) -> f64 {
        (self.right + 0.5) / (self.all + 1.0)
    }

    /// The expected number of tokens that a round yields.
    fn tokens(self, proposed: usize) -> f64 {
        let p = self.probability();
        (1.0 - p.powi(proposed as i32 + 1)) / (1.0 - p)
    }
}

impl Mean {
    fn add(&mut self, value: f64, weight: f64, at: f64) {
        self.count = self.count.saturating_add(1);
        let weight = weight.max(1.0 / f64::from(self.count));
        self.value += weight * (value - self.value);
        self.at = at;
    }

    fn get(&self) -> Option<f64> {
        (self.count > 0).then_some(self.value)
    }
}

impl DraftValue {
    /// Begins a text. Gains of earlier texts do not count.
    pub(super) fn begins(&mut self) {
        self.balance = self.balance.min(0.0);
    }

    /// Records a plain token.
    pub(super) fn plain(&mut self, seconds: f64) {
        self.spent += seconds;
        self.plain.add(seconds, PLAIN, self.spent);
        self.refresh = self.refresh.saturating_sub(1);
        self.refreshed = self.spent;
    }

    /// Records tokens drafted on stand-ins that are not verified.
    pub(super) fn drafted(&mut self, tokens: usize, seconds: f64) {
        self.spent += seconds;
        self.balance -= seconds;
        self.add_drafted(tokens, seconds);
    }

    /// Counts a round: the tokens drafted and how many it has yielded, the seconds of drafting them, if
    /// they were drafted on stand-ins, and of verifying them.
    pub(super) fn round(
        &mut self,
        (proposed, yielded): (usize, usize),
        [drafting, verifying]: [f64; 2],
    ) {
        let seconds = drafting + verifying;
        self.spent += seconds;
        if drafting > 0.0 {
            self.add_drafted(proposed, drafting);
        }
        // A pass with a number of tokens between two sizes counts as the larger size, which takes
        // longer.
        let size = SIZES.iter().position(|&size| size >= proposed).unwrap_or(SIZES.len() - 1);
        let scale = ((SIZES[size] + 1) as f64 / (proposed + 1) as f64).powf(GROWTH);
        self.verified[size].add(verifying * scale, ROUND, self.spent);
        let gained = yielded as f64 * self.plain.value - seconds;
        self.balance = (self.balance + gained).min(RESERVE * self.plain.value);
    }

    fn add_drafted(&mut self, tokens: usize, seconds: f64) {
        let each = seconds / tokens.max(1) as f64;
        match self.drafted.count {
            1..FIRST => self.drafted.add(each.min(self.drafted.value), 1.0, self.spent),
            _ => self.drafted.add(each, ROUND, self.spent),
        }
    }

    /// Chooses an offer by its index, and the number of tokens to draft. `None` to compute a plain
    /// token.
    pub(super) fn choose(&mut self, offers: &[DraftOffer]) -> Option<(usize, usize)> {
        let plain = self.known_plain()?;
        if self.spent - self.refreshed > REFRESH * plain {
            self.refresh = 2;
        }
        let credit = self.credit(plain);
        if self.refresh > 0 || credit < 0.0 {
            return None;
        }
        let mut best = (plain * (1.0 - WORTH), None);
        for (index, offer) in offers.iter().enumerate() {
            let each = match offer.drafts {
                true => self.drafted.value,
                false => 0.0,
            };
            for size in SIZES.into_iter().filter(|&size| size <= offer.most) {
                let tokens = offer.share.tokens(size);
                let (expected, most) = self.verifying(size, plain);
                let cost = (size as f64 * each + expected) / tokens;
                let lost = size as f64 * each + most - tokens * plain;
                if cost < best.0 && lost <= credit {
                    best = (cost, Some((index, size)));
                }
            }
        }
        best.1
    }

    /// Number of tokens to draft only to measure how many are right; 0 if it is not time for that.
    pub(super) fn tries(&self, share: Share) -> usize {
        let Some(plain) = self.known_plain() else { return 0 };
        let Some(each) = self.drafted.get() else { return 1 };
        let passed = self.spent - self.drafted.at;
        // Drafting is not worth it if a token on stand-ins takes nearly as long as a plain one. The
        // first measurement alone is not reliable.
        if each >= plain / 2.0 {
            let is_due = self.drafted.count < FIRST || passed >= OLD * plain;
            return usize::from(is_due && each <= self.credit(plain));
        }
        let pause = if share.all < KNOWN { 0.0 } else { OLD / 16.0 };
        let affordable = each * TRIED as f64 <= self.credit(plain) / 2.0;
        if passed >= pause * plain && affordable { TRIED } else { 0 }
    }

    /// Seconds of a plain token, once enough of them are measured.
    fn known_plain(&self) -> Option<f64> {
        if self.plain.count >= LEARNING { self.plain.get() } else { None }
    }

    /// Seconds that may be lost now.
    fn credit(&self, plain: f64) -> f64 {
        self.spent * LOSS + CREDIT * plain + self.balance
    }

    /// Expected and maximum seconds of verifying so many tokens and one more. The expectation
    /// extrapolates from the next smaller measured size, with the growth seen up to there. Growth
    /// slows down once a pass reads nearly all experts.
    fn verifying(&self, proposed: usize, plain: f64) -> (f64, f64) {
        let tokens = proposed + 1;
        let mut before = None;
        let mut below = (1, plain);
        let mut above = f64::INFINITY;
        for (size, mean) in SIZES.iter().zip(&self.verified) {
            let is_fresh = mean.count > 0 && self.spent - mean.at < OLD * plain;
            if !is_fresh {
                continue;
            }
            let n = size + 1;
            if n <= tokens {
                (before, below) = (Some(below), (n, mean.value));
            } else {
                above = above.min(mean.value);
            }
        }
        if below.0 == tokens {
            return (below.1, below.1);
        }
        let growth = match before {
            Some((n, time)) => {
                let times = below.0 as f64 / n as f64;
                ((below.1 / time).ln() / times.ln()).clamp(0.0, GROWTH)
            }
            None => GROWTH,
        };
        let times = tokens as f64 / below.0 as f64;
        ((below.1 * times.powf(growth)).min(above), (below.1 * times).min(above))
    }
}

#[cfg(test)]
mod tests;
