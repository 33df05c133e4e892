//! Tests of `sws-bench kernels`, through the command; no test asserts a time.

use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

fn kernels(arguments: &[&str], dir: &TempDir) -> Output {
    let small = ["kernels", "--weights", "100KB", "--seconds-per-cell", "0"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_sws-bench"));
    command.args(small).args(arguments).current_dir(dir).output().unwrap()
}

#[test]
fn every_encoding_meets_every_peer() {
    let dir = TempDir::new().unwrap();
    let output = kernels(
        &[
            &["--rows", "48", "--cols", "256", "--tokens", "1,3"][..],
            &["--threads", "1,2", "--tiers", "portable,scalar", "--json", "out"],
        ]
        .concat(),
        &dir,
    );
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table = String::from_utf8(output.stdout).unwrap();
    let json = std::fs::read_to_string(dir.path().join("out")).unwrap();
    let records: Vec<Value> = json.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let encodings = [
        ("f32", Some("candle f32")),
        ("f16", None),
        ("bf16", Some("candle bf16")),
        ("bf12", Some("candle bf16")),
        ("bf11", Some("candle bf16")),
        ("q8", Some("candle q8_0")),
        ("q4", Some("candle q4_k")),
        ("fp8", Some("candle q8_0")),
        ("mxfp4", Some("candle q4_k")),
    ];
    for (encoding, candle) in encodings {
        for tokens in [1, 3] {
            for threads in [1, 2] {
                let cell: Vec<_> = records
                    .iter()
                    .filter(|r| r["encoding"] == encoding && r["tokens"] == tokens)
                    .filter(|r| r["threads"] == threads)
                    .collect();
                let find = |name: &str| cell.iter().find(|r| r["contender"] == name);
                for name in ["sum", "portable", "scalar", "gemm f32"].into_iter().chain(candle) {
                    let record = find(name).unwrap_or_else(|| panic!("{encoding}: no {name}"));
                    assert!(record["gb_per_s"].as_f64().unwrap() > 0.0);
                }
                let own = find("portable").unwrap();
                assert!(own["over_sum"].is_f64() && own["over_gemm"].is_f64());
                assert_eq!(own["over_candle"].is_f64(), candle.is_some());
                let is_compared = match tokens {
                    1 => ["bf12", "bf11"].contains(&encoding),
                    _ => encoding != "bf16",
                };
                let compared = |name| find(name).unwrap()["over_bf16"].is_f64();
                assert_eq!(["portable", "scalar"].map(compared), [is_compared; 2]);
            }
        }
        assert!(table.lines().any(|line| line.starts_with(encoding)), "{table}");
    }
}

#[test]
fn bad_options_get_one_sentence() {
    let dir = TempDir::new().unwrap();
    let cases: [(&[&str], &str); 9] = [
        (&["--rows", "0"], "--rows times --cols"),
        (&["--rows", "9999999999", "--cols", "9999999999"], "--rows times --cols"),
        (&["--tokens", "0"], "--tokens must"),
        (&["--threads", "0"], "--threads must"),
        (&["--threads", "99999"], "--threads must"),
        (&["--seconds-per-cell", "nan"], "--seconds-per-cell must"),
        (&["--encodings", "bf13"], "`bf13` is not an encoding"),
        (&["--tiers", "avx1024"], "`avx1024` is not a kernel tier"),
        (&["--json", "absent/out"], "`absent/out` can not be written"),
    ];
    for (arguments, sentence) in cases {
        let output = match arguments[0] {
            "--seconds-per-cell" => Command::new(env!("CARGO_BIN_EXE_sws-bench"))
                .arg("kernels")
                .args(arguments)
                .output()
                .unwrap(),
            _ => kernels(arguments, &dir),
        };
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{sentence}: {told}");
        assert!(told.contains(sentence), "wanted `{sentence}`, got: {told}");
    }
}
