//! State spaces and their layers, with the configuration keys of any family.

use sws_format::Value;
use sws_kernels::functional::MAX_TAPS;

use super::common::{MAX_STATE, MAX_WIDTH};
use super::entries::size_or;
use super::per_layer::{by_words, wrong_length};
use crate::config::{ConfigEntry, ConfigError, FamilyConfig, MAX_COUNT};
use crate::rope::MAX_HEAD_DIM;
use crate::spec::StateSpaceSpec;

/// The configuration keys of a family, and the defaults of absent entries.
pub(super) struct StateSpaceKeys {
    pub(super) heads: (&'static str, usize),
    pub(super) groups: (&'static str, usize),
    /// Elements of a key.
    pub(super) key_dim: (&'static str, usize),
    /// Number of tokens that the convolution sees.
    pub(super) taps: &'static str,
    pub(super) conv_bias: &'static str,
    pub(super) bias: &'static str,
}

/// The one branch of a layer, or the first of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BranchKind {
    StateSpace,
    Attention,
    Mlp,
    Experts,
}

impl StateSpaceKeys {
    /// Reads a state space with heads of `head_dim` elements, whose norm has this eps.
    pub(super) fn read(
        &self,
        config: &FamilyConfig,
        head_dim: usize,
        eps: f32,
    ) -> Result<StateSpaceSpec, ConfigError> {
        let heads = keyed_size(config, self.heads, MAX_COUNT)?;
        let groups = keyed_size(config, self.groups, MAX_COUNT)?;
        let key_dim = keyed_size(config, self.key_dim, MAX_HEAD_DIM)?;
        let taps = size_or(config.get(self.taps), 4, MAX_COUNT)?;
        if let Some(entry) = config.get(self.taps)
            && taps > MAX_TAPS
        {
            return Err(config.unsupported(entry, "up to 8"));
        }
        if !heads.is_multiple_of(groups) {
            let reason = format!("which {heads} heads cannot share");
            return Err(config.need(self.groups.0)?.invalid(reason));
        }
        let conv_bias = config.flag(self.conv_bias, true)?;
        let bias = config.flag(self.bias, false)?;
        let powers = config.is_gguf();
        let spec =
            StateSpaceSpec { heads, groups, key_dim, head_dim, taps, conv_bias, bias, eps, powers };
        if (spec.rows() as u64 > MAX_WIDTH || spec.recurrence().state_len() > MAX_STATE)
            && let Some(entry) = config.any(&[self.heads.0, self.key_dim.0, "hidden_size"])
        {
            return Err(entry.invalid("which with the sizes of these heads no model has"));
        }
        unlimited_steps(config)?;
        Ok(spec)
    }
}

/// The size under a key, or the default beside it.
fn keyed_size(
    config: &FamilyConfig,
    (key, default): (&'static str, usize),
    limit: u64,
) -> Result<usize, ConfigError> {
    size_or(config.get(key), default, limit)
}

/// Refuses limits on the steps by which states decay. A limit of at least 1e30 is none: some files
/// write infinity, and others the largest number they have.
fn unlimited_steps(config: &FamilyConfig) -> Result<(), ConfigError> {
    let Some(entry) = config.get("time_step_limit") else { return Ok(()) };
    match entry.list()? {
        [least, most] if least.as_f64() == Some(0.0) && is_unlimited(most) => Ok(()),
        _ => Err(config.unsupported(entry, "[0, Infinity]")),
    }
}

/// True for infinity, for which JSON has no number: Python writes a word, and transformers 5 an object
/// that contains it.
fn is_unlimited(step: &Value) -> bool {
    match step {
        Value::String(word) => word == "Infinity",
        Value::Map(tagged) => tagged.get("__float__").and_then(Value::as_str) == Some("Infinity"),
        number => matches!(number.as_f64(), Some(1e30..)),
    }
}

/// The kinds of all layers by `layers_block_type` or `layer_types`.
pub(super) fn kinds(config: &FamilyConfig) -> Result<Option<Vec<BranchKind>>, ConfigError> {
    let Some(entry) = config.any(&["layers_block_type", "layer_types"]) else { return Ok(None) };
    let kinds = [
        ("mamba", BranchKind::StateSpace),
        ("linear_attention", BranchKind::StateSpace),
        ("attention", BranchKind::Attention),
        ("full_attention", BranchKind::Attention),
        ("mlp", BranchKind::Mlp),
        ("moe", BranchKind::Experts),
    ];
    let kinds = by_words(config, entry, entry.list()?, &kinds, "mamba, attention, mlp and moe")?;
    check_count(entry, kinds.len(), config.layers()?)?;
    Ok(Some(kinds))
}

/// Refuses a list of kinds with another length than the number of layers.
pub(super) fn check_count(
    entry: ConfigEntry<'_>,
    kinds: usize,
    layers: u32,
) -> Result<(), ConfigError> {
    match kinds == layers as usize {
        true => Ok(()),
        false => Err(wrong_length(entry, kinds, layers as usize)),
    }
}
