//! Demanded tool calls, in every format: what the constraint allows is read back as arguments that
//! the schema allows.

use std::sync::{Arc, OnceLock};

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use sws_text::grammar::{CallOption, Grammar, GrammarVocabulary, Structure};
use sws_text::{
    ArgumentForm, ChatTemplate, Constraint, Json, ReplyFormat, ReplyPart, SplitMix64, Tokenizer,
    ToolCall, ToolSchemas,
};

/// Markers of all formats that are tokens of their own.
const MARKERS: [&str; 26] = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "｜DSML｜",
    "<|open|>",
    "<|close|>",
    "<|sep|>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|channel|>",
    "<|message|>",
    "<|constrain|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|content_invoke_tool_json|>",
];
const TEXTS: usize = 4096;
const VOCAB: usize = TEXTS + MARKERS.len();
/// The token that ends texts.
const END: u32 = 0;

/// Templates of all formats.
const FORMATS: [&str; 12] = [
    "<tool_call>",
    "<tool_call><function=",
    "<tool_call><arg_key>",
    "<minimax:tool_call>",
    "｜DSML｜ function_calls",
    "｜DSML｜",
    "<|open|><|close|><|sep|>",
    "<｜tool▁call▁begin｜>",
    "<|tool_call_begin|>",
    "<|channel|><|message|>",
    "[TOOL_CALLS][ARGS]",
    "<|content_thinking|><|end_message|>",
];

/// Texts that a value could end with, or that look like a value of another type.
const FRAGMENTS: [&str; 18] = [
    "</parameter>",
    "\n</parameter>",
    "<parameter=",
    "</function>",
    "</invoke>",
    "</arg_value>",
    "<arg_key>",
    "</tool_call>",
    "</｜DSML｜parameter>",
    "<|close|>argument<|sep|>",
    "<|sep|>",
    "\n",
    "true",
    "null",
    "3",
    "{}",
    "[1]",
    " 7",
];

fn format(template: &str) -> ReplyFormat {
    let template = format!("{template}{{{{ tools }}}}");
    let template = ChatTemplate::from_files(None, Some(template.as_bytes())).unwrap().unwrap();
    ReplyFormat::of(&template)
}

/// The tokens of the bundled model, and those of all markers.
fn tokenizer() -> &'static Arc<Tokenizer> {
    static KNOWN: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    KNOWN.get_or_init(|| {
        let path = sws_testing::tales().join("tokenizer.json");
        let mut json: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let added = json["added_tokens"].as_array_mut().unwrap();
        for (at, marker) in MARKERS.iter().enumerate() {
            added.push(json!({
                "id": TEXTS + at, "content": marker, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": false,
            }));
        }
        Arc::new(Tokenizer::from_bytes(json.to_string().as_bytes()).unwrap())
    })
}

/// The vocabulary with tokens for markers, or with text alone.
fn vocabulary(has_markers: bool) -> &'static GrammarVocabulary {
    static KNOWN: [OnceLock<GrammarVocabulary>; 2] = [OnceLock::new(), OnceLock::new()];
    KNOWN[usize::from(has_markers)].get_or_init(|| {
        let markers: Vec<u32> = (TEXTS as u32..VOCAB as u32).collect();
        let (count, markers) = if has_markers { (VOCAB, &markers[..]) } else { (TEXTS, &[][..]) };
        GrammarVocabulary::new(Arc::clone(tokenizer()), count, &[END], markers).unwrap()
    })
}

/// Tokens that may come next.
fn allowed(grammar: &mut Grammar) -> Vec<u32> {
    let mut logits = vec![0.0; VOCAB];
    grammar.mask(&mut logits).unwrap();
    (0..).zip(&logits).filter(|(_, logit)| **logit == 0.0).map(|(token, _)| token).collect()
}

/// A text that is written under a constraint.
struct Writer {
    grammar: Grammar,
    text: Vec<u8>,
}

impl Writer {
    fn take(&mut self, token: u32) {
        self.grammar.take(token).unwrap();
        self.text.extend(tokenizer().bytes(token).unwrap());
    }

    /// The whole of a text, in the longest tokens that may come; `None` if it may not come.
    fn with(&self, text: &str) -> Option<Writer> {
        let mut next = Writer { grammar: self.grammar.copy(), text: self.text.clone() };
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            if next.grammar.is_complete() {
                return None;
            }
            let bytes = |token: u32| tokenizer().bytes(token).unwrap();
            let fitting = allowed(&mut next.grammar).into_iter();
            let fitting = fitting.filter(|&token| token != END && rest.starts_with(&bytes(token)));
            let token = fitting.max_by_key(|&token| bytes(token).len())?;
            next.take(token);
            rest = &rest[bytes(token).len()..];
        }
        Some(next)
    }
}

/// A random text of a grammar; `None` if it did not end within some steps.
fn random(grammar: &Grammar, close: &str, seed: u64) -> Option<String> {
    let mut random = SplitMix64::new(seed);
    let mut writer = Writer { grammar: grammar.copy(), text: Vec::new() };
    for step in 0..300 {
        if writer.grammar.is_complete() {
            return String::from_utf8(writer.text).ok();
        }
        let draw = random.next_u64();
        let pick = (draw >> 8) as usize;
        let next = match draw % 8 {
            0 => writer.with(FRAGMENTS[pick % FRAGMENTS.len()]),
            1..=3 if step > 4 => {
                let ends = [close, "\"", "}", "]", "\"}"];
                ends.iter().find_map(|end| writer.with(end))
            }
            _ => None,
        };
        if let Some(next) = next {
            writer = next;
            continue;
        }
        let allowed = allowed(&mut writer.grammar);
        if allowed.contains(&END) && draw % 8 != 7 {
            return String::from_utf8(writer.text).ok();
        }
        match allowed[pick % allowed.len()] {
            END => return String::from_utf8(writer.text).ok(),
            token => writer.take(token),
        }
    }
    None
}

fn tools(schema: &Value) -> ToolSchemas {
    let tool =
        |name: &str| json!({"type": "function", "function": {"name": name, "parameters": schema}});
    let tools = json!([tool("f"), tool("find_all")]);
    ToolSchemas::of(&serde_json::from_value::<Json>(tools).unwrap())
}

/// The calls that a reader finds in an answer.
fn calls(format: ReplyFormat, schema: &Value, answer: &str) -> Vec<ToolCall> {
    let mut reader = format.reader("", Some(tools(schema)));
    let mut parts = Vec::new();
    reader.push(answer, &mut parts);
    reader.finish(true, &mut parts);
    let calls = parts.into_iter().filter_map(|part| match part {
        ReplyPart::Call(call) => Some(call),
        _ => None,
    });
    calls.collect()
}

fn demanded(format: ReplyFormat, schema: &Value, name: Option<&str>) -> Structure {
    let (form, end) = format.call_arguments().unwrap();
    let option = |before: String| CallOption { before, schema: schema.clone(), strict: false };
    let options = match name {
        Some(_) => vec![option(String::new())],
        None => ["f", "find_all"].map(|name| option(format.call_middle(name).unwrap())).to_vec(),
    };
    Structure::Calls { options, form, end: end.to_owned() }
}

/// A schema of a value.
fn values() -> impl Strategy<Value = Value> {
    let string = json!({"type": "string"});
    prop_oneof![
        Just(string.clone()),
        Just(json!({})),
        Just(json!({"type": "string", "minLength": 2, "maxLength": 5})),
        Just(json!({"type": "string", "pattern": "^[a-f/]{1,4}$"})),
        Just(json!({"type": "integer"})),
        Just(json!({"type": "number", "minimum": -3, "maximum": 200})),
        Just(json!({"type": "boolean"})),
        Just(json!({"type": "null"})),
        Just(json!({"type": ["string", "null"]})),
        Just(json!({"enum": ["wolf", "3", 3, null, "", "</parameter>"]})),
        Just(json!({"const": "a <b>"})),
        Just(json!({"anyOf": [string, {"type": "integer", "minimum": 10, "maximum": 99}]})),
        Just(
            json!({"anyOf": [{"type": "boolean"}, string, {"type": "array", "items": {"type": "integer"}}]})
        ),
        Just(json!({"type": "array", "items": {"enum": ["a", 1]}, "maxItems": 2})),
        Just(
            json!({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": false})
        ),
        Just(json!({"$ref": "#/$defs/point"})),
        Just(json!({"anyOf": [{"$ref": "#/$defs/point"}, {"type": "null"}]})),
    ]
}

/// A schema of arguments.
fn schemas() -> impl Strategy<Value = Value> {
    let others =
        prop_oneof![Just(Some(json!(false))), Just(Some(json!({"type": "integer"}))), Just(None),];
    (prop::collection::vec((values(), any::<bool>()), 0..4), others).prop_map(|(list, others)| {
        let names = ["city", "cities", "the place"];
        let mut properties = Map::new();
        let mut required = Vec::new();
        for (name, (schema, is_required)) in names.into_iter().zip(list) {
            properties.insert(name.to_owned(), schema);
            required.extend(is_required.then_some(name));
        }
        let point = json!({
            "type": "object", "properties": {"x": {"type": "integer"}}, "additionalProperties": false,
        });
        let mut schema = json!({
            "type": "object", "properties": properties, "required": required, "$defs": {"point": point},
        });
        if let Some(others) = others {
            schema["additionalProperties"] = others;
        }
        schema
    })
}

/// Validates what [`schemas`] asks for.
fn is_valid(value: &Value, schema: &Value, root: &Value) -> bool {
    let Value::Object(map) = schema else { return schema == true };
    let number = |key: &str| map.get(key).and_then(Value::as_f64);
    map.iter().all(|(key, limit)| match key.as_str() {
        "$ref" => is_valid(value, &root["$defs"]["point"], root),
        "anyOf" => limit.as_array().unwrap().iter().any(|schema| is_valid(value, schema, root)),
        "enum" => limit.as_array().unwrap().contains(value),
        "const" => value == limit,
        "type" => match limit {
            Value::Array(kinds) => kinds.iter().any(|kind| is_of(value, kind)),
            kind => is_of(value, kind),
        },
        "minimum" => value.as_f64().is_none_or(|n| n >= number("minimum").unwrap()),
        "maximum" => value.as_f64().is_none_or(|n| n <= number("maximum").unwrap()),
        "minLength" => value.as_str().is_none_or(|text| text.chars().count() >= 2),
        "maxLength" => value.as_str().is_none_or(|text| text.chars().count() <= 5),
        "pattern" => value.as_str().is_none_or(|text| {
            (1..5).contains(&text.len()) && text.chars().all(|c| "abcdef/".contains(c))
        }),
        "items" => {
            value.as_array().is_none_or(|list| list.iter().all(|item| is_valid(item, limit, root)))
        }
        "maxItems" => value.as_array().is_none_or(|list| list.len() <= 2),
        "required" => {
            limit.as_array().unwrap().iter().all(|name| value.get(name.as_str().unwrap()).is_some())
        }
        "properties" => {
            let others = map.get("additionalProperties").unwrap_or(&Value::Bool(true));
            value.as_object().is_none_or(|given| {
                given
                    .iter()
                    .all(|(name, value)| is_valid(value, limit.get(name).unwrap_or(others), root))
            })
        }
        _ => true,
    })
}

fn is_of(value: &Value, kind: &Value) -> bool {
    match kind.as_str().unwrap() {
        "string" => value.is_string(),
        "integer" => value.as_f64().is_some_and(|n| n.fract() == 0.0),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "array" => value.is_array(),
        _ => value.is_object(),
    }
}

/// The text that ends a value.
fn close(form: ArgumentForm) -> &'static str {
    match form {
        ArgumentForm::Json => "\"",
        ArgumentForm::Tags(tags) => tags.close,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn demanded_calls_are_read_back_with_valid_arguments(
        schema in schemas(),
        at in 0..FORMATS.len(),
        is_named: bool,
        has_markers: bool,
        seed: u64,
    ) {
        let format = format(FORMATS[at]);
        let name = is_named.then_some("f");
        let structure = demanded(format, &schema, name);
        let grammar = vocabulary(has_markers).compile(&structure).unwrap();
        let (form, _) = format.call_arguments().unwrap();
        if let Some(written) = random(&grammar, close(form), seed) {
            let answer = format.call_begins("", name).unwrap() + &written;
            let found = calls(format, &schema, &answer);
            prop_assert_eq!(found.len(), 1, "{}", answer);
            prop_assert!(["f", "find_all"].contains(&&*found[0].name), "{}", answer);
            prop_assert!(!is_named || found[0].name == "f", "{}", answer);
            let arguments: Value = match serde_json::from_str(&found[0].arguments) {
                // JSON has numbers of any size, such as 1e999.
                Err(error) if error.to_string().starts_with("number out of range") => return Ok(()),
                arguments => arguments.unwrap(),
            };
            prop_assert!(is_valid(&arguments, &schema, &schema), "{} for {}", answer, schema);
        }
    }
}

/// The call that a text without the beginning is, if it has the structure.
fn call(grammar: &Grammar, format: ReplyFormat, schema: &Value, written: &str) -> Option<ToolCall> {
    let writer = Writer { grammar: grammar.copy(), text: Vec::new() };
    let mut writer = writer.with(written)?;
    let is_whole = writer.grammar.is_complete() || allowed(&mut writer.grammar).contains(&END);
    let answer = format.call_begins("", Some("f")).unwrap() + written;
    is_whole.then(|| calls(format, schema, &answer)).and_then(|mut calls| calls.pop())
}

#[test]
fn values_have_the_types_of_the_schema() {
    let schema = json!({
        "type": "object",
        "properties": {
            "code": {"type": "string"},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
            "maybe": {"type": ["string", "null"]},
        },
        "required": ["code"],
        "additionalProperties": false,
    });
    let format = format("<tool_call><function=");
    for has_markers in [true, false] {
        let structure = demanded(format, &schema, Some("f"));
        let grammar = vocabulary(has_markers).compile(&structure).unwrap();
        let argument =
            |name: &str, value: &str| format!("<parameter={name}>\n{value}\n</parameter>\n");
        let code = argument("code", "<p>\n  a</p>\n");
        for (written, expected) in [
            (code.clone(), Some(json!({"code": "<p>\n  a</p>\n"}))),
            (argument("code", "7"), Some(json!({"code": "7"}))),
            (
                code.clone() + &argument("days", "7"),
                Some(json!({"code": "<p>\n  a</p>\n", "days": 7})),
            ),
            (
                code.clone() + &argument("maybe", "null"),
                Some(json!({"code": "<p>\n  a</p>\n", "maybe": null})),
            ),
            (
                code.clone() + &argument("maybe", "nothing"),
                Some(json!({"code": "<p>\n  a</p>\n", "maybe": "nothing"})),
            ),
            (code.clone() + &argument("days", "15"), None),
            (code.clone() + &argument("days", "many"), None),
            (code.clone() + &argument("others", "a"), None),
            (code.clone() + &code, None),
            (argument("days", "7"), None),
            (String::new(), None),
        ] {
            let found = call(&grammar, format, &schema, &(written.clone() + "</function>"));
            let found = found.map(|call| serde_json::from_str::<Value>(&call.arguments).unwrap());
            assert_eq!(found, expected, "{written}");
        }
    }
}

#[test]
fn open_schemas_are_bounded() {
    let schema = json!({"type": "object"});
    for (template, argument, end) in [
        ("<tool_call>", "", "}"),
        ("<tool_call><function=", "<parameter=NAME>\n1\n</parameter>\n", "</function>"),
        (
            "<|open|><|close|><|sep|>",
            "<|open|>argument key=\"NAME\" type=\"string\"<|sep|>1<|close|>argument<|sep|>",
            "",
        ),
    ] {
        let format = format(template);
        let grammar = vocabulary(true).compile(&demanded(format, &schema, Some("f"))).unwrap();
        let written = |count: usize| match argument {
            "" => {
                let all: Vec<String> =
                    (0..count).map(|at| format!("\"a{at}\":[{{\"b\":1}}]")).collect();
                format!("{{{}}}{end}", all.join(","))
            }
            _ => {
                (0..count).map(|at| argument.replace("NAME", &format!("a{at}"))).collect::<String>()
                    + end
            }
        };
        for (count, is_allowed) in [(0, true), (16, true), (17, false)] {
            let found = call(&grammar, format, &schema, &written(count));
            assert_eq!(found.is_some(), is_allowed, "{template} {count}");
        }
    }
    let format = format("<tool_call>");
    let grammar = vocabulary(true).compile(&demanded(format, &schema, Some("f"))).unwrap();
    assert!(call(&grammar, format, &schema, "{\"a\":[[1]]}}").is_some());
    assert!(call(&grammar, format, &schema, "{\"a\":[[[1]]]}}").is_none());
}
