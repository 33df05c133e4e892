//! AFMoE, the Trinity models: norms after branches, gated attention, rotary embeddings in windowed
//! layers only, and the experts of DeepSeek V3.

use sws_format::PieceKind;
use sws_kernels::functional::Activation;

use super::common::{Common, FamilyDefaults, switched_on, window, windows};
use super::entries::size_or;
use super::hunyuan::CORRECTION;
use super::per_layer::all_but_every;
use super::ranked::{RANKED, RankedKeys, RankedLayers, only, sigmoid};
use super::{ATTENTION, ENDS, EXPERTS, Family, MLP, TensorRule, glm, matrix, small};
use crate::config::{ConfigError, FamilyConfig, MAX_COUNT};
use crate::role::Role;
use crate::spec::{AttentionGate, AttentionSpec, ModelSpec, QkNorm};

pub(super) const FAMILY: Family = Family {
    model_types: &["afmoe"],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, ATTENTION, GATE, CORRECTION, MLP, glm::MOE, EXPERTS],
    spec,
};

const NORMS: &[TensorRule] = &[
    small(PieceKind::Norms, Role::MixerNorm, "input_layernorm.weight"),
    small(PieceKind::Norms, Role::MixerPostNorm, "post_attention_layernorm.weight"),
    small(PieceKind::Norms, Role::FfnNorm, "pre_mlp_layernorm.weight"),
    small(PieceKind::Norms, Role::FfnPostNorm, "post_mlp_layernorm.weight"),
];

const GATE: &[TensorRule] =
    &[matrix(PieceKind::Attention, Role::OutputGate, "self_attn.gate_proj.weight")];

const DEFAULTS: FamilyDefaults = FamilyDefaults {
    eps: 1e-5,
    theta: 10_000.0,
    kv_heads: None,
    head_dim: Some(128),
    rotated: None,
    context: 16_384,
};

fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    const KEYS: RankedKeys = RankedKeys {
        dense: ("num_dense_layers", 1),
        shared: ("num_shared_experts", 2),
        scale: ("route_scale", 1.0),
        renormalise: ("route_norm", true),
        ..RANKED
    };
    only(config, "score_func", "sigmoid")?;
    switched_on(config, "route_norm")?;
    for key in ["n_group", "num_expert_groups"] {
        if let Some(entry) = config.get(key)
            && entry.value.as_u64() != Some(1)
        {
            return Err(config.unsupported(entry, "1"));
        }
    }
    let mut common = Common::read(config, &DEFAULTS)?;
    common.decoder.residual = common.decoder.residual.normed(common.decoder.norm);
    if config.flag("mup_enabled", false)? {
        common.decoder.embedding_scale = (common.decoder.hidden as f64).sqrt() as f32;
    }
    let every = size_or(config.get("global_attn_every_n_layers"), 4, MAX_COUNT)?;
    let window = window(config, Some(1024))?;
    let windows = windows(config, window, &all_but_every(every, common.layers))?;
    let bias = config.flag("attention_bias", false)?;
    let attention = AttentionSpec {
        qkv_bias: bias,
        output_bias: bias,
        qk_norm: QkNorm::PerHead,
        gate: Some(AttentionGate::Own { per_head: false, activation: Activation::Sigmoid }),
        ..common.attention.clone()
    };
    let layers = RankedLayers::ranked(config, &KEYS, sigmoid(config, &KEYS)?, common.layers)?;
    common.model(|l| {
        let rope = windows[l].and(attention.rope);
        (AttentionSpec { window: windows[l], rope, ..attention.clone() }, layers.ffn(l))
    })
}
