//! `--activations int8`: the same text in every tier, budget and division of a prompt, another one than that
//! of exact activations, and named wherever bits are.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sws_testing::goldens;

use crate::serve::Server;
use crate::sws::{Outcome, command, sws};

/// Shards whose matrices are all of codes.
fn shards(temp: &Path) -> PathBuf {
    let checkpoint = temp.join("checkpoint");
    let out = temp.join("q4");
    goldens::copy("qwen3_moe", &checkpoint);
    sws(&[&"shard", &checkpoint, &"--out", &out, &"--encoding", &"q4"]).succeeded();
    out
}

fn forward(shards: &Path, out: &Path, tier: &str, more: &[&str]) -> Vec<u8> {
    let mut args: Vec<&dyn AsRef<OsStr>> =
        vec![&"forward", &shards, &"--tokens", &"1,2,3,5,8,13,21", &"--out", &out];
    args.extend(more.iter().map(|word| word as &dyn AsRef<OsStr>));
    Outcome::of(command(&args).env("SWS_TIER", tier).output().unwrap()).succeeded();
    std::fs::read(out).unwrap()
}

#[test]
fn rounded_activations_give_the_same_bits_in_every_tier_and_budget() {
    let temp = tempfile::tempdir().unwrap();
    let shards = shards(temp.path());
    let out = temp.path().join("out.safetensors");
    let int8 = ["--activations", "int8"];
    let expected = forward(&shards, &out, "scalar", &int8);
    for tier in sws_kernels::Tier::available() {
        for holding in [["--ram", "min"], ["--resident", "--no-speculation"]] {
            let found = forward(&shards, &out, tier.name(), &[int8, holding].concat());
            assert!(found == expected, "{tier} {holding:?}");
        }
        let exact = forward(&shards, &out, tier.name(), &["--activations", "f32"]);
        assert!(exact != expected, "{tier}");
        assert!(forward(&shards, &out, tier.name(), &[]) == exact, "{tier}");
    }
}

#[test]
fn a_run_with_rounded_activations_says_so() {
    let temp = tempfile::tempdir().unwrap();
    let shards = shards(temp.path());
    let certificate = temp.path().join("a.cert");
    let run = |more: &[&dyn AsRef<OsStr>]| {
        let args: [&dyn AsRef<OsStr>; 7] =
            [&"run", &shards, &"--tokens=1,2,3", &"-n", &"4", &"--temperature=0", &"--json"];
        sws(&[&args[..], more].concat()).succeeded()
    };
    let rounded = run(&[&"--activations", &"int8", &"--certify", &certificate]);
    assert!(rounded.stderr.contains("activations rounded to int8"), "{}", rounded.stderr);
    let json: Value = serde_json::from_str(&rounded.stdout).unwrap();
    assert_eq!(json["metrics"]["activations"], "int8");
    let lossy = json["metrics"]["lossy"].to_string();
    assert!(lossy.contains("activations rounded to int8"), "{lossy}");
    let exact: Value = serde_json::from_str(&run(&[]).stdout).unwrap();
    assert_eq!(exact["metrics"]["activations"], "f32");
    assert!(!exact["metrics"]["lossy"].to_string().contains("activations"));

    // Certificates of one kind are refused by the other.
    let int8: [&dyn AsRef<OsStr>; 2] = [&"--activations", &"int8"];
    let certify: [&dyn AsRef<OsStr>; 3] = [&"certify", &certificate, &shards];
    sws(&certify).refused(2, &["a.cert", "int8 activations", "--activations int8"]);
    sws(&[&certify[..], &int8].concat()).succeeded();
    run(&[&"--certify", &certificate]);
    sws(&[&certify[..], &int8].concat()).refused(2, &["f32 activations", "--activations f32"]);
    sws(&certify).succeeded();
}

#[test]
fn plans_and_servers_name_rounded_activations() {
    let temp = tempfile::tempdir().unwrap();
    let shards = shards(temp.path());
    let plan: [&dyn AsRef<OsStr>; 5] = [&"plan", &shards, &"--no-probe", &"--activations", &"int8"];
    let text = sws(&plan).succeeded().stdout;
    assert!(text.contains("--activations int8"), "{text}");
    let json = sws(&[&plan[..], &[&"--json"]].concat()).succeeded().stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["activations"], "int8");

    let props = |more: &[&str]| {
        let mut args: Vec<&dyn AsRef<OsStr>> =
            vec![&"serve", &shards, &"--port", &"0", &"--no-warm-start"];
        args.extend(more.iter().map(|word| word as &dyn AsRef<OsStr>));
        Server::of(&mut command(&args)).client.get("/props")
    };
    let exact = props(&[]);
    let rounded = props(&["--activations", "int8"]);
    assert_eq!((&exact["activations"], &rounded["activations"]), (&"f32".into(), &"int8".into()));
    let fingerprint = |props: &Value| props["system_fingerprint"].as_str().unwrap().to_owned();
    assert!(fingerprint(&rounded).contains("-int8-"), "{rounded}");
    assert_eq!(fingerprint(&rounded).replace("-int8", ""), fingerprint(&exact));
    assert!(rounded["lossy"].to_string().contains("activations rounded to int8"), "{rounded}");
}
