//! Stand-ins: small copies of experts for looking ahead, which count only on request.

use std::ffi::OsStr;

use serde_json::Value;
use sws_testing::tales;

use crate::goldens::golden_dir;
use crate::sws::{Outcome, sws};

fn call(words: &[&str]) -> Outcome {
    sws(&words.iter().map(|word| word as &dyn AsRef<OsStr>).collect::<Vec<_>>())
}

#[test]
fn stand_ins_count_only_with_a_tolerance() {
    let temp = tempfile::tempdir().unwrap();
    let path = |name: &str| temp.path().join(name).to_str().unwrap().to_owned();
    let checkpoint = path("checkpoint");
    let model = path("shards");
    call(&["unshard", tales().to_str().unwrap(), "--out", &checkpoint]).succeeded();
    call(&["shard", &checkpoint, "--out", &model, "--stand-ins", "q4"]).succeeded();

    let run = |more: &[&str]| {
        let sampled = ["run", &model, "--tokens", "5,300,17", "--seed", "7", "--json"];
        let length = ["--max-new-tokens", "24", "--temperature", "1", "--ignore-eos"];
        call(&[&sampled[..], &length, more].concat())
    };
    let answer = |more: &[&str]| -> Value {
        serde_json::from_str(run(more).succeeded().stdout.lines().last().unwrap()).unwrap()
    };
    let exact = answer(&["--resident"]);
    for more in
        [&["--ram", "96MiB", "--stand-ins", "all"][..], &["--ram", "60MiB", "--stand-ins", "auto"]]
    {
        let found = answer(more);
        assert_eq!(found["tokens"], exact["tokens"], "{more:?}");
        assert_eq!(found["metrics"]["lossy"], exact["metrics"]["lossy"], "{more:?}");
        let stand_ins = &found["metrics"]["cost"]["generation"]["stand_ins"];
        assert_eq!(stand_ins["counted"], 0, "{stand_ins}");
        assert_eq!(stand_ins["caught"], stand_ins["offered"], "{stand_ins}");
    }
    let found = answer(&["--ram", "60MiB", "--tolerance", "100"]);
    let stand_ins = &found["metrics"]["cost"]["generation"]["stand_ins"];
    assert!(stand_ins["counted"].as_u64() > Some(0), "{stand_ins}");
    let label = found["metrics"]["lossy"].to_string();
    assert!(label.contains("not exact") && label.contains("not reproducible"), "{label}");

    // The smallest budget has room for stand-ins, and so has the budget that a refusal names.
    assert_eq!(answer(&["--ram", "min", "--stand-ins", "all"])["tokens"], exact["tokens"]);
    for less in ["8MiB", "42MiB"] {
        let refused = run(&["--ram", less, "--stand-ins", "all"]).refused(2, &["--ram "]);
        let (_, named) = refused.sentence().split_once("--ram ").unwrap();
        let named = named.split([' ', ',']).next().unwrap();
        let found = answer(&["--ram", named, "--stand-ins", "all"]);
        assert_eq!(found["tokens"], exact["tokens"], "{named}");
    }
}

/// The bound on a stand-in's error is proven for experts gated by silu.
#[test]
fn tolerance_is_refused_where_no_bound_is_proven() {
    let temp = tempfile::tempdir().unwrap();
    let model = temp.path().join("shards").to_str().unwrap().to_owned();
    let checkpoint = golden_dir("gpt_oss").to_str().unwrap().to_owned();
    call(&["shard", &checkpoint, "--out", &model, "--stand-ins", "q4"]).succeeded();
    call(&["run", &model, "--tolerance", "0.1", "--tokens", "1", "--json"])
        .refused(2, &["a tolerance needs a bound", "leave --tolerance out"]);
    let forward = |more: &[&str]| {
        let out = temp.path().join("out.safetensors");
        let args = ["forward", &model, "--tokens", "5,30,17,99", "--out", out.to_str().unwrap()];
        call(&[&args[..], more].concat()).succeeded();
        std::fs::read(out).unwrap()
    };
    let exact = forward(&["--resident"]);
    assert!(forward(&["--ram", "min", "--stand-ins", "all"]) == exact, "running ahead needs none");
}
