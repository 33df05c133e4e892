//! The library says what the command line says, where neither is told otherwise.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use ::sws::{GenerationOptions, LoadedModel, Model, Options, Request, Streaming};
use serde_json::Value;

use crate::goldens::copy;
use crate::sws::{command, sws};
use sws_testing::tales;

#[test]
fn same_text_as_run() {
    let args: [&dyn AsRef<std::ffi::OsStr>; 7] =
        [&"run", &tales(), &"--prompt", &"The fox", &"--seed", &"5", &"--json"];
    let typed = sws(&args).succeeded();
    let typed: Value = serde_json::from_str(&typed.stdout).unwrap();
    let mut model = load(&Model::open(tales()).unwrap());
    let mut text = model.generate(Request::from("The fox").seed(5)).unwrap();
    assert!(text.by_ref().all(|piece| piece.is_ok()));
    let made = text.finish();
    assert_eq!(Value::from(made.tokens.clone()), typed["tokens"]);
    assert_eq!(Value::from(made.text.clone()), typed["text"]);
    assert_eq!(serde_json::to_value(made.end).unwrap(), typed["end"]);
    // The same names in what it cost.
    let metrics = serde_json::to_value(model.metrics(&made)).unwrap();
    let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&metrics), names(&typed["metrics"]));
    assert_eq!(metrics["lossy"], typed["metrics"]["lossy"]);
}

#[test]
fn same_answers_as_chat() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("model");
    copy("qwen3_moe", &dir);
    let template = "{% for m in messages %}<{{ m.content }}>{% endfor %}";
    std::fs::write(dir.join("chat_template.jinja"), template).unwrap();
    let shards = temp.path().join("shards");
    sws(&[&"shard", &dir, &"--out", &shards]).succeeded();
    let answers = said(&shards, &["hello", "and then?"]);
    let options = GenerationOptions { seed: Some(4), ..sampled() };
    let mut model = load(&Model::open(&shards).unwrap());
    let mut conversation = model.conversation(&options).unwrap();
    let mut texts = String::new();
    for line in ["hello", "and then?"] {
        for piece in model.chat(&mut conversation, line).unwrap() {
            texts += &piece.unwrap();
        }
        texts += "\n";
    }
    assert_eq!(texts, answers);
}

/// Loads it as the command line does, but for what the user's own cache keeps.
fn load(model: &Model) -> LoadedModel {
    let streaming = Streaming { warm_start: false, ..Streaming::default() };
    model.with(Options { streaming, ..Options::default() }).load().unwrap()
}

fn sampled() -> GenerationOptions {
    GenerationOptions {
        temperature: Some(1.5),
        max_new_tokens: Some(8),
        ignore_eos: true,
        ..GenerationOptions::default()
    }
}

/// Answers of `sws chat` to these lines.
fn said(model: &Path, lines: &[&str]) -> String {
    let how = ["--seed", "4", "--temperature", "1.5", "--max-new-tokens", "8", "--ignore-eos"];
    let mut args: Vec<&dyn AsRef<std::ffi::OsStr>> = vec![&"chat", &model];
    args.extend(how.iter().map(|word| word as &dyn AsRef<std::ffi::OsStr>));
    let mut child = command(&args).stdin(Stdio::piped()).spawn().unwrap();
    let lines = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
}
