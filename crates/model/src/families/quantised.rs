//! `quantization_config`: what it says about weights that are published quantised.
//!
//! Tensors name their own encoding, so only entries are read that could contradict them or that ask
//! for arithmetic beside them.

use super::packed;
use crate::config::{Config, ConfigError, Entry};

const METHODS: &str =
    "weights in f32, f16 or bf16, and mxfp4, fp8, compressed-tensors, modelopt, awq and gptq";

/// The formats of compressed-tensors that are read.
const FORMATS: [&str; 4] =
    ["pack-quantized", "float-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized"];

/// Refuses a quantisation that would not be computed as it was meant.
pub(crate) fn check(config: &Config) -> Result<(), ConfigError> {
    let Some(entry) = config.either("quantization_config") else { return Ok(()) };
    // The method is more informative than the entry itself.
    let Some(method) = within(entry, "quant_method")? else {
        return Err(config.unsupported(entry, METHODS));
    };
    match method.word()? {
        "mxfp4" => Ok(()),
        "fp8" => check_fp8(config, entry),
        // Names of tensors depend on it.
        "awq" | "gptq" => packed::packed(config).map(|_| ()),
        "compressed-tensors" => check_compressed_tensors(config, entry),
        "modelopt" => match within(entry, "quant_algo")? {
            Some(name) if !matches!(name.word()?, "FP8" | "NVFP4" | "MIXED_PRECISION") => {
                Err(config.unsupported(name, "FP8, NVFP4 and MIXED_PRECISION"))
            }
            _ => Ok(()),
        },
        _ => Err(config.unsupported(method, METHODS)),
    }
}

fn check_fp8(config: &Config, entry: Entry<'_>) -> Result<(), ConfigError> {
    if let Some(format) = within(entry, "fmt")?
        && format.word()? != "e4m3"
    {
        return Err(config.unsupported(format, "e4m3"));
    }
    match within(entry, "weight_block_size")? {
        Some(size) if !size.list()?.iter().all(|side| side.as_u64() == Some(128)) => {
            Err(config.unsupported(size, "[128, 128]"))
        }
        _ => Ok(()),
    }
}

fn check_compressed_tensors(config: &Config, entry: Entry<'_>) -> Result<(), ConfigError> {
    // Rotations of activations, and weights of which some are left out.
    for (key, kind) in [("transform_config", "config_groups"), ("sparsity_config", "format")] {
        let Some(other) = within(entry, key)? else { continue };
        if let Some(kind) = within(other, kind)?
            && kind.value.as_str() != Some("dense")
        {
            return Err(config.unsupported(other, "none"));
        }
    }
    let Some(groups) = within(entry, "config_groups")? else { return Ok(()) };
    for group in groups.object()?.values() {
        let group = Entry { key: "config_groups", value: group };
        let format = match within(group, "format")? {
            Some(format) => Some(format),
            None => within(entry, "format")?,
        };
        if let Some(format) = format
            && !FORMATS.contains(&format.word()?)
        {
            let supported = "pack-quantized, float-quantized, nvfp4-pack-quantized and \
                             mxfp4-pack-quantized";
            return Err(config.unsupported(format, supported));
        }
        let Some(weights) = within(group, "weights")? else { continue };
        if let Some(symmetric) = within(weights, "symmetric")?
            && !symmetric.flag()?
        {
            return Err(config.unsupported(symmetric, "true"));
        }
        if let Some(order) = within(weights, "actorder")?
            && !matches!(order.value.as_str(), Some("weight" | "static"))
            && order.value.as_bool() != Some(false)
        {
            return Err(config.unsupported(order, "weight and static"));
        }
    }
    Ok(())
}

/// An entry of an object; null counts as absent.
pub(super) fn within<'a>(
    of: Entry<'a>,
    key: &'static str,
) -> Result<Option<Entry<'a>>, ConfigError> {
    let value = of.object()?.get(key).filter(|value| !value.is_null());
    Ok(value.map(|value| Entry { key, value }))
}
