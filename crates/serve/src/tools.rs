//! The tools of a request, in OpenAI's form, which templates know.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::{Value, json};
use sws_text::Json;
use sws_text::grammar::{CallOption, Structure};

use crate::app::App;
use crate::checks::{self, ToolKind};
use crate::failure::Failure;
use crate::served::Served;

/// Type of a choice among some of the tools.
const ALLOWED: &str = "allowed_tools";

/// A choice of tools: a word, or an object with a type.
#[derive(Debug)]
pub(crate) enum ToolChoice {
    Word(String),
    Object(ChosenTool),
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ChosenTool {
    #[serde(rename = "type")]
    kind: String,
    name: Option<String>,
    function: Option<NamedTool>,
    disable_parallel_tool_use: Option<bool>,
    /// Allowed tools, in chats.
    allowed_tools: Option<AllowedTools>,
    /// Mode of the allowed tools, in Responses.
    mode: Option<String>,
    tools: Option<Vec<Json>>,
}

/// Some of the tools, and the mode: `required` if one of them must be called, otherwise `auto`.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct AllowedTools {
    mode: Option<String>,
    tools: Option<Vec<Json>>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedTool {
    name: String,
}

impl<'de> Deserialize<'de> for ToolChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ToolChoice, D::Error> {
        struct ToolChoiceVisitor;

        impl<'de> Visitor<'de> for ToolChoiceVisitor {
            type Value = ToolChoice;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a word or an object")
            }

            fn visit_str<E: Error>(self, word: &str) -> Result<ToolChoice, E> {
                Ok(ToolChoice::Word(word.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ToolChoice, A::Error> {
                let mut chosen = ChosenTool::deserialize(MapAccessDeserializer::new(map))?;
                if chosen.kind == ALLOWED && chosen.allowed_tools.is_none() {
                    let mode = chosen.mode.take();
                    let tools = chosen.tools.take();
                    chosen.allowed_tools = Some(AllowedTools { mode, tools });
                }
                Ok(ToolChoice::Object(chosen))
            }
        }

        deserializer.deserialize_any(ToolChoiceVisitor)
    }
}

/// The tools that are shown to a model.
#[derive(Debug, Default)]
pub(crate) struct OfferedTools {
    pub(crate) tools: Option<Json>,
    /// `Some` if the answer must be a tool call: of the tool with this name, or of any tool.
    pub(crate) must: Option<Option<String>>,
    /// The structure of the required tool call.
    pub(crate) call: Option<Structure>,
}

impl ToolChoice {
    /// The kind of the choice, and the tool's name if it has one.
    fn words(&self) -> (&str, Option<&str>) {
        match self {
            ToolChoice::Word(word) => (word, None),
            ToolChoice::Object(ChosenTool { kind, name, function, .. }) => {
                (kind, name.as_deref().or(function.as_ref().map(|named| &*named.name)))
            }
        }
    }

    /// The allowed tools, if the choice is restricted to some.
    fn allowed(&self) -> Option<&AllowedTools> {
        match self {
            ToolChoice::Object(chosen) if chosen.kind == ALLOWED => chosen.allowed_tools.as_ref(),
            _ => None,
        }
    }

    /// True if an answer may have only one tool call.
    pub(crate) fn is_single(&self) -> bool {
        matches!(self, ToolChoice::Object(ChosenTool { disable_parallel_tool_use: Some(true), .. }))
    }
}

/// The tools that are shown to a model: all functions, if it may call any.
pub(crate) fn offered(
    app: &App,
    served: &Served,
    tools: Option<Vec<Json>>,
    choice: Option<&ToolChoice>,
) -> Result<OfferedTools, Failure> {
    let tools = tools.unwrap_or_default();
    let most = app.config.limits.tools;
    if tools.len() > most {
        let message = format!("there are {} tools, and at most {most} are allowed", tools.len());
        return Err(Failure::field("tools", message));
    }
    let mut has_functions = tools.is_empty();
    for (number, tool) in tools.iter().enumerate() {
        match checks::kind(number, tool)? {
            ToolKind::Function => has_functions = true,
            ToolKind::Other(kind) => app.ignored(&kind),
        }
    }
    let allowed = choice.and_then(ToolChoice::allowed);
    let words = match allowed {
        Some(allowed) => (allowed.mode.as_deref().unwrap_or("auto"), None),
        None => choice.map_or(("auto", None), ToolChoice::words),
    };
    let must = match words {
        ("none", _) => return Ok(OfferedTools::default()),
        ("auto", _) => None,
        ("required" | "any", _) => Some(None),
        // An empty type is that of `function_call`.
        ("function" | "tool" | "", Some(name)) => Some(Some(name.to_owned())),
        (other, _) => {
            let other: String = other.chars().take(40).collect();
            let message = format!("the choice `{other}` is not supported");
            return Err(Failure::unsupported("tool_choice", message));
        }
    };
    if !has_functions {
        let message = "none of the tools is a function, and this server runs no others, such as searches; leave them out";
        return Err(Failure::unsupported("tools", message));
    }
    let tools = match allowed {
        Some(allowed) => among(tools, allowed),
        None => tools,
    };
    let functions: Vec<Json> = tools.iter().filter_map(function).collect();
    if let Some(name) = &must {
        let is_known = match name {
            Some(name) => functions.iter().any(|tool| is_named(tool, name)),
            None => !functions.is_empty(),
        };
        if !is_known {
            return Err(Failure::field("tool_choice", "there is no tool of this name"));
        }
    }
    if functions.is_empty() {
        return Ok(OfferedTools::default());
    }
    let (must, call) = match must {
        Some(name) => demanded(served, &tools, name),
        None => (None, None),
    };
    Ok(OfferedTools { tools: Some(Json::from(functions)), must, call })
}

/// The allowed tools. The others are not shown to the model, so that it calls none of them.
fn among(tools: Vec<Json>, allowed: &AllowedTools) -> Vec<Json> {
    let mut names = Vec::new();
    for tool in allowed.tools.iter().flatten() {
        names.extend(function_name(tool));
    }
    let mut tools = tools;
    tools.retain(|tool| function_name(tool).is_some_and(|name| names.contains(&name)));
    tools
}

/// True for a tool in OpenAI's form with this name.
fn is_named(tool: &Json, name: &str) -> bool {
    name_of(tool).is_some_and(|known| known.as_str() == Some(name))
}

/// The name of a function in any form.
fn function_name(tool: &Json) -> Option<Json> {
    name_of(&function(tool)?)
}

/// The structure of a required tool call, if the model's format has one. If there is only one tool,
/// that is the one to call.
fn demanded(
    served: &Served,
    tools: &[Json],
    name: Option<String>,
) -> (Option<Option<String>>, Option<Structure>) {
    let known: Vec<DemandedTool> = tools.iter().filter_map(DemandedTool::of).collect();
    let only = match &known[..] {
        [only] => Some(only.name.clone()),
        _ => None,
    };
    let name = name.or(only);
    let Some((form, end)) = served.format.call_arguments() else { return (Some(name), None) };
    let mut options = Vec::new();
    for tool in known {
        let before = match &name {
            Some(name) if *name == tool.name => String::new(),
            Some(_) => continue,
            None => match served.format.call_middle(&tool.name) {
                Some(middle) => middle,
                None => return (Some(name), None),
            },
        };
        options.push(CallOption { before, schema: tool.schema, strict: tool.strict });
    }
    (Some(name), Some(Structure::Calls { options, form, end: end.to_owned() }))
}

/// A tool that the answer may have to call.
struct DemandedTool {
    name: String,
    /// Schema of its arguments.
    schema: Value,
    strict: bool,
}

impl DemandedTool {
    fn of(tool: &Json) -> Option<DemandedTool> {
        let function = function(tool)?;
        let name = name_of(&function)?.as_str()?.to_owned();
        let parameters = function.get_attr("function").ok()?.get_attr("parameters").ok();
        let schema = parameters.and_then(|parameters| serde_json::to_value(&parameters).ok());
        let schema = schema.filter(Value::is_object);
        // A function without parameters has no arguments, as OpenAI says.
        let mut schema = schema.unwrap_or_else(|| json!({"type": "object", "properties": {}}));
        close(&mut schema);
        Some(DemandedTool { name, schema, strict: is_strict(tool) })
    }
}

/// Lets the objects of a schema have no properties but those that it names, where it does not say so. JSON
/// Schema would allow any, and a model could go on without end.
fn close(schema: &mut Value) {
    let Value::Object(map) = schema else {
        if let Value::Array(schemas) = schema {
            schemas.iter_mut().for_each(close);
        }
        return;
    };
    let says = ["additionalProperties", "patternProperties", "allOf"];
    if map.contains_key("properties") && !says.iter().any(|key| map.contains_key(*key)) {
        map.insert("additionalProperties".to_owned(), false.into());
    }
    for (key, value) in map {
        match (key.as_str(), value) {
            // Schemas by names of the client's own.
            ("properties" | "$defs" | "definitions", Value::Object(named)) => {
                named.values_mut().for_each(close);
            }
            // The parts of `allOf` have properties in common; the others are no schemas.
            ("allOf" | "enum" | "const" | "default" | "examples", _) => {}
            (_, value) => close(value),
        }
    }
}

/// Converts a function of the older field to a tool.
pub(crate) fn of_function(function: Json) -> Json {
    Json::from_pairs([("type", Json::from("function")), ("function", function)])
}

/// True for a tool whose calls must follow its schema.
fn is_strict(tool: &Json) -> bool {
    says_strict(tool) || tool.get_attr("function").is_ok_and(|function| says_strict(&function))
}

fn says_strict(value: &Json) -> bool {
    value.get_attr("strict").is_ok_and(|strict| strict.is_true())
}

/// The name of a tool in OpenAI's form.
fn name_of(tool: &Json) -> Option<Json> {
    tool.get_attr("function").ok()?.get_attr("name").ok()
}

/// A tool in OpenAI's form; `None` for a tool that is not a function, such as those that OpenAI's
/// own servers run.
fn function(tool: &Json) -> Option<Json> {
    let get = |key: &str| checks::get(tool, key);
    let kind = get("type");
    let kind = kind.as_ref().and_then(Json::as_str).unwrap_or("custom");
    if get("function").is_some() {
        return (kind == "function").then(|| tool.clone());
    }
    let name = get("name")?;
    let parameters = match kind {
        "function" => get("parameters"),
        // Anthropic's name for a function.
        "custom" => Some(get("input_schema")?),
        _ => return None,
    };
    let fields =
        [("name", Some(name)), ("description", get("description")), ("parameters", parameters)];
    let fields = fields.into_iter().filter_map(|(key, value)| Some((key, value?)));
    let function = Json::from_pairs(fields);
    Some(Json::from_pairs([("type", Json::from("function")), ("function", function)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_allowed_tools_are_shown() {
        let tool = |name: &str| {
            let parameters = json!({"type": "object"});
            json!({"type": "function", "function": {"name": name, "parameters": parameters}})
        };
        for choice in [
            json!({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
                {"type": "function", "function": {"name": "b"}}, {"type": "web_search"}]}}),
            json!({"type": "allowed_tools", "mode": "required", "tools": [
                {"type": "function", "name": "b"}, {"type": "function", "name": "unknown"}]}),
        ] {
            let choice: ToolChoice = serde_json::from_value(choice).unwrap();
            let allowed = choice.allowed().unwrap();
            assert_eq!(allowed.mode.as_deref(), Some("required"));
            let tools = ["a", "b", "c"].map(|name| serde_json::from_value(tool(name)).unwrap());
            let left = among(tools.to_vec(), allowed);
            assert_eq!(serde_json::to_value(&left).unwrap(), json!([tool("b")]));
        }
        let one: ToolChoice = serde_json::from_value(json!({"type": "tool", "name": "b"})).unwrap();
        assert!(one.allowed().is_none());
    }

    #[test]
    fn objects_have_the_properties_that_a_schema_names() {
        let mut schema = json!({
            "properties": {"a": {"properties": {}}, "b": {"additionalProperties": true, "properties": {}}},
            "allOf": [{"properties": {"c": {}}}],
            "$defs": {"d": {"properties": {"properties": {"type": "string"}}}},
            "anyOf": [{"properties": {}}],
            "enum": [{"properties": 1}],
        });
        let mut expected = schema.clone();
        expected["properties"]["a"]["additionalProperties"] = false.into();
        expected["$defs"]["d"]["additionalProperties"] = false.into();
        expected["anyOf"][0]["additionalProperties"] = false.into();
        close(&mut schema);
        assert_eq!(schema, expected);
    }

    #[test]
    fn tools_of_each_interface_have_one_form() {
        let read = |value: Value| function(&serde_json::from_value(value).unwrap());
        let form = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
        for tool in [
            form.clone(),
            json!({"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": true}),
            json!({"name": "f", "input_schema": {"type": "object"}}),
            json!({"type": "custom", "name": "f", "input_schema": {"type": "object"}}),
        ] {
            let found = read(tool.clone()).unwrap();
            assert_eq!(serde_json::to_value(&found).unwrap(), form, "{tool}");
        }
        for tool in [
            json!({"type": "web_search"}),
            json!({"type": "custom", "name": "f", "format": {"type": "grammar"}}),
            json!({"type": "bash_20250124", "name": "bash"}),
            json!(3),
        ] {
            assert!(read(tool.clone()).is_none(), "{tool}");
        }
    }
}
