//! Bounds of structures, the reasons why one is refused, and what all notations write.

use serde_json::{Map, Value, json};

/// Maximum number of bytes of a schema, a grammar, or all choices.
pub const MAX_STRUCTURE_BYTES: usize = 64 << 10;
/// Maximum number of bytes of a regular expression.
pub const MAX_REGEX_BYTES: usize = 8 << 10;
/// Maximum number of choices.
pub const MAX_CHOICES: usize = 1024;
/// Maximum depth of values in a schema, and of brackets in expressions and grammars.
pub const MAX_NESTING: usize = 64;
/// Maximum number of combinations of alternatives in a schema.
pub(crate) const MAX_VARIANTS: u64 = 1024;

/// Reasons why a structure is refused. Each completes a sentence that begins with the name of the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum StructureError {
    /// A structure that is too long.
    #[error("has {bytes} bytes, and at most {most} are allowed; shorten it")]
    TooLong { bytes: usize, most: usize },
    /// A structure that is nested too deeply.
    #[error("is nested more than {MAX_NESTING} levels deep; make it flatter")]
    TooDeep,
    /// Too many choices, or none.
    #[error("has {0} choices, and 1 to {MAX_CHOICES} different ones are allowed")]
    Choices(usize),
    /// A schema with too many combinations of alternatives.
    #[error(
        "combines alternatives (`allOf` with `anyOf` or `oneOf`) in more than {} ways; write fewer of them",
        MAX_VARIANTS
    )]
    Variants,
    /// Not a schema.
    #[error("must be a JSON schema: an object")]
    NoSchema,
    /// A structure that cannot be compiled.
    #[error("cannot be used: {0}; see docs/serve.md for what is supported")]
    Refused(String),
    /// A model whose tokens cannot be constrained.
    #[error("is not supported with this model: {0}")]
    Vocabulary(&'static str),
}

pub(crate) fn within(bytes: usize, most: usize) -> Result<(), StructureError> {
    if bytes > most { Err(StructureError::TooLong { bytes, most }) } else { Ok(()) }
}

/// A schema with compiler options. White space between values is not allowed, so that more tokens
/// are forced.
pub(super) fn compact(schema: Value, strict: bool) -> Value {
    let mut schema = match schema {
        Value::Object(schema) => schema,
        _ => Map::new(),
    };
    let options = json!({
        "whitespace_flexible": false,
        "item_separator": ",",
        "key_separator": ":",
        "lenient": !strict,
    });
    schema.insert("x-guidance".to_owned(), options);
    Value::Object(schema)
}

/// The text as a string literal of a grammar.
pub(crate) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// The reason of an error, in one line of limited length.
pub(crate) fn sentence(error: &str) -> String {
    let mut lines = error.lines().map(str::trim).filter(|line| !line.is_empty());
    let line = lines.next().unwrap_or("it failed");
    // The reason of an invalid expression follows a drawing that marks the place.
    let reason = lines.find_map(|line| line.strip_prefix("error: "));
    let whole = reason.map_or(line.to_owned(), |reason| format!("{line} {reason}"));
    whole.chars().take(200).collect::<String>().trim_end_matches('.').to_owned()
}
