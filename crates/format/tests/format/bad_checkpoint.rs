//! Checkpoints that are damaged, incomplete, hostile or not checkpoints at all. Each is refused
//! with one sentence that names the file and the remedy.

use std::fs::{self, File};
use std::path::Path;

use proptest::prelude::*;
use sws_format::{CheckpointError, Configuration, Header, Manifest, open_checkpoint};
use sws_testing::toy::{Spec, Toy, checkpoint, file, fill_checks, header, safetensors};

use crate::memory::{bound, peak};
use crate::unprivileged::unprivileged;

const GOOD: &[Spec<'_>] =
    &[("embed", "BF16", &[5, 4], 40), ("0.norm", "F32", &[4], 16), ("1.stack", "U8", &[2, 3], 6)];

/// Opens `dir`, which must fail with one sentence that contains all of `words`.
fn refused(what: &str, dir: &Path, words: &[&str]) {
    let (result, allocated) = peak(|| open_checkpoint(dir, None));
    let Err(error) = result else { panic!("{what}: accepted") };
    let message = error.to_string();
    for word in words {
        assert!(message.contains(word), "{what}: no `{word}` in: {message}");
    }
    assert!(!message.contains('\n'), "{what}: {message}");
    let on_disk: u64 = match dir.read_dir() {
        Ok(entries) => entries.map(|e| e.unwrap().metadata().unwrap().len()).sum(),
        Err(_) => 0,
    };
    let allowed = bound(on_disk as usize).min(1 << 20);
    assert!(allocated <= allowed, "{what}: {allocated} bytes allocated, {allowed} allowed");
}

#[test]
fn damaged_weight_files() {
    let one = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"x":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    let two = |first: &str, second: &str| {
        format!(
            r#"{{"a":{{"dtype":"U8","shape":[4],"data_offsets":{first}}},
                "b":{{"dtype":"U8","shape":[4],"data_offsets":{second}}}}}"#
        )
    };
    let claims = |len: u64| [&len.to_le_bytes()[..], b"{}"].concat();
    let good = safetensors(GOOD);
    let cut = |by: usize| good[..good.len() - by].to_vec();
    let nested = format!(r#"{{"__metadata__":{}1{}}}"#, "[".repeat(9999), "]".repeat(9999));
    let long = one("U8", "[0]", "[0,0]").replace('x', &"x".repeat(513));
    #[rustfmt::skip]
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("no bytes", vec![], "0 bytes are too few"),
        ("seven bytes", vec![0; 7], "7 bytes are too few"),
        ("no header", claims(0), "not what the format asks for"),
        ("header one byte too long", claims(3), "header of 3 bytes does not fit into the file of 10 bytes"),
        ("header of 2^64 - 1 bytes", claims(u64::MAX), "does not fit"),
        ("truncated in the header", good[..30].to_vec(), "does not fit"),
        ("truncated data", cut(1), "describes 62 bytes of data and the file has 61"),
        ("data to spare", [&good[..], &[0]].concat(), "the file has 63"),
        ("not JSON", file("{x", 0), "not what the format asks for"),
        ("not UTF-8", [&2u64.to_le_bytes()[..], b"\"\xff"].concat(), "not what the format asks for"),
        ("a list", file("[]", 0), "a map of tensors"),
        ("JSON cut short", file(&header(GOOD)[..40], 0), "not what the format asks for"),
        ("something behind the JSON", file("{}{}", 0), "not what the format asks for"),
        ("deep nesting", file(&nested, 0), "a map of strings"),
        ("gap", file(&two("[0,4]", "[5,9]"), 9), "`b` starts at byte 5 of the data and should start at 4"),
        ("overlap", file(&two("[0,4]", "[3,7]"), 7), "should start at 4"),
        ("same place", file(&two("[0,4]", "[0,4]"), 4), "should start at 4"),
        ("not from the start", file(&one("U8", "[4]", "[1,5]"), 5), "should start at 0"),
        ("backwards", file(&one("U8", "[4]", "[4,0]"), 4), "`x` starts at byte 4"),
        ("ends before it starts", file(&two("[0,4]", "[4,0]"), 4), "`b` starts at byte 4"),
        ("far offset", file(&one("U8", "[4]", "[18446744073709551611,18446744073709551615]"), 4), "should start at 0"),
        ("far end", file(&one("U8", "[18446744073709551615]", "[0,18446744073709551615]"), 4), "`x`"),
        ("far end that can be counted", file(&one("U8", "[1152921504606846976]", "[0,1152921504606846976]"), 4), "describes 1152921504606846976 bytes"),
        ("three offsets", file(&one("U8", "[4]", "[0,4,4]"), 4), "not what the format asks for"),
        ("offset of 2^64", file(&one("U8", "[4]", "[0,18446744073709551616]"), 4), "not what the format asks for"),
        ("unknown type", file(&one("F33", "[1]", "[0,4]"), 4), "F33"),
        ("type of another length", file(&one("F64", "[1]", "[0,4]"), 4), "`x` has 4 bytes"),
        ("half a byte", file(&one("F4", "[3]", "[0,1]"), 1), "`x` has 1 bytes"),
        ("shape that overflows", file(&one("U8", "[4294967296,4294967296]", "[0,0]"), 0), "`x` has 0 bytes"),
        ("bits that overflow", file(&one("F64", "[1152921504606846976]", "[0,0]"), 0), "`x` has 0 bytes"),
        ("absurd shape of nothing", file(&one("U8", "[0,9223372036854775808,2]", "[0,0]"), 0), "`x` has 0 bytes"),
        ("negative shape", file(&one("U8", "[-1]", "[0,0]"), 0), "not what the format asks for"),
        ("broken shape", file(&one("U8", "[1.5]", "[0,0]"), 0), "not what the format asks for"),
        ("nine dimensions", file(&one("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1), "at most 8 dimensions"),
        ("one name twice", file(r#"{"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#, 0), "`x` twice"),
        ("empty name", file(r#"{"":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#, 0), "name of a tensor"),
        ("name with an escape", file(r#"{"\u001b[2J":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#, 0), "name of a tensor"),
        ("long name", file(&long, 0), "name of a tensor"),
        ("field that is missing", file(r#"{"x":{"dtype":"U8","shape":[0]}}"#, 0), "data_offsets"),
    ];
    for (what, bytes, expected) in cases {
        let dir = tempfile::tempdir().unwrap();
        checkpoint(dir.path(), GOOD);
        fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
        refused(
            what,
            dir.path(),
            &["model.safetensors` is damaged", expected, "download it again"],
        );
    }
}

/// Faults of files other than the weights.
#[test]
fn incomplete_and_foreign_directories() {
    let index = |dir: &Path, map: &str| {
        fs::remove_file(dir.join("model.safetensors")).unwrap();
        fs::write(dir.join("a.safetensors"), safetensors(&[("x", "U8", &[4], 4)])).unwrap();
        fs::write(dir.join("b.safetensors"), safetensors(&[("x", "U8", &[4], 4)])).unwrap();
        fs::write(dir.join("model.safetensors.index.json"), map).unwrap();
    };
    let only = |dir: &Path, name: &str| {
        fs::remove_file(dir.join("model.safetensors")).unwrap();
        fs::write(dir.join(name), "x").unwrap();
    };
    let sparse = |path: &Path, len: u64| File::create(path).unwrap().set_len(len).unwrap();
    type Damage<'a> = &'a dyn Fn(&Path);
    #[rustfmt::skip]
    let cases: &[(&str, Damage<'_>, &[&str])] = &[
        ("no configuration", &|dir| fs::remove_file(dir.join("config.json")).unwrap(),
            &["config.json` cannot be read", "check that it exists"]),
        ("a huge configuration", &|dir| sparse(&dir.join("config.json"), (16 << 20) + 1),
            &["config.json` has 16777217 bytes", "download it again"]),
        ("a folder as configuration", &|dir| { fs::remove_file(dir.join("config.json")).unwrap(); fs::create_dir(dir.join("config.json")).unwrap() },
            &["config.json` is not a regular file"]),
        ("nothing", &|dir| fs::remove_file(dir.join("model.safetensors")).unwrap(),
            &["config.json and no weights", "download these, too"]),
        ("nothing at all", &|dir| ["model.safetensors", "config.json"].iter().for_each(|name| fs::remove_file(dir.join(name)).unwrap()),
            &["neither model.safetensors nor model.safetensors.index.json", "complete Hugging Face checkpoint"]),
        ("another layout", &|dir| only(dir, "consolidated.safetensors"),
            &["holds `consolidated.safetensors`, and neither model.safetensors", "layout of transformers"]),
        ("an adapter", &|dir| { only(dir, "adapter_model.safetensors"); fs::write(dir.join("adapter_config.json"), "{}").unwrap() },
            &["holds an adapter", "merge_and_unload"]),
        ("PyTorch", &|dir| only(dir, "pytorch_model-00001-of-00002.bin"),
            &["pytorch_model-00001-of-00002.bin", "save_pretrained(out, safe_serialization=True)"]),
        ("PyTorch, another suffix", &|dir| only(dir, "consolidated.00.pth"), &["consolidated.00.pth", "transformers"]),
        ("llama.cpp", &|dir| only(dir, "model.Q4_K_M.gguf"), &["model.Q4_K_M.gguf` is not a GGUF file", "download it again"]),
        ("shards", &|dir| only(dir, "manifest.json"), &["is a shard directory", "use it as it is"]),
        ("a folder as weights", &|dir| { fs::remove_file(dir.join("model.safetensors")).unwrap(); fs::create_dir(dir.join("model.safetensors")).unwrap() },
            &["model.safetensors` is not a regular file"]),
        ("a pipe as weights", &|dir| {
                fs::remove_file(dir.join("model.safetensors")).unwrap();
                rustix::fs::mknodat(rustix::fs::CWD, dir.join("model.safetensors"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
            }, &["model.safetensors` is not a regular file"]),
        ("a link to nothing", &|dir| { fs::remove_file(dir.join("model.safetensors")).unwrap(); std::os::unix::fs::symlink("gone", dir.join("model.safetensors")).unwrap() },
            &["model.safetensors` cannot be read", "check that it exists"]),
        ("a header longer than allowed", &|dir| {
                sparse(&dir.join("model.safetensors"), 1 << 30);
                let file = File::options().write(true).open(dir.join("model.safetensors")).unwrap();
                std::os::unix::fs::FileExt::write_all_at(&file, &100_000_001u64.to_le_bytes(), 0).unwrap();
            }, &["model.safetensors` is damaged", "100000001 bytes is longer than the format allows", "download it again"]),
        ("an index without its file", &|dir| index(dir, r#"{"weight_map":{"x":"c.safetensors"}}"#),
            &["c.safetensors` is missing", "`model.safetensors.index.json` lists it", "download the rest"]),
        ("an index with a link to nothing", &|dir| { index(dir, r#"{"weight_map":{"x":"c.safetensors"}}"#); std::os::unix::fs::symlink("gone", dir.join("c.safetensors")).unwrap() },
            &["c.safetensors` is missing", "download the rest"]),
        ("an index with a tensor too many", &|dir| index(dir, r#"{"weight_map":{"x":"a.safetensors","y":"a.safetensors"}}"#),
            &["a.safetensors` lacks the tensor `y`", "download both again"]),
        ("a tensor in two files", &|dir| { index(dir, r#"{"weight_map":{"x":"a.safetensors","y":"b.safetensors"}}"#);
                fs::write(dir.join("b.safetensors"), safetensors(&[("x", "U8", &[4], 4), ("y", "U8", &[4], 4)])).unwrap() },
            &["b.safetensors` holds the tensor `x`, and so does `a.safetensors`", "remove the file"]),
        ("an index with a tensor twice", &|dir| index(dir, r#"{"weight_map":{"x":"a.safetensors","x":"a.safetensors"}}"#),
            &["index.json` is damaged: it lists the tensor `x` twice", "download it again"]),
        ("an index with a tensor in two places", &|dir| index(dir, r#"{"weight_map":{"x":"a.safetensors","x":"b.safetensors"}}"#),
            &["index.json` is damaged: it lists the tensor `x` twice"]),
        ("an index above its directory", &|dir| index(dir, r#"{"weight_map":{"x":"../a.safetensors"}}"#),
            &["index.json` is damaged", "\"../a.safetensors\" is not a plain name", "download it again"]),
        ("an index elsewhere", &|dir| index(dir, r#"{"weight_map":{"x":"/etc/passwd"}}"#), &["\"/etc/passwd\" is not a plain name"]),
        ("an index below its directory", &|dir| index(dir, r#"{"weight_map":{"x":"sub/a.safetensors"}}"#), &["is not a plain name"]),
        ("an index of Windows", &|dir| index(dir, r#"{"weight_map":{"x":"C:\\a.safetensors"}}"#), &["is not a plain name"]),
        ("an index with NUL", &|dir| index(dir, r#"{"weight_map":{"x":"a\u0000"}}"#), &["is not a plain name"]),
        ("an index of nothing", &|dir| index(dir, r#"{"weight_map":{}}"#), &["index.json` is damaged: it lists no tensors"]),
        ("an index without a map", &|dir| index(dir, "{}"), &["index.json` is damaged", "weight_map"]),
        ("an index of numbers", &|dir| index(dir, r#"{"weight_map":{"x":1}}"#), &["index.json` is damaged"]),
        ("an empty index", &|dir| index(dir, ""), &["index.json` is damaged", "download it again"]),
        ("a huge index", &|dir| { index(dir, ""); sparse(&dir.join("model.safetensors.index.json"), (64 << 20) + 1) },
            &["index.json` has 67108865 bytes", "download it again"]),
    ];
    for (what, damage, words) in cases {
        let dir = tempfile::tempdir().unwrap();
        checkpoint(dir.path(), GOOD);
        damage(dir.path());
        refused(what, dir.path(), words);
    }

    let dir = tempfile::tempdir().unwrap();
    checkpoint(dir.path(), GOOD);
    let weights = dir.path().join("model.safetensors");
    refused(
        "a file",
        &weights,
        &["model.safetensors` is not a GGUF file", "a checkpoint directory"],
    );
    refused("nowhere", &dir.path().join("gone"), &["gone` cannot be read", "check that it exists"]);
}

/// Shards would lack it without a word.
#[test]
fn a_small_file_that_cannot_be_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    checkpoint(dir.path(), GOOD);
    std::os::unix::fs::symlink("notes.txt", dir.path().join("notes.txt")).unwrap();
    let error = open_checkpoint(dir.path(), None).unwrap().small_files().unwrap_err();
    assert!(error.to_string().contains("notes.txt` cannot be read"), "{error}");
}

#[test]
fn a_directory_without_permission() {
    unprivileged(|dir| {
        let path = dir.join("locked");
        refused("locked", &path, &["locked/", "Permission denied", "that you may read it"]);
    });
}

#[test]
fn an_index_of_too_many_files() {
    let dir = tempfile::tempdir().unwrap();
    let entries: Vec<String> = (0..16_385).map(|i| format!(r#""{i}":"{i}""#)).collect();
    let json = format!(r#"{{"weight_map":{{{}}}}}"#, entries.join(","));
    fs::write(dir.path().join("model.safetensors.index.json"), json).unwrap();
    let error = open_checkpoint(dir.path(), None).unwrap_err();
    assert!(matches!(error, CheckpointError::Index { .. }), "{error}");
    assert!(error.to_string().contains("more than 16384 files"), "{error}");
}

/// Headers and indices with as many items as possible in few bytes.
#[test]
fn memory_is_bounded_by_the_length_of_the_file() {
    let tensors: Vec<String> = (0..40_000)
        .map(|i| format!(r#""{i}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#))
        .collect();
    let metadata: Vec<String> = (0..100_000).map(|i| format!(r#""{i}":"""#)).collect();
    let same: String = [r#""x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#; 40_000].join(",");
    for json in [
        format!("{{{}}}", tensors.join(",")),
        format!(r#"{{"__metadata__":{{{}}}}}"#, metadata.join(",")),
        format!("{{{same}}}"),
        format!(r#"{{"x":{{"dtype":"U8","shape":[{}0]}}}}"#, "0,".repeat(500_000)),
        "[".repeat(1 << 20),
        format!(r#"{{"{}":0}}"#, "x".repeat(1 << 20)),
    ] {
        let (_, allocated) = peak(|| Header::parse(json.as_bytes(), json.len() as u64 + 8));
        assert!(allocated <= bound(json.len()), "{allocated} for {}: {:.60}", json.len(), json);
    }

    // A tree takes many times its JSON, so the number of its values is limited.
    let deep = format!("{}0{}", r#"{"":"#.repeat(100), "}".repeat(100));
    for value in [deep.as_str(), "[0]", "{}", "0"] {
        let json = format!(r#"{{"a":[{}{value}]}}"#, format!("{value},").repeat(70_000));
        let (_, allocated) = peak(|| Configuration::from_json("config.json", json.as_bytes()));
        assert!(allocated < 48 << 20, "{allocated} for {}: {:.60}", json.len(), json);
    }

    let dir = tempfile::tempdir().unwrap();
    let pairs: Vec<String> = (0..100_000).map(|i| format!(r#""{i}":"a""#)).collect();
    let pairs = pairs.join(",");
    let index = format!(r#"{{"weight_map":{{{pairs}}}}}"#);
    fs::write(dir.path().join("model.safetensors.index.json"), &index).unwrap();
    let (result, allocated) = peak(|| open_checkpoint(dir.path(), None));
    assert!(matches!(result, Err(CheckpointError::Missing { .. })), "{result:?}");
    assert!(allocated <= bound(index.len()), "{allocated} for {}", index.len());
}

/// A damaged copy of a good file, or a file built from odd pieces.
fn weights() -> impl Strategy<Value = Vec<u8>> {
    let good = safetensors(GOOD);
    let len = good.len();
    let edits = prop::collection::vec((0..len, any::<u8>()), 0..4);
    let mutated = (edits, 0..=len, prop::bool::weighted(0.2)).prop_map(move |(edits, end, cut)| {
        let mut bytes = good.clone();
        for (at, byte) in edits {
            bytes[at] = byte;
        }
        bytes.truncate(if cut { end } else { len });
        bytes
    });
    let number = || prop_oneof![4 => 0..9u64, 1 => Just(1 << 32), 1 => any::<u64>()];
    let name = prop::sample::select(vec![
        "embed", "0.norm", "0.stack", "0.0.up", "x_blocks", "é", "x_scales",
    ]);
    let dtype = prop::sample::select(vec!["U8", "F4", "F6_E2M3", "BF16", "F32", "F8_E4M3", "C64"]);
    let shape = prop::collection::vec(number(), 0..5);
    let tensor = (name, dtype, shape, 0..300usize, prop::option::weighted(0.7, Just(())));
    let built = prop::collection::vec(tensor, 0..5).prop_map(|tensors| {
        let sizes: Vec<usize> = tensors
            .iter()
            .map(|(_, dtype, shape, odd, right)| {
                let bits = match *dtype {
                    "F4" => 4,
                    "F6_E2M3" => 6,
                    "BF16" => 16,
                    "F32" => 32,
                    "C64" => 64,
                    _ => 8,
                };
                let elements = shape.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim));
                let right = right.and(elements).filter(|&n| n < 4096);
                right.map_or(*odd, |n| (n * bits).div_ceil(8) as usize)
            })
            .collect();
        let specs: Vec<Spec<'_>> = tensors
            .iter()
            .zip(sizes)
            .map(|((name, dtype, shape, ..), size)| (*name, *dtype, shape.as_slice(), size))
            .collect();
        safetensors(&specs)
    });
    prop_oneof![mutated, built]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any bytes give an error of one sentence or a consistent manifest, and use little memory.
    #[test]
    fn arbitrary_weight_files(bytes in weights()) {
        let dir = tempfile::tempdir().unwrap();
        checkpoint(dir.path(), GOOD);
        fs::write(dir.path().join("model.safetensors"), &bytes).unwrap();
        let (opened, allocated) = peak(|| open_checkpoint(dir.path(), None));
        prop_assert!(allocated <= bound(bytes.len()), "{} for {}", allocated, bytes.len());
        let Ok(opened) = opened else { return Ok(()) };
        let theirs = safetensors::SafeTensors::read_metadata(&bytes);
        prop_assert!(theirs.is_ok(), "accepted what the format's own library refuses");
        let (manifest, allocated) = peak(|| Manifest::in_place(&*opened, &Toy));
        prop_assert!(allocated <= bound(bytes.len()), "{} for {}", allocated, bytes.len());
        let Ok(mut manifest) = manifest else { return Ok(()) };
        fill_checks(&mut manifest);
        let json = manifest.to_json().unwrap();
        prop_assert_eq!(Manifest::from_json(&json).unwrap(), manifest);
    }
}

/// Headers that the format's own library accepts are accepted, except those listed as refused
/// above.
#[test]
fn headers_padded_with_spaces_and_metadata() {
    let json = format!(r#"{{"__metadata__":{{"format":"pt"}},{}      "#, &header(GOOD)[1..]);
    let bytes = file(&json, 62);
    safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let parsed = Header::parse(json.as_bytes(), bytes.len() as u64).unwrap();
    assert_eq!(parsed.tensors.len(), GOOD.len());
}
