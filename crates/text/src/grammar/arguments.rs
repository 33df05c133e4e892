//! Tool calls whose arguments are tags, as rules of a grammar.
//!
//! The reader of such calls decides by the schema whether a text is a string or another value. The
//! rules allow no text that it would read as a value of another type, or that ends a value early.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde_json::{Map, Value};

use super::bounds::{StructureError, compact, quoted};
use super::marks::{MarkPiece, Marks, rule};
use super::{pattern, schema};
use crate::reply::{Alternative, Alternatives, ArgumentTags, json, resolved};

/// Maximum number of arguments that the schema does not name.
pub(super) const OTHERS: usize = 16;

/// Names of arguments that the schema does not name.
const NAME: &str = "/[A-Za-z_][A-Za-z0-9_.-]{0,63}/";

/// Keywords of a tool's schema that the rules cannot keep.
const REFUSED: [&str; 9] = [
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "patternProperties",
    "minProperties",
    "maxProperties",
    "dependentRequired",
];

/// Keywords that restrict no value.
const NOTES: [&str; 7] =
    ["type", "title", "description", "default", "examples", "$comment", "format"];

/// Bytes of the rules for a schema, approximately.
pub(super) fn bytes(root: &Value) -> usize {
    let properties = resolved(root, root).get("properties").and_then(Value::as_object);
    let with_definitions = properties.into_iter().flatten().filter(|(_, p)| has_reference(p));
    (1 + with_definitions.count()).saturating_mul(root.to_string().len())
}

/// Adds the rule `args_NUMBER`: the arguments of a tool with this schema.
pub(super) fn write(
    lark: &mut String,
    number: usize,
    tags: &ArgumentTags,
    (root, strict): (&Value, bool),
    marks: &Marks,
) -> Result<(), StructureError> {
    let mut rules = ArgumentRules { lark, number, tags, root, strict, marks };
    let all = rules.arguments()?;
    let all = if all.is_empty() { "\"\"".to_owned() } else { all.join(" ") };
    let _ = writeln!(rules.lark, "args_{number}: {all}");
    Ok(())
}

struct ArgumentRules<'r> {
    lark: &'r mut String,
    number: usize,
    tags: &'r ArgumentTags,
    root: &'r Value,
    strict: bool,
    marks: &'r Marks,
}

impl ArgumentRules<'_> {
    /// The names of rules for all arguments, in order.
    fn arguments(&mut self) -> Result<Vec<String>, StructureError> {
        let Value::Object(schema) = resolved(self.root, self.root) else {
            return Err(StructureError::NoSchema);
        };
        if schema.get("type").is_some_and(|kind| kind != "object") {
            return Err(refused("a tool's arguments are an object"));
        }
        if let Some(key) = REFUSED.iter().find(|key| self.strict && schema.contains_key(**key)) {
            return Err(refused(&format!(
                "this model writes each argument by itself, so `{key}` for all is not supported"
            )));
        }
        let nothing = Map::new();
        let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&nothing);
        let others = schema.get("additionalProperties").unwrap_or(&Value::Bool(true));
        let required: BTreeSet<&str> = match schema.get("required") {
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            _ => BTreeSet::new(),
        };
        let mut all: Vec<(&str, &Value)> = Vec::new();
        for (name, schema) in properties {
            all.push((name, schema));
        }
        for &name in &required {
            if !properties.contains_key(name) {
                all.push((name, others));
            }
        }
        let mut parts = Vec::new();
        for (at, (name, schema)) in all.iter().enumerate() {
            let id = format!("{}_{at}", self.number);
            let tag = self.tags.name(name);
            let values = self.values(&id, schema)?;
            let is_required = required.contains(name);
            let (Some(tag), false) = (tag, values.is_empty()) else {
                if is_required {
                    let name: String = name.chars().take(40).collect();
                    return Err(refused(&format!("no call can have the argument `{name}`")));
                }
                continue;
            };
            let mut alternatives = Vec::with_capacity(values.len());
            for (kind, value) in values {
                let open = format!("{}{tag}{}", self.tags.open, self.tags.after_name(kind));
                alternatives.push(format!("{} {value}", self.marks.rule(&open)));
            }
            let _ = writeln!(self.lark, "arg_{id}: {}", alternatives.join(" | "));
            parts.push(format!("arg_{id}{}", if is_required { "" } else { "?" }));
        }
        let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
        parts.extend(self.others(others, &names)?);
        Ok(parts)
    }

    /// Arguments that the schema does not name.
    fn others(&mut self, schema: &Value, names: &[&str]) -> Result<Option<String>, StructureError> {
        let id = format!("{}_{}", self.number, names.len());
        let values = self.values(&id, schema)?;
        if values.is_empty() {
            return Ok(None);
        }
        let _ = write!(self.lark, "N_{}: {NAME}", self.number);
        if !names.is_empty() {
            let names: Vec<String> = names.iter().copied().map(quoted).collect();
            let _ = write!(self.lark, " & ~({})", names.join(" | "));
        }
        self.lark.push('\n');
        let mut alternatives = Vec::new();
        for (at, (kind, value)) in values.into_iter().enumerate() {
            let open = self.tag(&format!("M_{}_{at}", self.number), kind);
            alternatives.push(format!("{open} {value}"));
        }
        let _ = writeln!(self.lark, "arg_{id}: {}", alternatives.join(" | "));
        Ok(Some(format!("arg_{id}{{0,{OTHERS}}}")))
    }

    /// The tag of an argument that the schema does not name. The text around the name is part of
    /// its terminal `id`, as the tags of other arguments may begin alike.
    fn tag(&mut self, id: &str, kind: &str) -> String {
        let after = self.tags.after_name(kind);
        let mut before = self.marks.pieces(self.tags.open);
        let mut after = self.marks.pieces(&after);
        let text_before = match before.last() {
            Some(MarkPiece::Text(text)) => quoted(text),
            _ => String::new(),
        };
        if !text_before.is_empty() {
            before.pop();
        }
        let text_after = match after.first() {
            Some(MarkPiece::Text(text)) => quoted(text),
            _ => String::new(),
        };
        if !text_after.is_empty() {
            after.remove(0);
        }
        let _ = writeln!(self.lark, "{id}: {text_before} N_{} {text_after}", self.number);
        format!("{} {id} {}", rule(&before), rule(&after))
    }

    /// The values of an argument with the closing tag, each with its JSON type. `id` is part of
    /// the names of their rules.
    fn values(
        &mut self,
        id: &str,
        schema: &Value,
    ) -> Result<Vec<(&'static str, String)>, StructureError> {
        let found = Alternatives::of(schema, self.root);
        let kinds = if self.tags.are_typed() { BTreeSet::new() } else { found.kinds() };
        let mut values = ArgumentValues { are_typed: self.tags.are_typed(), by_kind: Vec::new() };
        let close = self.marks.rule(self.tags.close);
        for (at, alternative) in found.all.iter().enumerate() {
            match alternative {
                Alternative::Text(limits) => {
                    let id = format!("{id}_{at}");
                    let (terminals, value) = text(&id, *limits, &kinds, self.tags, self.marks)?;
                    self.lark.push_str(&terminals);
                    values.add("string", value);
                }
                Alternative::Typed(kind, schema) => {
                    values.add(kind, format!("{} {close}", self.typed(kind, schema)));
                }
                Alternative::Literal(Value::String(text)) => {
                    let is_string = match json(text) {
                        Some((kind, _)) => {
                            !(kinds.contains(kind) || kind == "integer" && kinds.contains("number"))
                        }
                        None => true,
                    };
                    if is_string && !text.contains(self.tags.barred) {
                        values.add("string", format!("{} {close}", quoted(text)));
                    }
                }
                Alternative::Literal(value) => {
                    let text = value.to_string();
                    if let Some((kind, text)) = json(&text) {
                        values.add(kind, format!("{} {close}", quoted(text)));
                    }
                }
            }
        }
        let mut joined = Vec::with_capacity(values.by_kind.len());
        for (kind, all) in values.by_kind {
            joined.push((kind, format!("({})", all.join(" | "))));
        }
        Ok(joined)
    }

    /// A value of another type than a string.
    fn typed(&self, kind: &str, given: &Map<String, Value>) -> String {
        if given.keys().all(|key| NOTES.contains(&key.as_str())) {
            let simple = match kind {
                "integer" => "/-?(0|[1-9][0-9]{0,17})/",
                "number" => "/-?(0|[1-9][0-9]{0,17})(\\.[0-9]{1,17})?([eE][+-]?[0-9]{1,2})?/",
                "boolean" => "(\"true\" | \"false\")",
                "null" => "\"null\"",
                _ => "",
            };
            if !simple.is_empty() {
                return simple.to_owned();
            }
        }
        let mut schema = given.clone();
        schema.insert("type".to_owned(), kind.into());
        let mut schema = Value::Object(schema);
        if has_reference(&schema) {
            for key in ["$defs", "definitions"] {
                if let Some(definitions) = self.root.get(key) {
                    schema[key] = definitions.clone();
                }
            }
        }
        schema::bound(&mut schema);
        format!("%json {}", compact(schema, self.strict))
    }
}

/// The values of an argument, by their JSON type.
struct ArgumentValues {
    /// False for formats without types, which have one tag for all values.
    are_typed: bool,
    by_kind: Vec<(&'static str, Vec<String>)>,
}

impl ArgumentValues {
    fn add(&mut self, kind: &'static str, value: String) {
        let kind = if self.are_typed { kind } else { "string" };
        match self.by_kind.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, all)) => all.push(value),
            None => self.by_kind.push((kind, vec![value])),
        }
    }
}

/// Terminals for a text and its closing tag, and the rule that uses them. `kinds` are the types
/// that the text must not look like.
fn text(
    id: &str,
    limits: Option<&Map<String, Value>>,
    kinds: &BTreeSet<&str>,
    tags: &ArgumentTags,
    marks: &Marks,
) -> Result<(String, String), StructureError> {
    let nothing = Map::new();
    let limits = limits.unwrap_or(&nothing);
    let least = limits.get("minLength").and_then(Value::as_u64).unwrap_or(0);
    let most = limits.get("maxLength").and_then(Value::as_u64);
    if most.is_some_and(|most| most < least) {
        return Err(refused("a text has a maximum length below its minimum"));
    }
    let barred = pattern::literal(tags.barred);
    let mut parts = vec!["/(?s:.*)/".to_owned(), format!("~/(?s:.*){barred}(?s:.*)/")];
    if least > 0 || most.is_some() {
        let most = most.as_ref().map(u64::to_string).unwrap_or_default();
        parts.push(format!("/(?s:.{{{least},{most}}})/"));
    }
    let given = limits.get("pattern").and_then(Value::as_str);
    if let Some(given) = given {
        parts.push(format!("/{}/", pattern::whole(given)));
    }
    for kind in kinds {
        let begins = match *kind {
            "integer" | "number" => "-?[0-9]",
            "boolean" => "(true|false)",
            "null" => "null",
            "array" => "\\[",
            _ => "\\{",
        };
        parts.push(format!("~/[ \\t\\r\\n]*{begins}(?s:.*)/"));
    }
    let pieces = marks.pieces(tags.close);
    let mut terminals = String::new();
    let value = match &pieces[..] {
        [MarkPiece::Text(first), rest @ ..] => {
            let _ = writeln!(terminals, "T_{id}: {}", parts.join(" & "));
            let _ = writeln!(terminals, "S_{id}: T_{id} {}", quoted(first));
            format!("S_{id} {}", rule(rest))
        }
        _ => {
            // A terminal is never empty.
            parts.push("/(?s:.+)/".to_owned());
            let _ = writeln!(terminals, "T_{id}: {}", parts.join(" & "));
            let may_be_empty = least == 0 && given.is_none();
            format!("T_{id}{} {}", if may_be_empty { "?" } else { "" }, rule(&pieces))
        }
    };
    Ok((terminals, value))
}

fn has_reference(schema: &Value) -> bool {
    schema.to_string().contains("\"$ref\"")
}

fn refused(why: &str) -> StructureError {
    StructureError::Refused(why.to_owned())
}
