//! `--watch`, `--report` and `replay --html`: pictures of a run, and a terminal that is given back.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use sws_testing::root;

use crate::sws::{Outcome, command, sws};
use crate::terminal::{Terminal, conversational, ended};

const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

/// The data of a page.
fn data(page: &Path) -> Value {
    let page = std::fs::read_to_string(page).unwrap();
    let (_, rest) = page.split_once("id=\"data\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

fn tokens(outcome: &Outcome) -> Value {
    serde_json::from_str::<Value>(&outcome.stdout).unwrap()["tokens"].clone()
}

#[test]
fn a_screen_needs_a_terminal() {
    for args in [["run", "--watch"], ["chat", "--watch"]] {
        let args: Vec<&dyn AsRef<OsStr>> = args.iter().map(|arg| arg as _).collect();
        sws(&args).refused(2, &["--watch draws on standard error", "no terminal"]);
    }
    let outcome = sws(&[&"run", &"--watch", &"--prompts", &"-"]);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
}

#[test]
fn watching_changes_no_token_and_stays_within_the_budget() {
    let args: [&dyn AsRef<OsStr>; 9] = [
        &"run",
        &"--seed",
        &"7",
        &"--max-new-tokens",
        &"40",
        &"--ram",
        &"min",
        &"--json",
        &"--no-warm-start",
    ];
    let plain = sws(&args).succeeded();
    let temp = tempfile::tempdir().unwrap();
    let page = temp.path().join("page.html");
    let terminal = Terminal::open();
    let before = terminal.modes();
    let mut command = command(&args);
    command.arg("--watch").arg("--report").arg(&page);
    let child = terminal.start_with_output(&mut command, Stdio::piped());
    let shown = terminal.until(LEAVE);
    let watched = Outcome::of(child.wait_with_output().unwrap()).succeeded();
    assert_eq!(tokens(&watched), tokens(&plain));
    assert_eq!(terminal.modes(), before);
    for words in [ENTER, "in memory", "disk", "compute", "GB/s"] {
        assert!(shown.contains(words), "{words}");
    }
    let metrics = &serde_json::from_str::<Value>(&watched.stdout).unwrap()["metrics"];
    let (peak, budget) = (&metrics["peak_rss_bytes"], &metrics["ram_bytes"]);
    assert!(peak.as_u64().unwrap() <= budget.as_u64().unwrap(), "{peak} of {budget}");

    let data = data(&page);
    assert_eq!(data["timed"], true);
    let texts = data["tokens"]["text"].as_array().unwrap();
    assert!(texts.len() >= tokens(&plain).as_array().unwrap().len(), "{}", texts.len());
    assert_eq!(data["rows"].as_array().unwrap().len(), 8);
    let states = data["frames"]["states"].as_array().unwrap();
    assert_eq!(states.len(), texts.len());
    assert!(states.iter().all(|frame| frame.as_str().unwrap().len() == 8 * 32 / 2));
    let sum = |name: &str| -> f64 {
        data["tokens"][name].as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).sum()
    };
    assert!(sum("hits") > 0.0 && sum("misses") > 0.0 && sum("bytes") > 0.0 && sum("seconds") > 0.0);
    // Each token after the first goes through 8 layers with 4 experts each.
    assert_eq!(
        data["tokens"]["hits"][7].as_u64().unwrap() + data["tokens"]["misses"][7].as_u64().unwrap(),
        32
    );
}

#[test]
fn a_model_in_memory_has_only_hits() {
    let temp = tempfile::tempdir().unwrap();
    let page = temp.path().join("page.html");
    sws(&[&"run", &"--resident", &"--max-new-tokens", &"8", &"--report", &page]).succeeded();
    let data = data(&page);
    assert_eq!(data["budget"], Value::Null);
    assert!(data["tokens"]["misses"].as_array().unwrap().iter().all(|misses| misses == 0));
    let last = data["frames"]["states"][7].as_str().unwrap();
    // In memory, or used: 1 or 3 of 5 in each half of a letter.
    assert!(last.chars().all(|pair| "GISQ".contains(pair)), "{last}");
}

#[test]
fn an_answer_is_printed_after_its_screen() {
    let temp = tempfile::tempdir().unwrap();
    let model = temp.path().join("model");
    conversational(&model);
    let terminal = Terminal::open();
    let before = terminal.modes();
    let args: [&dyn AsRef<OsStr>; 6] = [&"chat", &model, &"hello", &"--watch", &"-n", &"4"];
    let child = terminal.start_with_messages(&mut command(&args));
    let shown = terminal.until("tokens,");
    assert!(ended(child).success());
    let (screen, after) = shown.split_once(LEAVE).unwrap();
    assert!(screen.contains(ENTER) && screen.contains("hello"), "{screen:?}");
    assert!(after.contains("[4 tokens,") && !after.contains(ENTER), "{after:?}");
    assert_eq!(terminal.modes(), before);
}

#[test]
fn the_terminal_is_given_back_whatever_ends_the_run() {
    for signals in [&["INT"][..], &["INT", "INT"], &["TERM"], &["HUP"], &["QUIT"]] {
        let terminal = Terminal::open();
        let before = terminal.modes();
        let args: [&dyn AsRef<OsStr>; 6] =
            [&"run", &"--watch", &"--max-new-tokens", &"100000", &"--ram", &"min"];
        let child = terminal.start_with_output(&mut command(&args), Stdio::null());
        terminal.until("GB/s");
        assert_ne!(terminal.modes(), before, "typed keys are not shown");
        for signal in signals {
            let (signal, id) = (format!("-{signal}"), child.id().to_string());
            assert!(Command::new("kill").args([&signal, &id]).status().unwrap().success());
        }
        terminal.until(LEAVE);
        let status = ended(child);
        let expected = if ["HUP", "QUIT"].contains(&signals[0]) { None } else { Some(130) };
        assert_eq!(status.code(), expected, "{signals:?}");
        assert_eq!(terminal.modes(), before, "{signals:?}");
    }
}

#[test]
fn a_page_replaces_no_other_output() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("out");
    let model = root().join("shards/tales-moe");
    sws(&[&"run", &model, &"--report", &temp.path()]).refused(2, &["is a directory"]);
    sws(&[&"run", &model, &"--record", &file, &"--report", &file])
        .refused(2, &["--report names the file"]);
    sws(&[&"run", &model, &"--certify", &file, &"--report", &file])
        .refused(2, &["--report names the file"]);
    assert!(!file.exists());
}

#[test]
fn a_recording_is_shown_without_times() {
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/traces/tales.safetensors");
    let temp = tempfile::tempdir().unwrap();
    let page = temp.path().join("page.html");
    let args: [&dyn AsRef<OsStr>; 6] =
        [&"replay", &trace, &"--budgets", &"30,50", &"--html", &page];
    let with_page = sws(&args).succeeded();
    assert_eq!(with_page.stdout, sws(&args[..4]).succeeded().stdout);
    let data = data(&page);
    assert_eq!((&data["timed"], &data["has_places"]), (&Value::Bool(false), &Value::Bool(true)));
    assert_eq!(data["tokens"]["seconds"], serde_json::json!([]));
    assert!(
        data["notes"][1].as_str().unwrap().contains("77 slots for 256 experts"),
        "{}",
        data["notes"]
    );
    assert_eq!(data["model"], "tales.safetensors");
    let bare: [&dyn AsRef<OsStr>; 2] = [&"--policies", &"belady"];
    sws(&[&args[..], &bare].concat()).succeeded();
    assert_eq!(
        self::data(&page)["has_places"],
        false,
        "a cache that knows the future is not shown"
    );
    sws(&[&"replay", &trace, &"--html", &temp.path()]).refused(2, &["is a directory"]);
    sws(&[&"replay", &trace, &"--html", &"/dev/stdout"]).refused(2, &["standard output"]);
}
