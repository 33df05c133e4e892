//! `sws inspect` and `sws plan` of models without weights, and `sws doctor`.

use serde_json::Value;
use sws_testing::tales;

use crate::goldens::{copy, golden_dir};
use crate::sws::sws;

fn published(name: &str) -> std::path::PathBuf {
    golden_dir("../../configs").join(format!("{name}.json"))
}

#[test]
fn a_configuration_alone_is_described_and_planned() {
    let path = published("qwen3-235b-a22b");
    for command in ["inspect", "plan"] {
        let text = sws(&[&command, &path]).succeeded().stdout;
        for word in ["qwen3_moe: 94 layers", "128 experts", "235.1 B", "bf12", "16.00 GiB"] {
            assert!(text.contains(word), "{command}: {word} in {text}");
        }
    }
    let json = sws(&[&"plan", &path, &"--ram", &"24GiB", &"--json"]).succeeded().stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["supported"], &json["experts"]), (&true.into(), &128.into()));
    assert_eq!(json["budgets"].as_array().unwrap().len(), 4, "{json}");
    for format in json["formats"].as_array().unwrap() {
        let reads = format["read_bytes_per_token"].as_array().unwrap();
        let reads: Vec<u64> = reads.iter().map(|read| read.as_u64().unwrap()).collect();
        assert!(reads.is_sorted_by(|a, b| a >= b), "{format}");
    }
}

/// The same model with and without its weights has the same sizes.
#[test]
fn a_directory_without_weights_has_the_sizes_of_one_with() {
    let temp = tempfile::tempdir().unwrap();
    let (with, without) = (temp.path().join("with"), temp.path().join("without"));
    copy("qwen3_moe", &with);
    std::fs::create_dir(&without).unwrap();
    std::fs::copy(with.join("config.json"), without.join("config.json")).unwrap();
    let inspect = |dir: &std::path::Path| -> Value {
        serde_json::from_str(&sws(&[&"inspect", &dir, &"--json"]).succeeded().stdout).unwrap()
    };
    let (with, without) = (inspect(&with), inspect(&without));
    assert_eq!(without["formats"][0]["format"], "bf16");
    assert_eq!(with["stored_bytes"], without["formats"][0]["bytes"]);
}

#[test]
fn what_is_not_supported_is_described_and_not_planned() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("config.json");
    let config = r#"{"model_type": "nonesuch", "num_hidden_layers": 7, "num_experts": 9}"#;
    std::fs::write(&path, config).unwrap();
    for path in [temp.path(), &path] {
        let text = sws(&[&"inspect", &path]).succeeded().stdout;
        for word in ["nonesuch: 7 layers", "9 experts", "not supported"] {
            assert!(text.contains(word), "{word} in {text}");
        }
        sws(&[&"plan", &path]).refused(2, &["nonesuch", "not supported"]);
    }
    sws(&[&"run", &temp.path(), &"--tokens", &"1"]).refused(2, &["holds neither"]);
    for bad in ["{", "[]", "{}", r#"{"model_type": 1}"#] {
        std::fs::write(&path, bad).unwrap();
        sws(&[&"plan", &path]).refused(2, &["config.json"]);
    }
}

/// A remedy wherever something hurts, which the exit code says, and nowhere else.
#[test]
fn the_doctor_names_a_remedy_where_something_hurts() {
    let model = tales();
    let args: [&[&dyn AsRef<std::ffi::OsStr>]; 2] =
        [&[&"doctor", &"--json"], &[&"doctor", &model, &"--json"]];
    for args in args {
        let outcome = sws(args);
        let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
        let checks = report["checks"].as_array().unwrap();
        for check in checks {
            assert_eq!(check["hurts"] == true, check["remedy"].is_string(), "{check}");
        }
        let hurts = checks.iter().any(|check| check["hurts"] == true);
        assert_eq!((outcome.code, &report["hurts"]), (Some(i32::from(hurts)), &hurts.into()));
        // Whatever the machine, its kernels have the same bits.
        let bits = checks.iter().find(|check| check["check"] == "bits").unwrap();
        assert_eq!(bits["hurts"], false, "{bits}");
    }
    sws(&[&"doctor", &"/nowhere"]).refused(2, &["/nowhere"]);
}
