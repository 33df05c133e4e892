//! Tensors that no pass reads.

use safetensors::Dtype;
use serde_json::json;
use sws_format::{Manifest, open_checkpoint};
use sws_model::{CausalLm, LeftOut, ModelSpec, UnusedPart};
use sws_testing::gguf::{Key, converted};
use sws_testing::goldens::{Tensors, change, golden_dir, runnable_from, variants};

use crate::forward::support::{Fixture, Recorder};

/// The names of the unused tensors that may be those of another model, and then those of the others.
fn unused(manifest: &Manifest, spec: &ModelSpec) -> [Vec<String>; 2] {
    let unused = spec.unused(manifest);
    [true, false].map(|unknown| {
        let those = unused.iter().filter(|it| (it.part == UnusedPart::Unknown) == unknown);
        those.map(|it| it.tensor.name.clone()).collect()
    })
}

/// A copy of a golden with further tensors, of four numbers each.
fn with(golden: &str, names: &[&str]) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    sws_testing::goldens::copy(golden, copy.path());
    let path = copy.path().join("model.safetensors");
    let mut tensors = Tensors::read(&path);
    for name in names {
        tensors.0.insert((*name).to_owned(), (Dtype::F32, vec![4], vec![0; 16]));
    }
    tensors.write(&path);
    copy
}

#[test]
fn every_tensor_that_is_left_out_is_named() {
    #[rustfmt::skip]
    type Named = (UnusedPart, &'static str, usize);
    let cases: &[(&str, &[&str], &[Named])] = &[
        ("qwen3_moe", &[], &[]),
        (
            "qwen3_moe",
            &[
                "model.layers.0.self_attn.sinks",
                "model.layers.1.self_attn.sinks",
                "lm_head.bias",
                "model.norm.bias",
                "model.layers.1.input_layernorm.bias",
                "model.layers.0.mlp.gate.e_score_correction_bias",
                "model.layers.0.mlp.experts.3.up_proj.bias",
                "model.layers.0.mlp.experts.4.up_proj.bias",
            ],
            &[
                (UnusedPart::Unknown, "lm_head.bias", 1),
                (UnusedPart::Unknown, "model.layers.1.input_layernorm.bias", 1),
                (UnusedPart::Unknown, "model.layers.0.mlp.experts.*.up_proj.bias", 2),
                (UnusedPart::Unknown, "model.layers.0.mlp.gate.e_score_correction_bias", 1),
                (UnusedPart::Unknown, "model.layers.*.self_attn.sinks", 2),
                (UnusedPart::Unknown, "model.norm.bias", 1),
            ],
        ),
        (
            "mixtral",
            &[
                "model.layers.0.self_attn.rotary_emb.inv_freq",
                "model.layers.1.self_attn.rotary_emb.inv_freq",
                "model.layers.0.self_attn.k_scale",
                "model.layers.0.self_attn.kv_scale",
                "model.layers.0.self_attn.prob_output_scale",
                "model.layers.0.self_attn.q_proj.input_scale",
            ],
            &[
                (UnusedPart::Needless, "model.layers.0.self_attn.k_scale", 1),
                (UnusedPart::Needless, "model.layers.0.self_attn.kv_scale", 1),
                (UnusedPart::Needless, "model.layers.0.self_attn.prob_output_scale", 1),
                (UnusedPart::Needless, "model.layers.0.self_attn.q_proj.input_scale", 1),
                (UnusedPart::Needless, "model.layers.*.self_attn.rotary_emb.inv_freq", 2),
            ],
        ),
        (
            "llama",
            &[
                "vision_tower.layers.0.norm.weight",
                "vision_tower.layers.1.norm.weight",
                "multi_modal_projector.weight",
                "audio_tower.0.norm.weight",
                "mtp.layers.0.norm.weight",
                "mtp.layers.1.norm.weight",
                "other.weight",
            ],
            &[
                (UnusedPart::Images, "multi_modal_projector.weight", 1),
                (UnusedPart::Images, "vision_tower.layers.*", 2),
                (UnusedPart::Sound, "audio_tower.*", 1),
                (UnusedPart::Prediction, "mtp.layers.*", 2),
                (UnusedPart::Unknown, "other.weight", 1),
            ],
        ),
        (
            "axk1",
            &["model.layers.0.post_mlp_layernorm.weight"],
            &[(UnusedPart::Needless, "model.layers.0.post_mlp_layernorm.weight", 1)],
        ),
        (
            "deepseek_v3",
            &["model.layers.2.post_mlp_layernorm.weight"],
            &[(UnusedPart::Unknown, "model.layers.2.post_mlp_layernorm.weight", 1)],
        ),
        (
            "deepseek_v4",
            &["layers.1.ffn.gate.bias_vl"],
            &[
                (UnusedPart::Images, "layers.1.ffn.gate.bias_vl", 1),
                (UnusedPart::Prediction, "mtp.*", 1),
            ],
        ),
    ];
    for (golden, names, expected) in cases {
        let copy = with(golden, names);
        let (manifest, spec) = sws_testing::open(copy.path()).unwrap();
        let found = spec.left_out(&manifest).into_iter();
        let found: Vec<_> =
            found.map(|LeftOut { part, names, tensors, .. }| (part, names, tensors)).collect();
        let owned =
            expected.iter().map(|(part, names, count)| (*part, (*names).to_owned(), *count));
        assert_eq!(found, owned.collect::<Vec<_>>(), "{golden}");
    }
}

/// Published weights of A.X K1 have no corrections, which are then zero.
#[test]
fn corrections_may_be_absent_from_all_layers() {
    let logits = |change: &dyn Fn(&mut Tensors)| {
        let copy = with("axk1", &[]);
        let path = copy.path().join("model.safetensors");
        let mut tensors = Tensors::read(&path);
        change(&mut tensors);
        tensors.write(&path);
        let mut seen = Recorder::default();
        Fixture::at(copy.path()).session().score(&[3, 1, 4, 1, 5, 92], &mut seen).unwrap();
        seen.logits
    };
    let is_correction = |name: &str| name.ends_with("e_score_correction_bias");
    let zeros = logits(&|tensors| {
        let corrections = tensors.0.iter_mut().filter(|(name, _)| is_correction(name));
        corrections.for_each(|(_, (_, _, bytes))| bytes.fill(0));
    });
    assert_eq!(logits(&|tensors| tensors.0.retain(|name, _| !is_correction(name))), zeros);
    assert_ne!(logits(&|_| ()), zeros);
}

/// They say that the model is another one than that which would be computed.
#[test]
fn tensors_of_codes_and_adapters_are_refused() {
    const Q: &str = "model.layers.0.self_attn.q_proj";
    const EXPERT: &str = "model.layers.1.mlp.experts.2.up_proj";
    let codes = |golden: &'static str, module: &'static str, endings: &'static [&'static str]| {
        endings
            .iter()
            .map(move |ending| (golden, format!("{module}{ending}"), "a part of the codes of"))
    };
    let adapter = |golden: &'static str, name: String| {
        (golden, name, "a part of an adapter; merge the adapter")
    };
    let endings: &[&str] = &[
        ".weight_scale",
        ".weight_scale_inv",
        ".weight_scale_2",
        ".weight_global_scale",
        ".weight_zero_point",
        ".weight_packed",
        ".weight_shape",
        ".qweight",
        ".qzeros",
        ".scales",
        ".scale",
        ".qscale_weight",
    ];
    let cases = ["qwen3_moe", "mixtral", "gpt_oss_mxfp4", "glm4_moe"].into_iter();
    let cases = cases.flat_map(|golden| codes(golden, Q, endings));
    let cases = cases.chain(codes("qwen3_moe", EXPERT, endings));
    let cases = cases.chain(codes("qwen3_moe", "lm_head", &[".weight_scale", ".qweight"]));
    let cases = cases.chain([
        adapter("qwen3_moe", format!("{Q}.lora_A.weight")),
        adapter("qwen3_moe", format!("{Q}.lora_B.default.weight")),
        adapter("mixtral", format!("{Q}.base_layer.weight")),
        adapter("glm4_moe", format!("base_model.model.{Q}.lora_A.weight")),
        adapter("gpt_oss_mxfp4", "model.embed_tokens.lora_embedding_A".to_owned()),
        ("qwen3_moe", format!("{EXPERT}.pre_quant_scale"), "by which the inputs of"),
    ]);
    for (golden, name, expected) in cases {
        let copy = with(golden, &[&name]);
        let message = sws_testing::open(copy.path()).unwrap_err().to_string();
        assert!(
            message.contains("model.safetensors` holds `") && message.contains(&name),
            "{message}"
        );
        assert!(message.contains(expected) && !message.contains('\n'), "{message}");
    }
}

/// Parts of a model that are left out may be as they like.
#[test]
fn codes_and_adapters_of_other_parts_are_left_out() {
    let names = [
        "visual.blocks.0.attn.qkv.weight_scale",
        "visual.blocks.0.attn.qkv.lora_A.weight",
        "mtp.layers.0.mlp.up_proj.qweight",
        "model.layers.0.self_attn.k_scale",
    ];
    let copy = with("qwen3_moe", &names);
    let (manifest, spec) = sws_testing::open(copy.path()).unwrap();
    assert_eq!(spec.unused(&manifest).len(), names.len());
    runnable_weights_are_enough(&manifest, &spec, "qwen3_moe");
}

/// Codes and configuration give the shape, so that of int4 may be missing. It may not be another one.
#[test]
fn shapes_beside_codes_are_two_numbers() {
    const NAME: &str = "model.layers.1.mlp.experts.0.up_proj.weight_shape";
    let copy = tempfile::tempdir().unwrap();
    sws_testing::goldens::copy("deepseek_v3_int4", copy.path());
    let path = copy.path().join("model.safetensors");
    let tensors = Tensors::read(&path);
    let (dtype, shape, bytes) = tensors.0[NAME].clone();
    let with = |change: Option<(Dtype, Vec<usize>, Vec<u8>)>| {
        let mut tensors = tensors.0.clone();
        match change {
            Some(change) => tensors.insert(NAME.to_owned(), change),
            None => tensors.remove(NAME),
        };
        Tensors(tensors).write(&path);
        sws_testing::open(copy.path()).map_err(|error| error.to_string())
    };
    let half = bytes[..bytes.len() / 2].to_vec();
    assert!(with(None).is_ok());
    for change in [(dtype, vec![1], half), (Dtype::U8, vec![bytes.len()], bytes.clone())] {
        let message = with(Some(change)).unwrap_err();
        assert!(
            message.contains("up_proj.weight_packed`, which `") && message.contains(NAME),
            "{message}"
        );
    }
    assert!(with(Some((dtype, shape, bytes))).is_ok());
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
