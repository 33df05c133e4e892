//! Writes the `tokenizer.json` of a GGUF file without building a tree of its values, as there are
//! hundreds of thousands of tokens and merges.

use std::io::{self, Write};

use serde::{Serialize, Serializer};
use serde_json::Value as Json;

use super::{GgufTextError, HeaderTokens};
use crate::tokenizer::vocabulary::Vocabulary;

#[derive(Serialize)]
pub(super) struct TokenizerFile<'a> {
    pub(super) version: &'static str,
    pub(super) added_tokens: Json,
    pub(super) normalizer: Json,
    pub(super) pre_tokenizer: Json,
    pub(super) post_processor: Json,
    pub(super) decoder: Json,
    pub(super) model: BpeModel<'a>,
}

/// The `model` of a file: byte pair encoding.
#[derive(Serialize)]
pub(super) struct BpeModel<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    pub(super) unk_token: Option<&'a str>,
    pub(super) fuse_unk: bool,
    pub(super) byte_fallback: bool,
    pub(super) ignore_merges: bool,
    #[serde(serialize_with = "ids_by_token")]
    vocab: &'a Vocabulary,
    merges: MergeList<'a>,
}

/// Merges, best first.
pub(super) enum MergeList<'a> {
    /// Two tokens as text, with a blank between them.
    Texts(Vec<&'a str>),
    /// The ids of two tokens.
    Ids(&'a Vocabulary, Vec<[u32; 2]>),
}

impl<'a> BpeModel<'a> {
    pub(super) fn new(tokens: &'a HeaderTokens, merges: MergeList<'a>) -> BpeModel<'a> {
        BpeModel {
            kind: "BPE",
            unk_token: None,
            fuse_unk: false,
            byte_fallback: false,
            ignore_merges: false,
            vocab: &tokens.vocabulary,
            merges,
        }
    }
}

impl Serialize for MergeList<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            MergeList::Texts(texts) => texts.serialize(to),
            MergeList::Ids(vocabulary, ids) => {
                to.collect_seq(ids.iter().map(|pair| pair.map(|id| vocabulary.text(id))))
            }
        }
    }
}

fn ids_by_token<S: Serializer>(vocab: &Vocabulary, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(vocab.iter())
}

/// Writes the bytes of a file into a vector of exactly the right capacity.
pub(super) fn write(file: &TokenizerFile<'_>) -> Result<Vec<u8>, GgufTextError> {
    let mut len = Length(0);
    let written = serde_json::to_writer(&mut len, file);
    let mut bytes = Vec::with_capacity(len.0);
    let written = written.and_then(|()| serde_json::to_writer(&mut bytes, file));
    written.map(|()| bytes).map_err(|_| GgufTextError::Wrong(super::TOKENS))
}

/// Writer that only counts bytes.
struct Length(usize);

impl Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
