//! Normalizers and pre-tokenizers, split into steps so that each is bounded before it runs.
//!
//! The `tokenizers` crate executes the steps. This module computes the maximum output of each step,
//! and the matches of patterns.

use serde::Deserialize;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::{
    NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
    SplitDelimiterBehavior,
};

use super::pattern::Find;
use super::published::GPT_2;
use super::room::EncodingRoom;
use super::{TokenizerError, failed};

/// Size of the pieces in which a text is tried if a step could expand it too much.
const PIECE: usize = 512;
/// Maximum number of patterns that are not on the list.
const MAX_PATTERNS: usize = 8;
/// Maximum total size of the patterns that are not on the list.
const MAX_PATTERN_BYTES: usize = 2048;
/// Maximum size of a character after mapping by a table of the file.
pub(super) const MAX_PRECOMPILED: usize = 256;

/// All steps that a text goes through before a model splits its words.
#[derive(Debug, Default)]
pub(super) struct Steps {
    changes: Vec<Change>,
    cuts: Vec<SplitStep>,
}

/// A step that changes the text.
#[derive(Debug)]
enum Change {
    Replace { find: Find, content: String },
    Other(NormalizerWrapper),
}

/// A step that splits the text.
#[derive(Debug)]
enum SplitStep {
    Split {
        find: Find,
        behavior: SplitDelimiterBehavior,
        inverted: bool,
    },
    /// Adds a space at the front if there is none.
    Space,
    Other(PreTokenizerWrapper),
}

/// The fields of a `Replace`, which are private in the `tokenizers` crate.
#[derive(Deserialize)]
struct Replace {
    pattern: ReplacePattern,
    content: String,
}

#[derive(Deserialize)]
enum ReplacePattern {
    String(String),
    Regex(String),
}

impl Steps {
    /// The steps of a file, or the reason why they are not supported.
    pub(super) fn new(
        normalizer: Option<&NormalizerWrapper>,
        pre_tokenizer: Option<&PreTokenizerWrapper>,
    ) -> Result<Steps, String> {
        let mut steps = Steps::default();
        if let Some(normalizer) = normalizer {
            steps.add_change(normalizer)?;
        }
        if let Some(pre_tokenizer) = pre_tokenizer {
            steps.add_cut(pre_tokenizer)?;
        }
        Ok(steps)
    }

    /// Checks the cost of patterns before the `tokenizers` crate builds them. Returns the reason if
    /// one is not supported.
    pub(super) fn check_patterns(patterns: &[String]) -> Result<(), String> {
        let others = patterns.iter().filter(|pattern| !Find::is_published(pattern));
        let mut bytes = 0;
        for (before, pattern) in others.enumerate() {
            bytes += pattern.len();
            if before == MAX_PATTERNS {
                return Err(format!("more than {MAX_PATTERNS} patterns of its own"));
            }
            if before > 0 && bytes > MAX_PATTERN_BYTES {
                return Err(format!("patterns of its own of {bytes} bytes together"));
            }
            Find::regex(pattern)?;
        }
        Ok(())
    }

    fn add_change(&mut self, normalizer: &NormalizerWrapper) -> Result<(), String> {
        self.changes.push(match normalizer {
            NormalizerWrapper::Sequence(all) => {
                for one in all.as_ref() {
                    self.add_change(one)?;
                }
                return Ok(());
            }
            NormalizerWrapper::Replace(replace) => {
                let replace = serde_json::to_value(replace).and_then(serde_json::from_value);
                let Replace { pattern, content } = replace.map_err(|e| e.to_string())?;
                let find = match pattern {
                    ReplacePattern::String(text) => Find::text(&text)?,
                    ReplacePattern::Regex(pattern) => Find::regex(&pattern)?,
                };
                Change::Replace { find, content }
            }
            other => Change::Other(other.clone()),
        });
        Ok(())
    }

    fn add_cut(&mut self, pre_tokenizer: &PreTokenizerWrapper) -> Result<(), String> {
        match pre_tokenizer {
            PreTokenizerWrapper::Sequence(all) => {
                for one in all.as_ref() {
                    self.add_cut(one)?;
                }
                return Ok(());
            }
            PreTokenizerWrapper::Split(split) => {
                let find = match &split.pattern {
                    SplitPattern::String(text) => Find::text(text)?,
                    SplitPattern::Regex(pattern) => Find::regex(pattern)?,
                };
                let behavior = split.behavior;
                let inverted = split.invert;
                self.cuts.push(SplitStep::Split { find, behavior, inverted });
            }
            PreTokenizerWrapper::ByteLevel(bytes) => {
                if bytes.add_prefix_space {
                    self.cuts.push(SplitStep::Space);
                }
                if bytes.use_regex {
                    let find = Find::regex(GPT_2)?;
                    let behavior = SplitDelimiterBehavior::Isolated;
                    self.cuts.push(SplitStep::Split { find, behavior, inverted: false });
                }
                let bytes = ByteLevel::new(false, bytes.trim_offsets, false);
                self.cuts.push(SplitStep::Other(bytes.into()));
            }
            other => self.cuts.push(SplitStep::Other(other.clone())),
        }
        Ok(())
    }

    /// Normalizes a part of the text.
    pub(super) fn normalize(
        &self,
        text: &mut NormalizedString,
        room: &EncodingRoom,
    ) -> Result<(), TokenizerError> {
        for change in &self.changes {
            let len = text.len();
            match change {
                Change::Replace { find, content } => {
                    let found = find.find(text.get(), room)?;
                    let more = found.matches.saturating_mul(content.len());
                    room.change(len, (len - found.matched).saturating_add(more), 0)?;
                    text.replace(found, content).map_err(failed)?;
                }
                Change::Other(normalizer) => {
                    let mut most = most_normalized(normalizer, len);
                    if room.change(len, most, 0).is_err() {
                        most = normalized(normalizer, text.get())?;
                        room.change(len, most, 0)?;
                    }
                    normalizer.normalize(text).map_err(failed)?;
                    room.change(most, text.len(), 0)?;
                }
            }
        }
        Ok(())
    }

    /// Splits the text into words.
    pub(super) fn cut(
        &self,
        text: &mut PreTokenizedString,
        room: &EncodingRoom,
    ) -> Result<(), TokenizerError> {
        for cut in &self.cuts {
            match cut {
                SplitStep::Split { find, behavior, inverted } => text.split(|_, part| {
                    let found = find.find(part.get(), room)?;
                    room.change(0, 0, found.parts().saturating_sub(1))?;
                    part.split(if *inverted { found.inverted() } else { found }, *behavior)
                }),
                SplitStep::Space => text.split(|_, mut part| {
                    if !part.get().starts_with(' ') {
                        room.change(0, 1, 0)?;
                        part.prepend(" ");
                    }
                    Ok([part])
                }),
                SplitStep::Other(other) => {
                    let size = SplitSize::of(text);
                    if size.becomes(size.most(other), room).is_err() {
                        size.becomes(SplitSize::tried(other, text)?, room)?;
                    }
                    other.pre_tokenize(text)
                }
            }
            .map_err(failed)?;
            let SplitSize { bytes, parts } = SplitSize::of(text);
            room.stands(bytes, parts);
        }
        Ok(())
    }
}

/// The parts of a text, each with its token if it is an added token.
pub(super) fn parts(text: &PreTokenizedString) -> impl Iterator<Item = (&str, Option<u32>)> {
    let parts = text.get_splits(OffsetReferential::Original, OffsetType::None);
    parts.into_iter().map(|(part, _, tokens)| {
        let added = tokens.as_ref().and_then(|tokens| tokens.first());
        (part, added.map(|token| token.id))
    })
}

/// Maximum size of a normalizer's output for `bytes` bytes of input. A test checks all characters.
fn most_normalized(normalizer: &NormalizerWrapper, bytes: usize) -> usize {
    use NormalizerWrapper::{
        BertNormalizer, ByteLevel, Lowercase, NFC, NFD, NFKC, NFKD, Nmt, Precompiled, Prepend,
        Replace, Sequence, StripAccents, StripNormalizer,
    };
    let factor = match normalizer {
        Prepend(prepend) => return bytes.saturating_add(prepend.prepend.len()),
        StripNormalizer(_) | StripAccents(_) | Nmt(_) => 1,
        Lowercase(_) | ByteLevel(_) => 2,
        NFC(_) | NFD(_) => 3,
        BertNormalizer(_) => 4,
        NFKC(_) | NFKD(_) => 11,
        Precompiled(_) => MAX_PRECOMPILED,
        // Handled separately, as their own steps.
        Replace(_) | Sequence(_) => usize::MAX,
    };
    bytes.saturating_mul(factor)
}

/// Upper bound of the normalized size of a text. It is normalized a piece at a time; a character at
/// the border of two pieces may be normalized differently than in the whole text.
fn normalized(normalizer: &NormalizerWrapper, text: &str) -> Result<usize, TokenizerError> {
    let between = match normalizer {
        NormalizerWrapper::Precompiled(_) => MAX_PRECOMPILED,
        NormalizerWrapper::Prepend(_) => return Ok(most_normalized(normalizer, text.len())),
        _ => 0,
    };
    let mut sum = 0;
    for piece in pieces(text) {
        let mut piece = NormalizedString::from(piece);
        normalizer.normalize(&mut piece).map_err(failed)?;
        sum += piece.len() + between;
    }
    Ok(sum)
}

/// Total size and number of the parts of a text.
#[derive(Clone, Copy)]
struct SplitSize {
    bytes: usize,
    parts: usize,
}

impl SplitSize {
    fn of(text: &PreTokenizedString) -> SplitSize {
        let mut size = SplitSize { bytes: 0, parts: 0 };
        for (part, _) in parts(text) {
            size.bytes += part.len();
            size.parts += 1;
        }
        size
    }

    /// The most that a pre-tokenizer makes of a text of this size.
    fn most(self, split: &PreTokenizerWrapper) -> SplitSize {
        let SplitSize { bytes, parts } = self;
        match split {
            PreTokenizerWrapper::ByteLevel(_) => {
                SplitSize { bytes: bytes.saturating_mul(2), parts }
            }
            // Every space may become a character of four bytes, and another may be added before each
            // part.
            PreTokenizerWrapper::Metaspace(_) => {
                let most = (bytes + parts).saturating_mul(4);
                SplitSize { bytes: most, parts: 2 * bytes + parts }
            }
            _ => SplitSize { bytes, parts: bytes.max(parts) },
        }
    }

    /// Like `most`, but measured by running the pre-tokenizer on one piece at a time.
    fn tried(
        split: &PreTokenizerWrapper,
        text: &PreTokenizedString,
    ) -> Result<SplitSize, TokenizerError> {
        let mut size = SplitSize { bytes: 0, parts: 0 };
        for (part, added) in parts(text) {
            if added.is_some() {
                size.bytes += part.len();
                size.parts += 1;
                continue;
            }
            for piece in pieces(part) {
                let mut piece = PreTokenizedString::from(piece);
                split.pre_tokenize(&mut piece).map_err(failed)?;
                let more = SplitSize::of(&piece);
                size.bytes += more.bytes;
                size.parts += more.parts;
            }
        }
        Ok(size)
    }

    /// Accounts for a text of this size that becomes one of another.
    fn becomes(self, other: SplitSize, room: &EncodingRoom) -> Result<(), TokenizerError> {
        room.change(self.bytes, other.bytes, other.parts.saturating_sub(self.parts))
    }
}

/// Splits a text into pieces of at most [`PIECE`] bytes.
fn pieces(mut text: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let (piece, rest) = text.split_at(text.floor_char_boundary(PIECE));
        text = rest;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use tokenizers::normalizers::{
        BertNormalizer, Lowercase, NFC, NFD, NFKC, NFKD, Nmt, byte_level,
    };

    use super::*;

    #[test]
    fn no_character_exceeds_the_bound_of_its_normalizer() {
        let normalizers: [NormalizerWrapper; 9] = [
            NFC.into(),
            NFD.into(),
            NFKC.into(),
            NFKD.into(),
            Lowercase.into(),
            Nmt.into(),
            byte_level::ByteLevel.into(),
            BertNormalizer::new(true, true, Some(true), true).into(),
            BertNormalizer::new(false, true, Some(false), true).into(),
        ];
        for normalizer in normalizers {
            let mut most = 0.0f64;
            for c in (0..=0x0010_ffff).filter_map(char::from_u32) {
                let mut text = NormalizedString::from(c.to_string());
                normalizer.normalize(&mut text).unwrap();
                assert!(text.len() <= most_normalized(&normalizer, c.len_utf8()), "{c:?}");
                most = most.max(text.len() as f64 / c.len_utf8() as f64);
            }
            // No bound is much too high either.
            let bound = most_normalized(&normalizer, 1) as f64;
            assert!(bound <= 3.0 * most, "{normalizer:?}: {bound} for {most}");
        }
    }
}
