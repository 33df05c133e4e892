//! Structures of texts, and the bounds on them.

use std::fmt::Write;

use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};

use super::bounds::{
    MAX_CHOICES, MAX_NESTING, MAX_REGEX_BYTES, MAX_STRUCTURE_BYTES, StructureError, compact,
    quoted, within,
};
use super::marks::Marks;
use super::{arguments, gbnf, schema};
use crate::ArgumentForm;

/// Structure of a text.
#[derive(Clone, Debug, PartialEq)]
pub enum Structure {
    /// Any JSON object.
    Object,
    /// JSON by a schema.
    Schema {
        /// The schema: an object, or true.
        schema: Value,
        /// True to refuse keywords that cannot be enforced, false to ignore them.
        strict: bool,
    },
    /// A text that matches a regular expression as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A text that follows a grammar, in Lark's notation, or in llama.cpp's if it contains `::=`.
    Grammar(String),
    /// One of several texts, each followed by arguments for its schema, then `end`.
    Calls {
        /// The texts and schemas.
        options: Vec<CallOption>,
        /// How arguments are written.
        form: ArgumentForm,
        /// The text after the arguments.
        end: String,
    },
}

/// One of the possible tool calls.
#[derive(Clone, Debug, PartialEq)]
pub struct CallOption {
    /// The text before the arguments.
    pub before: String,
    /// The schema of the arguments.
    pub schema: Value,
    /// True to refuse keywords of the schema that cannot be enforced, false to ignore them.
    pub strict: bool,
}

impl Structure {
    /// Size of the structure, from which its memory is estimated.
    pub fn bytes(&self) -> usize {
        match self {
            Structure::Object => 0,
            Structure::Schema { schema, .. } => schema.to_string().len(),
            Structure::Regex(text) | Structure::Grammar(text) => text.len(),
            Structure::Choice(choices) => choices.iter().map(|choice| choice.len() + 4).sum(),
            Structure::Calls { options, form, end } => {
                let mut bytes = 0;
                for option in options {
                    let arguments = match form {
                        ArgumentForm::Json => option.schema.to_string().len(),
                        ArgumentForm::Tags(_) => arguments::bytes(&option.schema),
                    };
                    bytes += option.before.len() + arguments + end.len();
                }
                bytes
            }
        }
    }

    /// The same structure, with any object in place of schemas that may be ignored; `None` if no
    /// schema may be.
    pub fn relaxed(&self) -> Option<Structure> {
        let Structure::Calls { options, form, end } = self else { return None };
        if options.iter().all(|option| option.strict) {
            return None;
        }
        let mut options = options.clone();
        for option in &mut options {
            if !option.strict {
                option.schema = json!({"type": "object"});
            }
        }
        Some(Structure::Calls { options, form: *form, end: end.clone() })
    }

    /// A grammar for the compiler, if the structure is within the limits.
    pub(super) fn grammar(&self, marks: &Marks) -> Result<TopLevelGrammar, StructureError> {
        match self {
            Structure::Object => Ok(of_schema(json!({"type": "object"}), true)),
            Structure::Schema { schema, strict } => {
                schema::check(schema)?;
                Ok(of_schema(schema.clone(), *strict))
            }
            Structure::Regex(regex) => {
                within(regex.len(), MAX_REGEX_BYTES)?;
                flat(regex)?;
                if regex.is_empty() {
                    return Err(StructureError::Refused("it is empty".to_owned()));
                }
                Ok(TopLevelGrammar::from_regex(regex))
            }
            Structure::Choice(choices) => {
                within(choices.iter().map(String::len).sum(), MAX_STRUCTURE_BYTES)?;
                if choices.is_empty() || choices.len() > MAX_CHOICES {
                    return Err(StructureError::Choices(choices.len()));
                }
                if choices.iter().any(String::is_empty) {
                    return Err(StructureError::Refused("a choice is empty".to_owned()));
                }
                let words: Vec<String> = choices.iter().map(|choice| quoted(choice)).collect();
                Ok(TopLevelGrammar::from_lark(format!("start: {}\n", words.join(" | "))))
            }
            Structure::Calls { options, form, end } => calls(options, form, end, marks),
            Structure::Grammar(grammar) => {
                within(grammar.len(), MAX_STRUCTURE_BYTES)?;
                flat(grammar)?;
                let lark = match grammar.contains("::=") {
                    true => gbnf::lark(grammar).map_err(StructureError::Refused)?,
                    false => grammar.clone(),
                };
                // The limits on schemas would not cover a schema in a grammar.
                if lark.contains("%json") {
                    let why = "schemas within grammars are not supported";
                    return Err(StructureError::Refused(why.to_owned()));
                }
                Ok(TopLevelGrammar::from_lark(lark))
            }
        }
    }
}

/// A grammar for tool calls.
fn calls(
    options: &[CallOption],
    form: &ArgumentForm,
    end: &str,
    marks: &Marks,
) -> Result<TopLevelGrammar, StructureError> {
    if options.is_empty() || options.len() > MAX_CHOICES {
        return Err(StructureError::Choices(options.len()));
    }
    let end = marks.rule(end);
    let mut lark = String::new();
    for (number, CallOption { before, schema: given, strict }) in options.iter().enumerate() {
        schema::check(given)?;
        let before = marks.rule(before);
        let _ = writeln!(lark, "call_{number}: {before} args_{number} {end}");
        match form {
            ArgumentForm::Json => {
                let mut schema = given.clone();
                schema::bound(&mut schema);
                let _ = writeln!(lark, "args_{number}: %json {}", compact(schema, *strict));
            }
            ArgumentForm::Tags(tags) => {
                arguments::write(&mut lark, number, tags, (given, *strict), marks)?;
            }
        }
    }
    within(lark.len(), 2 * MAX_STRUCTURE_BYTES)?;
    let names: Vec<String> = (0..options.len()).map(|number| format!("call_{number}")).collect();
    lark.insert_str(0, &format!("start: {}\n", names.join(" | ")));
    Ok(TopLevelGrammar::from_lark(lark))
}

fn of_schema(schema: Value, strict: bool) -> TopLevelGrammar {
    TopLevelGrammar::from_json_schema(compact(schema, strict))
}

/// Refuses text with brackets nested too deeply. Brackets in strings count as well.
fn flat(text: &str) -> Result<(), StructureError> {
    let mut depth: usize = 0;
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_NESTING {
            return Err(StructureError::TooDeep);
        }
    }
    Ok(())
}
