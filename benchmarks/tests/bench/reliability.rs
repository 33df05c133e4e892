//! The figures of docs/reliability.md are those of the results.

use serde_json::Value;

const PAGE: &str = include_str!("../../../docs/reliability.md");

fn result(json: &str) -> Value {
    serde_json::from_str(json).unwrap()
}

fn sum(commands: &Value, kind: &str) -> u64 {
    let commands = commands["commands"].as_object().unwrap();
    commands.values().map(|counts| counts[kind].as_u64().unwrap()).sum()
}

/// The page has a number, with commas between thousands, before a word.
fn told(number: u64, word: &str) {
    let digits = number.to_string();
    let first = digits.len() % 3;
    let mut text = digits[..first].to_owned();
    for thousand in digits.as_bytes()[first..].chunks(3) {
        if !text.is_empty() {
            text.push(',');
        }
        text += std::str::from_utf8(thousand).unwrap();
    }
    let text = format!("{text} {word}");
    assert!(PAGE.contains(&text), "docs/reliability.md lacks `{text}`");
}

#[test]
fn the_simulator() {
    let json = result(include_str!("../../results/simulator.json"));
    for (key, word) in [("seeds", "scenarios"), ("texts", "texts"), ("exact", "exact")] {
        told(json[key].as_u64().unwrap(), word);
    }
    let troubles = json["troubles"].as_object().unwrap().values();
    told(troubles.map(|count| count.as_u64().unwrap()).sum(), "troubled reads");
    told(json["wrong"].as_array().unwrap().len() as u64, "wrong");
}

#[test]
fn faults_and_crashes() {
    let faults = result(include_str!("../../results/faults.json"));
    let kinds = ["right", "told", "aborted", "wrong"].map(|kind| sum(&faults, kind));
    told(kinds.iter().sum(), "faults");
    told(kinds[2], "aborted");
    told(kinds[3], "wrong");
    let crashes = result(include_str!("../../results/crash.json"));
    told(sum(&crashes, "images"), "images");
    told(sum(&crashes, "wrong"), "wrong");
}

#[test]
fn machines() {
    let json = result(include_str!("../../results/machines.json"));
    let machines = json.as_object().unwrap();
    let wrong = |machine: &&Value| machine["wrong"].as_array().is_some_and(|it| !it.is_empty());
    told(
        machines.values().filter(|machine| machine.get("skipped").is_none()).count() as u64,
        "machines",
    );
    told(machines.values().filter(wrong).count() as u64, "wrong");
}

#[test]
fn fuzzing_and_load() {
    let fuzz = result(include_str!("../../results/fuzz.json"));
    let targets = fuzz.as_object().unwrap();
    let sum = |key: &str| targets.values().map(|target| target[key].as_u64().unwrap()).sum();
    told(targets.len() as u64, "targets");
    told(sum("inputs"), "inputs");
    told(sum("edges"), "edges");
    told(targets.values().filter(|target| target["failed"] == true).count() as u64, "failed");
    let soak = result(include_str!("../../results/soak.json"));
    let servers = [&soak["a server"], &soak["a flaky disk"]];
    told(servers.iter().map(|server| server["right"].as_u64().unwrap()).sum(), "texts right");
    told(soak["a flaky disk"]["read failed"].as_u64().unwrap(), "ended by a failed read");
    told(soak["wrong"].as_u64().unwrap(), "wrong");
}
