//! Copies of shards: whole and partial ones, interrupted, damaged and of other models.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use sws_format::{MANIFEST_FILE, Manifest, PieceId, PieceKind};
use sws_shard::{MirrorOptions, Mirrored, ShardError, mirror, verify};
use sws_testing::tales;

/// Files below a directory, with their bytes.
fn tree(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut ahead = vec![dir.to_owned()];
    while let Some(at) = ahead.pop() {
        for path in at.read_dir().unwrap().map(|entry| entry.unwrap().path()) {
            match path.is_dir() {
                true => ahead.push(path),
                false => {
                    let bytes = fs::read(&path).unwrap();
                    files.insert(path.strip_prefix(dir).unwrap().to_owned(), bytes);
                }
            }
        }
    }
    files
}

fn copy(out: &Path, most: Option<u64>, first: &[PieceId]) -> Result<Mirrored, ShardError> {
    mirror(&tales(), out, &MirrorOptions { most, first }, &|_| (), &|_| ())
}

/// Asserts that every file is complete and has the bytes of the model's.
fn assert_copied(out: &Path) -> usize {
    let files = tree(out);
    for (name, bytes) in &files {
        assert!(*bytes == fs::read(tales().join(name)).unwrap(), "{}", name.display());
    }
    files.len()
}

#[test]
fn whole_copy_is_a_model_and_is_mended() {
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("copy");
    let manifest = Manifest::load(tales()).unwrap();
    let bytes = manifest.files.iter().map(|file| file.len).sum();
    let all = manifest.files.len();
    let whole = Mirrored { shards: all, of: all, bytes, copied: all, damaged: 0 };
    assert_eq!(copy(&out, None, &[]).unwrap(), whole);
    assert_copied(&out);
    assert!(verify(&out, &|_| ()).unwrap().damage.is_empty());
    assert_eq!(copy(&out, None, &[]).unwrap(), Mirrored { copied: 0, ..whole });
    // A flipped bit, a file that was cut short, one that is missing, and a damaged small file.
    let expert = out.join("layer_0/expert_1.safetensors");
    let mut damaged = fs::read(&expert).unwrap();
    let last = damaged.len() / 2;
    damaged[last] ^= 1;
    fs::write(&expert, damaged).unwrap();
    let cut = out.join("layer_0/expert_2.safetensors");
    fs::write(&cut, &fs::read(&cut).unwrap()[..999]).unwrap();
    fs::remove_file(out.join("layer_1/expert_3.safetensors")).unwrap();
    fs::write(out.join("config.json"), "{}").unwrap();
    fs::write(out.join("embed.safetensors.sws-tmp"), "a kill").unwrap();
    assert_eq!(copy(&out, None, &[]).unwrap(), Mirrored { copied: 3, damaged: 1, ..whole });
    assert_copied(&out);
    assert!(verify(&out, &|_| ()).unwrap().damage.is_empty());
}

#[test]
fn partial_copy_has_the_first_experts_and_grows() {
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("copy");
    let manifest = Manifest::load(tales()).unwrap();
    let file = |id: PieceId| format!("{id}.safetensors");
    let len = |id: PieceId| {
        let path = file(id);
        manifest.files.iter().find(|file| file.path == path).unwrap().len
    };
    let small = tales().join(MANIFEST_FILE).metadata().unwrap().len()
        + manifest.copies.iter().map(|copy| copy.len).sum::<u64>();
    let first = [PieceId::expert(5, 7), PieceId::expert(2, 30), PieceId::LM_HEAD];
    let room = small + len(first[0]) + len(first[1]);
    let made = copy(&out, Some(room), &first).unwrap();
    assert_eq!((made.shards, made.copied), (2, 2));
    for id in &first[..2] {
        assert!(out.join(file(*id)).exists(), "{id}");
    }
    assert_copied(&out);
    // Other experts are used most by now: those that are there stay, and the rest goes on.
    let next = [PieceId::expert(3, 3)];
    let made = copy(&out, Some(room + len(next[0])), &next).unwrap();
    assert_eq!((made.shards, made.copied), (3, 1));
    assert!(out.join(file(next[0])).exists());
    // Without such knowledge there are as many of each layer.
    let rounds = temp.path().join("rounds");
    let expert = |layer, number| PieceId::expert(layer, number);
    let layers = 0..8u32;
    let room =
        small + layers.clone().map(|at| len(expert(at, 0)) + len(expert(at, 1))).sum::<u64>();
    let made = copy(&rounds, Some(room), &[]).unwrap();
    assert_eq!(made.shards, 16);
    assert!(
        layers
            .flat_map(|at| [expert(at, 0), expert(at, 1)])
            .all(|id| rounds.join(file(id)).exists())
    );
    let experts = manifest.pieces.iter().filter(|p| matches!(p.id.kind(), PieceKind::Expert(_)));
    assert!(experts.count() > 16);
    // A copy that became whole.
    let made = copy(&rounds, None, &[]).unwrap();
    assert_eq!((made.shards, made.copied), (made.of, made.of - 16));
    assert!(verify(&rounds, &|_| ()).unwrap().damage.is_empty());
}

#[test]
fn wrong_places_and_sizes_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("copy");
    let refused = copy(&out, Some(1 << 10), &[]).unwrap_err();
    assert!(matches!(refused, ShardError::NoRoom { .. }), "{refused}");
    assert!(!out.exists());
    // The remedy is one.
    let ShardError::NoRoom { needed, .. } = refused else { unreachable!() };
    assert_eq!(copy(&out, Some(needed), &[]).unwrap().shards, 1);

    let foreign = temp.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("diary"), "mine").unwrap();
    let refused = copy(&foreign, None, &[]).unwrap_err();
    assert!(matches!(refused, ShardError::Foreign { .. }), "{refused}");
    let other = temp.path().join("other");
    fs::create_dir(&other).unwrap();
    let json = fs::read_to_string(tales().join(MANIFEST_FILE)).unwrap();
    let (start, rest) = json.split_at(12);
    let digit = if rest.starts_with('0') { "1" } else { "0" };
    fs::write(other.join(MANIFEST_FILE), format!("{start}{digit}{}", &rest[1..])).unwrap();
    let refused = copy(&other, None, &[]).unwrap_err();
    assert!(matches!(refused, ShardError::OtherJob { .. }), "{refused}");
    let inside = mirror(&out, &out.join("x"), &MirrorOptions::default(), &|_| (), &|_| ());
    assert!(inside.is_err());
}

#[test]
fn nothing_damaged_is_copied() {
    let temp = tempfile::tempdir().unwrap();
    let [from, to] = ["from", "to"].map(|name| temp.path().join(name));
    copy(&from, None, &[]).unwrap();
    let file = "layer_3/expert_4.safetensors";
    let mut bytes = fs::read(from.join(file)).unwrap();
    let last = bytes.len() - 5000;
    bytes[last] ^= 4;
    fs::write(from.join(file), bytes).unwrap();
    let copied = mirror(&from, &to, &MirrorOptions::default(), &|_| (), &|_| ());
    let error = copied.unwrap_err();
    assert!(
        matches!(&error, ShardError::DamagedCopy { path, .. } if path.ends_with(file)),
        "{error}"
    );
    assert!(!to.join(file).exists());
    assert_copied(&to);
    // From a sound source the same copy goes on.
    let made = copy(&to, None, &[]).unwrap();
    assert_eq!(made.shards, made.of);
    assert_eq!(made.damaged, 0);
}
