//! `sws plan --why`, and `--max-disk-rate` in plans and runs.

use std::ffi::OsStr;

use serde_json::Value;
use sws_testing::tales;

use crate::goldens::golden_dir;
use crate::sws::sws;

const SETTINGS: [&str; 9] =
    ["budget", "encoding", "cache", "context", "KV", "reader", "threads", "draft", "proposals"];

fn json(args: &[&dyn AsRef<OsStr>]) -> Value {
    serde_json::from_str(&sws(args).succeeded().stdout).unwrap()
}

#[test]
fn every_setting_has_a_reason_on_one_screen() {
    let temp = tempfile::tempdir().unwrap();
    let machine = temp.path().join("machine.json");
    let laptop = r#"{"ram_bytes": 8589934592, "threads": 6, "disk_bytes_per_second": 3e9, "memory_bytes_per_second": 3e10}"#;
    std::fs::write(&machine, laptop).unwrap();
    let config = golden_dir("../../configs").join("gemma-4-26b-a4b.json");
    let on = |model: &dyn AsRef<OsStr>, ram: &str| {
        sws(&[&"plan", model, &"--why", &"--ram", &ram, &"--describe", &machine]).succeeded().stdout
    };
    let model = tales();
    let least = on(&model, "min");
    let more = on(&model, "1GiB");
    let outline = on(&config, "6GiB");
    for text in [&least, &more, &outline] {
        for setting in SETTINGS {
            let found = text.lines().find(|line| line.starts_with(&format!("{setting} ")));
            let found = found.unwrap_or_else(|| panic!("no {setting} in {text}"));
            assert!(found.contains("because "), "{found}");
        }
        assert!(text.lines().count() <= 36, "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("the described machine has them"), "{text}");
    }
    // Reasons follow from the numbers of the plan.
    let [least, more, outline] =
        [least, more, outline].map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "));
    assert!(more.contains("nothing is read from") && more.contains("100 % hit"), "{more}");
    assert!(least.contains("where nothing is read"), "{least}");
    assert!(outline.contains("for 3840 experts"), "{outline}");

    let told = json(&[&"plan", &model, &"--why", &"--json", &"--no-probe"]);
    let names: Vec<&str> = told["why"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["setting"].as_str().unwrap())
        .collect();
    assert_eq!(names, SETTINGS);
    assert!(json(&[&"plan", &model, &"--json", &"--no-probe"])["why"].is_null());
    sws(&[&"plan", &model, &"--why", &"--memory"]).refused(2, &["--memory"]);
}

#[test]
fn a_limited_disk_gives_the_same_text_and_no_more_bytes_a_second() {
    const RATE: f64 = 48e6;
    let model = tales();
    let run = |more: &[&dyn AsRef<OsStr>]| {
        let args: [&dyn AsRef<OsStr>; 11] = [
            &"run",
            &model,
            &"-p",
            &"The wolf",
            &"-n",
            &"4",
            &"--seed=7",
            &"--ram=min",
            &"--json",
            &"--no-draft",
            &"--no-warm-start",
        ];
        json(&[&args, more].concat())
    };
    let (fast, slow) = (run(&[]), run(&[&"--max-disk-rate", &"48MB/s"]));
    assert_eq!(fast["tokens"], slow["tokens"]);
    let metrics = &slow["metrics"];
    let [text, all] = ["text_bytes", "all_bytes"].map(|key| metrics["disk"][key].as_f64().unwrap());
    assert!(0.0 < text && text <= all, "{metrics}");
    let parts = ["prompt", "generation"];
    let read = parts.map(|part| metrics["cost"][part]["disk"]["bytes"].as_f64().unwrap());
    assert_eq!(text, read[0] + read[1]);
    // A lower bound of the time holds on every machine.
    let seconds = |value: &Value| value.as_f64().unwrap();
    let passed = seconds(&metrics["load_seconds"])
        + parts.map(|part| seconds(&metrics[part]["seconds"])).iter().sum::<f64>();
    let begun = f64::from(8 << 20);
    assert!(all <= RATE * (passed + 0.1) + begun, "{all} bytes in {passed} s");

    let machine = json(&[&"plan", &model, &"--json", &"--max-disk-rate=1MiB"]);
    assert_eq!(machine["machine"]["disk_bytes_per_second"], f64::from(1 << 20));
    for (rate, words) in [("1KiB", "1MiB in a second"), ("fast", "fast"), ("80%", "80%")] {
        sws(&[&"run", &model, &"--max-disk-rate", &rate]).refused(2, &["--max-disk-rate", words]);
    }
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), "[all]\nmax-disk-rate = \"1MiB\"\n").unwrap();
    let planned = json(&[&"plan", &model, &"--json", &"--config", &config.path()]);
    assert_eq!(planned["machine"]["disk_bytes_per_second"], f64::from(1 << 20));
}
