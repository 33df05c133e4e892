//! `sws chat`: a conversation on standard input.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use crate::goldens::copy;
use crate::sws::{Outcome, command};

const TEMPLATE: &str = "{% for m in messages %}{{ m.role[0] }} {{ m.content }}\n{% endfor %}\
                        {% if add_generation_prompt %}a {% endif %}";

fn chat(model: &Path, lines: impl AsRef<[u8]>, more: &[&str]) -> Outcome {
    let mut args: Vec<&dyn AsRef<std::ffi::OsStr>> = vec![&"chat", &model];
    args.extend(more.iter().map(|word| word as &dyn AsRef<std::ffi::OsStr>));
    let mut child = command(&args).stdin(Stdio::piped()).spawn().unwrap();
    // The child may exit before it has read everything.
    let _ = child.stdin.take().unwrap().write_all(lines.as_ref());
    Outcome::of(child.wait_with_output().unwrap())
}

#[test]
fn a_conversation() {
    let temp = tempfile::tempdir().unwrap();
    let model = temp.path().join("model");
    copy("qwen3_moe", &model);
    std::fs::write(model.join("chat_template.jinja"), TEMPLATE).unwrap();
    let greedy = ["--temperature", "0", "--max-new-tokens", "6", "--ignore-eos"];
    let answers = |lines: &str, more: &[&str]| {
        let outcome = chat(&model, lines, &[&greedy, more].concat()).succeeded();
        outcome.stdout.trim_end().split('\n').map(str::to_owned).collect::<Vec<_>>()
    };
    let once = answers("hello\n", &[]);
    assert_eq!(once.len(), 1);
    let twice = answers("hello\nagain\n", &[]);
    assert_eq!((twice.len(), &twice[0]), (2, &once[0]));
    // The history is part of the prompt, until it is reset.
    let alone = answers("again\n", &[]);
    assert_ne!(twice[1], alone[0]);
    assert_eq!(answers("hello\n/reset\nagain\n", &[]), [&once[..], &alone].concat());
    assert_ne!(answers("hello\n", &["--system", "be kind"]), once);
    // A backslash continues a line, commands are not messages, and nothing is read after /quit.
    assert_eq!(answers("hello\\\nagain\n", &[]).len(), 1);
    let outcome = chat(&model, "/help\n\n/quit\nhello\n", &greedy).succeeded();
    assert_eq!(outcome.stdout, "");
    assert!(outcome.stderr.contains("/reset"), "{outcome:?}");
    // A line that is no text is left out.
    let outcome = chat(&model, b"caf\xe9\nhello\n", &greedy).succeeded();
    assert_eq!(outcome.stdout.trim_end(), once[0]);
    assert!(outcome.stderr.contains("sws: that message is not UTF-8"), "{outcome:?}");
    // A script learns of a misspelt command.
    chat(&model, "/nonesuch\nhello\n", &greedy).refused(2, &["no command `/nonesuch`", "/help"]);
    chat(&model, "/save\n", &greedy).refused(2, &["/save", "file"]);
    // With a leading space it is a message.
    assert_eq!(answers(" /hello\n", &[]).len(), 1);
}

#[test]
fn commands_change_the_conversation() {
    let temp = tempfile::tempdir().unwrap();
    let model = temp.path().join("model");
    copy("qwen3_moe", &model);
    std::fs::write(model.join("chat_template.jinja"), TEMPLATE).unwrap();
    let greedy = ["--temperature", "0", "--max-new-tokens", "6", "--ignore-eos"];
    let last = |lines: &str, more: &[&str]| {
        let outcome = chat(&model, lines, &[&greedy, more].concat()).succeeded();
        outcome.stdout.trim_end().rsplit('\n').next().unwrap().to_owned()
    };
    let (hello, again) = (last("hello\n", &[]), last("hello\nagain\n", &[]));
    // The question is answered as before: undone, retried, saved and loaded.
    assert_eq!(last("hello\nother\n/undo\nagain\n", &[]), again);
    assert_eq!(last("hello\nagain\n/retry\n", &[]), again);
    let file = temp.path().join("talk.json");
    let file = file.to_str().unwrap();
    assert_eq!(
        last(&format!("hello\n/save {file}\n/reset\nother\n/load {file}\nagain\n"), &[]),
        again
    );
    assert_eq!(last("again\n", &["--load", file]), again);
    let saved: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(saved["messages"][0], serde_json::json!({"role": "user", "content": "hello"}));
    assert_eq!(saved["messages"][1]["content"], hello.as_str());
    // The system message is that of the option.
    assert_eq!(last("/system be kind\nhello\n", &[]), last("hello\n", &["--system", "be kind"]));
    let stats = chat(&model, "hello\n/stats\n", &greedy).succeeded();
    assert!(stats.stderr.contains("prompt  ") && stats.stderr.contains("memory  "), "{stats:?}");

    // An answer for programs has the fields of a continued text, and reasoning.
    let json = |args: &[&dyn AsRef<std::ffi::OsStr>]| {
        let outcome = Outcome::of(command(args).output().unwrap()).succeeded();
        serde_json::from_str::<serde_json::Value>(&outcome.stdout).unwrap()
    };
    let asked =
        json(&[&"chat", &model, &"hello", &"-n6", &"--temperature=0", &"--ignore-eos", &"--json"]);
    assert_eq!((&asked["text"], &asked["thoughts"]), (&hello.into(), &"".into()));
    let continued = json(&[&"run", &model, &"--tokens=1", &"-n2", &"--json"]);
    let names = |value: &serde_json::Value| {
        let names = value.as_object().unwrap().keys().filter(|name| *name != "thoughts");
        names.cloned().collect::<Vec<_>>()
    };
    assert_eq!(names(&asked), names(&continued));
    let saved = chat(&model, format!("/save {file}.2\n"), &["--system=kind"]).succeeded();
    assert!(saved.stderr.contains("saved 1 message to"), "{saved:?}");

    // Files of others stay as they are.
    let other = temp.path().join("other");
    std::fs::write(&other, "precious").unwrap();
    let other = other.to_str().unwrap();
    let refused = |lines: &str, words: &[&str]| chat(&model, lines, &greedy).refused(2, words);
    refused(&format!("/save {other}\n"), &[other, "exists"]);
    refused(&format!("/load {other}\n"), &[other, "no conversation"]);
    assert_eq!(std::fs::read(other).unwrap(), b"precious");
    refused(&format!("/save {file}\n"), &[file, "exists"]);
    refused("/load /nowhere/x\n", &["/nowhere/x"]);
    std::fs::write(other, "{\"messages\": [{\"role\": \"king\", \"content\": \"\"}]}").unwrap();
    refused(&format!("/load {other}\n"), &[other, "king", "assistant"]);
    for empty in ["/undo\n", "/retry\n", "/stats\n"] {
        refused(empty, &["there is no"]);
    }
    // A conversation of one's own is written again.
    let both = format!("/load {file}\nagain\n/save {file}\n");
    chat(&model, &both, &greedy).succeeded();
    let saved: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(saved["messages"].as_array().unwrap().len(), 4);
}

#[test]
fn one_question_is_answered_without_a_conversation() {
    let temp = tempfile::tempdir().unwrap();
    let model = temp.path().join("model");
    copy("qwen3_moe", &model);
    std::fs::write(model.join("chat_template.jinja"), TEMPLATE).unwrap();
    let greedy = ["--temperature", "0", "--max-new-tokens", "6", "--ignore-eos"];
    let asked = chat(&model, "hello\n", &greedy).succeeded().stdout;
    let once = |question: &str| chat(&model, "hello\n", &[&[question], &greedy[..]].concat());
    assert_eq!(once("hello").succeeded().stdout, asked);
    assert_eq!(once("-").succeeded().stdout, asked);
    once(" ").refused(2, &["question is empty"]);
}

#[test]
fn reasoning_is_switched_and_stay_off_standard_output() {
    // A template whose answers begin with reasoning, unless they are switched off.
    let switch = "{% if enable_thinking is defined and not enable_thinking %}</think>{% endif %}";
    let template = format!("{{{{ messages[-1].content }}}}<think>{switch}");
    let temp = tempfile::tempdir().unwrap();
    let model = temp.path().join("model");
    copy("qwen3_moe", &model);
    std::fs::write(model.join("chat_template.jinja"), &template).unwrap();
    let greedy = ["--temperature", "0", "--max-new-tokens", "6", "--ignore-eos"];
    let stdout = |lines: &str, more: &[&str]| {
        chat(&model, lines, &[&greedy, more].concat()).succeeded().stdout
    };
    // The model never ends its reasoning.
    assert_eq!(stdout("hello\n", &[]), "\n");
    assert_eq!(stdout("hello\n", &["--think"]), "\n");
    let answer = stdout("hello\n", &["--no-think"]);
    assert!(answer.len() > 1, "{answer:?}");
    assert_eq!(stdout("/think off\nhello\n", &[]), answer);
    let switched = "hello\n/think on\n/think off\nhello\n";
    assert_eq!(stdout(switched, &["--no-think"]), format!("{answer}{answer}"));
    chat(&model, "/think maybe\n", &greedy).refused(2, &["/think", "maybe"]);
    // A template without a switch.
    std::fs::write(model.join("chat_template.jinja"), TEMPLATE).unwrap();
    let told = chat(&model, "hello\n", &["--no-think", "--max-new-tokens", "2"]).succeeded();
    assert!(told.stderr.contains("no switch"), "{told:?}");
    chat(&model, "/think off\n", &[]).refused(2, &["no switch"]);
}

#[test]
fn a_repeated_question_is_sampled_anew() {
    let temp = tempfile::tempdir().unwrap();
    let model = temp.path().join("model");
    copy("qwen3_moe", &model);
    std::fs::write(model.join("chat_template.jinja"), TEMPLATE).unwrap();
    let answers = |seed: &str| {
        let more = ["--seed", seed, "--temperature", "2", "--max-new-tokens", "8", "--ignore-eos"];
        chat(&model, "hello\n/reset\nhello\n", &more).succeeded().stdout
    };
    // The same positions again after /reset. Answers may contain line breaks.
    let seven = answers("7");
    let eight = answers("8");
    assert_eq!(answers("7"), seven);
    assert_ne!(seven, eight);
    let (first, second) = seven.split_at(seven.len() / 2);
    assert_ne!(first, second);
}

#[test]
fn unanswerable_messages_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let model = temp.path().join("model");
    copy("qwen3_moe", &model);
    let long = format!("{}\n", "a".repeat(300));
    #[rustfmt::skip]
    let cases: [(&str, &str, &[&str]); 5] = [
        (TEMPLATE, &long, &["305", "256", "/reset"]),
        ("{% if %}", "hello\n", &["chat template", "download"]),
        ("{{ raise_exception('only poems') }}", "hello\n", &["only poems"]),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "hello\n", &["does not end"]),
        ("{{ messages[0].content * 999999999 }}", "hello\n", &["chat template"]),
    ];
    for (template, lines, words) in cases {
        std::fs::write(model.join("chat_template.jinja"), template).unwrap();
        chat(&model, lines, &[]).refused(2, words);
    }
    std::fs::write(model.join("chat_template.jinja"), TEMPLATE).unwrap();
    for held in [&["--resident"][..], &[]] {
        let short = [&["--context", "8"], held].concat();
        chat(&model, "hello\n", &short).refused(2, &["the context 8", "/reset", "--context"]);
    }
}
