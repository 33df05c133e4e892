//! The model in `shards/`: checks against its card, and tests that need long generations.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use sws_testing::{root, tales};

use crate::goldens::Tensors;
use crate::sws::{Outcome, command, sws, tree};

#[test]
fn every_tensor_matches_the_card() {
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("out");
    sws(&[&"verify", &tales()]).succeeded();
    sws(&[&"unshard", &tales(), &"--out", &out]).succeeded();
    let found = Tensors::read(&out.join("model.safetensors")).0;
    let found: Vec<String> = found
        .iter()
        .map(|(name, (_, _, bytes))| format!("{}  {name}", blake3::hash(bytes).to_hex()))
        .collect();
    let card = std::fs::read_to_string(tales().join("tensors.blake3")).unwrap();
    assert_eq!(found, card.lines().collect::<Vec<_>>());
    assert_eq!(found.len(), 843);
    for file in ["config.json", "tokenizer.json", "generation_config.json"] {
        assert!(out.join(file).exists(), "{file}");
    }
}

#[test]
fn run_without_a_model_tells_a_tale() {
    let tell = || {
        let mut command = command(&[&"run", &"--seed", &"1", &"--max-new-tokens", &"40"]);
        Outcome::of(command.current_dir(root()).output().unwrap()).succeeded()
    };
    let tale = tell();
    assert!(tale.stderr.contains("the model is `shards/tales-moe`"), "{tale:?}");
    assert!(tale.stdout.split_whitespace().count() > 10, "{tale:?}");
    assert_eq!(tell().stdout, tale.stdout);
}

fn signal(child: &Child, signal: &str) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
}

/// Sends a signal as soon as the answer starts.
fn interrupt(child: &mut Child, by: &str) {
    let mut byte = [0];
    child.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
    signal(child, by);
}

#[test]
fn an_interrupted_run_completes_its_certificate() {
    let temp = tempfile::tempdir().unwrap();
    let model = tales();
    let certificate = temp.path().join("certificate");
    let certify = ["--certify", "--prompt"];
    let long = ["--ignore-eos", "--max-new-tokens", "4000"];
    for by in ["-INT", "-TERM"] {
        let mut args: Vec<&dyn AsRef<std::ffi::OsStr>> = vec![&"run", &model];
        args.extend([&certify[0] as &dyn AsRef<_>, &certificate, &certify[1], &"The king"]);
        args.extend(long.iter().map(|word| word as &dyn AsRef<std::ffi::OsStr>));
        let mut child = command(&args).spawn().unwrap();
        interrupt(&mut child, by);
        let outcome = Outcome::of(child.wait_with_output().unwrap());
        assert_eq!(outcome.code, Some(130), "{by}: {outcome:?}");
        assert!(outcome.stderr.contains("interrupted"), "{by}: {outcome:?}");
        let left: Vec<_> = tree(temp.path()).into_keys().collect();
        assert_eq!(left, [Path::new("certificate")], "{by}");
        std::fs::remove_file(&certificate).unwrap();
    }
}

#[test]
fn a_signal_during_loading_leaves_nothing_behind() {
    for (how, name) in [("--resident", "-INT"), ("--ram=auto", "-TERM"), ("--reader=uring", "-INT")]
    {
        let temp = tempfile::tempdir().unwrap();
        let out = temp.path().join("out");
        let ended = (0..40).any(|_| {
            // The unfinished output exists when loading starts.
            let args: [&dyn AsRef<std::ffi::OsStr>; 7] =
                [&"forward", &tales(), &"--tokens", &"1", &"--out", &out, &how];
            let child = command(&args).spawn().unwrap();
            while tree(temp.path()).is_empty() {
                std::thread::yield_now();
            }
            signal(&child, name);
            let outcome = Outcome::of(child.wait_with_output().unwrap());
            if outcome.code == Some(0) {
                std::fs::remove_file(&out).unwrap();
                return false;
            }
            assert!(tree(temp.path()).is_empty());
            // After loading, signals are handled between tokens.
            let loading = outcome.stderr.contains("still being loaded");
            outcome.refused(130, &["interrupted"]);
            loading
        });
        assert!(ended, "{how}: every model was loaded before it could be interrupted");
    }
}

#[test]
fn ctrl_c_ends_an_answer_and_not_the_chat() {
    let temp = tempfile::tempdir().unwrap();
    for (name, bytes) in tree(&tales()) {
        let path = temp.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    let template = "{% for m in messages %}{{ m.content }}\n{% endfor %}";
    std::fs::write(temp.path().join("chat_template.jinja"), template).unwrap();
    let args: [&dyn AsRef<std::ffi::OsStr>; 5] =
        [&"chat", &temp.path(), &"--ignore-eos", &"--max-new-tokens", &"3000"];
    let mut child = command(&args).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.as_mut().unwrap().write_all(b"The king\n").unwrap();
    interrupt(&mut child, "-INT");
    child.stdin.as_mut().unwrap().write_all(b"/help\n/quit\n").unwrap();
    let outcome = Outcome::of(child.wait_with_output().unwrap()).succeeded();
    assert!(outcome.stderr.contains("; interrupted]"), "{outcome:?}");
    assert!(outcome.stderr.contains("/reset"), "{outcome:?}");
}
