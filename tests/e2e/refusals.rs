//! Bad input gets one sentence with the file and the remedy, exit code 2, and nothing written.

use std::path::Path;

use safetensors::Dtype;

use crate::checkpoints::tiny;
use crate::sws::{Outcome, assert_same_tree, sws, tree};

fn checkpoint(dir: &Path) {
    tiny("llama", Dtype::BF16, 1).write(dir, 1);
}

#[test]
fn invalid_checkpoints_are_refused() {
    type Spoil = fn(&Path);
    #[rustfmt::skip]
    let cases: [(&str, Spoil, &[&str]); 9] = [
        ("nothing there", |dir| std::fs::remove_dir_all(dir).unwrap(), &["in"]),
        ("no config", |dir| std::fs::remove_file(dir.join("config.json")).unwrap(), &["config.json"]),
        ("PyTorch", |dir| {
            std::fs::rename(dir.join("model.safetensors"), dir.join("pytorch_model.bin")).unwrap();
        }, &["pytorch_model.bin", "save_pretrained"]),
        ("empty", |dir| std::fs::write(dir.join("model.safetensors"), "").unwrap(), &["model.safetensors", "download"]),
        ("truncated", |dir| {
            let path = dir.join("model.safetensors");
            let bytes = std::fs::read(&path).unwrap();
            std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        }, &["model.safetensors", "download"]),
        ("no model type", |dir| std::fs::write(dir.join("config.json"), r#"{"num_hidden_layers":1}"#).unwrap(), &["config.json", "model_type"]),
        ("unknown family", |dir| {
            std::fs::write(dir.join("config.json"), r#"{"model_type":"x","num_hidden_layers":1}"#).unwrap();
        }, &["`x`", "docs/supported.md"]),
        ("config is no JSON", |dir| std::fs::write(dir.join("config.json"), "{").unwrap(), &["config.json"]),
        ("a name that shards need", |dir| {
            let mut model = tiny("llama", Dtype::BF16, 1);
            let tensor = model.tensors["model.norm.weight"].clone();
            model.tensors.insert("__pad.0".to_owned(), tensor);
            model.write(dir, 1);
        }, &["__pad.0", "rename"]),
    ];
    for (case, spoil, words) in cases {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("in");
        let out = temp.path().join("out");
        checkpoint(&dir);
        spoil(&dir);
        let outcome = sws(&[&"shard", &dir, &"--out", &out]).refused(2, words);
        assert!(!out.exists(), "{case} left something: {outcome:?}");
        sws(&[&"inspect", &dir]);
    }
}

#[test]
fn unusable_output_directories_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str| temp.path().join(name);
    tiny("mixtral", Dtype::BF16, 1).write(&at("in"), 1);
    tiny("mixtral", Dtype::BF16, 2).write(&at("other"), 1);
    checkpoint(&at("dense"));
    std::fs::create_dir(at("full")).unwrap();
    std::fs::write(at("full/notes.txt"), "mine").unwrap();
    std::fs::create_dir(at("names")).unwrap();
    std::fs::write(at("names/embed.safetensors"), "mine").unwrap();
    std::fs::write(at("file"), "mine").unwrap();
    sws(&[&"shard", &at("in"), &"--out", &at("done")]).succeeded();
    let before = tree(temp.path());
    #[rustfmt::skip]
    let cases: [(&str, &str, &[&str], &[&str]); 9] = [
        // checkpoint, output, options, words
        ("in", "in", &[], &["in", "outside"]),
        ("in", "in/shards", &[], &["in", "outside"]),
        ("in", "full", &[], &["notes.txt", "empty or new"]),
        ("in", "names", &[], &["embed.safetensors", "empty or new"]),
        ("in", "file", &[], &["file"]),
        ("other", "done", &[], &["done", "another model"]),
        ("in", "done", &["--encoding", "q8"], &["done", "other options"]),
        ("in", "done", &["--stand-ins", "q4"], &["done", "other options"]),
        ("dense", "new", &["--stand-ins", "q4"], &["dense", "no experts", "leave --stand-ins out"]),
    ];
    for (input, out, options, words) in cases {
        let input = at(input);
        let out = at(out);
        let mut args: Vec<&dyn AsRef<std::ffi::OsStr>> = vec![&"shard", &input, &"--out", &out];
        args.extend(options.iter().map(|word| word as &dyn AsRef<std::ffi::OsStr>));
        sws(&args).refused(2, words);
    }
    let unchanged = tree(temp.path()) == before;
    assert!(unchanged);
    // Repeating the same command is not an error.
    let again = sws(&[&"shard", &at("in"), &"--out", &at("done")]).succeeded();
    assert!(again.stdout.contains("all there before"), "{again:?}");
}

#[test]
fn an_unfinished_directory_is_only_for_the_same_job() {
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str| temp.path().join(name);
    checkpoint(&at("in"));
    tiny("llama", Dtype::BF16, 2).write(&at("other"), 1);
    sws(&[&"shard", &at("in"), &"--out", &at("whole")]).succeeded();
    // A directory left by a kill: a journal whose second line was being written.
    let identity = |json: &str| {
        let sum = xxhash_rust::xxh3::xxh3_64(json.as_bytes());
        format!("{sum:016x} {json}\n0123")
    };
    let fingerprint = {
        let inspected = sws(&[&"inspect", &at("in"), &"--json"]).succeeded();
        let json: serde_json::Value = serde_json::from_str(&inspected.stdout).unwrap();
        (json["fingerprint"].as_str().unwrap().to_owned(), json["pieces"].as_u64().unwrap())
    };
    let journal = identity(&format!(
        r#"{{"version":2,"fingerprint":"{}","encoding":"bf12","stand_ins":null,"shards":{}}}"#,
        fingerprint.0, fingerprint.1,
    ));
    std::fs::create_dir(at("begun")).unwrap();
    std::fs::write(at("begun/.sws-journal"), journal).unwrap();
    std::fs::write(at("begun/embed.safetensors.sws-tmp"), "half").unwrap();
    std::fs::write(at("begun/config.json"), "half of another").unwrap();
    let begun = at("begun");
    sws(&[&"shard", &at("other"), &"--out", &begun]).refused(2, &["begun", "another model"]);
    sws(&[&"shard", &at("in"), &"--out", &begun, &"--encoding", &"q8"])
        .refused(2, &["begun", "other options"]);
    sws(&[&"verify", &begun]).refused(2, &["begun", "sws shard"]);
    sws(&[&"shard", &at("in"), &"--out", &begun]).succeeded();
    assert_same_tree(&at("whole"), &begun);
}

#[test]
fn lossy_or_foreign_shards_are_not_unsharded() {
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str| temp.path().join(name);
    checkpoint(&at("in"));
    sws(&[&"shard", &at("in"), &"--out", &at("q4"), &"--encoding", &"q4"]).succeeded();
    sws(&[&"unshard", &at("q4"), &"--out", &at("back")]).refused(2, &["q4", "--lossy"]);
    sws(&[&"unshard", &at("in"), &"--out", &at("back")]).refused(2, &["in", "manifest.json"]);
    sws(&[&"unshard", &at("q4"), &"--lossy", &"--out", &at("q4/back")]).refused(2, &["outside"]);
    sws(&[&"verify", &at("nowhere")]).refused(2, &["nowhere"]);
    sws(&[&"shard", &at("q4"), &"--out", &at("back")]).refused(2, &["q4", "shard directory"]);
    assert!(!at("back").exists());
}

#[test]
fn unencodable_weights_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let mut model = tiny("llama", Dtype::BF16, 1);
    let name = "model.layers.0.mlp.down_proj.weight";
    let bytes = &mut model.tensors.get_mut(name).unwrap().bytes;
    // Row 5 of 136 columns, column 7.
    bytes[2 * (5 * 136 + 7)..][..2].copy_from_slice(&0x7f80u16.to_le_bytes());
    let dir = temp.path().join("in");
    model.write(&dir, 1);
    for encoding in ["q8", "q4", "fp8", "mxfp4"] {
        let out = temp.path().join(encoding);
        sws(&[&"shard", &dir, &"--out", &out, &"--encoding", &encoding])
            .refused(2, &["model.safetensors", name, "row 5", encoding, "bf12"]);
        assert!(!out.join("manifest.json").exists());
        assert!(!tree(&out).keys().any(|file| file.to_string_lossy().ends_with(".sws-tmp")));
    }
    sws(&[&"shard", &dir, &"--out", &temp.path().join("bf12")]).succeeded();
}

#[test]
fn what_is_not_a_model_or_does_not_fit_is_named() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    // A family is refused before weights are missed.
    std::fs::write(dir.join("config.json"), r#"{"model_type": "whisper"}"#).unwrap();
    sws(&[&"run", &dir]).refused(2, &["`whisper`", "docs/supported.md"]);
    sws(&[&"shard", &dir, &"--out", &dir.join("out")]).refused(2, &["`whisper`"]);
    std::fs::write(dir.join("adapter_config.json"), "{}").unwrap();
    std::fs::remove_file(dir.join("config.json")).unwrap();
    sws(&[&"run", &dir]).refused(2, &["holds an adapter", "merge"]);
    sws(&[&"run", &"-"]).refused(2, &["`-` is not a model", "sws run MODEL"]);
    let tales = sws_testing::tales();
    sws(&[&"run", &tales, &"--tokens=1,2,3,4,5,6,7,8,9", &"--context=8"])
        .refused(2, &["the text has 9 tokens", "room for 8"]);
    let mut completes = crate::sws::command(&[&"run"]);
    let completes = Outcome::of(completes.env("SWS_COMPLETE", "nosh").output().unwrap());
    completes.refused(2, &["SWS_COMPLETE", "`nosh`", "zsh"]);
}

#[test]
fn usage() {
    #[rustfmt::skip]
    let cases: [(&[&str], &str); 11] = [
        (&[], "Usage"),
        (&["rnu"], "'run'"),
        (&["shard"], "CHECKPOINT"),
        (&["shard", "x", "--out", "y", "--encoding", "int8"], "choose one of"),
        (&["shard", "x", "--out", "y", "--stand-ins", "bf16"], "q8 or q4"),
        (&["shard", "x", "--out", "y", "--threads", "0"], "--threads"),
        (&["run", "x", "--tolerance=-1"], "not negative"),
        (&["run", "x", "--tolerance", "nan"], "not negative"),
        (&["run", "x", "--stand-ins", "some"], "off, auto or all"),
        (&["run", "x", "--tolerance", "0.1", "--certify", "y"], "--certify"),
        (&["run", "x", "--draft", "y", "--no-speculation"], "--no-speculation"),
    ];
    for (args, word) in cases {
        let args: Vec<_> = args.iter().map(|a| a as &dyn AsRef<std::ffi::OsStr>).collect();
        let outcome = sws(&args);
        assert_eq!(outcome.code, Some(2), "{outcome:?}");
        assert!(outcome.stderr.contains(word), "{outcome:?}");
    }
    for command in ["pull", "list", "shard", "verify", "inspect", "unshard"] {
        let help = sws(&[&command, &"--help"]).succeeded();
        assert!(help.stdout.contains("--json"), "{help:?}");
    }
}

#[test]
fn a_directory_without_permission() {
    use std::os::unix::fs::PermissionsExt;
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str| temp.path().join(name);
    checkpoint(&at("in"));
    let locked = at("locked");
    std::fs::create_dir(&locked).unwrap();
    std::fs::set_permissions(&locked, std::fs::Permissions::from_mode(0o555)).unwrap();
    if std::fs::write(locked.join("probe"), "").is_ok() {
        // Root may write anywhere; /proc refuses even root.
        let out = Path::new("/proc/sws-test");
        sws(&[&"shard", &at("in"), &"--out", &out]).refused(2, &["/proc/sws-test"]);
        return;
    }
    sws(&[&"shard", &at("in"), &"--out", &locked]).refused(2, &["locked"]);
    sws(&[&"shard", &at("in"), &"--out", &locked.join("new")]).refused(2, &["locked"]);
    std::fs::set_permissions(at("in"), std::fs::Permissions::from_mode(0o000)).unwrap();
    sws(&[&"shard", &at("in"), &"--out", &at("out")]).refused(2, &["in"]);
    std::fs::set_permissions(at("in"), std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// A sharder that is halted midway keeps a second one out, and later finishes.
#[test]
fn a_second_sharder_on_a_directory_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("in");
    tiny("qwen2_moe", Dtype::BF16, 4).write(&dir, 1);
    let signal = |name: &str, id: u32| {
        let status = std::process::Command::new("kill").args([name, &id.to_string()]).status();
        assert!(status.unwrap().success());
    };
    for time in 0..20 {
        let out = temp.path().join(format!("out-{time}"));
        let args: [&dyn AsRef<std::ffi::OsStr>; 4] = [&"shard", &dir, &"--out", &out];
        let first = crate::sws::command(&args).spawn().unwrap();
        while !out.join(".sws-journal").exists() && !out.join("manifest.json").exists() {
            std::thread::yield_now();
        }
        signal("-STOP", first.id());
        let halted = !out.join("manifest.json").exists();
        if halted {
            sws(&args).refused(2, &["out", "being written by another sws", "wait for it"]);
        }
        signal("-CONT", first.id());
        Outcome::of(first.wait_with_output().unwrap()).succeeded();
        sws(&[&"verify", &out]).succeeded();
        if halted {
            return;
        }
    }
    panic!("every sharder was done before it could be halted");
}
