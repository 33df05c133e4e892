//! Names of fields: those that are read, those that are refused, and those that are ignored.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::app::App;
use crate::failure::Failure;
use crate::fields::{Fields, parse};
use crate::names::names;

/// Fields of other servers that change the text, and are not supported.
const REFUSED: &[&str] = &[
    "audio",
    "best_of",
    "grammar",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "include_stop_str_in_output",
    "json_schema",
    "min_tokens",
    "mirostat",
    "prediction",
    "prompt_logprobs",
    "response_format",
    "stop_token_ids",
    "structured_outputs",
    "tools",
    "truncate_prompt_tokens",
    "use_beam_search",
    "web_search_options",
];

/// Refuses a request with fields that would change its text elsewhere, and names those in the log that
/// are ignored. `known` are the fields of its interface.
pub(crate) fn check_names(app: &App, body: &[u8], known: &[&[&str]]) -> Result<(), Failure> {
    let fields: BTreeMap<String, Presence> = parse(body)?;
    let common = names::<Fields>();
    for (field, Presence(is_set)) in &fields {
        let name = field.as_str();
        if common.contains(&name) || known.iter().any(|known| known.contains(&name)) {
            continue;
        }
        if *is_set && REFUSED.contains(&name) {
            return Err(Failure::unsupported(name, format!("`{name}` is not supported")));
        }
        app.ignored(field);
    }
    Ok(())
}

/// True for a value that is neither null, false, zero nor empty.
#[derive(Debug, PartialEq)]
struct Presence(bool);

impl<'de> Deserialize<'de> for Presence {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Presence, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Presence;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }

            fn visit_unit<E: Error>(self) -> Result<Presence, E> {
                Ok(Presence(false))
            }

            fn visit_bool<E: Error>(self, value: bool) -> Result<Presence, E> {
                Ok(Presence(value))
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<Presence, E> {
                Ok(Presence(value != 0))
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Presence, E> {
                Ok(Presence(value != 0))
            }

            fn visit_f64<E: Error>(self, value: f64) -> Result<Presence, E> {
                Ok(Presence(value != 0.0))
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<Presence, E> {
                Ok(Presence(!value.is_empty()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Presence, A::Error> {
                let mut is_set = false;
                while list.next_element::<IgnoredAny>()?.is_some() {
                    is_set = true;
                }
                Ok(Presence(is_set))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Presence, A::Error> {
                let mut is_set = false;
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    is_set = true;
                }
                Ok(Presence(is_set))
            }
        }

        deserializer.deserialize_any(Any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_mean_nothing_are_absent() {
        for (json, is_set) in [
            ("null", false),
            ("false", false),
            ("true", true),
            ("0", false),
            ("0.0", false),
            ("-1", true),
            ("2.5", true),
            ("\"\"", false),
            ("\"a\\n\"", true),
            ("[]", false),
            ("[null]", true),
            ("{}", false),
            ("{\"a\": [{}]}", true),
        ] {
            let found: Presence = serde_json::from_str(json).unwrap();
            assert_eq!(found, Presence(is_set), "{json}");
        }
    }
}
