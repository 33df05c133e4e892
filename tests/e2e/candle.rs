//! `--backend candle`: the same logits by another implementation, which is labelled as such.

use std::ffi::OsStr;
use std::path::Path;

use serde_json::Value;
use sws_testing::tales;

use crate::goldens::{Tensors, golden, golden_dir, is_quantised, list, variants};
use crate::sws::{Outcome, sws, tree};

/// Logits and routes as `forward` writes them.
fn forward(model: &Path, tokens: &[u32], backend: &str, out: &Path) -> (Vec<f32>, Vec<u32>) {
    let tokens = list(tokens);
    let routes = "--routes";
    let args: [&dyn AsRef<OsStr>; 9] =
        [&"forward", &model, &"--tokens", &tokens, &"--out", &out, &routes, &"--backend", &backend];
    sws(&args).succeeded();
    let file = Tensors::read(out);
    (file.floats("logits"), file.integers("routes"))
}

#[track_caller]
fn assert_close(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(1.0f32, |a, b| a.max(b.abs()));
    let off = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(off < 1e-4 * largest, "{what}: {off} of {largest}");
}

#[test]
fn logits_match_transformers_and_the_default() {
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("out");
    for name in variants() {
        let model_type = sws_testing::spec(&golden_dir(&name)).model_type;
        let is_known =
            ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "llama", "mistral", "qwen2", "qwen3"]
                .contains(&&*model_type);
        if !is_known || is_quantised(&name) {
            let args: [&dyn AsRef<OsStr>; 8] = [
                &"forward",
                &golden_dir(&name),
                &"--tokens",
                &"1",
                &"--out",
                &out,
                &"--backend",
                &"candle",
            ];
            let unknown = format!("the model type `{model_type}");
            let expected = match is_known {
                // Read by neither backend where it lies.
                true if name.contains("_gptq") || name.contains("_awq") => {
                    ["is packed along its columns", "make shards"]
                }
                true => ["is stored as", "convert the checkpoint to bf16"],
                false => [&unknown, "use the default backend"],
            };
            sws(&args).refused(2, &expected);
            continue;
        }
        let dir = golden_dir(&name);
        let expected = golden(&name);
        let (candle, routes) = forward(&dir, &expected.tokens, "candle", &out);
        assert_close(&candle, &expected.logits, &name);
        assert_eq!(routes, expected.routes, "{name}");
        assert_close(&candle, &forward(&dir, &expected.tokens, "sws", &out).0, &name);
    }
    assert_eq!(tree(temp.path()).len(), 1, "nothing half-written is left beside the file");
}

#[test]
fn shards_are_decoded_lossy_ones_too() {
    let temp = tempfile::tempdir().unwrap();
    let tokens = golden("qwen2_moe").tokens;
    for encoding in ["bf12", "q8", "f32"] {
        let shards = temp.path().join(encoding);
        let out = temp.path().join("out");
        let dir = golden_dir("qwen2_moe");
        sws(&[&"shard", &dir, &"--out", &shards, &"--encoding", &encoding]).succeeded();
        let candle = "candle";
        let own = "sws";
        let candle = forward(&shards, &tokens, candle, &out);
        let own = forward(&shards, &tokens, own, &out);
        assert_close(&candle.0, &own.0, encoding);
    }
}

fn tell(more: &[&str]) -> Outcome {
    let model = tales();
    let mut args: Vec<&dyn AsRef<OsStr>> = vec![&"run", &model, &"--prompt", &"The king"];
    args.extend([
        &"--temperature" as &dyn AsRef<OsStr>,
        &"0",
        &"--max-new-tokens",
        &"24",
        &"--json",
    ]);
    args.extend(more.iter().map(|word| word as &dyn AsRef<OsStr>));
    sws(&args)
}

#[test]
fn same_tale_as_the_default_with_a_label() {
    let json = |outcome: &Outcome| -> Value { serde_json::from_str(&outcome.stdout).unwrap() };
    let own = json(&tell(&[]).succeeded());
    let outcome = tell(&["--backend", "candle"]).succeeded();
    let candle = json(&outcome);
    assert_eq!(candle["text"], own["text"]);
    assert!(outcome.stderr.contains("sws: lossy: computed by candle: not bit-identical"));
    let own = &own["metrics"];
    let candle = &candle["metrics"];
    assert_eq!((&own["backend"], &own["lossy"]), (&Value::from("sws"), &Value::Array(vec![])));
    assert_eq!((&candle["backend"], &candle["tier"]), (&"candle".into(), &"candle".into()));
    assert_eq!(candle["lossy"].as_array().unwrap().len(), 1);
    // Every weight of 12 bits takes 32 here. The process has room for that and no second copy.
    let bytes = |metrics: &Value, name: &str| metrics[name].as_u64().unwrap();
    let weights = bytes(candle, "weight_bytes");
    assert!(weights > 2 * bytes(own, "weight_bytes"), "{own} {candle}");
    let peak = bytes(candle, "peak_rss_bytes");
    assert!(peak > weights && peak < weights + (96 << 20), "{candle}");
}

#[test]
fn unsupported_options_are_refused() {
    for kv in ["bf16", "q8"] {
        tell(&["--backend", "candle", "--kv", kv]).refused(2, &["candle", "f32", "--kv"]);
    }
    tell(&["--backend", "candle", "--ram", "1GiB"]).refused(2, &["candle", "--ram"]);
    let unknown = tell(&["--backend", "abacus"]);
    assert_eq!(unknown.code, Some(2));
    assert!(unknown.stderr.contains("abacus") && unknown.stderr.contains("sws, candle"));

    let temp = tempfile::tempdir().unwrap();
    let certificate = temp.path().join("certificate");
    tell(&["--certify", certificate.to_str().unwrap()]).succeeded();
    sws(&[&"certify", &certificate, &tales(), &"--backend", &"candle"])
        .refused(2, &["candle", "certificate", "--backend"]);

    let shards = temp.path().join("shards");
    sws(&[&"shard", &golden_dir("mixtral"), &"--out", &shards]).succeeded();
    let expert = shards.join("layer_1/expert_2.safetensors");
    let mut bytes = std::fs::read(&expert).unwrap();
    bytes[4100] ^= 1;
    std::fs::write(&expert, bytes).unwrap();
    let args: [&dyn AsRef<OsStr>; 6] =
        [&"run", &shards, &"--tokens=1,2", &"--json", &"--backend", &"candle"];
    sws(&args).refused(2, &["layer_1/expert_2"]);
}

#[test]
fn options_mean_the_same_as_for_the_default() {
    let temp = tempfile::tempdir().unwrap();
    let hidden = |backend: &str| {
        let trace = temp.path().join(backend);
        let told = ["--record", trace.to_str().unwrap(), "--record-hidden", "--backend", backend];
        tell(&told).succeeded();
        Tensors::read(&trace).floats("hidden")
    };
    assert_close(&hidden("candle"), &hidden("sws"), "hidden states");
    for more in [&["--backend", "candle"][..], &["--resident"], &[]] {
        let short = tell(&[more, &["--context", "6"]].concat()).succeeded();
        let json: Value = serde_json::from_str(&short.stdout).unwrap();
        assert_eq!(json["end"], "context", "{more:?}");
        tell(&[more, &["--context", "99999"]].concat()).refused(2, &["99999", "--context"]);
    }
}
