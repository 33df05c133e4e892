//! `/v1/completions` gives the texts of `sws run`, alone, streamed, and beside others.

use serde_json::{Value, json};
use sws::{GenerationOptions, Model, Prompt, Request};
use sws_testing::tales;

use crate::client::{Running, config, load, needs, serve, wait_for};

const PATH: &str = "/v1/completions";

/// The text that the library makes, as `sws run` does.
fn expected(prompt: &str, options: GenerationOptions) -> (String, Vec<u32>) {
    let mut model = load(&tales(), needs(1));
    let request = Request { prompt: Prompt::Text(prompt.to_owned()), options };
    let mut text = model.generate(request).unwrap();
    text.by_ref().for_each(|piece| drop(piece.unwrap()));
    let made = text.finish();
    (made.text, made.tokens)
}

fn options(seed: Option<u64>, tokens: usize) -> GenerationOptions {
    let temperature = if seed.is_none() { Some(0.0) } else { None };
    GenerationOptions { seed, temperature, max_new_tokens: Some(tokens), ..Default::default() }
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().unwrap()
}

/// The text of a streamed answer.
fn streamed(server: &Running, mut body: Value) -> String {
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    let events = server.post(PATH, &body).events();
    let (usage, pieces) = events.split_last().unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert!(usage["usage"]["completion_tokens"].as_u64().unwrap() > 0);
    let (last, before) = pieces.split_last().unwrap();
    assert!(last["choices"][0]["finish_reason"].is_string(), "{last}");
    assert!(before.iter().all(|event| event["choices"][0]["finish_reason"].is_null()));
    assert!(pieces.iter().all(|event| event["id"] == usage["id"]));
    pieces.iter().map(text).collect()
}

#[test]
fn same_text_as_run() {
    let server = serve(&tales(), 4, config());
    for (prompt, seed, tokens) in
        [("The wolf", None, 24), ("Once upon a time", Some(7), 40), ("A cat", Some(1 << 40), 9)]
    {
        let (whole, made) = expected(prompt, options(seed, tokens));
        let mut body = json!({"model": "tales", "prompt": prompt, "max_tokens": tokens});
        match seed {
            Some(seed) => body["seed"] = seed.into(),
            None => body["temperature"] = 0.into(),
        }
        let answer = server.ask(PATH, &body);
        assert_eq!(text(&answer), whole);
        assert_eq!(answer["usage"]["completion_tokens"], made.len());
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        assert_eq!(streamed(&server, body), whole);
    }
    let (whole, _) = expected("The wolf", options(None, 24));
    let stop = whole.split(' ').nth(4).unwrap();
    let body = json!({"prompt": "The wolf", "temperature": 0, "max_tokens": 24, "stop": stop});
    let answer = server.ask(PATH, &body);
    assert_eq!(text(&answer), whole.split_once(stop).unwrap().0);
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(streamed(&server, body), text(&answer));
    server.stop().unwrap();
}

#[test]
fn several_clients_get_the_texts_that_each_gets_alone() {
    let server = serve(&tales(), 3, config());
    let prompts = ["The wolf", "Rain fell", "A cat", "Tom said: \"No!\" and", "In the old house"];
    let body = |number: usize| json!({"prompt": prompts[number], "seed": number, "max_tokens": 30});
    let alone: Vec<String> =
        (0..5).map(|number| text(&server.ask(PATH, &body(number))).to_owned()).collect();
    std::thread::scope(|scope| {
        for (number, alone) in alone.iter().enumerate() {
            let server = &server;
            scope.spawn(move || {
                for _ in 0..3 {
                    assert_eq!(text(&server.ask(PATH, &body(number))), alone);
                    assert_eq!(&streamed(server, body(number)), alone);
                }
            });
        }
    });
    // The last answer arrives before its text is taken from the count.
    wait_for(|| server.metric("sws_requests_running") == 0.0);
    assert_eq!(server.metric("sws_requests_waiting"), 0.0);
}

/// A text that goes on from an earlier one is not computed from its beginning, and has the same bits.
#[test]
fn a_continued_text_is_computed_once() {
    let server = serve(&tales(), 2, config());
    let mut text_so_far = "Once upon a time there was a wolf".to_owned();
    for turn in 0..4 {
        let body = json!({"prompt": text_so_far, "seed": turn, "max_tokens": 20});
        let answer = server.ask(PATH, &body);
        let (alone, _) = expected(&text_so_far, options(Some(turn), 20));
        assert_eq!(text(&answer), alone);
        let usage = &answer["usage"];
        let known = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        assert_eq!(known > 0, turn > 0, "{usage}");
        assert!(known < usage["prompt_tokens"].as_u64().unwrap());
        // Another text between them takes another sequence.
        server.ask(PATH, &json!({"prompt": "Rain fell", "max_tokens": 3, "seed": turn}));
        text_so_far += &format!("{alone} And then");
    }
    let body = json!({"prompt": "Zebras", "seed": 1, "max_tokens": 5});
    let answer = server.ask(PATH, &body);
    // A token that all texts begin with may be known.
    assert!(answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64() <= Some(1));
}

#[test]
fn a_request_may_have_several_texts() {
    let server = serve(&tales(), 2, config());
    let alone = |prompt: &str, seed: u64| {
        let body = json!({"prompt": prompt, "seed": seed, "max_tokens": 12});
        text(&server.ask(PATH, &body)).to_owned()
    };
    let body = json!({"prompt": ["The wolf", "A cat"], "seed": 5, "n": 2, "max_tokens": 12});
    let answer = server.ask(PATH, &body);
    let texts: Vec<_> =
        answer["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect();
    let expected =
        [alone("The wolf", 5), alone("The wolf", 6), alone("A cat", 5), alone("A cat", 6)];
    assert_eq!(texts, expected);
    // Tokens instead of text.
    let tokens = server.ask("/tokenize", &json!({"content": "The wolf", "add_special": true}));
    let body = json!({"prompt": tokens["tokens"], "seed": 5, "max_tokens": 12});
    assert_eq!(text(&server.ask(PATH, &body)), expected[0]);
    let back = server.ask("/detokenize", &json!({"tokens": tokens["tokens"]}));
    assert!(back["content"].as_str().unwrap().ends_with("The wolf"), "{back}");
}

/// As lm-evaluation-harness asks for them, and compares floats.
#[test]
fn echoed_prompts_have_the_probabilities_of_their_tokens() {
    let server = serve(&tales(), 2, config());
    let ids = Model::open(tales()).unwrap().tokenizer().unwrap().unwrap();
    let ids = ids.encode("The wolf ran into the forest and", true).unwrap();
    let body = json!({
        "prompt": [ids], "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": true,
    });
    let answer = server.ask(PATH, &body);
    let logprobs = &answer["choices"][0]["logprobs"];
    let list = |key: &str| logprobs[key].as_array().unwrap().clone();
    let (chosen, top) = (list("token_logprobs"), list("top_logprobs"));
    assert_eq!(
        (chosen.len(), top.len(), list("tokens").len()),
        (ids.len() + 1, ids.len() + 1, ids.len() + 1)
    );
    assert!(chosen[0].is_null() && top[0].is_null());
    let largest = |top: &Value| {
        let values = top.as_object().unwrap().values().map(|value| value.as_f64().unwrap());
        values.fold(f64::NEG_INFINITY, f64::max)
    };
    let mut greedy = 0;
    for (chosen, top) in chosen.iter().zip(&top).skip(1) {
        assert!(chosen.as_f64().unwrap() <= largest(top));
        greedy += usize::from(chosen.as_f64().unwrap() == largest(top));
    }
    // The last token was chosen greedily.
    assert_eq!(chosen.last().unwrap().as_f64().unwrap(), largest(top.last().unwrap()));
    assert!(greedy < ids.len(), "{logprobs}");
    // A prompt in one piece or in several, with others beside it, has the same probabilities.
    std::thread::scope(|scope| {
        let long = "The fox and the wolf went to the sea. ".repeat(20);
        let busy = json!({"prompt": long, "max_tokens": 40});
        let server = &server;
        scope.spawn(move || server.ask(PATH, &busy));
        assert_eq!(server.ask(PATH, &body)["choices"][0]["logprobs"], *logprobs);
    });
    // Without `echo` only new tokens have them.
    let body = json!({"prompt": [ids], "max_tokens": 3, "logprobs": 0, "seed": 2});
    let answer = server.ask(PATH, &body);
    let logprobs = &answer["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"].as_array().unwrap().len(), 3);
    assert_eq!(logprobs["top_logprobs"][0].as_object().unwrap().len(), 1);
}

#[test]
fn a_bias_rules_tokens_in_and_out() {
    let server = serve(&tales(), 1, config());
    let body = |bias: Value| json!({"prompt": "The", "max_tokens": 2, "temperature": 0, "logit_bias": bias, "logprobs": 0});
    let free = server.ask(PATH, &body(json!({})));
    let first = free["choices"][0]["logprobs"]["tokens"][0].as_str().unwrap();
    let ids = server.ask("/tokenize", &json!({"content": first, "with_pieces": true}));
    let id = ids["tokens"][0]["id"].to_string();
    let without = server.ask(PATH, &body(json!({id: -100})));
    assert_ne!(without["choices"][0]["text"], free["choices"][0]["text"]);
}
