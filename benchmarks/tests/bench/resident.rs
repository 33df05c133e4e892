//! Tests of `sws-bench resident`, on models that take a moment.

use std::process::Command;

use serde_json::Value;

/// Bytes of bf16 weights that one token multiplies with in the tiny shapes: hidden 72, heads of 18
/// (4 for queries, 2 for keys and values), 3 layers, 320 tokens.
fn bytes_per_token(feed_forward: u64) -> u64 {
    let attention = 72 * 72 * 2 + 2 * 36 * 72;
    2 * (3 * (attention + feed_forward) + 320 * 72)
}

#[test]
fn bytes_per_token_count_the_weights_it_reads() {
    let cases = [
        ("tiny-llama", bytes_per_token(3 * 72 * 144)),
        ("tiny-qwen3-moe", bytes_per_token(16 * 72 + 4 * 3 * 72 * 48)),
        ("tiny-qwen2-moe", bytes_per_token(8 * 72 + 2 * 3 * 72 * 48 + 3 * 72 * 96 + 72)),
    ];
    for (shape, bytes) in cases {
        let dir = tempfile::tempdir().unwrap();
        let (model, json) = (dir.path().join("model"), dir.path().join("out.json"));
        let bench = |arguments: &[&str]| {
            let bench = Command::new(env!("CARGO_BIN_EXE_sws-bench")).args(arguments).output();
            let output = bench.unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        };
        bench(&["random", "--shape", shape, "--out", model.to_str().unwrap()]);
        let (model, json) = (model.to_str().unwrap(), json.to_str().unwrap());
        let turns = ["--tokens", "2", "--prompt", "8", "--rounds", "1", "--json", json];
        bench(&[&["resident", model][..], &turns].concat());
        let reports: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
        assert_eq!(reports[0]["bytes_per_token"], bytes, "{shape}");
        for work in ["generation", "prompt"] {
            for contender in ["model", "kernel"] {
                let seconds = &reports[0][work][contender];
                assert_eq!(seconds.as_array().unwrap().len(), 1, "{shape}: {seconds}");
                assert!(seconds[0].as_f64().unwrap() > 0.0, "{shape}: {seconds}");
            }
        }
    }
}
