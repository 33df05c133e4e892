//! What those who watch are told, and what they cost.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use sws_format::Clock;
use sws_serve::ServerConfig;
use sws_testing::tales;

use crate::cancel::{begun, long};
use crate::client::{Response, Running, config, serve, wait_for};

const PATH: &str = "/v1/completions";

/// A listener, with the events that it has read.
struct Listener(BufReader<TcpStream>);

impl Listener {
    fn begin(server: &Running, lines: &str) -> Listener {
        let stream = server.raw(&format!("GET /events HTTP/1.1\r\nhost: localhost\r\n{lines}\r\n"));
        Listener(BufReader::new(stream))
    }

    /// The name and the data of the next event. `None` once the stream has ended.
    fn next(&mut self) -> Option<(String, Value)> {
        let (mut line, mut name) = (String::new(), String::new());
        loop {
            line.clear();
            if self.0.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if let Some(named) = line.strip_prefix("event: ") {
                name = named.trim().to_owned();
            } else if let Some(data) = line.strip_prefix("data: ") {
                return Some((name, serde_json::from_str(data).unwrap()));
            }
        }
    }

    /// Frames up to one for which this holds.
    #[track_caller]
    fn until(&mut self, mut holds: impl FnMut(&Value) -> bool) -> Vec<Value> {
        let mut all = Vec::new();
        loop {
            let (name, data) = self.next().unwrap_or_else(|| panic!("it ended: {all:?}"));
            assert_eq!(name, "frame", "{data}");
            all.push(data);
            if holds(&all[all.len() - 1]) {
                return all;
            }
        }
    }
}

fn list<'v>(value: &'v Value, name: &str) -> impl Iterator<Item = &'v Value> {
    value[name].as_array().into_iter().flatten()
}

fn is_idle(frame: &Value) -> bool {
    frame["texts"] == json!([0, 0])
}

#[test]
fn events_tell_what_the_engine_does() {
    let server = serve(&tales(), 2, config());
    let mut listener = Listener::begin(&server, "");
    let (name, hello) = listener.next().unwrap();
    assert_eq!((name.as_str(), &hello["model"]), ("hello", &"owner/tales".into()));
    assert_eq!(hello["rows"].as_array().unwrap().len(), 8);
    listener.until(is_idle);
    let body = json!({"prompt": "The wolf", "seed": 3, "max_tokens": 40, "ignore_eos": true});
    let alone = server.ask(PATH, &body);
    let mut tokens = 0;
    let frames = listener.until(|frame| {
        tokens += list(frame, "tokens").count();
        is_idle(frame) && tokens == 40
    });
    let text: String = frames
        .iter()
        .flat_map(|frame| list(frame, "tokens").map(|token| token["text"].as_str().unwrap()))
        .collect();
    assert_eq!(text, alone["choices"][0]["text"], "the text of this client");
    let passes: Vec<&Value> = frames.iter().flat_map(|frame| list(frame, "passes")).collect();
    assert_eq!((&passes[0]["prompt"], &passes[1]["prompt"]), (&true.into(), &false.into()));
    // Each token but the first has a pass: through 8 layers with 4 experts each.
    assert_eq!(passes.len(), 40);
    let numbers: Vec<u64> = passes.iter().map(|pass| pass["number"].as_u64().unwrap()).collect();
    assert!(numbers.is_sorted(), "{numbers:?}");
    for pass in &passes[1..] {
        let step = &pass["step"];
        assert_eq!(step["hits"].as_u64().unwrap() + step["misses"].as_u64().unwrap(), 32);
        let [all, parts] = [&["seconds"][..], &["computing", "waiting"]]
            .map(|names| names.iter().map(|name| step[name].as_f64().unwrap()).sum::<f64>());
        assert!(all > 0.0 && parts > 0.0 && parts <= all, "{step}");
    }
    assert!(frames.iter().any(|frame| list(frame, "layers").count() == 8));
    let letters: usize = frames
        .iter()
        .flat_map(|frame| list(frame, "wall").map(|run| run[1].as_str().unwrap().len()))
        .sum();
    assert!(letters > 0);
    let mut requests = frames.iter().flat_map(|frame| list(frame, "requests"));
    assert!(requests.all(|request| request["endpoint"] == PATH && request["prompt"] == 2));
}

#[test]
fn events_come_at_most_ten_times_a_second() {
    let server = serve(&tales(), 1, config());
    let mut listener = Listener::begin(&server, "");
    listener.next().unwrap();
    let mut text = server.send(PATH, &long(true));
    begun(&mut text);
    listener.until(|frame| list(frame, "tokens").count() > 0);
    let clock = Clock::real();
    let began = clock.now();
    let mut count = 0;
    listener.until(|_| {
        count += 1;
        clock.now() - began > Duration::from_secs(2)
    });
    assert!((5..=22).contains(&count), "{count}");
}

#[test]
fn texts_of_other_keys_are_not_told() {
    let keys = ["one", "two"].map(str::to_owned).to_vec();
    let server = serve(&tales(), 2, ServerConfig { keys, ..config() });
    assert_eq!(server.get("/events").status, 401);
    let mut listeners = ["one", "two"].map(|key| {
        let mut listener = Listener::begin(&server, &format!("x-api-key: {key}\r\n"));
        listener.next().unwrap();
        listener
    });
    let body = json!({"prompt": "The wolf", "seed": 3, "max_tokens": 20, "ignore_eos": true});
    let body = body.to_string();
    let head = format!("host: localhost\r\nconnection: close\r\ncontent-length: {}", body.len());
    let request = format!("POST {PATH} HTTP/1.1\r\n{head}\r\nx-api-key: one\r\n\r\n{body}");
    assert_eq!(Response::read(server.raw(&request)).status, 200);
    let texts = listeners.each_mut().map(|listener| {
        let mut texts = Vec::new();
        listener.until(|frame| {
            assert!(!frame.to_string().contains("wolf"));
            texts.extend(list(frame, "tokens").cloned());
            texts.len() == 20
        });
        texts
    });
    assert!(texts[0].iter().all(|token| token["text"].is_string()));
    assert!(texts[1].iter().all(|token| token["text"].is_null() && token["request"].is_null()));
}

/// One that does not read costs the others nothing, and gets what is new when it reads again.
#[test]
fn slow_listeners_lose_events_and_the_server_loses_nothing() {
    let server = serve(&tales(), 1, config());
    let mut slow = Listener::begin(&server, "");
    slow.next().unwrap();
    let body = json!({"prompt": "The wolf", "seed": 3, "max_tokens": 3000, "ignore_eos": true});
    let first = server.ask(PATH, &body);
    let again = server.ask(PATH, &json!({"prompt": "Rain", "seed": 3, "max_tokens": 5}));
    assert_eq!(again["usage"]["completion_tokens"], 5);
    assert_eq!(first["usage"]["completion_tokens"], 3000);
    let mut told = 0;
    slow.until(|frame| {
        told += list(frame, "tokens").count() as u64 + frame["lost"].as_u64().unwrap_or(0);
        is_idle(frame) && told >= 3005
    });
}

#[test]
fn listeners_are_bounded_and_leave_nothing_behind() {
    let server = serve(&tales(), 1, config());
    let mut listeners: Vec<Listener> = (0..16).map(|_| Listener::begin(&server, "")).collect();
    for listener in &mut listeners {
        listener.next().unwrap();
    }
    let refused = server.get("/events");
    assert_eq!(refused.status, 429, "{refused:?}");
    drop(listeners);
    // Nobody listens: hits are no longer counted.
    wait_for(|| {
        let mut listener = Listener::begin(&server, "");
        listener.next().is_some_and(|(name, _)| name == "hello")
    });
    server.ask(PATH, &json!({"prompt": "a", "max_tokens": 3}));
    let mut listener = Listener::begin(&server, "");
    listener.next().unwrap();
    let frames = listener.until(is_idle);
    assert!(frames.iter().all(|frame| list(frame, "passes").count() == 0), "{frames:?}");
}

#[test]
fn a_server_that_ends_ends_its_events() {
    let server = serve(&tales(), 1, config());
    let mut listener = Listener::begin(&server, "");
    listener.next().unwrap();
    let clock = Clock::real();
    let began = clock.now();
    server.ask_to_stop();
    while listener.next().is_some() {}
    server.stop().unwrap();
    assert!(clock.now() - began < Duration::from_secs(4), "before the limit of the drain");
}

#[test]
fn the_page_is_public_and_loads_nothing_from_elsewhere() {
    let server = serve(&tales(), 1, ServerConfig { keys: vec!["secret".to_owned()], ..config() });
    for (path, kind, words) in [
        ("/", "text/html", "<title>SWS"),
        ("/page.css", "text/css", "--memory:"),
        ("/page.js", "text/javascript", "\"use strict\""),
    ] {
        let page = server.get(path);
        assert_eq!(page.status, 200, "{page:?}");
        assert!(page.head.contains(&format!("content-type: {kind}")), "{}", page.head);
        assert!(page.head.contains("content-security-policy: default-src 'none';"));
        assert!(page.body.contains(words), "{path}");
    }
    assert_eq!(server.get("/props").status, 401);
    // As for all else, without keys the name must be one of this server.
    let open = serve(&tales(), 1, config());
    let request = "GET / HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n";
    assert_eq!(Response::read(open.raw(request)).status, 403);
}
