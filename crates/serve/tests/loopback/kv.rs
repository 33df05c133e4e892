//! Prefixes on disk: found after a restart, by the same key, unless they are damaged.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use sws::PrefixDisk;
use sws_serve::ServerConfig;
use sws_testing::tales;

use crate::client::{Response, Running, config, serve, serve_with, wait_for};

const PATH: &str = "/v1/completions";

fn body(prompt: &str) -> Value {
    json!({"prompt": prompt, "max_tokens": 8, "seed": 5, "ignore_eos": true})
}

/// A prompt of more than a block.
fn prompt() -> String {
    "The wolf went to the river and saw a boat. ".repeat(30)
}

fn open(dir: &Path, model: &str) -> PrefixDisk {
    PrefixDisk::open(dir, 256 << 20, &[model.to_owned()], &["one".to_owned(), "two".to_owned()])
        .unwrap()
}

fn with_keys() -> ServerConfig {
    ServerConfig { keys: vec!["one".to_owned(), "two".to_owned()], ..config() }
}

fn ask(server: &Running, key: &str) -> Value {
    let body = body(&prompt()).to_string();
    let request = format!(
        "POST {PATH} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-api-key: {key}\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let response = Response::read(server.raw(&request));
    assert_eq!(response.status, 200, "{response:?}");
    response.json()
}

fn metric(server: &Running, name: &str) -> f64 {
    let body = server.get_with("/metrics", "x-api-key: one\r\n").body;
    let line = body.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} in {body}")).parse().unwrap()
}

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0)
}

#[test]
fn prefixes_are_found_after_a_restart_by_the_same_key() {
    let top = tempfile::tempdir().unwrap();
    let dir = top.path().join("kv");
    let first = {
        let server = serve_with(&tales(), 2, with_keys(), Some(open(&dir, "tales")));
        let first = ask(&server, "one");
        assert_eq!(cached(&first), 0);
        wait_for(|| metric(&server, "sws_kv_disk_files") >= 2.0);
        assert_eq!(metric(&server, "sws_kept_prefixes"), 1.0);
        server.stop().unwrap();
        first
    };
    for (key, model, found) in
        [("one", "tales", true), ("two", "tales", false), ("one", "x", false)]
    {
        let server = serve_with(&tales(), 2, with_keys(), Some(open(&dir, model)));
        let again = ask(&server, key);
        assert_eq!(again["choices"], first["choices"], "{key}, {model}");
        assert_eq!(cached(&again) >= 256, found, "{key}, {model}: {again}");
        let read = metric(&server, "sws_kv_disk_tokens_total");
        assert_eq!(read >= 256.0, found, "{key}, {model}");
        server.stop().unwrap();
    }
}

#[test]
fn damaged_prefixes_are_computed_again_and_reported() {
    let top = tempfile::tempdir().unwrap();
    let dir = top.path().join("kv");
    let server = serve_with(&tales(), 1, config(), Some(open(&dir, "tales")));
    let first = server.ask(PATH, &body(&prompt()));
    server.stop().unwrap();
    let mut damaged = 0;
    for entry in dir.read_dir().unwrap().map(Result::unwrap) {
        let mut bytes = fs::read(entry.path()).unwrap();
        if bytes.len() > 100 {
            bytes[90] ^= 4;
            fs::write(entry.path(), bytes).unwrap();
            damaged += 1;
        }
    }
    assert!(damaged >= 2, "written when the server ended");
    let lines = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&lines);
    let config = ServerConfig {
        log: Arc::new(move |line| log.lock().unwrap().push(line.to_owned())),
        ..config()
    };
    let server = serve_with(&tales(), 1, config, Some(open(&dir, "tales")));
    let again = server.ask(PATH, &body(&prompt()));
    assert_eq!(again["choices"], first["choices"]);
    assert_eq!(server.metric("sws_kv_disk_tokens_total"), 0.0);
    wait_for(|| server.metric("sws_kv_disk_faults_total") > 0.0);
    server.stop().unwrap();
    let lines = lines.lock().unwrap();
    assert!(lines.iter().any(|line| line.contains("damaged")), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("wolf")), "{lines:?}");
}

#[test]
fn without_a_disk_nothing_is_written() {
    let server = serve(&tales(), 1, config());
    server.ask(PATH, &body("The wolf"));
    assert_eq!(server.metric("sws_kv_disk_files"), 0.0);
    assert_eq!(server.metric("sws_kv_disk_written_bytes_total"), 0.0);
}
