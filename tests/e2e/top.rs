//! `sws top`: a server on the terminal.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;

use serde_json::{Value, json};
use sws_testing::tales;

use crate::serve::Server;
use crate::sws::{command, sws};
use crate::terminal::{Terminal, ended};

const LEAVE: &str = "\x1b[?1049l";

#[test]
fn a_server_is_drawn_until_a_key_or_its_end() {
    let server = Server::start(&["--ram", "min", "--api-key", "secret"]);
    let url = format!("http://{}", server.client.0);
    let args: [&dyn AsRef<OsStr>; 2] = [&"top", &url];
    let watch = |terminal: &Terminal| {
        let mut command = command(&args);
        command.env("SWS_API_KEY", "secret");
        terminal.start_with_output(&mut command, Stdio::null())
    };
    let mut terminal = Terminal::of(80, 24);
    let before = terminal.modes();
    let child = watch(&terminal);
    // Blanks are not drawn over blanks.
    let shown = terminal.until("texts:");
    assert!(shown.contains("tales-moe") && shown.contains("on disk"), "{shown:?}");
    let body = json!({"prompt": "The wolf", "max_tokens": 400, "ignore_eos": true, "stream": true});
    let _text = server.client.begin_with(&body, "x-api-key: secret\r\n");
    terminal.until("/v1/completions");
    terminal.type_in(b"q");
    terminal.until(LEAVE);
    assert_eq!(ended(child).code(), Some(0));
    assert_eq!(terminal.modes(), before);

    let terminal = Terminal::of(80, 24);
    let child = watch(&terminal);
    terminal.until("texts:");
    drop(server);
    let shown = terminal.until("sws: ");
    assert!(shown.contains(LEAVE), "{shown:?}");
    let _ = ended(child);
    assert_eq!(terminal.modes(), before);
}

#[test]
fn drives_are_shown_where_there_are_several() {
    let temp = tempfile::tempdir().unwrap();
    let copy = temp.path().join("copy");
    sws(&[&"mirror", &tales(), &copy]).succeeded();
    let server = Server::start(&["--ram", "min", "--also", copy.to_str().unwrap()]);
    let url = format!("http://{}", server.client.0);
    let mut stream = TcpStream::connect(&server.client.0).unwrap();
    write!(stream, "GET /events HTTP/1.1\r\nhost: {}\r\n\r\n", server.client.0).unwrap();
    let lines = BufReader::new(stream).lines().map_while(Result::ok);
    let mut data = lines.filter_map(|line| line.strip_prefix("data: ").map(str::to_owned));
    let frame: Value = serde_json::from_str(&data.nth(1).unwrap()).unwrap();
    let drives = frame["drives"].as_array().unwrap();
    assert_eq!(drives.len(), 2, "{frame}");
    assert!(drives.iter().all(|drive| drive["left_out"] == false), "{frame}");
    assert!(drives.iter().any(|drive| drive["bytes"].as_u64() > Some(0)), "{frame}");

    let terminal = Terminal::of(80, 24);
    let mut top = command(&[&"top", &url]);
    let child = terminal.start_with_output(&mut top, Stdio::null());
    let shown = terminal.until("copy");
    assert!(shown.contains("drives") && shown.contains("own"), "{shown:?}");
    drop(server);
    terminal.until(LEAVE);
    let _ = ended(child);
}

#[test]
fn what_is_no_server_is_named() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in other.incoming() {
            let _ = stream.and_then(|mut stream| stream.write_all(b"SSH-2.0-other\r\n"));
        }
    });
    for (url, words) in [
        (
            "http://127.0.0.1:1",
            &["cannot read events from http://127.0.0.1:1", "sws serve MODEL"][..],
        ),
        ("127.0.0.1:1", &["cannot read events from 127.0.0.1:1"]),
        (&address, &["it speaks no HTTP"]),
        ("https://here", &["TLS"]),
        ("ftp://here", &["give an address such as http://127.0.0.1:8080"]),
        ("http://", &["give an address"]),
        ("http://a\nb", &["a blank or a control character"]),
    ] {
        sws(&[&"top", &url]).refused(2, words);
    }
    let server = Server::start(&["--resident", "--api-key", "secret"]);
    let url = format!("http://{}", server.client.0);
    sws(&[&"top", &url, &"--api-key", &"wrong"]).refused(2, &["the key is wrong", "SWS_API_KEY"]);
    sws(&[&"top", &url, &"--api-key", &"secret"]).refused(2, &["needs a terminal"]);
}
