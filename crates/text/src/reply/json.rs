//! Tool calls as JSON.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{NoCall, ToolCall};

/// A tool call as models write it.
#[derive(Deserialize)]
struct JsonCall<'t> {
    name: String,
    #[serde(borrow, default)]
    arguments: Option<&'t RawValue>,
    #[serde(borrow, default, alias = "args")]
    parameters: Option<&'t RawValue>,
    #[serde(default)]
    id: Option<String>,
}

/// Reads `{"name": .., "arguments": {..}}`.
pub(super) fn call(text: &str) -> Result<ToolCall, NoCall> {
    made(serde_json::from_str(text.trim()).map_err(no_call)?)
}

/// Reads a list of tool calls.
pub(super) fn array(text: &str) -> Result<Vec<ToolCall>, NoCall> {
    let calls: Vec<JsonCall<'_>> = serde_json::from_str(text.trim()).map_err(no_call)?;
    calls.into_iter().map(made).collect()
}

/// Reads tool calls with white space or semicolons between them.
pub(super) fn separated(text: &str) -> Result<Vec<ToolCall>, NoCall> {
    let mut calls = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<JsonCall<'_>>();
        calls.push(made(values.next().ok_or(NoCall::Malformed)?.map_err(no_call)?)?);
        let read = values.byte_offset();
        rest = rest[read..].trim_start_matches(|c: char| c == ';' || c.is_whitespace());
    }
    Ok(calls)
}

/// Reads tool calls, up to the first text that is not one.
pub(super) fn leading(text: &str) -> Result<Vec<ToolCall>, NoCall> {
    let mut calls = Vec::new();
    let mut rest = text.trim();
    while rest.starts_with('{') {
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<JsonCall<'_>>();
        match values.next().ok_or(NoCall::Malformed)?.map_err(no_call).and_then(made) {
            Ok(call) => calls.push(call),
            Err(error) if calls.is_empty() => return Err(error),
            Err(_) => break,
        }
        let read = values.byte_offset();
        rest = rest[read..].trim_start_matches(|c: char| c == ',' || c.is_whitespace());
    }
    if calls.is_empty() { Err(NoCall::Malformed) } else { Ok(calls) }
}

/// Reads arguments, given as an object or as a string that contains one.
pub(super) fn arguments(text: &str) -> Result<String, NoCall> {
    let text = text.trim();
    if text.starts_with('"') {
        let inner: String = serde_json::from_str(text).map_err(no_call)?;
        return object(inner.trim());
    }
    object(text)
}

fn object(text: &str) -> Result<String, NoCall> {
    let json: &RawValue = serde_json::from_str(text).map_err(no_call)?;
    if json.get().starts_with('{') { Ok(json.get().to_owned()) } else { Err(NoCall::Malformed) }
}

fn made(call: JsonCall<'_>) -> Result<ToolCall, NoCall> {
    let JsonCall { name, arguments: given, parameters, id } = call;
    let arguments = match given.or(parameters).map(RawValue::get) {
        None | Some("null") => "{}".to_owned(),
        Some(text) => arguments(text)?,
    };
    if name.is_empty() {
        return Err(NoCall::Malformed);
    }
    Ok(ToolCall { id, name, arguments })
}

fn no_call(error: serde_json::Error) -> NoCall {
    if error.is_eof() { NoCall::Unfinished } else { NoCall::Malformed }
}
