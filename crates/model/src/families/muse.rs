//! Muse Glimmer and Spark: normed embeddings, norms before and after each branch, gated attention
//! whose queries and keys are normed without weights, and rotary embeddings in windowed layers only.
//! Spark adds up shares of states and branches, and its experts read a projection of the state.

use sws_format::PieceKind;
use sws_kernels::functional::Activation;

use super::common::{Common, FamilyDefaults, MAX_WIDTH, chosen, width, window, windows};
use super::entries::{epsilon_or, positive_or, size_or};
use super::per_layer::each_layer;
use super::ranked::{RankedLayers, listed};
use super::{ATTENTION, ENDS, EXPERTS, Family, MLP, TensorRule, gemma, matrix, small, stacked};
use crate::config::{ConfigError, FamilyConfig};
use crate::role::Role;
use crate::spec::{
    AttentionGate, AttentionSpec, Ffn, GateUp, LatentNorm, Mixer, MlpSpec, ModelSpec, MoeSpec,
    Norm, QkNorm, RankedRouter, Renormalise, Router, RouterScores,
};

pub(super) const GLIMMER: Family = Family {
    model_types: &["muse_glimmer_text"],
    prefix: "model.",
    ends: ENDS,
    layer: &[gemma::NORMS, ATTENTION, GATE, MLP],
    spec: glimmer,
};

const GATE: &[TensorRule] =
    &[matrix(PieceKind::Attention, Role::OutputGate, "self_attn.gate_proj.weight")];

pub(super) const SPARK: Family = Family {
    model_types: &["muse_spark_text"],
    layer: &[gemma::NORMS, SHARES, ATTENTION, GATE, MLP, MOE, EXPERTS],
    spec: spark,
    ..GLIMMER
};

const SHARES: &[TensorRule] = &[
    small(PieceKind::Norms, Role::MixerShares, "post_attention_residual_gate.gate"),
    small(PieceKind::Norms, Role::FfnShares, "post_feedforward_residual_gate.gate"),
];

const MOE: &[TensorRule] = &[
    small(PieceKind::Router, Role::Router, "mlp.gate.weight"),
    small(PieceKind::Router, Role::RouterCorrection, "mlp.gate.e_score_correction_bias"),
    matrix(PieceKind::SharedExpert, Role::ExpertsDown, "mlp.pre_expert_proj.weight"),
    small(PieceKind::SharedExpert, Role::LatentInputNorm, "mlp.pre_expert_norm.weight"),
    small(PieceKind::SharedExpert, Role::LatentNorm, "mlp.experts.post_expert_norm.weight"),
    matrix(PieceKind::SharedExpert, Role::ExpertsUp, "mlp.post_expert_proj.weight"),
    stacked(Role::GateUp, "mlp.experts.gate_up_proj"),
    stacked(Role::Down, "mlp.experts.down_proj"),
];

/// Defaults of one of the models.
struct MuseDefaults {
    family: FamilyDefaults,
    /// The factor of queries.
    queries: f64,
    /// The factor of logits.
    logits: f64,
}

const OF_GLIMMER: MuseDefaults = MuseDefaults {
    family: FamilyDefaults {
        eps: 1e-5,
        theta: 10_000.0,
        kv_heads: Some(2),
        head_dim: Some(128),
        rotated: None,
        context: 131_072,
    },
    queries: 3.87,
    logits: 0.196_116_135_138_184_04,
};

const OF_SPARK: MuseDefaults = MuseDefaults {
    family: FamilyDefaults {
        eps: 1e-5,
        theta: 500_000.0,
        kv_heads: Some(16),
        head_dim: Some(64),
        rotated: None,
        context: 1 << 20,
    },
    queries: 5.473_006_486_387_5,
    logits: 0.176_776_695_296_636_9,
};

fn glimmer(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let width = width(config, "intermediate_size")?;
    spec(config, &OF_GLIMMER, |_| Ffn::Dense(MlpSpec::silu(width)))
}

/// Experts in all layers, unless a list says otherwise.
fn spark(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let count = config.layers()? as usize;
    let routed = match config.get("mlp_layer_types") {
        Some(entry) => listed(config, entry, count)?,
        None => vec![true; count],
    };
    let eps = epsilon_or(config.get("rms_norm_eps"), 1e-5)? as f32;
    let after = epsilon_or(config.get("post_norm_eps"), AFTER)? as f32;
    let layers = RankedLayers::of(config, routed, "intermediate_size", |config| {
        experts(config, eps, after)
    })?;
    let divisor = positive_or(config.get("residual_gate_temperature"), 0.3)? as f32;
    let mut model = spec(config, &OF_SPARK, |l| layers.ffn(l))?;
    for layer in &mut model.layers {
        layer.residual.after_mixer = Some(Norm::Unweighted { eps: after });
        layer.residual.after_ffn = Some(Norm::OfScaled { eps: after });
        layer.residual.shares = Some(divisor);
        if let Mixer::Attention(attention) = &mut layer.mixer {
            attention.extras.output_norm = true;
        }
    }
    Ok(model)
}

/// Experts that read a normed projection of the state. Their outputs are normed, too.
fn experts(config: &FamilyConfig, eps: f32, after: f32) -> Result<Ffn, ConfigError> {
    let factor = positive_or(config.get("output_multiplier"), OF_SPARK.logits)? as f32;
    let router = RankedRouter {
        scores: RouterScores::SigmoidOfScaled(factor),
        renormalise: Renormalise::Sum { plus: 1e-15 },
        scale: positive_or(config.get("routed_scaling_factor"), 1.0)? as f32,
        ..RankedRouter::sigmoid()
    };
    let latent = size_or(config.get("moe_hidden_size"), 4096, MAX_WIDTH)?;
    let expert = MlpSpec::silu(width(config, "moe_intermediate_size")?);
    let expert = MlpSpec { gate_up: GateUp::Halves, ..expert };
    Ok(Ffn::Moe(MoeSpec {
        latent: Some(latent),
        latent_input: Some(Norm::Rms { eps, one_plus: true }),
        latent_norm: LatentNorm::OfEach(Norm::OfScaled { eps: after }),
        ..MoeSpec::of(chosen(config)?, expert, Router::Ranked(router))
    }))
}

/// Default eps of the norms after branches.
const AFTER: f64 = 1e-8;

fn spec(
    config: &FamilyConfig,
    defaults: &MuseDefaults,
    ffn: impl Fn(usize) -> Ffn,
) -> Result<ModelSpec, ConfigError> {
    let mut common = Common::read(config, &defaults.family)?;
    let eps = common.decoder.norm.eps();
    common.decoder.embedding_norm = Some(Norm::Unweighted { eps });
    // The weights of the last norm are its factors, as are all in GGUF files.
    let of_head = common.decoder.norm;
    let gguf = config.is_gguf();
    let after = epsilon_or(config.get("post_norm_eps"), AFTER)? as f32;
    let after = Norm::Rms { eps: after, one_plus: !gguf };
    common.decoder.residual = common.decoder.residual.normed(after);
    if !gguf {
        common.decoder.norm = of_head.one_plus();
    }
    common.decoder.logit_scale =
        positive_or(config.get("output_multiplier"), defaults.logits)? as f32;
    common.decoder.logit_cap =
        Some(positive_or(config.get("final_logit_softcapping"), 20.0)? as f32);
    let layers = common.layers;
    // Every fourth layer, counted from the last one.
    let windowed: Vec<bool> = (0..layers).map(|l| !(layers - 1 - l).is_multiple_of(4)).collect();
    let windows = windows(config, window(config, Some(2048))?, &windowed)?;
    let rotated = match gguf {
        true => windows.iter().map(Option::is_some).collect(),
        false => rotated(config, common.ropes[0].theta, windowed)?,
    };
    let bias = config.flag("attention_bias", false)?;
    // In GGUF files norms of queries have the factor as their weights.
    let factor =
        if gguf { 1.0 } else { positive_or(config.get("qk_scale_factor"), defaults.queries)? };
    let scale = factor / (common.attention.head_dim as f64).sqrt();
    let attention = AttentionSpec {
        qkv_bias: bias,
        output_bias: bias,
        qk_norm: if gguf { QkNorm::PerHead } else { QkNorm::Unweighted },
        scale: scale as f32,
        gate: Some(AttentionGate::Own { per_head: false, activation: Activation::Sigmoid }),
        ..common.attention.clone()
    };
    let mut spec = common.model(|l| {
        let rope = if rotated[l] { attention.rope } else { None };
        (AttentionSpec { window: windows[l], rope, ..attention.clone() }, ffn(l))
    })?;
    spec.head.norm = of_head;
    Ok(spec)
}

/// True for each layer that rotates queries and keys: those whose base in a list is not 0, or those
/// that `otherwise` marks.
fn rotated(
    config: &FamilyConfig,
    theta: f64,
    otherwise: Vec<bool>,
) -> Result<Vec<bool>, ConfigError> {
    let Some(entry) = config.get("layer_rope_theta") else { return Ok(otherwise) };
    let mut rotated = Vec::with_capacity(otherwise.len());
    for base in each_layer(entry, otherwise.len())? {
        // Transformers has one base for all layers.
        rotated.push(match base.as_f64() {
            Some(0.0) => false,
            Some(base) if base == theta => true,
            _ => return Err(config.unsupported(entry, "0, or the base of all layers")),
        });
    }
    Ok(rotated)
}
