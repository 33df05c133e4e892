//! GGUF files as checkpoints: which files make a model, and what is read of them.

use std::fs;
use std::path::Path;

use sws_format::{Manifest, PieceId, open_checkpoint};
use sws_testing::{
    gguf::{GgufFile, Key},
    toy::{Toy, safetensors},
};

fn toy() -> GgufFile {
    let mut file = GgufFile::default();
    file.key("general.architecture", "toy".into());
    file.key("general.name", "x".into());
    file.key("toy.flags", Key::Ints(vec![1, 2]));
    file.key("tokenizer.ggml.tokens", Key::Texts(vec!["a".into(), "b".into()]));
    file.key("tokenizer.chat_template", "{{ x }}".into());
    file.tensor("embed", 0, &[3, 4], (0..48).collect());
    file.tensor("0.stack", 30, &[2, 3, 4], (48..96).collect());
    file.tensor("1.norm", 0, &[4], (96..112).collect());
    file
}

/// One of the parts of a model with one tensor in each.
fn part(no: usize, count: u32) -> GgufFile {
    let whole = toy();
    let keys = if no == 0 { whole.keys } else { Vec::new() };
    let tensors = whole.tensors.into_iter().skip(no).take(1).collect();
    let mut file = GgufFile { keys, tensors, ..GgufFile::default() };
    file.key("split.no", Key::U32(no as u32));
    file.key("split.count", Key::U32(count));
    file.key("split.tensors.count", Key::U32(count));
    file
}

fn name(no: usize) -> String {
    format!("m-{:05}-of-00003.gguf", no + 1)
}

fn write_parts(dir: &Path) {
    (0..3).for_each(|no| part(no, 3).write(&dir.join(name(no))));
}

#[test]
fn the_configuration_has_keys_and_kinds_of_tensors() {
    let dir = tempfile::tempdir().unwrap();
    toy().write(&dir.path().join("m.gguf"));
    let opened = open_checkpoint(dir.path().join("m.gguf"), None).unwrap();
    assert_eq!((opened.dir(), &*opened.config().origin), (dir.path(), "m.gguf"));
    let json = r##"{"general.architecture":"toy","tensors":["#.norm","#.stack","embed"],"##
        .to_owned()
        + r#""tokenizer.ggml.tokens":{"length":2},"toy.flags":[1,2]}"#;
    assert_eq!(opened.small_files().unwrap(), ["config.json", "header.gguf"]);
    assert_eq!(opened.read_small("config.json").unwrap(), json.as_bytes());
    assert_eq!(opened.read_small("header.gguf").unwrap(), toy().header());
}

#[test]
fn tensors_become_pieces_and_experts_slices() {
    let dir = tempfile::tempdir().unwrap();
    toy().write(&dir.path().join("m.gguf"));
    let opened = open_checkpoint(dir.path(), None).unwrap();
    let manifest = Manifest::in_place(&*opened, &Toy).unwrap();
    let bytes = fs::read(dir.path().join("m.gguf")).unwrap();
    for (id, expected) in
        [(PieceId::EMBED, 0..48), (PieceId::expert(0, 0), 48..72), (PieceId::expert(0, 1), 72..96)]
    {
        let part = &manifest.piece(id).unwrap().tensors[0].parts[0];
        let found = &bytes[part.offset as usize..][..part.len as usize];
        assert_eq!(found, expected.collect::<Vec<u8>>(), "{id}");
    }
}

#[test]
fn parts_make_one_model() {
    let dir = tempfile::tempdir().unwrap();
    write_parts(dir.path());
    fs::write(dir.path().join("README.md"), "x").unwrap();
    for path in [dir.path().to_owned(), dir.path().join(name(0)), dir.path().join(name(2))] {
        let opened = open_checkpoint(&path, None).unwrap();
        let names: Vec<&str> = opened.files().iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, [name(0), name(1), name(2)]);
        assert_eq!(opened.config().entries["general.architecture"].as_str(), Some("toy"));
    }
}

/// Another name of the file leaves the fingerprint, any other change does not.
#[test]
fn the_fingerprint_is_that_of_the_contents() {
    let fingerprint = |name: &str, change: &dyn Fn(&mut GgufFile)| {
        let dir = tempfile::tempdir().unwrap();
        let mut file = toy();
        change(&mut file);
        file.write(&dir.path().join(name));
        open_checkpoint(dir.path(), None).unwrap().fingerprint().to_owned()
    };
    let first = fingerprint("a.gguf", &|_| ());
    assert_eq!(fingerprint("b.gguf", &|_| ()), first);
    let changes: [&dyn Fn(&mut GgufFile); 5] = [
        &|file| file.version = 2,
        &|file| file.keys[4].1 = "{{ y }}".into(),
        &|file| file.keys.truncate(4),
        &|file| file.tensors[0].name = "other".to_owned(),
        &|file| file.tensors[2].bytes[15] ^= 1,
    ];
    for (number, change) in changes.into_iter().enumerate() {
        assert_ne!(fingerprint("a.gguf", change), first, "{number}");
    }
}

#[test]
fn incomplete_and_foreign_files() {
    type Damage<'a> = &'a dyn Fn(&Path);
    let rewrite = |dir: &Path, no: usize, change: &dyn Fn(&mut GgufFile)| {
        let mut file = part(no, 3);
        change(&mut file);
        file.write(&dir.join(name(no)));
    };
    let set = |file: &mut GgufFile, key: &str, value: u32| {
        file.keys.retain(|(name, _)| name != key);
        file.key(key, Key::U32(value));
    };
    #[rustfmt::skip]
    let cases: &[(&str, Damage<'_>, &[&str])] = &[
        ("a part that is missing", &|dir| fs::remove_file(dir.join(name(1))).unwrap(),
            &["m-00002-of-00003.gguf` is missing, one of 3 files", "download the rest"]),
        ("a part of another model", &|dir| part(1, 4).write(&dir.join(name(1))),
            &["m-00002-of-00003.gguf` is not the part", "`split.count` is 4, and its name says 3"]),
        ("parts in another order", &|dir| fs::copy(dir.join(name(1)), dir.join(name(2))).map(drop).unwrap(),
            &["m-00003-of-00003.gguf", "`split.no` is 1, and its name says 2"]),
        ("a part without a number", &|dir| rewrite(dir, 1, &|file| file.keys.retain(|(key, _)| key != "split.no")),
            &["m-00002-of-00003.gguf", "it has no `split.no`"]),
        ("a part without a count", &|dir| rewrite(dir, 1, &|file| file.keys.retain(|(key, _)| key != "split.count")),
            &["m-00002-of-00003.gguf", "`split.count` is 0, and its name says 3"]),
        ("parts that disagree", &|dir| rewrite(dir, 1, &|file| set(file, "split.tensors.count", 5)),
            &["m-00002-of-00003.gguf", "disagree about the number of tensors"]),
        ("fewer tensors than all parts have", &|dir| (0..3).for_each(|no| rewrite(dir, no, &|file| set(file, "split.tensors.count", 5))),
            &["m-00001-of-00003.gguf", "its parts hold 3 tensors of 5"]),
        ("a number in words", &|dir| rewrite(dir, 1, &|file| { file.keys[0].1 = "one".into(); }),
            &["m-00002-of-00003.gguf", "its `split.no` is null"]),
        ("one tensor in two parts", &|dir| rewrite(dir, 2, &|file| file.tensors[0].name = "embed".to_owned()),
            &["m-00003-of-00003.gguf` holds the tensor `embed`, and so does `m-00001-of-00003.gguf`"]),
        ("another model", &|dir| toy().write(&dir.join("other.gguf")),
            &["holds several models, among them `m-00001-of-00003.gguf` and `other.gguf`", "give the path"]),
        ("a damaged part", &|dir| fs::write(dir.join(name(1)), "GGUF").unwrap(),
            &["m-00002-of-00003.gguf` is damaged: it ends within its version; download it again"]),
        ("a folder as a part", &|dir| { fs::remove_file(dir.join(name(1))).unwrap(); fs::create_dir(dir.join(name(1))).unwrap() },
            &["m-00002-of-00003.gguf` is not a regular file"]),
        ("a number that JSON does not have", &|dir| rewrite(dir, 0, &|file| file.key("toy.x", Key::F32(f32::NAN))),
            &["m-00001-of-00003.gguf` is damaged (in `toy.x`, a number is infinite or none)"]),
        ("more values than any model has", &|dir| rewrite(dir, 0, &|file| file.key("toy.x", Key::Ints(vec![0; 40_000]))),
            &["m-00001-of-00003.gguf` is damaged (in `toy.x`, there are too many values)"]),
        ("safetensors too", &|dir| fs::write(dir.join("model.safetensors"), safetensors(&[])).unwrap(),
            &["config.json` cannot be read"]),
    ];
    for (what, damage, words) in cases {
        let dir = tempfile::tempdir().unwrap();
        write_parts(dir.path());
        damage(dir.path());
        let Err(error) = open_checkpoint(dir.path(), None) else { panic!("{what}: accepted") };
        let message = error.to_string();
        for word in *words {
            assert!(message.contains(word), "{what}: no `{word}` in: {message}");
        }
        assert!(!message.contains('\n'), "{what}: {message}");
    }
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("weights"), toy().bytes()).unwrap();
    let error = open_checkpoint(dir.path().join("weights"), None).unwrap_err().to_string();
    assert!(error.contains("is not a GGUF file"), "{error}");
}

/// A part alone whose name does not say so is not a model.
#[test]
fn a_renamed_part_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    part(0, 3).write(&dir.path().join("m.gguf"));
    let error = open_checkpoint(dir.path(), None).unwrap_err().to_string();
    assert!(error.contains("`split.count` is 3, and its name says 1"), "{error}");
}

#[test]
fn a_header_that_changes_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    toy().write(&path);
    let opened = open_checkpoint(&path, None).unwrap();
    let mut file = toy();
    file.keys[4].1 = "{{ y }}".into();
    file.write(&path);
    let error = opened.read_small("header.gguf").unwrap_err().to_string();
    assert!(error.contains("m.gguf` is not what it was"), "{error}");
}

/// The manifest of a file with these tensors: names, numbers of types, shapes and bytes.
fn in_place(tensors: &[(&str, u32, &[u64], usize)]) -> Result<Manifest, String> {
    let mut file = GgufFile::default();
    file.key("general.architecture", "toy".into());
    for &(name, kind, shape, len) in tensors {
        file.tensor(name, kind, shape, vec![1; len]);
    }
    let dir = tempfile::tempdir().unwrap();
    file.write(&dir.path().join("m.gguf"));
    let opened = open_checkpoint(dir.path(), None).unwrap();
    Manifest::in_place(&*opened, &Toy).map_err(|error| error.to_string())
}

#[test]
fn blocks_of_nvfp4_have_a_number_in_another_tensor() {
    let manifest = in_place(&[
        ("0.0.up.weight", 40, &[3, 64], 108),
        ("0.0.up.scale", 0, &[1], 4),
        ("0.0.down.weight", 40, &[1, 64], 36),
        ("1.stack.weight", 40, &[2, 3, 128], 432),
        ("1.stack.scale", 0, &[2], 8),
        ("2.ffn_down_exps.weight", 40, &[2, 1, 64], 72),
        ("2.ffn_down_exps.scale", 0, &[2], 8),
        // As in Gemma 4, whose router has factors of what experts return.
        ("3.ffn_down_exps.weight", 40, &[2, 1, 64], 72),
        ("3.ffn_down_exps.scale", 0, &[2], 8),
        ("3.ffn_gate_inp.scale", 0, &[4], 16),
    ]);
    let manifest = manifest.unwrap();
    let tensors = manifest.pieces.iter().flat_map(|piece| &piece.tensors);
    let found: Vec<_> = tensors
        .map(|tensor| {
            let lengths: Vec<u64> = tensor.parts.iter().map(|part| part.len).collect();
            (tensor.name.as_str(), tensor.encoding.unwrap().name(), lengths)
        })
        .collect();
    #[rustfmt::skip]
    assert_eq!(found, [
        ("0.0.up.weight", "nvfp4_gguf_scaled", vec![108, 4]),
        ("0.0.down.weight", "nvfp4_gguf", vec![36]),
        ("1.stack.weight", "nvfp4_gguf_scaled", vec![216, 4]),
        ("1.stack.weight", "nvfp4_gguf_scaled", vec![216, 4]),
        ("2.ffn_down_exps.weight", "nvfp4_gguf_scaled", vec![72, 8]),
        ("3.ffn_down_exps.scale", "f32", vec![8]),
        ("3.ffn_down_exps.weight", "nvfp4_gguf", vec![72]),
        ("3.ffn_gate_inp.scale", "f32", vec![16]),
    ]);
}

#[test]
fn numbers_of_nvfp4_that_do_not_fit_are_refused() {
    type Tensor = (&'static str, u32, &'static [u64], usize);
    #[rustfmt::skip]
    let cases: &[([Tensor; 2], &str)] = &[
        ([("0.0.up.weight", 40, &[3, 64], 108), ("0.0.up.scale", 0, &[3], 12)], "`0.0.up.scale`, as F32 of shape [3], does not fit"),
        ([("0.0.up.weight", 40, &[3, 64], 108), ("0.0.up.scale", 1, &[1], 2)], "`0.0.up.scale`, as F16 of shape [1], does not fit"),
        ([("0.0.up.weight", 40, &[64], 36), ("0.0.up.scale", 0, &[1], 4)], "`0.0.up.scale`, as F32 of shape [1], does not fit"),
        ([("1.stack.weight", 40, &[2, 3, 64], 216), ("1.stack.scale", 0, &[1], 4)], "`1.stack.scale`, as F32 of shape [1], does not fit"),
        ([("1.stack.weight", 40, &[2, 3, 64], 216), ("1.stack.scale", 0, &[2, 3], 24)], "`1.stack.scale`, as F32 of shape [2, 3], does not fit"),
        ([("1.stack.weight", 40, &[2, 2, 3, 64], 432), ("1.stack.scale", 0, &[2, 2], 16)], "`1.stack.scale`, as F32 of shape [2, 2], does not fit"),
        // Blocks without a number of their own.
        ([("0.0.up.weight", 8, &[3, 64], 204), ("0.0.up.scale", 0, &[1], 4)], "`0.0.up.scale`"),
        ([("1.stack.weight", 8, &[2, 3, 64], 408), ("1.stack.scale", 0, &[1], 4)], "`1.stack.scale`"),
    ];
    for (tensors, words) in cases {
        let error = in_place(tensors).unwrap_err();
        assert!(error.contains("m.gguf") && error.contains(words), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
}
