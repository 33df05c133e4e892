//! The model in a `tokenizer.json`: its options, and the sizes of its lists.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::tokenizer::memory::{ModelKind, TokenizerSizes};

/// Maximum size of words such as `<unk>` and `##`, which are repeated for every word or letter.
const MAX_AFFIX: usize = 64;

/// A model whose tokens and merges are not parsed yet.
#[derive(Deserialize)]
pub(in super::super) struct ModelOutline<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(in super::super) vocab: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(in super::super) merges: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(in super::super) unk_token: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    continuing_subword_prefix: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(in super::super) end_of_word_suffix: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(in super::super) dropout: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(in super::super) fuse_unk: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(in super::super) byte_fallback: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(in super::super) ignore_merges: Option<&'a RawValue>,
}

impl ModelOutline<'_> {
    /// True for byte pair encoding.
    pub(in super::super) fn is_bpe(&self) -> bool {
        self.kind.as_deref().map_or(self.merges.is_some(), |kind| kind == "BPE")
    }

    /// Numbers and sizes of its tokens and merges.
    pub(in super::super) fn sizes(&self) -> serde_json::Result<TokenizerSizes> {
        let mut sizes = match self.vocab {
            Some(json) => serde_json::from_str::<VocabularySizes>(json.get())?.0,
            None => TokenizerSizes::default(),
        };
        sizes.merges = match self.merges {
            Some(json) => serde_json::from_str::<MergeCount>(json.get())?.0,
            None => 0,
        };
        sizes.kind = if self.is_bpe() { ModelKind::Bpe } else { ModelKind::Other };
        Ok(sizes)
    }

    /// Checks the options. On failure, returns what is not supported.
    pub(super) fn check(&self) -> Result<(), String> {
        let affixes = [&self.unk_token, &self.continuing_subword_prefix, &self.end_of_word_suffix];
        if let Some(affix) = affixes.into_iter().flatten().find(|affix| affix.len() > MAX_AFFIX) {
            return Err(format!("an unk_token, prefix or suffix of {} bytes", affix.len()));
        }
        // The `tokenizers` crate cuts the prefix length off tokens in bytes, even within a
        // character.
        let prefix = self.continuing_subword_prefix.as_deref().unwrap_or_default();
        let bpe = matches!(self.kind.as_deref(), None | Some("BPE"));
        if bpe && !prefix.is_empty() {
            return Err("BPE with a continuing_subword_prefix".to_owned());
        }
        Ok(())
    }
}

/// Number of merge rules.
struct MergeCount(usize);

impl<'de> Deserialize<'de> for MergeCount {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct MergeCountVisitor;
        impl<'de> Visitor<'de> for MergeCountVisitor {
            type Value = MergeCount;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of merges")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<MergeCount, A::Error> {
                let mut merges = MergeCount(0);
                while seq.next_element::<IgnoredAny>()?.is_some() {
                    merges.0 += 1;
                }
                Ok(merges)
            }
        }
        from.deserialize_seq(MergeCountVisitor)
    }
}

/// Number, form and size of the tokens in a vocabulary.
#[derive(Default)]
struct VocabularySizes(TokenizerSizes);

impl<'de> Deserialize<'de> for VocabularySizes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct TokenSizesVisitor;
        impl<'de> Visitor<'de> for TokenSizesVisitor {
            type Value = VocabularySizes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("tokens with ids or scores")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<VocabularySizes, A::Error> {
                let mut sizes = TokenizerSizes::default();
                while let Some((Len(len), _)) = map.next_entry::<Len, IgnoredAny>()? {
                    sizes.add(len);
                }
                Ok(VocabularySizes(sizes))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<VocabularySizes, A::Error> {
                let mut sizes = TokenizerSizes { scored: true, ..TokenizerSizes::default() };
                while let Some((Len(len), _)) = seq.next_element::<(Len, IgnoredAny)>()? {
                    sizes.add(len);
                }
                Ok(VocabularySizes(sizes))
            }
        }
        from.deserialize_any(TokenSizesVisitor)
    }
}

/// The length of a string, which is not stored.
struct Len(usize);

impl<'de> Deserialize<'de> for Len {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl Visitor<'_> for TextVisitor {
            type Value = Len;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a token")
            }

            fn visit_str<E>(self, text: &str) -> Result<Len, E> {
                Ok(Len(text.len()))
            }
        }
        from.deserialize_str(TextVisitor)
    }
}
