//! A hostile `tokenizer.json` gives one error: no panic is printed, and the budget holds.

use serde_json::{Value, json};

use crate::goldens::{change, copy, tokenizer};
use crate::sws::{Outcome, command};

/// Runs a prompt on a model with an edited tokenizer.
fn run(edit: impl FnOnce(&mut Value), prompt: &str, options: &[&str]) -> Outcome {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("model");
    copy("qwen3_moe", &dir);
    std::fs::write(dir.join("tokenizer.json"), tokenizer(64).to_string()).unwrap();
    change(&dir, "tokenizer.json", edit);
    let mut command = command(&[&"run", &dir, &"--prompt", &prompt, &"--max-new-tokens", &"1"]);
    Outcome::of(command.args(options).output().unwrap())
}

#[test]
fn caught_panics_print_nothing() {
    let charsmap = |table: &str| json!({"type": "Precompiled", "precompiled_charsmap": table});
    let cases: [(&str, Value); 5] = [
        ("normalizer", charsmap("AAAA")),
        ("normalizer", charsmap("/////w==")),
        ("normalizer", charsmap("BAAAAP////8=")),
        ("model", json!({"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "a"]]})),
        ("normalizer", json!({"type": "Replace", "pattern": {"Regex": ""}, "content": "x"})),
    ];
    for (key, value) in cases {
        let outcome = run(|json| json[key] = value, "a", &[]).refused(2, &["tokenizer"]);
        assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
        assert_eq!(outcome.stdout, "");
    }
}

#[test]
fn encoding_stays_within_the_budget() {
    let replace = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaaaa"});
    let growing = json!({"type": "Sequence", "normalizers": vec![replace; 12]});
    let outcome = run(|json| json["normalizer"] = growing, "a", &["--ram", "64MiB"]);
    outcome.refused(2, &["this tokenizer", "more memory to encode", "--ram"]);
}
