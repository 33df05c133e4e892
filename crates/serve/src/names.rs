//! The field names of a type, as known to its deserializer.

use serde::de::value::Error;
use serde::de::{Deserialize, Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;

/// The names of a type's fields.
pub(crate) fn names<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    let mut found: &'static [&'static str] = &[];
    // Deserialising requests a struct with these names, and then fails.
    let _ = T::deserialize(NamesDeserializer(&mut found));
    found
}

/// Records the field names of the requested struct.
struct NamesDeserializer<'n>(&'n mut &'static [&'static str]);

impl<'de> Deserializer<'de> for NamesDeserializer<'_> {
    type Error = Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        *self.0 = fields;
        self.deserialize_any(visitor)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("only names are read"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    #[allow(dead_code)]
    struct Example {
        one: u32,
        #[serde(rename = "two", default)]
        other: Option<u32>,
    }

    #[test]
    fn names_are_those_of_the_parser() {
        assert_eq!(names::<Example>(), ["one", "two"]);
        assert_eq!(names::<u32>(), [] as [&str; 0]);
    }
}
