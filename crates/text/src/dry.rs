//! DRY: a penalty for tokens that would continue a repetition, as llama.cpp defines it.
//!
//! If the last tokens of a text have come before, the token that followed them then loses
//! `multiplier * base^(length - allowed_length)`, where `length` is the number of repeated tokens. A
//! repetition does not reach back over a sequence breaker.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Tokenizer;
use crate::refusal::GenerationError;

/// Settings of DRY; None where an option is absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DryOptions {
    /// Factor of the penalty; 0 has no effect.
    pub multiplier: Option<f32>,
    /// Base of the penalty's power.
    pub base: Option<f32>,
    /// Length of the longest repetition without a penalty of more than the factor.
    pub allowed_length: Option<usize>,
    /// Number of last tokens to search for repetitions.
    pub last_tokens: Option<usize>,
    /// Texts over which no repetition reaches.
    pub breakers: Option<Vec<String>>,
}

/// Settings of DRY, resolved and checked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrySettings {
    multiplier: f32,
    base: f32,
    allowed_length: usize,
    last_tokens: usize,
    breakers: Vec<String>,
}

/// Defaults, as in llama.cpp.
const BASE: f32 = 1.75;
const ALLOWED: usize = 2;
const BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// Maximum number of tokens that are searched.
const LAST: usize = 1 << 16;
/// Maximum number of sequence breakers, and of bytes of one.
const MOST: usize = 16;
const BYTES: usize = 40;
/// Maximum number of tokens with which breakers of several tokens begin, and of tokens after one.
const HEADS: usize = 1 << 16;
const TAIL: usize = 20;

impl DrySettings {
    /// The settings, if they have an effect.
    pub(crate) fn resolve(options: &DryOptions) -> Result<Option<DrySettings>, GenerationError> {
        let multiplier = options.multiplier.unwrap_or(0.0);
        let is_sane = (0.0..=100.0).contains(&multiplier);
        check("dry_multiplier", multiplier, is_sane, "a number between 0 and 100")?;
        let base = options.base.unwrap_or(BASE);
        let is_sane = (1.0..=100.0).contains(&base);
        check("dry_base", base, is_sane, "a number between 1 and 100")?;
        let breakers = match &options.breakers {
            Some(breakers) => breakers.clone(),
            None => BREAKERS.map(str::to_owned).to_vec(),
        };
        let is_sane =
            breakers.len() <= MOST && breakers.iter().all(|it| (1..=BYTES).contains(&it.len()));
        let expected = "at most 16 texts of 1 to 40 bytes";
        check("dry_sequence_breakers", breakers.len() as f32, is_sane, expected)?;
        let last_tokens = options.last_tokens.unwrap_or(LAST).min(LAST);
        if multiplier == 0.0 || last_tokens == 0 {
            return Ok(None);
        }
        let allowed_length = options.allowed_length.unwrap_or(ALLOWED);
        Ok(Some(DrySettings { multiplier, base, allowed_length, last_tokens, breakers }))
    }

    /// The penalty for this many tokens above the allowed length. The power is a product in a fixed
    /// order, so that it is the same on every machine.
    fn penalty(&self, above: usize) -> f32 {
        let mut power = 1.0_f64;
        for _ in 0..above {
            let next = power * f64::from(self.base);
            if next > f64::from(f32::MAX) || next == power {
                break;
            }
            power = next;
        }
        let penalty = f64::from(self.multiplier) * power;
        penalty.min(f64::from(f32::MAX)) as f32
    }
}

/// The tokens of a text so far, and their repetitions.
#[derive(Debug)]
pub(crate) struct DryState {
    dry: DrySettings,
    breakers: Breakers,
    /// The last tokens of the text, from the first on.
    history: Vec<u32>,
    /// Scratch: for each number of last tokens that are left out, the length of the end of the text
    /// that the rest ends with, too.
    repeats: Vec<u32>,
}

impl DryState {
    pub(crate) fn new(dry: DrySettings) -> DryState {
        DryState { dry, breakers: Breakers::default(), history: Vec::new(), repeats: Vec::new() }
    }

    /// Finds the tokens of the sequence breakers.
    pub(crate) fn break_at(&mut self, tokenizer: &Tokenizer) {
        self.breakers = Breakers::of(&self.dry.breakers, tokenizer);
    }

    pub(crate) fn push(&mut self, token: u32) {
        if self.history.len() >= 2 * self.dry.last_tokens {
            self.history.drain(..self.history.len() - self.dry.last_tokens + 1);
        }
        self.history.push(token);
    }

    /// Subtracts the penalties from the logits.
    pub(crate) fn apply(&mut self, logits: &mut [f32]) {
        let allowed = self.dry.allowed_length;
        let from = self.history.len().saturating_sub(self.dry.last_tokens);
        let last = &self.history[from..];
        if last.len() <= allowed {
            return;
        }
        let limit = self.breakers.limit(last);
        if limit < allowed {
            return;
        }
        ends(last, &mut self.repeats);
        let mut longest: BTreeMap<u32, usize> = BTreeMap::new();
        for (back, &repeat) in self.repeats.iter().enumerate().skip(1) {
            let repeat = (repeat as usize).min(limit);
            if repeat >= allowed {
                let token = last[last.len() - back];
                let known = longest.entry(token).or_default();
                *known = repeat.max(*known);
            }
        }
        for (token, repeat) in longest {
            if let Some(logit) = logits.get_mut(token as usize)
                && !self.breakers.has(token)
            {
                *logit -= self.dry.penalty(repeat - allowed);
            }
        }
    }
}

fn check(
    key: &'static str,
    value: f32,
    is_sane: bool,
    expected: &'static str,
) -> Result<(), GenerationError> {
    if is_sane { Ok(()) } else { Err(GenerationError::Option { key, value, expected }) }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// For each number of last tokens that are left out, the length of the end of the text that the rest
/// ends with, too. This is the Z function of the reversed text.
fn ends(text: &[u32], found: &mut Vec<u32>) {
    let len = text.len();
    let back = |at: usize| text[len - 1 - at];
    found.clear();
    found.resize(len, 0);
    // The box that reaches furthest: its first place, and the place after its last.
    let mut left = 0;
    let mut right = 0;
    for at in 1..len {
        let mut length = 0;
        if at < right {
            length = (found[at - left] as usize).min(right - at);
        }
        while at + length < len && back(length) == back(at + length) {
            length += 1;
        }
        if at + length > right {
            (left, right) = (at, at + length);
        }
        found[at] = length as u32;
    }
}

/// The tokens of sequence breakers.
#[derive(Debug, Default)]
struct Breakers {
    /// A bit for each token that contains a breaker.
    whole: Vec<u64>,
    /// Tokens that end with the beginning of a breaker, in order, with the index of the tokens of
    /// its rest.
    heads: Vec<(u32, u32)>,
    rests: Vec<Vec<u32>>,
}

impl Breakers {
    fn of(breakers: &[String], tokenizer: &Tokenizer) -> Breakers {
        let count = tokenizer.vocab_size();
        let mut found = Breakers { whole: vec![0; count.div_ceil(64)], ..Breakers::default() };
        let mut beginnings: Vec<(&[u8], u32)> = Vec::new();
        for breaker in breakers {
            for (at, _) in breaker.char_indices().skip(1) {
                let Ok(mut rest) = tokenizer.encode(&breaker[at..], false) else { continue };
                rest.truncate(TAIL);
                beginnings.push((&breaker.as_bytes()[..at], found.rests.len() as u32));
                found.rests.push(rest);
            }
        }
        for token in 0..count as u32 {
            let bytes = tokenizer.bytes(token).unwrap_or_default();
            if breakers.iter().any(|breaker| contains(&bytes, breaker.as_bytes())) {
                found.whole[token as usize / 64] |= 1 << (token % 64);
                continue;
            }
            for (beginning, rest) in &beginnings {
                if found.heads.len() < HEADS && bytes.ends_with(beginning) {
                    found.heads.push((token, *rest));
                }
            }
        }
        found
    }

    /// True if a token contains a breaker.
    fn has(&self, token: u32) -> bool {
        self.whole.get(token as usize / 64).is_some_and(|bits| bits >> (token % 64) & 1 == 1)
    }

    /// The number of tokens after the last breaker in a text.
    fn limit(&self, text: &[u32]) -> usize {
        for (at, &token) in text.iter().enumerate().rev() {
            let after = &text[at + 1..];
            if self.has(token) {
                return after.len();
            }
            let first = self.heads.partition_point(|&(head, _)| head < token);
            let heads = self.heads[first..].iter().take_while(|&&(head, _)| head == token);
            let rests = heads.map(|&(_, rest)| &self.rests[rest as usize]);
            let longest = rests.filter(|rest| after.starts_with(rest)).map(Vec::len).max();
            if let Some(longest) = longest {
                return after.len() - longest;
            }
        }
        text.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dry(allowed_length: usize, last_tokens: usize) -> DrySettings {
        let options = DryOptions {
            multiplier: Some(0.5),
            base: Some(2.0),
            allowed_length: Some(allowed_length),
            last_tokens: Some(last_tokens),
            breakers: None,
        };
        DrySettings::resolve(&options).unwrap().unwrap()
    }

    /// The penalties after these tokens, as token and penalty. Token 7 contains a breaker, and token 8
    /// followed by 9 is one.
    fn penalties(dry: DrySettings, text: &[u32]) -> Vec<(u32, f32)> {
        let mut state = DryState::new(dry);
        state.breakers =
            Breakers { whole: vec![1 << 7], heads: vec![(8, 0)], rests: vec![vec![9]] };
        text.iter().for_each(|&token| state.push(token));
        let mut logits = vec![0.0; 10];
        state.apply(&mut logits);
        (0..)
            .zip(logits)
            .filter(|(_, logit)| *logit != 0.0)
            .map(|(id, logit)| (id, -logit))
            .collect()
    }

    #[test]
    fn tokens_that_continue_a_repetition_are_penalised() {
        let none: &[(u32, f32)] = &[];
        for (allowed, last, text, expected) in [
            // Nothing has come before.
            (2, 99, &[1, 2, 3, 4][..], none),
            // `1 2` was followed by 3: 0.5 * 2^(2 - 2).
            (2, 99, &[1, 2, 3, 1, 2], &[(3, 0.5)]),
            // `0 1 2` was: 0.5 * 2^(3 - 2).
            (2, 99, &[0, 1, 2, 3, 9, 0, 1, 2], &[(3, 1.0)]),
            // A single token is not enough, or with another allowed length is.
            (2, 99, &[1, 3, 1], none),
            (1, 99, &[1, 3, 1], &[(3, 0.5)]),
            // The longest repetition counts: `2` before 3, `1 2` before 3 and before 4.
            (1, 99, &[1, 2, 3, 5, 2, 3, 1, 2, 4, 1, 2], &[(3, 1.0), (4, 1.0)]),
            // A repeated token overlaps itself: 3 of 4 tokens came one place before.
            (2, 99, &[6, 6, 6, 6], &[(6, 1.0)]),
            // Beyond the last tokens nothing counts.
            (2, 4, &[1, 2, 3, 1, 2], none),
            (2, 5, &[1, 2, 3, 1, 2], &[(3, 0.5)]),
            // A breaker ends the repetition: one token, then two and three, are behind it.
            (2, 99, &[0, 7, 2, 3, 9, 0, 7, 2], none),
            (2, 99, &[7, 1, 2, 3, 9, 7, 1, 2], &[(3, 0.5)]),
            (2, 99, &[4, 8, 9, 2, 3, 5, 4, 8, 9, 2], none),
            (1, 99, &[4, 8, 9, 2, 3, 5, 4, 8, 9, 2], &[(3, 0.5)]),
            // Without what belongs to it, 8 is no breaker.
            (2, 99, &[4, 8, 2, 3, 5, 4, 8, 2], &[(3, 1.0)]),
            // Breakers themselves are not penalised.
            (2, 99, &[1, 2, 7, 3, 1, 2], none),
        ] {
            assert_eq!(penalties(dry(allowed, last), text), expected, "{text:?}");
        }
    }

    #[test]
    fn penalties_stay_finite() {
        assert_eq!(dry(2, 99).penalty(10), 512.0);
        assert!(dry(2, 99).penalty(1 << 16) < f32::INFINITY);
        let steep =
            DryOptions { multiplier: Some(100.0), base: Some(100.0), ..DryOptions::default() };
        assert_eq!(DrySettings::resolve(&steep).unwrap().unwrap().penalty(1000), f32::MAX);
    }

    #[test]
    fn long_texts_keep_their_last_tokens() {
        let mut text: Vec<u32> = (0..1000).map(|at| at % 3).collect();
        text.extend([1, 2, 3, 1, 2]);
        assert_eq!(penalties(dry(2, 5), &text), [(3, 0.5)]);
    }

    #[test]
    fn lengths_are_those_of_a_plain_search() {
        let mut random = crate::SplitMix64::new(3);
        for len in 0..60 {
            let text: Vec<u32> = (0..len).map(|_| (random.next_u64() % 2) as u32).collect();
            let mut found = Vec::new();
            ends(&text, &mut found);
            for at in 1..text.len() {
                let rest = &text[..text.len() - at];
                let pairs = rest.iter().rev().zip(text.iter().rev());
                assert_eq!(found[at] as usize, pairs.take_while(|(a, b)| a == b).count());
            }
        }
    }

    #[test]
    fn settings_are_checked() {
        let resolve =
            |options: &DryOptions| DrySettings::resolve(options).map_err(|error| error.to_string());
        let on = DryOptions { multiplier: Some(0.8), ..DryOptions::default() };
        assert!(resolve(&on).unwrap().is_some());
        assert_eq!(resolve(&DryOptions::default()), Ok(None));
        assert_eq!(resolve(&DryOptions { last_tokens: Some(0), ..on.clone() }), Ok(None));
        let breakers = |breakers: &[&str]| {
            Some(breakers.iter().map(|breaker| (*breaker).to_owned()).collect())
        };
        for (options, key) in [
            (DryOptions { multiplier: Some(-1.0), ..on.clone() }, "dry_multiplier"),
            (DryOptions { multiplier: Some(f32::NAN), ..on.clone() }, "dry_multiplier"),
            (DryOptions { base: Some(0.5), ..on.clone() }, "dry_base"),
            (DryOptions { breakers: breakers(&[""]), ..on.clone() }, "dry_sequence_breakers"),
            (DryOptions { breakers: breakers(&["a"; 17]), ..on.clone() }, "dry_sequence_breakers"),
        ] {
            let message = resolve(&options).unwrap_err();
            assert!(message.starts_with(key), "{message}");
        }
    }
}
