//! Speculative decoding: an exact pass verifies draft tokens, so the text is the same whatever
//! their source.
//!
//! Draft tokens come from an earlier occurrence of the same tokens in the text, or from the model
//! itself on stand-ins of its experts, with the sampler's random numbers for these positions.
//! Either source is used only as long as it measurably saves time.

mod lookup;
mod value;

use std::collections::VecDeque;
use std::time::Duration;

use lookup::{CLASSES, LookupMatch};
use value::{DraftOffer, DraftValue, MOST, Share};

/// A source of draft tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DraftSource {
    /// An earlier occurrence of the end of the text, by the class of its length.
    Lookup(usize),
    /// The model itself on stand-ins.
    StandIns,
}

/// Number of sources that are measured separately.
const SOURCES: usize = CLASSES + 1;

/// The next step of a text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DecodeStep {
    /// A pass over the last token.
    Plain,
    /// A pass over the last token and these draft tokens.
    Verify(Vec<u32>),
    /// Drafts so many tokens on stand-ins. With `verify`, a pass over all of them follows.
    Draft { tokens: usize, verify: bool },
}

/// Decides on draft tokens for the texts of a model, and measures their value.
#[derive(Debug, Default)]
pub(crate) struct SpeculativeDecoder {
    value: DraftValue,
    shares: [Share; SOURCES],
    /// Tokens predicted by each source, to be compared with those that are chosen.
    expected: Vec<(DraftSource, VecDeque<u32>)>,
    round: Option<VerifyRound>,
}

/// A pass that verifies draft tokens, until the first of them is wrong.
#[derive(Clone, Copy, Debug)]
struct VerifyRound {
    proposed: usize,
    /// Tokens chosen from this round so far.
    yielded: usize,
    drafting: Duration,
    verifying: Duration,
}

impl DraftSource {
    fn index(self) -> usize {
        match self {
            DraftSource::Lookup(class) => class,
            DraftSource::StandIns => CLASSES,
        }
    }
}

impl SpeculativeDecoder {
    /// Begins a text.
    pub(crate) fn begins(&mut self) {
        self.shares.iter_mut().for_each(Share::begins);
        self.value.begins();
        self.forget();
    }

    /// Decides on the next step of a text, of which up to `most` further tokens may be drafted.
    pub(crate) fn next(&mut self, text: &[u32], most: usize, drafts: bool) -> DecodeStep {
        self.end_round();
        let most = most.min(MOST);
        let found = LookupMatch::of(text);
        // Each source has at most one open prediction, which also measures it.
        let mut sources = Vec::with_capacity(2);
        if let Some(found) = found {
            sources.push(DraftSource::Lookup(found.class()));
        }
        if drafts {
            sources.push(DraftSource::StandIns);
        }
        let mut offers = Vec::with_capacity(2);
        for source in &sources {
            let share = self.shares[source.index()];
            offers.push(DraftOffer { share, most, drafts: *source == DraftSource::StandIns });
        }
        if let Some((index, size)) = self.value.choose(&offers) {
            return match (sources[index], found) {
                (source @ DraftSource::Lookup(_), Some(found)) => {
                    let tokens = found.draft_tokens(text, size);
                    self.expect(source, tokens.clone());
                    DecodeStep::Verify(tokens)
                }
                _ => DecodeStep::Draft { tokens: size, verify: true },
            };
        }
        if let Some(found) = found {
            self.expect(DraftSource::Lookup(found.class()), found.draft_tokens(text, 1));
        }
        let is_open = self.expected.iter().any(|(source, _)| *source == DraftSource::StandIns);
        if !drafts || is_open {
            return DecodeStep::Plain;
        }
        match self.value.tries(self.shares[DraftSource::StandIns.index()]).min(most) {
            0 => DecodeStep::Plain,
            tokens => DecodeStep::Draft { tokens, verify: false },
        }
    }

    /// Records the drafted tokens, and the time taken.
    pub(crate) fn drafted(&mut self, tokens: &[u32], took: Duration, verify: bool) {
        self.expected.retain(|(source, _)| *source != DraftSource::StandIns);
        self.expect(DraftSource::StandIns, tokens.to_vec());
        if !verify {
            self.value.drafted(tokens.len(), took.as_secs_f64());
        }
    }

    /// Begins a round with verified tokens.
    pub(crate) fn verified(&mut self, proposed: usize, drafting: Duration, verifying: Duration) {
        self.round = Some(VerifyRound { proposed, yielded: 0, drafting, verifying });
    }

    /// Records the time of a plain pass.
    pub(crate) fn passed(&mut self, took: Duration) {
        self.value.plain(took.as_secs_f64());
    }

    /// Records a chosen token, and compares it with the predictions.
    pub(crate) fn chose(&mut self, token: u32) {
        if let Some(round) = &mut self.round {
            round.yielded += 1;
        }
        let shares = &mut self.shares;
        self.expected.retain_mut(|(source, tokens)| {
            let Some(expected) = tokens.pop_front() else { return false };
            shares[source.index()].came(expected == token);
            expected == token && !tokens.is_empty()
        });
    }

    /// Drops all predictions, as the text ends.
    pub(crate) fn forget(&mut self) {
        self.end_round();
        self.expected.clear();
    }

    fn expect(&mut self, source: DraftSource, tokens: Vec<u32>) {
        if !tokens.is_empty() {
            self.expected.push((source, tokens.into()));
        }
    }

    fn end_round(&mut self) {
        let Some(VerifyRound { proposed, yielded, drafting, verifying }) = self.round.take() else {
            return;
        };
        // A text that ended before any token was chosen is no measurement.
        if yielded > 0 {
            let times = [drafting.as_secs_f64(), verifying.as_secs_f64()];
            self.value.round((proposed, yielded), times);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A text that repeats itself is verified in ever larger rounds, and one that does not never is.
    #[test]
    fn repetition_is_found_out_before_anything_is_verified() {
        for repeats in [true, false] {
            let mut decoder = SpeculativeDecoder::default();
            decoder.begins();
            let random = |n: u32| n.wrapping_mul(0x9e37_79b9) >> 16;
            let token = |n: u32| if repeats { n % 10 } else { random(n ^ random(n)) % 40 };
            let mut text: Vec<u32> = (0..30).map(token).collect();
            let mut passes = 0;
            let mut largest = 0;
            while text.len() < 400 {
                let next = decoder.next(&text, 100, false);
                let right = |n: usize| token(n as u32);
                let tokens = match next {
                    DecodeStep::Verify(tokens) => {
                        decoder.verified(tokens.len(), Duration::ZERO, 2 * MS);
                        tokens
                    }
                    _ => {
                        decoder.passed(MS);
                        Vec::new()
                    }
                };
                passes += 1;
                largest = largest.max(tokens.len());
                for row in 0..=tokens.len() {
                    let chosen = right(text.len());
                    text.push(chosen);
                    decoder.chose(chosen);
                    if tokens.get(row) != Some(&chosen) {
                        break;
                    }
                }
            }
            match repeats {
                true => assert!(passes < 100 && largest == MOST, "{passes} passes, {largest}"),
                false => assert_eq!((passes, largest), (370, 0)),
            }
        }
    }
}
