//! Types of tool parameters, for formats that write all values alike.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::Json;

/// The tools of a request, with the types of their parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolSchemas(BTreeMap<String, Parameters>);

/// Possible types of each parameter of a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Parameters(BTreeMap<String, Vec<String>>);

impl ToolSchemas {
    /// The schemas of tools in OpenAI's form: a list of objects with a `function`.
    pub fn of(tools: &Json) -> ToolSchemas {
        let list = tools.try_iter().into_iter().flatten();
        let tools = list.filter_map(|tool| {
            let function = get(&tool, "function")?;
            let name = get(&function, "name")?.as_str()?.to_owned();
            let properties = get(&function, "parameters").and_then(|p| get(&p, "properties"));
            Some((name, properties.map_or(Parameters::default(), |p| Parameters::of(&p))))
        });
        ToolSchemas(tools.collect())
    }

    /// True if there is a tool with this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub(super) fn parameters(&self, name: &str) -> Option<&Parameters> {
        self.0.get(name)
    }
}

impl Parameters {
    fn of(properties: &Json) -> Parameters {
        let names = properties.try_iter().into_iter().flatten();
        let types = names.filter_map(|name| {
            let mut types = Vec::new();
            collect(&properties.get_item(&name).ok()?, &mut types);
            Some((name.as_str()?.to_owned(), types))
        });
        Parameters(types.collect())
    }

    /// The value of a parameter's text: a string, unless another type of the parameter fits.
    pub(super) fn value(&self, name: &str, text: &str) -> Value {
        let types = self.0.get(name).map_or(&[][..], Vec::as_slice);
        let value: Option<Value> = serde_json::from_str(text).ok();
        let fits = |value: &Value| {
            let kinds: &[&str] = match value {
                Value::Null => &["null"],
                Value::Bool(_) => &["boolean"],
                Value::Number(number) if number.is_f64() => &["number"],
                Value::Number(_) => &["integer", "number"],
                Value::String(_) => &[],
                Value::Array(_) => &["array"],
                Value::Object(_) => &["object"],
            };
            types.iter().any(|kind| kinds.contains(&kind.as_str()))
        };
        value.filter(fits).unwrap_or_else(|| Value::from(text))
    }
}

/// Collects the types that a schema names, also in its alternatives.
fn collect(schema: &Json, types: &mut Vec<String>) {
    if let Some(kind) = get(schema, "type") {
        match kind.as_str() {
            Some(kind) => types.push(kind.to_owned()),
            None => types.extend(
                kind.try_iter().into_iter().flatten().filter_map(|k| k.as_str().map(str::to_owned)),
            ),
        }
    }
    for key in ["anyOf", "oneOf"] {
        let alternatives = get(schema, key);
        let alternatives = alternatives.iter().filter_map(|list| list.try_iter().ok()).flatten();
        for kind in alternatives.filter_map(|schema| get(&schema, "type")) {
            types.extend(kind.as_str().map(str::to_owned));
        }
    }
}

fn get(value: &Json, key: &str) -> Option<Json> {
    value.get_attr(key).ok().filter(|value| !value.is_undefined() && !value.is_none())
}
