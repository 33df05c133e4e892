//! DeepSeek V2 to V3.2, Kimi K2, GLM 4.7 Flash, GLM 5, Mistral 4 and A.X K1 and K2: latent attention,
//! and experts in groups beside shared ones.

use sws_format::PieceKind;
use sws_kernels::functional::RopePairs;

use super::common::{DecoderParts, FamilyDefaults, MAX_WIDTH, same_window, switched_off};
use super::entries::{entry_in, optional_size, size_or};
use super::glm::MOE;
use super::ranked::{RANKED, RankedKeys, RankedLayers, groups, only, scale, sigmoid};
use super::{ENDS, EXPERTS, Family, MLP, NORMS, TensorRule, matrix, mistral_rope, small, sparse};
use crate::config::{ConfigEntry, ConfigError, FamilyConfig, MAX_COUNT, SPLIT_LATENTS};
use crate::role::Role;
use crate::rope::{self, MAX_AMPLITUDE, MAX_HEAD_DIM, Rope, RopeScaling, yarn_amplitude};
use crate::spec::{
    GroupMeasure, KeyValues, LatentGates, LatentSpec, Mixer, ModelSpec, NormGates, RankedRouter,
    Renormalise, RouterScores,
};

/// Families with latent attention.
pub(super) const LATENT: Family = Family {
    model_types: &[
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "kimi_k2",
        "glm4_moe_lite",
        "glm_moe_dsa",
    ],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, LATENT_ATTENTION, INDEXER, MLP, MOE, EXPERTS],
    spec: latent,
};

/// A.X K1, whose experts have a norm after them. Checkpoints have one for dense layers too, which has
/// no effect.
pub(super) const AXK: Family = Family {
    model_types: &["axk1"],
    layer: &[NORMS, LATENT_ATTENTION, MLP, MOE, AFTER_EXPERTS, EXPERTS],
    ..LATENT
};

const AFTER_EXPERTS: &[TensorRule] =
    &[small(PieceKind::Norms, Role::FfnPostNorm, "post_mlp_layernorm.weight")];

/// A.X K2, whose norms have gates, except before dense layers, and whose queries come with gates.
pub(super) const AXK2: Family = Family {
    model_types: &["axk2"],
    layer: &[GATED_NORMS, LATENT_ATTENTION, INDEXER, MLP, MOE, EXPERTS],
    ..LATENT
};

const GATED_NORMS: &[TensorRule] = &[
    small(PieceKind::Norms, Role::MixerNorm, "input_layernorm.norm.weight"),
    small(PieceKind::Attention, Role::MixerStreamsDown, "input_layernorm.W_down.weight"),
    small(PieceKind::Attention, Role::MixerStreamsUp, "input_layernorm.W_up.weight"),
    small(PieceKind::Norms, Role::FfnNorm, "post_attention_layernorm.norm.weight"),
    small(PieceKind::Norms, Role::FfnNorm, "post_attention_layernorm.weight"),
    small(PieceKind::Router, Role::FfnStreamsDown, "post_attention_layernorm.W_down.weight"),
    small(PieceKind::Router, Role::FfnStreamsUp, "post_attention_layernorm.W_up.weight"),
];

pub(super) const LATENT_ATTENTION: &[TensorRule] = &[
    matrix(PieceKind::Attention, Role::Query, "self_attn.q_proj.weight"),
    matrix(PieceKind::Attention, Role::QueryDown, "self_attn.q_a_proj.weight"),
    small(PieceKind::Attention, Role::QueryDownNorm, "self_attn.q_a_layernorm.weight"),
    matrix(PieceKind::Attention, Role::QueryUp, "self_attn.q_b_proj.weight"),
    matrix(PieceKind::Attention, Role::KvDown, "self_attn.kv_a_proj_with_mqa.weight"),
    small(PieceKind::Attention, Role::KvDownNorm, "self_attn.kv_a_layernorm.weight"),
    matrix(PieceKind::Attention, Role::KvUp, "self_attn.kv_b_proj.weight"),
    // Names in GGUF files, as the ends of names in transformers.
    matrix(PieceKind::Attention, Role::KeyUp, "self_attn.k_b_proj.weight"),
    matrix(PieceKind::Attention, Role::ValueUp, "self_attn.v_b_proj.weight"),
    matrix(PieceKind::Attention, Role::Output, "self_attn.o_proj.weight"),
];

pub(super) const INDEXER: &[TensorRule] = &[
    matrix(PieceKind::Attention, Role::IndexKey, "self_attn.indexer.wk.weight"),
    small(PieceKind::Attention, Role::IndexWeights, "self_attn.indexer.weights_proj.weight"),
    matrix(PieceKind::Attention, Role::IndexQuery, "self_attn.indexer.wq_b.weight"),
    small(PieceKind::Attention, Role::IndexKeyNorm, "self_attn.indexer.k_norm.weight"),
    small(PieceKind::Attention, Role::IndexKeyNormBias, "self_attn.indexer.k_norm.bias"),
];

const V2: RankedKeys =
    RankedKeys { dense: ("first_k_dense_replace", 0), shared: ("n_shared_experts", 2), ..RANKED };
const V3: RankedKeys = RankedKeys {
    dense: ("first_k_dense_replace", 3),
    scale: ("routed_scaling_factor", 2.5),
    groups: [8, 4],
    ..RANKED
};
const AX: RankedKeys = RankedKeys { dense: ("first_k_dense_replace", 1), ..V3 };
const AX2: RankedKeys = RankedKeys { groups: [1, 1], ..AX };
const GLM_LITE: RankedKeys = RankedKeys { scale: ("routed_scaling_factor", 1.8), ..RANKED };
const MISTRAL: RankedKeys = RankedKeys { dense: ("first_k_dense_replace", 0), ..RANKED };
const GLM_SPARSE: RankedKeys = RankedKeys {
    dense: ("first_k_dense_replace", 3),
    scale: ("routed_scaling_factor", 2.5),
    ..RANKED
};

pub(super) fn latent(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let (layers, eps, context) = match config.model_type() {
        "axk1" => (AX, 1e-6, 32_768),
        "axk2" => (AX2, 1e-6, 131_072),
        "deepseek_v2" => (V2, 1e-6, 2048),
        "deepseek_v32" => (V3, 1e-6, 163_840),
        "glm4_moe_lite" => (GLM_LITE, 1e-5, 202_752),
        "glm_moe_dsa" => (GLM_SPARSE, 1e-5, 202_752),
        "mistral4" => (MISTRAL, 1e-6, 1 << 20),
        _ => (V3, 1e-6, 4096),
    };
    let defaults = FamilyDefaults {
        eps,
        theta: 10_000.0,
        kv_heads: None,
        head_dim: None,
        rotated: None,
        context,
    };
    let decoder = DecoderParts::read(config, &defaults)?;
    for key in ["attention_bias", "mlp_bias"] {
        switched_off(config, key)?;
    }
    if let Some(entry) = config.get("num_key_value_heads")
        && entry.size(MAX_COUNT)? != decoder.heads
    {
        return Err(config.unsupported(entry, "as many as `num_attention_heads`"));
    }
    let rotated_entry = config.need("qk_rope_head_dim")?;
    let rotated = rotated_entry.size(MAX_HEAD_DIM)?;
    if rotated % 2 == 1 {
        return Err(rotated_entry.invalid("and a rotary embedding turns pairs: it must be even"));
    }
    let sparse = sparse::read(config, decoder.layers, rotated)?;
    if sparse.is_none() {
        same_window(config, decoder.layers, None)?;
    }
    let plain = config.size("qk_nope_head_dim", MAX_HEAD_DIM)?;
    let rope = rotary(config, (plain, rotated), defaults.theta, decoder.context)?;
    let is_mistral = config.model_type() == "mistral4";
    let is_ax = config.model_type() == "axk1";
    let is_ax2 = config.model_type() == "axk2";
    let query_rank = query_rank(config, sparse.is_some() || is_ax)?;
    let scale = 1.0 / ((plain + rotated) as f64).sqrt() * sharpened(config, &rope)?;
    let spec = LatentSpec {
        heads: decoder.heads,
        query_rank,
        rank: config.size("kv_lora_rank", MAX_WIDTH)?,
        plain,
        rotated,
        value_dim: config.size("v_head_dim", MAX_HEAD_DIM)?,
        // This norm has its own eps.
        eps: 1e-6,
        key_norm: false,
        latent_scale: 1.0,
        scale: scale as f32,
        rope: Some(0),
        split: config.flag(SPLIT_LATENTS, false)?,
        gates: if is_ax2 { LatentGates::WithQueries } else { LatentGates::None },
        sinks: false,
        temperature: if is_mistral { mistral_rope::temperature(config)? } else { None },
        head_growth: false,
        latents: KeyValues::Own,
        window: None,
        sparse: None,
    };
    let widest = spec.query_width().max(spec.heads * spec.head_rows());
    if widest as u64 > MAX_WIDTH {
        let reason = format!("which with {} elements each no model has", widest / spec.heads);
        return Err(config.need("num_attention_heads")?.invalid(reason));
    }
    let router = router(config, &layers)?;
    let layers = RankedLayers::ranked(config, &layers, router, decoder.layers)?;
    // Checkpoints with one tensor per expert store gates and ups separately: see
    // `ModelSpec::for_weights`.
    let layers = if is_mistral { layers.in_halves() } else { layers };
    let norm = decoder.norm;
    let gates = size_or(config.get("gated_norm_rank"), 16, MAX_WIDTH)?;
    let gates = is_ax2.then_some(gates);
    let mut model = decoder.model(vec![rope], |l| {
        let sparse = sparse.as_ref().map(|sparse| sparse[l]);
        (Mixer::Latent(LatentSpec { sparse, ..spec }), layers.ffn(l))
    })?;
    for layer in &mut model.layers {
        let routes = layer.moe().is_some();
        layer.norm_gates = NormGates { mixer: gates, ffn: if routes { gates } else { None } };
        if is_ax && routes {
            layer.residual.after_ffn = Some(norm);
        }
    }
    Ok(model)
}

/// The rotary embedding of the last elements of heads, beside `plain` ones.
fn rotary(
    config: &FamilyConfig,
    (plain, rotated): (usize, usize),
    theta: f64,
    context: usize,
) -> Result<Rope, ConfigError> {
    let mut rope = match config.model_type() {
        "mistral4" => mistral_rope::rope(config, (plain, rotated), theta, context)?,
        _ => Rope::of(config, rotated, (theta, None), context)?,
    };
    if config.model_type() == "deepseek_v2" || config.flag("rope_interleave", true)? {
        rope.pairs = RopePairs::Interleaved;
    }
    Ok(rope)
}

/// The rank of queries; `None` for whole ones, which some families do not have.
fn query_rank(config: &FamilyConfig, is_needed: bool) -> Result<Option<usize>, ConfigError> {
    match config.raw("q_lora_rank") {
        _ if is_needed => Ok(Some(config.size("q_lora_rank", MAX_WIDTH)?)),
        None => Err(ConfigError::MissingKey("q_lora_rank")),
        Some(_) => optional_size(config.get("q_lora_rank"), MAX_WIDTH),
    }
}

fn router(config: &FamilyConfig, layers: &RankedKeys) -> Result<RankedRouter, ConfigError> {
    match config.model_type() {
        "deepseek_v2" => softmax(config, layers),
        "mistral4" => {
            let scores = RouterScores::Softmax;
            Ok(RankedRouter { scores, correction: false, ..sigmoid(config, layers)? })
        }
        model_type => {
            only(config, "scoring_func", "sigmoid")?;
            only(config, "topk_method", "noaux_tc")?;
            // Dropped groups of A.X K2 have ranks of zero, which are not the lowest.
            if let Some(entry) = config.get("n_group")
                && model_type == "axk2"
            {
                return Err(config.unsupported(entry, "null, one group of experts"));
            }
            sigmoid(config, layers)
        }
    }
}

/// The factor by which yarn sharpens the softmax: the square of the amplitude of `mscale_all_dim`.
pub(super) fn sharpened(config: &FamilyConfig, rope: &Rope) -> Result<f64, ConfigError> {
    let given = rope::given(config)?.map(ConfigEntry::object).transpose()?;
    let Some(entry) = entry_in(given, "mscale_all_dim") else { return Ok(1.0) };
    // Zero means that the entry is absent.
    if entry.value.as_f64() == Some(0.0) {
        return Ok(1.0);
    }
    match rope.scaling {
        RopeScaling::None => Ok(1.0),
        RopeScaling::Yarn { factor, .. } => {
            Ok(yarn_amplitude(factor, entry.at_most(MAX_AMPLITUDE)?).powi(2))
        }
        RopeScaling::Linear { .. } | RopeScaling::Llama3 { .. } | RopeScaling::Divided => {
            Err(config.unsupported(entry, "with yarn"))
        }
    }
}

/// The router of DeepSeek V2. Its weights are never renormalised: the published code and
/// transformers disagree about what `norm_topk_prob` means, and no published model sets it.
fn softmax(config: &FamilyConfig, keys: &RankedKeys) -> Result<RankedRouter, ConfigError> {
    only(config, "scoring_func", "softmax")?;
    switched_off(config, "norm_topk_prob")?;
    let in_groups = match config.get("topk_method") {
        None => false,
        Some(entry) => match entry.word()? {
            "greedy" => false,
            "group_limited_greedy" => true,
            _ => return Err(config.unsupported(entry, "greedy, group_limited_greedy")),
        },
    };
    let groups = match in_groups {
        true => groups(config, keys, GroupMeasure::Best)?,
        false => None,
    };
    let scale = scale(config, keys)?;
    let scores = RouterScores::Softmax;
    let correction = false;
    let renormalise = Renormalise::None;
    Ok(RankedRouter { scores, correction, groups, renormalise, scale })
}
