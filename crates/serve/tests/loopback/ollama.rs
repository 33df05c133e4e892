//! `/api/..`: Ollama's interface.

use serde_json::{Value, json};

use crate::chats;
use crate::client::{Response, config, serve};
use crate::{structured, tools};

/// The lines of a stream.
fn lines(response: &Response) -> Vec<Value> {
    assert!(response.head.contains("content-type: application/x-ndjson"), "{response:?}");
    response.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Options that end a text after some tokens.
fn options() -> Value {
    json!({"num_predict": 6, "temperature": 0, "num_ctx": 4096, "seed": 3, "num_thread": 2})
}

#[test]
fn chats_have_the_answer_of_the_other_interfaces() {
    let (_temp, dir) = chats::model();
    let server = serve(&dir, 1, config());
    let messages = json!([{"role": "user", "content": "hello"}]);
    let body = json!({"messages": messages, "max_tokens": 6, "temperature": 0, "seed": 3});
    let expected = server.ask("/v1/chat/completions", &body);
    let expected_text = &expected["choices"][0]["message"]["content"];

    let body = json!({"model": "gpt-any:latest", "messages": messages, "options": options(), "stream": false, "keep_alive": "5m"});
    let whole = server.ask("/api/chat", &body);
    assert_eq!(&whole["message"]["content"], expected_text);
    assert_eq!((&whole["done"], &whole["done_reason"]), (&json!(true), &json!("length")));
    assert_eq!(whole["eval_count"], 6);
    assert_eq!(whole["prompt_eval_count"], expected["usage"]["prompt_tokens"]);
    assert!(whole["total_duration"].as_u64().unwrap() > 0);
    assert!(whole["created_at"].as_str().unwrap().ends_with('Z'));

    // Streams are the default.
    let body = json!({"model": "tales", "messages": messages, "options": options()});
    let lines = lines(&server.post("/api/chat", &body));
    let text: String =
        lines.iter().map(|line| line["message"]["content"].as_str().unwrap()).collect();
    assert_eq!(&json!(text), expected_text);
    let (last, others) = lines.split_last().unwrap();
    assert_eq!((&last["done"], &last["eval_count"]), (&json!(true), &json!(6)));
    assert!(others.len() > 1 && others.iter().all(|line| line["done"] == false));
}

#[test]
fn prompts_are_chats_or_raw() {
    let (_temp, dir) = chats::model();
    let server = serve(&dir, 1, config());
    let ask = |more: Value| {
        let mut body =
            json!({"model": "tales", "prompt": "hello", "options": options(), "stream": false});
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        server.ask("/api/generate", &body)["response"].clone()
    };
    let chat = |messages: Value| {
        let body = json!({"messages": messages, "max_tokens": 6, "temperature": 0, "seed": 3});
        server.ask("/v1/chat/completions", &body)["choices"][0]["message"]["content"].clone()
    };
    let user = json!({"role": "user", "content": "hello"});
    assert_eq!(ask(json!({})), chat(json!([user])));
    let system = json!({"role": "system", "content": "short"});
    assert_eq!(ask(json!({"system": "short"})), chat(json!([system, user])));
    let body = json!({"prompt": "hello", "max_tokens": 6, "temperature": 0, "seed": 3});
    let text = server.ask("/v1/completions", &body)["choices"][0]["text"].clone();
    assert_eq!(ask(json!({"raw": true})), text);
    let loads = [
        ("/api/generate", json!({"model": "tales"})),
        ("/api/chat", json!({"model": "tales", "messages": []})),
    ];
    for (path, body) in loads {
        let loaded = server.ask(path, &body);
        assert_eq!((&loaded["done"], &loaded["done_reason"]), (&json!(true), &json!("load")));
    }
}

#[test]
fn answers_keep_to_a_schema() {
    let (_temp, dir) = structured::model();
    let server = serve(&dir, 1, config());
    let schema = json!({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false});
    for (path, text) in [("/api/generate", "/response"), ("/api/chat", "/message/content")] {
        let messages = json!([{"role": "user", "content": "hello"}]);
        let body = json!({"model": "tales", "prompt": "hello", "messages": messages, "format": schema, "stream": false, "options": {"num_predict": 40}});
        let answer = server.ask(path, &body);
        let object = answer.pointer(text).unwrap().as_str().unwrap();
        let object: Value = serde_json::from_str(object).unwrap();
        assert!(object["a"].is_boolean(), "{path}: {object}");
    }
}

#[test]
fn reasoning_and_calls_have_their_places() {
    let (_temp, dir) = tools::model(tools::TEMPLATE);
    let server = serve(&dir, 1, config());
    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}});
    let body = json!({
        "model": "tales",
        "messages": [
            {"role": "user", "content": "where"},
            {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"city": "bern"}}}]},
            {"role": "tool", "tool_name": "f", "content": "here"},
        ],
        "tools": [tool("f"), tool("g")],
        "options": {"num_predict": 4, "temperature": 0, "stop": ["STOP"]},
        "stream": false,
    });
    // Options of this interface have no bias: the token that the model chooses becomes the answer.
    let mut chosen = body.clone();
    chosen["options"]["num_predict"] = 1.into();
    let word = server.ask("/api/chat", &chosen)["message"]["content"].as_str().unwrap().to_owned();
    let vocab = std::fs::read(dir.join("tokenizer.json")).unwrap();
    let vocab: Value = serde_json::from_slice(&vocab).unwrap();
    let token = vocab["model"]["vocab"][word.replace(' ', "Ġ")].as_u64().unwrap();
    let (_temp, dir) = tools::model_with_token(tools::TEMPLATE, tools::ANSWER, token as usize);
    let server = serve(&dir, 1, config());
    let whole = server.ask("/api/chat", &body);
    let message = &whole["message"];
    assert_eq!(
        (&message["thinking"], &message["content"]),
        (&json!("so it is"), &json!("I look."))
    );
    let calls = message["tool_calls"].as_array().unwrap().iter();
    let calls: Vec<&Value> = calls.map(|call| &call["function"]).collect();
    let f = json!({"name": "f", "arguments": {"city": "bern"}});
    assert_eq!(calls, [&f, &json!({"name": "g", "arguments": {}})]);
    // A stream has them in lines of their own.
    let mut streamed = body;
    streamed["stream"] = true.into();
    let lines = lines(&server.post("/api/chat", &streamed));
    let called = lines.iter().filter(|line| line["message"]["tool_calls"].is_array()).count();
    assert_eq!(called, 2, "{lines:?}");
    assert!(lines.iter().any(|line| line["message"]["thinking"] == "so it is"), "{lines:?}");
    let facts = server.ask("/api/show", &json!({"model": "tales"}));
    assert_eq!(facts["capabilities"], json!(["completion", "tools"]));
    assert!(facts["model_info"]["general.parameter_count"].as_u64().unwrap() > 0);
}

#[test]
fn facts_and_refusals_have_the_shape_of_the_interface() {
    let (_temp, dir) = chats::model();
    let server = serve(&dir, 1, config());
    for path in ["/api/tags", "/api/ps"] {
        let models = server.get(path).json()["models"].clone();
        assert_eq!(models[0]["model"], "owner/tales", "{path}");
        assert!(models[0]["size"].as_u64().unwrap() > 0 && models[0]["digest"].is_string());
    }
    assert!(server.get("/api/version").json()["version"].is_string());
    let messages = json!([{"role": "user", "content": "hello"}]);
    for (path, body, status, words) in [
        ("/api/chat", json!({"model": "other", "messages": messages}), 404, "no model `other`"),
        (
            "/api/chat",
            json!({"model": "tales", "messages": [{"role": "user", "content": "a", "images": ["aGk="]}]}),
            400,
            "images are not supported",
        ),
        (
            "/api/chat",
            json!({"model": "tales", "messages": messages, "format": "yaml"}),
            400,
            "format is neither",
        ),
        (
            "/api/chat",
            json!({"model": "tales", "messages": messages, "think": true}),
            400,
            "cannot be told to think",
        ),
        (
            "/api/chat",
            json!({"model": "tales", "messages": messages, "options": {"num_predict": "a"}}),
            400,
            "num_predict is not a whole number",
        ),
        (
            "/api/chat",
            json!({"model": "tales", "messages": messages, "options": {"mirostat": 2}}),
            400,
            "`mirostat` is not supported",
        ),
        (
            "/api/generate",
            json!({"model": "tales", "prompt": "a", "template": "{{ .Prompt }}"}),
            400,
            "template in a request",
        ),
        ("/api/generate", json!({"prompt": "a"}), 400, "missing field `model`"),
        ("/api/chat", json!({"model": "other", "messages": []}), 404, "no model `other`"),
        ("/api/show", json!({"model": "other"}), 404, "no model `other`"),
        (
            "/api/embed",
            json!({"model": "tales", "input": "a"}),
            501,
            "embeddings are not supported",
        ),
        ("/api/pull", json!({"model": "other"}), 501, "sws pull"),
        ("/api/unknown", json!({}), 404, "nothing at this address"),
    ] {
        let response = server.post(path, &body);
        assert_eq!(response.status, status, "{path} {body}: {response:?}");
        let message = response.json()["error"].as_str().unwrap().to_owned();
        assert!(message.contains(words), "{path} {body}: {message}");
    }
}
