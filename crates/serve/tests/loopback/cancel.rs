//! A client that leaves ends its text, in each state, and no other.

use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use sws_format::Clock;
use sws_testing::tales;

use crate::client::{Response, Running, config, serve, wait_for};

const PATH: &str = "/v1/completions";
/// More tokens than any test waits for.
const MANY: usize = 3500;

pub(crate) fn long(stream: bool) -> Value {
    json!({"prompt": "The wolf", "max_tokens": MANY, "ignore_eos": true, "seed": 3, "stream": stream})
}

/// Waits for the beginning of a streamed response, and returns what has come of it.
pub(crate) fn begun(stream: &mut TcpStream) -> Vec<u8> {
    let mut seen = Vec::new();
    let mut bytes = [0; 512];
    while !String::from_utf8_lossy(&seen).contains("data: ") {
        let read = stream.read(&mut bytes).unwrap();
        assert_ne!(read, 0, "the response ended");
        seen.extend_from_slice(&bytes[..read]);
    }
    seen
}

/// Asserts that nothing is computed any more.
pub(crate) fn assert_idle(server: &Running) {
    wait_for(|| server.metric("sws_requests_running") == 0.0);
    let tokens = || server.metric("sws_tokens_total");
    let before = tokens();
    Clock::real().sleep(Duration::from_millis(200));
    assert_eq!(tokens(), before);
}

#[test]
fn a_client_that_leaves_while_it_is_answered_ends_its_text() {
    let server = serve(&tales(), 2, config());
    for stream in [true, false] {
        let before = server.metric("sws_generated_tokens_total");
        let mut body = long(stream);
        body["n"] = 20.into();
        let mut client = server.send(PATH, &body);
        match stream {
            true => drop(begun(&mut client)),
            false => wait_for(|| server.metric("sws_generated_tokens_total") > before),
        }
        drop(client);
        assert_idle(&server);
        let made = server.metric("sws_generated_tokens_total") - before;
        assert!(made < 20.0 * MANY as f64, "{made}");
    }
}

/// The same request again goes on where the text was, if nothing about it is left to chance.
#[test]
fn a_request_that_is_sent_again_costs_only_what_is_left() {
    let server = serve(&tales(), 1, config());
    let made = || server.metric("sws_generated_tokens_total");
    let chance = json!({"prompt": "The wolf", "max_tokens": 120, "ignore_eos": true});
    let mut seeded = chance.clone();
    seeded["seed"] = 3.into();
    let alone = server.ask(PATH, &seeded);
    let (before, again) = (made(), server.ask(PATH, &seeded));
    assert_eq!((made(), &again["choices"]), (before, &alone["choices"]));
    assert_eq!(again["usage"]["completion_tokens"], 120);
    server.ask(PATH, &chance);
    assert_eq!(made() - before, 120.0);

    let mut streamed = seeded.clone();
    (streamed["seed"], streamed["stream"], streamed["max_tokens"]) =
        (4.into(), true.into(), 900.into());
    let before = made();
    let mut first = server.send(PATH, &streamed);
    begun(&mut first);
    drop(first);
    assert_idle(&server);
    let whole = server.post(PATH, &streamed).texts();
    assert_eq!(made() - before, 900.0, "no token was computed twice");
    // It is kept beside other texts, and is as one that was never cut off.
    server.ask(PATH, &chance);
    assert_eq!(server.post(PATH, &streamed).texts(), whole);
    assert_eq!(made() - before, 900.0 + 120.0);
    let another = serve(&tales(), 1, config());
    assert_eq!(another.post(PATH, &streamed).texts(), whole);
    assert_eq!(another.metric("sws_generated_tokens_total"), 900.0);
}

#[test]
fn a_client_that_leaves_in_its_prompt_ends_it() {
    let server = serve(&tales(), 1, config());
    let prompt = "The wolf and the fox went to the sea. ".repeat(250);
    for stream in [true, false] {
        let before = server.metric("sws_generated_tokens_total");
        let body = json!({"prompt": prompt, "max_tokens": MANY, "stream": stream});
        let client = server.send(PATH, &body);
        wait_for(|| server.metric("sws_requests_running") > 0.0);
        drop(client);
        assert_idle(&server);
        let made = server.metric("sws_generated_tokens_total") - before;
        assert!(made < MANY as f64, "{made}");
    }
}

#[test]
fn a_client_that_leaves_the_queue_is_never_answered() {
    let server = serve(&tales(), 1, config());
    let mut endless = long(true);
    endless["n"] = 20.into();
    let mut first = server.send(PATH, &endless);
    begun(&mut first);
    let listed = || server.get("/v1/requests").json()["data"].as_array().unwrap().len();
    for stream in [true, false] {
        let second = server.send(PATH, &long(stream));
        wait_for(|| listed() == 2);
        drop(second);
        wait_for(|| listed() == 1);
    }
    // The first goes on, and no other begins after it.
    assert_eq!(server.metric("sws_requests_running"), 1.0);
    drop(first);
    assert_idle(&server);
}

#[test]
fn a_client_that_leaves_changes_no_bit_of_its_neighbour() {
    let server = serve(&tales(), 2, config());
    let body = json!({"prompt": "Rain fell", "seed": 9, "max_tokens": 60});
    let alone = server.ask(PATH, &body);
    for stream in [true, false] {
        let mut neighbour = server.send(PATH, &long(stream));
        if stream {
            begun(&mut neighbour);
        }
        let answer = server.send(PATH, &body);
        Clock::real().sleep(Duration::from_millis(30));
        drop(neighbour);
        let answer = Response::read(answer).json();
        assert_eq!(answer["choices"], alone["choices"]);
    }
    assert_idle(&server);
}

#[test]
fn requests_beyond_the_queue_are_refused_at_once() {
    let mut config = config();
    config.limits.queue = 1;
    config.limits.queue_time = Duration::from_millis(500);
    let server = serve(&tales(), 1, config);
    let mut first = server.send(PATH, &long(true));
    begun(&mut first);
    let second = server.send(PATH, &long(false));
    wait_for(|| server.metric("sws_requests_waiting") == 1.0);
    let third = server.post(PATH, &long(true));
    assert_eq!(third.status, 429, "{third:?}");
    assert_eq!(third.json()["error"]["code"], "queue_full");
    assert!(third.head.contains("retry-after: ") && third.head.contains("x-should-retry: true"));
    // The second has waited too long.
    let second = Response::read(second);
    assert_eq!(second.status, 429, "{second:?}");
    let error = &second.json()["error"];
    assert_eq!(
        (&error["type"], &error["code"]),
        (&"rate_limit_error".into(), &"queue_timeout".into())
    );
    drop(first);
    assert_idle(&server);
}

#[test]
fn a_server_that_ends_lets_texts_end_or_cuts_them_off() {
    let server = serve(&tales(), 2, config());
    let short = json!({"prompt": "The wolf", "max_tokens": 30, "seed": 3, "stream": true});
    let mut stream = server.send(PATH, &short);
    begun(&mut stream);
    server.ask_to_stop();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: [DONE]"), "{rest}");
    server.stop().unwrap();

    let mut config = config();
    config.limits.drain = Duration::from_secs(1);
    let server = serve(&tales(), 1, config);
    let mut stream = server.send(PATH, &long(true));
    begun(&mut stream);
    let waiting = server.send(PATH, &long(false));
    wait_for(|| server.metric("sws_requests_waiting") == 1.0);
    server.ask_to_stop();
    assert_eq!(Response::read(waiting).status, 503);
    // Those who come later are told, too.
    wait_for(|| server.get("/health").status == 503);
    let late = server.post(PATH, &long(false));
    assert!(late.status == 503 && late.head.contains("retry-after: "), "{late:?}");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("unavailable_error") && !rest.contains("[DONE]"), "{rest}");
    server.stop().unwrap();
}

/// A long answer that is not streamed begins with blank lines, and a prompt with comments.
#[test]
fn signs_of_life_keep_slow_answers_open() {
    let mut config = config();
    config.limits.patience = Duration::from_millis(20);
    config.limits.heartbeat = Duration::from_millis(20);
    let server = serve(&tales(), 1, config);
    let mut first = server.send(PATH, &long(true));
    begun(&mut first);
    let body = json!({"prompt": "The wolf", "max_tokens": 4, "seed": 3});
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let whole = server.send(PATH, &body);
    wait_for(|| server.metric("sws_requests_waiting") == 1.0);
    Clock::real().sleep(Duration::from_millis(200));
    drop(first);
    let whole = Response::read(whole);
    assert_eq!(whole.status, 200);
    assert!(whole.body.starts_with("\n\n"), "{whole:?}");
    let mut first = server.send(PATH, &long(true));
    begun(&mut first);
    let events = server.send(PATH, &streamed);
    Clock::real().sleep(Duration::from_millis(200));
    drop(first);
    let events = Response::read(events);
    assert!(events.body.starts_with(": keep-alive\n\n: keep-alive\n\n"), "{events:?}");
    assert_eq!(whole.json()["choices"][0]["text"], events.texts());
}
