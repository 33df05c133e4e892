//! Incremental conversion of token ids to text.

use super::Tokenizer;
use super::pieces::{Position, TokenPieces};

/// Converts ids to text, one by one, and yields whole characters only.
///
/// The concatenated output equals the decoding of all ids at once. A character may be spread over
/// several tokens, each holding some of its bytes. These are held back (at most three bytes) until
/// the character is complete. Invalid bytes are replaced by U+FFFD as soon as they are known to be
/// invalid.
#[derive(Debug)]
pub struct Detokenizer<'a> {
    tokenizer: &'a Tokenizer,
    skip_special: bool,
    /// Special tokens that are not omitted.
    shown: Vec<u32>,
    position: Position,
    /// Number of leading characters still to strip.
    strip: usize,
    bytes: Vec<u8>,
}

impl<'a> Detokenizer<'a> {
    /// Creates an empty detokenizer. `skip_special` omits tokens that stand for no text.
    pub fn new(tokenizer: &'a Tokenizer, position: Position, skip_special: bool) -> Self {
        let strip = match (position, tokenizer.pieces().strip) {
            (Position::Start, Some((_, count))) => count,
            _ => 0,
        };
        let shown = Vec::new();
        let bytes = Vec::new();
        Detokenizer { tokenizer, skip_special, shown, position, strip, bytes }
    }

    /// Includes some special tokens.
    pub fn showing(mut self, shown: &[u32]) -> Self {
        self.shown = shown.to_vec();
        self
    }

    /// Takes the next id, and appends the text that it completes. Unknown ids are ignored.
    pub fn push(&mut self, id: u32, text: &mut String) {
        if self.skip_special && self.tokenizer.is_special(id) && !self.shown.contains(&id) {
            return;
        }
        let Some(token) = self.tokenizer.token(id) else { return };
        self.tokenizer.pieces().append(token, self.position, &mut self.bytes);
        self.position = Position::Middle;
        self.drain(false, text);
    }

    /// Appends U+FFFD if the last character is incomplete.
    pub fn finish(&mut self, text: &mut String) {
        self.drain(true, text);
    }

    fn drain(&mut self, last: bool, text: &mut String) {
        let mut done = 0;
        loop {
            let rest = &self.bytes[done..];
            match str::from_utf8(rest) {
                Ok(valid) => {
                    emit(self.tokenizer.pieces(), &mut self.strip, valid, text);
                    done = self.bytes.len();
                    break;
                }
                Err(e) => {
                    let (valid, broken) = rest.split_at(e.valid_up_to());
                    let valid = str::from_utf8(valid).unwrap_or_default();
                    emit(self.tokenizer.pieces(), &mut self.strip, valid, text);
                    done += valid.len();
                    let broken = match e.error_len() {
                        Some(len) => len,
                        None if last => broken.len(),
                        None => break,
                    };
                    emit(self.tokenizer.pieces(), &mut self.strip, "\u{fffd}", text);
                    done += broken;
                }
            }
        }
        self.bytes.drain(..done);
    }
}

fn emit(pieces: &TokenPieces, strip: &mut usize, mut new: &str, text: &mut String) {
    while *strip > 0 && !new.is_empty() {
        match pieces.strip.and_then(|(c, _)| new.strip_prefix(c)) {
            Some(rest) => {
                new = rest;
                *strip -= 1;
            }
            None => *strip = 0,
        }
    }
    text.push_str(new);
}

impl Tokenizer {
    /// The text of all these ids, equal to the joined output of a [`Detokenizer`].
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut detokenizer = Detokenizer::new(self, Position::Start, skip_special);
        let mut text = String::new();
        for &id in ids {
            detokenizer.push(id, &mut text);
        }
        detokenizer.finish(&mut text);
        text
    }
}
