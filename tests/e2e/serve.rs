//! `sws serve`: the command. The crate has tests of the interfaces.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sws_testing::tales;

use crate::sws::{command, sws};

/// A client of a server at an address.
pub(crate) struct Client(pub(crate) String);

/// A running server.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) client: Client,
    /// Lines of the log so far, and to come.
    lines: Box<dyn Iterator<Item = String>>,
}

impl Server {
    pub(crate) fn start(more: &[&str]) -> Server {
        let model = tales();
        let mut args: Vec<&dyn AsRef<OsStr>> =
            vec![&"serve", &model, &"--port", &"0", &"--no-warm-start"];
        args.extend(more.iter().map(|word| word as &dyn AsRef<OsStr>));
        Server::of(&mut command(&args))
    }

    /// Starts a server, and waits until it has loaded its model.
    pub(crate) fn of(command: &mut Command) -> Server {
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let mut server = Server { child, client: Client(String::new()), lines: Box::new(lines) };
        let line = server.line("listening on http://");
        let rest = line.split("http://").nth(1).unwrap();
        server.client = Client(rest.split(';').next().unwrap().to_owned());
        server.line("ready");
        server
    }

    /// The next line with these words.
    pub(crate) fn line(&mut self, words: &str) -> String {
        let found = self.lines.by_ref().find(|line| line.contains(words));
        found.unwrap_or_else(|| panic!("no line has {words:?}"))
    }

    /// The highest number of bytes that the process has had in memory.
    pub(crate) fn peak(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let peak: u64 = peak.trim().strip_suffix(" kB").unwrap().parse().unwrap();
        peak << 10
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Client {
    fn exchange(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(&self.0).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    }

    fn call(&self, request: &str) -> String {
        let response = self.exchange(request);
        assert_eq!(response.split(' ').nth(1), Some("200"), "{response}");
        response.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    /// The status of a response.
    pub(crate) fn status(&self, path: &str) -> String {
        let response = self.exchange(&request_of(path));
        response.split(' ').nth(1).unwrap().to_owned()
    }

    /// Sends a request with further lines in its header, without waiting for the answer.
    pub(crate) fn begin_with(&self, body: &Value, lines: &str) -> TcpStream {
        let body = body.to_string();
        let mut stream = TcpStream::connect(&self.0).unwrap();
        let head = format!("POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n{lines}");
        let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    pub(crate) fn get(&self, path: &str) -> Value {
        serde_json::from_str(&self.call(&request_of(path))).unwrap()
    }

    /// The value of a metric.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let body = self.call(&request_of("/metrics"));
        let line = body.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} in {body}")).parse().unwrap()
    }

    pub(crate) fn ask(&self, body: &Value) -> Value {
        let body = body.to_string();
        // Answers that take long come in chunks in version 1.1.
        let head = "POST /v1/completions HTTP/1.0\r\nhost: localhost\r\n";
        let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
        serde_json::from_str(&self.call(&request)).unwrap()
    }
}

fn request_of(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_manager_of_services_is_told_when_requests_are_answered() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut server = command(&[&"serve", &tales(), &"--port", &"0", &"--no-warm-start"]);
    let mut server = server.env("NOTIFY_SOCKET", &path).spawn().unwrap();
    let mut message = [0; 64];
    let length = manager.recv(&mut message);
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(&message[..length.unwrap()], b"READY=1");
}

#[test]
fn answers_are_those_of_run_at_any_budget_and_stay_within_it() {
    let prompts = ["The wolf", "Once upon a time", "A cat", "Rain fell"];
    let expected: Vec<Value> = prompts
        .iter()
        .map(|prompt| {
            let args: [&dyn AsRef<OsStr>; 10] = [
                &"run",
                &tales(),
                &"--prompt",
                prompt,
                &"--seed",
                &"11",
                &"--max-new-tokens",
                &"40",
                &"--json",
                &"--no-warm-start",
            ];
            serde_json::from_str(&sws(&args).succeeded().stdout).unwrap()
        })
        .collect();
    // The least budget has no memory for forms.
    let rams =
        [(&["--ram", "min"][..], false), (&["--ram", "192MiB"], true), (&["--resident"], true)];
    for (ram, has_forms) in rams {
        let mut server = Server::start(ram);
        std::thread::scope(|scope| {
            for (prompt, expected) in prompts.iter().zip(&expected) {
                let client = &server.client;
                scope.spawn(move || {
                    for _ in 0..3 {
                        let body = json!({"prompt": prompt, "seed": 11, "max_tokens": 40});
                        let answer = client.ask(&body);
                        assert_eq!(answer["choices"][0]["text"], expected["text"]);
                    }
                });
            }
            let client = &server.client;
            scope.spawn(move || {
                let fields = [(1, "guided_json"), (2, "json_schema"), (3, "guided_json")];
                for (seed, field) in fields.into_iter().filter(|_| has_forms) {
                    let schema =
                        json!({"type": "array", "items": {"enum": ["wolf", "cat"]}, "maxItems": 4});
                    let body =
                        json!({"prompt": "A wolf", "seed": seed, "max_tokens": 60, field: schema});
                    let answer = client.ask(&body);
                    let text = answer["choices"][0]["text"].as_str().unwrap();
                    let list: Vec<String> = serde_json::from_str(text).unwrap();
                    assert!(
                        list.iter().all(|word| ["wolf", "cat"].contains(&word.as_str())),
                        "{text}"
                    );
                }
            });
        });
        if let Some(budget) = server.client.get("/props")["ram_budget_bytes"].as_u64() {
            let peak = server.peak();
            assert!(peak <= budget, "{peak} bytes of {budget}");
        }
        server.signal(Signal::TERM);
        server.line("all texts are over");
        assert_eq!(server.child.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn servers_that_strangers_could_reach_need_a_key() {
    let refused = |more: &[&str], words: &[&str]| {
        let mut args: Vec<&dyn AsRef<OsStr>> = vec![&"serve"];
        let model = tales();
        args.push(&model);
        args.extend(more.iter().map(|word| word as &dyn AsRef<OsStr>));
        sws(&args).refused(2, words);
    };
    refused(&["--listen", "0.0.0.0", "--port", "0"], &["--api-key", "--no-auth"]);
    refused(&["--api-key", "", "--port", "0"], &["key is empty"]);
    refused(&["--kv-disk", "10%", "--port", "0"], &["--kv-disk", "1MiB"]);
    let empty = tempfile::NamedTempFile::new().unwrap();
    let empty = empty.path().to_str().unwrap();
    refused(&["--api-key-file", empty, "--port", "0"], &["no keys"]);
    refused(&["--api-key-file", "/dev/null", "--port", "0"], &["not a regular file"]);
    refused(&["--api-key-file", "/nonesuch", "--port", "0"], &["cannot be read"]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    refused(&["--port", &port], &["cannot be listened on", "--port"]);
    let help = command(&[&"serve", &"--help"]).stdin(Stdio::null()).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(help.contains("--prompt-logprobs") && help.contains("SWS_API_KEY"), "{help}");
}
