//! Checks of tools, so that nothing that a client requests is silently dropped.

use sws_text::Json;

use crate::failure::{Failure, shortened};

/// Supported field names of a tool, and names in the interfaces of OpenAI and Anthropic that have
/// no effect here.
const TOOL: &[&str] = &[
    "type",
    "name",
    "description",
    "parameters",
    "input_schema",
    "strict",
    "function",
    "custom",
    "format",
    "allowed_callers",
    "cache_control",
    "defer_loading",
    "eager_input_streaming",
    "input_examples",
    "output_schema",
];
/// Supported field names of a tool's function. transformers writes `return` for templates, Open
/// WebUI repeats `type`, and LiteLLM uses Anthropic's names here, too.
const FUNCTION: &[&str] = &[
    "type",
    "name",
    "description",
    "parameters",
    "strict",
    "return",
    "allowed_callers",
    "cache_control",
    "defer_loading",
    "eager_input_streaming",
    "input_examples",
    "output_schema",
];
/// Maximum number of characters of a name in a message.
const NAME: usize = 40;

/// Kind of a tool.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ToolKind {
    /// A function, which a client runs.
    Function,
    /// A kind that only OpenAI or Anthropic can run, or whose input has no schema.
    Other(String),
}

/// The kind of the tool with this number. Fails if the tool is malformed.
pub(crate) fn kind(number: usize, tool: &Json) -> Result<ToolKind, Failure> {
    let refused = |why: &str| Failure::field("tools", format!("tools[{number}] {why}"));
    if !is_object(tool) {
        return Err(refused("is not an object"));
    }
    let kind = match get(tool, "type") {
        Some(kind) => {
            Some(kind.as_str().ok_or_else(|| refused("has a type that is not a text"))?.to_owned())
        }
        None => None,
    };
    let has = |name: &str| get(tool, name).is_some();
    let of_functions = has("function") || has("input_schema") || has("name") && has("parameters");
    match kind.as_deref() {
        None | Some("function" | "custom") => known(tool, TOOL).map_err(|why| refused(&why))?,
        Some(kind) if of_functions => {
            let kind = shortened(kind, NAME);
            return Err(refused(&format!(
                "has the type `{kind}`, and that of functions is `function`"
            )));
        }
        Some(kind) => return Ok(ToolKind::Other(kind.to_owned())),
    }
    let function = get(tool, "function");
    let (named, schema) = match (kind.as_deref(), &function) {
        (Some("function"), Some(function)) => {
            if !is_object(function) {
                return Err(refused("has a `function` that is not an object"));
            }
            known(function, FUNCTION)
                .map_err(|why| refused(&format!("has a function that {why}")))?;
            (function, "parameters")
        }
        (_, Some(_)) => return Err(refused("has a function, so its type is `function`")),
        (Some("function"), None) if !has("name") => return Err(refused("has no `function`")),
        (Some("function"), None) => (tool, "parameters"),
        (Some(kind), None) if !has("input_schema") && !has("parameters") => {
            return Ok(ToolKind::Other(kind.to_owned()));
        }
        _ => (tool, "input_schema"),
    };
    let name = get(named, "name");
    if name.as_ref().and_then(Json::as_str).is_none_or(str::is_empty) {
        return Err(refused("has no name"));
    }
    let other = if schema == "parameters" { "input_schema" } else { "parameters" };
    match get(named, schema) {
        _ if has(other) && function.is_none() => {
            Err(refused(&format!("has `{other}`; the schema of tools of its kind is `{schema}`")))
        }
        Some(value) if !is_object(&value) => {
            Err(refused(&format!("has `{schema}` that is not an object")))
        }
        None if schema == "input_schema" => Err(refused("has no `input_schema`")),
        _ => Ok(ToolKind::Function),
    }
}

/// Refuses an object that has a field other than these.
fn known(object: &Json, names: &[&str]) -> Result<(), String> {
    let mut keys = object.try_iter().into_iter().flatten();
    let is_known = |key: &Json| key.as_str().is_some_and(|key| names.contains(&key));
    match keys.find(|key| !is_known(key)) {
        Some(key) => {
            let key = shortened(key.as_str().unwrap_or_default(), NAME);
            Err(format!("has `{key}`, which is unknown; there are {}", names.join(", ")))
        }
        None => Ok(()),
    }
}

/// The value of a field, if it is present.
pub(crate) fn get(object: &Json, key: &str) -> Option<Json> {
    object.get_attr(key).ok().filter(|value| !value.is_undefined() && !value.is_none())
}

fn is_object(value: &Json) -> bool {
    value.kind().to_string() == "map"
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(tool: &Value) -> Result<ToolKind, String> {
        kind(3, &serde_json::from_value(tool.clone()).unwrap()).map_err(|failure| failure.message)
    }

    #[test]
    fn tools_of_published_interfaces_are_accepted() {
        let schema = json!({"type": "object", "any": 1});
        let cached = json!({"type": "ephemeral"});
        for tool in [
            json!({"type": "function", "function": {"name": "f"}}),
            json!({"type": "function", "function": {"name": "f", "description": "a", "parameters": schema, "strict": null, "return": {}}, "cache_control": cached}),
            json!({"type": "function", "function": {"type": "function", "name": "f", "parameters": schema, "defer_loading": false, "input_examples": [{}]}}),
            json!({"type": "function", "name": "f", "description": null, "parameters": null, "strict": false}),
            json!({"type": "function", "name": "f", "parameters": schema, "strict": true, "defer_loading": true, "allowed_callers": ["direct"], "output_schema": {}}),
            json!({"name": "f", "input_schema": schema, "cache_control": cached, "strict": true}),
            json!({"type": "custom", "name": "f", "input_schema": schema, "eager_input_streaming": true, "input_examples": [{}]}),
            json!({"type": null, "name": "f", "input_schema": {}}),
        ] {
            assert_eq!(read(&tool), Ok(ToolKind::Function), "{tool}");
        }
        for tool in [
            json!({"type": "web_search", "external_web_access": false}),
            json!({"type": "web_search_20250305", "name": "web_search", "max_uses": 8}),
            json!({"type": "tool_search", "execution": "client", "parameters": {"type": "object"}}),
            json!({"type": "namespace", "name": "a", "tools": []}),
            json!({"type": "mcp", "server_label": "a", "server_url": "b"}),
            json!({"type": "custom", "name": "f", "format": {"type": "grammar"}}),
            json!({"type": "custom", "custom": {"name": "f"}}),
        ] {
            let kind = tool["type"].as_str().unwrap().to_owned();
            assert_eq!(read(&tool), Ok(ToolKind::Other(kind)), "{tool}");
        }
    }

    #[test]
    fn tools_that_are_none_are_refused_by_their_number() {
        for (tool, words) in [
            (json!(-1), "is not an object"),
            (json!("a"), "is not an object"),
            (json!([]), "is not an object"),
            (json!({}), "has no name"),
            (json!({"type": 3}), "type that is not a text"),
            (json!({"type": "function"}), "has no `function`"),
            (json!({"type": "function", "function": 3}), "`function` that is not an object"),
            (json!({"type": "function", "function": {}}), "has no name"),
            (json!({"type": "function", "function": {"name": 3}}), "has no name"),
            (
                json!({"type": "function", "function": {"name": "f", "paramters": {}}}),
                "`paramters`",
            ),
            (
                json!({"type": "function", "function": {"name": "f", "parameters": 3}}),
                "`parameters` that is not an object",
            ),
            (json!({"type": "function", "function": {"name": "f"}, "strikt": true}), "`strikt`"),
            (json!({"type": "function", "name": "f", "input_schema": {}}), "is `parameters`"),
            (json!({"type": "functoin", "function": {"name": "f"}}), "type `functoin`"),
            (json!({"type": "functoin", "name": "f", "parameters": {}}), "type `functoin`"),
            (json!({"function": {"name": "f"}}), "so its type is `function`"),
            (json!({"name": "f"}), "has no `input_schema`"),
            (json!({"name": "f", "parameters": {}}), "is `input_schema`"),
            (json!({"name": "f", "input_shema": {}}), "`input_shema`"),
            (json!({"type": "custom", "name": "f", "parameters": {}}), "is `input_schema`"),
            (json!({"input_schema": {}}), "has no name"),
        ] {
            let message = read(&tool).unwrap_err();
            assert!(
                message.starts_with("tools[3] ") && message.contains(words),
                "{tool}: {message}"
            );
        }
    }
}
