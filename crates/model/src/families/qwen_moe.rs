//! Qwen's mixtures of experts, and OLMoE, whose tensor names are the same. Some layers may be
//! dense.

use std::collections::HashSet;

use sws_format::{PieceKind, Value};

use super::common::{
    Common, FamilyDefaults, dense, moe, same_window, shared_width, switched_window, windows,
};
use super::{ATTENTION, ENDS, EXPERTS, Family, MLP, NORMS, TensorRule, matrix, small};
use crate::config::{ConfigError, FamilyConfig, MAX_COUNT};
use crate::role::Role;
use crate::spec::{
    AttentionExtras, AttentionSpec, Ffn, Mixer, MlpSpec, ModelSpec, QkNorm, SharedSpec,
};

pub(super) const FAMILY: Family = Family {
    model_types: &["qwen2_moe", "qwen3_moe", "olmoe"],
    prefix: "model.",
    ends: ENDS,
    layer: &[NORMS, ATTENTION, MLP, MOE, SHARED, EXPERTS],
    spec,
};

pub(super) const SHARED: &[TensorRule] = &[
    matrix(PieceKind::SharedExpert, Role::Gate, "mlp.shared_expert.gate_proj.weight"),
    matrix(PieceKind::SharedExpert, Role::Up, "mlp.shared_expert.up_proj.weight"),
    matrix(PieceKind::SharedExpert, Role::Down, "mlp.shared_expert.down_proj.weight"),
];

pub(super) const MOE: &[TensorRule] = &[
    small(PieceKind::Router, Role::Router, "mlp.gate.weight"),
    small(PieceKind::SharedExpert, Role::SharedGate, "mlp.shared_expert_gate.weight"),
];

fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    match config.model_type() {
        "qwen2_moe" => qwen2(config),
        "qwen3_moe" => qwen3(config),
        _ => olmoe(config),
    }
}

/// Qwen2: a shared expert with its own gate, biases on queries, keys and values, and a window, if
/// enabled, in every other layer below `max_window_layers`.
fn qwen2(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let defaults = FamilyDefaults { kv_heads: Some(16), ..QWEN };
    let common = Common::read(config, &defaults)?;
    let end = config.get("max_window_layers").map_or(Ok(28), |entry| entry.count(MAX_COUNT))?;
    let has_window = |l: usize| l.is_multiple_of(2) && (l as u64) < end;
    let windows = windows(config, common.layers, switched_window(config)?, has_window)?;
    let qkv_bias = config.flag("qkv_bias", true)?;
    let attention = AttentionSpec { qkv_bias, ..common.attention.clone() };
    let width = shared_width(config, "shared_expert_intermediate_size", 5632)?;
    let shared = SharedSpec { gated: true, ..SharedSpec::added(MlpSpec::silu(width)) };
    let layers = MoeLayers::read(config, &[], Some(shared))?;
    let renormalise = config.flag("norm_topk_prob", false)?;
    layers.model(config, common, renormalise, |l| AttentionSpec {
        window: windows[l],
        ..attention.clone()
    })
}

/// Qwen3: a norm on each head of queries and keys, no shared expert, and the same window in all
/// layers.
fn qwen3(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let defaults = FamilyDefaults { kv_heads: Some(4), ..QWEN };
    let common = Common::read(config, &defaults)?;
    let window = switched_window(config)?;
    same_window(config, common.layers, window)?;
    let bias = config.flag("attention_bias", false)?;
    let attention = AttentionSpec {
        qkv_bias: bias,
        output_bias: bias,
        qk_norm: QkNorm::PerHead,
        window,
        ..common.attention.clone()
    };
    let layers = MoeLayers::read(config, &[], None)?;
    let renormalise = config.flag("norm_topk_prob", false)?;
    layers.model(config, common, renormalise, |_| attention.clone())
}

/// OLMoE: a norm over all query heads together, a norm over all key heads, and clamped results.
fn olmoe(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let defaults = FamilyDefaults { eps: 1e-5, kv_heads: None, context: 4096, ..QWEN };
    let common = Common::read(config, &defaults)?;
    same_window(config, common.layers, None)?;
    let bias = config.flag("attention_bias", false)?;
    let clip = config.get("clip_qkv").map(|entry| entry.positive()).transpose()?;
    let clip = clip.map(|clip| clip as f32);
    let attention = AttentionSpec {
        qkv_bias: bias,
        output_bias: bias,
        qk_norm: QkNorm::FullWidth,
        extras: AttentionExtras { clip, ..common.attention.extras },
        ..common.attention.clone()
    };
    let ffn = moe(config, "intermediate_size", config.flag("norm_topk_prob", false)?, None)?;
    common.model(|_| (attention.clone(), ffn))
}

const QWEN: FamilyDefaults = FamilyDefaults {
    eps: 1e-6,
    theta: 10_000.0,
    kv_heads: None,
    head_dim: None,
    rotated: None,
    context: 32_768,
};

/// The distribution of dense and expert layers.
pub(super) struct MoeLayers {
    /// Every `step`-th layer has experts, unless it is listed in `dense`.
    step: usize,
    /// Layers that are dense in any case.
    dense: HashSet<usize>,
    shared: Option<SharedSpec>,
}

impl MoeLayers {
    /// Reads the entries; `dense` are the layers that are dense if none are listed.
    pub(super) fn read(
        config: &FamilyConfig,
        dense: &[usize],
        shared: Option<SharedSpec>,
    ) -> Result<Self, ConfigError> {
        let step = config.get("decoder_sparse_step").map_or(Ok(1), |e| e.size(MAX_COUNT))?;
        let dense = match config.get("mlp_only_layers") {
            None => dense.iter().copied().collect(),
            Some(entry) => {
                let layer = |value: &Value| value.as_u64().map(|layer| layer as usize);
                let layers: Option<HashSet<usize>> = entry.list()?.iter().map(layer).collect();
                layers.ok_or_else(|| entry.invalid("which must list numbers of layers"))?
            }
        };
        Ok(MoeLayers { step, dense, shared })
    }

    pub(super) fn model<M: Into<Mixer>>(
        self,
        config: &FamilyConfig,
        common: Common<'_>,
        renormalise: bool,
        mixer: impl Fn(usize) -> M,
    ) -> Result<ModelSpec, ConfigError> {
        let shared = self.shared;
        let experts = || moe(config, "moe_intermediate_size", renormalise, shared);
        self.with(config, common, experts, mixer)
    }

    /// The specification of the model with experts of another kind.
    pub(super) fn with<M: Into<Mixer>>(
        self,
        config: &FamilyConfig,
        common: Common<'_>,
        experts: impl FnOnce() -> Result<Ffn, ConfigError>,
        mixer: impl Fn(usize) -> M,
    ) -> Result<ModelSpec, ConfigError> {
        let routes = |l: &usize| !self.dense.contains(l) && (l + 1).is_multiple_of(self.step);
        let any = |routed: bool| (0..common.layers).any(|l| routes(&l) == routed);
        // Entries for a kind of layer that the model does not have may be absent.
        let mlp = any(false).then(|| dense(config, "intermediate_size", false)).transpose()?;
        let experts = any(true).then(experts).transpose()?;
        common.model(|l| {
            let ffn = if routes(&l) { experts } else { mlp };
            (mixer(l), ffn.expect("every layer is of one kind or the other"))
        })
    }
}
