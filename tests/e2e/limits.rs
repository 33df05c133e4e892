//! Limits of the process: an error that names the limit and how to raise it, never an abort.

use std::process::{Command, Stdio};

use sws_testing::tales;

use crate::goldens::golden_dir;
use crate::sws::{Outcome, command};

/// Runs `sws` under limits set by a shell.
fn limited(limits: &str, args: &[&dyn AsRef<std::ffi::OsStr>]) -> Outcome {
    let sws = command(args);
    let mut shell = Command::new("bash");
    shell.args(["-c", &format!("{limits} && exec \"$0\" \"$@\"")]);
    shell.arg(sws.get_program()).args(sws.get_args());
    shell.envs(sws.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Outcome::of(shell.output().unwrap())
}

#[test]
fn limits_of_the_process_are_named() {
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("out");
    let model = tales();
    let cases = [
        ("ulimit -s 64", "ulimit -s"),
        // The environment lies on the same stack.
        ("ulimit -s 64 && export LARGE=$(printf %32768s)", "ulimit -s"),
        ("ulimit -f 1", "ulimit -f"),
        ("ulimit -n 8", "ulimit -n"),
    ];
    for (limit, words) in cases {
        let args: [&dyn AsRef<std::ffi::OsStr>; 6] =
            [&"forward", &model, &"--tokens", &"1,2,3,4,5,6,7,8", &"--out", &out];
        limited(limit, &args).refused(2, &[words]);
    }
    assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0);
}

/// Memory may run out in an allocation of any size, in a thread's stack, or in a mapping.
#[test]
fn too_little_address_space_is_a_clean_error() {
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("out");
    let model = tales();
    let mut refused = 0;
    for kib in (80_000..370_000).step_by(10_007) {
        for more in ["--resident", "--no-warm-start"] {
            let args: [&dyn AsRef<std::ffi::OsStr>; 8] =
                [&"forward", &model, &"--tokens", &"1,2,3", &"--threads", &"2", &"--out", &out];
            let args = [&args[..], &[&more]].concat();
            let outcome = limited(&format!("ulimit -v {kib}"), &args);
            if outcome.code != Some(0) {
                outcome.refused(2, &[";"]);
                refused += 1;
            }
        }
    }
    assert!(refused > 0, "none of these limits is too small");
}

/// Room for their stacks is no part of the files of a model, for which there is little.
#[test]
fn chats_with_many_threads_start_under_a_limit_of_address_space() {
    let model = tales();
    let args: [&dyn AsRef<std::ffi::OsStr>; 7] =
        [&"chat", &model, &"a", &"--threads", &"64", &"--ram", &"56MiB"];
    limited("ulimit -v 8000000", &args).refused(2, &["no chat template"]);
}

#[test]
fn rayon_environment_does_not_set_the_threads() {
    let model = golden_dir("qwen3_moe");
    let args: [&dyn AsRef<std::ffi::OsStr>; 5] = [&"run", &model, &"--tokens", &"1,2,3", &"--json"];
    let outcome = Outcome::of(command(&args).env("RAYON_NUM_THREADS", "500").output().unwrap());
    let outcome: serde_json::Value = serde_json::from_str(&outcome.succeeded().stdout).unwrap();
    let cores = std::thread::available_parallelism().unwrap().get();
    assert_eq!(outcome["metrics"]["threads"], cores);
}

#[test]
fn a_closed_or_full_standard_error_changes_no_exit_code() {
    let model = golden_dir("qwen3_moe");
    let run = |redirection: &str, args: &[&dyn AsRef<std::ffi::OsStr>]| {
        let sws = command(args);
        let mut shell = Command::new("bash");
        shell.args(["-c", &format!("\"$0\" \"$@\" {redirection}")]);
        shell.arg(sws.get_program()).args(sws.get_args()).stdin(Stdio::null());
        shell.output().unwrap().status.code()
    };
    for redirection in ["2>/dev/full", "2>&-", "2> >(exec true)"] {
        let good: [&dyn AsRef<std::ffi::OsStr>; 5] =
            [&"run", &model, &"--tokens", &"1,2,3", &"--json"];
        assert_eq!(run(redirection, &good), Some(0), "{redirection}");
        assert_eq!(run(redirection, &[&"run", &"no/such-model"]), Some(2), "{redirection}");
        assert_eq!(run(redirection, &[&"run", &"--no-such-option"]), Some(2), "{redirection}");
    }
    let full = run(">/dev/full", &[&"run", &model, &"--tokens", &"1,2,3", &"--json"]);
    assert_eq!(full, Some(2), "the answer itself is lost");
}

#[test]
fn a_limit_is_not_taken_for_damage() {
    let model = tales();
    let outcome = limited("ulimit -n 6", &[&"verify", &model]);
    outcome.refused(2, &["ulimit -n"]);
}

/// Running out of memory skips destructors, and still no file is left behind.
#[test]
fn running_out_of_memory_leaves_nothing_behind() {
    let temp = tempfile::tempdir().unwrap();
    let record = temp.path().join("record");
    let certificate = temp.path().join("certificate");
    let model = tales();
    let mut ended = 0;
    for kib in (60_000..300_000).step_by(11_003) {
        let args: [&dyn AsRef<std::ffi::OsStr>; 9] = [
            &"run",
            &model,
            &"--tokens",
            &"1,2",
            &"--json",
            &"--record",
            &record,
            &"--certify",
            &certificate,
        ];
        let outcome = limited(&format!("ulimit -v {kib}"), &args);
        if outcome.code == Some(0) {
            std::fs::remove_file(&record).unwrap();
            std::fs::remove_file(&certificate).unwrap();
        } else {
            ended += u32::from(outcome.stderr.contains("grants no"));
        }
        assert_eq!(temp.path().read_dir().unwrap().count(), 0, "{kib} KiB: {outcome:?}");
    }
    assert!(ended > 0, "no run ended for lack of memory");
}

/// Limits hurt where they are too low, and not because they are there.
#[test]
fn the_doctor_knows_which_limits_hurt() {
    let model = tales();
    let cases = [
        ("ulimit -v 1000000000000", "address space", false),
        ("ulimit -v 1200000", "address space", true),
        ("ulimit -n 1024", "open files", false),
        ("ulimit -n 24", "open files", true),
        ("ulimit -l 64", "locked memory", false),
        ("export HOME= XDG_CACHE_HOME=", "cache", true),
        ("export XDG_CACHE_HOME=/proc/sws", "cache", true),
    ];
    for (limit, check, hurts) in cases {
        let outcome = limited(limit, &[&"doctor", &model, &"--json"]);
        let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
        let checks = report["checks"].as_array().unwrap();
        let found = checks.iter().find(|line| line["check"] == check).unwrap();
        assert_eq!(found["hurts"], hurts, "{limit}: {found}");
    }
}
