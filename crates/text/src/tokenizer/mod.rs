//! Conversion of text to token ids.

pub(super) mod bpe;
mod deadline;
pub(super) mod memory;
pub(super) mod model;
mod outline;
pub(super) mod parts;
mod pattern;
pub(super) mod published;
mod room;
mod starts;
mod steps;
pub(super) mod vocabulary;

use std::sync::Mutex;

use tokenizers::{Encoding, NormalizedString, Normalizer, PreTokenizedString, Token};

use super::chat::ChatPrompt;
use super::guard::{caught, caught_on_thread};
use super::pieces::{DecoderSpec, Position, TokenPieces};
pub use memory::TokenizerMemory;
use model::{Inner, WordModel};
use outline::TokenizerOutline;
use parts::TokenizerParts;
use room::EncodingRoom;
use starts::Starts;
use steps::Steps;

/// Maximum size of `tokenizer.json`, about twice that of the largest vocabularies.
pub const MAX_TOKENIZER_BYTES: usize = 64 << 20;

/// Memory that encoding a text may use, unless [`Tokenizer::bound`] sets another limit.
const WORKING: usize = 4 << 30;
/// Stack size of the encoding thread.
const STACK: usize = 2 << 20;
/// Maximum number of bytes that a model tries as tokens in the words of a text: some minutes of
/// work.
const MAX_TRIES: u64 = 1 << 35;
/// Lower limit for `longest`. Normalizers drop parts of a text, so a token may stand for more bytes
/// than it has.
const LEAST_LONGEST: usize = 64;

/// A `tokenizer.json`.
///
/// The memory and time of encoding are bounded for every file and every text: the maximum output of
/// each step is computed before it runs.
#[derive(Debug)]
pub struct Tokenizer {
    inner: Inner,
    steps: Steps,
    /// Possible beginnings of added tokens, in the original text and in normalized text.
    starts: [Starts; 2],
    /// Tokens added before and after a text.
    around: [Vec<u32>; 2],
    pieces: TokenPieces,
    /// The largest id.
    last: u32,
    /// Vocabulary size of the model.
    limit: usize,
    /// Bytes of the longest token.
    longest: usize,
    /// Maximum number of tokens in a text.
    positions: usize,
    /// Memory that encoding a text may use, in bytes.
    working: usize,
}

/// Reasons why a tokenizer cannot be used, or a text cannot be encoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum TokenizerError {
    /// A file larger than that of any known tokenizer.
    #[error(
        "the tokenizer has {bytes} bytes, and none has more than {MAX_TOKENIZER_BYTES}; take the one that was published with the weights"
    )]
    TooLarge { bytes: usize },
    /// Not a valid tokenizer.
    #[error("the tokenizer is damaged ({0}); download it again")]
    Damaged(String),
    /// The tokenizer has no tokens.
    #[error("the tokenizer has no tokens; download it again")]
    Empty,
    /// An unsupported decoder.
    #[error(
        "the tokenizer turns tokens into text with {0}, which is not supported; supported are ByteLevel, Metaspace, and sequences of Replace, ByteFallback, Fuse and Strip"
    )]
    Decoder(String),
    /// BPE dropout is set, which would make encoding random.
    #[error(
        "the tokenizer asks for BPE dropout, which makes every encoding a random one; set its `dropout` to null"
    )]
    Dropout,
    /// The tokenizer does not belong to the model.
    #[error(
        "the tokenizer gives the token `{}` the id {id}, and the model knows only {vocab_size} tokens; take the one that was published with the weights",
        start(token, 40)
    )]
    Vocabulary {
        /// The token with the largest id.
        token: String,
        id: u32,
        /// Vocabulary size of the model.
        vocab_size: usize,
    },
    /// The text contains a token that the model does not know.
    #[error(
        "the text has the token `{}`, to which the tokenizer gives the id {id}, and the model knows only {vocab_size} tokens; leave it out of the text",
        start(token, 40)
    )]
    Unknown {
        token: String,
        id: u32,
        /// Vocabulary size of the model.
        vocab_size: usize,
    },
    /// A part of the file has no bound, or is larger than in any known tokenizer.
    #[error(
        "the tokenizer has {0}, which is not supported; take the one that was published with the weights"
    )]
    Unsupported(String),
    /// The text is too long to fit into the number of tokens available.
    #[error(
        "the text has {bytes} bytes, and the {positions} tokens that fit have at most {most}; shorten it"
    )]
    TooLong {
        /// Size of the text.
        bytes: usize,
        /// Maximum number of tokens.
        positions: usize,
        /// Maximum number of bytes in that many tokens.
        most: usize,
    },
    /// The text takes too much memory to encode.
    #[error(
        "with this tokenizer a text of {bytes} bytes takes more memory to encode than the {} MiB there are for it; shorten it, or raise --ram",
        most >> 20
    )]
    Room {
        /// Size of the text.
        bytes: usize,
        /// Bytes of memory available.
        most: usize,
    },
    /// The memory budget is too small to encode even a short text.
    #[error("the memory budget leaves nothing for encoding a text; raise --ram")]
    NoRoom,
    /// The words of the text take too much time to encode.
    #[error(
        "with this tokenizer, whose words or tokens are very long, a text of {bytes} bytes takes minutes to encode; shorten it"
    )]
    Tries {
        /// Size of the text.
        bytes: usize,
    },
    /// A pattern takes too much time on the text.
    #[error(
        "the tokenizer has the pattern `{0}`, which takes too long on this text; shorten it, or take the one that was published with the weights"
    )]
    Pattern(String),
    /// The encoding thread could not be started.
    #[error("no thread could be started to encode the text ({0}); close other programs")]
    Thread(#[source] std::io::Error),
    /// Encoding failed.
    #[error("the tokenizer cannot encode this text ({0}); download it again")]
    Encode(String),
}

impl Tokenizer {
    /// Parses the bytes of a `tokenizer.json`.
    pub fn from_bytes(json: &[u8]) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::read(json, |_| Ok(()))
    }

    /// Like [`from_bytes`](Self::from_bytes), but first calls `fits` with the memory that the
    /// vocabulary takes. Fails with the error that `fits` returns.
    pub fn read<E: From<TokenizerError>>(
        json: &[u8],
        fits: impl FnOnce(TokenizerMemory) -> Result<(), E>,
    ) -> Result<Tokenizer, E> {
        if json.len() > MAX_TOKENIZER_BYTES {
            return Err(TokenizerError::TooLarge { bytes: json.len() }.into());
        }
        let outline: TokenizerOutline<'_> = serde_json::from_slice(json).map_err(damaged)?;
        let patterns = outline.check().map_err(TokenizerError::Unsupported)?;
        let sizes = outline.sizes().map_err(damaged)?;
        sizes.check().map_err(TokenizerError::Unsupported)?;
        fits(sizes.memory())?;
        Steps::check_patterns(&patterns).map_err(TokenizerError::Unsupported)?;
        let parts = guarded(|| TokenizerParts::of_outline(json, &outline, &sizes))?;
        Ok(Tokenizer::of(parts)?)
    }

    /// Builds a tokenizer whose patterns were checked.
    pub(super) fn of(parts: TokenizerParts) -> Result<Tokenizer, TokenizerError> {
        let longest = parts.longest;
        // The `tokenizers` crate normalizes added tokens when it gets them, so this comes first.
        let starts = guarded(|| starts::of(parts.normalizer.as_ref(), &parts.added))?;
        let inner = guarded(|| parts.build())?;
        if let WordModel::Bpe(bpe) = inner.get_model()
            && bpe.is_random()
        {
            return Err(TokenizerError::Dropout);
        }
        let decoder = match inner.get_decoder() {
            Some(decoder) => Some(DecoderSpec::of(decoder).map_err(TokenizerError::Decoder)?),
            None => None,
        };
        let pieces = TokenPieces::new(decoder, longest).map_err(TokenizerError::Decoder)?;
        let steps = Steps::new(inner.get_normalizer(), inner.get_pre_tokenizer());
        let steps = steps.map_err(TokenizerError::Unsupported)?;
        let around = guarded(|| around(&inner))?;
        let added = inner.get_added_vocabulary().get_added_tokens_decoder().keys().copied().max();
        let last = inner.get_model().last().map(|(id, _)| id).max(added);
        let last = last.ok_or(TokenizerError::Empty)?;
        let limit = usize::MAX;
        let positions = usize::MAX;
        let working = WORKING;
        Ok(Tokenizer {
            inner,
            steps,
            starts,
            around,
            pieces,
            last,
            limit,
            longest,
            positions,
            working,
        })
    }

    /// Sets the vocabulary size of the model. It is usually larger than that of the tokenizer,
    /// since vocabularies are padded.
    ///
    /// Returns an error if an ordinary text could need ids beyond it: if the tokens of words or the
    /// tokens added to every text exceed it. Other tokens occur only in texts that spell them out,
    /// and [`encode`](Self::encode) refuses those texts. Some fine-tuned models have a tokenizer
    /// with such tokens, but were never trained on them.
    pub fn limit(&mut self, vocab_size: usize) -> Result<(), TokenizerError> {
        self.limit = vocab_size;
        let words = self.inner.get_model().last();
        let around = self.around.iter().flatten().copied().max();
        let around = around.map(|id| (id, self.token(id).unwrap_or_default()));
        match words.max(around) {
            Some((id, token)) if id as usize >= vocab_size => {
                Err(TokenizerError::Vocabulary { token, id, vocab_size })
            }
            _ => Ok(()),
        }
    }

    /// Memory that suffices to encode any usual text: a fixed amount, and an amount per token.
    pub const WORKING: [u64; 2] = [room::FIXED as u64, room::POSITION as u64];

    /// Limits encoding to texts of at most `positions` tokens, and to `working` bytes of memory.
    pub fn bound(&mut self, positions: usize, working: u64) {
        self.positions = positions;
        self.working = usize::try_from(working).unwrap_or(usize::MAX);
    }

    /// The largest id plus one.
    pub fn vocab_size(&self) -> usize {
        self.last as usize + 1
    }

    /// The ids of a text. Special tokens written in it are recognised. `add_special` adds those
    /// that the tokenizer puts around a text (a chat template has already written them).
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        let ids = self.ids(&[(text, false)])?;
        let [before, behind] = &self.around;
        let all = [before, &ids, behind].map(Vec::as_slice);
        self.known(if add_special { all.concat() } else { ids })
    }

    /// The ids of a prompt, each part of which is encoded on its own. Special tokens written in literal
    /// parts are text.
    pub fn encode_prompt(&self, prompt: &ChatPrompt) -> Result<Vec<u32>, TokenizerError> {
        let parts: Vec<(&str, bool)> = prompt.parts().collect();
        self.known(self.ids(&parts)?)
    }

    /// The ids, if the model knows all of them.
    fn known(&self, ids: Vec<u32>) -> Result<Vec<u32>, TokenizerError> {
        match ids.iter().find(|&&id| id as usize >= self.limit) {
            Some(&id) => Err(TokenizerError::Unknown {
                token: self.token(id).unwrap_or_default(),
                id,
                vocab_size: self.limit,
            }),
            None => Ok(ids),
        }
    }

    /// The ids of the parts of a text. A part is literal if its flag is true.
    fn ids(&self, parts: &[(&str, bool)]) -> Result<Vec<u32>, TokenizerError> {
        let bytes = parts.iter().map(|(part, _)| part.len()).sum();
        let positions = self.positions;
        let most = positions.saturating_mul(self.longest.max(LEAST_LONGEST));
        if bytes > most {
            return Err(TokenizerError::TooLong { bytes, positions, most });
        }
        let encoded = || -> Result<Vec<u32>, TokenizerError> {
            let mut ids = Vec::new();
            for &(text, is_literal) in parts {
                // The memory of a part is free again after it.
                let room = EncodingRoom::new(text.len(), self.working);
                // Checked before the text is copied.
                room.change(0, 0, self.starts[0].count(text).saturating_mul(2))?;
                ids.extend(self.encoded(text, is_literal, room)?);
            }
            Ok(ids)
        };
        // Encoding runs on a new thread, because the `tokenizers` crate caches words per thread.
        let ids = caught_on_thread(STACK, encoded);
        ids.map_err(TokenizerError::Thread)?.ok_or_else(contradiction)?
    }

    fn encoded(
        &self,
        text: &str,
        is_literal: bool,
        room: EncodingRoom,
    ) -> Result<Vec<u32>, TokenizerError> {
        let (mut text, room) = self.normalized(text, is_literal, room)?;
        self.steps.cut(&mut text, &room)?;
        let model = self.inner.get_model();
        let mut longest = 0;
        let mut tries = 0u64;
        for (word, added) in steps::parts(&text) {
            if added.is_none() {
                longest = longest.max(word.len());
                tries = tries.saturating_add(model.tries(word, self.longest));
            }
        }
        room.word(longest)?;
        if tries > MAX_TRIES {
            return Err(TokenizerError::Tries { bytes: room.given() });
        }
        let mut ids = Vec::new();
        for (word, added) in steps::parts(&text) {
            match added {
                Some(id) => ids.push(id),
                None => model.ids(word, &mut ids)?,
            }
        }
        Ok(ids)
    }

    /// Normalizes the text and separates added tokens from it, if it is not literal.
    fn normalized(
        &self,
        text: &str,
        is_literal: bool,
        room: EncodingRoom,
    ) -> Result<(PreTokenizedString, EncodingRoom), TokenizerError> {
        let steps = &self.steps;
        let starts = &self.starts[1];
        let bounded = Bounded { steps, starts, state: Mutex::new((room, None)) };
        let added = self.inner.get_added_vocabulary();
        let text = if is_literal {
            let mut text = PreTokenizedString::from(text);
            text.normalize(|part| bounded.normalize(part)).map_err(failed)?;
            text
        } else {
            added.extract_and_normalize(Some(&bounded), text)
        };
        match bounded.state.into_inner() {
            Ok((room, None)) => Ok((text, room)),
            Ok((_, Some(error))) => Err(error),
            Err(_) => Err(contradiction()),
        }
    }

    /// The id of a token, spelled as in the file.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The token with this id, spelled as in the file.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// True for a special token, which has no text.
    pub fn is_special(&self, id: u32) -> bool {
        let added = self.inner.get_added_vocabulary().get_added_tokens_decoder();
        added.get(&id).is_some_and(|token| token.special)
    }

    /// The bytes of a token after other text. For special tokens, the bytes of their names.
    pub fn bytes(&self, id: u32) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        self.pieces.append(self.token(id)?, Position::Middle, &mut bytes);
        Some(bytes)
    }

    pub(super) fn pieces(&self) -> &TokenPieces {
        &self.pieces
    }
}

/// The normalizer of a file. It keeps its first error, since the `tokenizers` crate ignores errors
/// of normalizers.
struct Bounded<'a> {
    steps: &'a Steps,
    starts: &'a Starts,
    state: Mutex<(EncodingRoom, Option<TokenizerError>)>,
}

impl Normalizer for Bounded<'_> {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        let mut state = self.state.lock().map_err(|e| e.to_string())?;
        let (room, error) = &mut *state;
        if error.is_none() {
            *error = self.within(text, room).err();
        }
        if error.is_some() {
            text.clear();
        }
        Ok(())
    }
}

impl Bounded<'_> {
    /// Normalizes the text, if it and its parts then fit into `room`.
    fn within(
        &self,
        text: &mut NormalizedString,
        room: &EncodingRoom,
    ) -> Result<(), TokenizerError> {
        self.steps.normalize(text, room)?;
        room.change(0, 0, self.starts.count(text.get()).saturating_mul(2))
    }
}

/// The tokens that a tokenizer puts before and after a text, found by processing an id that no
/// tokenizer has.
fn around(inner: &Inner) -> Result<[Vec<u32>; 2], TokenizerError> {
    let text = u32::MAX;
    let bare = processed(inner, text, false)?;
    let special = processed(inner, text, true)?;
    let mut parts = special.split(|&id| id == text);
    match (&*bare, parts.next(), parts.next(), parts.next()) {
        ([id], Some(before), Some(behind), None) if *id == text => {
            Ok([before.to_vec(), behind.to_vec()])
        }
        _ => {
            let repeats = "a post_processor that leaves out or repeats the text";
            Err(TokenizerError::Unsupported(repeats.to_owned()))
        }
    }
}

/// The ids of a text of this one id, with special tokens or without.
fn processed(inner: &Inner, id: u32, special: bool) -> Result<Vec<u32>, TokenizerError> {
    let encoding = Encoding::from_tokens(vec![Token::new(id, "a".to_owned(), (0, 1))], 0);
    let encoding = inner.post_process(encoding, None, special).map_err(failed)?;
    Ok(encoding.get_ids().to_vec())
}

/// The start of a pattern or a token, for an error message.
fn start(text: &str, chars: usize) -> String {
    text.chars().take(chars).collect::<String>().escape_debug().to_string()
}

/// Runs a part of the `tokenizers` crate. It indexes and unwraps by the contents of the file in
/// more places than could be checked beforehand, so a panic there becomes an error about the file.
fn guarded<T>(run: impl FnOnce() -> Result<T, TokenizerError>) -> Result<T, TokenizerError> {
    caught(run).unwrap_or_else(|| Err(damaged(CONTRADICTION)))
}

const CONTRADICTION: &str = "its parts contradict each other";

fn contradiction() -> TokenizerError {
    TokenizerError::Encode(CONTRADICTION.to_owned())
}

fn damaged(why: impl ToString) -> TokenizerError {
    TokenizerError::Damaged(why.to_string())
}

/// The error of a callback that the `tokenizers` crate passed on, or its own.
fn failed(error: Box<dyn std::error::Error + Send + Sync>) -> TokenizerError {
    match error.downcast() {
        Ok(own) => *own,
        Err(other) => TokenizerError::Encode(other.to_string()),
    }
}
