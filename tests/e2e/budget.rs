//! Memory budgets: their plans, refusals, and memory as the kernel counts it.

use std::ffi::OsStr;
use std::path::Path;

use serde_json::Value;
use sws_testing::tales;

use crate::cgroup::Group;
use crate::goldens::golden_dir;
use crate::sws::{Outcome, sws};

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
    let text = plan(&tales(), &["--ram", "100MiB", "--context", "77"]).succeeded().stdout;
    for words in ["smallest --ram", "77 positions", "expert slots", "estimates", "this plan"] {
        assert!(text.contains(words), "no {words:?} in {text}");
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
    assert!(predicted < counted + 40 * MIB, "{counted} counted, {predicted} in {plan}");
}
