//! Phi 3.5 MoE: norms that subtract the mean, with biases on norms, attention and head, and two
//! experts that are chosen and weighted one after the other.

use sws_format::PieceKind;

use super::common::{Common, FamilyDefaults, chosen, same_window, width, window};
use super::entries::{entry_in, positive_or};
use super::mixtral::MOE;
use super::{ATTENTION, ENDS, Ends, Family, NORMS, TensorRule, small};
use crate::config::{ConfigEntry, ConfigError, ConfigMap, FamilyConfig};
use crate::role::Role;
use crate::rope::{self, INFINITE, MAX_AMPLITUDE, Rope, RopeScaling};
use crate::spec::{AttentionSpec, Ffn, MlpSpec, ModelSpec, MoeSpec, Norm, Router};

pub(super) const FAMILY: Family = Family {
    model_types: &["phimoe"],
    prefix: "model.",
    ends: Ends {
        others: &[(Role::FinalNormBias, "norm.bias"), (Role::HeadBias, "lm_head.bias")],
        ..ENDS
    },
    layer: &[NORMS, BIASES, ATTENTION, MOE],
    spec,
};

const BIASES: &[TensorRule] = &[
    small(PieceKind::Norms, Role::MixerNormBias, "input_layernorm.bias"),
    small(PieceKind::Norms, Role::FfnNormBias, "post_attention_layernorm.bias"),
];

const DEFAULTS: FamilyDefaults = FamilyDefaults {
    eps: 1e-5,
    theta: 1e6,
    kv_heads: Some(8),
    head_dim: None,
    rotated: None,
    context: 131_072,
};

fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let mut common = Common::unrotated(config, &DEFAULTS)?;
    let dim = common.attention.head_dim;
    let context = common.decoder.context;
    let rope = match near(config, dim)? {
        Some((rope, trained)) => {
            common.decoder.context = context.min(trained);
            rope
        }
        None => Rope::of(config, dim, (DEFAULTS.theta, DEFAULTS.rotated), context)?,
    };
    common.ropes.push(rope);
    common.decoder.norm = Norm::Layer { eps: common.decoder.norm.eps(), bias: true };
    common.decoder.head_bias = config.flag("lm_head_bias", false)?;
    let window = window(config, None)?;
    same_window(config, common.layers, window)?;
    let bias = config.flag("attention_bias", false)?;
    let attention =
        AttentionSpec { qkv_bias: bias, output_bias: bias, window, ..common.attention.clone() };
    let (experts, top_k) = chosen(config)?;
    if top_k != 2 {
        return Err(config.unsupported(config.need("num_experts_per_tok")?, "2"));
    }
    let noise = positive_or(config.get("router_jitter_noise"), 0.01)?;
    let expert = MlpSpec::silu(width(config, "intermediate_size")?);
    let router = Router::Near { reach: (2.0 * noise) as f32 };
    let ffn = Ffn::Moe(MoeSpec::of((experts, top_k), expert, router));
    common.model(|_| (attention.clone(), ffn))
}

/// The rotary embedding for texts up to the original context, and that length, if the configuration
/// has different ones for short and long texts. Transformers chooses one by the length of the text,
/// even for earlier positions, so only short texts are supported.
fn near(config: &FamilyConfig, dim: usize) -> Result<Option<(Rope, usize)>, ConfigError> {
    let given = rope::given(config)?.map(ConfigEntry::object).transpose()?;
    match entry_in(given, "rope_type").or(entry_in(given, "type")) {
        Some(kind) if kind.value.as_str() == Some("longrope") => {}
        _ => return Ok(None),
    }
    let theta = entry_in(given, "rope_theta").or(config.get("rope_theta"));
    let mut rope = Rope::plain(positive_or(theta, DEFAULTS.theta)?, dim);
    let factors = need_in(given, "short_factor")?;
    let divisors = factors.list()?;
    let reason = "which must have a number for each pair of a head";
    if divisors.len() != rope.inv_freq.len() {
        return Err(factors.invalid(reason));
    }
    for (angle, divisor) in rope.inv_freq.iter_mut().zip(divisors) {
        match divisor.as_f64() {
            Some(by @ 1e-3..) => *angle /= by as f32,
            _ => return Err(factors.invalid(reason)),
        }
    }
    rope.scaling = RopeScaling::Divided;
    rope.factor = need_in(given, "short_mscale")?.at_most(MAX_AMPLITUDE)? as f32;
    let key = "original_max_position_embeddings";
    let trained = entry_in(given, key).or(config.get(key)).ok_or(ConfigError::MissingKey(key))?;
    let trained = trained.size(1 << 32)?;
    if !rope.is_finite(trained) {
        return Err(factors.invalid(INFINITE));
    }
    Ok(Some((rope, trained)))
}

/// An entry of the rotary embedding, which must be given.
fn need_in<'a>(
    given: Option<&'a ConfigMap>,
    key: &'static str,
) -> Result<ConfigEntry<'a>, ConfigError> {
    entry_in(given, key).ok_or(ConfigError::MissingKey(key))
}
