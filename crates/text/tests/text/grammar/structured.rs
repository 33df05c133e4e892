//! Structured texts, with the tokens of the bundled model.

use std::sync::{Arc, OnceLock};

use proptest::prelude::*;
use serde_json::{Value, json};
use sws_text::grammar::{
    Grammar, GrammarVocabulary, MAX_REGEX_BYTES, MAX_STRUCTURE_BYTES, Structure, StructureError,
};
use sws_text::{Constraint, SplitMix64, TokenMask, Tokenizer};

const VOCAB: usize = 4096;
/// The token that ends texts.
const END: u32 = 0;

fn tokenizer() -> Arc<Tokenizer> {
    let path = sws_testing::tales().join("tokenizer.json");
    Arc::new(Tokenizer::from_bytes(&std::fs::read(path).unwrap()).unwrap())
}

fn vocabulary() -> &'static GrammarVocabulary {
    static KNOWN: OnceLock<GrammarVocabulary> = OnceLock::new();
    KNOWN.get_or_init(|| GrammarVocabulary::new(tokenizer(), VOCAB, &[END], &[]).unwrap())
}

fn schema(schema: Value) -> Structure {
    Structure::Schema { schema, strict: true }
}

/// Tokens that may come next.
fn allowed(constraint: &mut dyn Constraint) -> Vec<u32> {
    let mut logits = vec![0.0; VOCAB];
    constraint.mask(&mut logits).unwrap();
    (0..).zip(&logits).filter(|(_, logit)| **logit == 0.0).map(|(token, _)| token).collect()
}

/// True if a text has the structure, by the longest tokens that fit.
fn holds(grammar: &Grammar, text: &str) -> bool {
    let tokenizer = tokenizer();
    let mut constraint = grammar.begin();
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        if constraint.is_complete() {
            return false;
        }
        let fitting = allowed(&mut *constraint).into_iter().filter(|&token| {
            token != END
                && tokenizer.bytes(token).is_some_and(|b| !b.is_empty() && rest.starts_with(&b))
        });
        let Some(token) = fitting.max_by_key(|&token| tokenizer.bytes(token).unwrap().len()) else {
            return false;
        };
        constraint.take(token).unwrap();
        rest = &rest[tokenizer.bytes(token).unwrap().len()..];
    }
    constraint.is_complete() || allowed(&mut *constraint).contains(&END)
}

/// A random structured text, and whether it is complete. `leap` takes forced tokens at once.
fn random(grammar: &Grammar, seed: u64, most: usize, leap: bool) -> (Vec<u32>, bool) {
    let mut random = SplitMix64::new(seed);
    let mut constraint = grammar.begin();
    let mut tokens = Vec::new();
    while tokens.len() < most && !constraint.is_complete() {
        // A draw a token, whether it is used or not.
        let draw = random.next_u64();
        if leap && let Some(&token) = constraint.forced().unwrap().first() {
            constraint.take(token).unwrap();
            tokens.push(token);
            continue;
        }
        let allowed = allowed(&mut *constraint);
        // Strings end early enough, and not at once.
        let token = allowed[(draw % allowed.len() as u64) as usize];
        let ends = ["\"", "\"}", "}", "]", "\"]", "0"].map(tokenizer_id);
        let end = ends.into_iter().flatten().find(|end| allowed.contains(end));
        let token = if draw >> 62 == 0 { end.unwrap_or(token) } else { token };
        if token == END {
            return (tokens, true);
        }
        constraint.take(token).unwrap();
        tokens.push(token);
    }
    (tokens, constraint.is_complete())
}

fn tokenizer_id(text: &str) -> Option<u32> {
    static KNOWN: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    KNOWN.get_or_init(tokenizer).id(text)
}

fn text(tokens: &[u32]) -> String {
    let tokenizer = tokenizer();
    let bytes = tokens.iter().flat_map(|&token| tokenizer.bytes(token).unwrap()).collect();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn structures_hold_for_their_texts_alone() {
    let person = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "kind": {"enum": ["wolf", "cat"]},
        },
        "required": ["name", "kind"],
        "additionalProperties": false,
    });
    let tree = json!({
        "$defs": {"node": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
        "$ref": "#/$defs/node",
    });
    let lark = "start: word (\", \" word)*\nword: /[a-z]+/\n";
    let gbnf = "root ::= move (\" \" move)*\nmove ::= [a-h] [1-8] \"x\"?";
    for (structure, good, bad) in [
        (
            schema(person),
            &["{\"name\":\"Tom\",\"age\":7,\"kind\":\"cat\"}", "{\"name\":\"\",\"kind\":\"wolf\"}"]
                [..],
            &[
                "",
                "{}",
                "{\"name\":\"Tom\",\"kind\":\"dog\"}",
                "{\"name\":\"Tom\",\"age\":151,\"kind\":\"cat\"}",
                "{\"name\":\"Tom\",\"age\":7,\"kind\":\"cat\"",
                "{\"name\":\"123456789\",\"kind\":\"cat\"}",
                "{\"name\":\"Tom\",\"kind\":\"cat\"}x",
                "{ \"name\":\"Tom\",\"kind\":\"cat\"}",
            ][..],
        ),
        (schema(tree), &["[]", "[[],[[]]]"], &["[1]", "[[]", "{}"]),
        (
            Structure::Object,
            &["{}", "{\"a\":[1,2.5,null,true,\"b\\n\"]}"],
            &["[]", "1", "{\"a\"}", "{'a':1}"],
        ),
        (schema(json!(true)), &["[]", "1", "\"a\"", "null"], &["", "nul"]),
        (
            Structure::Regex("[a-c]{2,3}\\d".to_owned()),
            &["ab1", "abc9"],
            &["a1", "abcd1", "ab", "ab12"],
        ),
        (
            Structure::Choice(vec!["yes".to_owned(), "yes, \"sir\"\n".to_owned(), "no".to_owned()]),
            &["yes", "yes, \"sir\"\n", "no"],
            &["", "maybe", "nono", "yes,"],
        ),
        (Structure::Grammar(lark.to_owned()), &["a", "the, wolf"], &["", "a,b", "a, "]),
        (Structure::Grammar(gbnf.to_owned()), &["a1", "e4x d5"], &["i1", "a9", "a1 "]),
    ] {
        let grammar = vocabulary().compile(&structure).unwrap();
        for text in good {
            assert!(holds(&grammar, text), "{structure:?}: {text}");
        }
        for text in bad {
            assert!(!holds(&grammar, text), "{structure:?}: {text}");
        }
    }
}

#[test]
fn bad_structure_are_refused_in_one_sentence() {
    let deep = |open: &str, close: &str, levels| {
        format!("{}a{}", open.repeat(levels), close.repeat(levels))
    };
    let many: Vec<String> = (0..2000).map(|number| format!("c{number}")).collect();
    let two = json!({"anyOf": [{"type": "string"}, {"type": "null"}]});
    for (structure, words) in [
        (schema(json!(3)), "must be a JSON schema"),
        (schema(json!(false)), "must be a JSON schema"),
        (schema(json!({"type": "nonesuch"})), "cannot be used"),
        (schema(json!({"properties": 3})), "cannot be used"),
        (schema(json!({"type": "string", "pattern": "("})), "cannot be used"),
        (schema(json!({"$ref": "#/nonesuch"})), "cannot be used"),
        (schema(json!({"$ref": "https://example.com/a.json"})), "cannot be used"),
        (schema(json!({"type": "string", "minLength": 5, "maxLength": 3})), "cannot be used"),
        (schema(json!({"type": "array", "uniqueItems": true, "contains": {}})), "cannot be used"),
        (schema(json!({"allOf": vec![two; 20]})), "alternatives"),
        (schema(json!({"const": "a".repeat(MAX_STRUCTURE_BYTES)})), "bytes"),
        (Structure::Regex("(".to_owned()), "cannot be used"),
        (Structure::Regex(String::new()), "cannot be used"),
        (Structure::Regex("a".repeat(MAX_REGEX_BYTES + 1)), "bytes"),
        (Structure::Regex(deep("(", ")", 65)), "nested"),
        (Structure::Regex("((((a{1,1000}){1,1000}){1,1000}){1,1000})b".to_owned()), ""),
        (Structure::Regex("((((a{1000}){1000}){1000}))b".to_owned()), "cannot be used"),
        (Structure::Choice(Vec::new()), "choices"),
        (Structure::Choice(many), "choices"),
        (Structure::Choice(vec![String::new()]), "cannot be used"),
        (Structure::Grammar(String::new()), "cannot be used"),
        (Structure::Grammar("start: nonesuch".to_owned()), "cannot be used"),
        (Structure::Grammar("start: %json {\"type\": \"object\"}".to_owned()), "cannot be used"),
        (Structure::Grammar("{\"grammars\": []}".to_owned()), "cannot be used"),
        (Structure::Grammar("root ::= other".to_owned()), "cannot be used"),
        (Structure::Grammar(format!("start: {}", deep("(", ")", 65))), "nested"),
    ] {
        match vocabulary().compile(&structure) {
            Ok(_) => assert!(words.is_empty(), "{structure:.200?}"),
            Err(error) => {
                let message = error.to_string();
                assert!(
                    message.contains(words) && !message.contains('\n'),
                    "{structure:.200?}: {message}"
                );
                assert!(message.len() < 400, "{message}");
            }
        }
    }
    // Where a schema may be kept in part, what is unknown is left out.
    let partly =
        Structure::Schema { schema: json!({"type": "array", "uniqueItems": true}), strict: false };
    assert!(vocabulary().compile(&partly).is_ok());
    let tokens = GrammarVocabulary::new(tokenizer(), 1 << 24, &[END], &[]);
    assert!(matches!(tokens, Err(StructureError::Vocabulary(_))));
}

/// A schema of few levels.
fn schemas() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!({"type": "boolean"})),
        Just(json!({"type": "null"})),
        Just(json!({"type": "integer", "minimum": -3, "maximum": 200})),
        Just(json!({"type": "string", "maxLength": 12})),
        Just(json!({"enum": ["wolf", 3, null, {"a": [1]}]})),
        Just(json!({"type": "string", "pattern": "^[a-f]{1,4}$"})),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            (inner.clone(), 0..3_usize)
                .prop_map(|(items, least)| json!({"type": "array", "items": items, "minItems": least, "maxItems": least + 2})),
            prop::collection::vec(inner.clone(), 1..3).prop_map(|any| json!({"anyOf": any})),
            prop::collection::vec((inner, any::<bool>()), 1..4).prop_map(|list| {
                let names = ["name", "the old house", "z"];
                let required: Vec<&str> =
                    names.into_iter().zip(&list).filter(|(_, (_, needed))| *needed).map(|(name, _)| name).collect();
                let properties: serde_json::Map<String, Value> =
                    names.into_iter().zip(list).map(|(name, (schema, _))| (name.to_owned(), schema)).collect();
                json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
            }),
        ]
    })
}

/// Validates what [`schemas`] asks for.
fn is_valid(value: &Value, schema: &Value) -> bool {
    if let Some(any) = schema["anyOf"].as_array() {
        return any.iter().any(|schema| is_valid(value, schema));
    }
    if let Some(values) = schema["enum"].as_array() {
        return values.contains(value);
    }
    match schema["type"].as_str().unwrap() {
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        // One of them is -0.
        "integer" => {
            value.as_f64().is_some_and(|n| n.fract() == 0.0 && (-3.0..=200.0).contains(&n))
        }
        "string" => value.as_str().is_some_and(|text| match schema["pattern"].is_string() {
            true => {
                (1..5).contains(&text.len()) && text.bytes().all(|b| (b'a'..=b'f').contains(&b))
            }
            false => text.chars().count() <= 12,
        }),
        "array" => value.as_array().is_some_and(|list| {
            let least = schema["minItems"].as_u64().unwrap() as usize;
            (least..=least + 2).contains(&list.len())
                && list.iter().all(|item| is_valid(item, &schema["items"]))
        }),
        _ => value.as_object().is_some_and(|map| {
            let required = schema["required"].as_array().unwrap();
            let all = required.iter().all(|name| map.contains_key(name.as_str().unwrap()));
            all && map.iter().all(|(name, value)| {
                schema["properties"].get(name).is_some_and(|schema| is_valid(value, schema))
            })
        }),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60) })]

    #[test]
    fn every_complete_text_of_a_schema_is_valid(given in schemas(), seed: u64) {
        let grammar = vocabulary().compile(&schema(given.clone())).unwrap();
        let (tokens, is_complete) = random(&grammar, seed, 400, false);
        // Each token was allowed, for a constraint that begins anew too.
        let mut again = grammar.begin();
        for &token in &tokens {
            prop_assert!(allowed(&mut *again).contains(&token));
            again.take(token).unwrap();
        }
        if is_complete {
            let written = text(&tokens);
            let value: Value = serde_json::from_str(&written).map_err(|e| TestCaseError::fail(format!("{written}: {e}")))?;
            prop_assert!(is_valid(&value, &given), "{written} for {given}");
        }
    }

    /// Whatever a client sends, a structure is refused, or its texts can be written.
    #[test]
    fn any_text_is_a_structure_or_an_error(
        words in prop::collection::vec(
            prop_oneof![
                Just("root ::= "), Just("start: "), Just("a ::= "), Just("a: "), Just("\n"), Just("|"), Just("("),
                Just(")"), Just("["), Just("]"), Just("{2,3}"), Just("{"), Just("}"), Just("*"), Just("+"), Just("?"),
                Just("\"a\""), Just("\""), Just("[a-z]"), Just("a"), Just("/b+/"), Just("/"), Just("\\"), Just("\\x4"),
                Just("^"), Just("$"), Just("."), Just("-"), Just("é"), Just("<[5]>"), Just("%ignore /x/"), Just("~ 3"),
            ],
            0..12,
        ),
        kind in 0..4,
        seed: u64,
    ) {
        let given = words.concat();
        let structure = match kind {
            0 => Structure::Regex(given),
            1 => Structure::Grammar(given),
            2 => Structure::Choice(vec![given]),
            _ => match serde_json::from_str(&given) {
                Ok(given) => schema(given),
                Err(_) => schema(json!({"type": "string", "pattern": given})),
            },
        };
        if let Ok(grammar) = vocabulary().compile(&structure) {
            let mut constraint = grammar.begin();
            let mut random = SplitMix64::new(seed);
            let mut logits = vec![0.0; VOCAB];
            while !constraint.is_complete() && random.next_u64() >> 59 != 0 {
                logits.fill(0.0);
                if constraint.mask(&mut logits).is_err() {
                    break;
                }
                let allowed: Vec<usize> = (0..VOCAB).filter(|&token| logits[token] == 0.0).collect();
                let token = allowed[(random.next_u64() % allowed.len() as u64) as usize] as u32;
                if token == END {
                    break;
                }
                prop_assert!(constraint.take(token).is_ok());
            }
        }
    }

    #[test]
    fn forced_tokens_are_those_that_come_one_by_one(given in schemas(), seed: u64) {
        let grammar = vocabulary().compile(&schema(given)).unwrap();
        prop_assert_eq!(random(&grammar, seed, 200, true), random(&grammar, seed, 200, false));
    }
}

#[test]
fn names_of_a_schema_are_forced() {
    let structure = schema(json!({
        "type": "object",
        "properties": {"the name of the wolf": {"type": "string"}, "once upon a time": {"type": "boolean"}},
        "required": ["the name of the wolf", "once upon a time"],
        "additionalProperties": false,
    }));
    let mut constraint = vocabulary().compile(&structure).unwrap().begin();
    let forced = constraint.forced().unwrap();
    let expected = "{\"the name of the wolf\":\"";
    let written = text(&forced);
    // What may be part of a longer token is left to the model.
    assert!(expected.starts_with(&written) && written.len() + 4 > expected.len(), "{written}");
    assert!(forced.len() > 4, "{forced:?}");
    for &token in &forced {
        assert_eq!(allowed(&mut *constraint), [token]);
        constraint.take(token).unwrap();
    }
}

/// An end is allowed where the structure is complete and could go on, unless ends are ignored.
#[test]
fn ends_are_allowed_where_a_text_may_end() {
    let structure = Structure::Regex("a+".to_owned());
    let a = tokenizer_id("a").unwrap();
    for (grammar, may_end) in [
        (vocabulary().compile(&structure).unwrap(), true),
        (vocabulary().compile(&structure).unwrap().without_ends(), false),
    ] {
        let mut constraint = grammar.begin();
        assert!(!allowed(&mut *constraint).contains(&END));
        constraint.take(a).unwrap();
        assert_eq!(allowed(&mut *constraint).contains(&END), may_end);
        assert!(allowed(&mut *constraint).contains(&a) && !constraint.is_complete());
    }
    let mut complete =
        vocabulary().compile(&Structure::Choice(vec!["a".to_owned()])).unwrap().begin();
    complete.take(a).unwrap();
    assert!(complete.is_complete());
}

#[test]
fn logits_that_are_errors_stay() {
    let grammar = vocabulary().compile(&Structure::Choice(vec!["a".to_owned()])).unwrap();
    let mut logits = vec![1.0; VOCAB];
    (logits[5], logits[6]) = (f32::NAN, f32::INFINITY);
    grammar.begin().mask(&mut logits).unwrap();
    assert!(logits[5].is_nan() && logits[6] == f32::INFINITY && logits[7] == f32::NEG_INFINITY);
}
