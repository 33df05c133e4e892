//! `sws serve` with several models: within one budget, named, refused.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::{Value, json};
use sws_testing::goldens::copy;
use sws_testing::tales;
use tempfile::TempDir;

use crate::serve::Server;
use crate::sws::{command, sws};

/// A directory with a tiny model in it.
fn tiny() -> (TempDir, PathBuf) {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("tiny");
    copy("qwen3_moe", &dir);
    (temp, dir)
}

fn start(models: &[&dyn AsRef<OsStr>], more: &[&str]) -> Server {
    let mut args: Vec<&dyn AsRef<OsStr>> = vec![&"serve"];
    args.extend(models);
    args.extend([&"--port" as &dyn AsRef<OsStr>, &"0", &"--no-warm-start"]);
    args.extend(more.iter().map(|word| word as &dyn AsRef<OsStr>));
    Server::of(&mut command(&args))
}

/// The text of `sws run`.
fn expected(model: &Path, prompt: &str, seed: u64) -> Value {
    let seed = seed.to_string();
    let args: [&dyn AsRef<OsStr>; 12] = [
        &"run",
        &model,
        &"--prompt",
        &prompt,
        &"--seed",
        &seed,
        &"-n",
        &"24",
        &"--temperature",
        &"1",
        &"--json",
        &"--no-warm-start",
    ];
    let made: Value = serde_json::from_str(&sws(&args).succeeded().stdout).unwrap();
    made["text"].clone()
}

fn ids(server: &Server) -> Vec<String> {
    let models = server.client.get("/v1/models")["data"].clone();
    let ids = models.as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap());
    ids.map(str::to_owned).collect()
}

#[test]
fn models_in_turns_have_the_texts_of_run_within_one_budget() {
    let (_temp, tiny) = tiny();
    let models = [("tales-moe", tales(), "The wolf"), ("small", tiny.clone(), "hello")];
    let expected: Vec<Value> =
        models.iter().map(|(_, model, prompt)| expected(model, prompt, 11)).collect();
    let named = format!("small={}", tiny.display());
    for ram in ["min", "192MiB"] {
        let mut server = start(&[&tales(), &named], &["--ram", ram]);
        assert_eq!(ids(&server), ["tales-moe", "small"]);
        for _ in 0..4 {
            for ((model, _, prompt), expected) in models.iter().zip(&expected) {
                let body = json!({"model": model, "prompt": prompt, "seed": 11, "max_tokens": 24, "temperature": 1});
                assert_eq!(server.client.ask(&body)["choices"][0]["text"], *expected, "{model}");
            }
        }
        assert_eq!(server.client.metric("sws_model_loads_total"), 8.0);
        let budget = server.client.get("/props")["ram_budget_bytes"].as_u64().unwrap();
        assert_eq!(server.client.get("/props?model=small")["ram_budget_bytes"], budget);
        let peak = server.peak();
        assert!(peak <= budget, "{peak} bytes of {budget} with --ram {ram}");
        server.signal(Signal::TERM);
        server.line("all texts are over");
        assert_eq!(server.child.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn a_directory_stands_for_its_models_but_for_damaged_ones() {
    let (temp, _) = tiny();
    let damaged = temp.path().join("damaged");
    copy("qwen3_moe", &damaged);
    std::fs::write(damaged.join("config.json"), "{").unwrap();
    copy("olmoe", &temp.path().join("other"));
    let server = start(&[&temp.path()], &["--ram", "min"]);
    assert_eq!(ids(&server), ["other", "tiny"]);
    drop(server);
    let alone: [&dyn AsRef<OsStr>; 2] = [&"serve", &damaged];
    sws(&alone).refused(2, &["config.json"]);
}

#[test]
fn models_that_cannot_be_served_together_are_refused() {
    let (temp, tiny) = tiny();
    let nested = temp.path().join("below/tiny");
    copy("qwen3_moe", &nested);
    let damaged = temp.path().join("damaged");
    copy("qwen3_moe", &damaged);
    std::fs::write(damaged.join("config.json"), "{").unwrap();
    let taken = format!("tiny={}", tales().display());
    let missing = temp.path().join("missing");
    type Words<'a> = &'a [&'a dyn AsRef<OsStr>];
    let cases: [(Words, &[&str]); 7] = [
        (&[&nested], &["two models have the id `tiny`", "other=B"]),
        (&[&taken], &["two models have the id `tiny`", "tales-moe"]),
        (&[&damaged], &["damaged", "config.json"]),
        (&[&missing], &["missing"]),
        (&[&tales(), &"--resident"], &["--resident", "leave it out"]),
        (&[&tales(), &"--draft", &"x"], &["--draft is the file of one model"]),
        (&[&tales(), &"--ram", &"1MiB"], &["too small", "--ram"]),
    ];
    for (more, words) in cases {
        let mut args: Vec<&dyn AsRef<OsStr>> = vec![&"serve", &tiny, &"--port", &"0"];
        args.extend(more);
        // A budget is known to be too small once the port is open.
        let mut outcome = sws(&args);
        outcome.stderr = outcome.stderr.replace("sws: listening on ", "listening on ");
        outcome.refused(2, words);
    }
}
