//! `quantization_config` of AWQ and GPTQ, whose codes are packed along the columns of a matrix.
//!
//! The tensors show which matrices are quantised, so lists of modules are ignored.

use sws_format::{Packed, Packing};

use super::entries::entry_in;
use crate::config::{ConfigEntry, ConfigError, FamilyConfig, within};

/// The packing of codes in the checkpoint, if there is any. Refuses options that would be computed
/// differently.
pub(crate) fn packed(config: &FamilyConfig) -> Result<Option<Packed>, ConfigError> {
    let Some(entry) = config.either("quantization_config") else { return Ok(None) };
    let Some(method) = entry_in(entry.value.as_map(), "quant_method") else { return Ok(None) };
    match method.value.as_str() {
        Some("awq") => awq(config, entry).map(Some),
        Some("gptq") => gptq(config, entry).map(Some),
        _ => Ok(None),
    }
}

fn awq(config: &FamilyConfig, entry: ConfigEntry<'_>) -> Result<Packed, ConfigError> {
    bits(config, entry, &["bits", "w_bit"])?;
    for key in ["version", "format", "checkpoint_format"] {
        if let Some(layout) = within(entry, key)?
            && !layout.word()?.eq_ignore_ascii_case("gemm")
        {
            return Err(config.unsupported(layout, "gemm"));
        }
    }
    if let Some(zero_point) = within(entry, "zero_point")?
        && !zero_point.flag()?
    {
        return Err(config.unsupported(zero_point, "true"));
    }
    if let Some(backend) = within(entry, "backend")?
        && backend.word()? == "llm-awq"
    {
        return Err(config.unsupported(backend, "autoawq"));
    }
    let group = group(config, entry, &["group_size", "q_group_size"])?;
    Ok(Packed { packing: Packing::Awq, group: group.or(Some(128)), act_order: false })
}

fn gptq(config: &FamilyConfig, entry: ConfigEntry<'_>) -> Result<Packed, ConfigError> {
    if within(entry, "bits")?.is_none() {
        let reason = "which has no `bits`; download config.json again";
        return Err(entry.invalid(reason));
    }
    bits(config, entry, &["bits"])?;
    let mut packing = Packing::Gptq;
    for key in ["checkpoint_format", "format"] {
        let Some(format) = within(entry, key)? else { continue };
        packing = match format.word()? {
            "gptq" => Packing::Gptq,
            "gptq_v2" => Packing::GptqV2,
            _ => return Err(config.unsupported(format, "gptq and gptq_v2")),
        };
        break;
    }
    if let Some(marlin) = within(entry, "is_marlin_format")?
        && marlin.flag()?
    {
        return Err(config.unsupported(marlin, "false"));
    }
    if let Some(integers) = within(entry, "pack_dtype")?
        && integers.word()? != "int32"
    {
        return Err(config.unsupported(integers, "int32"));
    }
    // Additional matrices beside the weights, and rotations of activations.
    for key in ["adapter", "rotation"] {
        if let Some(other) = within(entry, key)? {
            return Err(config.unsupported(other, "none"));
        }
    }
    let mut packed = Packed {
        packing,
        group: group(config, entry, &["group_size"])?.or(Some(128)),
        act_order: act_order(entry)?,
    };
    // Rules for modules by patterns. Patterns that begin with a minus exclude modules.
    let Some(rules) = within(entry, "dynamic")? else { return Ok(packed) };
    for (pattern, rule) in rules.object()? {
        if pattern.starts_with('-') {
            continue;
        }
        let rule = ConfigEntry { key: "dynamic", value: rule };
        bits(config, rule, &["bits"])?;
        if group(config, rule, &["group_size"])?.is_some() {
            packed.group = None;
        }
        packed.act_order |= act_order(rule)?;
    }
    Ok(packed)
}

/// True if the columns of a group need not be adjacent.
fn act_order(of: ConfigEntry<'_>) -> Result<bool, ConfigError> {
    match within(of, "desc_act")? {
        Some(entry) => entry.flag(),
        None => Ok(false),
    }
}

/// Refuses codes that do not have four bits.
fn bits(
    config: &FamilyConfig,
    of: ConfigEntry<'_>,
    keys: &[&'static str],
) -> Result<(), ConfigError> {
    for &key in keys {
        if let Some(bits) = within(of, key)?
            && bits.count(u64::MAX)? != 4
        {
            return Err(config.unsupported(bits, "4"));
        }
    }
    Ok(())
}

/// The number of columns in a group, if an entry gives it; `u64::MAX` for a single group.
fn group(
    config: &FamilyConfig,
    of: ConfigEntry<'_>,
    keys: &[&'static str],
) -> Result<Option<u64>, ConfigError> {
    for &key in keys {
        let Some(size) = within(of, key)? else { continue };
        if size.value.as_f64() == Some(-1.0) {
            return Ok(Some(u64::MAX));
        }
        let columns = size.count(u64::MAX)?;
        if !columns.is_power_of_two() || columns < 32 {
            return Err(config.unsupported(size, "-1 and powers of two from 32 on"));
        }
        return Ok(Some(columns));
    }
    Ok(None)
}
