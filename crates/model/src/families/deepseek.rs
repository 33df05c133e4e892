//! DeepSeek V2 and V3, Kimi K2 and GLM 4.7 Flash: latent attention, and experts in groups beside
//! shared ones. GLM 4.5 has the same experts.

use sws_kernels::functional::RopePairs;
use sws_store::PieceKind;

use super::common::{
    Common, Decoder, Defaults, MAX_WIDTH, chosen, dense, same_window, switched_off, width,
};
use super::{ATTENTION, ENDS, Family, MLP, NORMS, Rule, expert, matrix, small};
use crate::config::{Config, ConfigError, Entry, MAX_COUNT};
use crate::role::Role;
use crate::rope::{MAX_HEAD_DIM, Rope, RopeScaling, yarn_amplitude};
use crate::spec::{
    AttentionSpec, Ffn, GroupMeasure, Groups, LatentSpec, MAX_GROUPS, Mixer, MlpSpec, ModelSpec,
    MoeSpec, QkNorm, RankedRouter, Router, Scores, SharedSpec,
};

/// Families with latent attention.
pub(super) const LATENT: Family = Family {
    model_types: &["deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite"],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, LATENT_ATTENTION, MLP, MOE],
    spec: latent,
};

/// GLM 4.5 to 4.7, with grouped heads.
pub(super) const GLM: Family = Family {
    model_types: &["glm4_moe"],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, ATTENTION, MLP, MOE],
    spec: glm,
};

const LATENT_ATTENTION: &[Rule] = &[
    matrix(PieceKind::Attention, Role::Query, "self_attn.q_proj.weight"),
    matrix(PieceKind::Attention, Role::QueryDown, "self_attn.q_a_proj.weight"),
    small(PieceKind::Attention, Role::QueryDownNorm, "self_attn.q_a_layernorm.weight"),
    matrix(PieceKind::Attention, Role::QueryUp, "self_attn.q_b_proj.weight"),
    matrix(PieceKind::Attention, Role::KvDown, "self_attn.kv_a_proj_with_mqa.weight"),
    small(PieceKind::Attention, Role::KvDownNorm, "self_attn.kv_a_layernorm.weight"),
    matrix(PieceKind::Attention, Role::KvUp, "self_attn.kv_b_proj.weight"),
    matrix(PieceKind::Attention, Role::Output, "self_attn.o_proj.weight"),
];

const MOE: &[Rule] = &[
    small(PieceKind::Router, Role::Router, "mlp.gate.weight"),
    small(PieceKind::Router, Role::RouterCorrection, "mlp.gate.e_score_correction_bias"),
    matrix(PieceKind::SharedExpert, Role::Gate, "mlp.shared_experts.gate_proj.weight"),
    matrix(PieceKind::SharedExpert, Role::Up, "mlp.shared_experts.up_proj.weight"),
    matrix(PieceKind::SharedExpert, Role::Down, "mlp.shared_experts.down_proj.weight"),
    expert(Role::Gate, "mlp.experts.#.gate_proj.weight"),
    expert(Role::Up, "mlp.experts.#.up_proj.weight"),
    expert(Role::Down, "mlp.experts.#.down_proj.weight"),
];

/// The defaults of a family's layers.
struct LayerDefaults {
    /// Number of dense layers before those with experts.
    dense: u64,
    shared: u64,
    scale: f64,
    /// Number of groups, and of those that are kept.
    groups: [usize; 2],
}

const V2: LayerDefaults = LayerDefaults { dense: 0, shared: 2, scale: 1.0, groups: [1, 1] };
const V3: LayerDefaults = LayerDefaults { dense: 3, shared: 1, scale: 2.5, groups: [8, 4] };
const GLM_LITE: LayerDefaults = LayerDefaults { dense: 1, shared: 1, scale: 1.8, groups: [1, 1] };
const GLM_MOE: LayerDefaults = LayerDefaults { dense: 1, shared: 1, scale: 1.0, groups: [1, 1] };

fn latent(config: &Config) -> Result<ModelSpec, ConfigError> {
    let (layers, eps, context) = match config.model_type() {
        "deepseek_v2" => (V2, 1e-6, 2048),
        "glm4_moe_lite" => (GLM_LITE, 1e-5, 202_752),
        _ => (V3, 1e-6, 4096),
    };
    let defaults =
        Defaults { eps, theta: 10_000.0, kv_heads: None, head_dim: None, rotated: None, context };
    let decoder = Decoder::read(config, &defaults)?;
    same_window(config, decoder.layers, None)?;
    for key in ["attention_bias", "mlp_bias"] {
        switched_off(config, key)?;
    }
    if let Some(entry) = config.get("index_topk") {
        return Err(config.unsupported(entry, "attention to all positions"));
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
    let mut rope = Rope::of(config, rotated, (defaults.theta, defaults.rotated), decoder.context)?;
    let is_v2 = config.model_type() == "deepseek_v2";
    if is_v2 || config.flag("rope_interleave", true)? {
        rope.pairs = RopePairs::Interleaved;
    }
    let query_rank = match config.raw("q_lora_rank") {
        None => return Err(ConfigError::MissingKey("q_lora_rank")),
        Some(_) => config.get("q_lora_rank").map(|entry| entry.size(MAX_WIDTH)).transpose()?,
    };
    let plain = config.size("qk_nope_head_dim", MAX_HEAD_DIM)?;
    let scale = 1.0 / ((plain + rotated) as f64).sqrt() * sharpened(config, &rope)?;
    let spec = LatentSpec {
        heads: decoder.heads,
        query_rank,
        rank: config.size("kv_lora_rank", MAX_WIDTH)?,
        plain,
        rotated,
        value_dim: config.size("v_head_dim", MAX_HEAD_DIM)?,
        // Whatever the eps of the other norms.
        eps: 1e-6,
        scale: scale as f32,
        rope: 0,
    };
    let widest = spec.query_width().max(spec.heads * spec.head_rows());
    if widest as u64 > MAX_WIDTH {
        let reason = format!("which with {} elements each no model has", widest / spec.heads);
        return Err(config.need("num_attention_heads")?.invalid(reason));
    }
    let router = if is_v2 { softmax(config, &layers)? } else { sigmoid(config, &layers)? };
    let layers = Layers::read(config, &layers, router, decoder.layers)?;
    decoder.model(rope, |l| (Mixer::Latent(spec), layers.ffn(l)))
}

fn glm(config: &Config) -> Result<ModelSpec, ConfigError> {
    let defaults = Defaults {
        eps: 1e-5,
        theta: 10_000.0,
        kv_heads: Some(8),
        head_dim: None,
        rotated: Some(0.5),
        context: 131_072,
    };
    let common = Common::read(config, &defaults)?;
    same_window(config, common.layers, None)?;
    let qk_norm = match config.flag("use_qk_norm", false)? {
        true => QkNorm::PerHead,
        false => QkNorm::None,
    };
    let qkv_bias = config.flag("attention_bias", false)?;
    let attention = AttentionSpec { qkv_bias, qk_norm, ..common.attention.clone() };
    let router = sigmoid(config, &GLM_MOE)?;
    let layers = Layers::read(config, &GLM_MOE, router, common.layers)?;
    common.model(|l| (attention.clone(), layers.ffn(l)))
}

/// The factor by which yarn sharpens the softmax: the square of the amplitude of `mscale_all_dim`.
fn sharpened(config: &Config, rope: &Rope) -> Result<f64, ConfigError> {
    let key = "mscale_all_dim";
    let given = config.any(&["rope_parameters", "rope_scaling"]).map(Entry::object).transpose()?;
    let value = given.and_then(|given| given.get(key)).filter(|value| !value.is_null());
    let Some(entry) = value.map(|value| Entry { key, value }) else { return Ok(1.0) };
    match rope.scaling {
        RopeScaling::None => Ok(1.0),
        RopeScaling::Yarn { factor, .. } => Ok(yarn_amplitude(factor, entry.positive()?).powi(2)),
        RopeScaling::Linear { .. } | RopeScaling::Llama3 { .. } | RopeScaling::Divided => {
            Err(config.unsupported(entry, "with yarn"))
        }
    }
}

/// The router of DeepSeek V2. Its weights are never renormalised: the published code and
/// transformers disagree about what `norm_topk_prob` means, and no published model sets it.
fn softmax(config: &Config, defaults: &LayerDefaults) -> Result<RankedRouter, ConfigError> {
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
        true => groups(config, defaults, GroupMeasure::Best)?,
        false => None,
    };
    let scale = scale(config, defaults)?;
    let (scores, correction, renormalise) = (Scores::Softmax, false, false);
    Ok(RankedRouter { scores, correction, groups, renormalise, scale })
}

/// The router of DeepSeek V3.
fn sigmoid(config: &Config, defaults: &LayerDefaults) -> Result<RankedRouter, ConfigError> {
    only(config, "scoring_func", "sigmoid")?;
    only(config, "topk_method", "noaux_tc")?;
    Ok(RankedRouter {
        scores: Scores::Sigmoid,
        correction: true,
        groups: groups(config, defaults, GroupMeasure::BestTwo)?,
        renormalise: config.flag("norm_topk_prob", true)?,
        scale: scale(config, defaults)?,
    })
}

/// Refuses any other word for an entry.
fn only(config: &Config, key: &'static str, word: &'static str) -> Result<(), ConfigError> {
    match config.get(key) {
        Some(entry) if entry.word()? != word => Err(config.unsupported(entry, word)),
        _ => Ok(()),
    }
}

fn scale(config: &Config, defaults: &LayerDefaults) -> Result<f32, ConfigError> {
    let entry = config.get("routed_scaling_factor");
    Ok(entry.map_or(Ok(defaults.scale), Entry::positive)? as f32)
}

/// The groups of experts; None if there is one.
fn groups(
    config: &Config,
    defaults: &LayerDefaults,
    by: GroupMeasure,
) -> Result<Option<Groups>, ConfigError> {
    let (experts, top_k) = chosen(config)?;
    let [count_entry, kept_entry] = ["n_group", "topk_group"].map(|key| config.get(key));
    let [count, kept] = [(count_entry, 0), (kept_entry, 1)].map(|(entry, n)| {
        entry.map_or(Ok(defaults.groups[n]), |entry| entry.size(MAX_GROUPS as u64))
    });
    let (count, kept) = (count?, kept?);
    // Entries that are absent are not to blame, unless their defaults are.
    let entry =
        count_entry.or(kept_entry).map_or_else(|| config.need("num_experts_per_tok"), Ok)?;
    let size = experts / count;
    let least = match by {
        GroupMeasure::Best => 1,
        GroupMeasure::BestTwo => 2,
    };
    if !experts.is_multiple_of(count) || (count > 1 && size < least) {
        let reason = format!("and {experts} experts cannot be divided into {count} such groups");
        return Err(entry.invalid(reason));
    }
    if kept > count || kept * size < top_k {
        let reason = format!("and {kept} of {count} groups have no {top_k} experts to choose");
        return Err(kept_entry.unwrap_or(entry).invalid(reason));
    }
    Ok((count > 1).then_some(Groups { count, kept, by }))
}

/// The feed-forward blocks of all layers.
struct Layers {
    /// True for each layer that has experts.
    routed: Vec<bool>,
    mlp: Option<Ffn>,
    experts: Option<Ffn>,
}

impl Layers {
    fn read(
        config: &Config,
        defaults: &LayerDefaults,
        router: RankedRouter,
        layers: usize,
    ) -> Result<Layers, ConfigError> {
        if let Some(entry) = config.get("moe_layer_freq")
            && entry.value.as_u64() != Some(1)
        {
            return Err(config.unsupported(entry, "1, experts in all layers after dense ones"));
        }
        let routed: Vec<bool> = match config.get("mlp_layer_types") {
            Some(entry) => {
                let kinds = entry.list()?;
                if kinds.len() != layers {
                    let reason = format!("of {} entries for {layers} layers", kinds.len());
                    return Err(entry.invalid(reason));
                }
                let routed = kinds.iter().map(|kind| match kind.as_str() {
                    Some("sparse") => Ok(true),
                    Some("dense") => Ok(false),
                    _ => Err(config.unsupported(entry, "dense and sparse")),
                });
                routed.collect::<Result<_, _>>()?
            }
            None => {
                let first = config.get("first_k_dense_replace");
                let first = first.map_or(Ok(defaults.dense), |entry| entry.count(MAX_COUNT))?;
                (0..layers as u64).map(|l| l >= first).collect()
            }
        };
        // Entries for a kind of layer that the model does not have may be absent.
        let has = |kind| routed.contains(&kind);
        let mlp = has(false).then(|| dense(config, "intermediate_size", false)).transpose()?;
        let experts = has(true).then(|| moe(config, defaults, router)).transpose()?;
        Ok(Layers { routed, mlp, experts })
    }

    fn ffn(&self, layer: usize) -> Ffn {
        let ffn = if self.routed[layer] { self.experts } else { self.mlp };
        ffn.expect("every layer is of one kind or the other")
    }
}

/// Routed experts, and shared ones, which are one MLP that is as wide as all of them.
fn moe(
    config: &Config,
    defaults: &LayerDefaults,
    router: RankedRouter,
) -> Result<Ffn, ConfigError> {
    let (experts, top_k) = chosen(config)?;
    let width = width(config, "moe_intermediate_size")?;
    let (key, router) = ("n_shared_experts", Router::Ranked(router));
    let count = match config.raw(key) {
        None => defaults.shared,
        Some(_) => config.get(key).map_or(Ok(0), |entry| entry.count(MAX_COUNT))?,
    };
    let shared = count as usize * width;
    if shared as u64 > MAX_WIDTH {
        return Err(config.need(key)?.invalid("whose experts are wider than those of any model"));
    }
    let shared = (shared > 0).then_some(SharedSpec { mlp: MlpSpec::silu(shared), gated: false });
    let expert = MlpSpec::silu(width);
    Ok(Ffn::Moe(MoeSpec { experts, top_k, expert, router, router_bias: false, shared }))
}
