//! Memory of a server for structured output: lent to experts, and within the budget of a control group
//! that kills.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use sws_format::Clock;
use sws_testing::{cgroup, is_night, tales};

use crate::serve::{Client, Server};
use crate::sws::{command, sws};

const LENT: &str = "sws_forms_lent_bytes";

/// The number of MiB that a sentence tells to give.
fn ram(told: &str) -> u64 {
    let number = told.split("--ram ").find_map(|rest| rest.split_once("MiB")?.0.parse().ok());
    number.unwrap_or_else(|| panic!("no budget in {told}"))
}

/// A server with a budget in MiB, in a control group that kills above it if there can be one.
struct Limited {
    server: Server,
    group: Option<cgroup::Group>,
    bytes: u64,
}

impl Limited {
    fn start(name: &str, mib: u64) -> Limited {
        let bytes = mib << 20;
        let group = cgroup::Group::new(name, bytes);
        let group =
            group.inspect_err(|e| eprintln!("no control group can be made here ({e})")).ok();
        let budget = format!("{mib}MiB");
        let model = tales();
        let args: [&dyn AsRef<OsStr>; 7] =
            [&"serve", &model, &"--ram", &budget, &"--port", &"0", &"--no-warm-start"];
        let plain = command(&args);
        let server = match &group {
            None => Server::of(&mut { plain }),
            Some(group) => {
                let mut limited: Command = group.command(plain.get_program());
                limited.args(plain.get_args()).stdin(Stdio::null()).stderr(Stdio::piped());
                for (name, value) in plain.get_envs() {
                    match value {
                        Some(value) => limited.env(name, value),
                        None => limited.env_remove(name),
                    };
                }
                Server::of(&mut limited)
            }
        };
        Limited { server, group, bytes }
    }

    fn client(&self) -> &Client {
        &self.server.client
    }

    /// Ends the server, which has not been killed and has stayed within its budget.
    fn end(mut self) {
        assert!(self.server.child.try_wait().unwrap().is_none(), "the server was killed");
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.server.child.id()));
        let status = status.unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let peak: u64 = peak.trim().strip_suffix(" kB").unwrap().parse().unwrap();
        assert!(peak << 10 <= self.bytes, "{peak} KiB of {}", self.bytes);
        let charged = self.group.as_ref().map(|group| group.peak().unwrap());
        assert!(charged.is_none_or(|peak| peak <= self.bytes));
        eprintln!("{peak} KiB resident and {charged:?} bytes charged of {}", self.bytes);
    }
}

/// The status and body of an answer.
fn post(client: &Client, body: &Value) -> (u16, Value) {
    let body = body.to_string();
    let mut stream = TcpStream::connect(&client.0).unwrap();
    let head = "POST /v1/completions HTTP/1.0\r\nhost: localhost\r\n";
    write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap())
}

const PROMPTS: [&str; 3] = ["The wolf", "Once upon a time", "Rain fell"];

fn plain(prompt: &str) -> Value {
    json!({"prompt": prompt, "seed": 11, "max_tokens": 30})
}

fn structured_output(seed: u64) -> Value {
    let schema =
        json!({"type": "array", "items": {"enum": ["wolf", "cat", "old mouse"]}, "maxItems": 4});
    json!({"prompt": "A wolf", "seed": seed, "max_tokens": 60, "guided_json": schema})
}

/// Texts of a server with everything in memory: without a structure, and with one.
fn expected() -> [Vec<Value>; 2] {
    let server = Server::start(&["--resident"]);
    let text = |body: Value| server.client.ask(&body)["choices"][0]["text"].clone();
    [
        PROMPTS.into_iter().map(|prompt| text(plain(prompt))).collect(),
        (0..4).map(|seed| text(structured_output(seed))).collect(),
    ]
}

/// Asks for texts with and without structures at once, among them structures whose automata are large.
fn ask_all(limited: &Limited, [texts, structures]: &[Vec<Value>; 2]) {
    let client = limited.client();
    std::thread::scope(|scope| {
        for (prompt, expected) in PROMPTS.iter().zip(texts) {
            scope.spawn(move || {
                for _ in 0..3 {
                    assert_eq!(client.ask(&plain(prompt))["choices"][0]["text"], *expected);
                }
            });
        }
        scope.spawn(move || {
            for (seed, expected) in (0..).zip(structures) {
                assert_eq!(client.ask(&structured_output(seed))["choices"][0]["text"], *expected);
            }
            for regex in ["(.*a.{20}|.*b.{21}|.*c.{22})d", "(((a|b){1,99}c?){1,99}d?){1,99}"] {
                let body =
                    json!({"prompt": "A", "seed": 1, "max_tokens": 40, "guided_regex": regex});
                let (status, answer) = post(client, &body);
                assert!([200, 400].contains(&status), "{answer}");
            }
        });
    });
}

/// A server of the bundled model needs less than 100 MiB. It has no memory for structured output then, says
/// how much has, and with that much a request takes it from experts and gives it back. Texts are the same,
/// and no server is killed.
#[test]
fn memory_for_structure_is_taken_from_experts_within_the_budget() {
    let expected = expected();
    let too_small = sws(&[&"serve", &tales(), &"--port", &"0", &"--ram", &"1MiB"]);
    assert_eq!(too_small.code, Some(2), "{too_small:?}");
    let least = ram(&too_small.stderr);
    assert!(least < 100, "{least} MiB");
    let server = Limited::start("least", least);
    for (prompt, expected) in PROMPTS.iter().zip(&expected[0]) {
        assert_eq!(server.client().ask(&plain(prompt))["choices"][0]["text"], *expected);
    }
    let (status, refused) = post(server.client(), &structured_output(0));
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("guided_json")), "{refused}");
    let enough = ram(refused["error"]["message"].as_str().unwrap());
    server.end();

    // One structure, and some.
    for mib in [enough, enough + 24] {
        let server = Limited::start("structures", mib);
        assert_eq!(server.client().ask(&plain(PROMPTS[0]))["choices"][0]["text"], expected[0][0]);
        let lent = server.client().metric(LENT);
        assert!(lent > 0.0, "{mib} MiB");
        ask_all(&server, &expected);
        assert_eq!(server.client().metric(LENT), 0.0);
        if mib > enough && is_night() {
            // A server waits half a minute before it lends the memory again, at the next text that is computed:
            // one that was asked for before is kept.
            let clock = Clock::real();
            let mut text = plain(PROMPTS[1]);
            while server.client().metric(LENT) != lent {
                assert!(clock.now() < Duration::from_secs(240), "{mib} MiB");
                clock.sleep(Duration::from_secs(1));
                text["seed"] = json!(clock.now().as_millis() as u32);
                server.client().ask(&text);
            }
            ask_all(&server, &expected);
            assert_eq!(server.client().metric(LENT), 0.0);
        }
        server.end();
    }
}
