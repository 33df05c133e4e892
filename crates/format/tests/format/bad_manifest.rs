//! Writing and reading of manifests. One is accepted only if it is consistent and its files exist.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};
use sws_format::{CopiedFile, ErrorNorms, Manifest, open_checkpoint};
use sws_testing::toy::{Toy, checkpoint, fill_checks};

use crate::memory::{bound, peak};
use crate::unprivileged::unprivileged;

/// A manifest of a directory that has its file.
fn sample(dir: &Path) -> Manifest {
    checkpoint(
        dir,
        &[
            ("0.norm", "F32", &[4], 16),
            ("embed", "BF16", &[5, 4], 40),
            ("1.stack", "BF16", &[2, 3, 4], 48),
            ("empty", "F32", &[0, 4], 0),
        ],
    );
    let mut manifest = Manifest::in_place(&*open_checkpoint(dir, None).unwrap(), &Toy).unwrap();
    fill_checks(&mut manifest);
    let blake3 = "0f".repeat(32);
    manifest.copies = vec![CopiedFile { path: "config.json".into(), len: 2, blake3 }];
    // A number that needs all its digits to be read back.
    manifest.pieces[0].tensors[0].error = Some(ErrorNorms {
        relative: 0.1 + 0.2,
        max: 5e-324,
        spectral: Some(1.7976931348623157e308),
        spectral_error: None,
    });
    manifest
}

fn sample_json() -> Vec<u8> {
    sample(tempfile::tempdir().unwrap().path()).to_json().unwrap()
}

fn sample_body() -> Value {
    let mut value: Value = serde_json::from_slice(&sample_json()).unwrap();
    value["body"].take()
}

/// A manifest file with this body and the right checksum.
fn sealed(body: &str) -> Vec<u8> {
    format!(r#"{{"blake3":"{}","body":{body}}}"#, blake3::hash(body.as_bytes())).into_bytes()
}

#[test]
fn written_manifest_reads_back() {
    let dir = tempfile::tempdir().unwrap();
    let manifest = sample(dir.path());
    manifest.write(dir.path()).unwrap();
    assert_eq!(Manifest::load(dir.path()).unwrap(), manifest);
    let bytes = fs::read(dir.path().join("manifest.json")).unwrap();
    assert_eq!(manifest.to_json().unwrap(), bytes);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3, "no temporary file is left");
}

#[test]
fn every_flipped_bit_and_every_cut_is_noticed() {
    let good = sample_json();
    Manifest::from_json(&good).unwrap();
    for bit in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(Manifest::from_json(&bytes).is_err(), "bit {bit}");
    }
    // The last byte is a newline, which has no meaning.
    for len in 0..good.len() - 1 {
        assert!(Manifest::from_json(&good[..len]).is_err(), "cut to {len}");
    }
}

/// Bodies with a right checksum, as from a hostile source or a faulty program.
#[test]
fn contradictions() {
    const TENSOR: &str = "/pieces/0/tensors/0";
    const PART: &str = "/pieces/0/tensors/0/parts/0";
    let at = |base: &str, field: &str| format!("{base}/{field}");
    let outside = "points outside its directory";
    #[rustfmt::skip]
    let cases: Vec<(String, Value, &str)> = vec![
        ("/version".into(), json!(3), "version 3 and this program reads versions up to 2; use the sws that wrote it"),
        ("/version".into(), json!(0), "version 0 and this program reads versions up to 2; use the sws that wrote it"),
        (at(TENSOR, "transposed"), json!(true), "it has transposed tensors, which version 1 has not"),
        (at(TENSOR, "transposed"), json!(1), "not what the format asks for"),
        ("/version".into(), json!(-1), "not what the format asks for"),
        ("/files/0/path".into(), json!("../model.safetensors"), outside),
        ("/files/0/path".into(), json!("layer_0/../../x"), outside),
        ("/files/0/path".into(), json!("/etc/passwd"), outside),
        ("/files/0/path".into(), json!("."), outside),
        ("/files/0/path".into(), json!(""), outside),
        ("/files/0/path".into(), json!("a//b"), outside),
        ("/files/0/path".into(), json!("a/"), outside),
        ("/files/0/path".into(), json!("..\\x"), outside),
        ("/files/0/path".into(), json!("C:x"), outside),
        ("/files/0/path".into(), json!("a\0b"), outside),
        ("/files/0/path".into(), json!("a/b/c/d/e/f/g/h/i"), outside),
        ("/files/0/path".into(), json!("x".repeat(256)), outside),
        ("/files".into(), json!([]), "not listed"),
        ("/files/0/len".into(), json!(10), "beyond the end of its file"),
        ("/files/0/len".into(), json!(1e300), "not what the format asks for"),
        ("/copies/0/path".into(), json!("../config.json"), outside),
        ("/copies/0/path".into(), json!("/etc/passwd"), outside),
        ("/copies/0/path".into(), json!("a/b"), outside),
        ("/copies/0/path".into(), json!("manifest.json"), "twice"),
        ("/copies/0/path".into(), json!("model.safetensors"), "twice"),
        ("/copies/0/len".into(), json!(1u64 << 40), "too long"),
        ("/copies/0/blake3".into(), json!("0f"), "64 hexadecimal digits"),
        ("/model/fingerprint".into(), json!("ab"), "fingerprint"),
        ("/model/model_type".into(), json!("\u{7}"), "model_type"),
        ("/encoding".into(), json!("q5"), "`q5` is not an encoding"),
        ("/pieces/0/id".into(), json!("layer_0/head"), "names look like"),
        ("/pieces/0/id".into(), json!("lm_head"), "not in order"),
        ("/pieces/1/id".into(), json!("embed"), "not in order"),
        (at(TENSOR, "name"), json!("a\nb"), "not printable"),
        (at(TENSOR, "name"), json!("x".repeat(513)), "too long"),
        (at(TENSOR, "source"), json!("../x"), "source"),
        (at(TENSOR, "dtype"), json!("F33"), "F33"),
        (at(TENSOR, "shape"), json!([5, 5]), "length does not fit its shape"),
        (at(TENSOR, "shape"), json!([u64::MAX, u64::MAX]), "impossible shape"),
        (at(TENSOR, "shape"), json!([1, 1, 1, 1, 1, 1, 1, 5, 4]), "impossible shape"),
        (at(TENSOR, "encoding"), json!("f32"), "length does not fit its shape"),
        (at(TENSOR, "encoding"), json!("bf12"), "more or fewer parts than its encoding"),
        (at(TENSOR, "encoding"), json!(null), "not what the format asks for"),
        (at(TENSOR, "parts"), json!([]), "more or fewer parts"),
        (at(TENSOR, "error/relative"), json!(-1), "error norm"),
        (at(TENSOR, "error/spectral"), json!(-0.5), "error norm"),
        (at(TENSOR, "error/spectral_error"), json!(-1e-300), "error norm"),
        (at(TENSOR, "error/spectral_error"), json!("much"), "not what the format asks for"),
        (at(TENSOR, "slice"), json!({"index": 2, "count": 2}), "impossible slice"),
        (at(TENSOR, "slice"), json!({"index": 0, "count": 65537}), "impossible slice"),
        (at(PART, "file"), json!(1), "not listed"),
        (at(PART, "offset"), json!(100_000), "beyond the end of its file"),
        (at(PART, "offset"), json!(u64::MAX), "beyond the end of its file"),
        (at(PART, "offset"), json!(0), ""),
        (at(PART, "len"), json!(41), "length does not fit its shape"),
        (at(PART, "check_len"), json!(0), "checksums over nothing"),
        (at(PART, "check_len"), json!(39), "as many checksums"),
        (at(PART, "checks"), json!([]), "as many checksums"),
        (at(PART, "checks"), json!(["ffffffffffffffff", "0000000000000000"]), "as many checksums"),
        (at(PART, "checks"), json!(["ffff"]), "16 hexadecimal digits"),
        (at(PART, "checks"), json!(["+fffffffffffffff"]), "16 hexadecimal digits"),
        (at(PART, "checks"), json!([7]), "not what the format asks for"),
        ("/pieces/0/stand_in".into(), json!({"encoding": "q4", "tensors": []}), "stand-in"),
    ];
    for (pointer, value, expected) in cases {
        let mut body = sample_body();
        match body.pointer_mut(&pointer) {
            Some(place) => *place = value.clone(),
            None => {
                let (parent, field) = pointer.rsplit_once('/').unwrap();
                body.pointer_mut(parent).unwrap()[field] = value.clone();
            }
        }
        let dir = tempfile::tempdir().unwrap();
        checkpoint(dir.path(), &[]);
        fs::write(dir.path().join("manifest.json"), sealed(&body.to_string())).unwrap();
        let result = Manifest::from_json(&sealed(&body.to_string()));
        if expected.is_empty() {
            result.unwrap_or_else(|e| panic!("{pointer} = {value}: {e}"));
            continue;
        }
        let message = Manifest::load(dir.path()).unwrap_err().to_string();
        assert!(message.contains("manifest.json` cannot be used: "), "{message}");
        assert!(message.contains(expected), "{pointer} = {value}: {message}");
        assert!(message.contains("make the shards again"), "{message}");
        assert!(!message.contains('\n'), "{message}");
    }
}

/// Manifests with a transposed tensor have another version: readers of the first would restore it
/// wrongly.
#[test]
fn transposed_tensors_are_matrices_of_version_2() {
    let mut manifest = sample(tempfile::tempdir().unwrap().path());
    let version = |manifest: &Manifest| {
        let json: Value = serde_json::from_slice(&manifest.to_json().unwrap()).unwrap();
        json["body"]["version"].clone()
    };
    assert_eq!(version(&manifest), 1);
    let stack = manifest.pieces.iter().position(|piece| piece.tensors[0].slice.is_some()).unwrap();
    manifest.pieces[stack].tensors[0].transposed = true;
    assert_eq!(version(&manifest), 2);
    assert_eq!(Manifest::from_json(&manifest.to_json().unwrap()).unwrap(), manifest);
    let norm = manifest.pieces.iter().position(|piece| piece.tensors[0].shape.len() == 1).unwrap();
    manifest.pieces[norm].tensors[0].transposed = true;
    let message = manifest.to_json().unwrap_err().to_string();
    assert!(message.contains("`0.norm` is transposed, and no matrix that can be"), "{message}");
}

#[test]
fn extents_that_overlap() {
    let mut body = sample_body();
    let offset = body.pointer("/pieces/0/tensors/0/parts/0/offset").unwrap().as_u64().unwrap();
    *body.pointer_mut("/pieces/1/tensors/0/parts/0/offset").unwrap() = json!(offset + 39);
    let message = Manifest::from_json(&sealed(&body.to_string())).unwrap_err().to_string();
    assert!(message.contains("embed and layer_0/norms overlap in model.safetensors"), "{message}");
}

#[test]
fn unreadable_manifest_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut manifest = sample(dir.path());
    manifest.pieces[0].tensors[0].error.as_mut().unwrap().max = f64::NAN;
    let message = manifest.write(dir.path()).unwrap_err().to_string();
    assert!(message.contains("error norm"), "{message}");
    assert!(!dir.path().join("manifest.json").exists());
}

#[test]
fn files_that_are_not_as_listed() {
    let folder = |dir: &Path| {
        let mut manifest = sample(dir);
        manifest.files[0].path = "layer_0/norms.safetensors".to_owned();
        fs::create_dir(dir.join("elsewhere")).unwrap();
        fs::rename(dir.join("model.safetensors"), dir.join("elsewhere/norms.safetensors")).unwrap();
        manifest.write(dir).unwrap();
    };
    let weights = |dir: &Path| {
        sample(dir).write(dir).unwrap();
        dir.join("model.safetensors")
    };
    type Damage<'a> = &'a dyn Fn(&Path);
    #[rustfmt::skip]
    let cases: &[(&str, Damage<'_>, &[&str])] = &[
        ("no manifest", &|_| (), &["has no manifest.json", "`sws shard` has finished"]),
        ("an empty manifest", &|dir| fs::write(dir.join("manifest.json"), "").unwrap(),
            &["manifest.json` cannot be used", "make the shards again"]),
        ("a manifest that is a folder", &|dir| fs::create_dir(dir.join("manifest.json")).unwrap(),
            &["manifest.json` is not a regular file"]),
        ("a manifest that is a link", &|dir| symlink("/etc/passwd", dir.join("manifest.json")).unwrap(),
            &["manifest.json` is not a regular file"]),
        ("a huge manifest", &|dir| File::create(dir.join("manifest.json")).unwrap().set_len((256 << 20) + 1).unwrap(),
            &["manifest.json` has 268435457 bytes", "make the shards again"]),
        ("a missing shard", &|dir| fs::remove_file(weights(dir)).unwrap(),
            &["model.safetensors` is missing", "make the shards again"]),
        ("an empty shard", &|dir| _ = File::create(weights(dir)).unwrap(),
            &["model.safetensors` has 0 bytes instead of ", "make the shards again"]),
        ("a longer shard", &|dir| File::options().append(true).open(weights(dir)).unwrap().set_len(5000).unwrap(),
            &["model.safetensors` has 5000 bytes instead of "]),
        ("a folder as shard", &|dir| { let path = weights(dir); fs::remove_file(&path).unwrap(); fs::create_dir(path).unwrap() },
            &["model.safetensors` is not a regular file"]),
        ("a link to a shard", &|dir| { let path = weights(dir); fs::rename(&path, dir.join("x")).unwrap(); symlink("x", path).unwrap() },
            &["model.safetensors` is not a regular file of its directory", "put the shard itself there"]),
        ("a link out", &|dir| { let path = weights(dir); fs::remove_file(&path).unwrap(); symlink("/etc/passwd", path).unwrap() },
            &["model.safetensors` is not a regular file"]),
        ("a folder that is a link", &|dir| { folder(dir); symlink("elsewhere", dir.join("layer_0")).unwrap() },
            &["layer_0/norms.safetensors` is not a regular file of its directory"]),
        ("a missing folder", &|dir| folder(dir), &["layer_0` is missing"]),
    ];
    for (what, damage, words) in cases {
        let dir = tempfile::tempdir().unwrap();
        damage(dir.path());
        let (result, allocated) = peak(|| Manifest::load(dir.path()));
        let message = result.map(|_| what).unwrap_err().to_string();
        for word in *words {
            assert!(message.contains(word), "{what}: no `{word}` in: {message}");
        }
        assert!(allocated <= bound(4096), "{what}: {allocated}");
    }
}

#[test]
fn a_directory_without_permission() {
    unprivileged(|dir| {
        let message = Manifest::load(dir.join("locked")).unwrap_err().to_string();
        for word in ["locked/manifest.json` cannot be read", "Permission denied", "you may read it"]
        {
            assert!(message.contains(word), "{message}");
        }
        let manifest = sample(tempfile::tempdir().unwrap().path());
        let message = manifest.write(dir.join("locked")).unwrap_err().to_string();
        for word in ["locked/manifest.json` cannot be written", "you may write there"] {
            assert!(message.contains(word), "{message}");
        }
    });
}

/// JSON with as many items as possible in few bytes.
#[test]
fn memory_is_bounded_by_the_length_of_the_file() {
    let tensor = sample_body().pointer("/pieces/0/tensors/0").unwrap().to_string();
    let many = |n: usize, item: &str| vec![item; n].join(",");
    #[rustfmt::skip]
    let cases = [
        ("/files", format!("[{}]", many(50_000, r#"{"path":"","len":0}"#))),
        ("/pieces", format!("[{}]", many(50_000, r#"{"id":"embed","tensors":[]}"#))),
        ("/pieces/0/tensors", format!("[{}]", many(5000, &tensor))),
        ("/pieces/0/tensors/0/shape", format!("[{}]", many(500_000, "0"))),
        ("/pieces/0/tensors/0/parts", format!("[{}]", many(20_000, r#"{"file":0,"offset":0,"len":0,"check_len":0}"#))),
        ("/pieces/0/tensors/0/parts/0/checks", format!("[{}]", many(50_000, r#""0000000000000000""#))),
        ("/unknown", format!("{}0{}", "[".repeat(100), "]".repeat(100))),
        ("/unknown", format!("[{}]", many(500_000, "0"))),
    ];
    for (pointer, json) in cases {
        let mut body = sample_body();
        match body.pointer_mut(pointer) {
            Some(place) => *place = json!("here"),
            None => body["unknown"] = json!("here"),
        }
        let sealed = sealed(&body.to_string().replace("\"here\"", &json));
        let (result, allocated) = peak(|| Manifest::from_json(&sealed).map(|_| ()));
        assert_eq!(result.is_ok(), pointer == "/unknown", "{pointer}");
        assert!(allocated <= bound(sealed.len()), "{pointer}: {allocated} for {}", sealed.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any body with a right checksum gives an error or a manifest that round-trips.
    #[test]
    fn arbitrary_bodies(
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0..8usize, token()), 1..4),
    ) {
        let mut body = sample_body().to_string();
        for (at, removed, token) in edits {
            // Mostly whole tokens, so that the result is often JSON.
            let starts: Vec<usize> = body
                .char_indices()
                .filter(|(_, c)| matches!(c, '"' | '{' | '[' | ',' | ':' | '0'..='9'))
                .map(|(i, _)| i)
                .collect();
            let Some(&start) = starts.get(at.index(starts.len().max(1))) else { break };
            let end = (start + removed).min(body.len());
            if body.is_char_boundary(end) {
                body.replace_range(start..end, token);
            }
        }
        let json = sealed(&body);
        let (result, allocated) = peak(|| Manifest::from_json(&json));
        prop_assert!(allocated <= bound(json.len()), "{} for {}", allocated, json.len());
        if let Ok(manifest) = result {
            let again = Manifest::from_json(&manifest.to_json().unwrap()).unwrap();
            prop_assert_eq!(again, manifest);
        }
    }
}

fn token() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "",
        "0",
        "1",
        "7",
        "18446744073709551615",
        "-1",
        "1e308",
        "\"",
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "null",
        "[]",
        "{}",
        "\"embed\"",
        "\"bf12\"",
        "\"q4\"",
        "\"../x\"",
        "\"\\u0000\"",
    ])
}
