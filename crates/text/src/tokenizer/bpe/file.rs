//! The `model` of a `tokenizer.json` with byte pair encoding. Its tokens and merges are read one by
//! one, so that reading takes no more memory than the result.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor,
};
use serde_json::value::RawValue;

use super::{Bpe, BpeOptions, MergeRanks, Merges};
use crate::tokenizer::memory::TokenizerSizes;
use crate::tokenizer::outline::ModelOutline;
use crate::tokenizer::vocabulary::{Entries, Vocabulary};

impl Bpe {
    /// Parses the model of a `tokenizer.json`, whose lists have these sizes.
    pub(in super::super) fn of_outline(
        outline: &ModelOutline<'_>,
        sizes: &TokenizerSizes,
    ) -> serde_json::Result<Bpe> {
        let mut entries = Entries::with_capacity(sizes.tokens, sizes.bytes);
        read(present(outline.vocab, "vocab")?, TokensVisitor(&mut entries))?;
        let vocabulary = Vocabulary::new(entries);
        let mut merges = Vec::with_capacity(sizes.merges);
        let visitor = MergesVisitor { vocabulary: &vocabulary, merges: &mut merges };
        read(present(outline.merges, "merges")?, visitor)?;
        let suffix = outline.end_of_word_suffix.as_deref().unwrap_or_default();
        let options = BpeOptions {
            unknown: outline.unk_token.as_deref().map(str::to_owned),
            fuses_unknown: option(outline.fuse_unk)?.unwrap_or(false),
            suffix: suffix.to_owned(),
            falls_back_to_bytes: option(outline.byte_fallback)?.unwrap_or(false),
            takes_whole_words: option(outline.ignore_merges)?.unwrap_or(false),
            is_random: option::<f32>(outline.dropout)?.is_some_and(|share| share != 0.0),
        };
        Ok(Bpe::new(vocabulary, Merges::Listed(MergeRanks::new(merges)), options))
    }
}

fn present<'a>(
    json: Option<&'a RawValue>,
    field: &'static str,
) -> serde_json::Result<&'a RawValue> {
    json.ok_or_else(|| serde_json::Error::missing_field(field))
}

/// The value of an option, if it is given.
fn option<T: DeserializeOwned>(json: Option<&RawValue>) -> serde_json::Result<Option<T>> {
    json.map(|json| serde_json::from_str(json.get())).transpose()
}

/// Reads a value with a visitor.
fn read<'de, V: Visitor<'de>>(json: &'de RawValue, visitor: V) -> serde_json::Result<V::Value> {
    serde_json::Deserializer::from_str(json.get()).deserialize_any(visitor)
}

/// Collects the tokens of a map.
struct TokensVisitor<'a>(&'a mut Entries);

impl<'de> Visitor<'de> for TokensVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tokens with ids")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_key_seed(NewToken(self.0))?.is_some() {
            self.0.name(map.next_value()?);
        }
        Ok(())
    }
}

/// Adds a token whose id follows.
struct NewToken<'a>(&'a mut Entries);

impl<'de> DeserializeSeed<'de> for NewToken<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_str(self)
    }
}

impl Visitor<'_> for NewToken<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a token")
    }

    fn visit_str<E: Error>(self, token: &str) -> Result<(), E> {
        self.0.push(token, 0).ok_or_else(|| E::custom("its tokens are too long"))
    }
}

/// Collects the merges of a list.
struct MergesVisitor<'a> {
    vocabulary: &'a Vocabulary,
    merges: &'a mut Vec<[u32; 3]>,
}

impl<'de> Visitor<'de> for MergesVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of merges")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let mut joined = String::new();
        loop {
            let rule = MergeVisitor { vocabulary: self.vocabulary, joined: &mut joined };
            match seq.next_element_seed(rule)? {
                Some(Some(merge)) => self.merges.push(merge),
                Some(None) => {}
                None => return Ok(()),
            }
        }
    }
}

/// Reads a merge: two tokens in a list, or in a text with a blank between them.
struct MergeVisitor<'a> {
    vocabulary: &'a Vocabulary,
    /// Buffer for the text of the merged token.
    joined: &'a mut String,
}

impl MergeVisitor<'_> {
    /// The ids of two tokens, and of the merged token.
    fn ids<E: Error>(&mut self, left: &str, right: &str) -> Result<[u32; 3], E> {
        self.joined.clear();
        self.joined.push_str(left);
        self.joined.push_str(right);
        Ok([self.id(left)?, self.id(right)?, self.id(self.joined)?])
    }

    fn id<E: Error>(&self, token: &str) -> Result<u32, E> {
        match self.vocabulary.id(token) {
            Some(id) => Ok(id),
            None => Err(E::custom(format!("the merge {token} is not in the vocabulary"))),
        }
    }
}

impl<'de> DeserializeSeed<'de> for MergeVisitor<'_> {
    type Value = Option<[u32; 3]>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for MergeVisitor<'_> {
    /// `None` for a line that is not a merge.
    type Value = Option<[u32; 3]>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a merge")
    }

    fn visit_str<E: Error>(mut self, line: &str) -> Result<Self::Value, E> {
        if line.starts_with("#version") {
            return Ok(None);
        }
        match line.split_once(' ') {
            Some((left, right)) if !right.contains(' ') => self.ids(left, right).map(Some),
            _ => Err(E::custom(format!("the merge `{line}` is not two tokens"))),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<Self::Value, A::Error> {
        let left = seq.next_element::<BpeText>()?;
        let right = seq.next_element::<BpeText>()?;
        match (left, right, seq.next_element::<BpeText>()?) {
            (Some(BpeText(left)), Some(BpeText(right)), None) => self.ids(&left, &right).map(Some),
            _ => Err(A::Error::custom("a merge is not two tokens")),
        }
    }
}

/// A text, copied only where it has escapes.
#[derive(Deserialize)]
struct BpeText<'a>(#[serde(borrow)] Cow<'a, str>);
