//! Speculative decoding: whatever drafts the tokens, one exact pass verifies them, and the text is the same.
//!
//! Tokens come from an earlier place of the text where the same ones occurred, or from the model itself
//! on stand-ins of its experts, with the noise that the sampler has at these positions. Both are used
//! only as long as they measurably save time.

mod lookup;
mod value;

use std::collections::VecDeque;
use std::time::Duration;

use lookup::{CLASSES, LookupMatch};
use value::{DraftOffer, DraftValue, MOST, Share};

/// Drafts tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DraftSource {
    /// An earlier occurrence of the end of the text, by its class.
    Lookup(usize),
    /// The model on stand-ins.
    StandIns,
}

/// Number of sources that are measured apart.
const SOURCES: usize = CLASSES + 1;

/// The next step of a text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DecodeStep {
    /// A pass over the last token.
    Plain,
    /// A pass over the last token and these.
    Verify(Vec<u32>),
    /// So many tokens on stand-ins, then a pass over all of them if they are to be verified.
    Draft { tokens: usize, verify: bool },
}

/// Draft tokens for the texts of a model, and what they have been worth.
#[derive(Debug, Default)]
pub(crate) struct SpeculativeDecoder {
    value: DraftValue,
    shares: [Share; SOURCES],
    /// Tokens that a source expects next. Those of a round are verified.
    expected: Vec<(DraftSource, VecDeque<u32>)>,
    round: Option<VerifyRound>,
}

/// Tokens that are being verified.
#[derive(Clone, Copy, Debug)]
struct VerifyRound {
    proposed: usize,
    /// Tokens chosen so far.
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

    /// Decides on the next step behind a text, of which `most` tokens more may be drafted.
    pub(crate) fn next(&mut self, text: &[u32], most: usize, drafts: bool) -> DecodeStep {
        self.end_round();
        let most = most.min(MOST);
        let found = LookupMatch::of(text);
        // While earlier expectations are open, they are measured; each source has one at a time.
        let mut sources = Vec::with_capacity(2);
        sources.extend(found.map(|found| DraftSource::Lookup(found.class())));
        sources.extend(drafts.then_some(DraftSource::StandIns));
        let offer = |source: &DraftSource| DraftOffer {
            share: self.shares[source.index()],
            most,
            drafts: *source == DraftSource::StandIns,
        };
        let offers: Vec<DraftOffer> = sources.iter().map(offer).collect();
        let chosen = self.value.choose(&offers).map(|(index, size)| (sources[index], size));
        match (chosen, found) {
            (Some((source @ DraftSource::Lookup(_), size)), Some(found)) => {
                let tokens = found.draft_tokens(text, size);
                self.expect(source, tokens.clone());
                return DecodeStep::Verify(tokens);
            }
            (Some((_, tokens)), _) => return DecodeStep::Draft { tokens, verify: true },
            (None, _) => {}
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

    /// Takes the tokens that were drafted, and the time of that.
    pub(crate) fn drafted(&mut self, tokens: &[u32], took: Duration, verify: bool) {
        self.expected.retain(|(source, _)| *source != DraftSource::StandIns);
        self.expect(DraftSource::StandIns, tokens.to_vec());
        if !verify {
            self.value.drafted(tokens.len(), took.as_secs_f64());
        }
    }

    /// Begins a round, whose tokens were verified.
    pub(crate) fn verified(&mut self, proposed: usize, drafting: Duration, verifying: Duration) {
        self.round = Some(VerifyRound { proposed, yielded: 0, drafting, verifying });
    }

    /// Takes the time of a plain pass.
    pub(crate) fn passed(&mut self, took: Duration) {
        self.value.plain(took.as_secs_f64());
    }

    /// Takes the token that was chosen.
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

    /// Drops what is expected, as the text ends.
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
        // A text that ended before anything was chosen says nothing.
        if yielded > 0 {
            let times = [drafting, verifying].map(|time| time.as_secs_f64());
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
