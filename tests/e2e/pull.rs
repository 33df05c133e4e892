//! `sws pull` from a hub on loopback, `sws list`, `sws rm`, and ids wherever a model is named.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use safetensors::Dtype;
use sws_format::Clock;
use sws_testing::hub::{Fault, Hub};

use crate::checkpoints::{Random, file_bytes, tiny};
use crate::full_disk::Disk;
use crate::goldens::golden_dir;
use crate::sws::{Outcome, assert_same_tree, command, sws, tree};

pub(crate) const ID: &str = "own/tiny-model";
const OTHER: &str = "abcdef0123456789abcdef0123456789abcdef01";

/// A hub, and a user's directories.
pub(crate) struct User {
    pub(crate) hub: Hub,
    temp: tempfile::TempDir,
}

impl User {
    pub(crate) fn of(dir: &Path) -> User {
        User { hub: Hub::of_dir(ID, dir).unwrap(), temp: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    pub(crate) fn command(&self, args: &[&dyn AsRef<OsStr>]) -> Command {
        let mut command = command(args);
        for proxy in ["HTTP_PROXY", "ALL_PROXY", "NO_PROXY"] {
            command.env_remove(proxy).env_remove(proxy.to_lowercase());
        }
        for name in ["HF_HUB_CACHE", "HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE"] {
            command.env_remove(name);
        }
        command.env("HF_ENDPOINT", self.hub.endpoint());
        command.env("HF_HOME", self.at("huggingface")).env("SWS_MODELS", self.at("models"));
        command
    }

    pub(crate) fn sws(&self, args: &[&dyn AsRef<OsStr>]) -> Outcome {
        Outcome::of(self.command(args).output().unwrap())
    }

    pub(crate) fn shards(&self) -> PathBuf {
        self.at("models/own--tiny-model/bf12")
    }
}

/// Writes a checkpoint whose files hold consecutive tensors, as published ones do.
fn consecutive(dir: &Path, files: usize, seed: u64) {
    let checkpoint = tiny("qwen2_moe", Dtype::BF16, seed);
    checkpoint.write(dir, 1);
    std::fs::remove_file(dir.join("model.safetensors")).unwrap();
    let each = checkpoint.tensors.len().div_ceil(files);
    let tensors: Vec<_> = checkpoint.tensors.iter().collect();
    let mut index = BTreeMap::new();
    for (number, part) in tensors.chunks(each).enumerate() {
        let name = format!("model-{:05}-of-{files:05}.safetensors", number + 1);
        index.extend(part.iter().map(|(tensor, _)| ((*tensor).clone(), name.clone())));
        std::fs::write(dir.join(&name), file_bytes(part.iter().copied())).unwrap();
    }
    let index = serde_json::json!({ "weight_map": index });
    std::fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
}

#[test]
fn pulled_shards_are_those_of_the_whole_checkpoint() {
    for files in [1, 4] {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("in");
        let expected = temp.path().join("expected");
        match files {
            // One after the other, and each piece in all of them.
            1 => consecutive(&dir, 5, 1),
            _ => tiny("mixtral", Dtype::BF16, 2).write(&dir, files),
        }
        sws(&[&"shard", &dir, &"--out", &expected]).succeeded();
        let user = User::of(&dir);
        let outcome = user.sws(&[&"pull", &ID]).succeeded();
        assert!(outcome.stdout.contains(&format!("sws run {ID}")), "{outcome:?}");
        assert_same_tree(&expected, &user.shards());
        assert!(!user.at("models/own--tiny-model/bf12.pull").exists());
        assert!(!user.at("huggingface").exists(), "nothing is kept");
        // Found by its id, and not downloaded again.
        user.sws(&[&"verify", &ID]).succeeded();
        user.sws(&[&"inspect", &format!("{ID}:bf12")]).succeeded();
        user.sws(&[&"run", &format!("{ID}:q8")]).refused(2, &["q8", "sws pull"]);
        user.hub.state().requests.clear();
        user.sws(&[&"pull", &ID]).succeeded();
        assert!(user.hub.state().requests.is_empty());
        let copy = user.at("copy");
        user.sws(&[&"pull", &ID, &"--also", &copy]).succeeded();
        assert_same_tree(&expected, &copy);

        let out = user.at("elsewhere");
        let json = user.sws(&[&"pull", &ID, &"--as", &"q8", &"--out", &out, &"--json"]);
        let json: serde_json::Value = serde_json::from_str(&json.succeeded().stdout).unwrap();
        assert_eq!(json["encoding"], "q8");
        user.sws(&[&"inspect", &format!("{ID}:q8")]).succeeded();
    }
}

/// `--as auto` makes what fits in memory in bf12, finds that again, and needs no hub for what the cache has.
#[test]
fn the_encoding_can_be_left_to_the_plan() {
    let dir = golden_dir("qwen2_moe");
    let user = User::of(&dir);
    let auto: [&dyn AsRef<OsStr>; 6] = [&"pull", &ID, &"--as", &"auto", &"--ram", &"4GiB"];
    let expected = user.at("expected");
    sws(&[&"shard", &dir, &"--out", &expected]).succeeded();

    let pulled = user.sws(&auto).succeeded();
    assert!(pulled.stderr.contains("sws: bf12, as all of it fits in 4.00 GiB\n"), "{pulled:?}");
    assert_same_tree(&expected, &user.shards());
    user.hub.state().requests.clear();
    let again = user.sws(&auto).succeeded();
    assert!(again.stdout.contains("there already"), "{again:?}");
    assert!(user.hub.state().requests.is_empty(), "nothing is asked of the hub");
    user.sws(&[&"rm", &format!("{ID}:bf12"), &"--yes"]).succeeded();

    // Shards in bf11 are gone on with.
    user.sws(&[&"pull", &ID, &"--as", &"bf11"]).succeeded();
    let kept = user.sws(&auto).succeeded();
    assert!(kept.stdout.contains("there already"), "{kept:?}");
    assert!(!user.shards().exists());
    user.sws(&[&"rm", &format!("{ID}:bf11"), &"--yes"]).succeeded();

    // Without a network, from the cache.
    user.sws(&[&"pull", &ID, &"--as", &"stored"]).succeeded();
    user.hub.state().requests.clear();
    let offline = |args: &[&dyn AsRef<OsStr>]| {
        Outcome::of(user.command(args).env("HF_HUB_OFFLINE", "1").output().unwrap())
    };
    let made = offline(&auto).succeeded();
    assert!(made.stderr.contains("sws: bf12, as all of it fits in 4.00 GiB\n"), "{made:?}");
    assert_same_tree(&expected, &user.shards());
    offline(&[&"pull", &"own/other", &"--as", &"auto"]).refused(2, &["own/other"]);
    assert!(user.hub.state().requests.is_empty());
}

#[test]
fn a_large_single_file_needs_its_header_and_samples_first() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("in");
    let expected = temp.path().join("expected");
    tiny("qwen2_moe", Dtype::BF16, 3).write(&dir, 1);
    sws(&[&"shard", &dir, &"--out", &expected]).succeeded();
    let user = User::of(&dir);
    user.sws(&[&"pull", &ID]).succeeded();
    assert_same_tree(&expected, &user.shards());
    let asked = user.hub.requests("model.safetensors");
    let asked = asked.iter().filter(|request| request.storage).count();
    assert!(asked > 30, "{asked} requests: the header, samples of it, and the file");
}

#[test]
fn the_disk_holds_one_file_at_a_time() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("in");
    consecutive(&dir, 8, 4);
    let user = User::of(&dir);
    user.hub.slow(20);
    let mut child = user.command(&[&"pull", &ID]).spawn().unwrap();
    let clock = Clock::real();
    let whole = user.at("models/own--tiny-model/bf12.pull/whole");
    let mut most = 0;
    let status = loop {
        let sizes = whole.read_dir().into_iter().flatten().flatten();
        let sizes = sizes.filter_map(|entry| Some(entry.metadata().ok()?.len()));
        most = most.max(sizes.sum::<u64>());
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        clock.sleep(Duration::from_millis(2));
    };
    assert!(status.success());
    let weights =
        tree(&dir).into_iter().filter(|(name, _)| name.to_string_lossy().ends_with("tensors"));
    let sizes: Vec<u64> = weights.map(|(_, bytes)| bytes.len() as u64).collect();
    let total = sizes.iter().sum::<u64>();
    let largest = *sizes.iter().max().unwrap();
    eprintln!("at most {most} bytes of {total} at a time; the largest file has {largest}");
    // A piece lies in two files, and the next begins while it is made.
    assert!(most > 0 && most <= 3 * largest && most < total / 2, "{most} of {total}");
}

#[test]
fn pulling_killed_at_random_moments() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("in");
    let expected = temp.path().join("expected");
    consecutive(&dir, 4, 5);
    sws(&[&"shard", &dir, &"--out", &expected]).succeeded();
    let mut random = Random(6);
    let clock = Clock::real();
    let mut resumed = 0;
    let mut killed = 0;
    for _ in 0..6 {
        let user = User::of(&dir);
        user.hub.slow(10);
        for _ in 0..3 {
            let mut child = user.command(&[&"pull", &ID]).spawn().unwrap();
            clock.sleep(Duration::from_millis(random.below(600)));
            child.kill().unwrap();
            killed += u32::from(!child.wait().unwrap().success());
        }
        user.sws(&[&"pull", &ID]).succeeded();
        assert_same_tree(&expected, &user.shards());
        let ranges = user.hub.state().requests.clone();
        let beyond = |range: &String| range.ends_with('-') && range != "bytes=0-";
        resumed += ranges.iter().filter_map(|r| r.range.as_ref()).filter(|r| beyond(r)).count();
    }
    eprintln!("{killed} of 18 kills came in the middle; {resumed} requests resumed a file");
    assert!(killed > 6 && resumed > 0, "{killed} kills, {resumed} resumed");
}

/// Disks lose bits, and others write to them, while a download is interrupted.
#[test]
fn resumed_pulls_make_the_model_of_the_hub() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("in");
    let expected = temp.path().join("expected");
    consecutive(&dir, 2, 8);
    for name in ["README.md", "tokenizer.json"] {
        std::fs::write(dir.join(name), r#"{"version": "1.0", "added_tokens": []}"#).unwrap();
    }
    sws(&[&"shard", &dir, &"--out", &expected]).succeeded();
    let weights = "sketch/model-00002-of-00002.safetensors";
    /// A file, the text before the byte that changes, and the new byte; zeros without any.
    type Case<'a> = (&'a str, &'a str, Option<u8>);
    let cases: [Case; 7] = [
        ("sketch/config.json", "num_local_experts", Some(b'7')),
        ("sketch/config.json", "", None),
        ("sketch/README.md", "version", Some(b'7')),
        ("sketch/tokenizer.json", "version", Some(b'7')),
        ("sketch/model.safetensors.index.json", "", None),
        (weights, "data_offsets", Some(b'7')),
        ("pull.json", "commit", Some(b'7')),
    ];
    for (name, before, new) in cases {
        let user = User::of(&dir);
        user.hub.slow(100);
        let mut child = user.command(&[&"pull", &ID]).spawn().unwrap();
        let staged = user.at("models/own--tiny-model/bf12.pull");
        while !staged.join(weights).exists() {
            Clock::real().sleep(Duration::from_millis(2));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        user.hub.state().faults.clear();
        let path = staged.join(name);
        let mut bytes = std::fs::read(&path).unwrap();
        match new {
            None => bytes.fill(0),
            Some(new) => {
                let at = bytes.windows(before.len()).position(|it| it == before.as_bytes());
                let at = at.unwrap_or_else(|| panic!("no {before} in {name}: {bytes:?}"));
                let digit = bytes[at..].iter_mut().find(|byte| byte.is_ascii_digit());
                *digit.unwrap_or_else(|| panic!("no number in {name}")) = new;
            }
        }
        std::fs::write(&path, bytes).unwrap();
        let pulled = user.sws(&[&"pull", &ID]).succeeded();
        assert_same_tree(&expected, &user.shards());
        let is_record = name == "pull.json";
        assert_eq!(pulled.stderr.contains("bf12.pull` is damaged"), is_record, "{pulled:?}");
        assert!(!pulled.stderr.contains("has changed"), "{pulled:?}");
    }
}

#[test]
fn resumed_pull_verifies_its_shards() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("in");
    let expected = temp.path().join("expected");
    consecutive(&dir, 4, 5);
    sws(&[&"shard", &dir, &"--out", &expected]).succeeded();
    let user = User::of(&dir);
    let shards = user.shards();
    user.hub.slow(40);
    let mut child = user.command(&[&"pull", &ID]).spawn().unwrap();
    // The first line names the job, each other one a shard.
    let listed = || {
        let journal = std::fs::read_to_string(shards.join(".sws-journal")).unwrap_or_default();
        journal.lines().count().saturating_sub(1)
    };
    while listed() < 2 {
        assert!(child.try_wait().unwrap().is_none(), "it was over before it could be killed");
        Clock::real().sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success());
    let mut damaged = 0;
    let there = listed();
    for (name, mut bytes) in tree(&shards) {
        if name.extension().is_some_and(|ending| ending == "safetensors") {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            std::fs::write(shards.join(&name), bytes).unwrap();
            damaged += 1;
        }
    }
    assert!(damaged >= there && there >= 2, "{damaged} of {there}");
    user.hub.state().faults.clear();
    let outcome = user.sws(&[&"pull", &ID]).succeeded();
    // One may have come to its name before the journal had its line.
    let words = format!("{there} damaged files made anew");
    assert!(outcome.stdout.contains(&words), "{words}: {outcome:?}");
    assert_same_tree(&expected, &shards);
    user.sws(&[&"verify", &ID]).succeeded();
}

#[test]
fn a_download_ends_with_the_commit_that_it_began_with() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("in");
    let expected = temp.path().join("expected");
    consecutive(&dir, 2, 6);
    sws(&[&"shard", &dir, &"--out", &expected]).succeeded();
    let user = User::of(&dir);
    user.hub.slow(50);
    let mut child = user.command(&[&"pull", &ID]).spawn().unwrap();
    let begun = user.at("models/own--tiny-model/bf12.pull/pull.json");
    while !begun.exists() {
        Clock::real().sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success());
    user.sws(&[&"list"]).succeeded();
    // The branch moves to something else.
    user.hub.commit(OTHER, BTreeMap::new());
    let outcome = user.sws(&[&"pull", &ID]).succeeded();
    assert!(outcome.stderr.contains("goes on with 0123456789abcdef"), "{outcome:?}");
    assert_same_tree(&expected, &user.shards());
}

#[test]
fn two_pulls_at_once() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("in");
    consecutive(&dir, 2, 7);
    let user = User::of(&dir);
    user.hub.fault("model-00001-of-00002.safetensors", Fault::Slow(100), 99);
    let mut first = user.command(&[&"pull", &ID]).spawn().unwrap();
    let begun = user.at("models/own--tiny-model/bf12.pull/pull.json");
    while !begun.exists() {
        Clock::real().sleep(Duration::from_millis(5));
    }
    user.sws(&[&"pull", &ID]).refused(2, &["bf12.pull", "another download"]);
    assert!(first.wait().unwrap().success());
}

#[test]
fn a_disk_that_is_full_in_the_middle_of_a_file() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("in");
    consecutive(&dir, 2, 10);
    let user = User::of(&dir);
    let Some(disk) = Disk::mount(&user.at("disk"), 4096) else { return };
    let out = disk.0.join("out");
    let other = disk.0.join("other");
    user.hub.slow(100);
    let pull: [&dyn AsRef<OsStr>; 6] = [&"pull", &ID, &"--as", &"stored", &"--out", &out];
    let child = user.command(&pull).spawn().unwrap();
    let begun = || {
        let files = out.read_dir().into_iter().flatten().flatten();
        files.filter_map(|file| file.metadata().ok()).any(|about| about.len() >= 65_536)
    };
    while !begun() {
        Clock::real().sleep(Duration::from_millis(2));
    }
    // Another program takes the room that was checked.
    let mut filler = std::fs::File::create(&other).unwrap();
    while filler.write_all(&[1; 4096]).is_ok() {}
    let outcome = Outcome::of(child.wait_with_output().unwrap());
    outcome.refused(2, &["incomplete", "make room"]);
    drop(filler);
    std::fs::remove_file(&other).unwrap();
    user.hub.state().requests.clear();
    user.sws(&pull).succeeded();
    assert_same_tree(&dir, &out);
    let ranges = user.hub.state().requests.clone();
    let resumed = |range: &str| range != "bytes=0-";
    assert!(ranges.iter().any(|r| r.range.as_deref().is_some_and(resumed)), "{ranges:?}");
}

#[test]
fn kept_checkpoints_are_shared_with_python() {
    let user = User::of(&golden_dir("qwen2_moe"));
    user.sws(&[&"pull", &ID, &"--as", &"stored"]).succeeded();
    let snapshot = user.at("huggingface/hub/models--own--tiny-model/snapshots");
    let snapshot = snapshot.join("0123456789abcdef0123456789abcdef01234567");
    assert!(snapshot.join("config.json").is_symlink());
    let inspected = |name: &dyn AsRef<OsStr>| user.sws(&[&"inspect", name]).succeeded().stdout;
    assert_eq!(inspected(&ID), inspected(&golden_dir("qwen2_moe")));
    assert_eq!(inspected(&format!("{ID}@main")), inspected(&golden_dir("qwen2_moe")));

    let listed = user.sws(&[&"list", &"--json"]).succeeded().stdout;
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed[0]["model"], ID);
    assert_eq!(listed[0]["form"], "checkpoint");
    assert_eq!(listed[0]["model_type"], "qwen2_moe");

    // Shards of what is there, without a network.
    let offline = |args: &[&dyn AsRef<OsStr>]| {
        Outcome::of(user.command(args).env("HF_HUB_OFFLINE", "1").output().unwrap())
    };
    user.hub.state().requests.clear();
    offline(&[&"pull", &ID]).succeeded();
    offline(&[&"shard", &ID, &"--encoding", &"q8"]).succeeded();
    offline(&[&"pull", &"own/other"]).refused(2, &["own/other", "HF_HUB_OFFLINE"]);
    assert!(user.hub.state().requests.is_empty());
    let expected = user.at("expected");
    sws(&[&"shard", &golden_dir("qwen2_moe"), &"--out", &expected]).succeeded();
    assert_same_tree(&expected, &user.shards());
    assert!(user.shards().with_file_name("q8").join("manifest.json").exists());

    // A damaged file of the cache is not trusted.
    let weights = snapshot.join("model.safetensors").canonicalize().unwrap();
    let whole = std::fs::read(&weights).unwrap();
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    std::fs::write(&weights, damaged).unwrap();
    let args: [&dyn AsRef<OsStr>; 4] = [&"shard", &ID, &"--encoding", &"bf16"];
    offline(&args).refused(2, &[weights.to_str().unwrap(), "its hash", "remove it"]);
    offline(&[&"pull", &ID, &"--as", &"stored"]).refused(2, &["its hash", "remove it"]);
    std::fs::write(&weights, whole).unwrap();
    // Neither is a small one, whose name is the hash of git.
    let config = snapshot.join("config.json").canonicalize().unwrap();
    let small = std::fs::read(&config).unwrap();
    std::fs::write(&config, [&small[..], b" "].concat()).unwrap();
    offline(&args).refused(2, &[config.to_str().unwrap(), "its hash", "remove it"]);
    std::fs::write(&config, small).unwrap();
    offline(&[&"pull", &ID, &"--as", &"stored"]).succeeded();

    // The cache is used where it has the files.
    std::fs::remove_dir_all(user.shards()).unwrap();
    user.sws(&[&"pull", &ID]).succeeded();
    assert_same_tree(&expected, &user.shards());
    let stored = user
        .hub
        .state()
        .requests
        .iter()
        .any(|request| request.storage && request.range.as_deref() == Some("bytes=0-"));
    assert!(!stored, "no weight file is downloaded again");
    assert!(snapshot.join("model.safetensors").exists(), "and it stays there");

    user.sws(&[&"rm", &ID]).refused(2, &["--yes"]);
    user.sws(&[&"rm", &format!("{ID}:q8"), &"--yes"]).succeeded();
    user.sws(&[&"rm", &ID, &"--yes"]).succeeded();
    user.sws(&[&"rm", &ID, &"--yes"]).refused(2, &[ID, "sws list"]);
    user.sws(&[&"run", &ID]).refused(2, &[ID, &format!("sws pull {ID}")]);
    let empty = user.sws(&[&"list"]).succeeded();
    assert!(empty.stdout.contains("no models yet"), "{empty:?}");
}

#[test]
fn gguf_files_are_chosen_by_their_tag() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("in");
    std::fs::create_dir(&dir).unwrap();
    let file = sws_testing::gguf::converted(&golden_dir("qwen2_moe")).unwrap();
    for name in ["Tiny-BF16.gguf", "Tiny-Q4_K_M.gguf"] {
        file.write(&dir.join(name));
    }
    let user = User::of(&dir);
    let several = user.sws(&[&"pull", &ID]);
    let several = several.refused(2, &["Tiny-BF16, Tiny-Q4_K_M", "choose one"]);
    let length = dir.join("Tiny-BF16.gguf").metadata().unwrap().len();
    let shown = sws::Size(length).to_string();
    for tag in ["BF16", "Q4_K_M"] {
        let command = format!("sws pull {ID}:{tag}");
        let line = several.stdout.lines().find(|line| line.ends_with(&command)).unwrap();
        assert!(line.contains(&shown) && line.contains(" in memory "), "{line}");
    }
    assert!(several.stdout.contains(&format!("for this machine: sws pull {ID}:")), "{several:?}");
    // Of headers, and of one model alone.
    let asked = |name: &str| user.hub.requests(name).len();
    assert!(asked("Tiny-BF16.gguf") > 0 && asked("Tiny-Q4_K_M.gguf") == 0, "one header is read");
    user.sws(&[&"pull", &format!("{ID}:Q5_0")]).refused(2, &["Q5_0", "Tiny-BF16, Tiny-Q4_K_M"]);
    user.sws(&[&"pull", &format!("{ID}:BF16")]).succeeded();
    let inspected = |name: &str| user.sws(&[&"inspect", &name]);
    let by_id = inspected(&format!("{ID}:bf16")).succeeded().stdout;
    assert_eq!(by_id, inspected(dir.join("Tiny-BF16.gguf").to_str().unwrap()).succeeded().stdout);
    inspected(ID).succeeded();
    inspected(&format!("{ID}:Q4_K_M")).succeeded();
    let mut offline = user.command(&[&"inspect", &format!("{ID}:Q4_K_M")]);
    let offline = Outcome::of(offline.env("HF_HUB_OFFLINE", "1").output().unwrap());
    offline.refused(2, &["Q4_K_M", "sws pull"]);
    let out = user.at("here");
    user.sws(&[&"pull", &format!("{ID}:Q4_K_M"), &"--out", &out]).succeeded();
    let same = std::fs::read(out.join("Tiny-Q4_K_M.gguf")).unwrap();
    assert!(same == std::fs::read(dir.join("Tiny-Q4_K_M.gguf")).unwrap());
}

#[test]
fn refusals_are_one_sentence() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("in");
    consecutive(&dir, 2, 8);
    let user = User::of(&dir);
    let file = "model-00001-of-00002.safetensors";
    user.sws(&[&"pull", &"own/other"]).refused(2, &["own/other", "no model", "HF_TOKEN"]);
    user.sws(&[&"pull", &ID, &"--revision", &"v9"]).refused(2, &["v9", "no revision"]);
    for (file, fault, words) in [
        ("", Fault::Status(401, "GatedRepo", ""), &["gated", "HF_TOKEN", "/own/tiny-model"][..]),
        (file, Fault::Status(404, "EntryNotFound", ""), &[file, ID][..]),
        (file, Fault::Status(403, "GatedRepo", ""), &["gated"][..]),
    ] {
        user.hub.fault(file, fault, 1);
        user.sws(&[&"pull", &ID]).refused(2, words);
    }
    #[rustfmt::skip]
    let usage: [(&[&str], &str); 5] = [
        (&["pull", "a/b/c"], "OWNER/NAME"),
        (&["pull", ID, "--as", "int8"], "stored"),
        (&["pull", ID, "--revision", "../x"], "branch"),
        (&["pull", ID, "--files", "0"], "--files"),
        (&["rm", "../x"], "OWNER/NAME"),
    ];
    for (args, word) in usage {
        let args: Vec<&dyn AsRef<OsStr>> = args.iter().map(|a| a as &dyn AsRef<OsStr>).collect();
        let outcome = user.sws(&args);
        assert_eq!(outcome.code, Some(2), "{outcome:?}");
        assert!(outcome.stderr.contains(word), "{outcome:?}");
    }
    for (name, value) in [
        ("HF_ENDPOINT", "nothing"),
        ("HF_TOKEN", "a b"),
        ("HTTP_PROXY", "::"),
        ("HTTP_PROXY", "socks5://h:1"),
    ] {
        let outcome = user.command(&[&"pull", &ID]).env(name, value).output().unwrap();
        Outcome::of(outcome).refused(2, &[name]);
    }
    user.sws(&[&"run", &"own/tiny"]).refused(2, &["own/tiny", "sws pull own/tiny"]);
    user.sws(&[&"run", &"tell me a story"]).refused(2, &["tell me a story", "--prompt"]);
}

#[test]
fn a_full_disk_is_refused_before_the_first_byte() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("in");
    consecutive(&dir, 4, 9);
    let user = User::of(&dir);
    for kib in [256, 4096] {
        let Some(disk) = Disk::mount(&user.at(&format!("disk-{kib}")), kib) else { return };
        let out = disk.0.join("out");
        let outcome = user.sws(&[&"pull", &ID, &"--out", &out]);
        outcome.refused(2, &["out", "free", "make room"]);
        let whole = |r: &str| r == "bytes=0-";
        let requests = user.hub.state().requests.clone();
        let whole = requests.iter().any(|r| r.storage && r.range.as_deref().is_some_and(whole));
        assert!(!whole, "no weight file was begun");
    }
    let out = user.at("stored");
    user.sws(&[&"pull", &ID, &"--as", &"stored", &"--out", &out]).succeeded();
    assert_same_tree(&dir, &out);
}
