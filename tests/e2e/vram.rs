//! `--vram`: experts on a device, with the same bits; the sentence of a build without it.

use std::ffi::OsStr;

#[cfg(feature = "gpu")]
use serde_json::Value;
use sws_testing::tales;

#[cfg(feature = "gpu")]
use crate::goldens::golden_dir;
use crate::sws::{Outcome, sws};

fn run(more: &[&dyn AsRef<OsStr>]) -> Outcome {
    let model = tales();
    let mut args: Vec<&dyn AsRef<OsStr>> = vec![&"run", &model, &"--prompt=The wolf", &"-n64"];
    let rest: [&dyn AsRef<OsStr>; 4] =
        [&"--seed=7", &"--context=128", &"--ignore-eos", &"--no-warm-start"];
    args.extend(rest);
    args.extend(more);
    sws(&args)
}

#[cfg(feature = "gpu")]
fn json(outcome: Outcome) -> Value {
    serde_json::from_str(&outcome.succeeded().stdout).unwrap()
}

/// True if there is a device, which PoCL is on any CPU; otherwise says so.
#[cfg(feature = "gpu")]
fn has_device() -> bool {
    let checks: Value = serde_json::from_str(&sws(&[&"doctor", &"--json"]).stdout).unwrap();
    let lines = checks["checks"].as_array().unwrap();
    let line = lines.iter().find(|line| line["check"] == "graphics card").unwrap();
    let found = line["found"].as_str().unwrap();
    if found.contains("OpenCL l") || found.contains("no OpenCL") {
        eprintln!("skipped: {found}");
        return false;
    }
    assert!(found.contains("results have this CPU's bits"), "{found}");
    true
}

#[test]
fn wrong_sizes_are_refused() {
    for size in ["80%", "min", "many"] {
        run(&[&"--vram", &size]).refused(2, &["--vram", "expected auto, off, or a size"]);
    }
    run(&[&"--vram=auto", &"--resident"]).refused(2, &["--vram", "--resident"]);
    let alone = run(&[&"--vram=off"]).succeeded();
    assert!(!alone.stderr.contains("graphics card"), "{alone:?}");
}

#[cfg(not(feature = "gpu"))]
#[test]
fn a_build_without_support_says_how_to_get_it() {
    let words = ["built without support for graphics cards", "--features gpu"];
    run(&[&"--vram=64MiB"]).refused(2, &words);
    let auto = run(&[&"--vram=auto"]).succeeded();
    assert!(words.iter().all(|words| auto.stderr.contains(words)), "{auto:?}");
    assert_eq!(auto.stdout, run(&[]).succeeded().stdout);
    let plan = |vram: &str| sws(&[&"plan", &tales(), &"--no-probe", &vram]);
    plan("--vram=64MiB").refused(2, &words);
    let auto = plan("--vram=auto").succeeded();
    assert!(words.iter().all(|words| auto.stderr.contains(words)), "{auto:?}");
}

/// A backend without devices refuses a size, and goes on with `auto`.
#[test]
fn candle_stays_on_the_cpu() {
    let candle = |vram: &str| run(&[&"--backend=candle", &vram]);
    candle("--vram=64MiB").refused(2, &["candle", "computes on the CPU"]);
    let auto = candle("--vram=auto").succeeded();
    assert!(auto.stderr.contains("candle computes on the CPU; leave out --vram"), "{auto:?}");
}

/// A plan needs no device.
#[cfg(feature = "gpu")]
#[test]
fn a_plan_counts_what_a_card_holds() {
    let plan = |more: &[&dyn AsRef<OsStr>]| {
        let model = tales();
        let mut args: Vec<&dyn AsRef<OsStr>> = vec![&"plan", &model, &"--no-probe", &"--ram=64MiB"];
        args.extend(more);
        sws(&args)
    };
    let of = |vram: &str| json(plan(&[&"--json", &vram]))["vram"].clone();
    assert!(of("--vram=off").is_null());
    let mut last = 0.0;
    for (vram, all) in [("--vram=4MiB", false), ("--vram=16MiB", false), ("--vram=8GiB", true)] {
        let found = of(vram);
        let number = |key: &str| found[key].as_f64().unwrap();
        assert!(number("bytes") <= number("limit") && number("experts") == 256.0, "{found}");
        assert_eq!(number("slots") == 256.0, all, "{found}");
        let shares = [number("on_tier"), number("in_memory")];
        assert!(shares[0] > last && shares.iter().sum::<f64>() <= 1.0 + 1e-9, "{found}");
        assert!(!all || number("on_tier") == 1.0, "{found}");
        assert!(found["tokens_per_second"].is_null(), "{found}");
        // No more than all experts take.
        assert!(!all || number("limit") < (1u64 << 30) as f64, "{found}");
        last = shares[0];
    }
    let text = plan(&[&"--vram=16MiB"]).succeeded().stdout;
    for words in ["with 16.00 MiB of a card: room for", "not measured"] {
        assert!(text.replace('\n', " ").contains(words), "{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    plan(&[&"--vram=1MiB"]).refused(2, &["no room for an expert", "raise --vram"]);
    plan(&[&"--vram=80%"]).refused(2, &["--vram", "expected auto, off, or a size"]);
    plan(&[&"--vram=64MiB", &"--activations=int8"]).refused(2, &["--activations", "--vram"]);
    sws(&[&"plan", &golden_dir("llama"), &"--no-probe", &"--vram=64MiB"])
        .refused(2, &["no experts", "leave out --vram"]);
}

/// Formats of a configuration are planned with the memory that a card takes, which may be too much.
#[cfg(feature = "gpu")]
#[test]
fn plans_without_weights_count_the_memory_beside_a_card() {
    let temp = tempfile::tempdir().unwrap();
    let config = temp.path().join("config.json");
    std::fs::copy(tales().join("config.json"), &config).unwrap();
    let plan = |more: &[&dyn AsRef<OsStr>]| {
        sws(&[&[&"plan" as &dyn AsRef<OsStr>, &config, &"--no-probe"], more].concat())
    };
    let least = |vram: &str| {
        let plan = json(plan(&[&"--json", &"--ram=1GiB", &vram]));
        assert_eq!(plan["vram"].is_null(), vram == "--vram=off", "{plan}");
        let formats = plan["formats"].as_array().unwrap().clone();
        formats.iter().map(|format| format["smallest_budget"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let alone = least("--vram=off");
    let beside = least("--vram=8GiB");
    assert_eq!(alone.len(), 5);
    assert!(
        alone.iter().zip(&beside).all(|(alone, beside)| alone < beside),
        "{alone:?} {beside:?}"
    );
    let few = "--ram=33MiB";
    let found = json(plan(&[&few, &"--vram=8GiB", &"--json"]))["vram"].clone();
    assert!(found["slots"].as_u64().unwrap() > 0 && found["on_tier"].is_null(), "{found}");
    let text = plan(&[&few, &"--vram=8GiB"]).succeeded().stdout.replace('\n', " ");
    assert!(
        text.contains("the model does not run within ") && !text.contains("no slots"),
        "{text}"
    );
}

#[cfg(feature = "gpu")]
#[test]
fn a_device_changes_no_bit() {
    if !has_device() {
        let words = ["OpenCL", "the CPU"];
        run(&[&"--vram=64MiB"]).refused(2, &words);
        let auto = run(&[&"--vram=auto"]).succeeded();
        assert!(auto.stderr.contains("experts stay on the CPU: "), "{auto:?}");
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let certificate = temp.path().join("certificate");
    let alone = json(run(&[&"--ram=1GiB", &"--json", &"--certify", &certificate]));
    assert_eq!(alone["metrics"]["cost"]["generation"].get("vram"), None);
    let with = json(run(&[&"--ram=1GiB", &"--json", &"--vram=16MiB"]));
    assert_eq!(with["text"], alone["text"]);
    let of = |part: &str, key: &str| with["metrics"]["cost"][part]["vram"][key].clone();
    let [held, slots, bytes, limit] =
        ["held", "slots", "bytes", "limit"].map(|key| of("generation", key).as_u64().unwrap());
    assert!(held <= slots && slots > 0 && bytes <= limit && limit <= 16 << 20, "{with}");
    // As planned without the device.
    let plan = sws(&[&"plan", &tales(), &"--no-probe", &"--ram=1GiB", &"--json", &"--vram=16MiB"]);
    let plan = json(plan);
    assert_eq!([&plan["vram"]["slots"], &plan["vram"]["limit"]], [slots, limit]);
    // At least one expert is tried.
    for key in ["copies", "hits"] {
        let both = ["prompt", "generation"].map(|part| of(part, key).as_u64().unwrap());
        assert!(both.iter().sum::<u64>() > 0, "{with}");
    }
    assert!(of("generation", "failure").is_null(), "{with}");
    let peak = with["metrics"]["peak_rss_bytes"].as_u64().unwrap();
    assert!(peak <= 1 << 30, "{peak}");
    // Every bit of its logits, and every route.
    let certify: [&dyn AsRef<OsStr>; 5] =
        [&"certify", &certificate, &tales(), &"--ram=1GiB", &"--vram=16MiB"];
    sws(&certify).succeeded();
    let verbose = run(&[&"--ram=1GiB", &"--vram=16MiB", &"-v"]).succeeded();
    assert!(verbose.stderr.contains("\nvram       "), "{verbose:?}");
}

/// A device without memory of its own gains nothing, unless its size is named.
#[cfg(feature = "gpu")]
#[test]
fn sizes_that_cannot_be_had_are_refused_by_name() {
    if !has_device() {
        return;
    }
    run(&[&"--vram=4096GiB"]).refused(2, &["the device `", "--vram asks for"]);
    run(&[&"--vram=1MiB"]).refused(2, &["the limit of 1048576 bytes for `"]);
    run(&[&"--vram=64MiB", &"--activations=int8"]).refused(2, &["rounded to eight bits"]);
    let dense = golden_dir("llama");
    let args: [&dyn AsRef<OsStr>; 6] =
        [&"run", &dense, &"--tokens=1", &"-n1", &"--json", &"--vram=64MiB"];
    sws(&args).refused(2, &["no experts", "leave out --vram"]);
}
