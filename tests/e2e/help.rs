//! Help, manual pages and completions: one table.

use std::path::Path;

use sws_testing::root;

use crate::sws::{Outcome, command, sws, tree};

#[test]
fn the_documented_options_are_those_of_the_program() {
    let temp = tempfile::tempdir().unwrap();
    sws(&[&"pages", &temp.path()]).succeeded();
    let made = std::fs::read_to_string(temp.path().join("cli.md")).unwrap();
    let kept = std::fs::read_to_string(root().join("docs/cli.md")).unwrap();
    assert!(made == kept, "docs/cli.md is old: `sws pages DIR` makes it");
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
    let (short, long) = (help(&["run", "-h"]), help(&["run", "--help"]));
    let options =
        |text: &str| text.lines().filter(|line| line.trim_start().starts_with('-')).count();
    assert!(options(&short) <= 16, "{short}");
    assert!(short.contains("--prompt") && !short.contains("--policy"), "{short}");
    for words in ["--policy", "Advanced:", "Sampling:", "Examples:"] {
        assert!(long.contains(words), "{words}: {long}");
    }
    // The first of them is what is typed first.
    assert!(long.find("--prompt").unwrap() < long.find("--ram").unwrap(), "{long}");
    assert_eq!(help(&["help", "run"]), long);
    assert!(help(&["--version"]).contains("tiers of this CPU: "));
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
