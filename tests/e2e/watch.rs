//! `--watch`, `--report` and `replay --html`: pictures of a run, and a terminal that is given back.

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use sws_format::Clock;
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
        sws(&args).refused(2, &["--watch needs a terminal on standard error"]);
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
    let peak = &metrics["peak_rss_bytes"];
    let budget = &metrics["ram_bytes"];
    assert!(peak.as_u64().unwrap() <= budget.as_u64().unwrap(), "{peak} of {budget}");

    let data = data(&page);
    assert_eq!(data["timed"], true);
    assert_eq!(data["model"], "tales-moe", "a name, and no place of this machine");
    let texts = data["tokens"]["text"].as_array().unwrap();
    assert!(texts.len() >= tokens(&plain).as_array().unwrap().len(), "{}", texts.len());
    assert_eq!(data["rows"].as_array().unwrap().len(), 8);
    let states = data["frames"]["states"].as_array().unwrap();
    assert_eq!(states.len(), texts.len());
    assert!(states.iter().all(|frame| frame.as_str().unwrap().len() == 8 * 32 / 2));
    let all = |name: &str| -> Vec<f64> {
        data["tokens"][name].as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect()
    };
    let sum = |name: &str| -> f64 { all(name).iter().sum() };
    // Computing and waiting are those of the account. Times have six digits in the page.
    for (name, of) in [("computing", "compute"), ("waiting", "stall")] {
        let prompt = all(name)[0];
        let rest = all(name)[1..].iter().sum::<f64>();
        for (part, found) in [("prompt", prompt), ("generation", rest)] {
            let expected = metrics["cost"][part]["time"][of].as_f64().unwrap();
            assert!((found - expected).abs() < 1e-4, "{name} of the {part}: {found}, {expected}");
        }
    }
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
            let signal = format!("-{signal}");
            let id = child.id().to_string();
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
fn a_page_of_a_chat_has_all_answers() {
    let temp = tempfile::tempdir().unwrap();
    let model = temp.path().join("model");
    let page = temp.path().join("page.html");
    conversational(&model);
    let args: [&dyn AsRef<OsStr>; 7] =
        [&"chat", &model, &"-n", &"4", &"--ignore-eos", &"--report", &page];
    let talk = |lines: &str| {
        let mut command = command(&args);
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        Outcome::of(child.wait_with_output().unwrap()).succeeded()
    };
    talk("hello\n");
    let one = data(&page);
    assert_eq!(one["opening"], "hello\n\n");
    talk("hello\n/stats\nagain <b>\n");
    let two = data(&page);
    assert_eq!((&two["opening"], &two["model"]), (&one["opening"], &"model".into()));
    let texts: Vec<&str> = two["tokens"]["text"]
        .as_array()
        .unwrap()
        .iter()
        .map(|text| text.as_str().unwrap())
        .collect();
    let asides = texts.iter().filter(|text| **text == "\n\nagain <b>\n\n").count();
    assert_eq!(asides, 1, "{texts:?}");
    assert!(two["summary"].as_str().unwrap().starts_with("8 tokens,"), "{}", two["summary"]);
    assert_eq!(temp.path().read_dir().unwrap().count(), 2, "nothing else is left");

    let question: [&dyn AsRef<OsStr>; 1] = [&"hello"];
    for (to, words) in [("/dev/null", "is a pipe or a device"), ("/", "is a directory")] {
        let args: [&dyn AsRef<OsStr>; 4] = [&"chat", &model, &"--report", &to];
        sws(&[&args[..], &question].concat()).refused(2, &[words]);
    }
    let inside = model.join("config.json");
    let args: [&dyn AsRef<OsStr>; 4] = [&"chat", &model, &"--report", &inside];
    sws(&[&args[..], &question].concat()).refused(2, &["lies among the files of its model"]);
}

/// Standard output that takes nothing keeps the run from heeding the first signal.
#[test]
fn two_signals_leave_no_unfinished_file() {
    let temp = tempfile::tempdir().unwrap();
    let page = temp.path().join("page.html");
    let files = || temp.path().read_dir().unwrap().count();
    let (_reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(&[b' '; 64 << 10]).unwrap();
    let child = command(&[&"run", &"-v", &"--report", &page]).stdout(writer).spawn().unwrap();
    let place = |name: &str| format!("/proc/{}/{name}", child.id());
    let is_stuck = || {
        // The first two words of a write to standard output, where the system tells.
        let syscall = std::fs::read_to_string(place("syscall")).unwrap_or_default();
        let place = std::fs::read_to_string(place("wchan")).unwrap_or_default();
        place.contains("pipe_write") || syscall.contains(" 0x1 ")
    };
    let clock = Clock::real();
    for _ in 0..200 {
        if files() > 0 && is_stuck() {
            break;
        }
        clock.sleep(Duration::from_millis(50));
    }
    assert_eq!(files(), 1, "the page under way");
    for _ in 0..2 {
        let id = child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
        // Two at once may count as one.
        clock.sleep(Duration::from_millis(300));
    }
    let outcome = Outcome::of(child.wait_with_output().unwrap());
    assert_eq!(outcome.code, Some(130), "{outcome:?}");
    assert!(!outcome.stderr.contains("[seed"), "it ended at once: {outcome:?}");
    assert_eq!(files(), 0, "{:?}", temp.path().read_dir().unwrap().collect::<Vec<_>>());
}

/// What would be logged meanwhile comes after the screen.
#[test]
fn logs_are_held_until_the_screen_is_left() {
    let terminal = Terminal::open();
    let args: [&dyn AsRef<OsStr>; 6] = [&"run", &"--watch", &"-vv", &"-n", &"8", &"--ram=min"];
    let child = terminal.start_with_messages(&mut command(&args));
    let shown = terminal.until("[seed");
    assert!(ended(child).success());
    let (before, rest) = shown.split_once(ENTER).unwrap();
    let (screen, after) = rest.split_once(LEAVE).unwrap();
    assert!(before.contains("info: ") || before.contains("debug: "), "{before:?}");
    assert!(!screen.contains("info: ") && !screen.contains("debug: "), "{screen:?}");
    assert!(after.contains("debug: the prompt is computed, 5 tokens"), "{after:?}");
    assert!(after.contains("waiting for the disk"), "the account: {after:?}");
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
