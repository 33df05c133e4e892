//! Every entry, key and tensor of every family, missing or changed: each gives a specification or
//! one sentence.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};
use sws_format::{Configuration, Dtype, Manifest, Tensor, Value as Typed, open_checkpoint};
use sws_kernels::Tier;
use sws_model::{ForwardState, Inventory, KvPrecision, ModelSpec, PassSize, naming, supported};
use sws_testing::gguf::{Key, converted, convertible};
use sws_testing::goldens::golden_dir;

use crate::forward::support::{Fixture, variants};

/// The configurations of all goldens, and those of model types that none of them has.
fn configurations() -> Vec<(String, Value)> {
    let golden = |name: &str| -> Value {
        let json = fs::read(golden_dir(name).join("config.json")).unwrap();
        serde_json::from_slice(&json).unwrap()
    };
    let mut all: Vec<_> =
        variants().into_iter().map(|name| (name.clone(), golden(&name))).collect();
    let mut kimi = golden("deepseek_v3");
    kimi["model_type"] = "kimi_k2".into();
    for (outer, inner) in [
        ("kimi_k25", kimi.clone()),
        ("gemma3", golden("gemma3_text")),
        ("gemma4", golden("gemma4_text")),
    ] {
        all.push((outer.to_owned(), json!({"model_type": outer, "text_config": inner})));
    }
    all.push(("kimi_k2".to_owned(), kimi));
    all
}

#[test]
fn every_family_is_among_them() {
    let inner = |config: &Value| match config.get("text_config") {
        Some(text) => text["model_type"].as_str().unwrap().to_owned(),
        None => config["model_type"].as_str().unwrap().to_owned(),
    };
    let found: BTreeSet<String> = configurations().iter().map(|(_, c)| inner(c)).collect();
    let all: BTreeSet<String> = supported().map(str::to_owned).collect();
    assert_eq!(found, all);
    for (name, config) in configurations() {
        check(&config).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// Parses a configuration. If it is accepted, sizes are computed before any weight is read.
fn check(config: &Value) -> Result<(), String> {
    let config = Configuration::from_json("config.json", config.to_string().as_bytes()).unwrap();
    check_typed(&config)
}

fn check_typed(config: &Configuration) -> Result<(), String> {
    let named = naming(config);
    if let Err(error) = &named {
        one_sentence(&error.to_string());
    }
    let spec = ModelSpec::of(config).map_err(|error| one_sentence(&error.to_string()))?;
    let positions = spec.context.min(1 << 20);
    ForwardState::cache_bytes(&spec, positions, KvPrecision::F32);
    ForwardState::journal_bytes(&spec, (3, 64), KvPrecision::F32);
    let (strip, packings) = (PassSize::STRIP, Default::default());
    let size = PassSize { tokens: 64, logits: 64, positions, threads: 2, strip, packings };
    spec.work_bytes(Tier::PORTABLE, size);
    spec.parameters();
    named.map(drop).map_err(|error| error.to_string())
}

fn one_sentence(message: &str) -> String {
    assert!(!message.contains('\n') && message.len() < 1000, "{message}");
    message.to_owned()
}

/// The places of all values within objects, and of the first of each list.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    let inner: Vec<(&str, &Value)> = match value {
        Value::Object(map) => map.iter().map(|(key, value)| (key.as_str(), value)).collect(),
        Value::Array(list) => list.first().map(|value| ("0", value)).into_iter().collect(),
        _ => return,
    };
    for (key, value) in inner {
        let at = format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
        places(value, &at, found);
        found.push(at);
    }
}

#[test]
fn replacing_any_entry_gives_a_spec_or_a_sentence() {
    #[rustfmt::skip]
    let values = [
        json!(null), json!(true), json!(false), json!(-1), json!(0), json!(1), json!(3), json!(65_536),
        json!(1u64 << 32), json!(u64::MAX), json!(1e308), json!(1e-308), json!(1e-40), json!(""),
        json!("sliding_attention"), json!("dynamic"), json!([]), json!([0]), json!({}),
        json!({"rope_type": "llama3"}), json!({"rope_type": "yarn", "original_max_position_embeddings": 1e-30}),
    ];
    for (_, config) in configurations() {
        let mut found = Vec::new();
        places(&config, "", &mut found);
        for place in found {
            for value in &values {
                let mut config = config.clone();
                *config.pointer_mut(&place).unwrap() = value.clone();
                drop(check(&config));
            }
            let (outer, key) = place.rsplit_once('/').unwrap();
            let mut config = config.clone();
            if let Value::Object(entries) = config.pointer_mut(outer).unwrap() {
                entries.remove(key);
            }
            drop(check(&config));
        }
    }
}

#[test]
fn replacing_any_key_of_a_gguf_file_gives_a_spec_or_a_sentence() {
    let int = Typed::Int;
    let values = [
        Typed::Null,
        Typed::Bool(true),
        int(-1),
        int(0),
        int(1),
        int(3),
        int(65_536),
        int(u64::MAX.into()),
        int(i128::MAX),
        Typed::Float(f64::NAN),
        Typed::Float(1e308),
        Typed::Float(1e-40),
        Typed::String(String::new()),
        Typed::String("yarn".to_owned()),
        Typed::List(Vec::new()),
        Typed::List(vec![int(0), int(1)]),
        Typed::Map([("length".to_owned(), int(i128::MAX))].into()),
    ];
    let mut count = 0;
    for (_, _, file) in convertible() {
        count += 1;
        let dir = tempfile::tempdir().unwrap();
        file.write(&dir.path().join("model.gguf"));
        let config = open_checkpoint(dir.path(), None).unwrap().config().clone();
        check_typed(&config).unwrap();
        for key in config.entries.keys() {
            let mut changed = config.clone();
            changed.entries.remove(key);
            drop(check_typed(&changed));
            for value in &values {
                changed.entries.insert(key.clone(), value.clone());
                drop(check_typed(&changed));
            }
        }
    }
    assert!(count >= 28, "{count}");
}

#[test]
fn every_tensor_is_missed_and_has_one_shape_and_a_type() {
    for name in variants() {
        let Fixture { spec, mut manifest, .. } = Fixture::open(&name);
        let inventory = Inventory::new(&spec, &manifest).unwrap();
        for at in 0..manifest.pieces.len() {
            let id = manifest.pieces[at].id;
            for held in inventory.piece(id) {
                let refused = |manifest: &mut Manifest, change: &dyn Fn(&mut Vec<Tensor>)| {
                    change(&mut manifest.pieces[at].tensors);
                    let error = Inventory::new(&spec, manifest).map(drop);
                    let Err(error) = error else { panic!("{name}: {id} {held:?} was accepted") };
                    one_sentence(&error.to_string())
                };
                let tensor = manifest.pieces[at].tensors[held.index].clone();
                let message = refused(&mut manifest, &|tensors| {
                    tensors.remove(held.index);
                });
                assert!(message.starts_with("the weights lack `"), "{name}: {message}");
                manifest.pieces[at].tensors.insert(held.index, tensor.clone());

                let message = refused(&mut manifest, &|tensors| {
                    tensors[held.index].shape[0] += 1;
                });
                let expected = format!("the tensor `{}` has the shape [", tensor.name);
                assert!(message.starts_with(&expected), "{name}: {message}");
                manifest.pieces[at].tensors[held.index] = tensor.clone();

                let message = refused(&mut manifest, &|tensors| {
                    let tensor = &mut tensors[held.index];
                    (tensor.dtype, tensor.encoding) = (Dtype::I16, None);
                });
                let expected = format!("the tensor `{}` is stored as I16, and ", tensor.name);
                assert!(message.starts_with(&expected), "{name}: {message}");
                manifest.pieces[at].tensors[held.index] = tensor;
            }
        }
    }
}

/// The number of tokens is that of its key or, without one, that of the list of tokens.
#[test]
fn a_vocabulary_of_another_length_is_refused() {
    let mut file = converted(&golden_dir("mixtral")).unwrap();
    file.keys.retain(|(key, _)| key != "llama.vocab_size");
    let list = Key::Texts((0..9).map(|id| format!("t{id}")).collect());
    for (key, value) in [("llama.vocab_size", Key::U32(9)), ("tokenizer.ggml.tokens", list)] {
        let mut file = file.clone();
        file.key(key, value);
        let dir = tempfile::tempdir().unwrap();
        file.write(&dir.path().join("model.gguf"));
        let (manifest, spec) = sws_testing::open(dir.path()).unwrap();
        let message = Inventory::new(&spec, &manifest).unwrap_err().to_string();
        let expected = "the tensor `model.embed_tokens.weight` has the shape [";
        assert!(one_sentence(&message).starts_with(expected), "{key}: {message}");
    }
}
