//! Texts between a prefix and a suffix.

use std::path::PathBuf;

use serde_json::{Value, json};
use sws_testing::goldens::change;
use tempfile::TempDir;

use crate::chats;
use crate::client::{Running, config, serve};

const MARKS: [&str; 3] = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"];

/// The model of the chats, with tokens to fill in.
fn model() -> (TempDir, PathBuf) {
    let (temp, dir) = chats::model();
    change(&dir, "tokenizer.json", |json| {
        for (id, mark) in (40..).zip(MARKS) {
            let vocab = json["model"]["vocab"].as_object_mut().unwrap();
            vocab.retain(|_, known| *known != id);
            vocab.insert(mark.to_owned(), id.into());
            json["added_tokens"].as_array_mut().unwrap().push(json!({
                "id": id, "content": mark, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            }));
        }
    });
    (temp, dir)
}

fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The text of a completion with all tokens in the prompt.
fn expected(server: &Running, prompt: &str) -> String {
    let body =
        json!({"prompt": prompt, "max_tokens": 6, "temperature": 0, "add_special_tokens": false});
    server.ask("/v1/completions", &body)["choices"][0]["text"].as_str().unwrap().to_owned()
}

#[test]
fn prompts_have_the_tokens_of_the_model() {
    let (_temp, dir) = model();
    let server = serve(&dir, 1, config());
    let whole = expected(&server, "<fim_prefix>abe<fim_suffix>cd<fim_middle>");
    let options = json!({"n_predict": 6, "temperature": 0});
    let body = json!({
        "input_prefix": "ab", "prompt": "e", "input_suffix": "cd", "samplers": ["top_k", "infill"],
    });
    let body = with(options.clone(), body);
    let answer = server.ask("/infill", &body);
    assert_eq!(answer["content"], whole);
    assert_eq!((&answer["stop"], &answer["stop_type"]), (&json!(true), &json!("limit")));
    assert_eq!((&answer["tokens_evaluated"], &answer["tokens_predicted"]), (&json!(8), &json!(6)));
    // llama.cpp's streams end without a mark.
    let stream = server.post("/infill", &with(body, json!({"stream": true})));
    let events = stream.body.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = events.map(|event| serde_json::from_str(event).unwrap()).collect();
    let streamed: String = events.iter().map(|event| event["content"].as_str().unwrap()).collect();
    assert_eq!(streamed, whole);
    assert!(events.last().unwrap()["stop"] == true && events[0]["stop"] == false);
    // The same in the other interfaces.
    let body = with(options.clone(), json!({"prompt": "abe", "suffix": "cd"}));
    assert_eq!(server.ask("/v1/completions", &body)["choices"][0]["text"], whole);
    let options = json!({"num_predict": 6, "temperature": 0});
    let body = json!({"model": "tales", "prompt": "abe", "suffix": "cd", "stream": false, "options": options});
    assert_eq!(server.ask("/api/generate", &body)["response"], whole);
    // Files come first.
    let whole =
        expected(&server, "\n\n--- snippet ---\n\nfile<fim_prefix>ab<fim_suffix>cd<fim_middle>");
    let extra = json!([{"text": "file", "filename": "name"}]);
    let body = json!({"input_prefix": "ab", "input_suffix": "cd", "input_extra": extra, "n_predict": 6, "temperature": 0});
    assert_eq!(server.ask("/infill", &body)["content"], whole);
    for extra in [
        json!({}),
        json!({"filename": "a"}),
        json!({"filename": 3, "text": "a"}),
        json!({"text": 3}),
    ] {
        let body = json!({"input_prefix": "ab", "input_suffix": "cd", "input_extra": [extra]});
        assert_eq!(server.post("/infill", &body).status, 400, "{body}");
    }
    for body in [
        json!({"input_prefix": "a"}),
        json!({"input_suffix": "a"}),
        json!({"input_prefix": "a", "input_suffix": "b", "n": 2}),
    ] {
        assert_eq!(server.post("/infill", &body).status, 400, "{body}");
    }
    // The text after a prompt.
    let body = json!({"prompt": "ab", "n_predict": 6, "temperature": 0, "cache_prompt": true});
    let whole = expected(&server, "ab");
    assert_eq!(server.ask("/completion", &body)["content"], whole);
    let body = json!({"prompt": ["a", "b"]});
    assert_eq!(server.post("/completion", &body).status, 400);
    let body = json!({"prompt": [1, 2], "suffix": "cd"});
    assert_eq!(server.post("/v1/completions", &body).status, 400);
}

#[test]
fn a_model_without_such_tokens_says_so() {
    let (_temp, dir) = chats::model();
    let server = serve(&dir, 1, config());
    for (path, body) in [
        ("/infill", json!({"input_prefix": "a", "input_suffix": "b"})),
        ("/v1/completions", json!({"prompt": "a", "suffix": "b"})),
    ] {
        let response = server.post(path, &body);
        assert_eq!(response.status, 400, "{response:?}");
        let message = response.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains("vocabulary has no tokens"), "{message}");
    }
}
