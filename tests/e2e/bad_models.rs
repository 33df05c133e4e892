//! Errors of `sws run`, `forward` and `chat` on bad models and prompts: one sentence with the name
//! and the remedy, exit code 2, nothing written.

use std::ffi::OsStr;
use std::path::Path;

use serde_json::json;

use crate::goldens::{Tensors, change, copy, list, tokenizer};
use crate::sws::{sws, tree};

/// Changes the weights of a checkpoint in one file.
fn spoil(dir: &Path, change: impl FnOnce(&mut Tensors)) {
    let path = dir.join("model.safetensors");
    let mut tensors = Tensors::read(&path);
    change(&mut tensors);
    tensors.write(&path);
}

/// Every backend refuses the same models.
const BACKENDS: &[&str] = &["--backend=sws", "--backend=candle"];

const UP: &str = "model.layers.1.mlp.experts.3.up_proj.weight";

#[test]
fn models() {
    type Spoil = fn(&Path);
    #[rustfmt::skip]
    let cases: [(&str, Spoil, &[&str]); 13] = [
        ("missing tensor", |dir| spoil(dir, |t| { t.0.remove(UP); }), &[UP, "lack"]),
        ("tensor of another shape", |dir| spoil(dir, |t| t.0.get_mut(UP).unwrap().1.reverse()), &[UP, "shape"]),
        ("infinity", |dir| spoil(dir, |t| t.0.get_mut(UP).unwrap().2[2..4].copy_from_slice(&[0x80, 0xff])), &[UP, "-inf", "row 0, column 1"]),
        ("NaN", |dir| spoil(dir, |t| t.0.get_mut(UP).unwrap().2[2..4].copy_from_slice(&[0xc0, 0x7f])), &[UP, "NaN", "row 0, column 1"]),
        ("too many layers", |dir| { change(dir, "config.json", |c| c["num_hidden_layers"] = json!(1_000_000_000)); }, &["config.json", "num_hidden_layers"]),
        ("more layers than there are", |dir| { change(dir, "config.json", |c| c["num_hidden_layers"] = json!(5)); }, &["layers.3", "lack"]),
        ("heads of no width", |dir| { change(dir, "config.json", |c| c["head_dim"] = json!(0)); }, &["config.json", "head_dim"]),
        ("top-k above the experts", |dir| { change(dir, "config.json", |c| c["num_experts_per_tok"] = json!(99)); }, &["config.json", "num_experts_per_tok"]),
        ("unknown family", |dir| { change(dir, "config.json", |c| c["model_type"] = json!("nonesuch")); }, &["nonesuch", "docs/supported.md"]),
        ("tokenizer of another model", |dir| std::fs::write(dir.join("tokenizer.json"), tokenizer(500).to_string()).unwrap(), &["tokenizer.json", "499", "published"]),
        ("damaged tokenizer", |dir| std::fs::write(dir.join("tokenizer.json"), "{").unwrap(), &["tokenizer.json", "download"]),
        ("damaged generation_config", |dir| std::fs::write(dir.join("generation_config.json"), "[").unwrap(), &["generation_config.json", "download"]),
        ("a directory as a file", |dir| {
            std::fs::remove_file(dir.join("tokenizer.json")).unwrap();
            std::fs::create_dir(dir.join("tokenizer.json")).unwrap();
        }, &["tokenizer.json", "not a regular file"]),
    ];
    for (case, spoil, words) in cases {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("model");
        copy("qwen3_moe", &dir);
        spoil(&dir);
        let words = [words, &["model"]].concat();
        // Resident, as streamed weights are only checked on first use.
        let args: [&dyn AsRef<OsStr>; 6] =
            [&"run", &dir, &"--prompt", &"a", &"--json", &"--resident"];
        let outcome = sws(&args).refused(2, &words);
        assert_eq!(outcome.stdout, "", "{case}");
        if !words.iter().any(|word| word.contains("token") || word.contains("generation")) {
            let out = temp.path().join("out");
            for backend in BACKENDS {
                let args: [&dyn AsRef<OsStr>; 8] =
                    [&"forward", &dir, &"--tokens", &"1", &"--out", &out, &"--resident", backend];
                sws(&args).refused(2, &words);
            }
            assert_eq!(temp.path().read_dir().unwrap().count(), 1, "{case}");
        }
    }
}

/// A configuration that leaves out a part of the weights is not theirs, perhaps.
#[test]
fn weights_that_nothing_uses_are_reported() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("model");
    copy("qwen3_moe", &dir);
    let run = |dir: &Path| sws(&[&"run", &dir, &"--tokens", &"1", &"--json", &"-n", &"1"]);
    let words = "the configuration does not ask for";
    let whole = run(&dir).succeeded();
    assert!(!whole.stderr.contains(words), "{}", whole.stderr);
    change(&dir, "config.json", |c| c["num_hidden_layers"] = json!(2));
    let part = run(&dir).succeeded();
    assert!(part.stderr.contains(words), "{}", part.stderr);
    assert!(part.stderr.contains("`model.layers.2."), "{}", part.stderr);
    let listed = sws(&[&"inspect", &dir]).succeeded().stdout;
    let skipped = listed.split_once("are never read").expect(&listed).1;
    assert!(skipped.contains("model.layers.2."), "{listed}");
}

/// In the order in which a user meets them: each command names what it leaves out, once.
#[test]
fn tensors_that_are_left_out_are_named_once() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("model");
    let shards = temp.path().join("shards");
    copy("qwen3_moe", &dir);
    spoil(&dir, |t| {
        let one = t.0["model.norm.weight"].clone();
        for name in ["model.visual.0.norm.weight", "mtp.0.norm.weight", "lm_head.bias"] {
            t.0.insert(name.to_owned(), one.clone());
        }
    });
    let lines = [
        "1 tensor for images is left out: `model.visual.*`",
        "1 tensor that predicts further tokens is left out: `mtp.*`",
        "1 tensor that the configuration does not ask for is left out: `lm_head.bias`; is the configuration that",
    ];
    let run = |dir: &Path| sws(&[&"run", &dir, &"--tokens", &"1", &"--json", &"-n", &"1"]);
    let shard = sws(&[&"shard", &dir, &"--out", &shards]);
    for done in [run(&dir), shard, run(&shards)] {
        let said = done.succeeded().stderr;
        for line in lines {
            assert_eq!(said.matches(line).count(), 1, "{line}: {said}");
        }
    }
}

/// Finite weights whose products are not.
#[test]
fn logits_that_are_no_numbers_are_not_written() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("model");
    let out = temp.path().join("out");
    copy("qwen3_moe", &dir);
    let largest = 3e38f32.to_bits().to_le_bytes();
    spoil(&dir, |t| {
        let (_, _, bytes) = t.0.get_mut("model.norm.weight").unwrap();
        bytes.chunks_mut(2).for_each(|number| number.copy_from_slice(&largest[2..]));
    });
    let words = ["model", "the logit of token", "sws verify"];
    sws(&[&"forward", &dir, &"--tokens", &"1,2", &"--out", &out]).refused(2, &words);
    assert!(!out.exists());
}

/// Shards that nothing runs are not worth hours.
#[test]
fn shard_refuses_the_quantisations_that_run_refuses() {
    for (entry, words) in [
        (json!({"quant_method": "bitsandbytes"}), "`quant_method` = \"bitsandbytes\""),
        (json!({"quant_method": "fp8", "fmt": "e5m2"}), "`fmt` = \"e5m2\""),
        (json!({}), "`quantization_config` = an object"),
        (json!(7), "`quantization_config` is 7"),
    ] {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("model");
        let out = temp.path().join("out");
        copy("qwen3_moe", &dir);
        change(&dir, "config.json", |c| c["quantization_config"] = entry.clone());
        let words = &["config.json", words];
        sws(&[&"run", &dir, &"--tokens", &"1", &"--json"]).refused(2, words);
        sws(&[&"shard", &dir, &"--out", &out]).refused(2, words);
        assert!(!out.exists());
    }
}

#[test]
fn prompts_and_options() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("model");
    copy("qwen3_moe", &dir);
    let bare = temp.path().join("bare");
    copy("qwen3_moe", &bare);
    std::fs::remove_file(bare.join("tokenizer.json")).unwrap();
    let long = list(&vec![1; 257]);
    let longer = "a".repeat(257);
    let nowhere = temp.path().join("nowhere/out").display().to_string();
    let here = temp.path().display().to_string();
    #[rustfmt::skip]
    let cases: [(&str, &Path, &[&str], &[&str]); 16] = [
        ("run", &dir, &["--tokens", &long], &["257", "256", "shorten"]),
        ("run", &dir, &["--prompt", &longer], &["257", "256", "shorten"]),
        ("run", &dir, &["--prompt", ""], &["no tokens"]),
        ("run", &dir, &["--tokens", "1,173"], &["173", "172"]),
        ("run", &dir, &["--tokens", "1", "--temperature", "-1"], &["temperature is -1", "must be 0"]),
        ("run", &dir, &["--tokens", "1", "--top-p", "nan"], &["--top-p is NaN"]),
        ("run", &bare, &["--prompt", "a", "--json"], &["tokenizer.json", "--tokens"]),
        ("run", &bare, &["--tokens", "1"], &["tokenizer.json", "--json"]),
        ("run", &bare, &["--tokens", "1", "--json", "--stop", "x"], &["tokenizer.json", "--stop"]),
        ("forward", &dir, &["--tokens", &long, "--out", "never"], &["257", "256"]),
        ("forward", &dir, &["--tokens", "1,173", "--out", "never"], &["173", "172"]),
        ("forward", &dir, &["--tokens", "1", "--out", &nowhere], &["nowhere/out", "written"]),
        ("forward", &dir, &["--tokens", "1", "--out", &here], &["is a directory"]),
        ("chat", &dir, &[], &["chat template", "sws run"]),
        ("run", Path::new("tell me a tale"), &[], &["tell me a tale", "--prompt"]),
        ("chat", Path::new("why is it?"), &[], &["why is it?", "QUESTION"]),
    ];
    let before = tree(temp.path());
    for (command, model, options, words) in cases {
        let mut args: Vec<&dyn AsRef<OsStr>> = vec![&command, &model];
        args.extend(options.iter().map(|word| word as &dyn AsRef<OsStr>));
        let outcome = sws(&args).refused(2, words);
        assert_eq!(outcome.stdout, "", "{options:?}");
    }
    assert!(tree(temp.path()) == before);
    #[rustfmt::skip]
    let usage: [(&[&str], &str); 6] = [
        (&["run", "x", "--tokens", "1,,2"], "separated by commas"),
        (&["run", "x", "--tokens", "-1"], "-1"),
        (&["run", "x", "--tokens", "1", "--prompt", "a"], "cannot be used with"),
        (&["run", "x", "--kv", "q4"], "f32, bf16 or q8"),
        (&["run", "x", "--reader", "tape"], "choose one of"),
        (&["forward", "x", "--tokens", "1"], "--out"),
    ];
    for (args, word) in usage {
        let args: Vec<_> = args.iter().map(|a| a as &dyn AsRef<OsStr>).collect();
        let outcome = sws(&args);
        assert_eq!(outcome.code, Some(2), "{outcome:?}");
        assert!(outcome.stderr.contains(word), "{outcome:?}");
    }
}

/// A finished file is renamed over its target, which would replace a device, a pipe or a socket.
#[test]
fn only_regular_files_are_replaced() {
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("socket");
    let _socket = std::os::unix::net::UnixListener::bind(&out).unwrap();
    let dir = crate::goldens::golden_dir("llama");
    sws(&[&"forward", &dir, &"--tokens", &"1", &"--out", &out])
        .refused(2, &["socket", "not a regular file"]);
    assert!(!out.metadata().unwrap().is_file());
    assert_eq!(temp.path().read_dir().unwrap().count(), 1);
}

#[test]
fn tokens_unknown_to_the_model_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("model");
    copy("qwen3_moe", &dir);
    change(&dir, "tokenizer.json", |json| {
        let mut added = json["added_tokens"][0].clone();
        added["id"] = json!(173);
        added["content"] = json!("<mask>");
        json["added_tokens"].as_array_mut().unwrap().push(added);
    });
    let run = |prompt: &str| sws(&[&"run", &dir, &"--prompt", &prompt, &"--max-new-tokens", &"1"]);
    run("a").succeeded();
    run("a<mask>").refused(2, &["`<mask>`", "173", "leave it out"]);
}

#[test]
fn a_damaged_shard_is_never_computed_with() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("in");
    let shards = temp.path().join("model");
    copy("qwen3_moe", &dir);
    sws(&[&"shard", &dir, &"--out", &shards]).succeeded();
    let files = tree(&shards);
    let (name, bytes) =
        files.iter().find(|(name, _)| name.ends_with("expert_3.safetensors")).unwrap();
    let mut bytes = bytes.clone();
    bytes[4096 + 11] ^= 4;
    std::fs::write(shards.join(name), bytes).unwrap();
    let layer = name.to_str().unwrap().split_once('/').unwrap().0;
    sws(&[&"run", &shards, &"--tokens", &"1", &"--json", &"--resident"])
        .refused(2, &["expert_3", "sws verify"]);
    // When streaming, the damage is found on first use of the expert, which one of these tokens
    // chooses.
    let all: Vec<String> = (0..64).map(|token| token.to_string()).collect();
    sws(&[&"run", &shards, &"--tokens", &all.join(","), &"--json"])
        .refused(2, &[layer, "expert_3", "sws verify"]);
    for gone in ["config.json", name.to_str().unwrap()] {
        let hidden = temp.path().join("hidden");
        std::fs::rename(shards.join(gone), &hidden).unwrap();
        sws(&[&"run", &shards, &"--tokens", &"1", &"--json"]).refused(2, &[gone, "again"]);
        std::fs::rename(&hidden, shards.join(gone)).unwrap();
    }
}

/// The text so far ends its line, and the error has one of its own.
#[test]
fn a_text_that_damage_cuts_off_ends_its_line() {
    let temp = tempfile::tempdir().unwrap();
    let shards = temp.path().join("tales");
    for (name, mut bytes) in tree(&sws_testing::tales()) {
        if name.starts_with("layer_7") && name.to_str().unwrap().contains("expert_") {
            bytes[4096 + 11] ^= 4;
        }
        let path = shards.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    let cut = sws(&[&"run", &shards, &"--ram", &"100MiB"]).refused(2, &["layer_7", "sws verify"]);
    assert_eq!(cut.stdout, "Once upon a time\n");
}
