//! An upper bound on the number of places in a text where added tokens begin.

use std::fmt;

use tokenizers::{AddedToken, NormalizedString, NormalizerWrapper};

use super::TokenizerError;
use super::room::{self, EncodingRoom};
use super::steps::Steps;

/// The possible first two bytes of a set of tokens, as a bit set.
pub(super) struct Starts(Vec<u64>);

impl Starts {
    fn new() -> Starts {
        Starts(vec![0; (1 << 16) / 64])
    }

    fn add(&mut self, token: &[u8]) {
        match token {
            [] => {}
            &[first] => {
                for second in 0..=u8::MAX {
                    self.set(first, second);
                }
            }
            &[first, second, ..] => self.set(first, second),
        }
    }

    fn set(&mut self, first: u8, second: u8) {
        let at = pair(first, second);
        self.0[at / 64] |= 1 << (at % 64);
    }

    fn has(&self, first: u8, second: u8) -> bool {
        let at = pair(first, second);
        self.0[at / 64] >> (at % 64) & 1 == 1
    }

    /// Upper bound on the number of places in `text` where one of the tokens begins.
    pub(super) fn count(&self, text: &str) -> usize {
        let pairs = text.as_bytes().windows(2);
        pairs.filter(|two| self.has(two[0], two[1])).count() + usize::from(!text.is_empty())
    }
}

impl fmt::Debug for Starts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} starts", self.0.iter().map(|bits| bits.count_ones()).sum::<u32>())
    }
}

fn pair(first: u8, second: u8) -> usize {
    usize::from(first) << 8 | usize::from(second)
}

/// The starts of added tokens: for tokens searched for in the original text, and in the normalized
/// text.
pub(super) fn of(
    normalizer: Option<&NormalizerWrapper>,
    added: &[AddedToken],
) -> Result<[Starts; 2], TokenizerError> {
    let steps = Steps::new(normalizer, None).map_err(TokenizerError::Unsupported)?;
    // A single buffer for all tokens, as a file may have very many.
    let bytes = added.iter().map(|token| token.content.len()).sum();
    let room = EncodingRoom::new(bytes, usize::MAX);
    let mut plain = Starts::new();
    let mut normalized = Starts::new();
    for token in added {
        if !token.normalized {
            plain.add(token.content.as_bytes());
            continue;
        }
        let mut text = NormalizedString::from(token.content.as_str());
        room.restart(text.len(), room::ADDED);
        match steps.normalize(&mut text, &room) {
            Ok(()) => {}
            Err(TokenizerError::Room { .. }) => {
                let grown = "an added token that its normalizer makes too long";
                return Err(TokenizerError::Unsupported(grown.to_owned()));
            }
            Err(other) => return Err(other),
        }
        normalized.add(text.get().as_bytes());
    }
    Ok([plain, normalized])
}
