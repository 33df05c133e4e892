//! Sharding copies only files of the checkpoint, never the target of a link that leads elsewhere.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::goldens::{copy, golden_dir};
use crate::sws::{assert_same_tree, sws, tree};

/// A checkpoint, a foreign file next to it, and a path for shards.
fn places(temp: &Path) -> (PathBuf, PathBuf, PathBuf) {
    let [checkpoint, secret, out] = ["checkpoint", "secret", "out"].map(|name| temp.join(name));
    copy("qwen2_moe", &checkpoint);
    std::fs::write(&secret, "not to be passed on").unwrap();
    (checkpoint, secret, out)
}

#[test]
fn a_link_that_leaves_the_checkpoint_is_refused() {
    type Link = fn(&Path, &Path);
    let cases: [(&str, Link); 7] = [
        ("absolute", |dir, secret| symlink(secret, dir.join("README.md")).unwrap()),
        ("of the system", |dir, _| symlink("/etc/hostname", dir.join("README.md")).unwrap()),
        ("upwards", |dir, _| symlink("../secret", dir.join("README.md")).unwrap()),
        ("in and out again", |dir, _| {
            symlink("../checkpoint/../secret", dir.join("README.md")).unwrap();
        }),
        ("a chain", |dir, secret| {
            symlink(secret, dir.join(".hidden")).unwrap();
            symlink(".hidden", dir.join("README.md")).unwrap();
        }),
        ("through a directory", |dir, _| {
            symlink("..", dir.join("up")).unwrap();
            symlink("up/secret", dir.join("README.md")).unwrap();
        }),
        ("beside, with a name that begins alike", |dir, _| {
            let beside = dir.with_file_name("checkpoint-2");
            std::fs::create_dir(&beside).unwrap();
            std::fs::write(beside.join("x"), "x").unwrap();
            symlink("../checkpoint-2/x", dir.join("README.md")).unwrap();
        }),
    ];
    for (case, link) in cases {
        let temp = tempfile::tempdir().unwrap();
        let (checkpoint, secret, out) = places(temp.path());
        link(&checkpoint, &secret);
        let outcome = sws(&[&"shard", &checkpoint, &"--out", &out]);
        assert_eq!(outcome.code, Some(2), "{case}: {outcome:?}");
        outcome.refused(2, &["README.md` is a link to", "put the file itself there"]);
        assert!(!out.exists(), "{case}");
    }
}

#[test]
fn links_within_the_checkpoint_and_links_to_weights_are_followed() {
    let temp = tempfile::tempdir().unwrap();
    let (checkpoint, _, out) = places(temp.path());
    std::fs::create_dir(checkpoint.join("texts")).unwrap();
    std::fs::write(checkpoint.join("texts/readme"), "words").unwrap();
    symlink("texts/readme", checkpoint.join("README.md")).unwrap();
    symlink(checkpoint.join("README.md"), checkpoint.join("LICENSE")).unwrap();
    symlink("gone", checkpoint.join("NOTICE")).unwrap();
    let drive = temp.path().join("drive");
    std::fs::create_dir(&drive).unwrap();
    std::fs::rename(checkpoint.join("model.safetensors"), drive.join("weights")).unwrap();
    symlink(drive.join("weights"), checkpoint.join("model.safetensors")).unwrap();
    // The checkpoint itself may be reached through a link.
    symlink(&checkpoint, temp.path().join("link")).unwrap();
    sws(&[&"shard", &temp.path().join("link"), &"--out", &out]).succeeded();
    for name in ["README.md", "LICENSE"] {
        assert!(out.join(name).symlink_metadata().unwrap().is_file());
        assert_eq!(std::fs::read(out.join(name)).unwrap(), b"words");
    }
    assert!(!out.join("NOTICE").exists());
    sws(&[&"verify", &out]).succeeded();
}

#[test]
fn a_hugging_face_snapshot_may_link_to_its_own_blobs_only() {
    let temp = tempfile::tempdir().unwrap();
    let repo = |name: &str| temp.path().join("hub").join(name);
    let snapshot = repo("models--a--b/snapshots/0123abc");
    for dir in [&snapshot, &repo("models--a--b/blobs"), &repo("models--c--d/blobs")] {
        std::fs::create_dir_all(dir).unwrap();
    }
    for (name, bytes) in tree(&golden_dir("qwen2_moe")) {
        std::fs::write(repo("models--a--b/blobs").join(&name), bytes).unwrap();
        symlink(Path::new("../../blobs").join(&name), snapshot.join(&name)).unwrap();
    }
    let [plain, linked, refused] = ["plain", "linked", "refused"].map(|n| temp.path().join(n));
    sws(&[&"shard", &golden_dir("qwen2_moe"), &"--out", &plain]).succeeded();
    sws(&[&"shard", &snapshot, &"--out", &linked]).succeeded();
    assert_same_tree(&plain, &linked);

    std::fs::write(repo("models--c--d/blobs/other"), "of another repository").unwrap();
    symlink("../../../models--c--d/blobs/other", snapshot.join("README.md")).unwrap();
    sws(&[&"shard", &snapshot, &"--out", &refused]).refused(2, &["README.md", "models--c--d"]);
    // A blobs directory that is a link to elsewhere is refused.
    std::fs::remove_file(snapshot.join("README.md")).unwrap();
    std::fs::rename(repo("models--a--b/blobs"), temp.path().join("moved")).unwrap();
    symlink(temp.path().join("moved"), repo("models--a--b/blobs")).unwrap();
    sws(&[&"shard", &snapshot, &"--out", &refused]).refused(2, &["moved", "link"]);
}

#[test]
fn a_journal_that_is_a_link_is_refused_and_its_target_stays() {
    let temp = tempfile::tempdir().unwrap();
    let (checkpoint, secret, out) = places(temp.path());
    std::fs::create_dir(&out).unwrap();
    symlink(&secret, out.join(".sws-journal")).unwrap();
    sws(&[&"shard", &checkpoint, &"--out", &out]).refused(2, &["other files", ".sws-journal"]);
    assert_eq!(std::fs::read(&secret).unwrap(), b"not to be passed on");
}

#[test]
fn a_dangling_link_of_a_needed_file_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let (checkpoint, _, out) = places(temp.path());
    symlink("/nowhere/at-all", checkpoint.join("chat_template.jinja")).unwrap();
    sws(&[&"shard", &checkpoint, &"--out", &out]).refused(2, &["chat_template.jinja"]);
    assert!(!out.exists());
}

#[test]
fn a_file_changed_under_its_old_time_is_not_sharded() {
    let temp = tempfile::tempdir().unwrap();
    let (checkpoint, _, out) = places(temp.path());
    let path = checkpoint.join("config.json");
    sws(&[&"run", &checkpoint, &"--tokens", &"1", &"--json"]).succeeded();
    let bytes = std::fs::read(&path).unwrap();
    let modified = path.metadata().unwrap().modified().unwrap();
    let flipped: Vec<u8> = bytes.iter().map(|&b| if b == b'6' { b'7' } else { b }).collect();
    assert_ne!(bytes, flipped);
    std::fs::write(&path, flipped).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(modified).unwrap();
    let outcome = sws(&[&"shard", &checkpoint, &"--out", &out]);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    assert!(outcome.stderr.contains("config.json"), "{outcome:?}");
    assert!(!out.join("manifest.json").exists());
}
