//! Prefixes that a server keeps: within its memory, and on disks that are full, shared, or
//! left in the middle of a write.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use sws_format::Clock;
use sws_testing::{cgroup, tales};

use crate::checkpoints::Random;
use crate::full_disk::Disk;
use crate::serve::Server;
use crate::sws::{Outcome, command};

/// Prompts of more than a block that begin differently.
fn prompts(count: u32, tokens: u32) -> Vec<Value> {
    let prompt = |first: u32| -> Vec<u32> {
        [first + 40]
            .into_iter()
            .chain((0..tokens - 1).map(|n| 100 + n * (first + 3) % 800))
            .collect()
    };
    (0..count)
        .map(|first| {
            json!({"prompt": prompt(first), "max_tokens": 6, "seed": 3, "ignore_eos": true})
        })
        .collect()
}

/// The texts of a server that has no disk, each computed from its first token.
fn expected(prompts: &[Value]) -> Vec<Value> {
    let server = Server::start(&["--resident", "--parallel", "1"]);
    let ask = |prompt| {
        let answer = server.client.ask(prompt);
        assert_eq!(cached(&answer), 0, "{answer}");
        answer["choices"].clone()
    };
    prompts.iter().map(ask).collect()
}

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0)
}

/// A server with its disk below a directory.
fn serve(cache: &Path, more: &[&str]) -> Command {
    let model = tales();
    let mut args: Vec<&dyn AsRef<OsStr>> =
        vec![&"serve", &model, &"--port", &"0", &"--no-warm-start"];
    args.extend(more.iter().map(|word| word as &dyn AsRef<OsStr>));
    let mut command = command(&args);
    command.env("XDG_CACHE_HOME", cache);
    command
}

/// The files of all models.
fn files(cache: &Path) -> Vec<PathBuf> {
    let Ok(dirs) = cache.join("sws/kv").read_dir() else { return Vec::new() };
    let files = dirs.flat_map(|dir| dir.unwrap().path().read_dir().unwrap());
    files.map(|file| file.unwrap().path()).collect()
}

/// Bytes of these files that are still there.
fn bytes(files: &[PathBuf]) -> u64 {
    files.iter().filter_map(|file| Some(file.metadata().ok()?.len())).sum()
}

#[test]
fn a_server_that_keeps_all_it_can_stays_within_its_group() {
    const BUDGET: u64 = 224 << 20;
    let Ok(group) = cgroup::Group::new("kv", BUDGET) else {
        eprintln!("skipped: no control group can be made here");
        return;
    };
    let prompts = prompts(24, 400);
    let expected = expected(&prompts);
    let temp = tempfile::tempdir().unwrap();
    let ram = BUDGET.to_string();
    let model = tales();
    let mut command = group.command(env!("CARGO_BIN_EXE_sws"));
    command.args(["serve".as_ref(), model.as_os_str()]);
    command.args(["--ram", &ram, "--port", "0", "--no-warm-start", "--kv-disk", "8MiB"]);
    command.args(["--parallel", "8", "--context", "512"]);
    command.env("XDG_CACHE_HOME", temp.path()).env("SWS_CONFIG", "");
    command.stdin(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
    let server = Server::of(&mut command);
    let most = std::thread::scope(|scope| {
        for seed in 1..4 {
            let client = &server.client;
            let prompts = &prompts;
            let expected = &expected;
            scope.spawn(move || {
                let mut random = Random(seed);
                for _ in 0..40 {
                    let at = random.below(prompts.len() as u64) as usize;
                    let answer = client.ask(&prompts[at]);
                    assert_eq!(answer["choices"], expected[at], "prompt {at}");
                }
            });
        }
        let most = || server.client.metric("sws_kept_prefixes");
        (0..40)
            .map(|_| {
                Clock::real().sleep(Duration::from_millis(50));
                most()
            })
            .fold(0.0, f64::max)
    });
    assert!(most >= 3.0, "{most} kept");
    // Time without texts, in which all that is kept is written.
    let mut written = -1.0;
    while written < server.client.metric("sws_kv_disk_written_bytes_total") {
        written = server.client.metric("sws_kv_disk_written_bytes_total");
        Clock::real().sleep(Duration::from_millis(200));
    }
    assert!(written > 0.0);
    let on_disk = bytes(&files(temp.path()));
    assert!(on_disk > 0 && on_disk <= 8 << 20, "{on_disk} bytes");
    let peak = group.peak().unwrap();
    eprintln!("{most} kept at most, {on_disk} bytes on disk, {peak} of {BUDGET} bytes");
    assert!(peak <= BUDGET);
    drop(server);
}

#[test]
fn servers_killed_in_the_middle_of_writing_leave_nothing_wrong() {
    let prompts = prompts(6, 700);
    let expected = expected(&prompts);
    let temp = tempfile::tempdir().unwrap();
    let clock = Clock::real();
    let mut random = Random(5);
    let mut cut = 0;
    let mut found = 0;
    for round in 0..12 {
        let mut serve = serve(temp.path(), &["--resident", "--kv-disk", "3MiB"]);
        let mut server = Server::of(&mut serve);
        assert!(files(temp.path()).iter().all(|file| !is_part(file)), "round {round}");
        for _ in 0..2 {
            let at = random.below(prompts.len() as u64) as usize;
            let answer = server.client.ask(&prompts[at]);
            assert_eq!(answer["choices"], expected[at], "prompt {at} of round {round}");
            found += u32::from(cached(&answer) >= 256);
        }
        clock.sleep(Duration::from_micros(random.below(30_000)));
        server.child.kill().unwrap();
        server.child.wait().unwrap();
        let files = files(temp.path());
        assert!(bytes(&files) <= 3 << 20);
        cut += u32::from(files.iter().any(|file| is_part(file)));
    }
    eprintln!(
        "{cut} of 12 kills in the middle of a file; {found} prompts found on disk or in memory"
    );
    assert!(found > 0);
}

fn is_part(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "part")
}

#[test]
fn a_full_disk_changes_no_text() {
    let temp = tempfile::tempdir().unwrap();
    let Some(disk) = Disk::mount(&temp.path().join("disk"), 512) else { return };
    let prompts = prompts(3, 700);
    let expected = expected(&prompts);
    let mut server = Server::of(&mut serve(&disk.0, &["--resident", "--kv-disk", "1GiB"]));
    for _ in 0..2 {
        for (prompt, expected) in prompts.iter().zip(&expected) {
            assert_eq!(server.client.ask(prompt)["choices"], *expected);
        }
    }
    server.line("cannot be written");
    assert_eq!(server.client.metric("sws_kv_disk_faults_total"), 1.0);
    server.signal(Signal::TERM);
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_directory_that_another_server_uses_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let more = ["--resident", "--kv-disk", "1GiB"];
    let _first = Server::of(&mut serve(temp.path(), &more));
    let second = serve(temp.path(), &more).output().unwrap();
    Outcome::of(second).refused(2, &["sws/kv", "in use by another process"]);
}

#[test]
fn a_directory_for_prefixes_that_cannot_be_used_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::write(temp.path().join("sws"), "").unwrap();
    let mut serve = command(&[&"serve", &tales(), &"--port", &"0", &"--kv-disk", &"1GiB"]);
    serve.env("XDG_CACHE_HOME", temp.path());
    Outcome::of(serve.output().unwrap()).refused(2, &["sws/kv", "cannot be used"]);
}

#[test]
fn what_servers_keep_is_removed_on_request_when_none_runs() {
    let temp = tempfile::tempdir().unwrap();
    let rm = |more: &[&str]| {
        let mut args: Vec<&dyn AsRef<OsStr>> = vec![&"rm", &"--kv-disk"];
        args.extend(more.iter().map(|word| word as &dyn AsRef<OsStr>));
        let mut command = command(&args);
        Outcome::of(command.env("XDG_CACHE_HOME", temp.path()).output().unwrap())
    };
    let none = rm(&["--yes"]).succeeded();
    assert!(none.stdout.contains("no prefixes"), "{none:?}");
    let mut server = Server::of(&mut serve(temp.path(), &["--resident", "--kv-disk", "1GiB"]));
    server.client.ask(&prompts(1, 300)[0]);
    rm(&["--yes"]).refused(2, &["in use by another process"]);
    server.signal(Signal::TERM);
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    assert!(files(temp.path()).len() >= 3, "{:?}", files(temp.path()));
    rm(&[]).refused(2, &["--yes"]);
    assert!(files(temp.path()).len() >= 3);
    let removed = rm(&["--yes"]).succeeded();
    assert!(removed.stdout.contains("removed prefixes"), "{removed:?}");
    assert_eq!(temp.path().join("sws/kv").read_dir().unwrap().count(), 0);
}
