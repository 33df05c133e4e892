//! Any text as an answer, in each interface: its stream says what the whole says.

use serde_json::{Value, json};

use crate::offline;

/// Bytes of a text.
const MOST: usize = 256;

/// The first byte chooses the interface. Returns true for a text that was written as an answer.
pub(crate) fn check(data: &[u8]) -> bool {
    let Some((interface, text)) = data.split_first() else { return false };
    let Ok(text) = std::str::from_utf8(text) else { return false };
    if text.len() > MOST {
        return false;
    }
    // JSON with the text, where only schemas are known.
    let schema = json!({"type": "json_schema", "schema": {"const": text}});
    let user = json!([{"role": "user", "content": "a"}]);
    let (path, body) = match interface % 4 {
        0 => ("/v1/completions", json!({"prompt": "a", "guided_choice": [text]})),
        1 => ("/v1/chat/completions", json!({"messages": user, "guided_choice": [text]})),
        2 => ("/v1/messages", json!({"messages": user, "output_config": {"format": schema}})),
        _ => ("/v1/responses", json!({"input": "a", "text": {"format": schema}})),
    };
    let read = match interface % 4 {
        0 => completed,
        1 => chatted,
        2 => told,
        _ => responded,
    };
    let ask = |stream: bool| {
        let mut body = body.clone();
        body["stream"] = stream.into();
        body["seed"] = 1.into();
        body["max_tokens"] = 300.into();
        offline::post(path, body.to_string().as_bytes())
    };
    let (whole, stream) = (ask(false), ask(true));
    assert_eq!(whole.status, stream.status);
    if whole.status != 200 {
        return false;
    }
    let whole: Value = serde_json::from_slice(&whole.body).unwrap();
    let mut joined = String::new();
    for (name, data) in offline::events(&stream.body) {
        let Ok(event) = serde_json::from_str::<Value>(data) else {
            assert_eq!(data, "[DONE]");
            continue;
        };
        assert!(event["error"].is_null(), "{event}");
        if let Some(name) = name {
            assert_eq!(event["type"], name);
        }
        joined += &read(&event);
    }
    let said = read(&whole);
    assert_eq!(joined, said);
    if interface % 4 == 0 && whole["choices"][0]["finish_reason"] == "stop" {
        assert_eq!(said, text);
    }
    true
}

fn string(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The text of a completion, or of a part of one.
fn completed(value: &Value) -> String {
    string(&value["choices"][0]["text"])
}

/// The text of a chat, or of a part of one.
fn chatted(value: &Value) -> String {
    let choice = &value["choices"][0];
    string(&choice["message"]["content"]) + &string(&choice["delta"]["content"])
}

/// The text of a message, or of an event of one.
fn told(value: &Value) -> String {
    match value["type"].as_str() {
        Some("message") => texts(&value["content"]),
        Some("content_block_delta") => string(&value["delta"]["text"]),
        _ => String::new(),
    }
}

/// The text of a response, or of an event of one.
fn responded(value: &Value) -> String {
    if value["type"] == "response.output_text.delta" {
        return string(&value["delta"]);
    }
    let items = value["output"].as_array().into_iter().flatten();
    items.map(|item| texts(&item["content"])).collect()
}

/// The texts of blocks.
fn texts(blocks: &Value) -> String {
    let blocks = blocks.as_array().into_iter().flatten();
    let blocks = blocks.filter(|block| block["type"] == "text" || block["type"] == "output_text");
    blocks.map(|block| string(&block["text"])).collect()
}
