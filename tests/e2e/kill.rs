//! Sharding and unsharding can be killed at any moment, resume, and give the same bytes.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use sws_format::Clock;

use crate::checkpoints::{Random, tiny};
use crate::sws::{assert_same_tree, command, sws, tree};

/// Runs a command that makes a directory (`--out` is added), kills it at a random moment and once
/// more while it resumes, then lets it finish. Returns the number of kills that came in the middle:
/// after the first journal entry and before the last step.
fn kill_and_resume(prefix: &[&dyn AsRef<OsStr>], temp: &Path, seed: u64, times: u64) -> u64 {
    let clock = Clock::real();
    let whole = temp.join("whole");
    // The shortest of some runs: one that other programs slow down would put most kills behind the end.
    let run = |_| {
        let _ = std::fs::remove_dir_all(&whole);
        let start = clock.now();
        sws(&[prefix, &[&"--out", &whole]].concat()).succeeded();
        clock.now() - start
    };
    let duration = (0..3).map(run).min().expect("three runs");
    let mut random = Random(seed);
    let mut interrupted = 0;
    for time in 0..times {
        let out = temp.join(format!("killed-{time}"));
        let args: Vec<&dyn AsRef<OsStr>> = [prefix, &[&"--out", &out]].concat();
        for _ in 0..2 {
            let mut child = command(&args).spawn().unwrap();
            clock.sleep(Duration::from_nanos(random.below(duration.as_nanos() as u64)));
            child.kill().unwrap();
            let killed = !child.wait().unwrap().success();
            interrupted += u64::from(killed && out.join(".sws-journal").exists());
            if out.exists() {
                assert_complete_files(&out, &whole);
            }
        }
        sws(&args).succeeded();
        assert_same_tree(&whole, &out);
        std::fs::remove_dir_all(&out).unwrap();
    }
    interrupted
}

/// A file with its final name is complete.
#[track_caller]
fn assert_complete_files(out: &Path, whole: &Path) {
    for (name, bytes) in tree(out) {
        let text = name.to_string_lossy();
        if !text.ends_with(".sws-journal") && !text.ends_with(".sws-tmp") {
            let expected = std::fs::read(whole.join(&name)).unwrap();
            assert!(bytes == expected, "{text} is partial after a kill");
        }
    }
}

#[test]
fn sharding_killed_at_fifty_random_moments() {
    let temp = tempfile::tempdir().unwrap();
    let checkpoint = temp.path().join("in");
    tiny("qwen2_moe", safetensors::Dtype::BF16, 11).write(&checkpoint, 2);
    let prefix: [&dyn AsRef<OsStr>; 4] = [&"shard", &checkpoint, &"--stand-ins", &"q4"];
    let interrupted = kill_and_resume(&prefix, temp.path(), 1, 50);
    eprintln!("{interrupted} of 100 kills came in the middle of sharding");
    assert!(interrupted > 25, "only {interrupted} of 100 kills came in the middle");
}

#[test]
fn unsharding_killed_at_random_moments() {
    let temp = tempfile::tempdir().unwrap();
    let checkpoint = temp.path().join("in");
    let shards = temp.path().join("shards");
    tiny("olmoe", safetensors::Dtype::BF16, 12).write(&checkpoint, 9);
    sws(&[&"shard", &checkpoint, &"--out", &shards]).succeeded();
    let interrupted = kill_and_resume(&[&"unshard", &shards], temp.path(), 2, 15);
    eprintln!("{interrupted} of 30 kills came in the middle of unsharding");
    assert!(interrupted > 0, "no kill came in the middle");
}

#[test]
fn damaged_shards_of_an_earlier_run_are_made_anew_and_counted() {
    let temp = tempfile::tempdir().unwrap();
    let [checkpoint, whole, out] = ["in", "whole", "out"].map(|name| temp.path().join(name));
    tiny("qwen2_moe", safetensors::Dtype::BF16, 13).write(&checkpoint, 2);
    let shard = |out: &Path| sws(&[&"shard", &checkpoint, &"--stand-ins", &"q4", &"--out", &out]);
    shard(&whole).succeeded();
    shard(&out).succeeded();
    let flip = |name: &str| {
        let path = out.join(name);
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(path, bytes).unwrap();
    };
    let cases: [(&[&str], &str); 5] = [
        (&[], "all there before and verified:"),
        (&["layer_1/expert_2.safetensors"], "before and verified, a damaged file made anew:"),
        (&["config.json"], "all there before and verified, a damaged file made anew:"),
        (&["embed.safetensors", "layer_0/expert_0.q4.safetensors"], "2 damaged files made anew:"),
        (&["manifest.json"], "a damaged file made anew:"),
    ];
    for (names, words) in cases {
        names.iter().for_each(|name| flip(name));
        let code = sws(&[&"verify", &out]).code;
        assert_eq!(code, Some(i32::from(!names.is_empty())), "{names:?}");
        let done = shard(&out).succeeded();
        assert!(done.stdout.contains(words), "{names:?}: {done:?}");
        assert_same_tree(&whole, &out);
        sws(&[&"verify", &out]).succeeded();
    }
    // They are no damaged shards of another encoding.
    flip("manifest.json");
    let before = tree(&out);
    for encoding in ["q4", "bf11", "bf16"] {
        let other = sws(&[&"shard", &checkpoint, &"--encoding", &encoding, &"--out", &out]);
        other.refused(2, &[]);
        assert!(tree(&out) == before, "{encoding}");
    }
}
