//! Reasoning and tool calls. A model without training writes neither, so one of its tokens is a
//! whole answer, and a bias chooses it.

use std::path::PathBuf;

use serde_json::{Value, json};
use sws_testing::goldens::{change, copy};
use tempfile::TempDir;

use crate::client::{Running, config, serve};
use crate::interfaces::named;
use crate::structured;

pub(crate) const TEMPLATE: &str = "{# <think></think><tool_call> #}\
    {% for t in tools or [] %}{{ t.function.name }} {{ t.function.parameters.type }}\n{% endfor %}\
    {% for m in messages %}{{ m.role }} {{ m.reasoning_content }} {{ m.content }}\
    {% for c in m.tool_calls or [] %} calls {{ c.function.name }} {{ c.function.arguments.city }}{% endfor %}{{ '\\n' }}\
    {% endfor %}{% if add_generation_prompt %}assistant {% endif %}";

pub(crate) const ANSWER: &str = "<think>\nso it is\n</think>\n\nI look.\n\
    <tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": \"bern\"}}\n</tool_call>\n\
    <tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>STOP";
const ARGUMENTS: &str = "{\"city\": \"bern\"}";
/// The token that is the answer.
const TOKEN: usize = 40;

pub(crate) fn model(template: &str) -> (TempDir, PathBuf) {
    model_with(template, ANSWER)
}

/// A model with this answer.
fn model_with(template: &str, answer: &str) -> (TempDir, PathBuf) {
    model_with_token(template, answer, TOKEN)
}

/// A model in which this token is the answer.
pub(crate) fn model_with_token(template: &str, answer: &str, token: usize) -> (TempDir, PathBuf) {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("model");
    copy("qwen3_moe", &dir);
    std::fs::write(dir.join("chat_template.jinja"), template).unwrap();
    change(&dir, "tokenizer.json", |json| {
        let vocab = json["model"]["vocab"].as_object_mut().unwrap();
        vocab.retain(|_, id| id != token);
        vocab.insert(answer.replace(' ', "Ġ").replace('\n', "Ċ"), token.into());
    });
    (temp, dir)
}

fn with(base: Value, more: Value) -> Value {
    let Value::Object(mut base) = base else { panic!("{base}") };
    let Value::Object(more) = more else { panic!("{more}") };
    base.extend(more);
    base.into()
}

/// Options with which the model answers as it should.
fn options() -> Value {
    json!({"max_tokens": 4, "temperature": 0, "logit_bias": {"40": 100}, "stop": ["STOP"]})
}

/// The tools `f` and `g` in OpenAI's form, and one that only OpenAI runs.
fn tools() -> Value {
    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}});
    json!([tool("f"), tool("g"), {"type": "web_search"}])
}

fn question() -> Value {
    json!([{"role": "user", "content": "where"}])
}

/// The message and the reason of a streamed chat.
fn joined(events: &[Value]) -> (Value, Value) {
    let mut message = json!({"content": "", "reasoning_content": "", "tool_calls": []});
    let mut reason = Value::Null;
    for event in events {
        let choice = &event["choices"][0];
        for key in ["content", "reasoning_content"] {
            if let Some(more) = choice["delta"][key].as_str() {
                message[key] = (message[key].as_str().unwrap().to_owned() + more).into();
            }
        }
        for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let calls = message["tool_calls"].as_array_mut().unwrap();
            assert_eq!(call["index"], calls.len());
            let mut call = call.clone();
            call.as_object_mut().unwrap().remove("index");
            calls.push(call);
        }
        if !choice["finish_reason"].is_null() {
            reason = choice["finish_reason"].clone();
        }
    }
    (message, reason)
}

fn ask(server: &Running, more: Value) -> Value {
    let body = with(with(options(), json!({"messages": question()})), more);
    server.ask("/v1/chat/completions", &body)
}

#[test]
fn chats_have_reasoning_and_calls() {
    let (_temp, dir) = model(TEMPLATE);
    let server = serve(&dir, 1, config());
    let answer = ask(&server, json!({"tools": tools()}));
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["reasoning_content"], "so it is");
    assert_eq!(message["content"], "I look.");
    let calls = message["tool_calls"].as_array().unwrap();
    assert_eq!(calls.len(), 2, "{message}");
    assert_eq!(calls[0]["function"], json!({"name": "f", "arguments": ARGUMENTS}));
    assert_eq!(calls[1]["function"], json!({"name": "g", "arguments": "{}"}));
    assert!(calls[0]["id"].as_str().unwrap().len() == 9 && calls[0]["id"] != calls[1]["id"]);
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");

    let body = json!({"messages": question(), "tools": tools(), "stream": true});
    let stream = server.post("/v1/chat/completions", &with(options(), body));
    let (streamed, reason) = joined(&stream.events());
    assert_eq!(reason, "tool_calls");
    for key in ["reasoning_content", "content"] {
        assert_eq!(streamed[key], message[key]);
    }
    assert_eq!(streamed["tool_calls"][0]["function"], calls[0]["function"]);
    assert_eq!(streamed["tool_calls"][1]["function"], calls[1]["function"]);

    let one = ask(&server, json!({"tools": tools(), "parallel_tool_calls": false}));
    assert_eq!(one["choices"][0]["message"]["tool_calls"].as_array().unwrap().len(), 1);
    // Without tools, or without a choice of them, calls are text.
    for more in [json!({}), json!({"tools": tools(), "tool_choice": "none"})] {
        let answer = ask(&server, more);
        let message = &answer["choices"][0]["message"];
        assert_eq!(message["reasoning_content"], "so it is");
        assert!(message["content"].as_str().unwrap().starts_with("I look.\n<tool_call>"));
        assert!(message.get("tool_calls").is_none());
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    }
    // An answer that is cut off.
    let cut = ask(&server, json!({"tools": tools(), "max_tokens": 1, "stop": []}));
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
}

#[test]
fn templates_get_tools_calls_and_results() {
    let (_temp, dir) = model(TEMPLATE);
    let server = serve(&dir, 1, config());
    let call =
        json!({"id": "abc", "type": "function", "function": {"name": "f", "arguments": ARGUMENTS}});
    let messages = json!([
        {"role": "user", "content": "where"},
        {"role": "assistant", "content": null, "reasoning_content": "so", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abc", "content": "here"},
    ]);
    let expected =
        "f object\ng object\nuser  where\nassistant so  calls f bern\ntool  here\nassistant ";
    let body = json!({"messages": messages, "tools": tools()});
    assert_eq!(server.ask("/apply-template", &body)["prompt"], expected);

    // The same conversation in the other interfaces has as many tokens.
    let answer = server.ask("/v1/chat/completions", &with(options(), body));
    let expected = &answer["usage"]["prompt_tokens"];
    let body = json!({
        "tools": [
            {"name": "f", "input_schema": {"type": "object"}},
            {"name": "g", "input_schema": {"type": "object"}},
            {"type": "bash_20250124", "name": "bash"},
        ],
        "messages": [
            {"role": "user", "content": "where"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "so", "signature": ""},
                {"type": "tool_use", "id": "abc", "name": "f", "input": {"city": "bern"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "abc", "content": [{"type": "text", "text": "here"}]},
            ]},
        ],
    });
    assert_eq!(&server.ask("/v1/messages/count_tokens", &body)["input_tokens"], expected);
    let body = json!({
        "tools": [
            {"type": "function", "name": "f", "parameters": {"type": "object"}},
            {"type": "function", "name": "g", "parameters": {"type": "object"}},
        ],
        "input": [
            {"role": "user", "content": "where"},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "so"}]},
            {"type": "function_call", "call_id": "abc", "name": "f", "arguments": ARGUMENTS},
            {"type": "function_call_output", "call_id": "abc", "output": "here"},
        ],
    });
    let answer = server.ask("/v1/responses", &with(options(), body));
    assert_eq!(&answer["usage"]["input_tokens"], expected);
}

#[test]
fn messages_have_blocks_for_reasoning_and_calls() {
    let (_temp, dir) = model(TEMPLATE);
    let server = serve(&dir, 1, config());
    let tool = |name: &str| json!({"name": name, "input_schema": {"type": "object"}});
    let body = json!({"messages": question(), "tools": [tool("f"), tool("g")]});
    let body = with(options(), body);
    let answer = server.ask("/v1/messages", &body);
    assert_eq!(answer["stop_reason"], "tool_use");
    let content = answer["content"].as_array().unwrap();
    assert_eq!(content[0], json!({"type": "thinking", "thinking": "so it is", "signature": ""}));
    assert_eq!(content[1], json!({"type": "text", "text": "I look."}));
    assert_eq!(
        (&content[2]["name"], &content[2]["input"]),
        (&json!("f"), &json!({"city": "bern"}))
    );
    assert_eq!((&content[3]["name"], &content[3]["input"]), (&json!("g"), &json!({})));
    assert_eq!(content.len(), 4);

    let events = named(&server.post("/v1/messages", &with(body.clone(), json!({"stream": true}))));
    let mut kinds = Vec::new();
    for (name, data) in &events {
        if name == "content_block_start" {
            assert_eq!(data["index"], kinds.len());
            kinds.push(data["content_block"]["type"].as_str().unwrap());
        }
    }
    assert_eq!(kinds, ["thinking", "text", "tool_use", "tool_use"]);
    let deltas = |kind: &str, key: &str| -> String {
        let deltas = events.iter().map(|(_, data)| &data["delta"]);
        deltas.filter(|d| d["type"] == kind).filter_map(|d| d[key].as_str()).collect()
    };
    assert_eq!(deltas("thinking_delta", "thinking"), "so it is");
    assert_eq!(deltas("text_delta", "text"), "I look.");
    assert_eq!(deltas("input_json_delta", "partial_json"), format!("{ARGUMENTS}{{}}"));
    let ended = events.iter().filter(|(name, _)| name == "content_block_stop").count();
    assert_eq!(ended, kinds.len());

    let one = json!({"tool_choice": {"type": "auto", "disable_parallel_tool_use": true}});
    let answer = server.ask("/v1/messages", &with(body, one));
    assert_eq!(answer["content"].as_array().unwrap().len(), 3);
}

#[test]
fn responses_have_items_for_reasoning_and_calls() {
    let (_temp, dir) = model(TEMPLATE);
    let server = serve(&dir, 1, config());
    let tool =
        |name: &str| json!({"type": "function", "name": name, "parameters": {"type": "object"}});
    let body = json!({"input": "where", "tools": [tool("f"), tool("g")]});
    let body = with(options(), body);
    let answer = server.ask("/v1/responses", &body);
    assert_eq!(answer["status"], "completed");
    let kinds = |output: &Value| -> Vec<String> {
        let items = output.as_array().unwrap().iter();
        items.map(|item| item["type"].as_str().unwrap().to_owned()).collect()
    };
    let expected = ["reasoning", "message", "function_call", "function_call"];
    assert_eq!(kinds(&answer["output"]), expected);
    assert_eq!(answer["output"][0]["content"][0]["text"], "so it is");
    assert_eq!(answer["output"][1]["content"][0]["text"], "I look.");
    assert_eq!(answer["output"][2]["arguments"], ARGUMENTS);

    let events = named(&server.post("/v1/responses", &with(body, json!({"stream": true}))));
    let items: Vec<&Value> = events
        .iter()
        .filter(|(name, _)| name == "response.output_item.done")
        .map(|(_, data)| &data["item"])
        .collect();
    let (name, last) = events.last().unwrap();
    assert_eq!(name, "response.completed");
    assert_eq!(json!(items), last["response"]["output"]);
    assert_eq!(kinds(&last["response"]["output"]), expected);
    let deltas = |name: &str| -> String {
        let deltas = events.iter().filter(|(found, _)| found == name);
        deltas.map(|(_, data)| data["delta"].as_str().unwrap()).collect()
    };
    assert_eq!(deltas("response.reasoning_text.delta"), "so it is");
    assert_eq!(deltas("response.output_text.delta"), "I look.");
    assert_eq!(deltas("response.function_call_arguments.delta"), format!("{ARGUMENTS}{{}}"));
}

#[test]
fn tools_that_cannot_work_are_refused() {
    let (_temp, dir) = model(TEMPLATE);
    let server = serve(&dir, 1, config());
    let body = |more: Value| with(json!({"messages": question(), "tools": tools()}), more);
    for (more, param) in [
        (json!({"tool_choice": "some"}), "tool_choice"),
        (json!({"tool_choice": {"type": "function", "function": {"name": "h"}}}), "tool_choice"),
        (json!({"tool_choice": "required", "tools": []}), "tool_choice"),
        (json!({"tools": vec![json!({"type": "function"}); 513]}), "tools"),
        (json!({"functions": [{"name": "f"}]}), "functions"),
    ] {
        let response = server.post("/v1/chat/completions", &body(more));
        assert_eq!(response.status, 400, "{response:?}");
        assert_eq!(response.json()["error"]["param"], param);
    }
}

/// Models whose template has no known format of calls are shown tools in a text.
#[test]
fn every_template_can_show_tools() {
    let call = "{\"name\": \"f\", \"arguments\": {\"city\": \"bern\"}}";
    let template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
    let (_temp, dir) = model_with(template, &format!("{call}STOP"));
    let server = serve(&dir, 1, config());
    let props = server.get("/props").json();
    assert_eq!((&props["tools"], &props["has_tools"]), (&json!("generic"), &json!(true)));
    let answer = ask(&server, json!({"tools": tools()}));
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    let found = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(found, &json!({"name": "f", "arguments": ARGUMENTS}));
    // Without tools it is text.
    let text = &ask(&server, json!({}))["choices"][0]["message"]["content"];
    assert_eq!(text, call);

    let call =
        json!({"id": "abc", "type": "function", "function": {"name": "f", "arguments": ARGUMENTS}});
    let messages = json!([
        {"role": "user", "content": "where"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abc", "content": "here"},
    ]);
    let body = json!({"messages": messages, "tools": tools()});
    let prompt = server.ask("/apply-template", &body)["prompt"].as_str().unwrap().to_owned();
    let (shown, rest) = prompt.split_once("user: where\n").unwrap();
    assert!(shown.starts_with("system: You can use these tools:"), "{shown}");
    assert!(shown.contains("{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}"), "{shown}");
    let called = "{\"name\": \"f\", \"arguments\": {\"city\":\"bern\"}}";
    assert_eq!(rest, format!("assistant: {called}\nuser: Result of f: here\n"));

    // A template that refuses system messages has them in the user's.
    let template = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ messages[0].content }}";
    let (_temp, dir) = model(template);
    let server = serve(&dir, 1, config());
    let body = json!({"messages": question(), "tools": tools()});
    let prompt = server.ask("/apply-template", &body)["prompt"].clone();
    assert!(prompt.as_str().unwrap().starts_with("where\n\nYou can use these tools:"), "{prompt}");
}

/// Some templates join the arguments of a call to text.
#[test]
fn templates_that_need_arguments_as_text_get_them() {
    let template = "{% for m in messages %}{{ m.content }}\
        {% for c in m.tool_calls or [] %}{{ c.function.name + c.function.arguments + '.' }}{% endfor %}{% endfor %}";
    let (_temp, dir) = model(template);
    let server = serve(&dir, 1, config());
    let call = json!({"function": {"name": "f", "arguments": ARGUMENTS}});
    let messages = json!([{"role": "assistant", "content": "a ", "tool_calls": [call]}]);
    let body = json!({"messages": messages});
    assert_eq!(server.ask("/apply-template", &body)["prompt"], format!("a f{ARGUMENTS}."));
}

/// A model that can write JSON, with a template.
fn json_model(template: &str) -> (TempDir, PathBuf) {
    let (temp, dir) = structured::model();
    std::fs::write(dir.join("chat_template.jinja"), template).unwrap();
    (temp, dir)
}

/// A demanded call keeps to the schema of its tool, though it is not strict.
#[test]
fn an_answer_that_must_be_a_call_is_one() {
    let schema = |city: &str| json!({"type": "object", "properties": {"city": {"enum": [city]}}, "required": ["city"]});
    let tool = |name: &str, city: &str| json!({"type": "function", "function": {"name": name, "parameters": schema(city)}});
    let options = json!({"max_tokens": 100, "temperature": 0, "messages": question()});
    let city = |function: &Value| {
        let arguments: Value =
            serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
        assert_eq!(arguments.as_object().unwrap().len(), 1, "{arguments}");
        arguments["city"].as_str().unwrap().to_owned()
    };
    let named = json!({"type": "function", "function": {"name": "f"}});
    for format in [
        "<tool_call>",
        "[TOOL_CALLS][ARGS]",
        "<tool_call><function=",
        "<tool_call><arg_key>",
        "<minimax:tool_call>",
        "<|open|><|close|><|sep|>",
        "<|tool_call_begin|>",
    ] {
        let template = TEMPLATE.replace("<tool_call>", format);
        let (_temp, dir) = json_model(&template.replace("{{ t.function.parameters.type }}", ""));
        let server = serve(&dir, 1, config());
        let asked = json!({"tools": [tool("f", "bern"), tool("g", "rom")], "tool_choice": named});
        let answer = server.ask("/v1/chat/completions", &with(options.clone(), asked));
        let message = &answer["choices"][0]["message"];
        assert_eq!(message["content"], Value::Null, "{answer}");
        let call = &message["tool_calls"][0]["function"];
        assert_eq!((&call["name"], city(call)), (&json!("f"), "bern".to_owned()), "{format}");
        let known = json!({"name": "f", "input_schema": schema("bern")});
        let asked = json!({"tools": [known], "tool_choice": {"type": "any"}});
        let answer = server.ask("/v1/messages", &with(options.clone(), asked));
        assert_eq!(answer["content"][0]["input"], json!({"city": "bern"}), "{answer}");
        // Older clients know calls by another name.
        let function = json!({"name": "f", "parameters": schema("bern")});
        let asked = json!({"functions": [function], "function_call": {"name": "f"}});
        let answer = server.ask("/v1/chat/completions", &with(options.clone(), asked));
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "function_call");
        assert_eq!(city(&choice["message"]["function_call"]), "bern");
        // Among several, one of them.
        let asked =
            json!({"tools": [tool("f", "bern"), tool("g", "rom")], "tool_choice": "required"});
        let answer = server.ask("/v1/chat/completions", &with(options.clone(), asked));
        let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
        let expected = if call["name"] == "f" { "bern" } else { "rom" };
        assert_eq!(city(call), expected, "{answer}");
        // A tool without parameters has no arguments.
        let asked = json!({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"});
        let answer = server.ask("/v1/chat/completions", &with(options.clone(), asked));
        let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
        assert_eq!(*call, json!({"name": "f", "arguments": "{}"}), "{answer}");
    }
}
