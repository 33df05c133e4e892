//! A pipe in place of a file is refused or skipped, and never blocks. One signal ends a program
//! that is reading.

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::goldens::copy;
use crate::sws::{Outcome, command, sws};

fn make_pipe(path: &Path) {
    let _ = std::fs::remove_file(path);
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Runs `sws` with a cache folder of its own, and a time limit of one minute.
fn within_a_minute(cache: &Path, args: &[&dyn AsRef<OsStr>]) -> Outcome {
    let sws = command(args);
    let mut timed = Command::new("timeout");
    timed.args(["-k", "1", "60"]).arg(sws.get_program()).args(sws.get_args());
    timed.env("XDG_CACHE_HOME", cache).stdin(Stdio::null());
    let outcome = Outcome::of(timed.output().unwrap());
    assert!(!matches!(outcome.code, Some(124 | 137) | None), "timed out: {outcome:?}");
    outcome
}

#[test]
fn pipes_among_the_files_of_a_model_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str| temp.path().join(name);
    let cache = at("cache");
    let shards = at("shards");
    copy("qwen3_moe", &at("whole"));
    sws(&[&"shard", &at("whole"), &"--out", &shards]).succeeded();
    let expert = "layer_1/expert_2.safetensors";
    let not_regular = "not a regular file";
    for (model, name, words) in [
        ("whole", "config.json", not_regular),
        ("whole", "generation_config.json", not_regular),
        ("whole", "tokenizer.json", not_regular),
        ("whole", "model.safetensors", not_regular),
        ("whole", "model.safetensors.index.json", not_regular),
        ("whole", "draft.safetensors", "not a draft"),
        ("shards", "config.json", not_regular),
        ("shards", "tokenizer.json", not_regular),
        ("shards", "manifest.json", not_regular),
        ("shards", expert, not_regular),
        ("shards", "draft.safetensors", "not a draft"),
    ] {
        let path = at(model).join(name);
        let kept = std::fs::read(&path).ok();
        let weights = at("whole/model.safetensors");
        if name.ends_with(".index.json") {
            std::fs::rename(&weights, at("aside")).unwrap();
        }
        make_pipe(&path);
        let run: [&dyn AsRef<OsStr>; 6] =
            [&"run", &at(model), &"--tokens", &"1,2", &"--max-new-tokens=2", &"--json"];
        within_a_minute(&cache, &run).refused(2, &[name, words]);
        std::fs::remove_file(&path).unwrap();
        if let Some(bytes) = kept {
            std::fs::write(&path, bytes).unwrap();
        }
        if name.ends_with(".index.json") {
            std::fs::rename(at("aside"), &weights).unwrap();
        }
    }
    for (name, code) in [("tokenizer.json", 1), (expert, 1), ("manifest.json", 2)] {
        let kept = std::fs::read(shards.join(name)).unwrap();
        make_pipe(&shards.join(name));
        let verified = within_a_minute(&cache, &[&"verify", &shards]);
        assert_eq!(verified.code, Some(code), "{verified:?}");
        let unsharded = within_a_minute(&cache, &[&"unshard", &shards, &"--out", &at("back")]);
        assert!(matches!(unsharded.code, Some(1 | 2)), "{unsharded:?}");
        std::fs::remove_file(shards.join(name)).unwrap();
        std::fs::write(shards.join(name), kept).unwrap();
        let _ = std::fs::remove_dir_all(at("back"));
    }
    // Non-regular files are not copied, and such a journal is treated as a foreign file.
    make_pipe(&at("whole/README.md"));
    std::fs::create_dir(at("out")).unwrap();
    make_pipe(&at("out/.sws-journal"));
    let shard: [&dyn AsRef<OsStr>; 4] = [&"shard", &at("whole"), &"--out", &at("out")];
    within_a_minute(&cache, &shard).refused(2, &["out", ".sws-journal", "choose"]);
    std::fs::remove_file(at("out/.sws-journal")).unwrap();
    within_a_minute(&cache, &shard).succeeded();
}

#[test]
fn pipes_as_arguments_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let model = temp.path().join("model");
    let pipe = temp.path().join("pipe");
    let tales = sws_testing::tales();
    copy("qwen3_moe", &model);
    make_pipe(&pipe);
    let cases: [(Vec<&dyn AsRef<OsStr>>, &str); 10] = [
        (vec![&"run", &model, &"--tokens", &"1", &"--draft", &pipe], "not a draft"),
        (vec![&"certify", &pipe, &model], "not a regular file"),
        (vec![&"replay", &pipe], "not a regular file"),
        (vec![&"draft", &"score", &model, &"--traces", &pipe], "not a regular file"),
        (vec![&"draft", &"train", &model, &"--traces", &pipe], "not a regular file"),
        (vec![&"run", &tales, &"--prompt-file", &pipe], "not a regular file"),
        (vec![&"run", &tales, &"--prompts", &pipe], "not a regular file"),
        (vec![&"run", &tales, &"--json-schema", &pipe], "not a regular file"),
        (vec![&"run", &tales, &"--grammar", &pipe], "not a regular file"),
        (vec![&"serve", &tales, &"--api-key-file", &pipe], "not a regular file"),
    ];
    for (args, words) in cases {
        within_a_minute(temp.path(), &args).refused(2, &["pipe", words]);
    }
}

#[test]
fn pipes_in_the_cache_folder_are_skipped() {
    let temp = tempfile::tempdir().unwrap();
    let model = temp.path().join("model");
    let cache = temp.path().join("cache");
    copy("qwen3_moe", &model);
    let run = || {
        let args: [&dyn AsRef<OsStr>; 7] = [
            &"run",
            &model,
            &"--tokens",
            &"1,2,3",
            &"--temperature=0",
            &"--max-new-tokens=4",
            &"--json",
        ];
        let outcome = within_a_minute(&cache, &args).succeeded();
        let json: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
        (json["tokens"].clone(), outcome.stderr)
    };
    let (tokens, _) = run();
    let mut records = 0;
    for folder in [cache.join("sws"), cache.join("sws/learned")] {
        for entry in folder.read_dir().unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                make_pipe(&path);
                records += 1;
            }
        }
    }
    // One for the weights, one for each small file that was read, and the learned file.
    assert_eq!(records, 5);
    let (again, said) = run();
    assert_eq!(again, tokens);
    assert!(said.contains("not a regular file"), "{said}");
}

/// `timeout` sends the signal after two seconds, and kills a process still alive ten seconds later.
#[test]
fn one_signal_ends_the_reading_of_an_endless_prompt() {
    let temp = tempfile::tempdir().unwrap();
    copy("qwen3_moe", &temp.path().join("model"));
    let sws = command(&[&"run", &temp.path().join("model")]);
    for signal in ["INT", "TERM", "HUP"] {
        let mut timed = Command::new("timeout");
        timed.args(["-k", "10", "-s", signal, "2"]).arg(sws.get_program()).args(sws.get_args());
        timed.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = timed.spawn().unwrap();
        // Held open until the end, so that the prompt never ends.
        let prompt = child.stdin.take();
        let status = child.wait().unwrap();
        drop(prompt);
        assert_eq!((status.code(), status.signal()), (Some(124), None), "{signal}");
    }
}
