//! Types of tool parameters, for formats that write all values alike.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::Json;

/// Maximum number of alternatives of a parameter, and of references on the way to one. Others are
/// ignored.
const ALTERNATIVES: usize = 256;
const REFERENCES: usize = 8;

/// The tools of a request, with the types of their parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolSchemas(BTreeMap<String, Parameters>);

/// JSON types other than strings.
type Kinds = BTreeSet<&'static str>;

/// Possible types of each parameter of a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Parameters {
    named: BTreeMap<String, Kinds>,
    /// Types of parameters that the schema does not name.
    others: Kinds,
}

impl ToolSchemas {
    /// The schemas of tools in OpenAI's form: a list of objects with a `function`.
    pub fn of(tools: &Json) -> ToolSchemas {
        let list = tools.try_iter().into_iter().flatten();
        let tools = list.filter_map(|tool| {
            let function = get(&tool, "function")?;
            let name = get(&function, "name")?.as_str()?.to_owned();
            let schema = get(&function, "parameters").and_then(|p| serde_json::to_value(&p).ok());
            Some((name, schema.map_or(Parameters::default(), |p| Parameters::of(&p))))
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
    fn of(root: &Value) -> Parameters {
        let schema = resolved(root, root);
        let mut named = BTreeMap::new();
        if let Some(Value::Object(properties)) = schema.get("properties") {
            for (name, schema) in properties {
                named.insert(name.clone(), Alternatives::of(schema, root).kinds());
            }
        }
        let others = match schema.get("additionalProperties") {
            Some(schema) => Alternatives::of(schema, root).kinds(),
            None => Kinds::new(),
        };
        Parameters { named, others }
    }

    /// The value of a parameter's text, as JSON: a string, unless another type of the parameter
    /// fits. Numbers keep their digits.
    pub(super) fn value(&self, name: &str, text: &str) -> String {
        let kinds = self.named.get(name).unwrap_or(&self.others);
        match json(text) {
            Some((kind, json)) if fits(kinds, kind) => json.to_owned(),
            _ => Value::from(text).to_string(),
        }
    }
}

/// True if a value of this type is one of these.
fn fits(kinds: &Kinds, kind: &str) -> bool {
    kinds.contains(kind) || kind == "integer" && kinds.contains("number")
}

/// The JSON of a text and its type, if that is not a string. Its numbers are in range.
pub(crate) fn json(text: &str) -> Option<(&'static str, &str)> {
    let _: Value = serde_json::from_str(text).ok()?;
    let json: &RawValue = serde_json::from_str(text).ok()?;
    let json = json.get();
    let kind = match json.as_bytes().first()? {
        b'"' => return None,
        b'{' => "object",
        b'[' => "array",
        b't' | b'f' => "boolean",
        b'n' => "null",
        _ if json.contains(['.', 'e', 'E']) => "number",
        _ => "integer",
    };
    Some((kind, json))
}

/// What a value may be, by its schema.
#[derive(Debug, PartialEq)]
pub(crate) enum Alternative<'s> {
    /// Any string within the limits of this schema, which may have none.
    Text(Option<&'s Map<String, Value>>),
    /// A value of this other type, by a schema whose type may be one of several.
    Typed(&'static str, &'s Map<String, Value>),
    /// This value.
    Literal(&'s Value),
}

/// All that a value may be.
pub(crate) struct Alternatives<'s> {
    root: &'s Value,
    pub(crate) all: Vec<Alternative<'s>>,
}

impl Alternative<'_> {
    /// The JSON type of the values, unless they are texts.
    fn kind(&self) -> Option<&'static str> {
        match self {
            Alternative::Text(_) => None,
            Alternative::Typed(kind, _) => Some(kind),
            Alternative::Literal(value) => Some(json(&value.to_string())?.0),
        }
    }
}

impl<'s> Alternatives<'s> {
    /// The alternatives of a schema within `root`.
    pub(crate) fn of(schema: &'s Value, root: &'s Value) -> Alternatives<'s> {
        let mut found = Alternatives { root, all: Vec::new() };
        found.add(schema, 0);
        found.all.truncate(ALTERNATIVES);
        found
    }

    /// The types of the alternatives, without strings.
    pub(crate) fn kinds(&self) -> Kinds {
        self.all.iter().filter_map(Alternative::kind).collect()
    }

    fn add(&mut self, schema: &'s Value, depth: usize) {
        if depth > REFERENCES || self.all.len() >= ALTERNATIVES {
            return;
        }
        let Value::Object(map) = schema else {
            if schema != &Value::Bool(false) {
                self.all.push(Alternative::Text(None));
            }
            return;
        };
        if let Some(target) = target(map, self.root) {
            return self.add(target, depth + 1);
        }
        if let Some(value) = map.get("const") {
            return self.all.push(Alternative::Literal(value));
        }
        if let Some(Value::Array(values)) = map.get("enum") {
            let room = ALTERNATIVES - self.all.len();
            return self.all.extend(values.iter().take(room).map(Alternative::Literal));
        }
        match map.get("type") {
            Some(Value::String(kind)) => return self.add_type(kind, map),
            Some(Value::Array(kinds)) => {
                for kind in kinds.iter().filter_map(Value::as_str).take(8) {
                    self.add_type(kind, map);
                }
                return;
            }
            _ => {}
        }
        let several = ["anyOf", "oneOf"].into_iter().find_map(|key| map.get(key));
        match (several.and_then(Value::as_array), map.get("allOf").and_then(Value::as_array)) {
            (Some(list), _) => {
                for schema in list {
                    self.add(schema, depth + 1);
                }
            }
            (None, Some(list)) if list.len() == 1 => self.add(&list[0], depth + 1),
            _ if map.contains_key("properties") => self.add_type("object", map),
            _ if map.contains_key("items") => self.add_type("array", map),
            _ => self.all.push(Alternative::Text(Some(map))),
        }
    }

    fn add_type(&mut self, kind: &str, schema: &'s Map<String, Value>) {
        let others = ["integer", "number", "boolean", "null", "array", "object"];
        match others.into_iter().find(|other| *other == kind) {
            Some(kind) => self.all.push(Alternative::Typed(kind, schema)),
            None => self.all.push(Alternative::Text(Some(schema))),
        }
    }
}

/// The schema that a reference at the top of a schema leads to.
pub(crate) fn resolved<'s>(schema: &'s Value, root: &'s Value) -> &'s Value {
    let mut schema = schema;
    for _ in 0..REFERENCES {
        match schema.as_object().and_then(|map| target(map, root)) {
            Some(next) => schema = next,
            None => break,
        }
    }
    schema
}

/// The target of a schema that is a reference within `root`.
fn target<'s>(schema: &Map<String, Value>, root: &'s Value) -> Option<&'s Value> {
    root.pointer(schema.get("$ref")?.as_str()?.strip_prefix('#')?)
}

fn get(value: &Json, key: &str) -> Option<Json> {
    value.get_attr(key).ok().filter(|value| !value.is_undefined() && !value.is_none())
}
