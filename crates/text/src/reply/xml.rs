//! Tool calls as tags, one for each value. Values are not escaped: a value ends at a closing tag
//! that is followed by more of the tool call.

use std::fmt::Write;

use serde_json::Value;
use serde_json::value::RawValue;

use super::schema::Parameters;
use super::{NoCall, ToolCall, ToolSchemas};

/// Reads `<function=NAME><parameter=KEY>VALUE</parameter></function>`.
pub(super) fn functions(block: &str, schemas: &ToolSchemas) -> Result<Vec<ToolCall>, NoCall> {
    let mut calls = Vec::new();
    let mut rest = block.trim();
    while !rest.is_empty() {
        let (name, mut inner) = tag(rest, "<function=", ">")?;
        let mut call = XmlCall::new(name, schemas)?;
        loop {
            inner = inner.trim_start();
            if let Some(after) = inner.strip_prefix("</function>") {
                rest = after.trim_start();
                break;
            }
            let (key, value) = tag(inner, "<parameter=", ">")?;
            let (value, after) =
                value_before(value, "</parameter>", &["<parameter=", "</function>"])?;
            call.add(key, without_line_breaks(value), None);
            inner = after;
        }
        calls.push(call.made());
    }
    Ok(calls)
}

/// Reads `NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>`.
pub(super) fn arg_keys(block: &str, schemas: &ToolSchemas) -> Result<Vec<ToolCall>, NoCall> {
    let block = block.trim();
    let (name, mut rest) = block.split_at(block.find("<arg_key>").unwrap_or(block.len()));
    let mut call = XmlCall::new(name, schemas)?;
    while !rest.is_empty() {
        let (key, after) = tag(rest, "<arg_key>", "</arg_key>")?;
        let (_, value) = tag(after.trim_start(), "<arg_value>", "")?;
        let (value, after) = value_before(value, "</arg_value>", &["<arg_key>", ""])?;
        call.add(key, value, None);
        rest = after.trim_start();
    }
    Ok(vec![call.made()])
}

/// Reads `<invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>`, with tags that
/// begin with a prefix. An attribute may mark a value as a string or not.
pub(super) fn invokes(
    block: &str,
    prefix: &str,
    schemas: &ToolSchemas,
) -> Result<Vec<ToolCall>, NoCall> {
    let [invoke, parameter] =
        ["invoke", "parameter"].map(|name| format!("<{prefix}{name} name=\""));
    let [end_invoke, end_parameter] =
        ["invoke", "parameter"].map(|name| format!("</{prefix}{name}>"));
    let mut calls = Vec::new();
    let mut rest = block.trim();
    while !rest.is_empty() {
        let (name, inner) = tag(rest, &invoke, "\"")?;
        let (_, mut inner) = tag(inner, "", ">")?;
        let mut call = XmlCall::new(name, schemas)?;
        loop {
            inner = inner.trim_start();
            if let Some(after) = inner.strip_prefix(&*end_invoke) {
                rest = after.trim_start();
                break;
            }
            let (key, attributes) = tag(inner, &parameter, "\"")?;
            let (attributes, value) = tag(attributes, "", ">")?;
            let (value, after) = value_before(value, &end_parameter, &[&parameter, &end_invoke])?;
            let is_string =
                attributes.split_once("string=\"").map(|(_, is)| is.starts_with("true"));
            call.add(key, value, is_string);
            inner = after;
        }
        calls.push(call.made());
    }
    Ok(calls)
}

/// Splits a text that begins with `open` at `close`.
fn tag<'t>(text: &'t str, open: &str, close: &str) -> Result<(&'t str, &'t str), NoCall> {
    match text.strip_prefix(open) {
        Some(rest) => match rest.find(close) {
            Some(at) => Ok((&rest[..at], &rest[at + close.len()..])),
            None => Err(NoCall::Unfinished),
        },
        None if open.starts_with(text) => Err(NoCall::Unfinished),
        None => Err(NoCall::Malformed),
    }
}

/// Splits a text at the first `close` that is followed by one of `next`, where "" means the end of
/// the text.
fn value_before<'t>(
    text: &'t str,
    close: &str,
    next: &[&str],
) -> Result<(&'t str, &'t str), NoCall> {
    for (at, _) in text.match_indices(close) {
        let after = text[at + close.len()..].trim_start();
        for &next in next {
            let follows = if next.is_empty() { after.is_empty() } else { after.starts_with(next) };
            if follows {
                return Ok((&text[..at], after));
            }
        }
    }
    Err(NoCall::Unfinished)
}

/// A value without the line breaks next to its tags.
fn without_line_breaks(value: &str) -> &str {
    let value = value.strip_prefix('\n').unwrap_or(value);
    value.strip_suffix('\n').unwrap_or(value)
}

/// A tool call that is being built.
pub(super) struct XmlCall<'s> {
    name: String,
    /// The arguments object, without its braces.
    arguments: String,
    parameters: Option<&'s Parameters>,
}

impl<'s> XmlCall<'s> {
    pub(super) fn new(name: &str, schemas: &'s ToolSchemas) -> Result<XmlCall<'s>, NoCall> {
        let name = name.trim();
        if name.is_empty() || name.contains(['<', '>', '\n']) {
            return Err(NoCall::Malformed);
        }
        let parameters = schemas.parameters(name);
        Ok(XmlCall { name: name.to_owned(), arguments: String::new(), parameters })
    }

    /// Adds an argument. If `is_string` is not set, its schema decides on its type.
    pub(super) fn add(&mut self, key: &str, text: &str, is_string: Option<bool>) {
        let key = key.trim();
        let string = || Value::from(text).to_string();
        let value = match (is_string, self.parameters) {
            (Some(false), _) => match serde_json::from_str::<&RawValue>(text) {
                Ok(json) => json.get().to_owned(),
                Err(_) => string(),
            },
            (None, Some(parameters)) => parameters.value(key, text),
            _ => string(),
        };
        if !self.arguments.is_empty() {
            self.arguments.push_str(", ");
        }
        let _ = write!(self.arguments, "{}: {value}", Value::from(key));
    }

    pub(super) fn made(self) -> ToolCall {
        ToolCall { id: None, name: self.name, arguments: format!("{{{}}}", self.arguments) }
    }
}
