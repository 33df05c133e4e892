//! Copies of shards on other drives: `sws mirror`, `--also`, and their faults.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sws_testing::tales;

use crate::goldens::golden_dir;
use crate::sws::{Outcome, assert_same_tree, command, sws, tree};

fn run(model: &Path, more: &[&dyn AsRef<OsStr>]) -> Outcome {
    let mut args: Vec<&dyn AsRef<OsStr>> = vec![&"run", &model, &"--prompt=The wolf", &"-n24"];
    let rest: [&dyn AsRef<OsStr>; 5] =
        [&"--seed=7", &"--ram=min", &"--context=128", &"--ignore-eos", &"--no-warm-start"];
    args.extend(rest);
    args.extend(more);
    sws(&args)
}

fn json(outcome: Outcome) -> Value {
    serde_json::from_str(&outcome.succeeded().stdout).unwrap()
}

/// A whole copy of the bundled model.
fn copied(dir: &Path, name: &str) -> PathBuf {
    let out = dir.join(name);
    sws(&[&"mirror", &tales(), &out]).succeeded();
    out
}

/// Flips a bit in the middle of every expert.
fn damage(dir: &Path) {
    for (name, mut bytes) in tree(dir) {
        if name.to_string_lossy().contains("expert") {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            std::fs::write(dir.join(name), bytes).unwrap();
        }
    }
}

#[test]
fn copies_change_no_bit() {
    let temp = tempfile::tempdir().unwrap();
    let whole = copied(temp.path(), "whole");
    let part = temp.path().join("part");
    let made = json(sws(&[&"mirror", &tales(), &part, &"--size=1536KiB", &"--json"]));
    let [shards, of, bytes] = ["shards", "of", "bytes"].map(|key| made[key].as_u64().unwrap());
    assert!(shards > 10 && shards < of && bytes < 1536 << 10, "{made}");
    let kept: u64 = tree(&part).values().map(|bytes| bytes.len() as u64).sum();
    assert!(kept <= 1536 << 10 && kept > 1400 << 10, "{kept}");

    let certificate = temp.path().join("certificate");
    run(&tales(), &[&"--certify", &certificate]).succeeded();
    let again: [&dyn AsRef<OsStr>; 9] = [
        &"certify",
        &certificate,
        &tales(),
        &"--ram=min",
        &"--also",
        &whole,
        &"--also",
        &part,
        &"--json",
    ];
    let again = json(sws(&again));
    assert_eq!(again["agrees"], true, "{again}");
    for reader in ["direct", "uring", "mmap"] {
        let options: [&dyn AsRef<OsStr>; 7] =
            [&"--also", &whole, &"--also", &part, &"--json", &"--reader", &reader];
        let told = run(&tales(), &options);
        if reader == "uring" && told.code == Some(2) {
            continue;
        }
        let told = json(told);
        assert_eq!(told["text"], json(run(&tales(), &[&"--json"]))["text"]);
        let drives = told["metrics"]["cost"]["generation"]["drives"].as_array().unwrap();
        assert_eq!(drives.len(), 3, "{told}");
        assert!(drives.iter().all(|drive| drive["left_out"] == false), "{told}");
    }
    let account = run(&tales(), &[&"--also", &whole, &"-v"]).succeeded().stderr;
    assert!(account.contains("drives     the model's own "), "{account}");
    assert!(account.contains("; copy 1 "), "{account}");
}

#[test]
fn copies_that_fail_are_left_out_and_named_once() {
    let temp = tempfile::tempdir().unwrap();
    let text = json(run(&tales(), &[&"--json"]))["text"].clone();
    let copy = copied(temp.path(), "copy");
    damage(&copy);
    let own = copied(temp.path(), "own");
    damage(&own);
    let empty = temp.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let absent = temp.path().join("absent");
    let sound = tales();
    // The model, its copy, and words of the sentence.
    let cases: [(&Path, &Path, [&str; 2]); 4] = [
        (&sound, &absent, ["absent` does not exist", "left out"]),
        (&sound, &empty, ["empty` has no manifest.json", "left out"]),
        (&sound, &copy, ["copy/layer_", "wrong bytes"]),
        // Damaged shards are no obstacle where a copy is sound.
        (&own, &sound, ["own/layer_", "left out"]),
    ];
    for (model, also, words) in cases {
        let told = run(model, &[&"--also", &also, &"--json"]);
        let sentence = told.sentence().to_owned();
        assert!(words.iter().all(|word| sentence.contains(word)), "{sentence}");
        assert_eq!(json(told)["text"], text, "{sentence}");
    }
    run(&own, &[&"--also", &copy]).refused(2, &["own/layer_", "checksum"]);
}

#[test]
fn wrong_copies_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let golden = golden_dir("qwen3_moe");
    let other = temp.path().join("other");
    sws(&[&"shard", &golden, &"--out", &other]).succeeded();
    let garbled = temp.path().join("garbled");
    std::fs::create_dir(&garbled).unwrap();
    std::fs::write(garbled.join("manifest.json"), "{\"blake3\":\"nonsense\"}").unwrap();
    let copy = copied(temp.path(), "copy");
    run(&tales(), &[&"--also", &other]).refused(2, &["other", "another model"]);
    run(&tales(), &[&"--also", &garbled]).refused(2, &["garbled", "checksum"]);
    run(&tales(), &[&"--also", &tales()]).refused(2, &["read already"]);
    run(&tales(), &[&"--also", &copy, &"--also", &copy]).refused(2, &["copy", "read already"]);
    run(&golden, &[&"--also", &copy]).refused(2, &["checksums", "sws shard"]);
    sws(&[&"plan", &tales(), &"--also", &other]).refused(2, &["another model"]);
    sws(&[&"mirror", &other, &copy]).refused(2, &["copy", "another model"]);
    sws(&[&"mirror", &golden, &temp.path().join("x")]).refused(2, &["no manifest.json"]);
    sws(&[&"mirror", &tales(), &temp.path().join("x"), &"--size=1MiB"]).succeeded();
    sws(&[&"mirror", &tales(), &"/proc/nonesuch"]).refused(2, &["/proc/nonesuch"]);
}

#[test]
fn copies_are_planned_configured_and_made_with_the_shards() {
    let temp = tempfile::tempdir().unwrap();
    let golden = golden_dir("qwen3_moe");
    let [out, copy] = ["out", "copy"].map(|name| temp.path().join(name));
    sws(&[&"shard", &golden, &"--out", &out, &"--also", &copy]).succeeded();
    assert_same_tree(&out, &copy);
    // Their threads and tables are in the ledger.
    let plan: [&dyn AsRef<OsStr>; 4] = [&"plan", &out, &"--json", &"--no-probe"];
    let line = |plan: &Value, name: &str| plan["ledger"][name].as_u64().unwrap();
    let alone = json(sws(&plan));
    let both = json(sws(&[&plan[..], &[&"--also", &copy]].concat()));
    assert_eq!(line(&both, "stacks"), line(&alone, "stacks") + (1 << 20));
    assert!(line(&both, "kernel") > line(&alone, "kernel"));
    // By the configuration of a model.
    let file = temp.path().join("config.toml");
    let text = format!("[model.{:?}]\nalso = [{:?}]\n", out.display(), copy.display());
    std::fs::write(&file, text).unwrap();
    let mut run = command(&[&"run", &out, &"--tokens=1,2", &"-n2", &"--json"]);
    let told = json(Outcome::of(run.env("SWS_CONFIG", &file).output().unwrap()));
    let drives = &told["metrics"]["cost"]["prompt"]["drives"];
    assert_eq!(drives.as_array().map(Vec::len), Some(2), "{told}");
}
