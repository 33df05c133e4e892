//! The bytes that single tokens stand for.

use serde::Deserialize;

/// Position in a text at which the ids begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The start of the text: tokenizers that put a space before every text remove it again.
    Start,
    /// After other text: a leading space is kept.
    Middle,
}

/// Maximum number of bytes that a token may become; tokens themselves have at most 4096.
const MAX_PIECE: usize = 16 << 10;

/// The conversion of single tokens to bytes. The `decoder` of a `tokenizer.json` is defined on all
/// tokens at once. It is split into steps per token, so that the cost of a token depends only on
/// its own length.
#[derive(Debug)]
pub(super) struct TokenPieces {
    steps: Vec<DetokenizeStep>,
    /// A character to strip from the start of the text, and the maximum number of times.
    pub(super) strip: Option<(char, usize)>,
}

#[derive(Debug)]
enum DetokenizeStep {
    /// Each character stands for a byte.
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
    /// Tokens are words, separated by spaces: the rule for files without a decoder.
    Spaced,
}

/// A decoder in the form of `tokenizer.json`.
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

impl DetokenizeStep {
    /// The length that a token of this length has at most after the step.
    fn longest(&self, len: usize) -> usize {
        match self {
            DetokenizeStep::Replace { from, to } if from.is_empty() => {
                len.saturating_add(1).saturating_mul(to.len().saturating_add(1))
            }
            DetokenizeStep::Replace { from, to } => {
                len.saturating_mul(to.len().div_ceil(from.len()).max(1))
            }
            _ => len,
        }
    }
}

impl TokenPieces {
    /// The conversion of tokens of at most `longest` bytes. Returns the name of an unsupported
    /// feature on failure.
    pub(super) fn new(decoder: Option<DecoderSpec>, longest: usize) -> Result<TokenPieces, String> {
        let mut pieces = TokenPieces { steps: Vec::new(), strip: None };
        match decoder {
            Some(decoder) => pieces.add(decoder, &mut false)?,
            None => pieces.steps.push(DetokenizeStep::Spaced),
        }
        let mut len = longest;
        for step in &pieces.steps {
            len = step.longest(len);
        }
        match len {
            0..=MAX_PIECE => Ok(pieces),
            _ => Err("steps that make a token longer and longer".to_owned()),
        }
    }

    /// `fused` is true if later steps act on the whole text, not on tokens.
    fn add(&mut self, decoder: DecoderSpec, fused: &mut bool) -> Result<(), String> {
        let step = match decoder {
            DecoderSpec::Sequence { decoders } => {
                for decoder in decoders {
                    self.add(decoder, fused)?;
                }
                return Ok(());
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
            DecoderSpec::ByteLevel => DetokenizeStep::ByteLevel,
            DecoderSpec::ByteFallback => DetokenizeStep::ByteFallback,
            DecoderSpec::Metaspace { replacement, prepend_scheme } => {
                DetokenizeStep::Metaspace { space: replacement, leading: prepend_scheme != "never" }
            }
            DecoderSpec::Replace { pattern: PatternSpec::String(from), content } => {
                DetokenizeStep::Replace { from, to: content }
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
    pub(super) fn append(&self, mut token: String, position: Position, bytes: &mut Vec<u8>) {
        let first = position == Position::Start;
        for step in &self.steps {
            match step {
                DetokenizeStep::ByteLevel => {
                    let start = bytes.len();
                    for c in token.chars() {
                        match byte_of(c) {
                            Some(byte) => bytes.push(byte),
                            // The text of an added token is taken as it is.
                            None => {
                                bytes.truncate(start);
                                bytes.extend_from_slice(token.as_bytes());
                                break;
                            }
                        }
                    }
                    return;
                }
                DetokenizeStep::ByteFallback => {
                    let rest = token.strip_prefix("<0x").unwrap_or_default();
                    if let Some(hex) = rest.strip_suffix('>')
                        && hex.len() == 2
                        && let Ok(byte) = u8::from_str_radix(hex, 16)
                    {
                        bytes.push(byte);
                        return;
                    }
                }
                DetokenizeStep::Replace { from, to } => token = token.replace(from.as_str(), to),
                DetokenizeStep::Metaspace { space, leading } => {
                    token = token.replace(*space, if first && *leading { "" } else { " " });
                }
                DetokenizeStep::Spaced if first => {}
                DetokenizeStep::Spaced => bytes.push(b' '),
            }
        }
        bytes.extend_from_slice(token.as_bytes());
    }
}

/// The byte that a character stands for in byte-level vocabularies. Printable bytes stand for
/// themselves; the others are numbered from 256.
fn byte_of(c: char) -> Option<u8> {
    let code = c as u32;
    if code < 256 {
        return is_printable(code).then_some(code as u8);
    }
    let nth = (code - 256) as usize;
    (0..=255u8).filter(|&b| !is_printable(u32::from(b))).nth(nth)
}

fn is_printable(byte: u32) -> bool {
    matches!(byte, 33..=126 | 161..=172 | 174..=255)
}
