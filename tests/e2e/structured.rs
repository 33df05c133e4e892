//! `sws run` writes structured texts.

use std::ffi::OsStr;

use serde_json::Value;
use sws_testing::tales;

use crate::sws::{Outcome, sws};

const SCHEMA: &str = r#"{
    "type": "object",
    "properties": {"name": {"enum": ["wolf", "cat"]}, "age": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": false
}"#;

/// Runs `sws run` on the bundled model.
fn run(more: &[&dyn AsRef<OsStr>]) -> Outcome {
    let model = tales();
    let mut args: Vec<&dyn AsRef<OsStr>> = vec![&"run", &model, &"--seed", &"3", &"-n", &"60"];
    args.extend(more);
    sws(&args)
}

fn text(outcome: &Outcome) -> String {
    let json: Value = serde_json::from_str(outcome.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(json["end"], "complete", "{json}");
    json["text"].as_str().unwrap().to_owned()
}

#[track_caller]
fn is_an_animal(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert!(value["name"] == "wolf" || value["name"] == "cat", "{value}");
    assert!((1..=99).contains(&value["age"].as_u64().unwrap()), "{value}");
}

#[test]
fn texts_have_the_structure_that_was_asked_for() {
    let temp = tempfile::tempdir().unwrap();
    let schema = temp.path().join("a.json");
    let grammar = temp.path().join("a.gbnf");
    std::fs::write(&schema, SCHEMA).unwrap();
    std::fs::write(&grammar, "root ::= \"The \" (\"wolf\" | \"cat\") \"!\"\n").unwrap();
    let prompt: [&dyn AsRef<OsStr>; 3] = [&"--prompt", &"The wolf", &"--json"];
    let of = |option: &str, value: &dyn AsRef<OsStr>| {
        let mut args = prompt.to_vec();
        args.extend([&option as &dyn AsRef<OsStr>, value]);
        text(&run(&args).succeeded())
    };
    let from_file = of("--json-schema", &schema);
    is_an_animal(&from_file);
    assert_eq!(of("--json-schema", &SCHEMA), from_file);
    let tale = of("--grammar", &grammar);
    assert!(["The wolf!", "The cat!"].contains(&tale.as_str()), "{tale}");
    let date = of("--regex", &"[0-9]{4}-[0-9]{2}");
    assert!(date.len() == 7 && date.as_bytes()[4] == b'-', "{date}");
}

#[test]
fn each_line_of_prompts_has_the_structure_too() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("prompts.txt");
    std::fs::write(&file, "The wolf\nA cat\nRain fell\n").unwrap();
    let outcome = run(&[&"--prompts", &file, &"--json-schema", &SCHEMA]).succeeded();
    let lines: Vec<Value> =
        outcome.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 3);
    for (line, prompt) in lines.iter().zip(["The wolf", "A cat", "Rain fell"]) {
        let of_line = line["text"].as_str().unwrap();
        is_an_animal(of_line);
        let args: [&dyn AsRef<OsStr>; 5] =
            [&"--prompt", &prompt, &"--json", &"--json-schema", &SCHEMA];
        assert_eq!(text(&run(&args).succeeded()), of_line);
    }
}

#[test]
fn bad_structure_are_refused_in_one_sentence() {
    let cases: [(&[&str], &[&str]); 7] = [
        (&["--json-schema", "{"], &["--json-schema is no JSON"]),
        (&["--json-schema", "{\"type\": \"nonesuch\"}"], &["--json-schema cannot be used"]),
        (&["--json-schema", "nonesuch.json"], &["`nonesuch.json`", "name another file"]),
        (&["--regex", "("], &["--regex cannot be used", "unclosed group"]),
        (&["--grammar", "start: nonesuch"], &["--grammar cannot be used"]),
        (&["--regex", "a", "--grammar", "start: \"a\""], &["cannot be used with"]),
        (&["--regex", "a", "--certify", "a.cert"], &["cannot be used with"]),
    ];
    for (args, words) in cases {
        let mut all: Vec<&dyn AsRef<OsStr>> = vec![&"--prompt", &"a"];
        all.extend(args.iter().map(|word| word as &dyn AsRef<OsStr>));
        run(&all).refused(2, words);
    }
}
