//! Proposed tokens: whoever proposes them, one exact pass verifies them, and the text is the same.
//!
//! Tokens come from an earlier place of the text where the same ones occurred, or from the model itself
//! on stand-ins of its experts, with the noise that the sampler has at these positions. Both are used
//! only as long as they measurably save time.

mod lookup;
mod value;

use std::collections::VecDeque;
use std::time::Duration;

use lookup::{CLASSES, Found};
use value::{MOST, Offer, Share, Value};

/// Proposes tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// An earlier occurrence of the end of the text, by its class.
    Lookup(usize),
    /// The model on stand-ins.
    Imitation,
}

/// Number of sources that are measured apart.
const SOURCES: usize = CLASSES + 1;

/// The next step of a text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// A pass over the last token.
    Plain,
    /// A pass over the last token and these.
    Verify(Vec<u32>),
    /// So many tokens on stand-ins, then a pass over all of them if they are to be verified.
    Imitate { tokens: usize, verify: bool },
}

/// Proposals for the texts of a model, and what they have been worth.
#[derive(Debug, Default)]
pub(crate) struct Proposals {
    value: Value,
    shares: [Share; SOURCES],
    /// Tokens that a source expects next. Those of a round are verified.
    expected: Vec<(Source, VecDeque<u32>)>,
    round: Option<Round>,
}

/// Tokens that are being verified.
#[derive(Clone, Copy, Debug)]
struct Round {
    proposed: usize,
    /// Tokens chosen so far.
    yielded: usize,
    imitating: Duration,
    verifying: Duration,
}

impl Source {
    fn index(self) -> usize {
        match self {
            Source::Lookup(class) => class,
            Source::Imitation => CLASSES,
        }
    }
}

impl Proposals {
    /// Begins a text.
    pub(crate) fn begins(&mut self) {
        self.shares.iter_mut().for_each(Share::begins);
        self.value.begins();
        self.forget();
    }

    /// Decides on the next step behind a text, of which `most` tokens more may be proposed.
    pub(crate) fn next(&mut self, text: &[u32], most: usize, imitates: bool) -> Next {
        self.end_round();
        let most = most.min(MOST);
        let found = Found::of(text);
        // While earlier expectations are open, they are measured; each source has one at a time.
        let mut sources = Vec::with_capacity(2);
        sources.extend(found.map(|found| Source::Lookup(found.class())));
        sources.extend(imitates.then_some(Source::Imitation));
        let offer = |source: &Source| Offer {
            share: self.shares[source.index()],
            most,
            imitates: *source == Source::Imitation,
        };
        let offers: Vec<Offer> = sources.iter().map(offer).collect();
        let chosen = self.value.choose(&offers).map(|(index, size)| (sources[index], size));
        match (chosen, found) {
            (Some((source @ Source::Lookup(_), size)), Some(found)) => {
                let tokens = found.proposal(text, size);
                self.expect(source, tokens.clone());
                return Next::Verify(tokens);
            }
            (Some((_, tokens)), _) => return Next::Imitate { tokens, verify: true },
            (None, _) => {}
        }
        if let Some(found) = found {
            self.expect(Source::Lookup(found.class()), found.proposal(text, 1));
        }
        let is_open = self.expected.iter().any(|(source, _)| *source == Source::Imitation);
        if !imitates || is_open {
            return Next::Plain;
        }
        match self.value.tries(self.shares[Source::Imitation.index()]).min(most) {
            0 => Next::Plain,
            tokens => Next::Imitate { tokens, verify: false },
        }
    }

    /// Takes the tokens that were imitated, and the time of that.
    pub(crate) fn imitated(&mut self, tokens: &[u32], took: Duration, verify: bool) {
        self.expected.retain(|(source, _)| *source != Source::Imitation);
        self.expect(Source::Imitation, tokens.to_vec());
        if !verify {
            self.value.imitated(tokens.len(), took.as_secs_f64());
        }
    }

    /// Begins a round, whose tokens were verified.
    pub(crate) fn verified(&mut self, proposed: usize, imitating: Duration, verifying: Duration) {
        self.round = Some(Round { proposed, yielded: 0, imitating, verifying });
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

    fn expect(&mut self, source: Source, tokens: Vec<u32>) {
        if !tokens.is_empty() {
            self.expected.push((source, tokens.into()));
        }
    }

    fn end_round(&mut self) {
        let Some(Round { proposed, yielded, imitating, verifying }) = self.round.take() else {
            return;
        };
        // A text that ended before anything was chosen says nothing.
        if yielded > 0 {
            let times = [imitating, verifying].map(|time| time.as_secs_f64());
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
            let mut proposals = Proposals::default();
            proposals.begins();
            let random = |n: u32| n.wrapping_mul(0x9e37_79b9) >> 16;
            let token = |n: u32| if repeats { n % 10 } else { random(n ^ random(n)) % 40 };
            let mut text: Vec<u32> = (0..30).map(token).collect();
            let (mut passes, mut largest) = (0, 0);
            while text.len() < 400 {
                let next = proposals.next(&text, 100, false);
                let right = |n: usize| token(n as u32);
                let tokens = match next {
                    Next::Verify(tokens) => {
                        proposals.verified(tokens.len(), Duration::ZERO, 2 * MS);
                        tokens
                    }
                    _ => {
                        proposals.passed(MS);
                        Vec::new()
                    }
                };
                passes += 1;
                largest = largest.max(tokens.len());
                for row in 0..=tokens.len() {
                    let chosen = right(text.len());
                    text.push(chosen);
                    proposals.chose(chosen);
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
