//! LFM3: gated short convolutions, attention to all positions and attention in windows, with gates
//! for heads, norms after branches, and MLPs in all layers.

use sws_format::PieceKind;
use sws_kernels::functional::Activation;

use super::common::{Common, FamilyDefaults, absent, dense, window, without_ropes_of_kinds};
use super::gemma4::full_rope;
use super::lfm2::{self, OPERATORS};
use super::per_layer::{by_words, each_layer};
use super::{ATTENTION, Family, TensorRule, matrix, small};
use crate::config::{ConfigError, FamilyConfig};
use crate::role::Role;
use crate::spec::{AttentionGate, AttentionSpec, Mixer, ModelSpec, QkNorm};

pub(super) const FAMILY: Family = Family {
    model_types: &["lfm3"],
    prefix: "model.",
    ends: lfm2::ENDS,
    layer: &[OPERATORS, ATTENTION, OWN],
    spec,
};

const OWN: &[TensorRule] = &[
    small(PieceKind::Norms, Role::MixerPostNorm, "post_operator_norm.weight"),
    small(PieceKind::Norms, Role::FfnPostNorm, "post_ffn_norm.weight"),
    matrix(PieceKind::Attention, Role::OutputGate, "self_attn.gate_proj.weight"),
];

const DEFAULTS: FamilyDefaults = FamilyDefaults {
    eps: 1e-5,
    theta: 10_000.0,
    kv_heads: Some(4),
    head_dim: Some(128),
    rotated: None,
    context: 128_000,
};

/// Share of a head that is rotated in layers without a window, if nothing is said.
const ROTATED: f64 = 0.5;

/// The operator of a layer.
#[derive(Clone, Copy, PartialEq)]
enum Operator {
    Conv,
    Full,
    Windowed,
}

fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    absent(config, "rope_scaling")?;
    without_ropes_of_kinds(config, &["rope_theta", "partial_rotary_factor"])?;
    let mut common = Common::unrotated(config, &DEFAULTS)?;
    common.decoder.norm = lfm2::norm(config)?;
    if config.flag("use_sandwich_norm", true)? {
        common.decoder.residual = common.decoder.residual.normed(common.decoder.norm);
    }
    let kinds = kinds(config, common.layers)?;
    let bias = config.flag("attention_bias", false)?;
    let per_head = AttentionGate::Own { per_head: true, activation: Activation::Sigmoid };
    let attention = AttentionSpec {
        qkv_bias: bias,
        output_bias: bias,
        qk_norm: QkNorm::PerHead,
        gate: config.flag("use_attention_gate", true)?.then_some(per_head),
        ..common.attention.clone()
    };
    let mut mixers = [Mixer::Conv(lfm2::conv(config, 7)?), Mixer::None, Mixer::None];
    if kinds.contains(&Operator::Full) {
        let context = common.decoder.context;
        common.ropes.push(full_rope(config, attention.head_dim, context, ROTATED)?);
        let rope = Some(common.ropes.len() - 1);
        mixers[Operator::Full as usize] = AttentionSpec { rope, ..attention.clone() }.into();
    }
    if kinds.contains(&Operator::Windowed) {
        // Entries without a base have that of the class.
        let theta = if config.get("rope_parameters").is_some() { 1e6 } else { DEFAULTS.theta };
        let rope = Some(common.add_rope("sliding_attention", theta, None)?);
        let window = window(config, Some(256))?;
        if window.is_none() {
            return Err(config
                .need("layer_types")?
                .invalid("with sliding attention, and no `sliding_window` is in use"));
        }
        mixers[Operator::Windowed as usize] = AttentionSpec { rope, window, ..attention }.into();
    }
    let mlp = dense(config, "intermediate_size", false)?;
    common.model(|l| (mixers[kinds[l] as usize].clone(), mlp))
}

/// The kind of each layer. By default the third of every four has attention to all positions, and
/// the first in a window, except for the very first.
fn kinds(config: &FamilyConfig, layers: usize) -> Result<Vec<Operator>, ConfigError> {
    let Some(entry) = config.get("layer_types") else {
        let mut kinds = Vec::with_capacity(layers);
        for l in 0..layers {
            kinds.push(match l % 4 {
                2 => Operator::Full,
                0 if l > 0 => Operator::Windowed,
                _ => Operator::Conv,
            });
        }
        return Ok(kinds);
    };
    let kinds = [
        ("conv", Operator::Conv),
        ("full_attention", Operator::Full),
        ("sliding_attention", Operator::Windowed),
    ];
    let supported = "conv, full_attention and sliding_attention";
    by_words(config, entry, each_layer(entry, layers)?, &kinds, supported)
}
