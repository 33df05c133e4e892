//! Random checkpoints of released models have the tensors and types of the hub, and can be run.

use std::path::Path;
use std::process::Command;

use safetensors::{Dtype, SafeTensors};
use sws::{Model, Options, Request};

/// Types of some tensors of a checkpoint.
type Types = [(&'static str, Dtype, &'static [usize])];

fn check(config: &str, layers: &str, changes: &[&str], types: &Types) {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("model");
    let mut command = Command::new(env!("CARGO_BIN_EXE_sws-bench"));
    command.args(["random", "--shape", config, "--layers", layers]);
    changes.iter().for_each(|change| {
        command.args(["--set", change]);
    });
    let output = command.arg("--out").arg(&dir).output().unwrap();
    assert!(output.status.success(), "{config}: {}", String::from_utf8_lossy(&output.stderr));
    let bytes = std::fs::read(dir.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    for (name, dtype, shape) in types {
        let tensor = tensors.tensor(name).unwrap_or_else(|_| panic!("{config} lacks {name}"));
        assert_eq!((tensor.dtype(), tensor.shape()), (*dtype, *shape), "{config}: {name}");
    }
    let in_memory = texts(&dir, |options| options.resident = true);
    assert_eq!(in_memory.len(), 4, "{config}");
    assert_eq!(texts(&dir, |options| options.ram = "min".parse().unwrap()), in_memory, "{config}");
}

fn texts(dir: &Path, change: impl FnOnce(&mut Options)) -> Vec<u32> {
    let mut options = Options::default();
    options.streaming.warm_start = false;
    change(&mut options);
    let mut model = Model::open(dir).unwrap().with(options).load().unwrap();
    let request = Request::from(vec![3, 1, 4, 1, 5, 9]).seed(7).max_new_tokens(4);
    let mut text = model.generate(request).unwrap();
    text.by_ref().for_each(|piece| drop(piece.unwrap()));
    text.finish().tokens
}

#[test]
fn fp8_has_a_scale_for_each_square() {
    check(
        "deepseek-v3",
        "2",
        &[
            "n_routed_experts=16",
            "hidden_size=256",
            "moe_intermediate_size=192",
            "intermediate_size=320",
            "num_attention_heads=4",
            "num_key_value_heads=4",
            "q_lora_rank=64",
            "vocab_size=300",
        ],
        &[
            ("model.layers.0.mlp.up_proj.weight", Dtype::F8_E4M3, &[320, 256]),
            ("model.layers.0.mlp.up_proj.weight_scale_inv", Dtype::F32, &[3, 2]),
            ("model.layers.1.mlp.experts.15.down_proj.weight", Dtype::F8_E4M3, &[256, 192]),
            ("model.layers.1.mlp.experts.15.down_proj.weight_scale_inv", Dtype::F32, &[2, 2]),
            ("model.layers.1.mlp.gate.weight", Dtype::BF16, &[16, 256]),
            ("model.layers.1.mlp.gate.e_score_correction_bias", Dtype::F32, &[16]),
            ("model.embed_tokens.weight", Dtype::BF16, &[300, 256]),
        ],
    );
}

#[test]
fn deepseek_v4_has_e2m1_beside_e4m3_and_a_table() {
    check(
        "deepseek-v4-flash",
        "3",
        &[
            "n_routed_experts=24",
            "hidden_size=256",
            "moe_intermediate_size=192",
            "num_attention_heads=8",
            "head_dim=64",
            "qk_rope_head_dim=16",
            "q_lora_rank=64",
            "o_lora_rank=64",
            "index_n_heads=4",
            "index_head_dim=32",
            "hc_mult=2",
            "vocab_size=300",
        ],
        &[
            ("layers.0.ffn.gate.tid2eid", Dtype::I64, &[300, 6]),
            ("layers.1.ffn.gate.bias", Dtype::F32, &[24]),
            ("layers.2.ffn.experts.23.w1.weight", Dtype::I8, &[192, 128]),
            ("layers.2.ffn.experts.23.w1.scale", Dtype::F8_E8M0, &[192, 8]),
            ("layers.2.ffn.shared_experts.w2.weight", Dtype::F8_E4M3, &[256, 192]),
            ("layers.2.ffn.shared_experts.w2.scale", Dtype::F8_E8M0, &[2, 2]),
            ("layers.2.attn.wo_a.weight", Dtype::F8_E4M3, &[512, 64]),
            ("layers.2.attn.compressor.wkv.weight", Dtype::BF16, &[64, 256]),
            ("layers.2.attn.attn_sink", Dtype::F32, &[8]),
            ("layers.2.hc_ffn_fn", Dtype::F32, &[8, 512]),
            ("embed.weight", Dtype::BF16, &[300, 256]),
        ],
    );
}

#[test]
fn int4_is_of_experts_alone() {
    check(
        "kimi-k2-thinking",
        "2",
        &[
            "n_routed_experts=16",
            "hidden_size=256",
            "moe_intermediate_size=192",
            "intermediate_size=320",
            "num_attention_heads=4",
            "num_key_value_heads=4",
            "q_lora_rank=64",
            "vocab_size=300",
        ],
        &[
            ("model.layers.0.mlp.up_proj.weight", Dtype::BF16, &[320, 256]),
            ("model.layers.1.mlp.experts.9.up_proj.weight_packed", Dtype::I32, &[192, 32]),
            ("model.layers.1.mlp.experts.9.up_proj.weight_scale", Dtype::BF16, &[192, 8]),
            ("model.layers.1.mlp.shared_experts.up_proj.weight", Dtype::BF16, &[192, 256]),
        ],
    );
}

#[test]
fn mxfp4_is_stacked() {
    check(
        "gpt-oss-120b",
        "2",
        &[
            "num_local_experts=12",
            "hidden_size=192",
            "intermediate_size=160",
            "num_attention_heads=4",
            "num_key_value_heads=2",
            "vocab_size=300",
        ],
        &[
            ("model.layers.1.mlp.experts.gate_up_proj_blocks", Dtype::U8, &[12, 320, 6, 16]),
            ("model.layers.1.mlp.experts.gate_up_proj_scales", Dtype::U8, &[12, 320, 6]),
            ("model.layers.1.self_attn.q_proj.weight", Dtype::BF16, &[256, 192]),
        ],
    );
}
