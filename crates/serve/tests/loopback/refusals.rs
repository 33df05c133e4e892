//! Malformed and hostile requests.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use sws_format::{Clock, Manifest};
use sws_serve::{ServeError, Server, ServerConfig};
use sws_testing::{root, tales};

use crate::client::{Response, config, serve};

#[test]
fn errors_have_the_shape_of_the_interface() {
    let server = serve(&tales(), 1, config());
    let post = |path: &str, body: &str| {
        let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
        Response::read(server.raw(&format!("{head}content-length: {}\r\n\r\n{body}", body.len())))
    };
    let completions = "/v1/completions";
    let deep = format!("{{\"prompt\": {}", "[".repeat(100_000));
    for (path, body, status) in [
        (completions, "", 400),
        (completions, "{", 400),
        (completions, "[]", 400),
        (completions, "null", 400),
        (completions, "{\"prompt\": 5}", 400),
        (completions, "{\"prompt\": {}}", 400),
        (completions, "{}", 400),
        (completions, "{\"prompt\": []}", 400),
        (completions, "{\"prompt\": \"\"}", 400),
        (completions, "{\"prompt\": [4096]}", 400),
        (completions, "{\"prompt\": \"a\", \"prompt\": \"b\"}", 400),
        (completions, "{\"prompt\": \"a\", \"suffix\": \"b\"}", 400),
        (completions, "{\"prompt\": \"a\", \"best_of\": 3}", 400),
        (completions, "{\"prompt\": \"a\", \"logprobs\": 21}", 400),
        (completions, "{\"prompt\": \"a\", \"n\": 1000000}", 400),
        (completions, "{\"prompt\": \"a\", \"logit_bias\": {\"4096\": 1}}", 400),
        (completions, "{\"prompt\": \"a\", \"model\": \"nonesuch\"}", 404),
        (completions, &deep, 400),
        ("/v1/chat/completions", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}", 501),
        ("/tokenize", "{}", 400),
        ("/detokenize", "{\"tokens\": [99999]}", 400),
        ("/v1/embeddings", "{}", 501),
        ("/nonesuch", "{}", 404),
        ("/v1/models", "{}", 405),
        ("/health", "{}", 405),
    ] {
        let response = post(path, body);
        assert_eq!(response.status, status, "{path} {body:.80}: {response:?}");
        let error = &response.json()["error"];
        assert!(error["message"].is_string() && error["type"].is_string(), "{error}");
        assert!(response.head.contains("x-request-id: req-"), "{response:?}");
    }
    let message = post("/v1/completions", "{\"prompt\": \"a\", \"x_sws\": 5}").json();
    let message = message["error"]["message"].as_str().unwrap();
    assert!(message.contains("expected an object at line 1"), "{message}");
    for (path, status) in [("/v1/messages", 400), ("/v1/messages/batches", 404)] {
        let response = post(path, "{");
        assert_eq!((response.status, &response.json()["type"]), (status, &json!("error")));
        let id = response.json()["request_id"].as_str().unwrap().to_owned();
        assert!(response.head.contains(&format!("x-request-id: {id}")), "{response:?}");
    }
    let twice = "GET /v1/models HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\nconnection: close\r\n\r\n";
    assert_eq!(Response::read(server.raw(twice)).status, 400);
    assert_eq!(server.get(completions).status, 405);
    // The server is as before.
    server.ask(completions, &json!({"prompt": "a", "max_tokens": 1}));
}

#[test]
fn large_and_slow_requests_are_refused() {
    let mut config = config();
    config.limits.body = 2000;
    config.limits.header_time = Duration::from_millis(300);
    config.limits.body_time = Duration::from_millis(300);
    let server = serve(&tales(), 1, config);
    let large = json!({"prompt": "a ".repeat(1000), "max_tokens": 1});
    assert_eq!(server.post("/v1/completions", &large).status, 413);
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
    let part = format!("400\r\n{}\r\n", "a".repeat(1024)).repeat(3);
    let chunked = server.raw(&format!("{head}transfer-encoding: chunked\r\n\r\n{part}"));
    assert_eq!(Response::read(chunked).status, 413);
    // A body or a header that never comes.
    let slow = server.raw(&format!("{head}content-length: 100\r\n\r\n{{"));
    assert_eq!(Response::read(slow).status, 408);
    let idle = Response::read(server.raw("POST /v1/comp"));
    assert!(matches!(idle.status, 0 | 408), "{idle:?}");
    server.ask("/v1/completions", &json!({"prompt": "a", "max_tokens": 1}));
}

/// What the HTTP library refuses by itself, too.
#[test]
fn malformed_http_is_refused_with_a_body() {
    let server = serve(&tales(), 1, config());
    let health = |lines: &str| format!("GET /health HTTP/1.1\r\nhost: localhost\r\n{lines}\r\n");
    for (request, status, words) in [
        (health(&"x-y: z\r\n".repeat(101)), 431, "too many bytes or lines"),
        (health(&format!("x-y: {}", "z".repeat(70_000))), 431, "too many bytes or lines"),
        (health("x y\r\n"), 400, "not valid HTTP"),
        ("GET /health HTTP/3.7\r\n\r\n".to_owned(), 400, "not valid HTTP"),
        (
            "GET /v1/models/%ff HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
                .to_owned(),
            400,
            "not valid UTF-8",
        ),
        ("G\u{1}T /health HTTP/1.1\r\n\r\n".to_owned(), 400, "not valid HTTP"),
    ] {
        let response = Response::read(server.raw(&request));
        assert_eq!(response.status, status, "{request:.60}: {response:?}");
        let message = &response.json()["error"]["message"];
        assert!(message.as_str().unwrap().contains(words), "{message}");
    }
}

/// Of a request with long values and names in each field of each endpoint.
#[test]
fn refusals_are_short() {
    let server = serve(&tales(), 1, config());
    let description = server.get("/openapi.json").json();
    let long = "a".repeat(50_000);
    let (mut refused, mut longest) = (0, 0);
    let mut check = |path: &str, body: &Value| {
        let response = server.post(path, body);
        if response.status >= 400 {
            (refused, longest) = (refused + 1, longest.max(response.body.len()));
            assert!(response.body.len() < 4096, "{path} {body:.80}: {response:?}");
        }
    };
    for (path, operations) in description["paths"].as_object().unwrap() {
        let body = &operations["post"]["requestBody"]["content"]["application/json"]["schema"];
        for name in body["properties"].as_object().into_iter().flatten().map(|(name, _)| name) {
            for value in [
                json!(long),
                json!([long]),
                json!({"type": long}),
                json!({(long.as_str()): 1}),
                json!([{"type": "function", "function": {(long.as_str()): 1}}]),
                json!([{"role": long, "content": long}]),
            ] {
                let mut whole =
                    json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1});
                whole[name] = value;
                check(path, &whole);
            }
        }
        if !body.is_null() {
            check(path, &json!(long));
            check(path, &json!({(format!("guided_{long}")): "a"}));
        }
    }
    assert!(refused > 300 && longest > 200, "{refused} {longest}");
}

/// A client that sends no header is in nobody's way for long.
#[test]
fn connections_without_a_request_make_room() {
    let mut config = config();
    config.limits.connections = 4;
    let server = serve(&tales(), 1, config);
    let half: Vec<_> = (0..8).map(|_| server.raw("GET /health HTTP/1.1\r\nhost: loc")).collect();
    let clock = Clock::real();
    assert_eq!(server.get("/health").status, 200);
    assert!(clock.now() < Duration::from_secs(15), "{:?}", clock.now());
    drop(half);
}

#[test]
fn a_key_is_needed_where_there_is_one() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&lines);
    let log = move |line: &str| log.lock().unwrap().push(line.to_owned());
    let config = ServerConfig { keys: vec!["secret".to_owned()], log: Arc::new(log), ..config() };
    let server = serve(&tales(), 1, config);
    assert_eq!(server.get("/health").status, 200);
    let refused = server.get("/v1/models");
    assert_eq!(
        (refused.status, &refused.json()["error"]["type"]),
        (401, &json!("authentication_error"))
    );
    assert_eq!(server.get_with("/v1/models", "authorization: Bearer wrong\r\n").status, 401);
    for header in ["authorization: Bearer secret\r\n", "x-api-key: secret\r\n"] {
        let models = server.get_with("/v1/models", header);
        assert_eq!(models.status, 200);
        assert_eq!(models.json()["data"][0]["id"], "owner/tales");
        assert_eq!(server.get_with("/v1/models/owner/tales", header).status, 200);
        assert_eq!(server.get_with("/v1/models/nonesuch", header).status, 404);
    }
    let body = "{\"prompt\": \"The very private wolf\", \"max_tokens\": 2, \"odd_field\": 1}";
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: a\r\nx-api-key: secret\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    for _ in 0..2 {
        assert_eq!(Response::read(server.raw(&request)).status, 200);
    }
    drop(server);
    let lines = lines.lock().unwrap();
    assert!(lines.iter().all(|line| !line.contains("private") && !line.contains("secret")));
    assert_eq!(lines.iter().filter(|line| line.contains("odd_field")).count(), 1, "{lines:?}");
}

#[test]
fn strangers_are_kept_out() {
    let open = ServerConfig { address: ([0, 0, 0, 0], 0).into(), ..config() };
    assert!(matches!(Server::start(open), Err(ServeError::NoKeys(_))));
    let server = serve(&tales(), 1, config());
    let call = |host: &str, more: &str| {
        let request =
            format!("GET /v1/models HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{more}\r\n");
        Response::read(server.raw(&request)).status
    };
    assert_eq!(call("127.0.0.1", ""), 200);
    assert_eq!(call("evil.example", ""), 403);
    let absolute = "GET http://evil.example/v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    assert_eq!(Response::read(server.raw(absolute)).status, 403);
    assert_eq!(call("localhost", "origin: https://evil.example\r\n"), 403);
}

#[test]
fn pages_of_an_allowed_origin_ask_first_and_read_answers() {
    let config = ServerConfig {
        keys: vec!["secret".to_owned()],
        origins: vec!["https://chat.example".to_owned()],
        ..config()
    };
    let server = serve(&tales(), 1, config);
    let call = |method: &str, lines: &str| {
        let head = format!("{method} /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close");
        Response::read(server.raw(&format!("{head}\r\n{lines}\r\n")))
    };
    let asked =
        "access-control-request-method: POST\r\naccess-control-request-headers: authorization\r\n";
    let from = |origin: &str, lines: &str| format!("origin: {origin}\r\n{lines}");
    let told = call("OPTIONS", &from("https://chat.example", asked));
    assert_eq!(told.status, 204);
    for line in [
        "access-control-allow-origin: https://chat.example",
        "access-control-allow-headers: authorization",
        "access-control-allow-methods: get, post, delete",
        "vary: origin",
    ] {
        assert!(told.head.contains(line), "{line} in {told:?}");
    }
    let key = "authorization: Bearer secret\r\n";
    let answer = call("GET", &from("https://chat.example", key));
    assert_eq!(answer.status, 200);
    assert!(answer.head.contains("access-control-expose-headers: "), "{answer:?}");
    // A page has to be able to read why it is refused.
    let keyless = call("GET", &from("https://chat.example", ""));
    assert_eq!(keyless.status, 401);
    assert!(keyless.head.contains("access-control-allow-origin: "), "{keyless:?}");
    for refused in [
        call("OPTIONS", &from("https://evil.example", asked)),
        call("GET", &from("https://evil.example", key)),
    ] {
        assert_eq!(refused.status, 403);
        assert!(!refused.head.contains("access-control"), "{refused:?}");
    }
    let plain = call("GET", key);
    assert!(plain.status == 200 && !plain.head.contains("access-control"), "{plain:?}");
}

#[test]
fn models_properties_and_metrics_are_shown() {
    let server = serve(&tales(), 3, config());
    let props = server.get("/props").json();
    assert_eq!((&props["n_ctx"], &props["total_slots"]), (&json!(4096), &json!(3)));
    let manifest = Manifest::load(tales()).unwrap();
    let (version, short) = (env!("CARGO_PKG_VERSION"), &manifest.model.fingerprint[..16]);
    let fingerprint = format!("sws-{version}-{}-{short}", manifest.arithmetic());
    assert_eq!(props["system_fingerprint"], fingerprint);
    let models = server.get("/v1/models").json();
    assert_eq!(models["data"][0]["max_model_len"], 4096);
    assert_eq!(models["models"][0]["slug"], "owner/tales");
    let tokens = server.get("/tokenizer_info").json();
    assert!(tokens["eos_token"].is_string() && tokens["vocab_size"] == 4096, "{tokens}");
    server.ask("/v1/completions", &json!({"prompt": "a", "max_tokens": 3, "ignore_eos": true}));
    assert_eq!(server.metric("sws_generated_tokens_total"), 3.0);
    assert_eq!(server.metric("sws_time_to_first_token_seconds_count"), 1.0);
    let metrics = server.get("/metrics").body;
    assert!(
        metrics.contains("sws_requests_total{endpoint=\"/v1/completions\",status=\"200\"} 1"),
        "{metrics}"
    );

    // The dashboard asks for nothing else.
    let dashboard = std::fs::read_to_string(root().join("deploy/grafana.json")).unwrap();
    let asked = dashboard.split(|c: char| !(c.is_ascii_lowercase() || c == '_'));
    let asked: BTreeSet<_> = asked.filter(|word| word.starts_with("sws_")).collect();
    assert!(asked.len() > 12, "{asked:?}");
    let shown: BTreeSet<_> = metrics.split(['{', ' ', '\n']).collect();
    // The model streams nothing here, so it has no budget.
    let absent: Vec<_> = asked.difference(&shown).collect();
    assert_eq!(absent, [&"sws_budget_bytes"]);
}
