//! Text to token ids.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::detokenize::{DecoderSpec, Detokenizer, Pieces, Position};

/// The largest `tokenizer.json` that is read. Those of the largest vocabularies are about half of it.
pub const MAX_TOKENIZER_BYTES: usize = 64 << 20;

/// A `tokenizer.json`.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    pieces: Pieces,
    /// The largest id.
    last: u32,
    /// How many tokens the model knows.
    limit: usize,
}

/// Why a tokenizer cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// More bytes than any tokenizer has.
    #[error(
        "tokenizer.json has {bytes} bytes, and none has more than {MAX_TOKENIZER_BYTES}; take the one that was published with the weights"
    )]
    TooLarge {
        /// How many.
        bytes: usize,
    },
    /// Not a tokenizer.
    #[error("tokenizer.json is damaged ({0}); download it again")]
    Damaged(String),
    /// It has no token.
    #[error("tokenizer.json has no tokens; download it again")]
    Empty,
    /// Tokens become text in a way that is not known.
    #[error(
        "tokenizer.json turns tokens into text with {0}, which is not supported; supported are ByteLevel, Metaspace, and sequences of Replace, ByteFallback, Fuse and Strip"
    )]
    Decoder(String),
    /// Encoding would be random.
    #[error(
        "tokenizer.json asks for BPE dropout, which makes every encoding a random one; set its `dropout` to null"
    )]
    Dropout,
    /// It does not belong to the model.
    #[error(
        "tokenizer.json gives the token `{token}` the id {id}, and the model knows only {vocab_size} tokens; take the tokenizer.json that was published with the weights"
    )]
    Vocabulary {
        /// The token with the largest id.
        token: String,
        /// That id.
        id: u32,
        /// How many the model knows.
        vocab_size: usize,
    },
    /// A text spells a token that the model does not know.
    #[error(
        "the text has the token `{token}`, to which tokenizer.json gives the id {id}, and the model knows only {vocab_size} tokens; leave it out of the text"
    )]
    Unknown {
        /// The token.
        token: String,
        /// Its id.
        id: u32,
        /// How many the model knows.
        vocab_size: usize,
    },
    /// Encoding failed.
    #[error("tokenizer.json cannot encode this text ({0}); download it again")]
    Encode(String),
}

impl Tokenizer {
    /// Reads the bytes of a `tokenizer.json`.
    pub fn from_bytes(json: &[u8]) -> Result<Tokenizer, TokenizerError> {
        if json.len() > MAX_TOKENIZER_BYTES {
            return Err(TokenizerError::TooLarge { bytes: json.len() });
        }
        let mut inner =
            guarded(|| tokenizers::Tokenizer::from_bytes(json)).map_err(TokenizerError::Damaged)?;
        // Left over from training; a prompt is neither cut nor filled up.
        inner.with_padding(None);
        if let Err(e) = inner.with_truncation(None) {
            return Err(TokenizerError::Damaged(e.to_string()));
        }
        if let tokenizers::ModelWrapper::BPE(bpe) = inner.get_model()
            && bpe.dropout.is_some_and(|p| p != 0.0)
        {
            return Err(TokenizerError::Dropout);
        }
        let decoder = match inner.get_decoder() {
            Some(decoder) => Some(DecoderSpec::of(decoder).map_err(TokenizerError::Decoder)?),
            None => None,
        };
        let pieces = Pieces::new(decoder).map_err(TokenizerError::Decoder)?;
        let last = inner.get_vocab(true).into_values().max().ok_or(TokenizerError::Empty)?;
        Ok(Tokenizer { inner, pieces, last, limit: usize::MAX })
    }

    /// Says how many tokens the model knows. More than the tokenizer has is usual: vocabularies are
    /// padded.
    ///
    /// It is an error if an ordinary text could need others: if the tokens that words are made of,
    /// or those put around every text, lie beyond. Others are met only where a text spells them, and
    /// [`encode`](Self::encode) refuses that text: there are fine-tuned models whose tokenizer has
    /// such tokens, and that were never given any.
    pub fn limit(&mut self, vocab_size: usize) -> Result<(), TokenizerError> {
        self.limit = vocab_size;
        let words = self.inner.get_vocab(false).into_iter().map(|(token, id)| (id, token));
        let around = self.ids("", true)?.into_iter().max();
        let around = around.map(|id| (id, self.token(id).unwrap_or_default()));
        match words.max().max(around) {
            Some((id, token)) if id as usize >= vocab_size => {
                Err(TokenizerError::Vocabulary { token, id, vocab_size })
            }
            _ => Ok(()),
        }
    }

    /// One more than the largest id.
    pub fn vocab_size(&self) -> usize {
        self.last as usize + 1
    }

    /// The ids of a text. Special tokens written in it are recognised; `add_special` adds those that
    /// the tokenizer puts around a text (a chat template has already written them).
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        let ids = self.ids(text, add_special)?;
        match ids.iter().find(|&&id| id as usize >= self.limit) {
            Some(&id) => Err(TokenizerError::Unknown {
                token: self.token(id).unwrap_or_default(),
                id,
                vocab_size: self.limit,
            }),
            None => Ok(ids),
        }
    }

    fn ids(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        let encoding = guarded(|| self.inner.encode_fast(text, add_special));
        Ok(encoding.map_err(TokenizerError::Encode)?.get_ids().to_vec())
    }

    /// The text of some ids, all at once: what a [`Detokenizer`] yields piece by piece.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut detokenizer = Detokenizer::new(self, Position::Start, skip_special);
        let mut text = String::new();
        for &id in ids {
            detokenizer.push(id, &mut text);
        }
        detokenizer.finish(&mut text);
        text
    }

    /// The id of a token, spelled as in the file.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// A token as it is spelled in the file.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Is it a special token: one that stands for no text?
    pub fn is_special(&self, id: u32) -> bool {
        let added = self.inner.get_added_vocabulary().get_added_tokens_decoder();
        added.get(&id).is_some_and(|token| token.special)
    }

    pub(super) fn pieces(&self) -> &Pieces {
        &self.pieces
    }
}

/// Runs a part of the `tokenizers` crate. It indexes and unwraps by what the file says in more places
/// than could be checked beforehand, so a panic there is an error about the file like any other.
fn guarded<T>(run: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result.map_err(|e| e.to_string()),
        Err(_) => Err("its parts contradict each other".to_owned()),
    }
}
