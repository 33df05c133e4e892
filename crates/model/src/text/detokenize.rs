//! Token ids to text, as they come.

use serde::Deserialize;

use super::Tokenizer;

/// Turns ids into text, one by one, and yields whole characters only.
///
/// What it yields, joined, is what decoding all ids at once gives. A character may be spread over
/// several tokens, each holding some of its bytes; these wait (at most three bytes) until it is
/// complete. Bytes that can become no character are replaced by U+FFFD as soon as that is certain.
#[derive(Debug)]
pub struct Detokenizer<'a> {
    tokenizer: &'a Tokenizer,
    skip_special: bool,
    position: Position,
    /// How many more leading characters the tokenizer strips.
    strip: usize,
    bytes: Vec<u8>,
}

/// Where in a text the ids begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// At its start: tokenizers that put a space before every text take it away again.
    Start,
    /// After other text: a leading space is one.
    Middle,
}

impl<'a> Detokenizer<'a> {
    /// One that has seen nothing. `skip_special` leaves out tokens that stand for no text.
    pub fn new(tokenizer: &'a Tokenizer, position: Position, skip_special: bool) -> Self {
        let strip = match (position, tokenizer.pieces().strip) {
            (Position::Start, Some((_, count))) => count,
            _ => 0,
        };
        Detokenizer { tokenizer, skip_special, position, strip, bytes: Vec::new() }
    }

    /// Takes the next id; appends the text that it completes. An id without a token is no text.
    pub fn push(&mut self, id: u32, text: &mut String) {
        if self.skip_special && self.tokenizer.is_special(id) {
            return;
        }
        let Some(token) = self.tokenizer.token(id) else { return };
        self.tokenizer.pieces().append(token, self.position, &mut self.bytes);
        self.position = Position::Middle;
        self.drain(false, text);
    }

    /// Appends what is left: U+FFFD if the last character never became complete.
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

fn emit(pieces: &Pieces, strip: &mut usize, mut new: &str, text: &mut String) {
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

/// The most bytes that a token may become; tokens themselves have at most 4096.
const MAX_PIECE: usize = 16 << 10;

/// How one token becomes bytes: the `decoder` of a `tokenizer.json`, which is defined on all tokens at
/// once, taken apart so that a token costs its own length and no more.
#[derive(Debug)]
pub(super) struct Pieces {
    steps: Vec<Step>,
    /// This character is stripped from the start of the text, at most so many times.
    strip: Option<(char, usize)>,
}

#[derive(Debug)]
enum Step {
    /// A character stands for a byte.
    ByteLevel,
    /// `<0x0A>` stands for a byte.
    ByteFallback,
    Replace {
        from: String,
        to: String,
    },
    Metaspace {
        space: char,
        leading: bool,
    },
    /// Without a decoder, tokens are words.
    Spaced,
}

/// A decoder as `tokenizer.json` writes it.
#[derive(Deserialize)]
#[serde(tag = "type")]
pub(super) enum DecoderSpec {
    ByteLevel,
    ByteFallback,
    Fuse,
    Metaspace {
        replacement: char,
        prepend_scheme: String,
    },
    Replace {
        pattern: PatternSpec,
        content: String,
    },
    Strip {
        content: char,
        start: usize,
        stop: usize,
    },
    Sequence {
        decoders: Vec<DecoderSpec>,
    },
    BPEDecoder,
    WordPiece,
    #[serde(rename = "CTC")]
    Ctc,
}

#[derive(Deserialize)]
pub(super) enum PatternSpec {
    String(String),
    Regex(serde::de::IgnoredAny),
}

impl DecoderSpec {
    pub(super) fn of(decoder: &tokenizers::DecoderWrapper) -> Result<DecoderSpec, String> {
        let json = serde_json::to_value(decoder).map_err(|e| e.to_string())?;
        serde_json::from_value(json).map_err(|e| e.to_string())
    }
}

impl Pieces {
    /// For tokens of at most so many bytes. Or the name of what is not supported.
    pub(super) fn new(decoder: Option<DecoderSpec>, longest: usize) -> Result<Pieces, String> {
        let mut pieces = Pieces { steps: Vec::new(), strip: None };
        match decoder {
            Some(decoder) => pieces.add(decoder, &mut false)?,
            None => pieces.steps.push(Step::Spaced),
        }
        let grown = pieces.steps.iter().fold(longest, |len, step| match step {
            Step::Replace { from, to } if from.is_empty() => {
                len.saturating_add(1).saturating_mul(to.len().saturating_add(1))
            }
            Step::Replace { from, to } => len.saturating_mul(to.len().div_ceil(from.len()).max(1)),
            _ => len,
        });
        match grown {
            0..=MAX_PIECE => Ok(pieces),
            _ => Err("steps that make a token longer and longer".to_owned()),
        }
    }

    /// `fused`: what follows acts on the whole text, not on tokens.
    fn add(&mut self, decoder: DecoderSpec, fused: &mut bool) -> Result<(), String> {
        let step = match decoder {
            DecoderSpec::Sequence { decoders } => {
                return decoders.into_iter().try_for_each(|decoder| self.add(decoder, fused));
            }
            DecoderSpec::Fuse => {
                *fused = true;
                return Ok(());
            }
            DecoderSpec::Strip { content, start, stop: 0 } if *fused && self.strip.is_none() => {
                self.strip = Some((content, start));
                return Ok(());
            }
            DecoderSpec::Strip { .. } => return Err("this use of Strip".to_owned()),
            _ if *fused => return Err("steps after Fuse".to_owned()),
            DecoderSpec::ByteLevel => Step::ByteLevel,
            DecoderSpec::ByteFallback => Step::ByteFallback,
            DecoderSpec::Metaspace { replacement, prepend_scheme } => {
                Step::Metaspace { space: replacement, leading: prepend_scheme != "never" }
            }
            DecoderSpec::Replace { pattern: PatternSpec::String(from), content } => {
                Step::Replace { from, to: content }
            }
            DecoderSpec::Replace { pattern: PatternSpec::Regex(_), .. } => {
                return Err("Replace by a regular expression".to_owned());
            }
            DecoderSpec::BPEDecoder => return Err("BPEDecoder".to_owned()),
            DecoderSpec::WordPiece => return Err("WordPiece".to_owned()),
            DecoderSpec::Ctc => return Err("CTC".to_owned()),
        };
        self.steps.push(step);
        Ok(())
    }

    /// Appends the bytes of a token.
    fn append(&self, mut token: String, position: Position, bytes: &mut Vec<u8>) {
        let first = position == Position::Start;
        for step in &self.steps {
            match step {
                Step::ByteLevel => {
                    let start = bytes.len();
                    for c in token.chars() {
                        match byte_of(c) {
                            Some(byte) => bytes.push(byte),
                            // An added token is plain text.
                            None => {
                                bytes.truncate(start);
                                bytes.extend_from_slice(token.as_bytes());
                                break;
                            }
                        }
                    }
                    return;
                }
                Step::ByteFallback => {
                    let hex = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
                    let hex = hex.filter(|hex| hex.len() == 2);
                    if let Some(byte) = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                        bytes.push(byte);
                        return;
                    }
                }
                Step::Replace { from, to } => token = token.replace(from.as_str(), to),
                Step::Metaspace { space, leading } => {
                    token = token.replace(*space, if first && *leading { "" } else { " " });
                }
                Step::Spaced if first => {}
                Step::Spaced => bytes.push(b' '),
            }
        }
        bytes.extend_from_slice(token.as_bytes());
    }
}

/// The byte that a character stands for in byte-level vocabularies: printable ones themselves, the
/// others counted up from 256.
fn byte_of(c: char) -> Option<u8> {
    let printable = |b: u32| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let code = c as u32;
    if code < 256 {
        return printable(code).then_some(code as u8);
    }
    let nth = (code - 256) as usize;
    (0..=255u8).filter(|&b| !printable(u32::from(b))).nth(nth)
}
