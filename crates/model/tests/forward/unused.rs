//! Tensors that no pass reads.

use serde_json::json;
use sws_model::ModelSpec;
use sws_store::{Manifest, open_checkpoint};
use sws_testing::gguf::{Key, converted};
use sws_testing::goldens::{Tensors, change, golden_dir, runnable_from, variants};

/// The names of the unused tensors of layers, and then those of the others.
fn unused(manifest: &Manifest, spec: &ModelSpec) -> [Vec<String>; 2] {
    let unused = spec.unused(manifest);
    [true, false].map(|of_layers| {
        let those = unused.iter().filter(|it| it.of_layers == of_layers);
        those.map(|it| it.tensor.name.clone()).collect()
    })
}

#[test]
fn goldens_have_no_weights_that_are_not_used() {
    for name in variants() {
        let (manifest, spec) = sws_testing::open(&golden_dir(&name)).unwrap();
        let [of_layers, _] = unused(&manifest, &spec);
        assert!(of_layers.is_empty(), "{name}: {of_layers:?}");
    }
}

/// A configuration that leaves out a part of the weights, which is not that of the weights, perhaps.
#[test]
fn weights_that_the_configuration_does_not_ask_for() {
    #[rustfmt::skip]
    let cases = [
        ("gpt_oss", "attention_bias", json!(false), 16, "model.layers.0.self_attn.q_proj.bias"),
        ("gpt_oss", "num_hidden_layers", json!(1), 0, "model.layers.1."),
        ("llama", "num_hidden_layers", json!(1), 0, "model.layers.1."),
        ("deepseek_v3", "n_shared_experts", json!(0), 0, "model.layers.1.mlp.shared_experts."),
        ("gemma4_text", "enable_moe_block", json!(false), 0, "model.layers.0."),
    ];
    for (name, key, value, count, first) in cases {
        let copy = tempfile::tempdir().unwrap();
        sws_testing::goldens::copy(name, copy.path());
        change(copy.path(), "config.json", |config| {
            // Lists with an entry for each layer would not fit.
            if key == "num_hidden_layers" {
                config.as_object_mut().unwrap().remove("layer_types");
            }
            config[key] = value;
        });
        let runnable = runnable_from(copy.path());
        let (manifest, spec) = sws_testing::open(&runnable.dir).unwrap();
        let [of_layers, _] = unused(&manifest, &spec);
        assert!(count == 0 || of_layers.len() == count, "{name} {key}: {of_layers:?}");
        let found = of_layers.first().is_some_and(|name| name.starts_with(first));
        assert!(found, "{name} {key}: {of_layers:?}");
        runnable_weights_are_enough(&manifest, &spec, name);
    }
}

/// What is left is a model that runs.
fn runnable_weights_are_enough(manifest: &Manifest, spec: &ModelSpec, name: &str) {
    let inventory = sws_model::Inventory::new(spec, manifest);
    assert!(inventory.is_ok(), "{name}: {:?}", inventory.err());
}

#[test]
fn layers_of_multi_token_prediction_belong_to_no_other_model() {
    let copy = tempfile::tempdir().unwrap();
    sws_testing::goldens::copy("glm4_moe", copy.path());
    let path = copy.path().join("model.safetensors");
    let mut tensors = Tensors::read(&path);
    let one = tensors.0["model.layers.0.input_layernorm.weight"].clone();
    let layers = sws_testing::spec(copy.path()).layers.len();
    let mut add = |rest: &str| {
        let name = format!("model.layers.{layers}.{rest}");
        tensors.0.insert(name.clone(), one.clone());
        name
    };
    let mut added = vec![add("eh_proj.weight"), add("input_layernorm.weight")];
    tensors.0.insert("visual.norm.weight".to_owned(), one);
    added.push("visual.norm.weight".to_owned());
    tensors.write(&path);
    let (manifest, spec) = sws_testing::open(copy.path()).unwrap();
    assert_eq!(unused(&manifest, &spec), [vec![], added.clone()]);

    tensors.0.remove(&added[0]);
    tensors.write(&path);
    let (manifest, spec) = sws_testing::open(copy.path()).unwrap();
    assert_eq!(unused(&manifest, &spec), [vec![added[1].clone()], vec![added[2].clone()]]);
}

#[test]
fn biases_beside_packed_codes_are_zeros() {
    let copy = tempfile::tempdir().unwrap();
    sws_testing::goldens::copy("qwen3_gptq", copy.path());
    let path = copy.path().join("model.safetensors");
    let mut tensors = Tensors::read(&path);
    let name = "model.layers.0.self_attn.q_proj.bias".to_owned();
    tensors.0.insert(name.clone(), (safetensors::Dtype::F16, vec![4], vec![0; 8]));
    tensors.write(&path);
    let (manifest, spec) = sws_testing::open(copy.path()).unwrap();
    assert_eq!(unused(&manifest, &spec), [vec![], vec![name]]);
}

#[test]
fn layers_of_a_gguf_file_beyond_their_count() {
    let mut file = converted(&golden_dir("mixtral")).unwrap();
    file.keys.retain(|(name, _)| name != "llama.block_count");
    file.key("llama.block_count", Key::U32(1));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    file.write(&path);
    let checkpoint = open_checkpoint(&path, None).unwrap();
    let spec = ModelSpec::of(checkpoint.config()).unwrap();
    let naming = sws_model::naming(checkpoint.config()).unwrap();
    let manifest = Manifest::in_place(&*checkpoint, &*naming).unwrap();
    let [of_layers, others] = unused(&manifest, &spec);
    let beyond = |name: &String| !name.starts_with("blk.0.") && name.starts_with("blk.");
    assert!(of_layers.len() > 10 && of_layers.iter().all(beyond), "{of_layers:?}");
    assert!(others.is_empty(), "{others:?}");
}
