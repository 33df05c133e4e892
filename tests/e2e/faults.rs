//! Damage anywhere in a shard directory is found and named.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};

use crate::checkpoints::{Random, tiny};
use crate::goldens;
use crate::sws::sws;

fn shards(dir: &Path, family: &str, seed: u64) -> PathBuf {
    let checkpoint = dir.join(format!("{family}-{seed}"));
    tiny(family, Dtype::BF16, seed).write(&checkpoint, 1);
    let out = dir.join(format!("{family}-{seed}-shards"));
    sws(&[&"shard", &checkpoint, &"--out", &out, &"--stand-ins", &"q8"]).succeeded();
    sws(&[&"verify", &out]).succeeded();
    out
}

/// Runs `verify`, which must name exactly these files, and `unshard`, which must not succeed.
#[track_caller]
fn assert_found(dir: &Path, files: &[&str], what: &str) {
    let outcome = sws(&[&"verify", &dir, &"--json"]);
    assert_eq!(outcome.code, Some(1), "{what}: {outcome:?}");
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(report["good"], false);
    let damage = report["damage"].as_array().unwrap();
    let mut named: Vec<&str> = damage.iter().map(|d| d["file"].as_str().unwrap()).collect();
    named.dedup();
    assert_eq!(named, files, "{what}: {outcome:?}");
    let small = |file: &str| file.ends_with(".json");
    for damage in damage.iter().filter(|d| !small(d["file"].as_str().unwrap())) {
        let piece = damage["piece"].as_str().unwrap();
        let file = damage["file"].as_str().unwrap();
        assert!(file.starts_with(piece), "{piece} is not in {file}");
    }
    // The same as text: a line for each file, and a sentence.
    let outcome = sws(&[&"verify", &dir]);
    assert_eq!(outcome.code, Some(1), "{what}: {outcome:?}");
    outcome.sentence();
    for file in files {
        let lines = outcome.stdout.lines().filter(|line| line.contains(file)).count();
        assert!(lines >= 1, "{what}: {outcome:?}");
    }
}

/// Regions of a shard by name: first byte and length.
fn regions(bytes: &[u8]) -> BTreeMap<String, (usize, usize)> {
    let (json, _) = SafeTensors::read_metadata(bytes).unwrap();
    let text = 8 + bytes[8..8 + json].iter().rposition(|&b| b != b' ').unwrap() + 1;
    let mut regions = BTreeMap::from([
        ("the length of the header".to_owned(), (0, 8)),
        ("the header".to_owned(), (8, text - 8)),
        ("the padding of the header".to_owned(), (text, 8 + json - text)),
    ]);
    for (name, view) in SafeTensors::deserialize(bytes).unwrap().tensors() {
        let at = view.data().as_ptr() as usize - bytes.as_ptr() as usize;
        regions.insert(name, (at, view.data().len()));
    }
    regions
}

#[test]
fn a_flipped_bit_in_any_region_is_found() {
    let temp = tempfile::tempdir().unwrap();
    let dir = shards(temp.path(), "mixtral", 1);
    let mut random = Random(5);
    let mut flips = 0;
    for file in [
        "embed.safetensors",
        "layer_0/attention.safetensors",
        "layer_1/expert_2.safetensors",
        "layer_1/expert_2.q8.safetensors",
        "manifest.json",
        "config.json",
        "tokenizer.json",
    ] {
        let path = dir.join(file);
        let whole = std::fs::read(&path).unwrap();
        let regions = match file {
            "config.json" | "tokenizer.json" => {
                BTreeMap::from([("the copy".to_owned(), (0, whole.len()))])
            }
            "manifest.json" => (0..20)
                .map(|i| (format!("part {i}"), (i * whole.len() / 20, whole.len() / 20)))
                .chain([("the end".to_owned(), (whole.len() - 1, 1))])
                .collect(),
            _ => regions(&whole),
        };
        for (region, (start, len)) in regions {
            if len == 0 {
                continue;
            }
            for at in [0, random.below(len as u64) as usize, len - 1] {
                let mut bytes = whole.clone();
                bytes[start + at] ^= 1 << random.below(8);
                std::fs::write(&path, &bytes).unwrap();
                assert_found(&dir, &[file], &format!("{region} of {file}, byte {at}"));
                flips += 1;
            }
        }
        std::fs::write(&path, &whole).unwrap();
    }
    assert!(flips > 100);
    sws(&[&"verify", &dir]).succeeded();
}

#[test]
fn a_wrong_or_truncated_shard_is_found() {
    let temp = tempfile::tempdir().unwrap();
    let dir = shards(temp.path(), "mixtral", 1);
    let other = shards(temp.path(), "mixtral", 2);
    let file = "layer_1/expert_2.safetensors";
    let path = dir.join(file);
    let whole = std::fs::read(&path).unwrap();
    let cases: [(&str, Option<Vec<u8>>); 6] = [
        ("another model", Some(std::fs::read(other.join(file)).unwrap())),
        (
            "layer_1/expert_1",
            Some(std::fs::read(dir.join("layer_1/expert_1.safetensors")).unwrap()),
        ),
        ("bytes instead of", Some(whole[..whole.len() - 1].to_vec())),
        ("bytes instead of", Some([&whole[..], &[0]].concat())),
        ("bytes instead of", Some(Vec::new())),
        ("missing", None),
    ];
    for (words, bytes) in cases {
        match bytes {
            Some(bytes) => std::fs::write(&path, bytes).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
        assert_found(&dir, &[file], words);
        let outcome = sws(&[&"verify", &dir]);
        assert!(outcome.stdout.contains(words), "{words}: {outcome:?}");
    }
    std::fs::write(&path, &whole).unwrap();

    // Two damaged files are both named.
    std::fs::remove_file(dir.join("embed.safetensors")).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_found(&dir, &["embed.safetensors", file], "two");
}

#[test]
fn unsharding_finds_damage_and_leaves_no_file() {
    let temp = tempfile::tempdir().unwrap();
    let dir = shards(temp.path(), "mixtral", 1);
    let file = "layer_1/expert_2.safetensors";
    let path = dir.join(file);
    let whole = std::fs::read(&path).unwrap();
    for (region, (start, len)) in regions(&whole) {
        if !region.contains("weight") {
            continue;
        }
        let mut bytes = whole.clone();
        bytes[start + len / 2] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let out = temp.path().join("out");
        sws(&[&"unshard", &dir, &"--out", &out]).refused(1, &[file, "layer_1/expert_2"]);
        assert!(!out.join("model.safetensors").exists());
        std::fs::remove_dir_all(&out).unwrap();
    }
    std::fs::write(&path, &whole).unwrap();
}

#[test]
fn a_changed_or_lost_small_file_is_found() {
    let temp = tempfile::tempdir().unwrap();
    let dir = shards(temp.path(), "mixtral", 1);
    let path = dir.join("tokenizer.json");
    let whole = std::fs::read(&path).unwrap();
    let mut changed = whole.clone();
    changed[3] ^= 1;
    for (words, bytes) in [
        ("is damaged", Some(changed)),
        ("bytes instead of", Some(Vec::new())),
        ("is missing", None),
    ] {
        match bytes {
            Some(bytes) => std::fs::write(&path, bytes).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
        assert_found(&dir, &["tokenizer.json"], words);
        let out = temp.path().join("out");
        sws(&[&"unshard", &dir, &"--out", &out]).refused(1, &["tokenizer.json", words]);
        assert!(!out.join("tokenizer.json").exists());
        std::fs::remove_dir_all(&out).unwrap();
    }
}

/// Replaces a word of a file by another of the same length, and keeps the modification time.
fn misspell(path: &Path, word: &str, other: &str) {
    let modified = std::fs::metadata(path).unwrap().modified().unwrap();
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(word) && word.len() == other.len());
    std::fs::write(path, text.replace(word, other)).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_modified(modified).unwrap();
}

/// Found at once in a shard set, and from the second run on in a checkpoint.
#[test]
fn a_changed_configuration_is_never_computed_with() {
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str| temp.path().join(name);
    goldens::copy("qwen3_moe", &at("checkpoint"));
    sws(&[&"shard", &at("checkpoint"), &"--out", &at("shards")]).succeeded();
    for (model, words) in [("shards", "is damaged"), ("checkpoint", "when it was first read")] {
        let model = at(model);
        let out = at("out");
        let forward = || sws(&[&"forward", &model, &"--tokens", &"1,2,3", &"--out", &out]);
        let whole = at("certificate");
        let run: [&dyn AsRef<std::ffi::OsStr>; 5] =
            [&"run", &model, &"--tokens", &"1,2", &"--max-new-tokens=2"];
        sws(&[&run[..], &[&"--certify", &whole]].concat()).succeeded();
        forward().succeeded();
        std::fs::remove_file(&out).unwrap();
        misspell(&model.join("config.json"), "norm_topk_prob", "norm_topk_proc");
        let words = &["config.json", words, "again"];
        forward().refused(2, words);
        assert!(!out.exists());
        sws(&run).refused(2, words);
        sws(&[&run[..], &[&"--resident"]].concat()).refused(2, words);
        sws(&[&"plan", &model, &"--no-probe"]).refused(2, words);
        sws(&[&"inspect", &model]).refused(2, words);
        sws(&[&"certify", &whole, &model]).refused(2, words);
        sws(&[&"chat", &model]).refused(2, words);
        misspell(&model.join("config.json"), "norm_topk_proc", "norm_topk_prob");
        forward().succeeded();

        misspell(&model.join("tokenizer.json"), "word70", "word7x");
        let words = &["tokenizer.json", words[1], "again"];
        sws(&run).refused(2, words);
        sws(&[&"plan", &model, &"--no-probe"]).refused(2, words);
        misspell(&model.join("tokenizer.json"), "word7x", "word70");
    }
    std::fs::remove_file(at("shards/generation_config.json")).unwrap();
    sws(&[&"run", &at("shards"), &"--tokens", &"1"])
        .refused(2, &["generation_config.json", "is missing", "again"]);
    // A file that the manifest does not list is the user's own.
    std::fs::write(at("checkpoint/chat_template.jinja"), "{{ messages[0].content }}").unwrap();
    std::fs::copy(at("checkpoint/generation_config.json"), at("shards/generation_config.json"))
        .unwrap();
    sws(&[&"chat", &at("shards")]).refused(2, &["no chat template"]);
    std::fs::copy(at("checkpoint/chat_template.jinja"), at("shards/chat_template.jinja")).unwrap();
    sws(&[&"chat", &at("shards")]).succeeded();
}
