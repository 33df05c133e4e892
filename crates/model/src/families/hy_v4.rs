//! Hy4: sparse latent attention with sinks and a gate for each element, and several residual
//! streams that are not mixed.

use sws_format::PieceKind;
use sws_kernels::functional::{Activation, MAX_STREAMS, RopePairs, StreamWriting, Streams};

use super::bailing::turned;
use super::common::{DecoderParts, FamilyDefaults, switched_off};
use super::deepseek::{INDEXER, LATENT_ATTENTION};
use super::entries::{positive_or, size_or};
use super::kimi_linear::LatentSizes;
use super::ranked::{RANKED, RankedKeys, RankedLayers, only, sigmoid};
use super::{
    ENDS, EXPERTS, Ends, Family, MLP, NORMS, TensorRule, glm, matrix, small, sparse, stacked,
};
use crate::config::{ConfigError, FamilyConfig};
use crate::role::Role;
use crate::spec::{Ffn, LatentGates, LatentSpec, Mixer, ModelSpec};

pub(super) const FAMILY: Family = Family {
    model_types: &["hy_v4"],
    prefix: "model.",
    ends: Ends {
        others: &[
            (Role::HeadStreams, "hc_head.hc_head_fn"),
            (Role::HeadStreamsBase, "hc_head.hc_head_base"),
            (Role::HeadStreamsScale, "hc_head.hc_head_scale"),
        ],
        ..ENDS
    },
    layer: &[NORMS, STREAMS, LATENT_ATTENTION, OWN, INDEXER, MLP, glm::MOE, STACKED, EXPERTS],
    spec,
};

const STREAMS: &[TensorRule] = &[
    small(PieceKind::Attention, Role::MixerStreams, "hc_attn_layer.hc_pre.hc_fn"),
    small(PieceKind::Attention, Role::MixerStreamsBase, "hc_attn_layer.hc_pre.hc_base"),
    small(PieceKind::Attention, Role::MixerStreamsScale, "hc_attn_layer.hc_pre.hc_scale"),
    small(PieceKind::Router, Role::FfnStreams, "hc_mlp_layer.hc_pre.hc_fn"),
    small(PieceKind::Router, Role::FfnStreamsBase, "hc_mlp_layer.hc_pre.hc_base"),
    small(PieceKind::Router, Role::FfnStreamsScale, "hc_mlp_layer.hc_pre.hc_scale"),
];

const OWN: &[TensorRule] = &[
    small(PieceKind::Attention, Role::LatentSinks, "self_attn.learnable_sink_param"),
    matrix(PieceKind::Attention, Role::OutputGate, "self_attn.linear_gate.weight"),
];

const STACKED: &[TensorRule] = &[
    stacked(Role::GateUp, "mlp.experts.gate_up_proj"),
    stacked(Role::Down, "mlp.experts.down_proj"),
];

const DEFAULTS: FamilyDefaults = FamilyDefaults {
    eps: 1e-5,
    theta: 10_000.0,
    kv_heads: None,
    head_dim: None,
    rotated: None,
    context: 262_144,
};

const SIZES: LatentSizes =
    LatentSizes { query_rank: Some(1536), plain: 192, rotated: 64, value_dim: 256 };

const KEYS: RankedKeys = RankedKeys { scale: ("routed_scaling_factor", 2.827), ..RANKED };

/// The number of key and value heads has no effect.
fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    switched_off(config, "attention_bias")?;
    only(config, "scoring_func", "sigmoid")?;
    only(config, "topk_method", "noaux_tc")?;
    let mut decoder = DecoderParts::read(config, &DEFAULTS)?;
    decoder.streams = Some(streams(config)?);
    let count = decoder.layers;
    let eps = decoder.norm.eps();
    if let Some(entry) = config.get("layer_types")
        && entry.list()?.iter().any(|kind| kind.as_str() != Some("indexed_attention"))
    {
        return Err(config.unsupported(entry, "indexed_attention in all layers"));
    }
    let (latent, mut rope) = turned(config, &decoder, DEFAULTS.theta, &SIZES)?;
    rope.pairs = RopePairs::HalfSplit;
    let latent = LatentSpec { gates: LatentGates::PerElement, sinks: true, ..latent };
    let sparse = sparse::turning_last(config, count, latent.rotated, eps)?;
    let layers = RankedLayers::ranked(config, &KEYS, sigmoid(config, &KEYS)?, count)?.in_halves();
    let limit = positive_or(config.get("swiglu_limit"), 10.0)? as f32;
    decoder.model(vec![rope], |l| {
        let mut ffn = layers.ffn(l);
        if let Ffn::Moe(moe) = &mut ffn {
            moe.expert.activation = Activation::SiluClamped(limit);
        }
        (Mixer::Latent(LatentSpec { sparse: Some(sparse[l]), ..latent }), ffn)
    })
}

fn streams(config: &FamilyConfig) -> Result<Streams, ConfigError> {
    let count = size_or(config.get("hc_mult"), 4, MAX_STREAMS as u64)?;
    let magnitude = positive_or(config.get("hc_magnitude"), 2.0)? as f32;
    let eps = positive_or(config.get("hc_eps"), 1e-6)? as f32;
    Ok(Streams { count, writing: StreamWriting::Apart { magnitude }, eps })
}
