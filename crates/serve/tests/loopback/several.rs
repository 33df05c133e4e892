//! Several models under one budget, of which one is loaded at a time.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use serde_json::{Value, json};
use sws::{Needs, PrefixDisk};
use sws_serve::{ModelNames, ServerConfig, structured};
use sws_testing::tales;

use crate::client::{Response, Running, config, serve, serve_set, wait_for};
use crate::structured::model;

const PATH: &str = "/v1/completions";
const NAMES: [&str; 2] = ["owner/tales", "tiny"];

fn config_of_two() -> ServerConfig {
    let names = |id: &str| ModelNames { id: id.to_owned(), aliases: Vec::new() };
    ServerConfig { models: NAMES.map(names).to_vec(), ..config() }
}

fn needs_of(texts: usize) -> Needs {
    Needs { texts, structured: structured(4096 + 512, texts), ..Needs::default() }
}

/// Two models of one text each at a time.
fn serve_two(tiny: &Path, config: ServerConfig) -> Running {
    serve_set(&[&tales(), tiny], needs_of(1), config, Vec::new())
}

fn body(model: &str, seed: u64) -> Value {
    let prompt = ["The wolf", "hello", "a boat"][seed as usize % 3];
    let new = 1 + seed % 20;
    json!({"model": model, "prompt": prompt, "max_tokens": new, "temperature": 1.2, "seed": seed, "ignore_eos": true, "logprobs": 1})
}

/// States of the models as `/v1/models` lists them.
fn states(server: &Running) -> Vec<String> {
    let listed = server.get("/v1/models").json();
    let data = listed["data"].as_array().unwrap().iter();
    data.map(|model| model["status"]["value"].as_str().unwrap().to_owned()).collect()
}

/// Any order of requests to any of the models, several at a time.
#[test]
fn texts_are_those_of_each_model_alone() {
    let (_temp, tiny) = model();
    let alone = [serve(&tales(), 1, config()), serve(&tiny, 1, config())];
    let mut limits = config().limits;
    limits.switch_after = Duration::from_millis(20);
    let server = serve_set(
        &[&tales(), &tiny],
        needs_of(2),
        ServerConfig { limits, ..config_of_two() },
        Vec::new(),
    );
    let ask = |client: u64| {
        let mut state = client + 1;
        for _ in 0..12 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let random = state >> 33;
            let which = usize::from(!random.is_multiple_of(3));
            let mut body = body(NAMES[which], random % 1000);
            if random.is_multiple_of(5) {
                body["guided_regex"] = "[a-z]{3,9}".into();
            }
            let found = server.ask(PATH, &body);
            assert_eq!(found["model"], NAMES[which]);
            body["model"] = Value::Null;
            let expected = alone[which].ask(PATH, &body);
            assert_eq!(found["choices"], expected["choices"], "{body}");
            assert_eq!(found["system_fingerprint"], expected["system_fingerprint"]);
        }
    };
    std::thread::scope(|scope| {
        for client in 0..4 {
            scope.spawn(move || ask(client));
        }
    });
    let loads = server.metric("sws_model_loads_total");
    assert!(loads >= 3.0, "{loads}");
    // All have the whole budget.
    for name in NAMES {
        let props = server.get(&format!("/props?model={name}")).json();
        assert_eq!(props["ram_budget_bytes"], 2_u64 << 30);
    }
}

#[test]
fn facts_name_all_models_and_which_is_loaded() {
    let (_temp, tiny) = model();
    let server = serve_two(&tiny, config_of_two());
    assert_eq!(states(&server), ["loaded", "unloaded"]);
    for (query, id, is_loaded) in [
        ("", "owner/tales", true),
        ("?model=tales", "owner/tales", true),
        ("?model=owner%2Ftales", "owner/tales", true),
        ("?a=b&model=tiny", "tiny", false),
    ] {
        let props = server.get(&format!("/props{query}")).json();
        assert_eq!((&props["model"], &props["is_loaded"]), (&json!(id), &json!(is_loaded)));
        assert_eq!(props["models"], json!(NAMES));
    }
    let tiny_vocab = server.get("/tokenizer_info?model=tiny").json()["vocab_size"].clone();
    assert_ne!(server.get("/tokenizer_info").json()["vocab_size"], tiny_vocab);
    assert_eq!(server.get("/v1/models/tiny").json()["meta"]["n_vocab"], tiny_vocab);
    let count = |model: &str| {
        server.ask("/tokenize", &json!({"model": model, "content": "The wolf"}))["count"].clone()
    };
    assert_ne!(count("tales"), count("tiny"));
    let names = |path: &str| -> Vec<Value> {
        let models = server.get(path).json()["models"].clone();
        models.as_array().unwrap().iter().map(|model| model["model"].clone()).collect()
    };
    assert_eq!(
        (names("/api/tags"), names("/api/ps")),
        (NAMES.map(Value::from).to_vec(), vec![json!("owner/tales")])
    );
    for (path, body) in [
        (PATH, json!({"model": "other", "prompt": "a"})),
        ("/api/show", json!({"name": "other"})),
        ("/api/chat", json!({"model": "other", "messages": []})),
        ("/tokenize", json!({"model": "other", "content": "a"})),
    ] {
        let refused = server.post(path, &body);
        assert_eq!(refused.status, 404, "{path}: {refused:?}");
        assert!(refused.body.contains("no model `other` here; there is owner/tales, tiny"));
    }
    let refused = server.get("/props?model=other");
    assert!(refused.status == 404 && refused.body.contains("owner/tales, tiny"), "{refused:?}");
    // Requests that cannot be read, or that name none, are for the first.
    assert_eq!(server.post(PATH, &json!({"model": 7, "prompt": "a"})).status, 400);
    let first = server.ask(PATH, &json!({"prompt": "a", "max_tokens": 1}));
    assert_eq!(
        (&first["model"], states(&server)),
        (&json!("owner/tales"), vec!["loaded".to_owned(), "unloaded".to_owned()])
    );
    // A stream begins before its model is loaded.
    let mut streamed = body("tiny", 4);
    streamed["stream"] = true.into();
    let streamed = server.post(PATH, &streamed);
    let texts = streamed.texts();
    assert_eq!(texts, server.ask(PATH, &body("tiny", 4))["choices"][0]["text"]);
    assert_eq!(states(&server), ["unloaded", "loaded"]);
    let metrics = server.get("/metrics").body;
    for line in [
        "sws_model_loaded{model=\"owner/tales\"} 0",
        "sws_model_loaded{model=\"tiny\"} 1",
        "sws_model_loads_total 2",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} in {metrics}");
    }
    assert!(metrics.contains("\nsws_tokens_total{model=\"tiny\"} "), "{metrics}");
}

#[test]
fn a_model_that_cannot_be_read_fails_its_own_requests_only() {
    let (_temp, tiny) = model();
    let server = serve_two(&tiny, config_of_two());
    let expected = server.ask(PATH, &body("tiny", 5))["choices"].clone();
    server.ask(PATH, &body("tales", 5));
    let weights = tiny.join("model.safetensors");
    let whole = fs::read(&weights).unwrap();
    fs::write(&weights, &whole[..whole.len() / 2]).unwrap();
    let failed = server.post(PATH, &body("tiny", 5));
    assert_eq!(failed.status, 500, "{failed:?}");
    assert!(failed.body.contains("the model `tiny` cannot be loaded: "), "{failed:?}");
    server.ask(PATH, &body("tales", 6));
    assert_eq!(states(&server), ["loaded", "unloaded"]);
    fs::write(&weights, &whole).unwrap();
    assert_eq!(server.ask(PATH, &body("tiny", 5))["choices"], expected);
}

#[test]
fn clients_of_ollama_load_and_unload() {
    let (_temp, tiny) = model();
    let server = serve_two(&tiny, config_of_two());
    let ask = |more: Value| {
        let mut body = json!({"model": "tiny", "stream": false});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.ask("/api/generate", &body)
    };
    let loaded = ask(json!({}));
    assert_eq!((&loaded["done_reason"], &loaded["model"]), (&json!("load"), &json!("tiny")));
    wait_for(|| states(&server) == ["unloaded", "loaded"]);
    let forever = server.get("/api/ps").json()["models"][0]["expires_at"].clone();
    assert_eq!(forever, "9999-12-31T23:59:59Z");
    let options = json!({"num_predict": 3});
    let answer =
        ask(json!({"prompt": "hello", "raw": true, "options": options, "keep_alive": "10m"}));
    assert!(answer["done"].as_bool().unwrap());
    let ends = server.get("/api/ps").json()["models"][0]["expires_at"].clone();
    assert!(ends.as_str().unwrap() < "9", "{ends}");
    let unloaded = ask(json!({"keep_alive": 0}));
    assert_eq!(unloaded["done_reason"], "unload");
    wait_for(|| states(&server) == ["unloaded", "unloaded"]);
    assert_eq!(server.get("/api/ps").json()["models"], json!([]));
    // What was asked for is over with it.
    ask(json!({"prompt": "hello", "raw": true, "options": options}));
    assert_eq!(server.get("/api/ps").json()["models"][0]["expires_at"], forever);
    ask(json!({"prompt": "hello", "raw": true, "options": options, "keep_alive": "0s"}));
    wait_for(|| states(&server) == ["unloaded", "unloaded"]);
    // The time of a text that waits counts once it begins, or its model might be closed before.
    let mut long = body("tales", 0);
    long["max_tokens"] = 400.into();
    let running = server.send(PATH, &long);
    let listed = || server.get("/v1/requests").json()["data"].as_array().unwrap().len();
    wait_for(|| states(&server) == ["loaded", "unloaded"] && listed() == 1);
    let waiting = json!({"model": "tales", "prompt": "hello", "raw": true, "keep_alive": "10m"});
    let waiting = server.send("/api/generate", &waiting);
    wait_for(|| listed() == 2);
    assert_eq!(server.get("/api/ps").json()["models"][0]["expires_at"], forever);
    drop(running);
    wait_for(|| server.get("/api/ps").json()["models"][0]["expires_at"] != forever);
    drop(waiting);
    let refused = server.post("/api/generate", &json!({"model": "tiny", "keep_alive": "soon"}));
    assert!(refused.status == 400 && refused.body.contains("such as 5m"), "{refused:?}");
}

/// A model that is asked for while it is closed, as its time is over, is loaded again for the time that
/// the client asked for.
#[test]
fn the_time_of_a_model_that_is_loaded_again_counts() {
    let (_temp, tiny) = model();
    let address = Arc::new(OnceLock::new());
    let asks = Arc::clone(&address);
    // The worker writes this line between its decision to close the model and the end of the model.
    let log = move |line: &str| {
        if line.starts_with("`owner/tales` is closed")
            && let Some(address) = asks.get()
        {
            let body = json!({"model": "tales", "keep_alive": "10m"}).to_string();
            let head = "POST /api/generate HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
            let mut stream = TcpStream::connect(address).unwrap();
            write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
            assert_eq!(Response::read(stream).status, 200);
        }
    };
    let server = serve_two(&tiny, ServerConfig { log: Arc::new(log), ..config_of_two() });
    address.set(server.address).unwrap();
    server.ask("/api/generate", &json!({"model": "tales", "keep_alive": 0}));
    wait_for(|| server.metric("sws_model_loads_total") == 2.0);
    wait_for(|| states(&server) == ["loaded", "unloaded"]);
    let ends = server.get("/api/ps").json()["models"][0]["expires_at"].clone();
    assert!(ends.as_str().unwrap() < "9", "{ends}");
}

/// With one text at a time, the order in which requests are answered.
#[test]
fn a_model_lets_others_in_once_its_turn_is_over() {
    let (_temp, tiny) = model();
    for (switch_after, expected) in [
        (Duration::ZERO, ["tales", "tiny", "tales"]),
        (Duration::from_secs(3600), ["tales", "tales", "tiny"]),
    ] {
        let limits = sws_serve::ServerLimits { switch_after, ..config().limits };
        let server = serve_two(&tiny, ServerConfig { limits, ..config_of_two() });
        let ended = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for (number, model) in ["tales", "tiny", "tales"].into_iter().enumerate() {
                let mut body = body(model, 1);
                body["max_tokens"] = if number == 0 { 400 } else { 2 }.into();
                let (server, ended) = (&server, &ended);
                scope.spawn(move || {
                    server.ask(PATH, &body);
                    ended.lock().unwrap().push(model);
                });
                let listed = || server.get("/v1/requests").json()["data"].as_array().unwrap().len();
                wait_for(|| listed() > number || !ended.lock().unwrap().is_empty());
            }
        });
        assert_eq!(*ended.lock().unwrap(), expected, "{switch_after:?}");
    }
}

#[test]
fn prefixes_of_a_closed_model_are_on_disk() {
    let (temp, tiny) = model();
    let disk = |name: &str| {
        let dir = temp.path().join(name);
        Some(PrefixDisk::open(&dir, 64 << 20, &[name.to_owned()], &[]).unwrap())
    };
    let disks = vec![disk("kv-tales"), disk("kv-tiny")];
    let server = serve_set(&[&tales(), &tiny], needs_of(1), config_of_two(), disks);
    let prompt = "The wolf went to the river and saw a boat. ".repeat(30);
    let body =
        json!({"model": "tales", "prompt": prompt, "max_tokens": 8, "seed": 5, "ignore_eos": true});
    let cached = |answer: &Value| {
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0)
    };
    let first = server.ask(PATH, &body);
    assert_eq!(cached(&first), 0);
    for _ in 0..2 {
        server.ask(PATH, &self::body("tiny", 3));
        let again = server.ask(PATH, &body);
        assert_eq!(again["choices"], first["choices"]);
        assert!(cached(&again) >= 256, "{again}");
    }
}

#[test]
fn a_server_ends_while_a_model_is_wanted() {
    let (_temp, tiny) = model();
    let server = serve_two(&tiny, config_of_two());
    server.ask("/api/generate", &json!({"model": "tales", "keep_alive": 0}));
    wait_for(|| states(&server) == ["unloaded", "unloaded"]);
    server.stop().unwrap();
    let server = serve_two(&tiny, config_of_two());
    let waiting = server.send(PATH, &body("tiny", 3));
    server.stop().unwrap();
    drop(waiting);
}

#[test]
fn events_greet_again_with_another_model() {
    let (_temp, tiny) = model();
    let server = serve_two(&tiny, config_of_two());
    let request = "GET /events HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    // What came together with the words that were waited for is kept.
    let heard = |stream: &mut TcpStream, rest: &mut Vec<u8>, words: &str| {
        loop {
            let text = String::from_utf8_lossy(rest).into_owned();
            if let Some((_, behind)) = text.split_once(words) {
                *rest = behind.as_bytes().to_vec();
                return;
            }
            let mut part = [0; 4096];
            let read = stream.read(&mut part).unwrap();
            assert!(read > 0, "no {words} in {text}");
            rest.extend(&part[..read]);
        }
    };
    let mut listening = server.raw(request);
    let mut rest = Vec::new();
    heard(&mut listening, &mut rest, "\"model\":\"owner/tales\"");
    server.ask(PATH, &body("tiny", 3));
    heard(&mut listening, &mut rest, "\"model\":\"tiny\"");
    heard(&mut listening, &mut rest, "event: frame");
    heard(&mut server.raw(request), &mut Vec::new(), "\"model\":\"tiny\"");
}
