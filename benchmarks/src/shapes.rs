//! Shapes of models: configs and tensors as published on the hub.

use safetensors::Dtype;
use serde_json::{Value, json};

use crate::checkpoint::PlannedTensor;

/// Parameters that distinguish a model within its family.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Name on the command line.
    pub name: &'static str,
    /// `model_type` of the config.
    pub family: &'static str,
    /// Width of the hidden state.
    pub hidden: usize,
    /// Layers of the published model; the command line may ask for fewer.
    pub layers: usize,
    /// Query heads, key/value heads, and the width of one.
    pub heads: (usize, usize, usize),
    /// Inner width of a dense block.
    pub dense: usize,
    /// Experts per layer, experts per token, and the inner width of one; `None` for dense models.
    pub experts: Option<(usize, usize, usize)>,
    /// Inner width of the shared expert, 0 without one.
    pub shared: usize,
    /// Entries of the vocabulary.
    pub vocab: usize,
    /// True if the head shares the embedding's weights.
    pub tied: bool,
}

/// All named shapes.
pub const SHAPES: &[Shape] = &[
    Shape {
        name: "mixtral-8x7b",
        family: "mixtral",
        hidden: 4096,
        layers: 32,
        heads: (32, 8, 128),
        dense: 0,
        experts: Some((8, 2, 14336)),
        shared: 0,
        vocab: 32000,
        tied: false,
    },
    Shape {
        name: "qwen3-30b-a3b",
        family: "qwen3_moe",
        hidden: 2048,
        layers: 48,
        heads: (32, 4, 128),
        dense: 6144,
        experts: Some((128, 8, 768)),
        shared: 0,
        vocab: 151936,
        tied: false,
    },
    Shape {
        name: "qwen1.5-moe-a2.7b",
        family: "qwen2_moe",
        hidden: 2048,
        layers: 24,
        heads: (16, 16, 128),
        dense: 5632,
        experts: Some((60, 4, 1408)),
        shared: 5632,
        vocab: 151936,
        tied: false,
    },
    Shape {
        name: "olmoe-1b-7b",
        family: "olmoe",
        hidden: 2048,
        layers: 16,
        heads: (16, 16, 128),
        dense: 0,
        experts: Some((64, 8, 1024)),
        shared: 0,
        vocab: 50304,
        tied: false,
    },
    Shape {
        name: "tinyllama-1.1b",
        family: "llama",
        hidden: 2048,
        layers: 22,
        heads: (32, 4, 64),
        dense: 5632,
        experts: None,
        shared: 0,
        vocab: 32000,
        tied: false,
    },
    // Worst case for a sharder's memory: an embedding of 2 GB, which is the head too, and experts
    // of 350 MB.
    Shape {
        name: "big-tensor",
        family: "mixtral",
        hidden: 4096,
        layers: 1,
        heads: (32, 8, 128),
        dense: 0,
        experts: Some((2, 1, 14336)),
        shared: 0,
        vocab: 250_000,
        tied: true,
    },
    tiny("tiny-mixtral", "mixtral", Some((8, 2, 96)), 0),
    tiny("tiny-qwen2-moe", "qwen2_moe", Some((8, 2, 48)), 96),
    tiny("tiny-qwen3-moe", "qwen3_moe", Some((16, 4, 48)), 0),
    tiny("tiny-olmoe", "olmoe", Some((8, 2, 48)), 0),
    tiny("tiny-llama", "llama", None, 0),
    tiny("tiny-qwen3", "qwen3", None, 0),
];

/// A model of a few hundred kilobytes; no width but the head's is a power of two.
const fn tiny(
    name: &'static str,
    family: &'static str,
    experts: Option<(usize, usize, usize)>,
    shared: usize,
) -> Shape {
    Shape {
        name,
        family,
        hidden: 72,
        layers: 3,
        heads: (4, 2, 18),
        dense: 144,
        experts,
        shared,
        vocab: 320,
        tied: false,
    }
}

impl Shape {
    /// Returns the shape of this name, or an error that lists the names.
    pub fn named(name: &str) -> Result<Self, String> {
        SHAPES.iter().find(|shape| shape.name == name).cloned().ok_or_else(|| {
            let names: Vec<_> = SHAPES.iter().map(|shape| shape.name).collect();
            format!("`{name}` is no shape; choose one of {}", names.join(", "))
        })
    }

    /// Content of `config.json`.
    pub fn config(&self) -> Value {
        let (heads, kv_heads, head_dim) = self.heads;
        let (experts, top_k, inner) = self.experts.unwrap_or_default();
        let (architecture, own) = match self.family {
            "mixtral" => (
                "MixtralForCausalLM",
                json!({
                    "intermediate_size": inner, "num_local_experts": experts,
                    "rms_norm_eps": 1e-5, "rope_theta": 1e6, "max_position_embeddings": 32768,
                    "output_router_logits": false, "router_aux_loss_coef": 0.02,
                    "sliding_window": null, "bos_token_id": 1, "eos_token_id": 2,
                }),
            ),
            "olmoe" => (
                "OlmoeForCausalLM",
                json!({
                    "intermediate_size": inner, "num_experts": experts, "norm_topk_prob": false,
                    "rms_norm_eps": 1e-5, "rope_theta": 1e4, "max_position_embeddings": 4096,
                    "attention_bias": false, "clip_qkv": null, "rope_scaling": null,
                    "output_router_logits": false, "router_aux_loss_coef": 0.01,
                    "pad_token_id": 1, "eos_token_id": self.token(50279),
                }),
            ),
            "qwen2_moe" => (
                "Qwen2MoeForCausalLM",
                json!({
                    "intermediate_size": self.dense, "moe_intermediate_size": inner,
                    "shared_expert_intermediate_size": self.shared, "num_experts": experts,
                    "norm_topk_prob": false, "decoder_sparse_step": 1,
                    "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 8192,
                    "max_window_layers": 21, "sliding_window": 32768, "use_sliding_window": false,
                    "output_router_logits": false, "router_aux_loss_coef": 0.001,
                    "bos_token_id": self.token(151643), "eos_token_id": self.token(151643),
                }),
            ),
            "qwen3_moe" => (
                "Qwen3MoeForCausalLM",
                json!({
                    "intermediate_size": self.dense, "moe_intermediate_size": inner,
                    "num_experts": experts, "norm_topk_prob": true, "decoder_sparse_step": 1,
                    "mlp_only_layers": [], "head_dim": head_dim, "attention_bias": false,
                    "rms_norm_eps": 1e-6, "rope_theta": 1e6, "rope_scaling": null,
                    "max_position_embeddings": 40960, "max_window_layers": self.layers,
                    "sliding_window": null, "use_sliding_window": false,
                    "output_router_logits": false, "router_aux_loss_coef": 0.001,
                    "bos_token_id": self.token(151643), "eos_token_id": self.token(151645),
                }),
            ),
            "qwen3" => (
                "Qwen3ForCausalLM",
                json!({
                    "intermediate_size": self.dense, "head_dim": head_dim,
                    "attention_bias": false, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
                    "rope_scaling": null, "max_position_embeddings": 40960,
                    "max_window_layers": self.layers, "sliding_window": null,
                    "use_sliding_window": false,
                    "bos_token_id": self.token(151643), "eos_token_id": self.token(151645),
                }),
            ),
            _ => (
                "LlamaForCausalLM",
                json!({
                    "intermediate_size": self.dense, "attention_bias": false, "mlp_bias": false,
                    "rms_norm_eps": 1e-5, "rope_theta": 5e5, "rope_scaling": null,
                    "max_position_embeddings": 8192, "pretraining_tp": 1,
                    "bos_token_id": self.token(128000), "eos_token_id": self.token(128001),
                }),
            ),
        };
        let mut config = json!({
            "architectures": [architecture], "model_type": self.family,
            "attention_dropout": 0.0, "hidden_act": "silu", "hidden_size": self.hidden,
            "initializer_range": 0.02, "num_attention_heads": heads,
            "num_hidden_layers": self.layers, "num_key_value_heads": kv_heads,
            "tie_word_embeddings": self.tied, "torch_dtype": "bfloat16",
            "transformers_version": "4.51.0", "use_cache": true, "vocab_size": self.vocab,
        });
        let all = config.as_object_mut().expect("written as an object above");
        if let Value::Object(own) = own {
            all.extend(own);
        }
        if self.experts.is_some() {
            all.insert("num_experts_per_tok".into(), json!(top_k));
        }
        config
    }

    /// Content of `generation_config.json`.
    pub fn generation_config(&self) -> Value {
        let config = self.config();
        let mut generation =
            json!({ "_from_model_config": true, "transformers_version": "4.51.0" });
        for key in ["bos_token_id", "eos_token_id", "pad_token_id"] {
            if let Some(id) = config.get(key) {
                generation[key] = id.clone();
            }
        }
        generation
    }

    /// All tensors, in the order of computation.
    pub fn tensors(&self) -> Vec<PlannedTensor> {
        let mut list = List(Vec::new());
        let h = self.hidden;
        list.add("model.embed_tokens.weight", &[self.vocab, h]);
        for layer in 0..self.layers {
            self.layer(&format!("model.layers.{layer}"), &mut list);
        }
        list.add("model.norm.weight", &[h]);
        if !self.tied {
            list.add("lm_head.weight", &[self.vocab, h]);
        }
        list.0
    }

    fn layer(&self, at: &str, list: &mut List) {
        let h = self.hidden;
        let (heads, kv_heads, head_dim) = self.heads;
        let q = heads * head_dim;
        let kv = kv_heads * head_dim;
        list.add(&format!("{at}.input_layernorm.weight"), &[h]);
        for (name, rows) in [("q_proj", q), ("k_proj", kv), ("v_proj", kv)] {
            list.add(&format!("{at}.self_attn.{name}.weight"), &[rows, h]);
            if self.family == "qwen2_moe" {
                list.add(&format!("{at}.self_attn.{name}.bias"), &[rows]);
            }
        }
        let norms = match self.family {
            "olmoe" => Some((q, kv)),
            "qwen3_moe" | "qwen3" => Some((head_dim, head_dim)),
            _ => None,
        };
        if let Some((q, k)) = norms {
            list.add(&format!("{at}.self_attn.q_norm.weight"), &[q]);
            list.add(&format!("{at}.self_attn.k_norm.weight"), &[k]);
        }
        list.add(&format!("{at}.self_attn.o_proj.weight"), &[h, q]);
        list.add(&format!("{at}.post_attention_layernorm.weight"), &[h]);

        let qwen = ["gate_proj", "up_proj", "down_proj"];
        let (block, names) = match self.family {
            "mixtral" => ("block_sparse_moe", ["w1", "w3", "w2"]),
            _ => ("mlp", qwen),
        };
        let Some((experts, _, inner)) = self.experts else {
            return list.mlp(&format!("{at}.mlp"), qwen, self.dense, h);
        };
        list.add(&format!("{at}.{block}.gate.weight"), &[experts, h]);
        for expert in 0..experts {
            list.mlp(&format!("{at}.{block}.experts.{expert}"), names, inner, h);
        }
        if self.shared > 0 {
            list.mlp(&format!("{at}.mlp.shared_expert"), qwen, self.shared, h);
            list.add(&format!("{at}.mlp.shared_expert_gate.weight"), &[1, h]);
        }
    }

    /// A token id of the published model, limited to the vocabulary of a smaller one.
    fn token(&self, id: usize) -> usize {
        id.min(self.vocab - 1)
    }
}

struct List(Vec<PlannedTensor>);

impl List {
    fn add(&mut self, name: &str, shape: &[usize]) {
        let name = name.to_owned();
        let shape = shape.to_vec();
        self.0.push(PlannedTensor { name, dtype: Dtype::BF16, shape, below: 0 });
    }

    fn mlp(&mut self, at: &str, [gate, up, down]: [&str; 3], inner: usize, hidden: usize) {
        self.add(&format!("{at}.{gate}.weight"), &[inner, hidden]);
        self.add(&format!("{at}.{up}.weight"), &[inner, hidden]);
        self.add(&format!("{at}.{down}.weight"), &[hidden, inner]);
    }
}
