//! `/v1/messages` and `/v1/responses` give the answers of chats.

use serde_json::{Value, json};

use crate::chats::model;
use crate::client::{Response, Running, config, serve};
use crate::structured::with;

/// The answer of `/v1/chat/completions`.
fn chat(server: &Running, messages: Value) -> String {
    let body = json!({"messages": messages, "max_tokens": 8, "temperature": 0});
    let answer = server.ask("/v1/chat/completions", &body);
    answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

/// The names and data of a stream's events.
pub(crate) fn named(response: &Response) -> Vec<(String, Value)> {
    let blocks = response.body.split("\n\n").filter(|block| !block.is_empty());
    let events = blocks.map(|block| {
        let (name, data) = block.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        let name = name.strip_prefix("event: ").unwrap().to_owned();
        assert_eq!(data["type"], name.as_str());
        (name, data)
    });
    events.collect()
}

fn with_stream(body: &Value) -> Value {
    let mut body = body.clone();
    body["stream"] = true.into();
    body
}

#[test]
fn messages_have_the_text_of_a_chat() {
    let (_temp, dir) = model();
    let server = serve(&dir, 1, config());
    let expected = chat(
        &server,
        json!([{"role": "system", "content": "kind"}, {"role": "user", "content": "hello"}]),
    );
    let body = json!({
        "model": "gpt-any",
        "max_tokens": 8,
        "temperature": 0,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cch=1"},
            {"type": "text", "text": "kind", "cache_control": {"type": "ephemeral"}},
        ],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
    });
    let answer = server.ask("/v1/messages?beta=true", &body);
    assert_eq!(answer["content"], json!([{"type": "text", "text": expected}]));
    assert_eq!((&answer["type"], &answer["role"]), (&json!("message"), &json!("assistant")));
    let count = server.ask("/v1/messages/count_tokens", &body);
    let usage = |key: &str| answer["usage"][key].as_u64().unwrap();
    // The chat before had the same prompt.
    assert!(usage("cache_read_input_tokens") > 0);
    assert_eq!(count["input_tokens"], usage("input_tokens") + usage("cache_read_input_tokens"));
    let events = named(&server.post("/v1/messages", &with_stream(&body)));
    let names: Vec<&str> =
        events.iter().map(|(name, _)| name.as_str()).filter(|name| *name != "ping").collect();
    assert_eq!(names[..2], ["message_start", "content_block_start"]);
    let last = ["content_block_stop", "message_delta", "message_stop"];
    assert_eq!(names[names.len() - 3..], last);
    let text = events.iter().filter_map(|(_, data)| data["delta"]["text"].as_str());
    assert_eq!(text.collect::<String>(), expected);
    // Errors have Anthropic's shape.
    let refused = server.post("/v1/messages", &json!({"messages": []}));
    assert_eq!(refused.status, 400);
    assert_eq!(refused.json()["type"], "error");
    assert_eq!(refused.json()["error"]["type"], "invalid_request_error");
}

#[test]
fn responses_have_the_text_of_a_chat() {
    let (_temp, dir) = model();
    let server = serve(&dir, 1, config());
    let expected = chat(
        &server,
        json!([{"role": "system", "content": "kind"}, {"role": "user", "content": "hello"}]),
    );
    let content = json!([{"type": "input_text", "text": "hello"}]);
    let body = json!({
        "instructions": "kind",
        "input": [
            {"type": "reasoning", "summary": []},
            {"type": "message", "role": "user", "content": content},
        ],
        "max_output_tokens": 8,
        "temperature": 0,
        "store": false,
    });
    let answer = server.ask("/v1/responses", &body);
    assert_eq!(answer["output"][0]["content"][0]["text"], expected.as_str());
    let events = named(&server.post("/v1/responses", &with_stream(&body)));
    let numbers: Vec<u64> =
        events.iter().map(|(_, data)| data["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    assert_eq!(events[0].0, "response.created");
    let (name, last) = events.last().unwrap();
    assert!(["response.completed", "response.incomplete"].contains(&name.as_str()), "{name}");
    assert_eq!(last["response"]["output"][0]["content"], answer["output"][0]["content"]);
    assert_eq!(last["response"]["usage"]["total_tokens"], answer["usage"]["total_tokens"]);
    let deltas = events.iter().filter(|(name, _)| name == "response.output_text.delta");
    let text = deltas.map(|(_, data)| data["delta"].as_str().unwrap());
    assert_eq!(text.collect::<String>(), expected);
    // A plain text is a message of the user.
    let short = json!({"input": "hello", "max_output_tokens": 8, "temperature": 0});
    let alone = chat(&server, json!([{"role": "user", "content": "hello"}]));
    let answer = server.ask("/v1/responses", &short);
    assert_eq!(answer["output"][0]["content"][0]["text"], alone.as_str());
    let metadata = json!({"a": "b"});
    let told = json!({"metadata": metadata, "top_p": 0.7, "parallel_tool_calls": false, "include": ["reasoning.encrypted_content"]});
    let answer = server.ask("/v1/responses", &with(short, told));
    assert_eq!((&answer["metadata"], &answer["top_p"]), (&metadata, &json!(0.7)), "{answer}");
    assert_eq!((&answer["temperature"], &answer["max_output_tokens"]), (&json!(0.0), &json!(8)));
    assert_eq!(answer["parallel_tool_calls"], false);
    for refused in [
        json!({"input": "a", "include": ["message.output_text.logprobs"]}),
        json!({"input": "a", "metadata": {"a": "b".repeat(513)}}),
        json!({"input": "a", "previous_response_id": "resp_1"}),
        json!({"input": [{"type": "web_search_call"}]}),
        json!({"input": "a", "text": {"format": {"type": "json_schema"}}}),
        json!({"input": 3}),
    ] {
        assert_eq!(server.post("/v1/responses", &refused).status, 400, "{refused}");
    }
}

#[test]
fn minus_one_is_no_limit_and_less_is_refused() {
    let (_temp, dir) = model();
    std::fs::write(dir.join("generation_config.json"), "{\"max_new_tokens\": 3}").unwrap();
    let mut config = config();
    config.limits.new_tokens = Some(6);
    let server = serve(&dir, 1, config);
    let messages = json!({"messages": [{"role": "user", "content": "hello"}]});
    for (path, field, asked) in [
        ("/v1/chat/completions", "max_tokens", messages.clone()),
        ("/v1/chat/completions", "max_completion_tokens", messages),
        ("/v1/completions", "n_predict", json!({"prompt": "hello"})),
        ("/v1/responses", "max_output_tokens", json!({"input": "hello"})),
    ] {
        let body = |limit: Value| {
            with(asked.clone(), json!({field: limit, "temperature": 0, "ignore_eos": true}))
        };
        let made = |limit| {
            let usage = server.ask(path, &body(limit))["usage"].clone();
            usage["completion_tokens"].as_u64().or(usage["output_tokens"].as_u64()).unwrap()
        };
        // The model's own default counts only where nothing is asked.
        let default = if path == "/v1/completions" { 6 } else { 3 };
        let found = [json!(2), json!(-1), json!(null)].map(made);
        assert_eq!(found, [2, 6, default], "{path} {field}");
        let refused = server.post(path, &body(json!(-2)));
        let error = &refused.json()["error"];
        assert_eq!((refused.status, &error["param"]), (400, &json!(field)), "{error}");
        let words = format!("{field} is -2, and must be at least -1");
        assert_eq!(error["message"], words, "{path}");
    }
}
