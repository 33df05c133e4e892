//! Small checkpoints of every family, with weights that look trained.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::Dtype;

/// A checkpoint in memory, not yet written.
pub(crate) struct Checkpoint {
    pub(crate) config: serde_json::Value,
    /// Tensors by name.
    pub(crate) tensors: BTreeMap<String, Tensor>,
}

#[derive(Clone, PartialEq)]
pub(crate) struct Tensor {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<u64>,
    pub(crate) bytes: Vec<u8>,
}

/// Families under test in sharding.
pub(crate) const FAMILIES: [&str; 7] =
    ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "llama", "gpt_oss", "stacked"];

const LAYERS: u64 = 2;
const EXPERTS: u64 = 3;
/// Not a multiple of 64 or 128, and odd, so that every encoding has an incomplete last group.
const HIDDEN: u64 = 201;
const INNER: u64 = 136;
const VOCABULARY: u64 = 300;

/// A tiny checkpoint. The family `stacked` is not a published one: it keeps a layer's experts in
/// one tensor each.
pub(crate) fn tiny(family: &str, dtype: Dtype, seed: u64) -> Checkpoint {
    let mut shapes: Vec<(String, Vec<u64>)> = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCABULARY, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
        ("model.layers.9.eh_proj.weight".to_owned(), vec![HIDDEN, 2 * HIDDEN]),
    ];
    if family != "llama" {
        shapes.push(("lm_head.weight".to_owned(), vec![VOCABULARY, HIDDEN]));
    }
    for layer in 0..LAYERS {
        let mut add = |name: &str, shape: &[u64]| {
            shapes.push((format!("model.layers.{layer}.{name}"), shape.to_vec()));
        };
        add("input_layernorm.weight", &[HIDDEN]);
        add("post_attention_layernorm.weight", &[HIDDEN]);
        for name in ["q_proj", "k_proj", "v_proj", "o_proj"] {
            add(&format!("self_attn.{name}.weight"), &[HIDDEN, HIDDEN]);
        }
        if family == "qwen2_moe" {
            add("self_attn.q_proj.bias", &[HIDDEN]);
            add("mlp.shared_expert_gate.weight", &[1, HIDDEN]);
        }
        let mut mlp = |stem: &str, [gate, up, down]: [&str; 3]| {
            add(&format!("{stem}{gate}.weight"), &[INNER, HIDDEN]);
            add(&format!("{stem}{up}.weight"), &[INNER, HIDDEN]);
            add(&format!("{stem}{down}.weight"), &[HIDDEN, INNER]);
        };
        let usual = ["gate_proj", "up_proj", "down_proj"];
        match family {
            "llama" => mlp("mlp.", usual),
            "mixtral" => {
                for expert in 0..EXPERTS {
                    mlp(&format!("block_sparse_moe.experts.{expert}."), ["w1", "w3", "w2"]);
                }
                add("block_sparse_moe.gate.weight", &[EXPERTS, HIDDEN]);
            }
            "gpt_oss" => {
                add("mlp.experts.gate_up_proj", &[EXPERTS, HIDDEN, 2 * INNER]);
                add("mlp.experts.gate_up_proj_bias", &[EXPERTS, 2 * INNER]);
                add("mlp.experts.down_proj", &[EXPERTS, INNER, HIDDEN]);
                add("mlp.experts.down_proj_bias", &[EXPERTS, HIDDEN]);
                add("mlp.router.weight", &[EXPERTS, HIDDEN]);
                add("mlp.router.bias", &[EXPERTS]);
                add("self_attn.sinks", &[8]);
            }
            "stacked" => {
                add("mlp.experts.gate_up_proj", &[EXPERTS, 2 * INNER, HIDDEN]);
                add("mlp.experts.down_proj", &[EXPERTS, HIDDEN, INNER]);
                add("mlp.gate.weight", &[EXPERTS, HIDDEN]);
            }
            _ => {
                for expert in 0..EXPERTS {
                    mlp(&format!("mlp.experts.{expert}."), usual);
                }
                if family == "qwen2_moe" {
                    mlp("mlp.shared_expert.", usual);
                }
                add("mlp.gate.weight", &[EXPERTS, HIDDEN]);
            }
        }
    }
    let mut random = Random(seed);
    let tensors = shapes.into_iter().map(|(name, shape)| {
        let count = shape.iter().product::<u64>() as usize;
        let mut bytes = numbers(dtype, count, &mut random);
        if name.contains("layers.1.self_attn.q_proj.weight") && dtype == Dtype::BF16 {
            // Too many exponents for bf12.
            random.fill(&mut bytes[..count / 8 * 2]);
            bytes.as_chunks_mut::<2>().0.iter_mut().for_each(|number| number[1] &= 0xbf);
        }
        (name, Tensor { dtype, shape, bytes })
    });
    let config = serde_json::json!({
        "model_type": if family == "stacked" { "qwen3_moe" } else { family },
        "num_hidden_layers": LAYERS,
        "num_local_experts": EXPERTS,
        "hidden_size": HIDDEN,
        "tie_word_embeddings": family == "llama",
    });
    Checkpoint { config, tensors: tensors.collect() }
}

/// Random finite numbers with exponentially distributed exponents, as training leaves them.
fn numbers(dtype: Dtype, count: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count * dtype.bitsize() / 8);
    for _ in 0..count {
        let bits = random.next();
        let exponent = 120 - (bits.leading_zeros().min(20) as u64);
        let sign_mantissa = random.next();
        let f32_bits = (sign_mantissa as u32 & 0x807f_ffff) | ((exponent as u32) << 23);
        match dtype {
            Dtype::BF16 => bytes.extend(((f32_bits >> 16) as u16).to_le_bytes()),
            Dtype::F32 => bytes.extend(f32_bits.to_le_bytes()),
            // Exponents 1 to 20 of 31.
            Dtype::F16 => {
                let narrow = (sign_mantissa as u16 & 0x83ff) | ((exponent as u16 - 100) << 10);
                bytes.extend(narrow.to_le_bytes());
            }
            _ => bytes.push(bits as u8),
        }
    }
    bytes
}

impl Checkpoint {
    /// Writes the checkpoint as one file, or as several with an index.
    pub(crate) fn write(&self, dir: &Path, files: usize) {
        std::fs::create_dir_all(dir).unwrap();
        std::fs::write(dir.join("config.json"), self.config.to_string()).unwrap();
        std::fs::write(dir.join("tokenizer.json"), r#"{"version":"1.0"}"#).unwrap();
        let mut index = BTreeMap::new();
        for file in 0..files {
            let name = match files {
                1 => "model.safetensors".to_owned(),
                _ => format!("model-{:05}-of-{files:05}.safetensors", file + 1),
            };
            let mine = self.tensors.iter().skip(file).step_by(files);
            index.extend(mine.clone().map(|(tensor, _)| (tensor.clone(), name.clone())));
            std::fs::write(dir.join(&name), file_bytes(mine)).unwrap();
        }
        if files > 1 {
            let index = serde_json::json!({ "metadata": {}, "weight_map": index });
            std::fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
        }
    }

    /// Reads the weights of a directory back with Hugging Face's own library.
    pub(crate) fn read_tensors(dir: &Path) -> BTreeMap<String, Tensor> {
        let mut tensors = BTreeMap::new();
        for entry in dir.read_dir().unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|e| e != "safetensors") {
                continue;
            }
            let bytes = std::fs::read(&path).unwrap();
            for (name, view) in safetensors::SafeTensors::deserialize(&bytes).unwrap().tensors() {
                let shape = view.shape().iter().map(|&dim| dim as u64).collect();
                let bytes = view.data().to_vec();
                tensors.insert(name, Tensor { dtype: view.dtype(), shape, bytes });
            }
        }
        tensors
    }
}

pub(crate) fn file_bytes<'a>(
    tensors: impl Iterator<Item = (&'a String, &'a Tensor)> + Clone,
) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut at = 0;
    for (name, tensor) in tensors.clone() {
        let end = at + tensor.bytes.len();
        let entry = serde_json::json!({
            "dtype": tensor.dtype.to_string(),
            "shape": tensor.shape,
            "data_offsets": [at, end],
        });
        header.insert(name.clone(), entry);
        at = end;
    }
    let json = serde_json::Value::Object(header).to_string();
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend(json.as_bytes());
    tensors.for_each(|(_, tensor)| bytes.extend(&tensor.bytes));
    bytes
}

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}
