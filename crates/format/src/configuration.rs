//! The configuration of a model: typed values by key, in any published format.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

/// Maximum number of values in a configuration. Published ones have a few hundred, and some have
/// ten thousands because they list the modules that are not quantised. A value takes at most 700
/// bytes.
const MAX_VALUES: usize = 1 << 16;

/// The configuration of a model, as it was published with the weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Configuration {
    /// Name of the configuration's file, for messages.
    pub origin: String,
    /// Values by key.
    pub entries: BTreeMap<String, Value>,
}

/// A value of a configuration.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// No value, which can differ from an absent key.
    Null,
    /// True or false.
    Bool(bool),
    /// A whole number.
    Int(i128),
    /// A number that is not an integer.
    Float(f64),
    /// A text.
    String(String),
    /// Values in order.
    List(Vec<Value>),
    /// Values by key.
    Map(BTreeMap<String, Value>),
}

/// A configuration that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin} is damaged ({reason}); download it again")]
pub struct DamagedConfiguration {
    /// Name of the file.
    pub origin: String,
    /// Description of the damage.
    pub reason: String,
}

impl Configuration {
    /// Parses a JSON object. Python's words for numbers that JSON lacks, Infinity and NaN, become
    /// text. Refuses a configuration with more values than any known model has, or with more than
    /// 127 levels of nesting.
    pub fn from_json(
        origin: impl Into<String>,
        json: &[u8],
    ) -> Result<Configuration, DamagedConfiguration> {
        let origin = origin.into();
        let parsed = serde_json::from_slice(json);
        let parsed = parsed.or_else(|error: serde_json::Error| {
            if !error.is_syntax() || json.len() > MAX_QUOTED {
                return Err(error);
            }
            serde_json::from_slice(&quoted(json)).or(Err(error))
        });
        let entries = match parsed {
            Ok(Value::Map(entries)) => Ok(entries),
            Ok(_) => Err("it is not an object".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        match entries {
            Ok(entries) => Ok(Configuration { origin, entries }),
            Err(reason) => Err(DamagedConfiguration { origin, reason }),
        }
    }
}

/// Size limit of a configuration with such words, which is copied. Published ones have some
/// kilobytes.
const MAX_QUOTED: usize = 1 << 20;

/// The text, with quotes around Python's words for infinite numbers and NaN.
fn quoted(json: &[u8]) -> Vec<u8> {
    const WORDS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
    let mut to = Vec::with_capacity(json.len() + 16);
    let mut rest = json;
    let mut in_string = false;
    while let [byte, after @ ..] = rest {
        let word = WORDS.into_iter().find(|word| !in_string && rest.starts_with(word));
        let len = match (word, byte, after) {
            (Some(word), ..) => word.len(),
            (None, b'\\', [_, ..]) => 2,
            _ => 1,
        };
        in_string ^= *byte == b'"';
        let quote: &[u8] = if word.is_some() { b"\"" } else { b"" };
        to.extend_from_slice(quote);
        to.extend_from_slice(&rest[..len]);
        to.extend_from_slice(quote);
        rest = &rest[len..];
    }
    to
}

impl Value {
    /// True for [`Value::Null`].
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    /// The truth value, if the value is one.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Value::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// The number, if it is a non-negative integer.
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Value::Int(number) => (*number).try_into().ok(),
            _ => None,
        }
    }

    /// The number, rounded if it has more digits than a float.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Value::Int(number) => Some(*number as f64),
            Value::Float(number) => Some(*number),
            _ => None,
        }
    }

    /// The text, if the value is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// The values of a list.
    pub fn as_list(&self) -> Option<&[Value]> {
        match self {
            Value::List(values) => Some(values),
            _ => None,
        }
    }

    /// The values of a map.
    pub fn as_map(&self) -> Option<&BTreeMap<String, Value>> {
        match self {
            Value::Map(values) => Some(values),
            _ => None,
        }
    }
}

/// Formats the value as JSON, on one line.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Within(&Cell::new(MAX_VALUES)).deserialize(deserializer)
    }
}

/// Reads a value, and counts it and all nested values against a maximum.
#[derive(Clone, Copy)]
struct Within<'a>(&'a Cell<usize>);

impl<'de> DeserializeSeed<'de> for Within<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let left = self.0.get().checked_sub(1);
        self.0.set(left.ok_or_else(|| D::Error::custom("there are too many values"))?);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Within<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Int(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Int(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Value::Float(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = seq.next_element_seed(self)? {
            values.push(value);
        }
        Ok(Value::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut values = BTreeMap::new();
        while let Some(key) = map.next_key()? {
            values.insert(key, map.next_value_seed(self)?);
        }
        Ok(Value::Map(values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_becomes_values_and_values_json() {
        let json =
            r#"{"a":null,"b":[true,-1,18446744073709551615,0.00001,1e+300,"\n"],"c":{"d":4.0}}"#;
        let read = Configuration::from_json("x", json.as_bytes()).unwrap();
        assert_eq!(Value::Map(read.entries).to_string(), json);
    }

    #[test]
    fn infinite_numbers_become_text() {
        let json = r#"{"a":[0.5,Infinity,-Infinity],"b":"\"NaN\\","NaN":NaN}"#;
        let read = Configuration::from_json("x", json.as_bytes()).unwrap();
        let expected = r#"{"NaN":"NaN","a":[0.5,"Infinity","-Infinity"],"b":"\"NaN\\"}"#;
        assert_eq!(Value::Map(read.entries).to_string(), expected);
    }

    #[test]
    fn absurd_json_is_refused() {
        let list = |len: usize| format!("[{}0]", "0,".repeat(len - 1));
        let cases = [
            (format!(r#"{{"a":{}}}"#, list(MAX_VALUES - 1)), "there are too many values"),
            (format!(r#"{{"a":{}1{}}}"#, "[".repeat(128), "]".repeat(128)), "recursion limit"),
            ("[]".to_owned(), "it is not an object"),
            (r#"{"a":"#.to_owned(), "EOF"),
        ];
        for (json, expected) in cases {
            let error = Configuration::from_json("x.json", json.as_bytes()).unwrap_err();
            let message = error.to_string();
            assert!(
                message.starts_with("x.json is damaged (") && message.contains(expected),
                "{message}"
            );
        }
        let most = format!(r#"{{"a":{}}}"#, list(MAX_VALUES - 2));
        assert!(Configuration::from_json("x", most.as_bytes()).is_ok());
    }
}
