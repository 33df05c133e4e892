//! Routers that rank: the experts of DeepSeek V2 and V3, which many families have under keys of
//! their own, and the layers that have experts.

use sws_kernels::functional::Activation;

use super::common::{MAX_WIDTH, chosen, dense, width};
use super::entries::{count_or, positive_or, size_or};
use super::per_layer::{all_but_first, by_words, each_layer};
use crate::config::{ConfigEntry, ConfigError, FamilyConfig};
use crate::spec::{
    ExpertGroups, Ffn, GateUp, GroupMeasure, MAX_GROUPS, MlpSpec, MoeSpec, RankedRouter,
    Renormalise, Router, RouterScores, SharedSpec,
};
use crate::spellings::GROUPS;

/// The configuration keys of a family, and the defaults of absent entries.
pub(super) struct RankedKeys {
    /// Number of dense layers before those with experts.
    pub(super) dense: (&'static str, u64),
    /// Number of shared experts.
    pub(super) shared: (&'static str, u64),
    /// The factor of the expert weights.
    pub(super) scale: (&'static str, f64),
    /// True if weights are divided by their sum.
    pub(super) renormalise: (&'static str, bool),
    /// Number of groups, and number of groups that are kept.
    pub(super) groups: [usize; 2],
}

/// The keys of most families.
pub(super) const RANKED: RankedKeys = RankedKeys {
    dense: ("first_k_dense_replace", 1),
    shared: ("n_shared_experts", 1),
    scale: ("routed_scaling_factor", 1.0),
    renormalise: ("norm_topk_prob", true),
    groups: [1, 1],
};

/// The router of DeepSeek V3.
pub(super) fn sigmoid(
    config: &FamilyConfig,
    keys: &RankedKeys,
) -> Result<RankedRouter, ConfigError> {
    let (key, default) = keys.renormalise;
    Ok(RankedRouter {
        scores: RouterScores::Sigmoid,
        correction: true,
        groups: groups(config, keys, GroupMeasure::BestTwo)?,
        renormalise: match config.flag(key, default)? {
            true => Renormalise::Sum { plus: 1e-20 },
            false => Renormalise::None,
        },
        scale: scale(config, keys)?,
    })
}

/// Refuses any other value of a word entry.
pub(super) fn only(
    config: &FamilyConfig,
    key: &'static str,
    word: &'static str,
) -> Result<(), ConfigError> {
    match config.get(key) {
        Some(entry) if entry.word()? != word => Err(config.unsupported(entry, word)),
        _ => Ok(()),
    }
}

/// The factor of the expert weights.
pub(super) fn scale(config: &FamilyConfig, keys: &RankedKeys) -> Result<f32, ConfigError> {
    let (key, default) = keys.scale;
    Ok(positive_or(config.get(key), default)? as f32)
}

/// The groups of experts; `None` if there is only one group.
pub(super) fn groups(
    config: &FamilyConfig,
    keys: &RankedKeys,
    by: GroupMeasure,
) -> Result<Option<ExpertGroups>, ConfigError> {
    let (experts, top_k) = chosen(config)?;
    let count_entry = config.any(&GROUPS);
    let kept_entry = config.any(&["topk_group"]);
    let count = size_or(count_entry, keys.groups[0], MAX_GROUPS as u64)?;
    let kept = size_or(kept_entry, keys.groups[1], MAX_GROUPS as u64)?;
    // The error names an entry that is present, if there is one.
    let entry = match count_entry.or(kept_entry) {
        Some(entry) => entry,
        None => config.top_k()?,
    };
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
    Ok((count > 1).then_some(ExpertGroups { count, kept, by }))
}

/// The feed-forward blocks of all layers.
pub(super) struct RankedLayers {
    /// True for each layer that has experts.
    pub(super) routed: Vec<bool>,
    mlp: Option<Ffn>,
    experts: Option<Ffn>,
}

impl RankedLayers {
    /// Dense layers as wide as `intermediate_size`, and routed experts beside shared ones.
    pub(super) fn ranked(
        config: &FamilyConfig,
        keys: &RankedKeys,
        router: RankedRouter,
        layers: usize,
    ) -> Result<RankedLayers, ConfigError> {
        let routed = routed(config, keys.dense, layers)?;
        RankedLayers::of(config, routed, "intermediate_size", |config| {
            moe(config, keys, Router::Ranked(router))
        })
    }

    /// Dense layers as wide as the entry `mlp`, and routed experts. Entries for a kind of layer that
    /// the model does not have may be absent.
    pub(super) fn of(
        config: &FamilyConfig,
        routed: Vec<bool>,
        mlp: &'static str,
        experts: impl FnOnce(&FamilyConfig) -> Result<Ffn, ConfigError>,
    ) -> Result<RankedLayers, ConfigError> {
        let mlp = match routed.contains(&false) {
            true => Some(dense(config, mlp, false)?),
            false => None,
        };
        let experts = match routed.contains(&true) {
            true => Some(experts(config)?),
            false => None,
        };
        Ok(RankedLayers { routed, mlp, experts })
    }

    /// The same layers, with this activation in all MLPs and experts.
    pub(super) fn activated(mut self, activation: Activation) -> RankedLayers {
        if let Some(Ffn::Dense(mlp)) = &mut self.mlp {
            mlp.activation = activation;
        }
        if let Some(Ffn::Moe(moe)) = &mut self.experts {
            moe.expert.activation = activation;
            if let Some(shared) = &mut moe.shared {
                shared.mlp.activation = activation;
            }
        }
        self
    }

    /// The same layers, with gates and ups of each expert in one matrix.
    pub(super) fn in_halves(mut self) -> RankedLayers {
        if let Some(Ffn::Moe(moe)) = &mut self.experts {
            moe.expert.gate_up = GateUp::Halves;
        }
        self
    }

    pub(super) fn ffn(&self, layer: usize) -> Ffn {
        let ffn = if self.routed[layer] { self.experts } else { self.mlp };
        ffn.expect("every layer is of one kind or the other")
    }
}

/// True for each layer with experts: those listed in `mlp_layer_types`, or all except the first
/// few, whose number is the entry `first`.
pub(super) fn routed(
    config: &FamilyConfig,
    (first, default): (&'static str, u64),
    layers: usize,
) -> Result<Vec<bool>, ConfigError> {
    if let Some(entry) = config.get("moe_layer_freq")
        && entry.value.as_u64() != Some(1)
    {
        return Err(config.unsupported(entry, "1, experts in all layers after dense ones"));
    }
    if let Some(entry) = config.get("mlp_layer_types") {
        return listed(config, entry, layers);
    }
    let first = count_or(config.get(first), default)?;
    Ok(all_but_first(first, layers))
}

/// True for each layer with experts, from a list of kinds.
pub(super) fn listed(
    config: &FamilyConfig,
    entry: ConfigEntry<'_>,
    layers: usize,
) -> Result<Vec<bool>, ConfigError> {
    let kinds = [("sparse", true), ("dense", false)];
    by_words(config, entry, each_layer(entry, layers)?, &kinds, "dense and sparse")
}

/// Routed experts, and shared experts, which form one MLP that is as wide as all of them together.
pub(super) fn moe(
    config: &FamilyConfig,
    keys: &RankedKeys,
    router: Router,
) -> Result<Ffn, ConfigError> {
    let width = width(config, "moe_intermediate_size")?;
    let shared = shared(config, keys.shared, width)?;
    let expert = MlpSpec::silu(width);
    Ok(Ffn::Moe(MoeSpec { shared, ..MoeSpec::of(chosen(config)?, expert, router) }))
}

/// The number of shared experts in the entry `key`, as one MLP. Null means none.
pub(super) fn shared(
    config: &FamilyConfig,
    (key, default): (&'static str, u64),
    width: usize,
) -> Result<Option<SharedSpec>, ConfigError> {
    let count = match config.raw(key) {
        None => default,
        Some(_) => count_or(config.get(key), 0)?,
    };
    let width = count as usize * width;
    if width as u64 > MAX_WIDTH {
        return Err(config.need(key)?.invalid("whose experts are wider than those of any model"));
    }
    Ok((width > 0).then_some(SharedSpec::added(MlpSpec::silu(width))))
}
