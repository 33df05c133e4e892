//! The files that tests convert are those of llama.cpp's converter (`tests/goldens/gguf_files.py`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;
use sws_format::open_checkpoint;
use sws_model::ModelSpec;
use sws_testing::gguf::{GgufFile, GgufTensor, Key, convertible};
use sws_testing::goldens::goldens;

/// By name, the tensors with their types, shapes and hashes.
fn tensors(file: &GgufFile) -> BTreeMap<String, String> {
    let render = |tensor: &GgufTensor| {
        let kind = match tensor.kind {
            0 => "F32",
            30 => "BF16",
            other => panic!("the type {other}"),
        };
        let shape: Vec<String> = tensor.shape.iter().map(u64::to_string).collect();
        let hash = tensor.bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        // Its numbers are powers of e, whose last bits are the converter's own.
        let hash = match tensor.name.ends_with("ssm_a") {
            true => String::new(),
            false => format!(" {hash:016x}"),
        };
        (tensor.name.clone(), format!("{kind} {}{hash}", shape.join("x")))
    };
    // Layers of multi-token prediction are not among the goldens.
    let used = file.tensors.iter().filter(|tensor| !tensor.name.contains(".nextn."));
    used.map(render).collect()
}

/// The file with these keys in place of its own.
fn with_keys(mut file: GgufFile, architecture: &str, keys: &Value) -> GgufFile {
    file.keys.clear();
    file.key("general.architecture", architecture.into());
    for (name, value) in keys.as_object().unwrap() {
        let value = match value {
            Value::Bool(flag) => Key::Bool(*flag),
            Value::String(text) => Key::Text(text.clone()),
            Value::Array(all) if all.iter().all(Value::is_boolean) => {
                Key::Bools(all.iter().map(|flag| flag.as_bool().unwrap()).collect())
            }
            Value::Array(all) => {
                Key::Ints(all.iter().map(|n| n.as_i64().unwrap() as i32).collect())
            }
            number => match number.as_u64() {
                Some(whole) => Key::U32(whole as u32),
                None => Key::F32(number.as_f64().unwrap() as f32),
            },
        };
        file.key(name, value);
    }
    // Files have no key for the number of tokens, whose list the goldens do not have.
    let rows = file.tensors.iter().find(|tensor| tensor.name == "token_embd.weight");
    let vocab = rows.unwrap().shape[0] as u32;
    if !keys.as_object().unwrap().keys().any(|name| name.ends_with(".vocab_size")) {
        file.key(&format!("{architecture}.vocab_size"), Key::U32(vocab));
    }
    file
}

#[test]
fn converted_files_are_those_of_llama_cpp() {
    let json = std::fs::read_to_string(goldens().join("gguf_files.json")).unwrap();
    let expected: BTreeMap<String, Value> = serde_json::from_str(&json).unwrap();
    let mut seen = BTreeSet::new();
    let dir = tempfile::tempdir().unwrap();
    let spec = |file: &GgufFile, dir: &Path| {
        let path = dir.join("model.gguf");
        file.write(&path);
        ModelSpec::of(open_checkpoint(&path, None).unwrap().config()).unwrap()
    };
    for (name, _, file) in convertible() {
        let Some(expected) = expected.get(&name) else { continue };
        let theirs: BTreeMap<String, String> =
            serde_json::from_value(expected["tensors"].clone()).unwrap();
        let found = tensors(&file);
        for (tensor, shown) in &theirs {
            assert_eq!(found.get(tensor), Some(shown), "{name}: {tensor}");
        }
        assert_eq!(found.len(), theirs.len(), "{name}");
        let architecture = expected["architecture"].as_str().unwrap();
        let theirs = with_keys(file.clone(), architecture, &expected["keys"]);
        assert_eq!(spec(&theirs, dir.path()), spec(&file, dir.path()), "{name}");
        seen.insert(name);
    }
    assert!(seen.iter().eq(expected.keys()), "{seen:?}");
}
