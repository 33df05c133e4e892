//! dots3-note: latent attention with gates for heads, whose queries see selected positions in some
//! layers, and a window in the others, where all sizes differ.

use sws_format::PieceKind;
use sws_kernels::functional::RopePairs;

use super::common::{
    DecoderParts, FamilyDefaults, MAX_WIDTH, absent, chosen, switched_off, switched_on, width,
    window,
};
use super::deepseek::{INDEXER, LATENT_ATTENTION};
use super::entries::{count_or, positive_or, size_or};
use super::glm::MOE;
use super::kimi_linear::{self, LatentSizes};
use super::per_layer::{by_words, each_layer, flags_of_layers};
use super::ranked::{RANKED, RankedLayers, only, routed, sigmoid};
use super::single_layers::{SINGLE, of_kind};
use super::sparse;
use super::{ENDS, EXPERTS, Family, MLP, NORMS, TensorRule, matrix, small};
use crate::config::{ConfigEntry, ConfigError, FamilyConfig, MAX_COUNT};
use crate::role::Role;
use crate::rope::{self, INFINITE, MAX_HEAD_DIM, Rope, RopeScaling};
use crate::spec::{
    Ffn, LatentGates, LatentSpec, Mixer, MlpSpec, ModelSpec, MoeSpec, Router, SharedSpec,
};

pub(super) const FAMILY: Family = Family {
    model_types: &["dots3_note_text"],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, LATENT_ATTENTION, OWN, INDEXER, MLP, MOE, EXPERTS],
    spec,
};

const OWN: &[TensorRule] = &[
    small(PieceKind::Attention, Role::LatentKeyNorm, "self_attn.k_rope_only_layernorm.weight"),
    matrix(PieceKind::Attention, Role::OutputGate, "self_attn.g_proj.weight"),
];

const DEFAULTS: FamilyDefaults = FamilyDefaults {
    eps: 1e-5,
    theta: 8e7,
    kv_heads: None,
    head_dim: None,
    rotated: None,
    context: 524_288,
};

const SIZES: LatentSizes =
    LatentSizes { query_rank: Some(1024), plain: 128, rotated: 64, value_dim: 128 };

/// The positions that the queries of a layer see.
#[derive(Clone, Copy, PartialEq)]
enum Reach {
    Full,
    Selected,
    Windowed,
}

fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    for key in ["attention_bias", "mlp_bias"] {
        switched_off(config, key)?;
    }
    switched_on(config, "apply_mla_qkv_lora_rescale")?;
    switched_on(config, "k_rope_only_layernorm")?;
    for key in ["attention_gate_type", "swa_attention_gate_type"] {
        only(config, key, "headwise")?;
    }
    only(config, "scoring_func", "sigmoid")?;
    only(config, "topk_method", "noaux_tc")?;
    absent(config, "partial_rotary_factor")?;
    let decoder = DecoderParts::read(config, &DEFAULTS)?;
    let count = decoder.layers;
    let kinds = kinds(config, count)?;
    let has_full = kinds.contains(&Reach::Full);
    let has_selected = kinds.contains(&Reach::Selected);
    let base = LatentSpec {
        eps: decoder.norm.eps(),
        key_norm: true,
        gates: LatentGates::PerHead,
        ..kimi_linear::latent(config, decoder.heads, &SIZES)?
    };
    same_heads(config.get("num_key_value_heads"), base.heads)?;
    let mut ropes = Vec::new();
    let mut mixers = [base; 3];
    if has_full || has_selected {
        let kind = if has_full { "full_attention" } else { "indexed_attention" };
        let head_dim = size_or(config.get("head_dim"), 256, MAX_HEAD_DIM)?;
        let rope = Some(ropes.len());
        ropes.push(turned(config, kind, (head_dim, base.rotated), &decoder)?);
        let full = LatentSpec { rope, ..scaled(config, base, decoder.hidden) };
        mixers[Reach::Full as usize] = full;
        let sparse = match has_selected {
            true => Some(sparse::interleaved(config, base.rotated)?),
            false => None,
        };
        mixers[Reach::Selected as usize] = LatentSpec { sparse, ..full };
    }
    if kinds.contains(&Reach::Windowed) {
        let (own, head_dim) = windowed(config, base, &kinds)?;
        let rope = Some(ropes.len());
        ropes.push(turned(config, "sliding_attention", (head_dim, own.rotated), &decoder)?);
        let window = match window(config, None)? {
            Some(window) => window,
            None => size_or(config.get("sliding_window_size"), 512, 1 << 32)?,
        };
        let own = scaled(config, own, decoder.hidden);
        let own = LatentSpec { rope, window: Some(window), ..own };
        mixers[Reach::Windowed as usize] = own;
    }
    let router = Router::Ranked(sigmoid(config, &RANKED)?);
    let routed = match config.get("moe_layer_freq") {
        Some(entry) if entry.list().is_ok() && config.get("mlp_layer_types").is_none() => {
            let first = count_or(config.get(RANKED.dense.0), 1)?;
            let mut flags = flags_of_layers(entry, count)?;
            for flag in flags.iter_mut().take(first as usize) {
                *flag = false;
            }
            flags
        }
        _ => routed(config, RANKED.dense, count)?,
    };
    let layers =
        RankedLayers::of(config, routed, "intermediate_size", |config| experts(config, router))?;
    decoder.model(ropes, |l| (Mixer::Latent(mixers[kinds[l] as usize]), layers.ffn(l)))
}

/// The kind of each layer. By default the first two and every fourth after them select positions.
/// Old spellings say of all layers without a window at once whether they do.
fn kinds(config: &FamilyConfig, layers: usize) -> Result<Vec<Reach>, ConfigError> {
    let selects = match config.get("use_dsa") {
        Some(entry) => Some(entry.flag()?),
        None if config.get(SINGLE).is_some() => None,
        None => Some(true),
    };
    let of_all = match selects {
        Some(true) => Some(Reach::Selected),
        Some(false) => Some(Reach::Full),
        None => None,
    };
    let Some(entry) = config.get("layer_types") else {
        let windows = config.flag("use_sliding_window", true)?;
        let full = of_all.unwrap_or(Reach::Selected);
        let mut kinds = Vec::with_capacity(layers);
        for l in 0..layers {
            let is_full = !windows || l < 2 || l % 4 == 1;
            kinds.push(if is_full { full } else { Reach::Windowed });
        }
        return Ok(kinds);
    };
    let supported = "indexed_attention and sliding_attention";
    let kinds = [
        ("full_attention", of_all.unwrap_or(Reach::Full)),
        ("indexed_attention", of_all.unwrap_or(Reach::Selected)),
        ("sliding_attention", Reach::Windowed),
    ];
    let kinds = by_words(config, entry, each_layer(entry, layers)?, &kinds, supported)?;
    match kinds.contains(&Reach::Full) && kinds.contains(&Reach::Selected) {
        true => Err(config.unsupported(entry, supported)),
        false => Ok(kinds),
    }
}

/// The layer with the scales of latents, which are shorter than the state, and scaled as if they were
/// as long. In GGUF files the weights of their norms are scaled.
fn scaled(config: &FamilyConfig, spec: LatentSpec, hidden: usize) -> LatentSpec {
    let mut queries = 1.0;
    let mut latents = 1.0;
    if !config.is_gguf() {
        latents = longer(hidden, spec.rank);
        if let Some(rank) = spec.query_rank {
            queries = longer(hidden, rank);
        }
    }
    let scale = queries / ((spec.plain + spec.rotated) as f64).sqrt();
    LatentSpec { scale: scale as f32, latent_scale: latents as f32, ..spec }
}

/// The factor that makes a latent as long as the state.
pub(super) fn longer(hidden: usize, rank: usize) -> f64 {
    (hidden as f64 / rank as f64).sqrt()
}

/// Attention in windows, with sizes of its own, and the number of elements of a head of which the
/// rotated ones are a share.
fn windowed(
    config: &FamilyConfig,
    base: LatentSpec,
    kinds: &[Reach],
) -> Result<(LatentSpec, usize), ConfigError> {
    let kind: Vec<bool> = kinds.iter().map(|kind| *kind == Reach::Windowed).collect();
    let size = |key, old, limit, default| size_of_kind(config, &kind, [key, old], limit, default);
    let head_dim = size("head_dim", "swa_head_dim", MAX_HEAD_DIM, 256)?;
    let plain = size("qk_nope_head_dim", "swa_qk_nope_head_dim", MAX_HEAD_DIM, 192)?;
    let rotated = head_dim.saturating_sub(plain).max(1);
    let rotated = size("qk_rope_head_dim", "swa_qk_rope_head_dim", MAX_HEAD_DIM, rotated)?;
    let heads = size("num_attention_heads", "swa_num_attention_heads", MAX_COUNT, 64)?;
    let spec = LatentSpec {
        heads,
        query_rank: Some(size("q_lora_rank", "swa_q_lora_rank", MAX_WIDTH, 1024)?),
        rank: size("kv_lora_rank", "swa_kv_lora_rank", MAX_WIDTH, 1024)?,
        plain,
        rotated,
        value_dim: size("v_head_dim", "swa_v_head_dim", MAX_HEAD_DIM, 128)?,
        ..base
    };
    let named = ["swa_head_dim", "swa_qk_nope_head_dim", "swa_num_attention_heads"];
    let named = config.get(SINGLE).or(config.any(&named));
    if head_dim != plain + rotated || rotated % 2 == 1 {
        let reason = "and a head in a window must be its two parts, of which pairs turn";
        return Err(refused(named, reason));
    }
    if size("num_key_value_heads", "swa_num_key_value_heads", MAX_COUNT, heads)? != heads {
        return Err(refused(named, "where windows must have as many key heads as heads"));
    }
    if spec.query_width().max(heads * spec.head_rows()) as u64 > MAX_WIDTH {
        return Err(refused(named, "with which heads are wider than those of any model"));
    }
    Ok((spec, head_dim))
}

/// A size of layers in a window. If there are entries of single layers, they must give it.
fn size_of_kind(
    config: &FamilyConfig,
    kind: &[bool],
    [key, old]: [&'static str; 2],
    limit: u64,
    default: usize,
) -> Result<usize, ConfigError> {
    match of_kind(config, key, kind, old)? {
        Some(entry) => entry.size(limit),
        None if config.get(SINGLE).is_some() => Err(ConfigError::MissingKey(key)),
        None => Ok(default),
    }
}

/// An error about sizes of layers in a window. Those of the class are good ones.
fn refused(named: Option<ConfigEntry<'_>>, reason: &str) -> ConfigError {
    match named {
        Some(entry) => entry.invalid(reason),
        None => ConfigError::MissingKey("swa_head_dim"),
    }
}

/// Refuses other numbers of key heads than of heads.
fn same_heads(entry: Option<ConfigEntry<'_>>, heads: usize) -> Result<(), ConfigError> {
    match entry {
        Some(entry) if entry.size(MAX_COUNT)? != heads => {
            Err(entry.invalid(format!("where there are {heads} heads, of keys, too")))
        }
        _ => Ok(()),
    }
}

/// The rotary embedding of one kind of layers. The share of a head that is rotated is that of the
/// sizes, whatever the entries say, so they must agree.
fn turned(
    config: &FamilyConfig,
    kind: &'static str,
    (head_dim, rotated): (usize, usize),
    decoder: &DecoderParts<'_>,
) -> Result<Rope, ConfigError> {
    const BASE: &str = "swa_rope_theta";
    let given = match rope::given(config)? {
        Some(entry) => !entry.object()?.is_empty(),
        None => false,
    };
    let context = decoder.context;
    let mut rope = if given {
        let share = rotated as f64 / head_dim as f64;
        Rope::of_kind(config, kind, head_dim, (DEFAULTS.theta, Some(share)), context)?
    } else {
        let entry = match kind {
            "sliding_attention" => config.get(BASE),
            _ => config.get("rope_theta"),
        };
        let default = if kind == "sliding_attention" { 50_000.0 } else { DEFAULTS.theta };
        let rope = Rope::plain(positive_or(entry, default)?, rotated);
        if let Some(entry) = entry
            && !rope.is_finite(context)
        {
            return Err(entry.invalid(INFINITE));
        }
        rope
    };
    let entry = config.get("rope_scaling").or(config.get("rope_parameters"));
    if let Some(entry) = entry
        && (rope.dim != rotated || rope.scaling != RopeScaling::None)
    {
        return Err(
            config.unsupported(entry, "no scaling, and the share of a head that is rotated")
        );
    }
    rope.pairs = RopePairs::Interleaved;
    Ok(rope)
}

/// Experts beside shared ones, whose width is an entry of its own.
fn experts(config: &FamilyConfig, router: Router) -> Result<Ffn, ConfigError> {
    let keys = ["moe_shared_expert_intermediate_size", "shared_experts_intermediate_size"];
    let entry = config.any(&keys);
    let each = size_or(entry, 1536, MAX_WIDTH)?;
    let count = size_or(config.get("n_shared_experts"), 1, MAX_COUNT)?;
    let all = each * count;
    if all as u64 > MAX_WIDTH {
        let entry = entry.or(config.get("n_shared_experts"));
        let entry = entry.ok_or(ConfigError::MissingKey(keys[1]))?;
        return Err(entry.invalid("with which shared experts are wider than those of any model"));
    }
    let shared = Some(SharedSpec::added(MlpSpec::silu(all)));
    let expert = MlpSpec::silu(width(config, "moe_intermediate_size")?);
    Ok(Ffn::Moe(MoeSpec { shared, ..MoeSpec::of(chosen(config)?, expert, router) }))
}
