//! Streaming: the same answer at any budget, with its cost, recorded and certified.

use std::ffi::OsStr;
use std::path::Path;

use serde_json::Value;
use sws_engine::Certificate;
use sws_testing::{each_nth, tales};

use crate::goldens::{Tensors, golden, golden_dir, list, runnable, variants};
use crate::sws::{Outcome, sws, tree};

fn run(command: &str, model: &Path, more: &[&str]) -> Outcome {
    let mut args: Vec<&dyn AsRef<OsStr>> = vec![&command, &model];
    args.extend(more.iter().map(|word| word as &dyn AsRef<OsStr>));
    sws(&args)
}

const SAMPLED: [&str; 12] = [
    "--tokens",
    "5,300,17,99,1000,41,7",
    "--max-new-tokens",
    "24",
    "--temperature",
    "1",
    "--top-k",
    "40",
    "--seed",
    "7",
    "--ignore-eos",
    "--json",
];

fn answer(model: &Path, more: &[&str]) -> Value {
    let outcome = run("run", model, &[&SAMPLED, more].concat()).succeeded();
    serde_json::from_str(outcome.stdout.lines().last().unwrap()).unwrap()
}

/// The smallest budget that works, taken from the refusal of a smaller one.
fn least(model: &Path) -> u64 {
    let refused = run("run", model, &[&SAMPLED[..], &["--ram", "1MiB"]].concat());
    let refused = refused.refused(2, &["too small", "--ram min"]);
    let (_, rest) = refused.stderr.split_once("--ram ").unwrap();
    rest.split_once("MiB").unwrap().0.parse().unwrap()
}

#[test]
fn an_answer_does_not_depend_on_memory_policy_or_reader() {
    let expected = answer(&tales(), &["--resident"]);
    assert_eq!(expected["metrics"]["ram_bytes"], Value::Null);
    let least = least(&tales());
    let budget = |more: u64| format!("{}MiB", least + more);
    let low = budget(1);
    let middle = budget(4);
    let high = budget(40);
    let cases: [&[&str]; 7] = [
        &["--ram", "min"],
        &["--ram", &low, "--policy", "lru"],
        &["--ram", &middle, "--policy", "lru", "--no-speculation"],
        &["--ram", &middle, "--reader", "mmap"],
        &["--ram", &middle, "--threads", "1"],
        &["--ram", &high],
        &[],
    ];
    for more in cases {
        let found = answer(&tales(), more);
        assert_eq!(found["tokens"], expected["tokens"], "{more:?}");
        assert_eq!(found["text"], expected["text"], "{more:?}");
        let metrics = &found["metrics"];
        assert!(metrics["ram_bytes"].as_u64() > Some(0), "{metrics}");
        let cost = &metrics["cost"]["generation"];
        assert_eq!(cost["tokens"], 23, "{metrics}");
        let time = ["compute", "stall", "other"].map(|part| cost["time"][part].as_f64().unwrap());
        let sum = time.iter().sum::<f64>();
        let seconds = cost["seconds"].as_f64().unwrap();
        assert!((sum - seconds).abs() <= 0.01 * seconds, "{cost}");
    }
}

#[test]
fn every_family_streams_its_resident_logits() {
    let temp = tempfile::tempdir().unwrap();
    for name in each_nth(variants(), 3) {
        let model = runnable(&name);
        let dir = &model.dir;
        let tokens = list(&golden(&name).tokens);
        let out = temp.path().join("out.safetensors");
        let forward = |more: &[&str]| {
            let out = out.to_str().unwrap();
            let args = [&["--tokens", &tokens, "--out", out, "--routes"], more].concat();
            run("forward", dir, &args).succeeded();
            std::fs::read(out).unwrap()
        };
        let expected = forward(&["--resident"]);
        for more in [&["--ram", "min"], &["--ram", "auto"]] {
            assert!(forward(more) == expected, "{name} {more:?}");
        }
    }
}

#[test]
fn routes_and_hidden_states_are_recorded() {
    let temp = tempfile::tempdir().unwrap();
    let plain = temp.path().join("a.safetensors");
    let full = temp.path().join("b.safetensors");
    let expected = answer(&tales(), &["--resident", "--record", plain.to_str().unwrap()]);
    let hidden = ["--ram", "min", "--record", full.to_str().unwrap(), "--record-hidden"];
    assert_eq!(answer(&tales(), &hidden)["tokens"], expected["tokens"]);

    let plain = Tensors::read(&plain);
    let full = Tensors::read(&full);
    // The prompt's seven tokens and all new ones but the last have gone through the layers.
    assert_eq!(plain.0["ids"].1, [30, 8, 4]);
    assert_eq!(plain.0["ids"], full.0["ids"]);
    let tokens = [&[5, 300, 17, 99, 1000, 41, 7], &*numbers(&expected["tokens"])].concat();
    assert_eq!(plain.integers("tokens"), tokens[..30]);
    assert_eq!(plain.integers("lens"), [30]);
    assert_eq!(plain.integers("passes").len(), 24);
    assert!(!plain.0.contains_key("hidden"));
    for states in ["hidden", "attended"] {
        assert_eq!(full.0[states].1, [30, 8, 192]);
        assert!(full.floats(states).chunks(192).all(|row| row.iter().any(|&x| x != 0.0)));
    }
    assert_ne!(full.floats("hidden"), full.floats("attended"));
    assert_eq!(tree(temp.path()).len(), 2, "nothing half-written is left");

    let nowhere = temp.path().join("nowhere/file");
    let more = ["--record", nowhere.to_str().unwrap()];
    run("run", &tales(), &[&SAMPLED[..], &more].concat())
        .refused(2, &["nowhere", "cannot be written"]);
    run("run", &golden_dir("llama"), &["--tokens", "1", "--json", "--record", "x"])
        .refused(2, &["no experts"]);
}

/// Certificates by a program of the first version: of a model whose products have changed, and of one whose
/// products have not.
#[test]
fn certificates_of_another_arithmetic_are_refused_by_name() {
    let temp = tempfile::tempdir().unwrap();
    let fresh = temp.path().join("fresh.json");
    let options =
        ["--tokens", "1,2,3", "-n", "3", "--temperature", "0.7", "--ignore-eos", "--json"];
    for (file, model, arithmetic) in [
        ("arithmetic-1-int4.json", "deepseek_v3_int4", 2),
        ("arithmetic-1-bf16.json", "qwen3_moe", 1),
    ] {
        let model = golden_dir(model);
        let old = temp.path().join(file);
        std::fs::write(&old, of_this_version(file)).unwrap();
        let outcome = sws(&[&"certify", &old, &model]);
        match arithmetic {
            1 => assert!(outcome.succeeded().stdout.contains("every bit agrees in all 3 steps")),
            _ => drop(outcome.refused(
                2,
                &[file, "version 1 of the arithmetic", "by version 2", "`sws run --certify FILE`"],
            )),
        }
        run("run", &model, &[&options[..], &["--certify", fresh.to_str().unwrap()]].concat())
            .succeeded();
        let json: Value = serde_json::from_slice(&std::fs::read(&fresh).unwrap()).unwrap();
        assert_eq!(json["arithmetic"].as_u64().unwrap_or(1), arithmetic, "{file}");
        sws(&[&"certify", &fresh, &model]).succeeded();
    }
}

/// A certificate of `tests/certificates`, as if this version of the program had made it.
fn of_this_version(file: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/certificates");
    let mut json: Value =
        serde_json::from_slice(&std::fs::read(folder.join(file)).unwrap()).unwrap();
    json["version"] = env!("CARGO_PKG_VERSION").into();
    let mut certificate: Certificate = serde_json::from_value(json).unwrap();
    certificate.seal();
    certificate.to_json()
}

fn numbers(json: &Value) -> Vec<u32> {
    serde_json::from_value(json.clone()).unwrap()
}

#[test]
fn a_certificate_is_checked_bit_by_bit() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("answer.json");
    let file = path.to_str().unwrap();
    answer(&tales(), &["--ram", "min", "--certify", file]);
    let certify = |more: &[&str]| {
        let tales = tales();
        let args = [&["certify", file, tales.to_str().unwrap()], more].concat();
        sws(&args.iter().map(|word| word as &dyn AsRef<OsStr>).collect::<Vec<_>>())
    };
    for more in [&["--resident"][..], &["--ram", "min", "--policy", "lru"], &["--json"], &[]] {
        let outcome = certify(more).succeeded();
        let agrees = ["every bit agrees in all 24 steps", "\"agrees\": true"];
        assert!(agrees.iter().any(|words| outcome.stdout.contains(words)), "{outcome:?}");
    }

    certify(&["--kv", "f32"]).succeeded();
    certify(&["--kv", "bf16"]).refused(2, &["answer.json", "leave out --kv"]);

    let json = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, json.replacen("\"seed\":7", "\"seed\":8", 1)).unwrap();
    certify(&[]).refused(2, &["answer.json", "was changed"]);
    std::fs::write(&path, "{}").unwrap();
    certify(&[]).refused(2, &["answer.json", "not a certificate"]);
    std::fs::write(&path, json).unwrap();
    let other = golden_dir("qwen3_moe");
    sws(&[&"certify", &path, &other]).refused(2, &["answer.json", "another model"]);
    sws(&[&"certify", &temp.path()]).refused(2, &["not a regular file"]);
    sws(&[&"certify", &temp.path().join("none")]).refused(2, &["none", "cannot be read"]);
}

#[test]
fn certificates_of_another_sampler_are_refused_by_name() {
    // Made before certificates named their sampler, greedy ones included.
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/certificates");
    for file in ["uniform-1.json", "uniform-1-greedy.json"] {
        sws(&[&"certify", &folder.join(file), &golden_dir("qwen3_moe")])
            .refused(2, &[file, "the sampler uniform-1", "gumbel-1", "`sws run --certify FILE`"]);
    }
}
