//! Help, manual pages and completions: one table.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;

use serde_json::Value;
use sws_testing::root;

use crate::goldens::copy;
use crate::sws::{Outcome, command, sws, tree};

/// Words of a text that are long options.
fn options(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    words.filter(|word| word.len() > 3 && word.starts_with("--")).collect()
}

/// A help text without the other spellings of options, which are in brackets behind them.
fn without_aliases(help: &str) -> String {
    let mut parts = help.split("[alias");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once(']').map_or("", |(_, rest)| rest))
}

#[test]
fn pages_have_the_options_of_the_program() {
    let temp = tempfile::tempdir().unwrap();
    sws(&[&"pages", &temp.path()]).succeeded();
    let made = std::fs::read_to_string(temp.path().join("cli.md")).unwrap();
    let mut sections: Vec<&str> = made.split("\n## ").skip(1).collect();
    assert!(sections.len() > 20, "{made}");
    for section in &mut sections {
        let command = section.lines().next().unwrap();
        let words: Vec<&str> = command.split(' ').skip(1).chain(["--help"]).collect();
        let words: Vec<&dyn AsRef<OsStr>> = words.iter().map(|word| word as _).collect();
        let help = sws(&words).succeeded().stdout;
        let help = without_aliases(&help);
        let table: Vec<&str> = section.lines().filter(|line| line.starts_with('|')).collect();
        let shown =
            options(&help).into_iter().filter(|option| !["--help", "--version"].contains(option));
        let missing: Vec<&str> = shown.filter(|option| !section.contains(option)).collect();
        assert!(missing.is_empty(), "{command}: {missing:?}");
        let unknown: Vec<&str> = table
            .iter()
            .flat_map(|row| options(row))
            .filter(|option| !help.contains(option))
            .collect();
        assert!(unknown.is_empty(), "{command}: {unknown:?}");
    }
    let names: Vec<_> = tree(temp.path()).into_keys().collect();
    for page in ["sws.1", "sws-run.1", "sws-draft-train.1"] {
        assert!(names.iter().any(|name| name == Path::new(page)), "{page}: {names:?}");
    }
}

#[test]
fn short_help_has_the_common_options() {
    let help = |words: &[&str]| {
        let words: Vec<&dyn AsRef<std::ffi::OsStr>> = words.iter().map(|word| word as _).collect();
        sws(&words).succeeded().stdout
    };
    let short = help(&["run", "-h"]);
    let long = help(&["run", "--help"]);
    // Ten, and --help.
    for command in ["run", "chat", "serve", "pull", "plan", "shard", "doctor"] {
        let short = help(&[command, "-h"]);
        let options = short.lines().filter(|line| line.trim_start().starts_with('-')).count();
        assert!(options <= 11, "{short}");
    }
    assert!(short.contains("--prompt") && !short.contains("--policy"), "{short}");
    for words in ["--policy", "Advanced:", "Sampling:", "Examples:"] {
        assert!(long.contains(words), "{words}: {long}");
    }
    // The first of them is what is typed first.
    assert!(long.find("--prompt").unwrap() < long.find("--ram").unwrap(), "{long}");
    assert_eq!(help(&["help", "run"]), long);
    assert!(help(&["--version"]).contains("tiers of this CPU: "));
}

/// All paths of fields of a value, `metrics.prompt.tokens`. An array has the fields of its first entry.
fn fields(value: &Value, above: &str, to: &mut BTreeSet<String>) {
    match value {
        Value::Object(entries) => {
            for (name, value) in entries {
                let path = format!("{above}{name}");
                fields(value, &format!("{path}."), to);
                to.insert(path);
            }
        }
        Value::Array(entries) if above.is_empty() => {
            entries.iter().take(1).for_each(|entry| fields(entry, above, to));
        }
        _ => {}
    }
}

/// Every field of the page is printed, and every field that is printed, or one above it, is on the page.
#[test]
fn the_documented_fields_are_those_of_the_program() {
    let page = std::fs::read_to_string(root().join("docs/json.md")).unwrap();
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str| temp.path().join(name);
    let model = at("models/own--model/bf12");
    let out = at("out");
    copy("qwen3_moe", &at("in"));
    std::fs::create_dir_all(at("models/own--model")).unwrap();
    sws(&[&"shard", &at("in"), &"--out", &model]).succeeded();
    let calls: [&[&dyn AsRef<OsStr>]; 9] = [
        &[&"run", &model, &"--tokens=1,2", &"-n3", &"--ram=min"],
        &[&"list"],
        &[&"plan", &model, &"--no-probe"],
        &[&"inspect", &model],
        &[&"verify", &model],
        &[&"shard", &at("in"), &"--out", &out],
        &[&"mirror", &model, &at("copy")],
        &[&"doctor"],
        &[&"bench", &model, &"-n2", &"--rounds=1"],
    ];
    let mut sections = page.split("\n## sws ").skip(1);
    for call in calls {
        let name = call[0].as_ref().to_str().unwrap();
        let section = sections.next().unwrap();
        assert_eq!(section.lines().next(), Some(name));
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
        let cells = rows.filter_map(|row| row.split_once(" | "));
        let names = cells.flat_map(|(cell, _)| cell.split(", "));
        let documented: BTreeSet<&str> = names.map(|name| name.trim_matches('`')).collect();

        let mut command = command(call);
        command.arg("--json").env("SWS_MODELS", at("models"));
        let outcome = Outcome::of(command.output().unwrap());
        let json: Value = serde_json::from_str(&outcome.stdout).unwrap();
        let mut printed = BTreeSet::new();
        fields(&json, "", &mut printed);
        let missing = documented.iter().find(|name| !printed.contains(**name));
        assert_eq!(missing, None, "`sws {name}` prints no such field: {printed:?}");
        let above = |path: &str| {
            let mut ends = path.match_indices('.').map(|(end, _)| end).chain([path.len()]);
            ends.any(|end| documented.contains(&path[..end]))
        };
        // A field of whose parts each has its own row.
        let divided = |path: &str| {
            let below = format!("{path}.");
            documented.iter().any(|name| name.starts_with(&below))
        };
        let new = printed.iter().find(|path| !above(path) && !divided(path));
        assert_eq!(new, None, "docs/json.md lacks a field of `sws {name}`");
    }
    assert_eq!(sections.next(), None);
}

#[test]
fn tables_have_at_most_80_columns() {
    let model = sws_testing::tales();
    let temp = tempfile::tempdir().unwrap();
    let traces = ["1", "2"].map(|seed| {
        let trace = temp.path().join(seed);
        let seed = format!("--seed={seed}");
        let record: [&dyn AsRef<OsStr>; 7] =
            [&"run", &model, &"-n9", &"--record-hidden", &seed, &"--record", &trace];
        sws(&record).succeeded();
        trace
    });
    let calls: [&[&dyn AsRef<OsStr>]; 9] = [
        &[&"bench", &model, &"-n2", &"--rounds=1"],
        &[&"doctor", &model],
        &[&"draft", &"score", &model, &"--traces", &traces[0], &"--traces", &traces[1]],
        &[&"inspect", &model],
        &[&"list"],
        &[&"plan", &model, &"--memory"],
        &[&"pull"],
        &[&"replay", &traces[0]],
        &[&"run", &model, &"-n30", &"--json", &"-v"],
    ];
    for call in calls {
        let outcome = sws(call);
        let messages = call.iter().any(|word| word.as_ref() == "-v");
        let text = if messages { &outcome.stderr } else { &outcome.stdout };
        assert!(!text.is_empty(), "{outcome:?}");
        // A name may be longer, and a log.
        let is_wide = |line: &&str| {
            line.chars().count() > 80
                && !line.starts_with("info: ")
                && line.split(' ').all(|word| word.chars().count() <= 40)
        };
        assert_eq!(text.lines().find(is_wide), None, "{text}");
    }
}

#[test]
fn the_shell_is_offered_options() {
    let complete = |words: &[&str]| {
        let mut command = command(&[&"--"]);
        command.args(words).env("SWS_COMPLETE", "bash").env("_CLAP_IFS", "\n");
        command.env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string());
        Outcome::of(command.output().unwrap()).succeeded().stdout
    };
    assert!(complete(&["sws", "ch"]).lines().any(|line| line == "chat"));
    assert!(complete(&["sws", "run", "--no-sp"]).contains("--no-speculation"));
}
