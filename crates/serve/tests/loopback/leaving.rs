//! Clients that close their own direction, that leave while bytes are unread, and that never read.

use std::io::Read;
use std::net::Shutdown;
use std::time::Duration;

use serde_json::{Value, json};
use sws_serve::{ServerConfig, ServerLimits};
use sws_testing::tales;

use crate::cancel::{assert_idle, begun, long};
use crate::client::{Response, Running, config, serve, wait_for};

const PATH: &str = "/v1/completions";
const NEVER: Duration = Duration::from_secs(3600);

/// Settings of a server that shows no signs of life by itself.
fn quiet() -> ServerConfig {
    let limits = ServerLimits { heartbeat: NEVER, patience: NEVER, ..config().limits };
    ServerConfig { limits, ..config() }
}

/// More choices than any test waits for.
fn endless(stream: bool) -> Value {
    let mut body = long(stream);
    body["n"] = 100.into();
    body
}

/// Waits until a text runs.
fn wait_for_text(server: &Running) {
    let before = server.metric("sws_generated_tokens_total");
    wait_for(|| server.metric("sws_generated_tokens_total") > before);
}

#[test]
fn a_client_that_closes_its_direction_is_answered() {
    let server = serve(&tales(), 1, config());
    let body = json!({"prompt": "The wolf", "max_tokens": 40, "ignore_eos": true, "seed": 3});
    let expected = server.ask(PATH, &body)["choices"][0]["text"].clone();
    for stream in [false, true] {
        let mut body = body.clone();
        body["stream"] = stream.into();
        let client = server.send(PATH, &body);
        client.shutdown(Shutdown::Write).unwrap();
        let answer = Response::read(client);
        assert_eq!(answer.status, 200, "{answer:?}");
        let text = if stream {
            answer.texts()
        } else {
            answer.json()["choices"][0]["text"].as_str().unwrap().to_owned()
        };
        assert_eq!(text, expected);
    }
    let client = server.raw("GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n");
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(Response::read(client).status, 200);
}

/// It closes its direction while it waits, and is answered after the text before.
#[test]
fn a_client_that_closes_its_direction_waits_like_others() {
    let server = serve(&tales(), 1, quiet());
    let mut first = server.send(PATH, &endless(true));
    begun(&mut first);
    let body = json!({"prompt": "The wolf", "max_tokens": 4, "seed": 3});
    let waiting = || server.metric("sws_requests_waiting");
    wait_for(|| waiting() == 99.0);
    let clients = [false, true].map(|stream| {
        let mut body = body.clone();
        body["stream"] = stream.into();
        let client = server.send(PATH, &body);
        client.shutdown(Shutdown::Write).unwrap();
        client
    });
    wait_for(|| waiting() == 101.0);
    // A sign of life, by which the server sees that the client still reads.
    let [mut whole, streamed] = clients;
    let mut head = [0; 12];
    whole.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    assert!(waiting() > 2.0);
    drop(first);
    let mut rest = head.to_vec();
    whole.read_to_end(&mut rest).unwrap();
    let whole = Response::parse(rest).json();
    let streamed = Response::read(streamed);
    assert!(streamed.body.contains(": keep-alive\n\n"), "{streamed:?}");
    assert_eq!(whole["choices"][0]["text"], streamed.texts());
}

#[test]
fn a_client_that_leaves_with_bytes_unread_ends_its_text() {
    let server = serve(&tales(), 1, quiet());
    let body = endless(false).to_string();
    let head = format!("POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}", body.len());
    for more in ["", "\r\n", "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n", &"x".repeat(10_000)]
    {
        let client = server.raw(&format!("{head}\r\n\r\n{body}{more}"));
        wait_for_text(&server);
        drop(client);
        assert_idle(&server);
    }
}

/// It has read nothing of what was sent, so its system resets the connection.
#[test]
fn a_client_that_resets_its_connection_ends_its_text() {
    let server = serve(&tales(), 1, quiet());
    let client = server.send(PATH, &endless(true));
    wait_for_text(&server);
    drop(client);
    assert_idle(&server);
}

#[test]
fn a_client_that_reads_nothing_holds_no_place() {
    let mut config = quiet();
    config.limits.connections = 1;
    config.limits.write_time = Duration::from_millis(300);
    let server = serve(&tales(), 1, config);
    // Events of more bytes than systems hold for a client.
    let mut body = endless(true);
    body["logprobs"] = 20.into();
    let mut client = server.send(PATH, &body);
    // The only connection is free again, and the text has ended.
    assert_eq!(server.get("/health").status, 200);
    assert_idle(&server);
    let mut read = Vec::new();
    let _ = client.read_to_end(&mut read);
    assert!(!read.ends_with(b"data: [DONE]\n\n\r\n0\r\n\r\n"), "{} bytes", read.len());
}

#[test]
fn listeners_that_leave_make_room() {
    let server = serve(&tales(), 1, quiet());
    // More than may listen at once.
    for _ in 0..20 {
        wait_for(|| {
            let request = "GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n";
            let mut head = [0; 12];
            server.raw(request).read_exact(&mut head).unwrap();
            &head == b"HTTP/1.1 200"
        });
    }
}
