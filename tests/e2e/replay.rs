//! `sws replay`: reads of simulated caches for recorded routes.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::sws::sws;

/// Routes of `shards/tales-moe` on its own tales; see the README there.
fn tales() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/traces/tales.safetensors")
}

fn json(args: &[&str]) -> Value {
    let trace = tales();
    let mut all: Vec<&dyn AsRef<std::ffi::OsStr>> = vec![&"replay", &trace, &"--json"];
    all.extend(args.iter().map(|arg| arg as &dyn AsRef<std::ffi::OsStr>));
    serde_json::from_str(&sws(&all).succeeded().stdout).unwrap()
}

fn misses(report: &Value) -> Vec<u64> {
    report["runs"].as_array().unwrap().iter().map(|run| run["misses"].as_u64().unwrap()).collect()
}

#[test]
fn the_default_policy_is_between_lru_and_the_optimum() {
    let report = json(&["--budgets", "10,20,30,50,75"]);
    for runs in report["runs"].as_array().unwrap().chunks(3) {
        let [lru, expected, belady] = runs else { panic!("three policies: {runs:?}") };
        let misses = |run: &Value| run["misses"].as_u64().unwrap();
        assert_eq!(lru["uses"], belady["uses"]);
        assert!(misses(belady) < misses(expected) && misses(expected) < misses(lru), "{runs:?}");
        assert_eq!(lru["gap_closed"], 0.0);
        assert_eq!(belady["gap_closed"], 1.0);
        let layers = expected["misses_by_layer"].as_array().unwrap();
        assert_eq!(layers.iter().map(|n| n.as_u64().unwrap()).sum::<u64>(), misses(expected));
    }
}

#[test]
fn no_cliff_below_the_experts_of_one_token() {
    // A token uses 8 × 4 = 32 experts; with fewer slots LRU never hits.
    let slots = "4,8,16,24,31,33,48";
    let ours = misses(&json(&["--slots", slots, "--policies", "expected"]));
    assert!(ours.is_sorted_by(|a, b| a > b), "{ours:?}");
    let lru = json(&["--slots", slots, "--policies", "lru"]);
    let uses = lru["runs"][0]["uses"].as_u64().unwrap();
    assert_eq!(misses(&lru)[..4], [uses; 4], "the cliff");
    assert!(ours[2] < uses * 9 / 10, "{} of {uses}", ours[2]);
}

#[test]
fn routes_written_by_forward_can_be_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let routes = dir.path().join("routes.safetensors");
    let tokens: Vec<String> = (1..60).map(|i| (i * 37 % 4000).to_string()).collect();
    sws(&[&"forward", &"--tokens", &tokens.join(","), &"--routes", &"--out", &routes]).succeeded();
    let told = sws(&[&"replay", &routes, &"--budgets", &"100", &"--json"]).succeeded();
    let report: Value = serde_json::from_str(&told.stdout).unwrap();
    assert_eq!(
        (&report["layers"], &report["experts"], &report["top_k"]),
        (&8.into(), &32.into(), &4.into())
    );
    assert_eq!(report["tokens"], 59);
    let table = sws(&[&"replay", &routes, &"--budgets", &"50"]).succeeded().stdout;
    let heading = table.lines().find(|line| line.starts_with("budget")).expect("a heading");
    let words: Vec<&str> = heading.split_whitespace().collect();
    assert_eq!(words, ["budget", "slots", "policy", "hits", "misses/token", "gap", "closed"]);
}

/// A card takes uses from the cache, as far as it has room, and only if it pays.
#[test]
fn a_card_computes_experts_of_its_own() {
    let run = |more: &[&str]| {
        json(&[&["--budgets", "20", "--policies", "expected,belady"][..], more].concat())
    };
    let alone = run(&[]);
    assert_eq!((alone["runs"].as_array().unwrap().len(), alone.get("vram_slots")), (2, None));
    let misses = |report: &Value| report["runs"][0]["misses"].as_u64().unwrap();
    let mut last = misses(&alone);
    for slots in ["16", "64", "192"] {
        let with = run(&["--vram-slots", slots]);
        let runs = with["runs"].as_array().unwrap();
        assert_eq!((runs.len(), &runs[0]["policy"]), (1, &"expected".into()), "{with}");
        assert_eq!(runs[0]["uses"], alone["runs"][0]["uses"]);
        let hits = runs[0]["vram"]["hit_rate"].as_f64().unwrap();
        assert!(hits > 0.05 && misses(&with) < last, "{with}");
        last = misses(&with);
    }
    // A card that takes much longer than a read is tried, and left alone.
    let slow = run(&["--vram-slots", "64", "--vram-times", "200,90000,800,400"]);
    assert!(slow["runs"][0]["vram"]["hit_rate"].as_f64().unwrap() < 0.01, "{slow}");
    let both = sws(&[&"replay", &tales(), &"--vram-slots=64"]).succeeded();
    assert!(both.stderr.contains("belady foresees no graphics card, and is left out"), "{both:?}");
    let table = both.stdout;
    assert!(table.contains("on card") && table.contains("--vram-times"), "{table}");
    let belady: [&dyn AsRef<std::ffi::OsStr>; 4] =
        [&"replay", &tales(), &"--policies=belady", &"--vram-slots=64"];
    sws(&belady).refused(2, &["belady", "--vram-slots"]);
}

#[test]
fn a_batch_shares_its_experts() {
    let one = json(&["--budgets", "50", "--policies", "expected"]);
    let four = json(&["--budgets", "50", "--policies", "expected", "--batch", "4"]);
    assert_eq!(one["counted"], four["counted"]);
    let uses = |report: &Value| report["runs"][0]["uses"].as_u64().unwrap();
    assert!(uses(&four) < uses(&one));
}

#[test]
fn bad_traces_and_words_are_refused_with_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let whole = std::fs::read(tales()).unwrap();
    let mut wrong = whole.clone();
    *wrong.last_mut().unwrap() = 200;
    let huge = dir.path().join("huge");
    std::fs::File::create(&huge).unwrap().set_len(1 << 40).unwrap();
    #[rustfmt::skip]
    let cases: Vec<(PathBuf, &str)> = vec![
        (dir.path().join("missing"), "cannot be read"),
        (dir.path().to_owned(), "not a regular file"),
        (huge, "a trace at most"),
        (write("empty", b""), "is not a trace"),
        (write("text", b"once upon a time"), "is not a trace"),
        (write("cut", &whole[..whole.len() - 1]), "is not a safetensors file"),
        (write("wrong", &wrong), "names expert 200 of a model that has 32"),
        (write("csv", b"turn,phase,step,layer,slot,expert\n0,0,0,0,0,y\n"), "line 2"),
    ];
    for (path, words) in cases {
        sws(&[&"replay", &path]).refused(2, &[words, &path.display().to_string()]);
    }
    #[rustfmt::skip]
    let words = [
        ("--budgets", "0"), ("--budgets", "101"), ("--budgets", "nan"), ("--slots", "0"),
        ("--policies", "mru"), ("--batch", "0"), ("--vram-slots", "0"), ("--vram-times", "1,2,3"),
    ];
    for (option, word) in words {
        let outcome = sws(&[&"replay", &tales(), &option, &word]);
        assert_eq!(outcome.code, Some(2), "{option} {word}: {outcome:?}");
    }
}
