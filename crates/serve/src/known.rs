//! Names of fields that are read, refused or ignored.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::app::App;
use crate::failure::Failure;
use crate::fields::{Fields, parse};
use crate::names::names;

/// Fields of other servers that would change the answer, and are not supported.
const REFUSED: &[&str] = &[
    "add_special_tokens",
    "allowed_token_ids",
    "audio",
    "bad_words",
    "best_of",
    "chat_template",
    "conversation",
    "documents",
    "dynatemp_range",
    "echo",
    "grammar",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "include_stop_str_in_output",
    "json_schema",
    "logits_processors",
    "logprobs",
    "lora",
    "mcp_servers",
    "min_tokens",
    "mirostat",
    "prompt",
    "prompt_embeds",
    "prompt_logprobs",
    "reasoning",
    "reasoning_format",
    "response_format",
    "return_tokens_as_token_ids",
    "samplers",
    "stop_token_ids",
    "structural_tag",
    "structured_outputs",
    "suffix",
    "tfs_z",
    "tools",
    "top_a",
    "top_logprobs",
    "top_n_sigma",
    "truncate_prompt_tokens",
    "typical_p",
    "use_beam_search",
    "web_search_options",
    "xtc_probability",
];

/// Values of such fields that have no effect, besides null, false, zero and empty values.
const IDLE: &[(&str, f64)] = &[("tfs_z", 1.0), ("top_n_sigma", -1.0), ("typical_p", 1.0)];
const IDLE_WORDS: &[(&str, &str)] =
    &[("reasoning_format", "auto"), ("reasoning_format", "deepseek")];

/// Prefix of fields that request structured output, and the only field with this prefix that does
/// not.
const GUIDED: &str = "guided_";
const BACKEND: &str = "guided_decoding_backend";
/// Fields that request something even if they are empty.
const ASKING: &[&str] =
    &["grammar", "json_schema", "response_format", "structured_outputs", "web_search_options"];

/// Refuses a request with unsupported fields that would change its text. Logs the names of ignored
/// fields. `known` has the fields of the interface.
pub(crate) fn check_names(app: &App, body: &[u8], known: &[&[&str]]) -> Result<(), Failure> {
    let fields: BTreeMap<String, Presence> = parse(body)?;
    let common = names::<Fields>();
    for (field, value) in &fields {
        let name = field.as_str();
        if common.contains(&name) || known.iter().any(|known| known.contains(&name)) {
            continue;
        }
        let is_refused = REFUSED.contains(&name) || name.starts_with(GUIDED) && name != BACKEND;
        if is_refused && value.is_set(name) {
            return Err(Failure::unsupported(name, format!("`{name}` is not supported")));
        }
        app.ignored(field);
    }
    Ok(())
}

/// Kind of a value, as far as it decides if a field requests something.
#[derive(Debug, PartialEq)]
enum Presence {
    /// Null or false.
    Nothing,
    /// An empty text, list or object.
    Empty,
    Number(f64),
    /// One of [`IDLE_WORDS`].
    Word(&'static str),
    Something,
}

impl Presence {
    /// True if a value of this kind requests something in this field.
    fn is_set(&self, field: &str) -> bool {
        match self {
            Presence::Nothing => false,
            Presence::Empty => field.starts_with(GUIDED) || ASKING.contains(&field),
            Presence::Number(value) => *value != 0.0 && !IDLE.contains(&(field, *value)),
            Presence::Word(word) => !IDLE_WORDS.contains(&(field, *word)),
            Presence::Something => true,
        }
    }

    fn filled(is_filled: bool) -> Presence {
        if is_filled { Presence::Something } else { Presence::Empty }
    }
}

impl<'de> Deserialize<'de> for Presence {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Presence, D::Error> {
        struct PresenceVisitor;

        impl<'de> Visitor<'de> for PresenceVisitor {
            type Value = Presence;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }

            fn visit_unit<E: Error>(self) -> Result<Presence, E> {
                Ok(Presence::Nothing)
            }

            fn visit_bool<E: Error>(self, value: bool) -> Result<Presence, E> {
                Ok(if value { Presence::Something } else { Presence::Nothing })
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<Presence, E> {
                Ok(Presence::Number(value as f64))
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Presence, E> {
                Ok(Presence::Number(value as f64))
            }

            fn visit_f64<E: Error>(self, value: f64) -> Result<Presence, E> {
                Ok(Presence::Number(value))
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<Presence, E> {
                let word = IDLE_WORDS.iter().find(|(_, word)| *word == value);
                let other = Presence::filled(!value.is_empty());
                Ok(word.map_or(other, |&(_, word)| Presence::Word(word)))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Presence, A::Error> {
                let mut is_set = false;
                while list.next_element::<IgnoredAny>()?.is_some() {
                    is_set = true;
                }
                Ok(Presence::filled(is_set))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Presence, A::Error> {
                let mut is_set = false;
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    is_set = true;
                }
                Ok(Presence::filled(is_set))
            }
        }

        deserializer.deserialize_any(PresenceVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_mean_nothing_are_absent() {
        for (field, json, is_set) in [
            ("lora", "null", false),
            ("lora", "false", false),
            ("lora", "true", true),
            ("lora", "0", false),
            ("lora", "0.0", false),
            ("lora", "-1", true),
            ("lora", "2.5", true),
            ("lora", "\"\"", false),
            ("lora", "\"a\\n\"", true),
            ("lora", "[]", false),
            ("lora", "[null]", true),
            ("lora", "{}", false),
            ("lora", "{\"a\": [{}]}", true),
            // A search with the usual options.
            ("web_search_options", "{}", true),
            ("guided_regex", "\"\"", true),
            ("guided_rejex", "\"\"", true),
            ("grammar", "null", false),
            ("structured_outputs", "{}", true),
            ("typical_p", "1", false),
            ("typical_p", "1.0", false),
            ("typical_p", "0.9", true),
            ("reasoning_format", "\"auto\"", false),
            ("reasoning_format", "\"none\"", true),
            ("lora", "\"auto\"", true),
            ("top_n_sigma", "-1", false),
            ("top_n_sigma", "1", true),
        ] {
            let found: Presence = serde_json::from_str(json).unwrap();
            assert_eq!(found.is_set(field), is_set, "{field}: {json}");
        }
    }
}
