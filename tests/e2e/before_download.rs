//! `sws plan` and `sws inspect` of a model that is not downloaded, or not made in this format.

use std::ffi::OsStr;

use serde_json::json;
use sws_format::Clock;
use sws_testing::hub::Fault;

use crate::goldens::golden_dir;
use crate::pull::{ID, User};
use crate::sws::Outcome;
use crate::terminal::ended;

#[test]
fn a_model_is_planned_before_it_is_downloaded() {
    let dir = golden_dir("qwen2_moe");
    let user = User::of(&dir);
    let text = user.sws(&[&"plan", &ID, &"--ram", &"4GiB"]).succeeded().stdout;
    assert!(text.starts_with("runs in bf12 within 4.00 GiB"), "{text}");
    for words in ["not on this machine: ", " to download, ", " free for it"] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
    assert!(text.ends_with("next: sws pull own/tiny-model\n"), "{text}");

    // The plan of the configuration, and of another machine.
    let temp = tempfile::tempdir().unwrap();
    let machine = temp.path().join("machine.json");
    std::fs::write(&machine, r#"{"ram_bytes": 8000000000, "disk_bytes_per_second": 1e9}"#).unwrap();
    let json = |model: &dyn AsRef<OsStr>| -> serde_json::Value {
        let planned = user.sws(&[&"plan", model, &"--describe", &machine, &"--json"]);
        serde_json::from_str(&planned.succeeded().stdout).unwrap()
    };
    let mut remote = json(&ID);
    let local = json(&dir.join("config.json"));
    let weights = dir.join("model.safetensors").metadata().unwrap().len();
    assert_eq!(remote["hub"]["download_bytes"], weights);
    assert_eq!(remote["hub"]["disk_free_bytes"], serde_json::Value::Null);
    remote["hub"] = serde_json::Value::Null;
    assert_eq!(remote, local);

    let inspected = |model: &dyn AsRef<OsStr>| user.sws(&[&"inspect", model]).succeeded().stdout;
    assert_eq!(inspected(&ID), inspected(&dir.join("config.json")));

    assert!(!user.at("models").exists() && !user.at("huggingface").exists(), "nothing is stored");
    user.sws(&[&"plan", &"own/other"]).refused(2, &["own/other"]);
    let mut offline = user.command(&[&"plan", &ID]);
    let offline = Outcome::of(offline.env("HF_HUB_OFFLINE", "1").output().unwrap());
    offline.refused(2, &["sws pull own/tiny-model"]);
}

#[test]
fn a_gguf_file_is_planned_before_it_is_downloaded() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("in");
    std::fs::create_dir(&dir).unwrap();
    let file = sws_testing::gguf::converted(&golden_dir("qwen2_moe")).unwrap();
    for name in ["Tiny-BF16.gguf", "Tiny-Q4_K_M.gguf"] {
        file.write(&dir.join(name));
    }
    let user = User::of(&dir);
    let machine = temp.path().join("machine.json");
    std::fs::write(&machine, r#"{"ram_bytes": 8000000000, "disk_bytes_per_second": 1e9}"#).unwrap();
    let name = format!("{ID}:Q4_K_M");
    let path = dir.join("Tiny-Q4_K_M.gguf");
    let planned = |model: &dyn AsRef<OsStr>| -> serde_json::Value {
        let args: [&dyn AsRef<OsStr>; 7] =
            [&"plan", model, &"--json", &"--describe", &machine, &"--ram", &"1GiB"];
        serde_json::from_str(&user.sws(&args).succeeded().stdout).unwrap()
    };
    let remote = planned(&name);
    let local = planned(&path);
    assert_eq!((&remote["model"], &remote["hub"]["model"]), (&json!(name), &json!(name)));
    assert_eq!(remote["hub"]["download_bytes"], path.metadata().unwrap().len());
    for field in ["weight_bytes", "kv_bytes_per_position", "reads_per_expert", "experts_stream"] {
        assert_eq!(remote[field], local[field], "{field}");
    }
    assert_eq!(local["hub"], serde_json::Value::Null);
    let asked = user.hub.requests("Tiny-Q4_K_M.gguf");
    let whole = |range: &Option<String>| range.as_deref().is_none_or(|it| it.ends_with('-'));
    assert!(!asked.is_empty() && !asked.iter().any(|request| whole(&request.range)), "{asked:?}");

    let text = user.sws(&[&"plan", &name, &"--no-probe"]).succeeded().stdout;
    let lines =
        [format!("\n{name}: "), format!("next: sws pull {name}\n"), " to download, ".to_owned()];
    for words in lines {
        assert!(text.contains(&words), "no {words:?} in {text}");
    }
    let inspected = |model: &dyn AsRef<OsStr>| user.sws(&[&"inspect", model]).succeeded().stdout;
    let here: Vec<String> = inspected(&path).lines().map(str::to_owned).collect();
    let there = inspected(&name);
    let known: Vec<&str> = here.iter().map(String::as_str).collect();
    let known: Vec<&str> = known.into_iter().filter(|it| !it.starts_with("fingerprint")).collect();
    assert_eq!(there.lines().collect::<Vec<_>>(), known);
    assert!(!user.at("models").exists() && !user.at("huggingface").exists(), "nothing is stored");

    user.sws(&[&"plan", &ID]).refused(2, &["Tiny-BF16, Tiny-Q4_K_M", "choose one"]);
    user.sws(&[&"plan", &format!("{ID}:Q5_0")]).refused(2, &["Q5_0", "Tiny-BF16, Tiny-Q4_K_M"]);
    // A header with damage, and no place of this machine in what is said of it.
    user.hub.state().files.insert("Tiny-BF16.gguf".to_owned(), b"GGUF and no more".to_vec());
    let damaged = user.sws(&[&"plan", &format!("{ID}:BF16")]);
    assert!(!damaged.stderr.contains("/tmp"), "{damaged:?}");
    damaged.refused(2, &[ID, "Tiny-BF16.gguf", "cannot be used"]);
}

#[test]
fn a_format_is_planned_by_its_name() {
    let user = User::of(&golden_dir("qwen2_moe"));
    let q4 = format!("{ID}:q4");
    let fp8 = format!("{ID}:fp8");
    let text = |model: &str| user.sws(&[&"plan", &model, &"--ram", &"4GiB"]).succeeded().stdout;
    let formats = |model: &str| -> Vec<String> {
        let planned = user.sws(&[&"plan", &model, &"--no-probe", &"--json"]).succeeded().stdout;
        let planned: serde_json::Value = serde_json::from_str(&planned).unwrap();
        let rows = planned["formats"].as_array().unwrap().iter();
        rows.map(|row| row["format"].as_str().unwrap().to_owned()).collect()
    };
    let planned = text(&q4);
    assert!(planned.starts_with("runs in q4 within 4.00 GiB"), "{planned}");
    assert!(planned.ends_with("next: sws pull own/tiny-model:q4\n"), "{planned}");
    assert_eq!(formats(&q4), ["q4"]);
    assert_eq!(formats(&fp8), ["fp8"], "which is not among those that are shown unasked");
    assert!(!user.at("models").exists(), "nothing is stored");

    // Of other shards and of a checkpoint on this machine, without the hub.
    for form in ["bf12", "stored"] {
        user.sws(&[&"pull", &ID, &"--as", &form]).succeeded();
        user.hub.state().requests.clear();
        let planned = text(&q4);
        assert!(planned.contains("no such shards here"), "{planned}");
        assert_eq!(formats(&q4), ["q4"]);
        user.sws(&[&"inspect", &q4]).succeeded();
        assert!(user.hub.state().requests.is_empty());
        user.sws(&[&"rm", &ID, &"--yes"]).succeeded();
    }
}

#[test]
fn an_interrupted_plan_leaves_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("in");
    std::fs::create_dir(&dir).unwrap();
    let file = sws_testing::gguf::converted(&golden_dir("qwen2_moe")).unwrap();
    file.write(&dir.join("Tiny-Q4_K_M.gguf"));
    let user = User::of(&dir);
    let place = user.at("temporary");
    std::fs::create_dir(&place).unwrap();
    let files = || place.read_dir().unwrap().count();
    for signal in ["-INT", "-TERM"] {
        user.hub.fault("Tiny-Q4_K_M.gguf", Fault::Silent(100), 1);
        let mut plan = user.command(&[&"plan", &ID, &"--no-probe"]);
        let child = plan.env("TMPDIR", &place).spawn().unwrap();
        while files() == 0 {
            Clock::real().sleep(std::time::Duration::from_millis(5));
        }
        let id = child.id().to_string();
        assert!(std::process::Command::new("kill").args([signal, &id]).status().unwrap().success());
        assert_eq!(ended(child).code(), Some(130));
        assert_eq!(files(), 0, "after {signal}");
    }
    user.hub.state().faults.clear();
    let plan = || user.command(&[&"plan", &ID, &"--no-probe"]);
    Outcome::of(plan().env("TMPDIR", &place).output().unwrap()).succeeded();
    assert_eq!(files(), 0);
    let missing = Outcome::of(plan().env("TMPDIR", place.join("gone")).output().unwrap());
    missing.refused(2, &["gone", "cannot be written"]);
}
