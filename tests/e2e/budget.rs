//! Memory budgets: their plans, refusals, and memory as the kernel counts it.

use std::ffi::OsStr;
use std::path::Path;

use serde_json::Value;
use sws_testing::{goldens, tales};

use crate::cgroup::Group;
use crate::goldens::golden_dir;
use crate::sws::{Outcome, command, sws};

const MIB: u64 = 1 << 20;

fn plan(model: &Path, more: &[&str]) -> Outcome {
    let mut args: Vec<&dyn AsRef<OsStr>> = vec![&"plan", &model];
    args.extend(more.iter().map(|word| word as &dyn AsRef<OsStr>));
    sws(&args)
}

fn json(outcome: Outcome) -> Value {
    serde_json::from_str(&outcome.succeeded().stdout).unwrap()
}

#[test]
fn plan_adds_up_to_the_budget() {
    for model in [tales(), golden_dir("llama"), golden_dir("qwen3_moe_tied")] {
        for ram in ["min", "auto", "200MiB", "50%"] {
            let plan = json(plan(&model, &["--ram", ram, "--json"]));
            let ledger = plan["ledger"].as_object().unwrap();
            let sum: u64 = ledger.values().map(|bytes| bytes.as_u64().unwrap()).sum();
            assert_eq!(Some(sum), plan["budget"].as_u64(), "{plan}");
            assert!(ledger["heap"].as_u64() > Some(0) && ledger["program"].as_u64() > Some(MIB));
            // More memory never means more reading.
            let rows = plan["budgets"].as_array().unwrap();
            let reads = rows.iter().map(|row| row["read_bytes_per_token"].as_u64().unwrap());
            assert!(reads.rev().is_sorted(), "{plan}");
        }
    }
    let asked = ["--ram", "100MiB", "--context", "77"];
    let text = plan(&tales(), &asked).succeeded().stdout;
    let (answer, _) = text.split_once('\n').unwrap();
    assert!(answer.starts_with("runs within 100.00 MiB: "), "{text}");
    assert!(answer.ends_with(" (planned, not measured)"), "{text}");
    for words in ["smallest --ram", "a position", "estimates", "this plan", "machine: "] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
    assert!(text.lines().count() < 22 && !text.contains("expert slots"), "{text}");
    let text = plan(&tales(), &["--ram", "100MiB", "--no-probe"]).succeeded().stdout;
    assert!(text.starts_with("runs within 100.00 MiB\n"), "{text}");
    let text = plan(&tales(), &[&asked[..], &["--memory"]].concat()).succeeded().stdout;
    for words in ["77 positions", "expert slots"] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
}

#[test]
fn another_machine_is_planned_for_as_described() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("machine.json");
    let describe = |json: &str| {
        std::fs::write(&file, json).unwrap();
        file.to_str().unwrap()
    };
    let config = golden_dir("../../configs").join("qwen3-235b-a22b.json");
    let machine = r#"{"ram_bytes": 34359738368, "threads": 8, "disk_bytes_per_second": 4e9,
        "memory_bytes_per_second": 5e10}"#;
    for model in [&config, &tales()] {
        let args = ["--describe", describe(machine), "--json", "--ram", "50%"];
        let plan = json(plan(model, &args));
        assert_eq!(plan["machine"]["ram_bytes"], 32u64 << 30);
        // What it prints is a description.
        let again = plan["machine"].to_string();
        let args = ["--describe", describe(&again), "--json", "--ram", "50%"];
        let again = json(self::plan(model, &args));
        assert_eq!(again["machine"], plan["machine"]);
        // Nothing is measured where there are no weights.
        assert!(*model != config || again == plan, "{plan} {again}");
    }
    // There is one estimate of a prompt, of reading alone where nothing is measured.
    let planned = json(plan(&tales(), &["--describe", describe(machine), "--json"]));
    let prompts = planned["prompts"].as_array().unwrap();
    assert_eq!((&prompts[0]["tokens"], &prompts[1]["tokens"]), (&128.into(), &1000.into()));
    assert_eq!(planned["first_token_seconds"], prompts[1]["first_token_seconds"]);
    assert!(planned["first_token_seconds"].as_f64().is_some_and(|seconds| seconds > 0.0));
    let planned = json(plan(&config, &["--describe", describe(machine), "--json"]));
    let q4 = planned["formats"].as_array().unwrap().iter().find(|row| row["format"] == "q4");
    let number = |name: &str, at: usize| q4.unwrap()[name][at].as_f64().unwrap();
    // Most of the time is that of reads, at 16 GiB.
    let reading = number("read_bytes_per_token", 0) / 4e9 * number("tokens_per_second", 0);
    assert!((0.6..1.0).contains(&reading), "{planned}");
    let text = plan(&config, &["--describe", describe(machine)]).succeeded().stdout;
    assert!(text.starts_with("runs in bf11 within 30.00 GiB: about "), "{text}");
    for words in [
        " s a token (planned, not measured)",
        "32.00 GiB of memory",
        "4.0 GB/s",
        "tokens per second",
        "a long prompt takes ",
    ] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
    let bad = [
        "",
        "[]",
        "{}",
        r#"{"ram_bytes": -1}"#,
        r#"{"ram_bytes": 0}"#,
        r#"{"ram_bytes": 1e999}"#,
        r#"{"ram_bytes": 1000000, "gpu": 1}"#,
        r#"{"ram_bytes": 1000000, "threads": 0}"#,
        r#"{"ram_bytes": 1000000, "disk_bytes_per_second": 0}"#,
    ];
    for bad in bad {
        plan(&config, &["--describe", describe(bad)]).refused(2, &["describes no machine"]);
    }
    let long = format!(r#"{{"ram_bytes": 1, "{}": 1}}"#, "\\u001b[2J".repeat(1000));
    let refused = plan(&config, &["--describe", describe(&long)]);
    let refused = refused.refused(2, &["describes no machine"]);
    assert!(refused.sentence().len() < 1000 && !refused.stderr.contains('\u{1b}'), "{refused:?}");
    let small = r#"{"ram_bytes": 300000000, "free_bytes": 300000000}"#;
    let args = ["--describe", describe(small), "--ram", "100%"];
    let text = plan(&config, &args).succeeded().stdout;
    assert!(text.starts_with("does not run within 286.10 MiB: bf12 needs "), "{text}");
    plan(&tales(), &["--describe", describe(small), "--ram", "1%"]).refused(2, &["too small"]);
    plan(&config, &["--describe", "/nowhere"]).refused(2, &["/nowhere"]);
    plan(&config, &["--describe", "/dev/zero"]).refused(2, &["/dev/zero"]);
}

/// bf11 where the disk decides, bf12 where memory does.
#[test]
fn the_exact_encoding_is_planned_by_budget() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("machine.json");
    let describe = |threads: u16, disk: f64| {
        let machine = serde_json::json!({
            "ram_bytes": 64u64 << 30,
            "threads": threads,
            "disk_bytes_per_second": disk,
            "memory_bytes_per_second": 5e10,
        });
        std::fs::write(&file, machine.to_string()).unwrap();
        file.to_str().unwrap()
    };
    for (name, ram, threads, disk, chosen) in [
        ("qwen3-30b-a3b", "8GiB", 8, 3.5e9, "bf11"),
        ("qwen3-30b-a3b", "16GiB", 8, 3.5e9, "bf11"),
        ("qwen3-30b-a3b", "16GiB", 4, 1e9, "bf11"),
        ("qwen3-30b-a3b", "32GiB", 8, 3.5e9, "bf11"),
        // All of bf11, and most of bf12.
        ("qwen3-30b-a3b", "41GiB", 8, 3.5e9, "bf11"),
        ("qwen3-30b-a3b", "41GiB", 2, 1e12, "bf12"),
        ("qwen3-30b-a3b", "16GiB", 2, 1e12, "bf12"),
        ("qwen3-30b-a3b", "60GiB", 8, 3.5e9, "bf12"),
        ("qwen3-30b-a3b", "60GiB", 2, 5e8, "bf12"),
        ("minimax-m2", "32GiB", 8, 3.5e9, "fp7 and bf11"),
        ("minimax-m2", "32GiB", 2, 1e12, "fp8 and bf12"),
    ] {
        let config = golden_dir("../../configs").join(name).with_added_extension("json");
        let args = ["--describe", describe(threads, disk), "--ram", ram];
        let text = plan(&config, &args).succeeded().stdout;
        assert!(text.starts_with(&format!("runs in {chosen} within ")), "{args:?}: {text}");
    }
}

/// A longer one where the budget has room. It changes no bit, so a certificate has no part in it.
#[test]
fn default_context_follows_from_the_budget() {
    let copy = goldens::with_context("qwen3_moe", 60_000);
    let context = |more: &[&str]| {
        let plan = json(plan(&copy.dir, &[&["--no-probe", "--json"], more].concat()));
        plan["plan"]["context"].as_u64().unwrap()
    };
    assert_eq!(context(&["--ram", "min"]), 512);
    let [exact, rounded] = ["f32", "q8"].map(|kv| context(&["--ram", "150MiB", "--kv", kv]));
    assert!(4096 < exact && exact < rounded && rounded <= 60_000, "{exact} {rounded}");
    assert_eq!(context(&["--ram", "1GiB"]), 60_000);
    assert_eq!(context(&["--ram", "1GiB", "--context", "4096"]), 4096);

    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("answer.json");
    let dir = &copy.dir;
    let made = |more: &[&dyn AsRef<OsStr>]| {
        let args: [&dyn AsRef<OsStr>; 11] = [
            &"run",
            &dir,
            &"--tokens=1,2,3",
            &"-n=6",
            &"--ignore-eos",
            &"--json",
            &"--temperature=1",
            &"--seed=7",
            &"--ram=1GiB",
            &"--certify",
            &file,
        ];
        sws(&[&args[..], more].concat()).succeeded();
        std::fs::read(&file).unwrap()
    };
    let long = made(&[]);
    assert!(made(&[&"--context=4096"]) == long);
    for context in ["100", "60000"] {
        sws(&[&"certify", &file, &dir, &"--context", &context]).succeeded();
    }
}

#[test]
fn a_budget_that_is_too_small_is_refused_with_one_that_works() {
    for model in [tales(), golden_dir("mixtral")] {
        for context in ["256", "100"] {
            let refused = plan(&model, &["--ram", "3MiB", "--context", context]);
            let refused = refused.refused(2, &["3 MiB", "too small", "--ram min", "--context"]);
            let (_, rest) = refused.sentence().split_once("here is --ram ").unwrap();
            let smallest = rest.split(' ').next().unwrap();
            let works = json(plan(&model, &["--ram", smallest, "--context", context, "--json"]));
            // It is the smallest: a slightly lower budget is refused again.
            let least = works["smallest_budget"].as_u64().unwrap();
            let less = format!("{}MiB", (least / MIB).saturating_sub(8));
            plan(&model, &["--ram", &less, "--context", context]).refused(2, &["too small"]);
        }
    }
    plan(&tales(), &["--context", "5000"]).refused(2, &["4096 positions", "--context"]);
    for word in ["8", "lots", "0%", "101%", "-1GiB"] {
        let outcome = plan(&tales(), &[&format!("--ram={word}")]);
        assert_eq!(outcome.code, Some(2), "{outcome:?}");
        assert!(outcome.stderr.contains("8GiB"), "{outcome:?}");
    }
}

/// The ledger's figure for a process without weights is at least what the kernel counts for a
/// process that has loaded none, and not far above it.
#[test]
fn the_kernel_counts_no_more_than_the_ledger() {
    let Some(group) = Group::new("plan", 1 << 30) else { return };
    let tales = tales();
    let args = ["plan", tales.to_str().unwrap(), "--ram", "min", "--json", "--no-probe"];
    let plan = json(group.sws(&args));
    let process = ["program", "stacks", "heap", "tokenizer", "slack", "files", "kernel"];
    let predicted: u64 = process.iter().map(|name| plan["ledger"][name].as_u64().unwrap()).sum();
    let counted = group.peak();
    eprintln!("predicted {} KiB, counted {} KiB", predicted >> 10, counted >> 10);
    assert!(counted <= predicted, "{counted} counted, {predicted} in {plan}");
    // The group is not charged for the pages of the program that another group has read first.
    let program = plan["ledger"]["program"].as_u64().unwrap();
    assert!(predicted - program < counted + 8 * MIB, "{counted} counted, {predicted} in {plan}");
}

#[test]
fn a_plan_says_whose_hits_it_assumes() {
    let temp = tempfile::tempdir().unwrap();
    let run = |args: &[&dyn AsRef<OsStr>]| {
        Outcome::of(command(args).env("XDG_CACHE_HOME", temp.path()).output().unwrap()).succeeded()
    };
    let model = tales();
    let args: [&dyn AsRef<OsStr>; 5] = [&"plan", &model, &"--ram", &"64MiB", &"--no-probe"];
    let more: [&dyn AsRef<OsStr>; 1] = [&"--json"];
    let few = run(&[&"plan", &golden_dir("mixtral"), &"--ram", &"64MiB", &"--no-probe"]).stdout;
    assert!(few.contains("estimates: hits as of published routes of Mixtral-8x7B"), "{few}");
    let planned = || {
        let json = run(&[&args[..], &more].concat());
        (run(&args).stdout, serde_json::from_str::<Value>(&json.stdout).unwrap())
    };
    let (text, before) = planned();
    assert!(text.contains("estimates: hits as of published routes of DeepSeek-V2-Lite"), "{text}");
    assert!(before["hits_of_tokens"].is_null(), "{before}");
    let tell = |tokens: &str| {
        let prompt = "Once upon a time";
        run(&[&"run", &model, &"-p", &prompt, &"-n", &tokens, &"--ignore-eos", &"--seed=1"]);
    };
    // Too short to say much.
    tell("10");
    assert!(planned().1["hits_of_tokens"].is_null());
    tell("100");
    let (text, after) = planned();
    let tokens = after["hits_of_tokens"].as_u64().unwrap();
    assert!((100..=256).contains(&tokens), "{after}");
    let basis = format!("estimates: hits as in the last {tokens} tokens of earlier runs");
    assert!(text.contains(&basis), "{text}");
    let hits = |plan: &Value| plan["plan"]["hit_rate"].as_f64().unwrap();
    assert!((0.0..=1.0).contains(&hits(&after)) && hits(&after) != hits(&before), "{after}");
    let rows = after["budgets"].as_array().unwrap();
    let reads = rows.iter().map(|row| row["read_bytes_per_token"].as_u64().unwrap());
    assert!(reads.rev().is_sorted(), "{after}");
    // A file that is damaged is as good as none.
    let learned = temp.path().join("sws/learned");
    let file = learned.read_dir().unwrap().next().unwrap().unwrap().path();
    std::fs::write(file, b"damaged").unwrap();
    assert!(planned().1["hits_of_tokens"].is_null());
}
