//! Bad input of every command and option: one error with its name, exit code 2.
//!
//! The options come from the table that `sws pages` prints, so that a new one is covered, or this test
//! asks for its wrong values.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use sws_testing::tales;

use crate::goldens::copy;
use crate::sws::{Outcome, command, sws};

/// An option as the pages spell it.
struct Opt {
    /// `run`, or `draft train`.
    command: String,
    /// `--ram`.
    long: String,
    /// `SIZE`; empty for a switch.
    value: String,
}

/// The options of all commands, from the pages.
fn options() -> Vec<Opt> {
    let temp = tempfile::tempdir().unwrap();
    sws(&[&"pages", &temp.path()]).succeeded();
    let page = std::fs::read_to_string(temp.path().join("cli.md")).unwrap();
    let mut command = String::new();
    let mut found = Vec::new();
    for line in page.lines() {
        if let Some(name) = line.strip_prefix("## sws ") {
            command = name.to_owned();
        }
        // It has commands of its own.
        if command == "draft" {
            continue;
        }
        let Some((spelling, _)) = line.strip_prefix("| `").and_then(|rest| rest.split_once('`'))
        else {
            continue;
        };
        let Some(at) = spelling.find("--") else { continue };
        let (long, value) = spelling[at..].split_once(' ').unwrap_or((&spelling[at..], ""));
        let long = long.to_owned();
        let value = value.to_owned();
        found.push(Opt { command: command.clone(), long, value });
    }
    assert!(found.len() > 150, "the pages have changed: {}", found.len());
    found
}

/// Wrong values of an option. Names that any text fits have none.
fn wrong(option: &Opt) -> &'static [&'static str] {
    const WORDS: &[&str] = &["nonesuch", ""];
    match (option.long.as_str(), option.value.as_str()) {
        // A switch takes no value.
        (_, "") => &["1"],
        // Nothing is written before the hub has answered: downloads.rs.
        ("--out" | "--also", _) if option.command == "pull" => &[],
        // A copy that is absent is left out: far.rs.
        ("--also", _) if option.command == "push" => &[],
        ("--out" | "--record" | "--certify" | "--report" | "--html", "FILE" | "DIR") => {
            &["/proc/nonesuch/x"]
        }
        // The output of the one, the input of others.
        ("--eviction", _) if option.command == "draft train" => &["/proc/nonesuch/x"],
        ("--tier", _) => &["nonesuch"],
        ("--stop", _) => &[""],
        // An empty name stands for none.
        ("--config", _) => &["/nonesuch", "/", "/dev/zero"],
        ("--temperature" | "--top-p" | "--min-p", _) => &["x", "", "nan", "-1", "1e39"],
        (_, "X") => &["x", "", "nan"],
        (_, "N" | "SECONDS" | "TOKENS") => &["x", "", "-1", "1.5", "99999999999999999999999"],
        (_, "SIZE") => &["x", "", "-1GiB", "1XiB"],
        (_, "SHARE") => &["x", "", "-1", "nan", "inf"],
        (_, "PERCENT") => &["x", "", "0", "101", "nan"],
        (_, "CPU,CARD,READ,COPY") => &["x", "", "1,2,3", "1,2,x,3,4", "1,2,3,nan", "1,2,3,1e10"],
        (_, "IDS") => &["x", "", "1 2", "4294967295", "-1"],
        (_, "FILE") => &["/nonesuch", "/"],
        (_, "DIR") => &["/proc/nonesuch"],
        (_, "GRAMMAR") => &["/nonesuch", "start: nonesuch"],
        (_, "REGEX") => &["(", "[b-a]"],
        (_, "SCHEMA") => &["/nonesuch", "{", "{\"type\": 3}"],
        (_, "MODEL") => &["/nonesuch", "no such model", "", "a/../b", "x\u{1b}[2J"],
        (_, "REVISION") => &["../x", "", "a b"],
        (_, "URL") => &["x", "", "ftp://x", "http://x\n"],
        (_, "ORIGIN") => &["x", "", "*", "null", "https://", "https://a/b", "ftp://a"],
        (_, "IP") => &["x", "", "256.1.1.1"],
        (_, "BACKEND" | "ENCODING" | "POLICIES" | "POLICY" | "READER" | "TYPE" | "WHICH") => WORDS,
        (_, "HOST" | "ID" | "KEY" | "NAME" | "TEXT") => &[],
        (long, value) => panic!("this test knows no wrong values of {long} {value}"),
    }
}

/// The rest of a call that would succeed.
struct Calls {
    temp: tempfile::TempDir,
}

impl Calls {
    fn new() -> Calls {
        let temp = tempfile::tempdir().unwrap();
        let model = temp.path().join("model");
        copy("qwen3_moe", &model);
        std::fs::write(model.join("chat_template.jinja"), "{{ messages[-1].content }}").unwrap();
        let calls = Calls { temp };
        sws(&[&"shard", &model, &"--out", &calls.at("shards")]).succeeded();
        for number in ["1", "2"] {
            let trace = calls.at(&format!("trace{number}"));
            let seed = format!("--seed={number}");
            let record: [&dyn AsRef<OsStr>; 7] =
                [&"run", &model, &"--prompt=fox", &"-n4", &seed, &"--record", &trace];
            let record = record.into_iter().chain([&"--record-hidden" as &dyn AsRef<OsStr>]);
            sws(&record.collect::<Vec<_>>()).succeeded();
        }
        let certificate = calls.at("certificate");
        sws(&[&"run", &model, &"--tokens=1", &"-n1", &"--certify", &certificate]).succeeded();
        calls
    }

    fn at(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    /// Arguments of a command, without `option`.
    fn of(&self, command: &str, option: &str) -> Vec<String> {
        let all: &[&str] = match command {
            "run" => &["MODEL", "--tokens=1", "-n1", "--json"],
            "chat" => &["MODEL", "hello", "-n1"],
            "serve" => &["MODEL", "--port=0"],
            "launch" => &["claude", "--print", "--name=x"],
            "top" => &["127.0.0.1:1"],
            "forward" => &["MODEL", "--tokens=1", "--out=OUT"],
            "certify" => &["CERTIFICATE", "MODEL"],
            "pull" => &["own/model"],
            "list" | "config" => &[],
            "link" => &["MODEL", "own/model"],
            "rm" => &["own/model"],
            "push" => &["SHARDS", "http://127.0.0.1:1/x"],
            "shard" => &["MODEL", "--out=OUT"],
            "mirror" => &["SHARDS", "OUT"],
            "unshard" => &["SHARDS", "--out=OUT"],
            "verify" => &["SHARDS"],
            "inspect" => &["MODEL"],
            "plan" => &["MODEL", "--no-probe"],
            "doctor" => &["MODEL"],
            "bench" => &["MODEL", "-n2", "--rounds=1"],
            "replay" => &["TRACE1"],
            "draft train" | "draft score" => &["MODEL", "--traces=TRACE1", "--traces=TRACE2"],
            other => panic!("this test knows no call of `sws {other}`"),
        };
        let words = command.split(' ').chain(all.iter().copied());
        let same = |word: &&str| word.split('=').next() != Some(option);
        // What excludes the option, or says the same.
        let excluded = |word: &&str| match option {
            "--model" => *word != "MODEL",
            "--prompt" | "--prompt-file" | "--prompts" => {
                !word.starts_with("--tokens") && *word != "--json"
            }
            "--describe" => *word != "--no-probe",
            "--max-new-tokens" => *word != "-n1",
            _ => true,
        };
        let filled = |word: &str| {
            let places = ["MODEL", "OUT", "SHARDS", "CERTIFICATE", "TRACE1", "TRACE2"];
            places.iter().fold(word.to_owned(), |word, place| {
                word.replace(place, self.at(&place.to_lowercase()).to_str().unwrap())
            })
        };
        words.filter(same).filter(excluded).map(filled).collect()
    }
}

fn call(words: &[String], more: &[&str]) -> Outcome {
    let words = words.iter().map(|word| word as &dyn AsRef<OsStr>);
    let args: Vec<_> = words.chain(more.iter().map(|word| word as &dyn AsRef<OsStr>)).collect();
    sws(&args)
}

/// Asserts that a call was refused with an error that has one of these words.
#[track_caller]
fn refused(outcome: &Outcome, words: &[&str], about: &str) {
    assert_eq!(outcome.code, Some(2), "{about}: {outcome:?}");
    let is_error = |line: &&str| {
        let notes = ["sws: listening on ", "sws: with the entries of "];
        let is_note = notes.iter().any(|note| line.starts_with(note));
        line.starts_with("sws: ") && !is_note
    };
    let errors: Vec<&str> = outcome.stderr.lines().filter(is_error).collect();
    let [error] = errors[..] else { panic!("{about}: not one error in {outcome:?}") };
    assert!(words.iter().any(|word| error.contains(word)), "{about}: no name in {error:?}");
    assert!(!outcome.stderr.contains("panicked"), "{about}: {outcome:?}");
    assert!(!outcome.stderr.contains('\u{1b}'), "{about}: {outcome:?}");
    assert!(error.len() < 1000, "{about}: {error}");
}

#[test]
fn wrong_values_of_every_option() {
    let calls = Calls::new();
    for option in options() {
        let Opt { command, long, value } = &option;
        for bad in wrong(&option) {
            let typed = format!("{long}={bad}");
            let mut words = calls.of(command, long);
            // A negative number is the value of the option before it.
            match bad.parse::<f64>().is_ok_and(|number| number < 0.0) {
                true => words.extend([long.clone(), (*bad).to_owned()]),
                false => words.push(typed.clone()),
            }
            let outcome = call(&words, &[]);
            for theirs in ["invalid digit", "target type", "empty string", "float literal"] {
                assert!(!outcome.stderr.contains(theirs), "words of a programmer: {outcome:?}");
            }
            let shown = if bad.is_empty() { long } else { *bad }.replace('\u{1b}', "\\u{1b}");
            let words = [long.trim_start_matches('-'), &shown];
            refused(&outcome, &words, &format!("sws {command} {typed} ({value})"));
        }
    }
}

#[test]
fn missing_values_of_every_option() {
    let calls = Calls::new();
    for Opt { command, long, .. } in options().iter().filter(|option| !option.value.is_empty()) {
        let outcome = call(&calls.of(command, long), &[long]);
        refused(&outcome, &[long], &format!("sws {command} {long}, and nothing behind it"));
    }
}

#[test]
fn wrong_models_of_every_command() {
    let calls = Calls::new();
    let commands = [
        "run",
        "chat",
        "serve",
        "forward",
        "shard",
        "mirror",
        "verify",
        "inspect",
        "unshard",
        "plan",
        "bench",
        "doctor",
        "draft score",
        "draft train",
        "rm",
        "pull",
    ];
    let [model, shards] =
        ["model", "shards"].map(|name| calls.at(name).to_str().unwrap().to_owned());
    for command in commands {
        for bad in ["/nonesuch", "no such model", "", "a/../b", "x\u{1b}[2J", "own/nonesuch"] {
            let words = calls.of(command, "");
            let named =
                |word: &String| [model.as_str(), &shards, "own/model"].contains(&word.as_str());
            let place = words.iter().position(named).unwrap();
            let mut words = words;
            words[place] = bad.to_owned();
            let outcome = call(&words, &[]);
            let shown = bad.replace('\u{1b}', "\\u{1b}");
            let place = ["MODEL", "CHECKPOINT", "DIR"];
            // Where clap names it, it leaves escape sequences out.
            let plain = if bad.contains('\u{1b}') { "'x'" } else { &shown };
            let names = if bad.is_empty() { place } else { [shown.as_str(), plain, plain] };
            refused(&outcome, &names, &format!("sws {command} {bad:?}"));
        }
    }
}

#[test]
fn wrong_entries_of_the_configuration() {
    let calls = Calls::new();
    let file = calls.at("config.toml");
    for Opt { command, long, value } in options() {
        if long == "--config" || command == "config" {
            continue;
        }
        let name = long.trim_start_matches('-');
        let mut entries = vec!["{ a = 1 }", "[1979-05-27]"];
        // A switch is on or off.
        entries.extend(value.is_empty().then_some("\"yes\""));
        for entry in entries {
            let text = format!("[command.\"{command}\"]\n{name} = {entry}\n");
            std::fs::write(&file, &text).unwrap();
            let outcome = call(&calls.of(&command, ""), &["--config", file.to_str().unwrap()]);
            refused(&outcome, &[name], &format!("sws {command} with {text:?}"));
        }
    }
}

#[test]
fn wrong_variables_of_the_environment() {
    let model = tales();
    let temp = tempfile::tempdir().unwrap();
    let directory = temp.path().to_str().unwrap();
    let run: &[&str] = &["run", model.to_str().unwrap(), "--tokens=1", "-n1", "--json"];
    let pull: &[&str] = &["pull", "own/nonesuch"];
    let cases: [(&[&str], &str, &str); 17] = [
        (run, "SWS_COMPLETE", "nonesuch"),
        (run, "SWS_COMPLETE", "\u{1b}[2J"),
        (pull, "HF_TOKEN", "\u{1b}[2J"),
        (pull, "HF_HOME", "/proc/nonesuch"),
        (pull, "ALL_PROXY", "no proxy"),
        (run, "SWS_LOG", "loud"),
        (run, "SWS_TIER", "nonesuch"),
        (run, "SWS_CONFIG", "/nonesuch"),
        (run, "SWS_CONFIG", directory),
        (pull, "HF_ENDPOINT", "nonesuch"),
        (pull, "HF_TOKEN", "a b\n"),
        (pull, "HF_TOKEN_PATH", directory),
        (pull, "HF_HUB_DOWNLOAD_TIMEOUT", "soon"),
        (pull, "HTTPS_PROXY", "socks5://localhost:1"),
        (pull, "HTTPS_PROXY", "\u{1b}[2J"),
        (pull, "HF_HUB_CACHE", "/proc/nonesuch"),
        (pull, "SWS_MODELS", "/proc/nonesuch"),
    ];
    for (words, name, value) in cases {
        let words: Vec<&dyn AsRef<OsStr>> = words.iter().map(|word| word as _).collect();
        let mut command = command(&words);
        // Nothing is sent: the port is closed.
        command.env("HF_ENDPOINT", "https://127.0.0.1:1").env_remove("HF_HUB_OFFLINE");
        command.env(name, value);
        if matches!(name, "HF_HUB_CACHE" | "HF_HOME" | "SWS_MODELS") {
            command.env("HF_HUB_OFFLINE", "1");
        }
        let outcome = Outcome::of(command.output().unwrap());
        let value = Path::new(value).file_name().and_then(OsStr::to_str).unwrap_or(value);
        refused(&outcome, &[name, value, "own/nonesuch"], &format!("{name}={value:?}"));
    }
}
