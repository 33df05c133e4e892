//! `quantization_config`: entries about weights that are published quantised.
//!
//! Tensors determine their own encoding. Only entries that could contradict it, or that request
//! further arithmetic, are read.

use super::packed;
use crate::config::{ConfigEntry, ConfigError, FamilyConfig, within};

const METHODS: &str = "weights in f32, f16 or bf16, and mxfp4, mxfp8, fp8, compressed-tensors, modelopt, awq and gptq";

/// A format of compressed-tensors: bits, kind of numbers and group sizes.
struct PackedFormat {
    name: &'static str,
    bits: (u64, &'static str),
    kind: &'static str,
    groups: (&'static [u64], &'static str),
}

/// The supported formats of compressed-tensors.
const FORMATS: [PackedFormat; 4] = [
    PackedFormat {
        name: "pack-quantized",
        bits: (4, "4"),
        kind: "int",
        groups: (&[32, 64, 128], "32, 64 and 128"),
    },
    // There is one scale per matrix, row or block.
    PackedFormat { name: "float-quantized", bits: (8, "8"), kind: "float", groups: (&[], "") },
    PackedFormat {
        name: "nvfp4-pack-quantized",
        bits: (4, "4"),
        kind: "float",
        groups: (&[16], "16"),
    },
    PackedFormat {
        name: "mxfp4-pack-quantized",
        bits: (4, "4"),
        kind: "float",
        groups: (&[32], "32"),
    },
];

/// Refuses a quantisation that would be computed differently than intended.
pub(crate) fn check(config: &FamilyConfig) -> Result<(), ConfigError> {
    let Some(entry) = config.either("quantization_config") else { return Ok(()) };
    // The method is more informative than the entry itself.
    let Some(method) = within(entry, "quant_method")? else {
        return Err(config.unsupported(entry, METHODS));
    };
    match method.word()? {
        "mxfp4" => Ok(()),
        "fp8" | "mxfp8" => check_fp8(config, entry),
        // The names of tensors depend on the method.
        "awq" | "gptq" => packed::packed(config).and(Ok(())),
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

fn check_fp8(config: &FamilyConfig, entry: ConfigEntry<'_>) -> Result<(), ConfigError> {
    if let Some(format) = within(entry, "fmt")?
        && format.word()? != "e4m3"
    {
        return Err(config.unsupported(format, "e4m3"));
    }
    match within(entry, "weight_block_size")? {
        Some(size) => {
            let block = match size.list()? {
                [rows, cols] => [rows.as_u64(), cols.as_u64()],
                _ => [None; 2],
            };
            match block {
                [Some(128), Some(128)] | [Some(1), Some(32)] => Ok(()),
                _ => Err(config.unsupported(size, "[128, 128] and [1, 32]")),
            }
        }
        None => Ok(()),
    }
}

/// True if fp8 matrices have a scale for each block.
pub(crate) fn has_blocks(config: &FamilyConfig) -> Result<bool, ConfigError> {
    let Some(entry) = config.either("quantization_config") else { return Ok(false) };
    Ok(entry.value.as_map().is_some() && within(entry, "weight_block_size")?.is_some())
}

fn check_compressed_tensors(
    config: &FamilyConfig,
    entry: ConfigEntry<'_>,
) -> Result<(), ConfigError> {
    // Rotations of activations, and sparse weights.
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
        let group = ConfigEntry { key: "config_groups", value: group };
        let format = match within(group, "format")? {
            Some(format) => Some(format),
            None => within(entry, "format")?,
        };
        let name = match format {
            Some(format) => format.value.as_str(),
            None => None,
        };
        let known = FORMATS.iter().find(|known| Some(known.name) == name);
        if let Some(format) = format
            && known.is_none()
        {
            let supported = "pack-quantized, float-quantized, nvfp4-pack-quantized and \
                             mxfp4-pack-quantized";
            format.word()?;
            return Err(config.unsupported(format, supported));
        }
        let Some(weights) = within(group, "weights")? else { continue };
        if let Some(known) = known {
            check_numbers(config, weights, known)?;
        }
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

/// Refuses numbers that do not match their format.
fn check_numbers(
    config: &FamilyConfig,
    weights: ConfigEntry<'_>,
    of: &PackedFormat,
) -> Result<(), ConfigError> {
    let PackedFormat { bits: (bits, bits_shown), kind, groups: (groups, groups_shown), .. } = *of;
    if let Some(found) = within(weights, "num_bits")?
        && found.value.as_u64() != Some(bits)
    {
        return Err(config.unsupported(found, bits_shown));
    }
    if let Some(found) = within(weights, "type")?
        && found.word()? != kind
    {
        return Err(config.unsupported(found, kind));
    }
    if let Some(found) = within(weights, "group_size")?
        && !groups.is_empty()
        && !found.value.as_u64().is_some_and(|size| groups.contains(&size))
    {
        return Err(config.unsupported(found, groups_shown));
    }
    Ok(())
}
