//! The model of a tokenizer, which splits words into tokens.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::BpeTrainer;
use tokenizers::{
    DecoderWrapper, Model, ModelWrapper, NormalizerWrapper, PostProcessorWrapper,
    PreTokenizerWrapper, Token, TokenizerImpl,
};

use super::TokenizerError;
use super::bpe::Bpe;

/// The tokenizer of the `tokenizers` crate, with this module's model.
pub(super) type Inner = TokenizerImpl<
    WordModel,
    NormalizerWrapper,
    PreTokenizerWrapper,
    PostProcessorWrapper,
    DecoderWrapper,
>;

/// A model: byte pair encoding, which nearly all language models use, or a model of the
/// `tokenizers` crate.
#[derive(Debug)]
pub(in super::super) enum WordModel {
    Bpe(Bpe),
    Other(ModelWrapper),
}

impl WordModel {
    /// Appends the ids of the tokens of a word.
    pub(super) fn ids(&self, word: &str, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        match self {
            WordModel::Bpe(bpe) => bpe.ids(word, ids),
            WordModel::Other(model) => {
                let tokens = model.tokenize(word).map_err(super::failed)?;
                ids.extend(tokens.iter().map(|token| token.id));
                Ok(())
            }
        }
    }

    /// The token with the largest id.
    pub(super) fn last(&self) -> Option<(u32, String)> {
        match self {
            WordModel::Bpe(bpe) => {
                let id = bpe.vocabulary().last()?;
                Some((id, bpe.vocabulary().text(id)?.to_owned()))
            }
            WordModel::Other(model) => {
                model.get_vocab().into_iter().map(|(text, id)| (id, text)).max()
            }
        }
    }

    /// Number of bytes tried as tokens in a word, if no token is longer than `longest`.
    pub(super) fn tries(&self, word: &str, longest: usize) -> u64 {
        match self {
            WordModel::Bpe(_)
            | WordModel::Other(ModelWrapper::BPE(_) | ModelWrapper::WordLevel(_)) => {
                word.len() as u64
            }
            // At each letter, all tokens that match there, each a prefix of the next.
            WordModel::Other(ModelWrapper::Unigram(_)) => {
                square(longest).saturating_mul(word.len() as u64)
            }
            // At each letter, every prefix of the rest of the word.
            WordModel::Other(ModelWrapper::WordPiece(pieces)) => match word.chars().count() {
                len if len > pieces.max_input_chars_per_word => len as u64,
                _ => square(word.len()).saturating_mul(word.len() as u64),
            },
        }
    }
}

fn square(len: usize) -> u64 {
    (len as u64).saturating_mul(len as u64)
}

impl Model for WordModel {
    type Trainer = TrainerWrapper;

    fn tokenize(&self, word: &str) -> tokenizers::Result<Vec<Token>> {
        match self {
            WordModel::Bpe(bpe) => Ok(bpe.tokens(word)?),
            WordModel::Other(model) => model.tokenize(word),
        }
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        match self {
            WordModel::Bpe(bpe) => bpe.vocabulary().id(token),
            WordModel::Other(model) => model.token_to_id(token),
        }
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        match self {
            WordModel::Bpe(bpe) => bpe.vocabulary().text(id).map(str::to_owned),
            WordModel::Other(model) => model.id_to_token(id),
        }
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        match self {
            WordModel::Bpe(bpe) => {
                bpe.vocabulary().iter().map(|(text, id)| (text.to_owned(), id)).collect()
            }
            WordModel::Other(model) => model.get_vocab(),
        }
    }

    fn get_vocab_size(&self) -> usize {
        match self {
            WordModel::Bpe(bpe) => bpe.vocabulary().len(),
            WordModel::Other(model) => model.get_vocab_size(),
        }
    }

    fn save(&self, folder: &Path, prefix: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        match self {
            WordModel::Bpe(_) => Err("this model is only read".into()),
            WordModel::Other(model) => model.save(folder, prefix),
        }
    }

    /// The trait requires a trainer, but nothing is trained.
    fn get_trainer(&self) -> TrainerWrapper {
        match self {
            WordModel::Bpe(_) => BpeTrainer::default().into(),
            WordModel::Other(model) => model.get_trainer(),
        }
    }
}
