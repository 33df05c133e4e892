//! Limits on JSON schemas.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::structure::{MAX_NESTING, MAX_STRUCTURE_BYTES, StructureError, within};

/// Maximum number of combinations of alternatives.
pub(crate) const MAX_VARIANTS: u64 = 1024;

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
                    let sum = list.iter().fold(0_u64, |sum, s| sum.saturating_add(self.of(s)));
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
        let count = target.map_or(1, |target| self.of(target));
        self.known.insert(name, count);
        count
    }

    fn most(&mut self, list: &'s [Value]) -> u64 {
        list.iter().map(|schema| self.of(schema)).fold(1, u64::max)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
