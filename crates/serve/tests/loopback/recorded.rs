//! Requests that clients send (`tests/recorded`), replayed: each gets an answer of the right shape, and
//! what was computed of a conversation is used again, whatever these clients send in between.

use std::path::PathBuf;

use serde_json::{Value, json};
use sws_testing::goldens::{change, copy};
use tempfile::TempDir;

use crate::client::{Response, Running, config, serve};
use crate::interfaces::named;

const CLAUDE_CODE: &str = include_str!("../recorded/claude-code.json");
const CODEX: &str = include_str!("../recorded/codex.json");
const OPEN_WEBUI: &str = include_str!("../recorded/open-webui.json");

/// The system prompt first, so that a change in it changes everything behind.
const TEMPLATE: &str = "{# <think></think><tool_call> #}\
    {% if messages[0].role == 'system' %}{{ messages[0].content }}\n{% endif %}\
    {% for t in tools or [] %}{{ t.function | tojson }}\n{% endfor %}\
    {% for m in messages %}{{ m.role }} {{ m.reasoning_content }} {{ m.content }}\
    {% for c in m.tool_calls or [] %} calls {{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}{{ '\\n' }}\
    {% endfor %}{% if add_generation_prompt %}assistant {% endif %}";

const REASONING: &str = "I look at it";
const TEXT: &str = "One moment.";
/// The token that is a whole answer, as in [`crate::tools`].
const TOKEN: usize = 120;

/// A model with room for the requests, whose tokens are the characters of JSON, and one with an answer
/// that ends with these calls.
fn model(calls: &str) -> (TempDir, PathBuf) {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("model");
    copy("qwen3_moe", &dir);
    std::fs::write(dir.join("chat_template.jinja"), TEMPLATE).unwrap();
    change(&dir, "config.json", |json| json["max_position_embeddings"] = 8192.into());
    change(&dir, "generation_config.json", |json| json["eos_token_id"] = 0.into());
    let answer = format!("<think>\n{REASONING}\n</think>\n\n{TEXT}{calls}STOP");
    change(&dir, "tokenizer.json", |json| {
        let vocab = json["model"]["vocab"].as_object_mut().unwrap();
        vocab.retain(|_, id| id.as_u64() < Some(29));
        let others = ('!'..='~').filter(|c| !c.is_ascii_lowercase()).map(String::from);
        vocab.extend(others.zip((29..).map(Value::from)));
        vocab.insert(answer.replace(' ', "Ġ").replace('\n', "Ċ"), TOKEN.into());
    });
    (temp, dir)
}

/// Options with which the model gives that answer.
fn answering() -> Value {
    json!({"max_tokens": 4, "temperature": 0, "logit_bias": {"120": 100}, "stop": ["STOP"]})
}

/// A request with other values of some fields.
fn with(base: &Value, more: Value) -> Value {
    let mut base = base.clone();
    base.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    base
}

/// Sends a request with the lines that a client has in its header.
fn send(server: &Running, path: &str, lines: &[&str], body: &Value) -> Response {
    let (body, lines) = (body.to_string(), lines.join("\r\n"));
    let response = Response::read(server.raw(&format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{lines}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )));
    assert_eq!(response.status, 200, "{response:?}");
    response
}

/// The later part of a conversation, with the answer that the model gave.
fn answered(later: &Value) -> Value {
    let text = later.to_string().replace("say thought", REASONING).replace("say text", TEXT);
    serde_json::from_str(&text).unwrap()
}

fn extend(list: &mut Value, more: &Value) {
    list.as_array_mut().unwrap().extend(answered(more).as_array().unwrap().iter().cloned());
}

fn of<'a>(events: &'a [(String, Value)], name: &str) -> Vec<&'a Value> {
    events.iter().filter(|(found, _)| found == name).map(|(_, data)| data).collect()
}

#[test]
fn claude_code_gets_blocks_and_keeps_its_beginning() {
    let recorded: Value = serde_json::from_str(CLAUDE_CODE).unwrap();
    let (_temp, dir) = model(
        "\n<tool_call>\n{\"name\": \"Bash\", \"arguments\": {\"command\": \"make\"}}\n</tool_call>\n\
         <tool_call>\n{\"name\": \"Read\", \"arguments\": {\"file_path\": \"Makefile\"}}\n</tool_call>",
    );
    let mut config = config();
    config.models[0].aliases.push("*".to_owned());
    let server = serve(&dir, 1, config);
    let lines = [
        "anthropic-version: 2023-06-01",
        "anthropic-beta: claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27",
        "x-app: cli",
        "x-stainless-helper-method: stream",
        "user-agent: claude-cli/2.1.148 (external, cli)",
        "authorization: Bearer any",
    ];
    let ask = |body: &Value| -> Vec<(String, Value)> {
        named(&send(&server, "/v1/messages?beta=true", &lines, body))
    };
    // Tokens of the prompt that were computed, and those that were known.
    let usage = |events: &[(String, Value)]| -> [u64; 2] {
        let usage = &of(events, "message_delta")[0]["usage"];
        ["input_tokens", "cache_read_input_tokens"].map(|name| usage[name].as_u64().unwrap())
    };

    let title = with(&recorded["title"], json!({"max_tokens": 400, "seed": 1}));
    let events = ask(&title);
    let text = of(&events, "content_block_delta").into_iter();
    let text: String = text.filter_map(|data| data["delta"]["text"].as_str()).collect();
    let title: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert!(title["title"].is_string(), "{title}");

    let main = with(&recorded["main"], answering());
    let events = ask(&main);
    let names: Vec<&str> =
        events.iter().map(|(name, _)| name.as_str()).filter(|name| *name != "ping").collect();
    assert_eq!((names[0], names[names.len() - 1]), ("message_start", "message_stop"));
    let blocks = of(&events, "content_block_start");
    let kinds: Vec<_> = blocks.iter().map(|data| &data["content_block"]["type"]).collect();
    assert_eq!(kinds, ["thinking", "text", "tool_use", "tool_use"]);
    assert!(blocks.iter().enumerate().all(|(index, data)| data["index"] == index));
    assert_eq!(blocks[2]["content_block"]["name"], "Bash");
    let deltas = of(&events, "content_block_delta");
    let input = deltas.iter().filter(|data| data["index"] == 2);
    let input: String = input.filter_map(|data| data["delta"]["partial_json"].as_str()).collect();
    assert_eq!(serde_json::from_str::<Value>(&input).unwrap(), json!({"command": "make"}));
    assert!(deltas.iter().any(|data| data["delta"]["type"] == "signature_delta"));
    assert_eq!(of(&events, "message_delta")[0]["delta"]["stop_reason"], "tool_use");
    let first = usage(&events);
    let prompt = first[0] + first[1];
    let count = send(&server, "/v1/messages/count_tokens?beta=true", &lines, &recorded["main"]);
    assert_eq!(count.json()["input_tokens"], prompt);

    // The first line of the system prompt is another one now, and a title is asked for in between.
    ask(&title_of(&recorded));
    let mut then = main.clone();
    then["system"][0]["text"] = recorded["then"]["billing"].clone();
    extend(&mut then["messages"], &recorded["then"]["messages"]);
    let [computed, known] = usage(&ask(&then));
    assert!(known + 8 >= prompt && computed < 400, "{known} of {prompt}, {computed} computed");
    // Control: any other line counts.
    then["system"][1]["text"] = "A program that helps with code.".into();
    let [computed, known] = usage(&ask(&then));
    assert!(known < 100 && computed > 1000, "{known} known, {computed} computed");
}

fn title_of(recorded: &Value) -> Value {
    with(&recorded["title"], json!({"max_tokens": 40, "seed": 2}))
}

#[test]
fn codex_gets_items_and_keeps_its_beginning() {
    let recorded: Value = serde_json::from_str(CODEX).unwrap();
    let (_temp, dir) = model(
        "\n<tool_call>\n{\"name\": \"exec_command\", \"arguments\": {\"cmd\": \"make\"}}\n</tool_call>",
    );
    let server = serve(&dir, 1, config());
    let models = server.get("/v1/models?client_version=0.104.0").json();
    assert!(models["models"][0]["slug"].is_string() && models["data"][0]["id"].is_string());
    let lines = [
        "accept: text/event-stream",
        "originator: codex_cli_rs",
        "session_id: 0199f1a2-0000-7000-8000-000000000001",
        "authorization: Bearer any",
    ];
    let ask = |body: &Value| named(&send(&server, "/v1/responses", &lines, body));
    let usage = |events: &[(String, Value)]| -> [u64; 2] {
        let response = &of(events, "response.completed")[0]["response"];
        assert!(response["id"].as_str().is_some_and(|id| id.starts_with("resp")), "{response}");
        let usage = &response["usage"];
        // Its parser needs all of them.
        assert!(usage["output_tokens_details"]["reasoning_tokens"].is_u64(), "{usage}");
        assert!(usage["output_tokens"].is_u64() && usage["total_tokens"].is_u64(), "{usage}");
        let known = &usage["input_tokens_details"]["cached_tokens"];
        [&usage["input_tokens"], known].map(|tokens| tokens.as_u64().unwrap())
    };
    let first = with(&recorded["first"], with(&answering(), json!({"max_output_tokens": 4})));
    let events = ask(&first);
    assert_eq!(events[0].0, "response.created");
    let done = of(&events, "response.output_item.done");
    let kinds: Vec<_> = done.iter().map(|data| &data["item"]["type"]).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call"]);
    let call = &done[2]["item"];
    assert_eq!((&call["name"], call["call_id"].is_string()), (&json!("exec_command"), true));
    let arguments = call["arguments"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(arguments).unwrap(), json!({"cmd": "make"}));
    let [prompt, _] = usage(&events);

    // The conversation goes on, with results of tools that have a schema and of one that has none.
    let mut then = first.clone();
    extend(&mut then["input"], &recorded["then"]);
    let [all, known] = usage(&ask(&then));
    assert!(known + 8 >= prompt && all > prompt, "{known} of {prompt} and {all}");
    // Tools that come with the conversation are tools.
    let must = json!({"tool_choice": {"type": "function", "name": "update_plan"}});
    assert_eq!(server.post("/v1/responses", &with(&first, must)).status, 200);
}

#[test]
fn side_calls_of_open_webui_leave_the_chat_as_it_was() {
    let recorded: Value = serde_json::from_str(OPEN_WEBUI).unwrap();
    let (_temp, dir) = model("");
    let server = serve(&dir, 1, config());
    let lines = ["authorization: Bearer any", "accept: */*"];
    let path = "/v1/chat/completions";
    let tokens = |usage: &Value| {
        let known = &usage["prompt_tokens_details"]["cached_tokens"];
        [&usage["prompt_tokens"], known].map(|tokens| tokens.as_u64().unwrap())
    };
    let chat = |body: &Value| -> ([u64; 2], String) {
        let events = send(&server, path, &lines, body).events();
        let (last, pieces) = events.split_last().unwrap();
        assert_eq!(last["choices"], json!([]));
        let text = pieces.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str());
        assert_eq!(pieces[pieces.len() - 1]["choices"][0]["finish_reason"], "stop");
        (tokens(&last["usage"]), text.collect())
    };
    let first = with(&recorded["chat"], answering());
    let ([prompt, _], text) = chat(&first);
    assert_eq!(text, TEXT);
    for name in ["title", "tags", "follow_ups"] {
        let side = with(&answered(&recorded[name]), answering());
        let answer = send(&server, path, &lines, &side).json();
        assert_eq!(answer["object"], "chat.completion");
        assert_eq!(answer["choices"][0]["message"]["content"], TEXT, "{name}");
        let [all, known] = tokens(&answer["usage"]);
        assert!(all > 100 && known < all, "{name}: {known} of {all}");
    }
    let mut then = first.clone();
    extend(&mut then["messages"], &recorded["then"]);
    let ([all, known], _) = chat(&then);
    assert!(known + 8 >= prompt && all > prompt, "{known} of {prompt} and {all}");
}
