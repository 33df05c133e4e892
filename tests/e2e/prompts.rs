//! `sws run --prompts` gives each line the text that it has alone.

use std::ffi::OsStr;
use std::io::Write;
use std::process::Stdio;

use serde_json::Value;
use sws_testing::{is_night, tales};

use crate::goldens::golden_dir;
use crate::sws::{Outcome, command, sws};

const PROMPTS: [&str; 7] = [
    "The wolf",
    "Once upon a time there was a little boat that wanted to see the sea, but it was afraid.",
    "A cat",
    "Tom said: \"No!\" and",
    "In the old house at the end of the road",
    "The wolf",
    "Rain fell",
];

fn lines(outcome: &Outcome) -> Vec<Value> {
    outcome.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn each_line_has_the_text_that_it_has_alone() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("prompts.txt");
    // Blank lines are skipped and counted; lines may end as on other systems.
    let text = format!("{}\r\n\n{}\n", PROMPTS[0], PROMPTS[1..].join("\n"));
    std::fs::write(&file, text).unwrap();
    let model = tales();
    let options: [&[&str]; 3] = [
        &["--seed", "11", "--max-new-tokens", "40"],
        &["--seed", "12", "--max-new-tokens", "9", "--stop", "."],
        &["--temperature", "0", "--repetition-penalty", "1.2", "--max-new-tokens", "24"],
    ];
    for options in options {
        let run = |args: &[&dyn AsRef<OsStr>]| {
            let mut all: Vec<&dyn AsRef<OsStr>> = vec![&"run", &model];
            all.extend(args);
            all.extend(options.iter().map(|word| word as &dyn AsRef<OsStr>));
            sws(&all).succeeded()
        };
        let is_drawn = options.contains(&"--seed");
        let alone: Vec<Value> = PROMPTS
            .iter()
            .map(|prompt| {
                let outcome = run(&[&"--prompt", prompt, &"--json"]);
                serde_json::from_str(outcome.stdout.lines().last().unwrap()).unwrap()
            })
            .collect();
        let cases: [&[&dyn AsRef<OsStr>]; 4] = [
            &[&"--ram", &"min"],
            &[&"--ram", &"80MiB", &"--parallel", &"7"],
            &[&"--resident", &"--parallel", &"3", &"--threads", &"1"],
            &[&"--parallel", &"1", &"--no-speculation"],
        ];
        for case in cases {
            let together = run(&[&[&"--prompts" as &dyn AsRef<OsStr>, &file], case].concat());
            assert_eq!(together.stderr.contains(", seed "), is_drawn, "{}", together.stderr);
            let together = lines(&together);
            let found: Vec<u64> = together.iter().map(|l| l["line"].as_u64().unwrap()).collect();
            assert_eq!(found, [1, 3, 4, 5, 6, 7, 8]);
            for (line, alone) in together.iter().zip(&alone) {
                for key in ["tokens", "text", "end", "seed", "sampler", "arithmetic"] {
                    assert_eq!(line[key], alone[key], "{key} of {line}");
                }
                assert_eq!(line["seed"].is_u64(), is_drawn, "{line}");
            }
        }
    }
}

/// A line that cannot be continued has an error, and the others are as without it.
#[test]
fn a_line_that_fails_leaves_the_others() {
    let model = tales();
    let long = "far ".repeat(30);
    let text = format!("A cat\n{long}\nThe wolf\n");
    let args: [&dyn AsRef<OsStr>; 11] = [
        &"run",
        &model,
        &"--prompts",
        &"-",
        &"--context",
        &"16",
        &"--max-new-tokens",
        &"5",
        &"--seed",
        &"3",
        &"--resident",
    ];
    let mut child = command(&args);
    let mut child = child.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let outcome = Outcome::of(child.wait_with_output().unwrap());
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    let lines = lines(&outcome);
    assert_eq!(lines.len(), 3);
    assert!(lines[1]["error"].as_str().unwrap().contains("has room for"), "{}", lines[1]);
    for (line, prompt) in [(&lines[0], "A cat"), (&lines[2], "The wolf")] {
        let alone: [&dyn AsRef<OsStr>; 10] = [
            &"run",
            &model,
            &"--prompt",
            &prompt,
            &"--max-new-tokens",
            &"5",
            &"--seed",
            &"3",
            &"--json",
            &"--resident",
        ];
        let alone: Value =
            serde_json::from_str(sws(&alone).succeeded().stdout.lines().last().unwrap()).unwrap();
        assert_eq!(line["tokens"], alone["tokens"]);
    }
}

/// Texts that wait take no memory but their tokens.
#[test]
fn thousands_of_lines_stay_within_the_smallest_budget() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("many.txt");
    let count = if is_night() { 5000 } else { 1500 };
    std::fs::write(&file, "The wolf\n".repeat(count)).unwrap();
    let args: [&dyn AsRef<OsStr>; 9] = [
        &"run",
        &tales(),
        &"--prompts",
        &file,
        &"--ram",
        &"min",
        &"--max-new-tokens",
        &"1",
        &"--no-warm-start",
    ];
    let outcome = sws(&args).succeeded();
    let found = lines(&outcome);
    assert_eq!(found.len(), count);
    assert!(found.iter().all(|line| line["tokens"] == found[0]["tokens"]));
    let peak = outcome.stderr.split("peak memory ").nth(1).unwrap();
    let mib: f64 = peak.split(' ').next().unwrap().parse().unwrap();
    assert!(mib < 64.0 && peak.contains("MiB"), "{peak}");
}

#[test]
fn prompts_that_cannot_be_read_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = temp.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let model = tales();
    let long = "long ".repeat(9000);
    #[rustfmt::skip]
    let cases = [
        (file("empty.txt", b"\n  \n"), "no prompts"),
        (file("latin.txt", b"caf\xe9\n"), "is not UTF-8"),
        (file("long.txt", format!("short\n{long}\n").as_bytes()), "line 2 of"),
        (temp.path().join("none.txt"), "cannot be read"),
        (temp.path().to_owned(), "cannot be read"),
    ];
    for (path, words) in &cases {
        sws(&[&"run", &model, &"--prompts", path]).refused(2, &[words]);
    }
    let good = file("good.txt", b"A cat\n");
    let without = golden_dir("qwen3_moe");
    sws(&[&"run", &without, &"--prompts", &good]).refused(2, &["tokenizer.json"]);
    for other in [["--prompt", "x"], ["--tokens", "1"], ["--record", "r"], ["--certify", "c"]] {
        let args: [&dyn AsRef<OsStr>; 6] =
            [&"run", &model, &"--prompts", &good, &other[0], &other[1]];
        let outcome = sws(&args);
        assert!(
            outcome.code == Some(2) && outcome.stderr.contains("cannot be used"),
            "{outcome:?}"
        );
    }
    let outcome = sws(&[&"run", &model, &"--parallel", &"2"]);
    assert!(outcome.code == Some(2) && outcome.stderr.contains("--prompts"), "{outcome:?}");
}
