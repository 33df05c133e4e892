//! Accounting for the memory and time of encoding.

use std::cell::{Cell, OnceCell};

use super::TokenizerError;
use super::deadline::Deadline;

/// Memory for each byte of text: the text, the output of a step, and the origin of each byte in
/// both. A test measures that these factors hold.
const BYTE: usize = 80;
/// Memory for each part of the split text: three allocations, and an entry in the list of parts.
const PART: usize = 320;
/// Memory for each match of a pattern.
const FOUND: usize = 48;
/// Memory for each byte of the longest word, as a model may make a token of each byte.
const WORD: usize = 208;
/// Memory for the automata of patterns, which grow with their text.
pub(super) const FIXED: usize = 1 << 20;
/// Memory for each token of a usual text, whose words have up to some twenty bytes.
pub(super) const POSITION: usize = 2 << 10;
/// Limit for normalizing an added token.
pub(super) const ADDED: usize = FIXED + (4 << 20);

/// Memory and time limits for encoding one text, and the amount in use.
#[derive(Debug)]
pub(super) struct EncodingRoom {
    given: usize,
    most: Cell<usize>,
    deadline: OnceCell<Deadline>,
    /// Total size of the current parts of the text.
    bytes: Cell<usize>,
    parts: Cell<usize>,
}

impl EncodingRoom {
    /// The limits for a text of `given` bytes, with `most` bytes of memory.
    pub(super) fn new(given: usize, most: usize) -> EncodingRoom {
        let most = Cell::new(most);
        let bytes = Cell::new(given);
        let parts = Cell::new(1);
        EncodingRoom { given, most, deadline: OnceCell::new(), bytes, parts }
    }

    /// Starts over with another text of `bytes` bytes and `most` bytes of memory, keeping the
    /// deadline.
    pub(super) fn restart(&self, bytes: usize, most: usize) {
        self.most.set(most);
        self.stands(bytes, 1);
    }

    /// Size of the original text.
    pub(super) fn given(&self) -> usize {
        self.given
    }

    /// Accounts for `from` bytes of text that become `to` bytes, in `more` additional parts. Fails
    /// if there is not enough memory.
    pub(super) fn change(&self, from: usize, to: usize, more: usize) -> Result<(), TokenizerError> {
        let bytes = self.bytes.get().saturating_sub(from).saturating_add(to);
        let parts = self.parts.get().saturating_add(more);
        // Both texts exist while a step runs.
        self.check(bytes.max(self.bytes.get()), parts, 0)?;
        self.stands(bytes, parts);
        Ok(())
    }

    /// Sets the size of the text and its number of parts.
    pub(super) fn stands(&self, bytes: usize, parts: usize) {
        self.bytes.set(bytes);
        self.parts.set(parts);
    }

    /// Accounts for the matches that a pattern has found so far.
    pub(super) fn found(&self, places: usize) -> Result<(), TokenizerError> {
        self.check(self.bytes.get(), self.parts.get(), places.saturating_mul(FOUND))
    }

    /// Accounts for a word of `bytes` bytes that is converted to tokens.
    pub(super) fn word(&self, bytes: usize) -> Result<(), TokenizerError> {
        self.check(self.bytes.get(), self.parts.get(), bytes.saturating_mul(WORD))
    }

    fn check(&self, bytes: usize, parts: usize, more: usize) -> Result<(), TokenizerError> {
        let each = bytes.saturating_mul(BYTE).saturating_add(parts.saturating_mul(PART));
        let most = self.most.get();
        match each.saturating_add(more).saturating_add(FIXED) <= most {
            true => Ok(()),
            false if most >> 20 == 0 => Err(TokenizerError::NoRoom),
            false => Err(TokenizerError::Room { bytes: self.given, most }),
        }
    }

    /// True while there is time left for patterns that are not on the list.
    pub(super) fn has_time(&self) -> bool {
        !self.deadline.get_or_init(|| Deadline::of(self.given)).is_over()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::Tokenizer;
    use super::*;

    /// A BPE tokenizer whose tokens are the ASCII characters and `words`.
    fn tokenizer(normalizer: Value, pre_tokenizer: Value, words: &[&str]) -> Tokenizer {
        let letters = (0..128u8).map(|b| char::from(b).to_string());
        let tokens = letters.chain(words.iter().map(|word| (*word).to_owned()));
        let vocab: serde_json::Map<_, _> = tokens.zip((0..).map(Value::from)).collect();
        let json = json!({
            "version": "1.0", "added_tokens": [], "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer, "post_processor": null, "decoder": null,
            "model": {"type": "BPE", "vocab": vocab, "merges": []},
        });
        Tokenizer::from_bytes(json.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn encoding_stays_within_its_memory_estimate() {
        let bytes = |regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex});
        let replace = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "bcdefghi"});
        let english =
            "It was the best of times, it was the worst of times; 12 of them.\n".repeat(1000);
        let cases = [
            ("words", tokenizer(Value::Null, bytes(true), &["Ġ", "Ċ"]), english.clone()),
            ("one word", tokenizer(Value::Null, bytes(false), &["Ġ", "Ċ"]), english.clone()),
            ("nothing", tokenizer(Value::Null, Value::Null, &[]), "a".repeat(50_000)),
            (
                "letters",
                tokenizer(Value::Null, json!({"type": "FixedLength", "length": 1}), &[]),
                "a".repeat(50_000),
            ),
            ("grown", tokenizer(replace, Value::Null, &[]), "a".repeat(10_000)),
            ("composed", tokenizer(json!({"type": "NFKC"}), bytes(true), &["Ġ", "Ċ"]), english),
        ];
        for (name, tokenizer, text) in cases {
            let encode =
                |most| tokenizer.encoded(&text, false, EncodingRoom::new(text.len(), most));
            // Patterns grow their automata only once.
            encode(usize::MAX).unwrap();
            let mut most = FIXED;
            while encode(most).is_err() {
                most += most / 16;
            }
            let taken = allocation_counter::measure(|| drop(encode(most))).bytes_max as usize;
            assert!(taken <= most, "{name}: {taken} of {most}");
            // The estimate is not much too high, so that few texts are refused needlessly.
            assert!(most - FIXED <= 8 * taken, "{name}: {taken} of {most}");
        }
    }
}
