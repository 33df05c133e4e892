//! Goldens as GGUF files give the bits of their safetensors files, in place and as shards.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use sws_format::{Manifest, open_checkpoint};
use sws_kernels::{EncodedRows, Encoder, Encoding, GgufBlocks, Matrix, SourceDtype};
use sws_model::{CausalLm, ForwardPass, KvPrecision, ModelSpec, ResidentSource, Session};
use sws_shard::{ShardOptions, shard, unshard};
use sws_testing::gguf::{GgufFile, GgufTensor, Key, converted, convertible};
use sws_testing::goldens::{self, golden_dir, runnable_from};
use sws_testing::resident;

use crate::forward::gguf_near::is_near;
use crate::forward::support::{Fixture, Recorder};

const Q8_0: Encoding = Encoding::Gguf(GgufBlocks::Q8_0);

pub(crate) fn logits(spec: &ModelSpec, source: ResidentSource) -> Vec<u32> {
    let model = ForwardPass::new(spec.clone());
    let mut seen = Recorder::default();
    let mut session = Session::new(model, source, usize::MAX, KvPrecision::F32);
    session.score(&[3, 1, 4, 1, 5, 9, 2, 6], &mut seen).unwrap();
    seen.logits.iter().map(|logit| logit.to_bits()).collect()
}

/// The logits of a file in place.
pub(crate) fn in_place(path: &Path) -> Vec<u32> {
    let (manifest, spec) = sws_testing::open(path).unwrap();
    logits(&spec, resident(path.parent().unwrap(), &manifest, &spec).unwrap())
}

/// Each architecture once at least, with experts taken apart, heads permuted and norms one greater.
#[test]
fn gguf_files_give_the_bits_of_safetensors() {
    let (mut architectures, mut with_tables) = (BTreeSet::new(), 0);
    for (name, copy, file) in convertible() {
        let is_table = |tensor: &GgufTensor| tensor.name == "per_layer_token_embd.weight";
        with_tables += usize::from(file.tensors.iter().any(is_table));
        let (_, architecture) = &file.keys[0];
        architectures.insert(format!("{architecture:?}"));
        if is_near(&file) {
            continue;
        }
        let runnable = runnable_from(copy.path());
        let fixture = Fixture::at(&runnable.dir);
        let expected = logits(&fixture.spec, fixture.source());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        file.write(&path);
        assert!(in_place(&path) == expected, "{name} in place");

        let shards = tempfile::tempdir().unwrap();
        let out = shards.path().join("shards");
        let checkpoint = open_checkpoint(dir.path(), None).unwrap();
        let naming = sws_model::naming(checkpoint.config()).unwrap();
        shard(&*checkpoint, &*naming, &out, &ShardOptions::default(), &|_| ()).unwrap();
        let sharded = Fixture::at(&out);
        assert!(logits(&sharded.spec, sharded.source()) == expected, "{name} in shards");
        let manifest = Manifest::load(&out).unwrap();
        let copies: Vec<&str> = manifest.copies.iter().map(|copy| copy.path.as_str()).collect();
        assert_eq!(copies, ["config.json", "header.gguf"]);
        let back = unshard(&out, &shards.path().join("back"), true, None, &|_| ()).unwrap_err();
        assert!(back.to_string().contains("GGUF files are not written"), "{back}");
    }
    assert_eq!(architectures.len(), 24, "{architectures:?}");
    assert_eq!(with_tables, 2);
}

/// Gemma's divisor of scores, which the largest models have of their own, and windows of layers,
/// for which the goldens have too few.
#[test]
fn options_of_gemma_that_files_have_no_keys_for() {
    let is_gemma = |name: &str| name == "gemma2" || name == "gemma3_text";
    let gemmas = convertible().into_iter().filter(|(name, ..)| is_gemma(name));
    for ((name, copy, _), largest) in gemmas.zip([46, 62]) {
        let set = |entry: &str, value: usize| {
            goldens::change(copy.path(), "config.json", |config| config[entry] = value.into())
        };
        for layers in [13, largest] {
            let config = set("num_hidden_layers", layers);
            let file = converted(copy.path()).unwrap();
            if layers == largest {
                let [hidden, heads] = ["hidden_size", "num_attention_heads"]
                    .map(|entry| config[entry].as_u64().unwrap() as usize);
                set("query_pre_attn_scalar", hidden / heads);
            }
            let expected = sws_testing::spec(copy.path());
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("model.gguf");
            file.write(&path);
            let spec = ModelSpec::of(open_checkpoint(&path, None).unwrap().config()).unwrap();
            assert_eq!(spec.ropes, expected.ropes, "{name}");
            for (found, expected) in spec.layers.iter().zip(&expected.layers) {
                assert_eq!(found.mixer, expected.mixer, "{name} of {layers} layers");
            }
        }
    }
}

/// Parts, with the tensors of a layer in different files.
#[test]
fn split_files_give_the_same_bits() {
    let file = converted(&golden_dir("mixtral")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    file.write(&dir.path().join("whole.gguf"));
    let parts = dir.path().join("parts");
    std::fs::create_dir(&parts).unwrap();
    let total = file.tensors.len();
    let chunks: Vec<_> = file.tensors.chunks(total.div_ceil(3)).collect();
    for (no, tensors) in chunks.iter().enumerate() {
        let keys = if no == 0 { file.keys.clone() } else { Vec::new() };
        let mut part = GgufFile { keys, tensors: tensors.to_vec(), ..GgufFile::default() };
        part.key("split.no", Key::Raw(2, (no as u16).to_le_bytes().to_vec()));
        part.key("split.count", Key::Raw(2, (chunks.len() as u16).to_le_bytes().to_vec()));
        part.key("split.tensors.count", Key::Raw(5, (total as i32).to_le_bytes().to_vec()));
        part.write(&parts.join(format!("m-{:05}-of-{:05}.gguf", no + 1, chunks.len())));
    }
    let expected = in_place(&dir.path().join("whole.gguf"));
    assert!(in_place(&parts.join("m-00002-of-00003.gguf")) == expected);
}

/// The scaling of Llama 3 is a tensor of divisors. The converter rounds them, so some angles differ
/// in their last bit from those of the formula.
#[test]
fn divided_angles_are_those_of_the_scaling() {
    let name = "llama";
    let golden = golden_spec(name);
    let half = golden.ropes[0].inv_freq.len();
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(golden_dir(name).join("config.json")).unwrap())
            .unwrap();
    config["rope_scaling"] = Value::Null;
    let plain = ModelSpec::parse(config.to_string().as_bytes()).unwrap();
    let angles = plain.ropes[0].inv_freq.iter().zip(&golden.ropes[0].inv_freq);
    let divisors = angles.flat_map(|(plain, scaled)| (plain / scaled).to_le_bytes()).collect();

    let copy = tempfile::tempdir().unwrap();
    for entry in golden_dir(name).read_dir().unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    std::fs::write(copy.path().join("config.json"), config.to_string()).unwrap();
    let mut file = converted(copy.path()).unwrap();
    file.tensor("rope_freqs.weight", 0, &[half as u64], divisors);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    file.write(&path);
    let (_, spec) = sws_testing::open(&path).unwrap();
    for (found, expected) in spec.ropes[0].inv_freq.iter().zip(&golden.ropes[0].inv_freq) {
        assert!((found / expected - 1.0).abs() <= f32::EPSILON, "{found} {expected}");
    }
    let expected = logits(&golden, Fixture::open(name).source());
    for (found, expected) in in_place(&path).into_iter().zip(expected) {
        let (found, expected) = (f32::from_bits(found), f32::from_bits(expected));
        assert!((found - expected).abs() < 1e-4, "{found} {expected}");
    }
}

/// One 2-D tensor for each expert, as in files of Mixtral from before the stacks.
#[test]
fn experts_in_tensors_of_their_own() {
    let mut file = converted(&golden_dir("mixtral")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    file.write(&dir.path().join("stacked.gguf"));
    let (stacked, mut rest): (Vec<_>, Vec<_>) =
        file.tensors.drain(..).partition(|tensor| tensor.name.contains("_exps."));
    for tensor in stacked {
        let len = tensor.bytes.len() / tensor.shape[0] as usize;
        for (expert, bytes) in tensor.bytes.chunks(len).enumerate() {
            let name = tensor.name.replace("_exps.", &format!(".{expert}."));
            let shape = tensor.shape[1..].to_vec();
            let bytes = bytes.to_vec();
            rest.push(sws_testing::gguf::GgufTensor { name, shape, bytes, ..tensor.clone() });
        }
    }
    file.tensors = rest;
    file.write(&dir.path().join("old.gguf"));
    assert!(in_place(&dir.path().join("old.gguf")) == in_place(&dir.path().join("stacked.gguf")));
}

/// Quantised matrices are stored as they are, and give the bits of the numbers that they stand for.
#[test]
fn quantised_matrices_give_the_bits_of_their_numbers() {
    let (mut quantised, mut plain) = {
        let file = converted(&golden_dir("mixtral_sharded")).unwrap();
        (file.clone(), file)
    };
    let mut count = 0;
    for (codes, numbers) in quantised.tensors.iter_mut().zip(&mut plain.tensors) {
        let cols = *codes.shape.last().unwrap() as usize;
        if codes.kind != 30 || !cols.is_multiple_of(32) {
            continue;
        }
        count += 1;
        let encoder = Encoder::new(Q8_0, SourceDtype::Bf16, cols).unwrap();
        let mut rows = EncodedRows::default();
        encoder.encode(&codes.bytes, &mut rows).unwrap();
        let row_count = codes.bytes.len() / (2 * cols);
        let matrix = Matrix::new(Q8_0, row_count, cols, &[&rows.parts[0]]).unwrap();
        let mut row = vec![0.0; cols];
        numbers.bytes.clear();
        for r in 0..row_count {
            matrix.decode_row(r, &mut row);
            numbers.bytes.extend(row.iter().flat_map(|number| number.to_le_bytes()));
        }
        (codes.kind, codes.bytes, numbers.kind) = (8, rows.parts[0].clone(), 0);
    }
    assert!(count > 20, "{count}");
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    plain.write(&path("plain.gguf"));
    quantised.write(&path("quantised.gguf"));
    let expected = in_place(&path("plain.gguf"));
    assert!(in_place(&path("quantised.gguf")) == expected);

    let shards = tempfile::tempdir().unwrap();
    let out = shards.path().join("shards");
    let checkpoint = open_checkpoint(path("quantised.gguf"), None).unwrap();
    let naming = sws_model::naming(checkpoint.config()).unwrap();
    shard(&*checkpoint, &*naming, &out, &ShardOptions::default(), &|_| ()).unwrap();
    let sharded = Fixture::at(&out);
    let tensors = sharded.manifest.pieces.iter().flat_map(|piece| &piece.tensors);
    assert!(tensors.filter(|tensor| tensor.encoding == Some(Q8_0)).count() > count);
    assert!(logits(&sharded.spec, sharded.source()) == expected);
}

/// A stack of experts, and a tensor of one of them besides.
#[test]
fn an_expert_that_is_there_twice_is_refused() {
    let mut file = converted(&golden_dir("mixtral")).unwrap();
    file.tensor("blk.0.ffn_up.2.weight", 0, &[22, 40], vec![0; 22 * 40 * 4]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    file.write(&path);
    let error = sws_testing::open(&path).unwrap_err().to_string();
    let name = "model.layers.0.block_sparse_moe.experts.2.w3.weight";
    assert!(
        error.ends_with(&format!("holds two tensors that are `{name}`; download it again")),
        "{error}"
    );
}

#[test]
fn what_the_families_do_not_have_is_refused() {
    type Change<'a> = &'a dyn Fn(&mut GgufFile);
    let tensor = |file: &mut GgufFile, name: &str| file.tensor(name, 0, &[4], vec![0; 16]);
    let without = |file: &mut GgufFile, key: &str| file.keys.retain(|(name, _)| name != key);
    let set = |file: &mut GgufFile, key: &str, value: Key| {
        file.keys.retain(|(name, _)| name != key);
        file.key(key, value);
    };
    #[rustfmt::skip]
    let cases: &[(&str, Change<'_>, &str)] = &[
        ("mixtral", &|f| set(f, "general.architecture", "mamba".into()), "is of the architecture `mamba`, which is not supported; the nearest that is, `llama`, has the same tensors, but other keys; docs/supported.md names all"),
        ("mixtral", &|f| { tensor(f, "blk.0.new.weight"); set(f, "general.architecture", "mixtral2".into()) }, "the nearest that is, `llama`, lacks `blk.#.new.weight`; docs"),
        ("mixtral", &|f| set(f, "general.architecture", "clip".into()), "holds only the part of a model for images and sound; take the file of its language model"),
        ("mixtral", &|f| set(f, "llama.block_count", Key::U32(65_536)), "is damaged (`llama.block_count` is 65536); download it again"),
        ("mixtral", &|f| without(f, "llama.block_count"), "has no `llama.block_count`; download it again"),
        ("mixtral", &|f| f.key("llama.new_option", Key::U32(1)), "`llama.new_option` = 1, which is not supported in GGUF files"),
        ("mixtral", &|f| f.key("llama.attention.clamp_kqv", Key::F32(1.0)), "`llama.attention.clamp_kqv` = 1.0"),
        ("mixtral", &|f| f.key("llama.expert_gating_func", Key::U32(2)), "`llama.expert_gating_func` = 2"),
        ("mixtral", &|f| set(f, "llama.rope.dimension_count", Key::U32(4)), "`llama.rope.dimension_count` = 4"),
        ("mixtral", &|f| set(f, "llama.feed_forward_length", Key::Ints(vec![22, 23, 22])), "`llama.feed_forward_length` with different values"),
        ("mixtral", &|f| f.key("llama.rope.scaling.type", "longrope".into()), "the scaling `longrope`"),
        ("mixtral", &|f| tensor(f, "rope_freqs.weight"), "gives [0.0,0.0,0.0,0.0] for `gguf.rope_divisors`, which must have a number above 0 for each pair"),
        ("mixtral", &|f| f.tensor("rope_freqs.weight", 30, &[5], vec![0; 10]), "the tensor `rope_freqs.weight`"),
        ("mixtral", &|f| tensor(f, "rope_factors_long.weight"), "the tensor `rope_factors_long.weight`"),
        ("mixtral", &|f| tensor(f, "blk.0.attn_q_norm.weight"), "the tensor `blk.#.attn_q_norm.weight`"),
        ("mixtral", &|f| tensor(f, "blk.0.ffn_gate_up_exps.weight"), "the tensor `blk.#.ffn_gate_up_exps.weight`"),
        ("mixtral", &|f| tensor(f, "blk.0.attn_q.bias"), "biases that models of this type do not have"),
        ("qwen2", &|f| tensor(f, "blk.0.attn_output.bias"), "biases that models of this type do not have"),
        ("qwen2", &|f| f.key("qwen2.expert_count", Key::U32(4)), "experts in a model of type `qwen2`"),
        ("qwen3_5", &|f| set(f, "qwen35.ssm.inner_size", Key::U32(43)), "`qwen35.ssm.inner_size` is 43"),
        ("qwen3_5", &|f| set(f, "qwen35.attention.recurrent_layers", Key::Ints(vec![1])), "`qwen35.attention.recurrent_layers` is [1]"),
        ("qwen3_next", &|f| without(f, "qwen3next.ssm.state_size"), "has no `qwen3next.ssm.state_size`; download it again"),
        ("gemma4_text", &|f| set(f, "gemma4.attention.value_length", Key::U32(8)), "`gemma4.attention.value_length` = 8"),
        ("gemma4_text", &|f| set(f, "gemma4.attention.head_count_kv", Key::Ints(vec![2, 1, 1, 1])), "`gemma4.attention.head_count_kv` with different values"),
        ("gemma4_text", &|f| set(f, "gemma4.attention.shared_kv_layers", Key::U32(4)), "4 for `num_kv_shared_layers`, which leaves no layer of a kind"),
        ("gemma4_text", &|f| set(f, "gemma4.feed_forward_length", Key::Ints(vec![30, 31, 30, 30])), "`gemma4.feed_forward_length` with different values"),
        ("gemma4_inputs", &|f| set(f, "gemma4.feed_forward_length", Key::Ints(vec![34, 34, 34, 34, 68, 34])), "`gemma4.feed_forward_length` with different values"),
        ("mixtral", &|f| tensor(f, "per_layer_token_embd.weight"), "the tensor `per_layer_token_embd.weight`"),
        ("mixtral", &|f| tensor(f, "blk.0.inp_gate.weight"), "the tensor `blk.#.inp_gate.weight`"),
        ("gemma4_text", &|f| without(f, "gemma4.attention.sliding_window_pattern"), "has no `gemma4.attention.sliding_window_pattern`"),
        ("gemma4_text", &|f| f.tensors[0].bytes[..4].copy_from_slice(&2f32.to_le_bytes()), "`rope_freqs.weight` is [2.0"),
    ];
    for (name, change, expected) in cases {
        let mut file = converted(&golden_dir(name)).unwrap();
        change(&mut file);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        file.write(&path);
        let checkpoint = open_checkpoint(&path, None).unwrap();
        let error = ModelSpec::of(checkpoint.config()).unwrap_err().to_string();
        assert!(error.starts_with("model.gguf ") && error.contains(expected), "{error}");
    }
}

/// Entries that the file leaves out are those that llama.cpp takes for granted.
#[test]
fn absent_keys_have_the_defaults_of_the_format() {
    let mut file = converted(&golden_dir("mixtral")).unwrap();
    let optional = ["key_length", "value_length", "dimension_count", "vocab_size", "weights_norm"];
    file.keys.retain(|(name, _)| !optional.iter().any(|key| name.ends_with(key)));
    let vocab = golden_spec("mixtral").vocab;
    let tokens = (0..vocab).map(|id| format!("t{id}")).collect();
    file.key("tokenizer.ggml.tokens", Key::Texts(tokens));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    file.write(&path);
    let spec = ModelSpec::of(open_checkpoint(&path, None).unwrap().config()).unwrap();
    let mut expected = golden_spec("mixtral");
    for layer in &mut expected.layers {
        let sws_model::Mixer::Attention(attention) = &mut layer.mixer else { continue };
        attention.extras.paired_rows = true;
    }
    assert_eq!(spec, expected);
}

fn golden_spec(name: &str) -> ModelSpec {
    sws_testing::spec(&golden_dir(name))
}
