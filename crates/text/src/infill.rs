//! Texts between a prefix and a suffix, for models that were trained to fill them in.

use std::collections::BTreeMap;

use sws_format::Value;

use crate::{Tokenizer, TokenizerError};

/// Tokens around a prefix and a suffix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Infill {
    prefix: u32,
    suffix: u32,
    middle: u32,
    /// Tokens before the name of a repository and of a file.
    repository: Option<u32>,
    file: Option<u32>,
    /// Tokens that end the text, in addition to those of the model.
    ends: Vec<u32>,
}

/// A file, or a part of one, that a text to fill in may refer to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InfillFile {
    /// Name of the file.
    pub name: Option<String>,
    /// Its text.
    pub text: String,
}

/// Names of the tokens for one kind of models. An empty name stands for none.
struct InfillNames {
    /// Tokens before the prefix, the suffix and the text.
    frame: [&'static str; 3],
    repository: &'static str,
    file: &'static str,
    /// A token for padding, which ends a text.
    padding: &'static str,
}

/// The names of a vocabulary that is not known.
const UNKNOWN: InfillNames =
    InfillNames { frame: ["", "", ""], repository: "", file: "", padding: "" };

/// The names of each kind, by the first match.
const KNOWN: [InfillNames; 6] = [
    // Qwen2.5-Coder, Qwen3-Coder, Granite 4.
    InfillNames {
        frame: ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
        repository: "<|repo_name|>",
        file: "<|file_sep|>",
        padding: "<|fim_pad|>",
    },
    // StarCoder 2, Granite Code, Granite 3.
    InfillNames {
        frame: ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
        repository: "<repo_name>",
        file: "<file_sep>",
        padding: "<fim_pad>",
    },
    // SantaCoder.
    InfillNames {
        frame: ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
        repository: "",
        file: "",
        padding: "<fim-pad>",
    },
    // DeepSeek Coder.
    InfillNames {
        frame: ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
        repository: "",
        file: "",
        padding: "",
    },
    // GLM 4.5.
    InfillNames {
        frame: ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
        repository: "",
        file: "",
        padding: "",
    },
    // Code Llama, whose end is a token of its own.
    InfillNames {
        frame: ["▁<PRE>", "▁<SUF>", "▁<MID>"],
        repository: "",
        file: "",
        padding: "▁<EOT>",
    },
];

/// Keys of a GGUF file for the tokens before prefix, suffix and text, with their older spellings.
const KEYS: [[&str; 2]; 3] = [
    ["tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id"],
    ["tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id"],
    ["tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id"],
];
const REPOSITORY: &str = "tokenizer.ggml.fim_rep_token_id";
const FILE: &str = "tokenizer.ggml.fim_sep_token_id";
const PADDING: &str = "tokenizer.ggml.fim_pad_token_id";

/// What stands before a file, for models without a token for that.
const SNIPPET: &str = "\n\n--- snippet ---\n\n";
/// MarkNames of a repository and of the last file, if the request has none.
const PROJECT: &str = "myproject\n";
const UNNAMED: &str = "tmp";
const LAST: &str = "filename\n";

/// Finds the ids of special tokens.
struct SpecialIds<'a> {
    tokenizer: &'a Tokenizer,
    entries: &'a BTreeMap<String, Value>,
}

impl SpecialIds<'_> {
    fn of_key(&self, key: &str) -> Option<u32> {
        let id = u32::try_from(self.entries.get(key)?.as_u64()?).ok()?;
        ((id as usize) < self.tokenizer.vocab_size()).then_some(id)
    }

    fn of_keys(&self, new: &str, old: &str) -> Option<u32> {
        self.of_key(new).or_else(|| self.of_key(old))
    }

    fn of_key_or_name(&self, key: &str, name: &str) -> Option<u32> {
        match self.of_key(key) {
            None if !name.is_empty() => self.tokenizer.id(name),
            id => id,
        }
    }
}

impl Infill {
    /// The tokens of a model: those that the keys of its GGUF file name, else those of its vocabulary
    /// with known names. `None` for a model that has none.
    pub fn of(tokenizer: &Tokenizer, entries: &BTreeMap<String, Value>) -> Option<Infill> {
        let known = KNOWN.iter().find_map(|names| {
            let [prefix, suffix, middle] = names.frame.map(|name| tokenizer.id(name));
            Some((names, [prefix?, suffix?, middle?]))
        });
        let names = match &known {
            Some((names, _)) => names,
            None => &UNKNOWN,
        };
        let ids = SpecialIds { tokenizer, entries };
        let [prefix, suffix, middle] = match KEYS.map(|[new, old]| ids.of_keys(new, old)) {
            [Some(prefix), Some(suffix), Some(middle)] => [prefix, suffix, middle],
            _ => known?.1,
        };
        let repository = ids.of_key_or_name(REPOSITORY, names.repository);
        let file = ids.of_key_or_name(FILE, names.file);
        let padding = ids.of_key_or_name(PADDING, names.padding);
        let frame = [prefix, suffix, middle];
        let ends = frame.into_iter().chain([repository, file, padding].into_iter().flatten());
        Some(Infill { prefix, suffix, middle, repository, file, ends: ends.collect() })
    }

    /// Tokens that end the text, in addition to those of the model.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// The tokens of a prompt for the text between `prefix` and `suffix`. `files` come first.
    pub fn prompt(
        &self,
        tokenizer: &Tokenizer,
        prefix: &str,
        suffix: &str,
        files: &[InfillFile],
    ) -> Result<Vec<u32>, TokenizerError> {
        let mut tokens = tokenizer.encode("", true)?;
        if !files.is_empty() {
            if let Some(repository) = self.repository {
                tokens.push(repository);
                tokens.extend(tokenizer.encode(PROJECT, false)?);
            }
            for InfillFile { name, text } in files {
                match self.file {
                    Some(file) => {
                        let name = name.as_deref().unwrap_or(UNNAMED);
                        tokens.push(file);
                        tokens.extend(tokenizer.encode(&format!("{name}\n"), false)?);
                    }
                    None => tokens.extend(tokenizer.encode(SNIPPET, false)?),
                }
                tokens.extend(tokenizer.encode(text, false)?);
            }
            if let Some(file) = self.file {
                tokens.push(file);
                tokens.extend(tokenizer.encode(LAST, false)?);
            }
        }
        for (token, text) in [(self.prefix, prefix), (self.suffix, suffix)] {
            tokens.push(token);
            tokens.extend(tokenizer.encode(text, false)?);
        }
        tokens.push(self.middle);
        Ok(tokens)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A tokenizer with a token for each letter, and these.
    fn tokenizer(special: &[&str]) -> Tokenizer {
        let letters = "abcdefghijklmnopqrstuvwxyz-ĊĠ".chars().map(String::from);
        let names: Vec<String> =
            letters.chain(special.iter().map(|name| (*name).to_owned())).collect();
        let vocab: serde_json::Map<String, serde_json::Value> =
            names.iter().enumerate().map(|(id, name)| (name.clone(), id.into())).collect();
        let added: Vec<serde_json::Value> = names.iter().enumerate().skip(29).map(|(id, name)| {
            json!({"id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        }).collect();
        let json = json!({
            "added_tokens": added,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
            "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
            "model": {"type": "BPE", "vocab": vocab, "merges": []},
        });
        Tokenizer::from_bytes(json.to_string().as_bytes()).unwrap()
    }

    fn prompt(special: &[&str], entries: &[(&str, i128)], files: &[InfillFile]) -> Option<String> {
        let tokenizer = tokenizer(special);
        let entries = entries.iter().map(|(key, id)| ((*key).to_owned(), Value::Int(*id)));
        let infill = Infill::of(&tokenizer, &entries.collect())?;
        let tokens = infill.prompt(&tokenizer, "ab", "cd", files).unwrap();
        Some(tokenizer.decode(&tokens, false))
    }

    #[test]
    fn each_kind_of_model_has_its_tokens() {
        for names in &KNOWN {
            let [prefix, suffix, middle] = names.frame;
            let expected = format!("{prefix}ab{suffix}cd{middle}");
            assert_eq!(prompt(&names.frame, &[], &[]), Some(expected));
            assert_eq!(prompt(&names.frame[..2], &[], &[]), None);
        }
        let keys = [(KEYS[0][0], 31), (KEYS[1][1], 30), (KEYS[2][0], 29)];
        assert_eq!(prompt(&["<m>", "<s>", "<p>"], &keys, &[]).as_deref(), Some("<p>ab<s>cd<m>"));
        // Outside the vocabulary.
        assert_eq!(prompt(&["<m>", "<s>"], &keys, &[]), None);
    }

    #[test]
    fn files_come_before_the_prefix() {
        let file = |name: Option<&str>, text: &str| InfillFile {
            name: name.map(str::to_owned),
            text: text.to_owned(),
        };
        let files = [file(Some("a"), "x"), file(None, "y")];
        let InfillNames { frame: [prefix, suffix, middle], repository, file, .. } = &KNOWN[0];
        let special = [*prefix, *suffix, *middle, *repository, *file];
        let end = format!("{prefix}ab{suffix}cd{middle}");
        let expected =
            format!("{repository}myproject\n{file}a\nx{file}tmp\ny{file}filename\n{end}");
        assert_eq!(prompt(&special, &[], &files), Some(expected));
        let expected = format!("\n\n--- snippet ---\n\nx\n\n--- snippet ---\n\ny{end}");
        assert_eq!(prompt(&special[..3], &[], &files), Some(expected));
    }

    #[test]
    fn tokens_of_the_frame_end_the_text() {
        let tokenizer = tokenizer(&["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<fim_pad>"]);
        let infill = Infill::of(&tokenizer, &BTreeMap::new()).unwrap();
        assert_eq!(infill.ends(), [29, 30, 31, 32]);
    }
}
