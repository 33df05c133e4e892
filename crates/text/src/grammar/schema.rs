//! Limits on JSON schemas.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::bounds::{MAX_NESTING, MAX_STRUCTURE_BYTES, MAX_VARIANTS, StructureError, within};

/// Refuses a schema that is too large, too deep, or has too many combinations of alternatives.
pub(crate) fn check(schema: &Value) -> Result<(), StructureError> {
    if !matches!(schema, Value::Object(_) | Value::Bool(true)) {
        return Err(StructureError::NoSchema);
    }
    if depth(schema) > MAX_NESTING {
        return Err(StructureError::TooDeep);
    }
    within(schema.to_string().len(), MAX_STRUCTURE_BYTES)?;
    let mut variants = Variants { root: schema, known: BTreeMap::new() };
    match variants.of(schema) {
        0..=MAX_VARIANTS => Ok(()),
        _ => Err(StructureError::Variants),
    }
}

fn depth(value: &Value) -> usize {
    let mut deepest = 0;
    let mut left = vec![(value, 1)];
    while let Some((value, depth)) = left.pop() {
        deepest = deepest.max(depth);
        match value {
            Value::Array(list) => left.extend(list.iter().map(|value| (value, depth + 1))),
            Value::Object(map) => left.extend(map.values().map(|value| (value, depth + 1))),
            _ => {}
        }
    }
    deepest
}

/// Counts the variants that the compiler makes of a schema with alternatives. Alternatives under
/// `allOf`, and alternatives of neighbours, multiply.
struct Variants<'s> {
    root: &'s Value,
    /// Number of variants per reference seen so far; 1 for a reference to itself.
    known: BTreeMap<&'s str, u64>,
}

impl<'s> Variants<'s> {
    fn of(&mut self, schema: &'s Value) -> u64 {
        match schema {
            Value::Object(map) => self.of_object(map),
            Value::Array(list) => self.most(list),
            _ => 1,
        }
    }

    fn of_object(&mut self, schema: &'s Map<String, Value>) -> u64 {
        let mut product = 1_u64;
        let mut most = 1;
        for (key, value) in schema {
            match (key.as_str(), value) {
                ("allOf", Value::Array(list)) => {
                    for schema in list {
                        product = product.saturating_mul(self.of(schema));
                    }
                }
                ("anyOf" | "oneOf", Value::Array(list)) => {
                    let mut sum = 0_u64;
                    for schema in list {
                        sum = sum.saturating_add(self.of(schema));
                    }
                    product = product.saturating_mul(sum.max(1));
                }
                ("$ref", Value::String(name)) => {
                    product = product.saturating_mul(self.of_reference(name));
                }
                ("enum" | "const" | "default" | "examples", _) => {}
                _ => most = most.max(self.of(value)),
            }
        }
        product.saturating_mul(most)
    }

    fn of_reference(&mut self, name: &'s str) -> u64 {
        if let Some(&count) = self.known.get(name) {
            return count;
        }
        self.known.insert(name, 1);
        let target = name.strip_prefix('#').and_then(|path| self.root.pointer(path));
        let count = match target {
            Some(target) => self.of(target),
            None => 1,
        };
        self.known.insert(name, count);
        count
    }

    fn most(&mut self, list: &'s [Value]) -> u64 {
        let mut most = 1;
        for schema in list {
            most = most.max(self.of(schema));
        }
        most
    }
}

/// Maximum number of properties of an object whose schema names none, and of items in it, and the
/// depth of its values.
const OPEN: usize = 16;
const OPEN_DEPTH: usize = 2;

/// Bounds objects whose schema says nothing on their properties. A model could go on without end.
pub(crate) fn bound(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            let is_object = map.get("type").is_none_or(|kind| kind == "object");
            bound_within(map);
            if is_object && is_open(map) {
                open(map, OPEN_DEPTH);
            }
        }
        Value::Bool(true) => *schema = open_object(OPEN_DEPTH),
        _ => {}
    }
}

fn bound_within(map: &mut Map<String, Value>) {
    for (key, value) in map.iter_mut() {
        match (key.as_str(), value) {
            (
                "properties" | "patternProperties" | "$defs" | "definitions",
                Value::Object(named),
            ) => {
                named.values_mut().for_each(bound_inner);
            }
            ("enum" | "const" | "default" | "examples" | "not", _) => {}
            (_, Value::Array(schemas)) => schemas.iter_mut().for_each(bound_inner),
            (_, value) => bound_inner(value),
        }
    }
}

fn bound_inner(schema: &mut Value) {
    let Value::Object(map) = schema else { return };
    bound_within(map);
    if map.get("type").is_some_and(|kind| kind == "object") && is_open(map) {
        open(map, OPEN_DEPTH);
    }
}

/// True if a schema says nothing on properties.
fn is_open(schema: &Map<String, Value>) -> bool {
    let notes = ["type", "title", "description", "default", "examples", "$comment", "$schema"];
    schema.keys().all(|key| notes.contains(&key.as_str()))
}

fn open(schema: &mut Map<String, Value>, depth: usize) {
    schema.insert("type".to_owned(), "object".into());
    schema.insert("maxProperties".to_owned(), OPEN.into());
    schema.insert("additionalProperties".to_owned(), any(depth));
}

fn open_object(depth: usize) -> Value {
    let mut schema = Map::new();
    open(&mut schema, depth);
    schema.into()
}

/// Any value with at most this many levels of arrays and objects.
fn any(depth: usize) -> Value {
    let kinds = ["string", "number", "boolean", "null"];
    let mut all: Vec<Value> = kinds.iter().map(|kind| json!({"type": kind})).collect();
    if depth > 0 {
        all.push(json!({"type": "array", "items": any(depth - 1), "maxItems": OPEN}));
        all.push(open_object(depth - 1));
    }
    json!({"anyOf": all})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alternatives_multiply_only_where_they_are_combined() {
        let two = json!({"anyOf": [{"type": "string"}, {"type": "null"}]});
        let many = |key: &str, count| {
            let list: Vec<Value> = (0..count).map(|_| two.clone()).collect();
            json!({ key: list })
        };
        let properties: Map<String, Value> =
            (0..100).map(|number| (format!("p{number}"), two.clone())).collect();
        for (schema, holds) in [
            (json!({"type": "object", "properties": properties}), true),
            (many("anyOf", 100), true),
            (many("allOf", 10), true),
            (many("allOf", 11), false),
            (json!({"allOf": [many("allOf", 6), many("allOf", 6)]}), false),
            (
                json!({"$defs": {"a": many("allOf", 6)}, "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}),
                false,
            ),
            (
                json!({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, two]}}, "$ref": "#/$defs/a"}),
                true,
            ),
            (json!({"enum": [many("allOf", 40)]}), true),
        ] {
            let found = check(&schema);
            assert_eq!(found.is_ok(), holds, "{schema}: {found:?}");
        }
    }

    #[test]
    fn large_and_deep_schemas_are_refused() {
        let mut deep = json!({});
        for _ in 0..MAX_NESTING {
            deep = json!({ "not": deep });
        }
        assert_eq!(check(&deep), Err(StructureError::TooDeep));
        let long = json!({"const": "a".repeat(MAX_STRUCTURE_BYTES)});
        assert!(matches!(check(&long), Err(StructureError::TooLong { .. })));
        for value in [json!(3), json!("{}"), json!([]), json!(null), json!(false)] {
            assert_eq!(check(&value), Err(StructureError::NoSchema), "{value}");
        }
    }
}
