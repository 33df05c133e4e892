//! Answers of a given structure, in each interface.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use sws::{BatchRequest, Cancel, End, Event, Generated, LoadedModel};
use sws_testing::goldens::change;
use sws_testing::tales;
use sws_text::grammar::{GrammarVocabulary, Structure};
use sws_text::{Constraint, ConstraintError, GenerationOptions, Position, TokenMask, Tokenizer};
use tempfile::TempDir;

use crate::chats;
use crate::client::{Running, config, load, needs, serve};
use crate::interfaces::named;

const COMPLETIONS: &str = "/v1/completions";
const CHATS: &str = "/v1/chat/completions";

/// The model of the chats, with the characters of JSON among its tokens.
pub(crate) fn model() -> (TempDir, PathBuf) {
    let (temp, dir) = chats::model();
    change(&dir, "tokenizer.json", |json| {
        let vocab = json["model"]["vocab"].as_object_mut().unwrap();
        let others = ('!'..='~').filter(|c| !c.is_ascii_lowercase()).map(String::from);
        let others: Vec<(String, usize)> = others.zip(29..).collect();
        vocab.retain(|_, id| others.iter().all(|(_, other)| id != other));
        vocab.extend(others.into_iter().map(|(other, id)| (other, id.into())));
    });
    // One of the letters would be.
    change(&dir, "generation_config.json", |json| json["eos_token_id"] = 0.into());
    (temp, dir)
}

/// Tells the structured texts from others.
type IsRight = dyn Fn(&str) -> bool;

/// A schema whose texts are short.
fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "the kind of animal": {"enum": ["wolf", "cat", "old mouse"]},
            "number of houses": {"type": "integer", "minimum": 0, "maximum": 99},
            "is it hungry": {"type": "boolean"},
        },
        "required": ["the kind of animal", "number of houses", "is it hungry"],
        "additionalProperties": false,
    })
}

/// True for JSON of the schema, with its names in order.
fn holds(text: &str) -> bool {
    let Ok(value) = serde_json::from_str::<Value>(text) else { return false };
    ["wolf", "cat", "old mouse"].contains(&value["the kind of animal"].as_str().unwrap_or_default())
        && value["number of houses"].as_u64().is_some_and(|number| number < 100)
        && value["is it hungry"].is_boolean()
        && value.as_object().is_some_and(|map| map.len() == 3)
        && text.find("kind of") < text.find("number of")
}

fn format(schema: Value) -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "animal", "schema": schema, "strict": true}})
}

pub(crate) fn with(mut body: Value, more: Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// The text, and the reason of its end, of an answer or of a stream.
fn completed(server: &Running, path: &str, body: &Value) -> (String, String) {
    let text = |choice: &Value| {
        let places = [&choice["text"], &choice["message"]["content"], &choice["delta"]["content"]];
        places.into_iter().find_map(Value::as_str).unwrap_or_default().to_owned()
    };
    let answer = server.ask(path, body);
    let choice = &answer["choices"][0];
    let (whole, reason) = (text(choice), choice["finish_reason"].as_str().unwrap().to_owned());
    let events = server.post(path, &with(body.clone(), json!({"stream": true}))).events();
    let streamed: String = events.iter().map(|event| text(&event["choices"][0])).collect();
    assert_eq!(streamed, whole);
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], reason.as_str());
    (whole, reason)
}

#[test]
fn completions_have_the_structure_that_is_asked_for() {
    let server = serve(&tales(), 2, config());
    let choices = json!(["a wolf", "a cat"]);
    let is_choice = |text: &str| ["a wolf", "a cat"].contains(&text);
    let is_number = |text: &str| text.len() == 3 && text.bytes().all(|b| b.is_ascii_digit());
    let gbnf = "root ::= [0-9]{3}";
    let fields: [(Value, &IsRight); 11] = [
        (json!({"response_format": format(schema())}), &holds),
        (json!({"guided_json": schema()}), &holds),
        (json!({"guided_json": schema().to_string()}), &holds),
        (json!({"json_schema": schema()}), &holds),
        (json!({"structured_outputs": {"json": schema()}}), &holds),
        (json!({"guided_choice": choices}), &is_choice),
        (json!({"structured_outputs": {"choice": choices}}), &is_choice),
        (json!({"guided_regex": "[0-9]{3}"}), &is_number),
        (json!({"structured_outputs": {"regex": "\\d\\d\\d"}}), &is_number),
        (json!({"structured_outputs": {"grammar": "start: /[0-9]/ ~ 3"}}), &is_number),
        (json!({"grammar": gbnf}), &is_number),
    ];
    for (field, is_right) in fields {
        for options in [json!({"temperature": 0}), json!({"temperature": 1.5, "seed": 3})] {
            let body = json!({"prompt": "Once upon a time", "max_tokens": 100});
            let (text, reason) =
                completed(&server, COMPLETIONS, &with(with(body, options), field.clone()));
            assert!(is_right(&text), "{field}: {text}");
            assert_eq!(reason, "stop");
        }
    }
    // Probabilities come one by one, and change nothing.
    let body = json!({"prompt": "A wolf", "max_tokens": 100, "seed": 5, "guided_json": schema()});
    let (text, _) = completed(&server, COMPLETIONS, &body);
    let ranked = server.ask(COMPLETIONS, &with(body.clone(), json!({"logprobs": 2})));
    assert_eq!(ranked["choices"][0]["text"], text.as_str());
    let logprobs = ranked["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap();
    assert_eq!(ranked["usage"]["completion_tokens"], logprobs.len());
    // A text that is cut says so; each text of several has the structure.
    let (cut, reason) =
        completed(&server, COMPLETIONS, &with(body.clone(), json!({"max_tokens": 4})));
    assert!(
        text.starts_with(&cut) && cut.len() < text.len() && reason == "length",
        "{cut} {reason}"
    );
    let several =
        server.ask(COMPLETIONS, &with(body.clone(), json!({"n": 3, "prompt": ["A", "The"]})));
    let several = several["choices"].as_array().unwrap();
    assert!(
        several.len() == 6 && several.iter().all(|choice| holds(choice["text"].as_str().unwrap()))
    );
    // Those of others are as they were.
    let plain = json!({"prompt": "A wolf", "max_tokens": 20, "seed": 5});
    let (alone, _) = completed(&server, COMPLETIONS, &plain);
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| completed(&server, COMPLETIONS, &body).0);
        assert_eq!(completed(&server, COMPLETIONS, &plain).0, alone);
        assert_eq!(beside.join().unwrap(), text);
    });
}

#[test]
fn answers_of_all_interfaces_have_the_structure() {
    let (_temp, dir) = model();
    let server = serve(&dir, 1, config());
    let messages = json!([{"role": "user", "content": "hello"}]);
    let body = json!({"messages": messages, "max_tokens": 200, "temperature": 1.2, "seed": 1});
    let (text, reason) = completed(
        &server,
        CHATS,
        &with(body.clone(), json!({"response_format": format(schema())})),
    );
    assert!(holds(&text) && reason == "stop", "{text} {reason}");
    let object = with(body.clone(), json!({"response_format": {"type": "json_object"}}));
    let (text, reason) = completed(&server, CHATS, &object);
    assert!(text.starts_with('{'), "{text}");
    assert_eq!(reason == "stop", serde_json::from_str::<Value>(&text).is_ok(), "{text}");
    let given =
        json!({"type": "json_schema", "name": "animal", "schema": schema(), "strict": true});
    let response = json!({"input": "hello", "text": {"format": given}, "seed": 2});
    let answer = server.ask("/v1/responses", &response);
    assert_eq!(answer["status"], "completed");
    let text = answer["output"][0]["content"][0]["text"].as_str().unwrap();
    assert!(holds(text), "{text}");
    let events = named(&server.post("/v1/responses", &with(response, json!({"stream": true}))));
    let (name, last) = events.last().unwrap();
    assert_eq!(name, "response.completed");
    assert_eq!(last["response"]["output"][0]["content"][0]["text"], text);
    let given = json!({"type": "json_schema", "schema": schema()});
    for field in [
        json!({"output_format": given}),
        json!({"output_config": {"format": given, "effort": "low"}}),
    ] {
        let message = json!({"messages": messages, "max_tokens": 200, "seed": 3});
        let answer = server.ask("/v1/messages", &with(message.clone(), field.clone()));
        assert_eq!(answer["stop_reason"], "end_turn");
        let text = answer["content"][0]["text"].as_str().unwrap();
        assert!(holds(text), "{text}");
        let streamed = with(with(message, field), json!({"stream": true}));
        let events = named(&server.post("/v1/messages", &streamed));
        let deltas = events.iter().filter_map(|(_, data)| data["delta"]["text"].as_str());
        assert_eq!(deltas.collect::<String>(), text);
    }
}

#[test]
fn structures_that_cannot_be_kept_are_refused_by_field() {
    let (_temp, dir) = model();
    let server = serve(&dir, 1, config());
    let mut deep = json!({"type": "string"});
    for _ in 0..40 {
        deep = json!({"type": "array", "items": {"anyOf": [deep]}});
    }
    let messages = json!([{"role": "user", "content": "hello"}]);
    let chat = |more: Value| (CHATS, with(json!({"messages": messages, "max_tokens": 4}), more));
    let completion =
        |more: Value| (COMPLETIONS, with(json!({"prompt": "a", "max_tokens": 4}), more));
    for ((path, body), field) in [
        (chat(json!({"response_format": 3})), "response_format"),
        (chat(json!({"response_format": {"type": "xml"}})), "response_format"),
        (chat(json!({"response_format": {"type": "json_schema"}})), "response_format"),
        (chat(json!({"response_format": format(json!(3))})), "response_format"),
        (chat(json!({"response_format": format(json!({"type": "wolf"}))})), "response_format"),
        (chat(json!({"response_format": format(deep)})), "response_format"),
        (
            chat(json!({"response_format": format(json!({"const": "a".repeat(200_000)}))})),
            "response_format",
        ),
        (chat(json!({"guided_regex": "("})), "guided_regex"),
        (chat(json!({"guided_regex": "a".repeat(10_000)})), "guided_regex"),
        (chat(json!({"structured_outputs": {"structural_tag": "a"}})), "structured_outputs"),
        (completion(json!({"grammar": "root ::= other"})), "grammar"),
        (completion(json!({"grammar": "start: ("})), "grammar"),
        (completion(json!({"guided_choice": []})), "guided_choice"),
        (completion(json!({"guided_json": "{", "max_tokens": 1})), "guided_json"),
        (completion(json!({"guided_json": {}, "guided_regex": "a"})), "guided_regex"),
        (
            ("/v1/responses", json!({"input": "a", "text": {"format": {"type": "json_schema"}}})),
            "text",
        ),
        (("/v1/responses", json!({"input": "a", "text": {"format": {"type": "grammar"}}})), "text"),
    ] {
        let refused = server.post(path, &body);
        assert_eq!(refused.status, 400, "{body:.100}: {refused:?}");
        let error = &refused.json()["error"];
        assert_eq!(error["param"], field, "{body:.100}: {error}");
        assert!(
            error["message"].as_str().unwrap().starts_with(field) || field == "guided_regex",
            "{error}"
        );
    }
    let format = json!({"type": "json_schema", "schema": {"type": "wolf"}});
    let body = json!({"messages": messages, "max_tokens": 4, "output_format": format});
    let refused = server.post("/v1/messages", &body);
    assert_eq!(refused.status, 400);
    assert_eq!(refused.json()["type"], "error");
    assert!(refused.json()["error"]["message"].as_str().unwrap().starts_with("output_format"));
    server.ask(CHATS, &json!({"messages": messages, "max_tokens": 1}));
}

/// The calls of strict tools have the schema, where a call is demanded.
#[test]
fn demanded_calls_of_strict_tools_have_their_schema() {
    let (_temp, dir) = model();
    let template = "{# <think></think><tool_call> #}{% for t in tools or [] %}{{ t.function.name }}\n\
                    {% endfor %}{% for m in messages %}{{ m.content }}\n{% endfor %}";
    std::fs::write(dir.join("chat_template.jinja"), template).unwrap();
    let server = serve(&dir, 1, config());
    let messages = json!([{"role": "user", "content": "hello"}]);
    let tool = |name: &str, strict: bool| json!({"type": "function", "function": {"name": name, "parameters": schema(), "strict": strict}});
    let named = json!({"type": "function", "function": {"name": "f"}});
    for (tools, choice, names) in [
        (json!([tool("f", true)]), json!("required"), &["f"][..]),
        (json!([tool("f", true), tool("g", true)]), json!("required"), &["f", "g"]),
        (json!([tool("f", true), tool("g", false)]), named, &["f"]),
    ] {
        for seed in 0..3 {
            let body =
                json!({"messages": messages, "max_tokens": 200, "temperature": 1.5, "seed": seed});
            let body = with(body, json!({"tools": tools, "tool_choice": choice}));
            let answer = server.ask(CHATS, &body);
            let choice = &answer["choices"][0];
            assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
            let call = &choice["message"]["tool_calls"][0]["function"];
            assert!(names.contains(&call["name"].as_str().unwrap()), "{call}");
            assert!(holds(call["arguments"].as_str().unwrap()), "{call}");
            let events = server.post(CHATS, &with(body, json!({"stream": true}))).events();
            let streamed = events.iter().find_map(|event| {
                event["choices"][0]["delta"]["tool_calls"][0]["function"].as_object()
            });
            assert_eq!(streamed.unwrap()["arguments"], call["arguments"]);
        }
    }
    let bad = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "wolf"}, "strict": true}}]);
    let body =
        json!({"messages": messages, "max_tokens": 4, "tools": bad, "tool_choice": "required"});
    let refused = server.post(CHATS, &body);
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("tools")));
}

/// A structure that says of no token that it must come.
#[derive(Debug)]
struct OneByOne<T>(T);

impl TokenMask for OneByOne<Arc<dyn TokenMask>> {
    fn begin(&self) -> Box<dyn Constraint> {
        Box::new(OneByOne(self.0.begin()))
    }
}

impl Constraint for OneByOne<Box<dyn Constraint>> {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), ConstraintError> {
        self.0.mask(logits)
    }

    fn take(&mut self, token: u32) -> Result<(), ConstraintError> {
        self.0.take(token)
    }

    fn forced(&mut self) -> Result<Vec<u32>, ConstraintError> {
        Ok(Vec::new())
    }

    fn is_complete(&self) -> bool {
        self.0.is_complete()
    }
}

/// A text, and the number of passes for it.
fn passes(model: &mut LoadedModel, text: BatchRequest) -> (Generated, usize) {
    let mut batch = model.batch().unwrap();
    batch.add(0, text).unwrap();
    let (mut made, mut steps) = (None, 0);
    while !batch.is_empty() {
        batch.step(&mut |_, event| {
            if let Event::Ended(ended) = event {
                made = Some(ended.unwrap());
            }
        });
        steps += 1;
    }
    (made.unwrap(), steps)
}

/// Tokens that must come are computed in one pass, with the bits that they have one by one.
#[test]
fn forced_tokens_save_passes_and_change_no_bit() {
    let mut model = load(&tales(), needs(2));
    let tokenizer: Arc<Tokenizer> = model.text().shared_tokenizer().unwrap();
    let vocabulary = GrammarVocabulary::new(Arc::clone(&tokenizer), 4096, &[0], &[]).unwrap();
    let structure = Structure::Schema { schema: schema(), strict: true };
    let structure: Arc<dyn TokenMask> = Arc::new(vocabulary.compile(&structure).unwrap());
    let (mut at_once, mut one_by_one) = (0, 0);
    for (seed, temperature, penalty) in [(0, 0.0, 1.0), (1, 1.0, 1.0), (2, 1.5, 1.3)] {
        let options = GenerationOptions {
            seed: Some(seed),
            temperature: Some(temperature),
            repetition_penalty: Some(penalty),
            max_new_tokens: Some(100),
            ..Default::default()
        };
        let text = BatchRequest {
            tokens: tokenizer.encode("Once upon a time there was", true).unwrap(),
            generation: model.model().generation(&options).unwrap(),
            position: Position::Middle,
            bias: Vec::new(),
            constraint: Some(Arc::clone(&structure)),
            ranks: None,
            prompt_ranks: false,
            pooling: None,
            witness: None,
            short_lived: false,
            owner: 0,
            cancel: Cancel::new(),
        };
        let slow = BatchRequest {
            constraint: Some(Arc::new(OneByOne(Arc::clone(&structure)))),
            ..text.clone()
        };
        // Nothing is known of the text before.
        let (fast, few) = passes(&mut model, BatchRequest { owner: 1 + 2 * seed, ..text });
        let (slow, many) = passes(&mut model, BatchRequest { owner: 2 + 2 * seed, ..slow });
        assert_eq!((&fast.tokens, &fast.text, fast.end), (&slow.tokens, &slow.text, End::Complete));
        assert_eq!(slow.end, End::Complete);
        assert!(holds(&fast.text), "{}", fast.text);
        assert_eq!(many, slow.tokens.len());
        assert!(few < many, "{few} {many}");
        (at_once, one_by_one) = (at_once + few, one_by_one + many);
    }
    // Most of such a text are its names.
    assert!(at_once * 2 < one_by_one, "{at_once} passes instead of {one_by_one}");
}
