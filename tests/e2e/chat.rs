//! `sws chat`: a conversation on standard input.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use crate::goldens::copy;
use crate::sws::{Outcome, command};

const TEMPLATE: &str = "{% for m in messages %}{{ m.role[0] }} {{ m.content }}\n{% endfor %}\
                        {% if add_generation_prompt %}a {% endif %}";

fn chat(model: &Path, lines: &str, more: &[&str]) -> Outcome {
    let mut args: Vec<&dyn AsRef<std::ffi::OsStr>> = vec![&"chat", &model];
    args.extend(more.iter().map(|word| word as &dyn AsRef<std::ffi::OsStr>));
    let mut child = command(&args).stdin(Stdio::piped()).spawn().unwrap();
    // The child may exit before it has read everything.
    let _ = child.stdin.take().unwrap().write_all(lines.as_bytes());
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
    let outcome = chat(&model, "/help\n\n/nonesuch\n/save x\n/quit\nhello\n", &greedy).succeeded();
    assert_eq!(outcome.stdout, "");
    assert!(outcome.stderr.contains("/reset") && outcome.stderr.contains("no command `/nonesuch`"));
    assert!(outcome.stderr.contains("no command `/save x`"), "{outcome:?}");
    // With a leading space it is a message.
    assert_eq!(answers(" /hello\n", &[]).len(), 1);
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
    let (seven, eight) = (answers("7"), answers("8"));
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
