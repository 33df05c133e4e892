//! The tokens of a header, and the tokenizer that they make.

use serde::de::DeserializeOwned;
use serde_json::{Value as Json, json};
use sws_format::{GgufList, Value};
use tokenizers::AddedToken;

use super::pre::PRE;
use super::{
    GgufTextError, HeaderKeys, HeaderLists, MERGES, PRE_KEY, SCORES, TOKENS, TYPES, flag,
    unsupported,
};
use crate::tokenizer::TokenizerError;
use crate::tokenizer::bpe::{Bpe, BpeOptions, MergeRanks, MergeScores, Merges};
use crate::tokenizer::memory::{ModelKind, TokenizerSizes};
use crate::tokenizer::model::WordModel;
use crate::tokenizer::parts::TokenizerParts;
use crate::tokenizer::vocabulary::{Entries, Vocabulary};

/// Types of tokens.
const NORMAL: i128 = 1;
const UNKNOWN: i128 = 2;
const CONTROL: i128 = 3;
const USER_DEFINED: i128 = 4;

/// Maximum size of a token that merges make, if they follow from scores.
const MAX_MADE: usize = 256;
/// Maximum size of the token for unknown characters.
const MAX_UNKNOWN: usize = 64;

/// The tokens of a header, with their index as id.
pub(super) struct HeaderTokens<'a> {
    pub(super) sizes: TokenizerSizes,
    tokens: GgufList<'a>,
    types: Option<GgufList<'a>>,
    merges: Option<GgufList<'a>>,
    scores: Option<GgufList<'a>>,
}

/// One of the tokens.
struct HeaderToken<'a> {
    text: &'a str,
    kind: i128,
}

impl HeaderToken<'_> {
    /// True if it is recognised wherever a text spells it out.
    fn is_added(&self) -> bool {
        matches!(self.kind, UNKNOWN | CONTROL | USER_DEFINED) && !self.text.is_empty()
    }
}

/// The steps of a tokenizer around its model, as in a `tokenizer.json`.
struct JsonSteps {
    normalizer: Json,
    pre_tokenizer: Json,
    post_processor: Json,
    decoder: Json,
}

impl<'a> HeaderTokens<'a> {
    /// Finds the lists of a model, and checks their sizes. Nothing is copied.
    pub(super) fn new(
        model: &str,
        keys: &HeaderKeys,
        lists: &HeaderLists<'a>,
    ) -> Result<HeaderTokens<'a>, GgufTextError> {
        let tokens = list(keys, lists, TOKENS)?;
        let types = optional_list(keys, lists, TYPES)?;
        let is_scored = model == "llama";
        let (merges, scores) = match is_scored {
            true => (None, Some(list(keys, lists, SCORES)?)),
            false => (Some(list(keys, lists, MERGES)?), None),
        };
        let kind = if is_scored { ModelKind::ScoredBpe } else { ModelKind::Bpe };
        let merge_count = merges.map_or(0, |merges| merges.count());
        let sizes = TokenizerSizes { kind, merges: merge_count, ..TokenizerSizes::default() };
        let mut found = HeaderTokens { sizes, tokens, types, merges, scores };
        found.measure()?;
        found.sizes.check().map_err(TokenizerError::Unsupported)?;
        Ok(found)
    }

    /// Adds up the sizes of the tokens.
    fn measure(&mut self) -> Result<(), GgufTextError> {
        let lists = [(self.types, TYPES), (self.scores, SCORES)];
        for (list, key) in lists {
            if list.is_some_and(|list| list.count() != self.tokens.count()) {
                return Err(GgufTextError::Wrong(key));
            }
        }
        let mut sizes = self.sizes;
        for token in self.each()? {
            let token = token?;
            sizes.add(token.text.len());
            if token.is_added() {
                sizes.add_added(token.text.len());
            }
        }
        self.sizes = sizes;
        Ok(())
    }

    /// The tokens with their types.
    fn each(
        &self,
    ) -> Result<impl Iterator<Item = Result<HeaderToken<'a>, GgufTextError>> + use<'a>, GgufTextError>
    {
        let texts = self.tokens.texts().ok_or(GgufTextError::Wrong(TOKENS))?;
        let mut types = match self.types {
            Some(types) => Some(types.numbers().ok_or(GgufTextError::Wrong(TYPES))?),
            None => None,
        };
        Ok(texts.map(move |text| {
            let kind = match types.as_mut().map(Iterator::next) {
                None => NORMAL,
                Some(Some(Ok(Value::Int(kind)))) => kind,
                Some(_) => return Err(GgufTextError::Wrong(TYPES)),
            };
            Ok(HeaderToken { text: text?, kind })
        }))
    }

    /// Byte-level BPE, as in GPT-2.
    pub(super) fn byte_level(&self, keys: &HeaderKeys) -> Result<TokenizerParts, GgufTextError> {
        let name = keys.get(PRE_KEY).ok_or(GgufTextError::Missing(PRE_KEY))?;
        let name = name.as_str().ok_or(GgufTextError::Wrong(PRE_KEY))?;
        let pre = PRE.iter().find(|pre| pre.names.contains(&name));
        let pre = pre.ok_or_else(|| unsupported(PRE_KEY, name))?;
        let pre_tokenizer = match pre.patterns {
            [] => byte_level_step(true),
            patterns => {
                let mut steps: Vec<Json> = patterns.iter().copied().map(split_step).collect();
                steps.push(byte_level_step(false));
                json!({ "type": "Sequence", "pretokenizers": steps })
            }
        };
        let normalizer = if pre.normalized { json!({ "type": "NFC" }) } else { Json::Null };
        let vocabulary = self.vocabulary()?;
        let post_processor = around(keys, &vocabulary, pre.begins)?;
        let decoder = byte_level_step(true);
        let steps = JsonSteps { normalizer, pre_tokenizer, post_processor, decoder };
        let options = BpeOptions { takes_whole_words: pre.whole_words, ..BpeOptions::default() };
        self.parts(steps, vocabulary, options)
    }

    /// BPE on characters, with spaces replaced. Unknown characters become bytes. A vocabulary of
    /// SentencePiece has scores, from which its merges follow.
    pub(super) fn on_text(&self, keys: &HeaderKeys) -> Result<TokenizerParts, GgufTextError> {
        let space = flag(keys, "tokenizer.ggml.add_space_prefix")?;
        let mut normalizers = vec![replace_step(" ", "▁")];
        let mut decoders = vec![
            replace_step("▁", " "),
            json!({ "type": "ByteFallback" }),
            json!({ "type": "Fuse" }),
        ];
        if space.unwrap_or(self.scores.is_some()) {
            normalizers.insert(0, json!({ "type": "Prepend", "prepend": "▁" }));
            decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
        }
        let vocabulary = self.vocabulary()?;
        let unknown = keys.get("tokenizer.ggml.unknown_token_id").and_then(Value::as_u64);
        let unknown = unknown.and_then(|id| text(&vocabulary, id)).map(str::to_owned);
        if let Some(unknown) = &unknown
            && unknown.len() > MAX_UNKNOWN
        {
            let long = format!("a token for unknown characters of {} bytes", unknown.len());
            return Err(TokenizerError::Unsupported(long).into());
        }
        let steps = JsonSteps {
            normalizer: json!({ "type": "Sequence", "normalizers": normalizers }),
            pre_tokenizer: Json::Null,
            post_processor: around(keys, &vocabulary, true)?,
            decoder: json!({ "type": "Sequence", "decoders": decoders }),
        };
        let options = BpeOptions {
            unknown,
            fuses_unknown: true,
            falls_back_to_bytes: true,
            ..BpeOptions::default()
        };
        self.parts(steps, vocabulary, options)
    }

    fn parts(
        &self,
        steps: JsonSteps,
        vocabulary: Vocabulary,
        options: BpeOptions,
    ) -> Result<TokenizerParts, GgufTextError> {
        let merges = match (self.scores, self.merges) {
            (Some(scores), _) => Merges::Scored(self.merge_scores(scores)?),
            (None, merges) => {
                let merges = merges.ok_or(GgufTextError::Missing(MERGES))?;
                Merges::Listed(merge_ranks(merges, &vocabulary)?)
            }
        };
        Ok(TokenizerParts {
            normalizer: parsed(steps.normalizer)?,
            pre_tokenizer: parsed(steps.pre_tokenizer)?,
            post_processor: parsed(steps.post_processor)?,
            decoder: parsed(steps.decoder)?,
            added: self.added()?,
            model: WordModel::Bpe(Bpe::new(vocabulary, merges, options)),
            longest: self.sizes.longest(),
        })
    }

    fn vocabulary(&self) -> Result<Vocabulary, GgufTextError> {
        let mut entries = Entries::with_capacity(self.sizes.tokens, self.sizes.bytes);
        for (id, token) in (0..).zip(self.each()?) {
            entries.push(token?.text, id).ok_or(GgufTextError::Wrong(TOKENS))?;
        }
        let vocabulary = Vocabulary::new(entries);
        if vocabulary.len() == self.sizes.tokens {
            return Ok(vocabulary);
        }
        for (id, token) in (0..).zip(self.each()?) {
            let token = token?;
            if vocabulary.id(token.text) != Some(id) {
                return Err(GgufTextError::Twice(start(token.text)));
            }
        }
        Err(GgufTextError::Wrong(TOKENS))
    }

    /// The merges that the converters of transformers derive: every split of a token into two
    /// tokens. SentencePiece merges into the token with the highest score first.
    fn merge_scores(&self, scores: GgufList<'_>) -> Result<MergeScores, GgufTextError> {
        let numbers = scores.numbers().ok_or(GgufTextError::Wrong(SCORES))?;
        let mut values = Vec::with_capacity(scores.count());
        for value in numbers {
            values.push(value?.as_f64().ok_or(GgufTextError::Wrong(SCORES))?);
        }
        let mut is_made = Vec::with_capacity(scores.count());
        for token in self.each()? {
            let token = token?;
            is_made.push(token.kind == NORMAL && token.text.len() <= MAX_MADE);
        }
        Ok(MergeScores::new(&values, |id| is_made[id as usize]))
    }

    /// Tokens that are recognised wherever a text spells them out.
    fn added(&self) -> Result<Vec<AddedToken>, GgufTextError> {
        let mut added = Vec::with_capacity(self.sizes.added);
        for token in self.each()? {
            let token = token?;
            if token.is_added() {
                let special = token.kind != USER_DEFINED;
                added.push(AddedToken::from(token.text, special).normalized(false));
            }
        }
        Ok(added)
    }
}

/// A list of a header, if it has one.
fn optional_list<'a>(
    keys: &HeaderKeys,
    lists: &HeaderLists<'a>,
    key: &'static str,
) -> Result<Option<GgufList<'a>>, GgufTextError> {
    match lists.get(key).copied() {
        None if keys.contains_key(key) => Err(GgufTextError::Wrong(key)),
        list => Ok(list),
    }
}

fn list<'a>(
    keys: &HeaderKeys,
    lists: &HeaderLists<'a>,
    key: &'static str,
) -> Result<GgufList<'a>, GgufTextError> {
    optional_list(keys, lists, key)?.ok_or(GgufTextError::Missing(key))
}

/// The merges of a list, best first: two tokens with a blank between them.
fn merge_ranks(merges: GgufList<'_>, vocabulary: &Vocabulary) -> Result<MergeRanks, GgufTextError> {
    let mut all = Vec::with_capacity(merges.count());
    let mut joined = String::new();
    for merge in merges.texts().ok_or(GgufTextError::Wrong(MERGES))? {
        let merge = merge?;
        if merge.starts_with("#version") {
            continue;
        }
        let Some(ids) = merge_ids(merge, vocabulary, &mut joined) else {
            return Err(GgufTextError::Merge(start(merge)));
        };
        all.push(ids);
    }
    Ok(MergeRanks::new(all))
}

/// The ids of two tokens with a blank between them, and of the token that they make.
fn merge_ids(merge: &str, vocabulary: &Vocabulary, joined: &mut String) -> Option<[u32; 3]> {
    let (left, right) = merge.split_once(' ')?;
    if right.contains(' ') {
        return None;
    }
    joined.clear();
    joined.push_str(left);
    joined.push_str(right);
    Some([vocabulary.id(left)?, vocabulary.id(right)?, vocabulary.id(joined)?])
}

fn byte_level_step(use_regex: bool) -> Json {
    json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": use_regex,
    })
}

fn split_step(pattern: &str) -> Json {
    json!({
        "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated",
        "invert": false,
    })
}

fn replace_step(from: &str, to: &str) -> Json {
    json!({ "type": "Replace", "pattern": { "String": from }, "content": to })
}

/// The tokens before and after every text.
fn around(keys: &HeaderKeys, vocabulary: &Vocabulary, begins: bool) -> Result<Json, GgufTextError> {
    let mut single = vec![json!({ "Sequence": { "id": "A", "type_id": 0 } })];
    let mut special = serde_json::Map::new();
    for (end, default) in [("bos", begins), ("eos", false)] {
        let key = if end == "bos" { "add_bos_token" } else { "add_eos_token" };
        let said = flag(keys, &format!("tokenizer.ggml.{key}"))?;
        if !said.unwrap_or(default) {
            continue;
        }
        let key = match end {
            "bos" => "tokenizer.ggml.bos_token_id",
            _ => "tokenizer.ggml.eos_token_id",
        };
        let id = match keys.get(key) {
            Some(id) => id,
            None if said.is_none() => continue,
            None => return Err(GgufTextError::Missing(key)),
        };
        let id = id.as_u64().ok_or(GgufTextError::Wrong(key))?;
        let token = text(vocabulary, id).ok_or(GgufTextError::Wrong(key))?;
        let at = if end == "bos" { 0 } else { single.len() };
        single.insert(at, json!({ "SpecialToken": { "id": token, "type_id": 0 } }));
        special.insert(token.to_owned(), json!({ "id": token, "ids": [id], "tokens": [token] }));
    }
    if special.is_empty() {
        return Ok(Json::Null);
    }
    // Pairs of texts are never encoded, but the file must define their form.
    let pair = [single.clone(), vec![json!({ "Sequence": { "id": "B", "type_id": 1 } })]];
    Ok(json!({
        "type": "TemplateProcessing", "single": single, "pair": pair.concat(),
        "special_tokens": special,
    }))
}

fn text(vocabulary: &Vocabulary, id: u64) -> Option<&str> {
    vocabulary.text(u32::try_from(id).ok()?)
}

/// A step of the `tokenizers` crate.
fn parsed<T: DeserializeOwned>(step: Json) -> Result<Option<T>, GgufTextError> {
    let parsed = serde_json::from_value(step);
    parsed.map_err(|e| TokenizerError::Damaged(e.to_string()).into())
}

/// The start of a text, for an error message.
fn start(text: &str) -> String {
    text.escape_debug().take(40).collect()
}
