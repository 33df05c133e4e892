//! Cases of llama.cpp's server tests that no other module has. `tests/README.md` lists all of them.

use serde_json::{Value, json};
use sws_testing::tales;

use crate::chats::model;
use crate::client::{config, serve};

const COMPLETIONS: &str = "/v1/completions";
const CHATS: &str = "/v1/chat/completions";

fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().unwrap()
}

#[test]
fn the_same_seed_gives_the_same_text_and_others_differ() {
    for texts in [1, 2] {
        let server = serve(&tales(), texts, config());
        let ask = |seed: u64, more: Value| {
            let mut body =
                json!({"prompt": "The meaning of life is", "seed": seed, "max_tokens": 16});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            text(&server.ask(COMPLETIONS, &body)).to_owned()
        };
        let drawn: Vec<String> = (0..4).map(|seed| ask(seed, json!({"temperature": 1}))).collect();
        for (seed, text) in (0..).zip(&drawn) {
            assert_eq!(ask(seed, json!({"temperature": 1})), *text);
            assert!(drawn.iter().filter(|other| *other == text).count() == 1, "{drawn:?}");
        }
        let greedy = ask(42, json!({"temperature": 0}));
        assert!((0..3).all(|seed| ask(seed, json!({"temperature": 0})) == greedy));
    }
}

#[test]
fn tokens_have_pieces_and_texts_come_back() {
    let server = serve(&tales(), 1, config());
    let content = "A wolf with unicode 媽 and an emoji 🤗";
    let tokenize = |more: Value| {
        let mut body = json!({"content": content});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.ask("/tokenize", &body)["tokens"].as_array().unwrap().clone()
    };
    let ids = tokenize(json!({}));
    let back = server.ask("/detokenize", &json!({"tokens": ids}));
    assert_eq!(back["content"], content);
    let pieces = tokenize(json!({"with_pieces": true}));
    assert_eq!(pieces.iter().map(|piece| piece["id"].clone()).collect::<Vec<_>>(), ids);
    assert!(
        pieces.iter().all(|piece| piece["piece"].as_str().is_some_and(|text| !text.is_empty()))
    );
    let special = tokenize(json!({"add_special": true}));
    assert!(special.ends_with(&ids) && special.len() <= ids.len() + 1, "{special:?}");
}

#[test]
fn streams_have_probabilities_of_all_their_text() {
    let (_temp, dir) = model();
    let server = serve(&dir, 1, config());
    let body = json!({
        "messages": [{"role": "user", "content": "what is the best book"}],
        "max_tokens": 5, "temperature": 0, "logprobs": true, "top_logprobs": 10,
        "ignore_eos": true, "stream": true,
    });
    let events = server.post(CHATS, &body).events();
    let (first, rest) = events.split_first().unwrap();
    assert_eq!(first["choices"][0]["delta"]["role"], "assistant");
    let (mut written, mut named, mut tokens) = (String::new(), String::new(), 0);
    for choice in rest.iter().map(|event| &event["choices"][0]) {
        written += choice["delta"]["content"].as_str().unwrap_or_default();
        for token in choice["logprobs"]["content"].as_array().into_iter().flatten() {
            tokens += 1;
            named += token["token"].as_str().unwrap();
            assert!(token["logprob"].as_f64().unwrap() <= 0.0 && token["bytes"].is_array());
            assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 10);
        }
    }
    assert_eq!((written, tokens), (named, 5));
}

#[test]
fn prompts_that_are_too_long_are_refused_before_a_stream_begins() {
    let (_temp, dir) = model();
    let server = serve(&dir, 1, config());
    let turn = json!({"role": "user", "content": "what is the best book"});
    for stream in [false, true] {
        let body = json!({"messages": vec![turn.clone(); 100], "stream": stream});
        let refused = server.post(CHATS, &body);
        assert_eq!(refused.status, 400, "{refused:?}");
        let error = &refused.json()["error"];
        assert_eq!(error["code"], "context_length_exceeded");
        // How long it is, and what there is room for.
        assert!(error["message"].as_str().unwrap().contains("256"), "{error}");
    }
    // A text that fills the context ends.
    let body = json!({"messages": [turn], "ignore_eos": true, "seed": 1});
    let answer = server.ask(CHATS, &body);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    // Its last token is chosen, and not computed.
    assert_eq!(answer["usage"]["total_tokens"], 257);
}

#[test]
fn messages_that_are_none_are_refused() {
    let (_temp, dir) = model();
    let server = serve(&dir, 1, config());
    for messages in [
        json!(null),
        json!("string"),
        json!([123]),
        json!([{}]),
        json!([{"role": 123}]),
        json!([{"role": "system", "content": 123}]),
        json!([{"content": "hello"}]),
        json!([{"role": "system", "content": "test"}, {}]),
    ] {
        let refused = server.post(CHATS, &json!({"messages": messages, "max_tokens": 1}));
        assert_eq!(refused.status, 400, "{messages}: {refused:?}");
        assert!(refused.json()["error"]["message"].is_string());
    }
    assert_eq!(server.post("/v1/messages", &json!({"max_tokens": 5})).status, 400);
}

#[test]
fn streams_tell_the_progress_of_the_prompt_and_their_times() {
    let server = serve(&tales(), 1, config());
    // Long enough for several parts.
    let prompt = "The wolf went to the river and saw a boat. ".repeat(60);
    let body = json!({
        "prompt": prompt, "max_tokens": 4, "ignore_eos": true, "stream": true,
        "stream_options": {"include_usage": true},
    });
    let events = server.post(COMPLETIONS, &body).events();
    let timings = &events[events.len() - 1]["timings"];
    assert_eq!(timings["predicted_n"], 4);
    assert!(timings["prompt_per_second"].as_f64().unwrap() > 0.0, "{timings}");
    assert!(timings["predicted_per_second"].as_f64().unwrap() > 0.0, "{timings}");

    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("model");
    sws_testing::goldens::copy("qwen3_moe", &dir);
    std::fs::write(dir.join("chat_template.jinja"), "{{ messages[0].content }}").unwrap();
    sws_testing::goldens::change(&dir, "config.json", |json| {
        json["max_position_embeddings"] = 2048.into();
    });
    let server = serve(&dir, 1, config());
    let content = "this is a test ".repeat(60);
    let body = json!({
        "messages": [{"role": "user", "content": content}], "max_tokens": 2, "seed": 1,
        "ignore_eos": true, "stream": true, "return_progress": true,
    });
    for is_again in [false, true] {
        let events = server.post(CHATS, &body).events();
        let told = events.iter().map(|event| &event["prompt_progress"]);
        let told: Vec<[u64; 3]> = told
            .filter(|progress| progress.is_object())
            .map(|p| ["total", "cache", "processed"].map(|name| p[name].as_u64().unwrap()))
            .collect();
        let [total, known, done] = *told.last().unwrap();
        assert_eq!((total, done), (900, 900));
        assert!(told.iter().all(|&[of, cache, _]| of == total && cache == known), "{told:?}");
        assert!(told.windows(2).all(|two| two[0][2] < two[1][2]), "{told:?}");
        assert_eq!((known > 0, told.len() > 1), (is_again, !is_again), "{told:?}");
    }
}

#[test]
fn the_interfaces_of_openai_and_anthropic_do_not_mix() {
    let (_temp, dir) = model();
    let server = serve(&dir, 1, config());
    let body = json!({
        "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5, "seed": 1,
        "ignore_eos": true, "metadata": {"user_id": "someone"}, "top_p": 0.9, "top_k": 40,
        "thinking": {"type": "enabled", "budget_tokens": 50}, "stop_sequences": ["END"],
    });
    let chat = server.ask(CHATS, &json!({"messages": body["messages"], "max_tokens": 5}));
    let message = server.ask("/v1/messages", &body);
    assert_eq!((&chat["object"], &chat["type"]), (&json!("chat.completion"), &Value::Null));
    assert_eq!((&message["type"], &message["object"]), (&json!("message"), &Value::Null));
    assert_eq!(message["stop_reason"], "max_tokens");
    assert_eq!(message["usage"]["output_tokens"], 5);
    assert!(
        message["usage"].get("completion_tokens").is_none() && message.get("timings").is_none()
    );
    let count = server.ask("/v1/messages/count_tokens", &json!({"messages": body["messages"]}));
    assert_eq!(count.as_object().unwrap().keys().collect::<Vec<_>>(), ["input_tokens"]);
}

/// The pairs of tokens that come more than once.
fn repeated(answer: &Value) -> usize {
    let tokens = answer["choices"][0]["logprobs"]["tokens"].as_array().unwrap();
    let pairs: Vec<&[Value]> = tokens.windows(2).collect();
    let again = |(at, pair): (usize, &&[Value])| pairs[..at].contains(pair);
    pairs.iter().enumerate().filter(|pair| again(*pair)).count()
}

#[test]
fn repetitions_are_penalised_by_dry() {
    let server = serve(&tales(), 1, config());
    let ask = |more: Value| {
        let mut body =
            json!({"prompt": "The wolf", "temperature": 0, "max_tokens": 120, "logprobs": 0});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post(COMPLETIONS, &body)
    };
    let plain = ask(json!({})).json();
    assert!(repeated(&plain) > 0, "{plain}");
    let dry = json!({"dry_multiplier": 100, "dry_allowed_length": 1, "dry_sequence_breakers": []});
    assert_eq!(repeated(&ask(dry).json()), 0);
    assert_eq!(text(&ask(json!({"dry_multiplier": 0, "dry_base": 2})).json()), text(&plain));
    for (more, param) in [
        (json!({"dry_multiplier": -1}), "dry_multiplier"),
        (json!({"dry_base": 0.5}), "dry_base"),
        (json!({"dry_allowed_length": -1}), "dry_allowed_length"),
        (json!({"dry_penalty_last_n": -2}), "dry_penalty_last_n"),
        (json!({"dry_sequence_breakers": [""]}), "dry_sequence_breakers"),
        (json!({"dry_multiplier": 1, "x_sws": {"certificate": true}}), "x_sws"),
    ] {
        let response = ask(more);
        assert_eq!((response.status, &response.json()["error"]["param"]), (400, &json!(param)));
    }
}
