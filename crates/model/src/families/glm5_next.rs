//! GLM 5.3 Flash: delta nets in most layers, sparse latent attention without rotary embedding in the
//! others, and several residual streams.

use sws_format::{PieceKind, Value};
use sws_kernels::functional::Activation;

use super::bailing::bound_of;
use super::common::{DecoderParts, MAX_WIDTH, switched_off};
use super::deepseek::{INDEXER, LATENT_ATTENTION};
use super::deepseek_v4::streams;
use super::entries::{positive_or, size_or};
use super::kimi_linear::{DEFAULTS, DELTA, delta, linear};
use super::per_layer::{by_words, every_nth, first_layers};
use super::ranked::{RANKED, RankedKeys, RankedLayers, only, sigmoid};
use super::{ENDS, EXPERTS, Family, MLP, NORMS, TensorRule, glm, small, sparse};
use crate::config::{ConfigError, FamilyConfig, MAX_COUNT, SPLIT_LATENTS};
use crate::role::Role;
use crate::rope::MAX_HEAD_DIM;
use crate::spec::{DeltaSpec, KeyValues, LatentGates, LatentSpec, Mixer, ModelSpec, StreamReads};

pub(super) const FAMILY: Family = Family {
    model_types: &["glm5_next_text"],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, STREAMS, DELTA, LATENT_ATTENTION, INDEXER, POOLS, MLP, glm::MOE, EXPERTS],
    spec,
};

const STREAMS: &[TensorRule] = &[
    small(PieceKind::Attention, Role::MixerStreams, "hc_attn_fn"),
    small(PieceKind::Attention, Role::MixerStreamsBase, "hc_attn_base"),
    small(PieceKind::Attention, Role::MixerStreamsScale, "hc_attn_scale"),
    small(PieceKind::Router, Role::FfnStreams, "hc_ffn_fn"),
    small(PieceKind::Router, Role::FfnStreamsBase, "hc_ffn_base"),
    small(PieceKind::Router, Role::FfnStreamsScale, "hc_ffn_scale"),
];

const POOLS: &[TensorRule] = &[
    small(PieceKind::Attention, Role::IndexPoolBias, "self_attn.indexer.index_kpool_compress_ape"),
    small(PieceKind::Attention, Role::IndexPoolGate, "self_attn.indexer.index_kpool_compress_gate"),
];

const KEYS: RankedKeys = RankedKeys {
    dense: ("first_k_dense_replace", 3),
    scale: ("routed_scaling_factor", 2.5),
    ..RANKED
};

fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    switched_off(config, "attention_bias")?;
    only(config, "scoring_func", "sigmoid")?;
    only(config, "topk_method", "noaux_tc")?;
    let mut decoder = DecoderParts::read(config, &DEFAULTS)?;
    if let Some(entry) = config.get("num_key_value_heads")
        && entry.size(MAX_COUNT)? != decoder.heads
    {
        return Err(config.unsupported(entry, "as many as `num_attention_heads`"));
    }
    decoder.streams = Some(streams(config)?);
    decoder.stream_reads = StreamReads::WeightsThenMean;
    let count = decoder.layers;
    let eps = decoder.norm.eps();
    let full = match config.get("layer_types") {
        None => every_nth(4, count),
        Some(entry) => {
            let kinds = [
                ("linear_attention", false),
                ("indexed_attention", true),
                ("full_attention", true),
            ];
            let supported = "linear_attention and indexed_attention";
            by_words(config, entry, first_layers(entry, count)?, &kinds, supported)?
        }
    };
    let latent = latent(config, decoder.heads, eps)?;
    let sparse = sparse::grouped(config, &full)?;
    let delta = match full.contains(&false) {
        true => Some(bounded(config, eps)?),
        false => None,
    };
    let layers = RankedLayers::ranked(config, &KEYS, sigmoid(config, &KEYS)?, count)?;
    let limit = positive_or(config.get("swiglu_limit"), 10.0)? as f32;
    let layers = layers.activated(Activation::SiluClamped(limit));
    decoder.model(Vec::new(), |l| {
        let mixer = match full[l] {
            true => Some(Mixer::Latent(LatentSpec { sparse: Some(sparse[l]), ..latent })),
            false => delta.map(Mixer::Delta),
        };
        (mixer.expect("every layer is of one kind or the other"), layers.ffn(l))
    })
}

fn latent(config: &FamilyConfig, heads: usize, eps: f32) -> Result<LatentSpec, ConfigError> {
    if let Some(entry) = config.get("qk_rope_head_dim")
        && entry.count(MAX_HEAD_DIM)? != 0
    {
        return Err(config.unsupported(entry, "0, no rotary embedding"));
    }
    let plain = size_or(config.get("qk_nope_head_dim"), 256, MAX_HEAD_DIM)?;
    let spec = LatentSpec {
        heads,
        query_rank: Some(size_or(config.get("q_lora_rank"), 1536, MAX_WIDTH)?),
        rank: size_or(config.get("kv_lora_rank"), 512, MAX_WIDTH)?,
        plain,
        rotated: 0,
        value_dim: size_or(config.get("v_head_dim"), 256, MAX_HEAD_DIM)?,
        eps,
        key_norm: false,
        latent_scale: 1.0,
        scale: (1.0 / (plain as f64).sqrt()) as f32,
        rope: None,
        gates: LatentGates::None,
        sinks: false,
        temperature: None,
        head_growth: false,
        latents: KeyValues::Own,
        split: config.flag(SPLIT_LATENTS, false)?,
        window: None,
        sparse: None,
    };
    let widest = spec.query_width().max(spec.heads * spec.head_rows());
    if widest as u64 > MAX_WIDTH {
        let reason = format!("which with {} elements each no model has", widest / heads);
        return Err(config.need("num_attention_heads")?.invalid(reason));
    }
    Ok(spec)
}

/// A delta net with bounded decays, unless the configuration disables the bound.
fn bounded(config: &FamilyConfig, eps: f32) -> Result<DeltaSpec, ConfigError> {
    let spec = delta(config, 64, eps)?;
    let none = config.raw("linear_lower_bound").is_some_and(Value::is_null);
    let bound = match linear(config, "gate_lower_bound", "linear_lower_bound")? {
        Some(entry) => Some(bound_of(entry)?),
        None if none => None,
        None => match linear(config, "safe_gate", "safe_gate")? {
            Some(entry) if !entry.flag()? => {
                return Err(config.unsupported(entry, "true, or a bound"));
            }
            _ => Some(-5.0),
        },
    };
    Ok(DeltaSpec { bound, ..spec })
}
