//! `/v1/chat/completions` with a tiny model that has a template.

use std::path::PathBuf;

use serde_json::{Value, json};
use sws::{GenerationOptions, LoadedModel};
use sws_testing::goldens::copy;
use tempfile::TempDir;

use crate::client::{config, load, needs, serve};

const PATH: &str = "/v1/chat/completions";
const TEMPLATE: &str = "{% for m in messages %}{{ m.role[0] }} {{ m.content }}\n{% endfor %}\
                        {% if add_generation_prompt %}a {{ mood }}{% endif %}";

pub(crate) fn model() -> (TempDir, PathBuf) {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("model");
    copy("qwen3_moe", &dir);
    std::fs::write(dir.join("chat_template.jinja"), TEMPLATE).unwrap();
    (temp, dir)
}

/// The answer of `sws chat`.
fn expected(model: &mut LoadedModel, message: &str, options: &GenerationOptions) -> String {
    let mut conversation = model.conversation(options).unwrap();
    let answer = model.chat(&mut conversation, message).unwrap();
    answer.map(|piece| piece.unwrap().text).collect()
}

fn body(message: &str, more: Value) -> Value {
    let mut body = json!({
        "model": "gpt-any",
        "messages": [{"role": "user", "content": message}],
        "max_tokens": 8,
        "ignore_eos": true,
    });
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

#[test]
fn same_answer_as_chat() {
    let (_temp, dir) = model();
    let server = serve(&dir, 2, config());
    let mut alone = load(&dir, needs(1));
    let how = |seed: Option<u64>| GenerationOptions {
        seed,
        temperature: Some(if seed.is_none() { 0.0 } else { 1.5 }),
        max_new_tokens: Some(8),
        ignore_eos: true,
        ..Default::default()
    };
    for (seed, more) in
        [(None, json!({"temperature": 0})), (Some(4), json!({"temperature": 1.5, "seed": 4}))]
    {
        let expected = expected(&mut alone, "hello", &how(seed));
        let answer = server.ask(PATH, &body("hello", more.clone()));
        let choice = &answer["choices"][0];
        assert_eq!(choice["message"]["content"], expected.as_str());
        assert_eq!(choice["message"]["role"], "assistant");
        assert_eq!(choice["finish_reason"], "length");
        assert_eq!(answer["object"], "chat.completion");
        assert_eq!(answer["usage"]["completion_tokens"], 8);
        let mut streamed = body("hello", more);
        streamed["stream"] = true.into();
        let events = server.post(PATH, &streamed).events();
        let (first, rest) = events.split_first().unwrap();
        assert_eq!(first["choices"][0]["delta"]["role"], "assistant");
        assert!(rest.iter().all(|event| event["choices"][0]["delta"].get("role").is_none()));
        let (last, pieces) = rest.split_last().unwrap();
        assert_eq!(last["choices"][0]["delta"], json!({}));
        assert_eq!(last["choices"][0]["finish_reason"], "length");
        assert!(pieces.iter().all(|event| event["choices"][0]["finish_reason"].is_null()));
        let text = pieces.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str());
        assert_eq!(text.collect::<String>(), expected);
        assert!(events.iter().all(|e| e["id"] == first["id"] && e.get("usage").is_none()));
    }
}

#[test]
fn messages_are_rendered_with_the_template() {
    let (_temp, dir) = model();
    let server = serve(&dir, 1, config());
    let body = json!({
        "messages": [
            {"role": "developer", "content": "be kind"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null},
        ],
        "chat_template_kwargs": {"mood": "gladly"},
        "user": "someone",
    });
    let rendered = server.ask("/apply-template", &body);
    assert_eq!(rendered["prompt"], "s be kind\nu a\nb\na \na gladly");
}

#[test]
fn tokens_of_an_answer_have_probabilities() {
    let (_temp, dir) = model();
    let server = serve(&dir, 1, config());
    let more = json!({"logprobs": true, "top_logprobs": 3, "temperature": 0, "max_tokens": 4});
    let answer = server.ask(PATH, &body("hello", more));
    let tokens = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(tokens.len(), 4);
    for token in tokens {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        assert_eq!((&token["token"], &token["logprob"]), (&top[0]["token"], &top[0]["logprob"]));
    }
}

#[test]
fn what_is_known_and_not_supported_is_refused() {
    let (_temp, dir) = model();
    let server = serve(&dir, 1, config());
    let tool = json!([{"type": "function", "function": {"name": "f", "parameters": {}}}]);
    let picture = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]);
    for (more, param) in [
        (json!({"response_format": {"type": "json_object"}}), "response_format"),
        (json!({"modalities": ["audio"]}), "modalities"),
        (json!({"min_tokens": 3}), "min_tokens"),
        (json!({"typical_p": 0.5}), "typical_p"),
        (json!({"add_special_tokens": true}), "add_special_tokens"),
        (json!({"echo": true}), "echo"),
        (json!({"suffix": "x"}), "suffix"),
        (json!({"samplers": ["top_k"]}), "samplers"),
        (json!({"reasoning": {"effort": "low"}}), "reasoning"),
        (json!({"reasoning_format": "none"}), "reasoning_format"),
        (json!({"web_search_options": {}}), "web_search_options"),
        (json!({"messages": picture}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": [{"role": "narrator", "content": "a"}]}), "messages"),
        (json!({"top_logprobs": 21, "logprobs": true}), "top_logprobs"),
        (json!({"n": 0}), "n"),
        (json!({"temperature": 1000}), "temperature"),
        (json!({"top_k": -7}), "top_k"),
        (json!({"stop": vec!["a"; 17]}), "stop"),
        (json!({"chat_template_kwargs": {"messages": []}}), "chat_template_kwargs"),
    ] {
        let response = server.post(PATH, &body("hello", more));
        assert_eq!(response.status, 400, "{response:?}");
        let error = &response.json()["error"];
        assert_eq!(error["param"], param, "{error}");
        assert_eq!(error["type"], "invalid_request_error");
        assert!(response.head.contains("x-should-retry: false"), "{response:?}");
    }
    // Fields without a meaning here are ignored, and so is a choice of no tool.
    let more = json!({"tools": tool, "tool_choice": "none", "user": "x", "min_tokens": 0, "typical_p": 1, "echo": false, "add_special_tokens": false, "reasoning_format": "auto", "nonesuch": [1, {}]});
    server.ask(PATH, &body("hello", more));
    // One option has two names.
    let text = |more| server.ask(PATH, &body("hello", more))["choices"][0]["message"].take();
    let penalized = text(json!({"repetition_penalty": 5, "seed": 3, "max_tokens": 30}));
    assert_eq!(text(json!({"repeat_penalty": 5, "seed": 3, "max_tokens": 30})), penalized);
    assert_ne!(text(json!({"seed": 3, "max_tokens": 30})), penalized);
    let long = server.post(PATH, &body(&"a".repeat(400), json!({})));
    assert_eq!(long.status, 400);
    assert_eq!(long.json()["error"]["code"], "context_length_exceeded", "{long:?}");
}
