//! Storage formats of a model, as far as a configuration alone determines them.

use std::collections::BTreeMap;
use std::fmt;

use sws_format::{Configuration, PieceKind, Value, encoding_of, quantised_as};
use sws_kernels::{Encoding, Fp8Scales, Int4Groups, Nvfp4Scale, ZerosGroup};

/// A storage format of a model: that of the checkpoint, or one of shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// The encoding of the matrices that are published in plain floats. In the checkpoint it is
    /// bf16.
    pub plain: Encoding,
    /// The encoding in which some matrices are published quantised; `None` if there are none. `sws shard`
    /// packs codes of e4m3 for bf11, and leaves all others as they are.
    pub quantised: Option<(Encoding, Scope)>,
}

/// The matrices that a checkpoint stores quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All of the layers.
    Layers,
    /// The matrices of routed experts.
    Experts,
    /// All matrices of the layers. Those outside routed experts have this encoding.
    ExpertsAnd(Encoding),
}

impl Format {
    /// The encoding of the matrices of a kind of piece.
    pub fn of(self, kind: PieceKind) -> Encoding {
        let expert = matches!(kind, PieceKind::Expert(_));
        let outside = matches!(kind, PieceKind::Embed | PieceKind::LmHead);
        let published = match self.quantised {
            Some((encoding, _)) if expert => encoding,
            Some((encoding, Scope::Layers) | (_, Scope::ExpertsAnd(encoding))) if !outside => {
                encoding
            }
            _ => return self.plain,
        };
        quantised_as(published, encoding_of(kind, self.plain))
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.quantised, self.plain) {
            (None, plain) => write!(f, "{plain}"),
            (Some((encoding, _)), Encoding::Bf16) => write!(f, "{encoding}, as published"),
            (Some((encoding, _)), plain) => {
                write!(f, "{} and {plain}", quantised_as(encoding, plain))
            }
        }
    }
}

const QUANTISED: &str = "quantization_config";

/// The matrices that a checkpoint stores quantised, and their encoding. Fails where the
/// configuration names neither, or an encoding whose size is not known.
pub(super) fn published(
    config: &Configuration,
) -> Result<Option<(Encoding, Scope)>, UnknownFormat> {
    let text = config.entries.get("text_config").and_then(Value::as_map);
    let value = quantisation(&config.entries).or_else(|| quantisation(text?));
    let Some(value) = value else { return Ok(None) };
    // Most configurations of DeepSeek V4 have the type outside the entry.
    let dtype = value.as_map().and_then(expert_dtype).or(expert_dtype(&config.entries));
    let of_inkling2 = is_inkling2(&config.entries) || text.is_some_and(is_inkling2);
    let found = match quantised(value, of_inkling2) {
        Some((Encoding::Fp8(Fp8Scales::Squares), Scope::Layers)) if dtype == Some("fp4") => {
            let others = Encoding::Fp8(Fp8Scales::SquaresE8m0);
            Some((Encoding::Mxfp4, Scope::ExpertsAnd(others)))
        }
        found => found,
    };
    found.map(Some).ok_or(UnknownFormat)
}

/// The entry about quantised matrices, if there is one.
fn quantisation(entries: &BTreeMap<String, Value>) -> Option<&Value> {
    entries.get(QUANTISED).filter(|value| !value.is_null())
}

fn expert_dtype(entries: &BTreeMap<String, Value>) -> Option<&str> {
    entries.get("expert_dtype")?.as_str()
}

/// A quantised checkpoint whose size is not known.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnknownFormat;

fn quantised(config: &Value, of_inkling2: bool) -> Option<(Encoding, Scope)> {
    let config = config.as_map()?;
    match config.get("quant_method")?.as_str()? {
        "mxfp4" => Some((Encoding::Mxfp4, Scope::Experts)),
        "mxfp8" => {
            // Inkling 2 has its experts in mxfp8 without saying so.
            let scope = if of_inkling2 { Scope::Experts } else { in_mxfp8(config)? };
            Some((Encoding::Fp8(Fp8Scales::Thirtytwos), scope))
        }
        "fp8" => {
            let square = [Value::Int(128), Value::Int(128)];
            let blocks = config.get("weight_block_size")?.as_list()?;
            (blocks == square).then_some((Encoding::Fp8(Fp8Scales::Squares), Scope::Layers))
        }
        "compressed-tensors" => packed(config),
        method @ ("awq" | "gptq") => along_columns(config, method == "gptq"),
        _ => None,
    }
}

/// True for a configuration of Inkling 2, or of its language model.
fn is_inkling2(config: &BTreeMap<String, Value>) -> bool {
    let kind = config.get("model_type").and_then(Value::as_str);
    kind.is_some_and(|kind| kind.starts_with("inkling2"))
}

/// All matrices of layers except those of excluded modules, in blocks of 32 columns. Of modules that
/// are excluded otherwise than whole, and of experts in another format, nothing is known.
fn in_mxfp8(config: &BTreeMap<String, Value>) -> Option<Scope> {
    let block = [Value::Int(1), Value::Int(32)];
    let has_blocks =
        config.get("weight_block_size").is_none_or(|size| size.as_list() == Some(&block[..]));
    if !has_blocks || config.contains_key("moe_quant_algo") {
        return None;
    }
    let lists = ["modules_to_not_convert", "ignored_layers"].map(|key| config.get(key));
    let mut excluded = Vec::new();
    for list in lists.into_iter().flatten().filter(|list| !list.is_null()) {
        for name in list.as_list()? {
            excluded.push(name.as_str()?);
        }
    }
    let known = ["lm_head", "embed_tokens", "self_attn", "shared_expert"];
    let excluded = large(excluded.into_iter());
    let is_known = excluded.iter().all(|name| known.iter().any(|part| name.contains(part)));
    if is_known { without(&excluded) } else { None }
}

/// The names of modules without those that are small, or see pictures.
fn large<'a>(modules: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let is_large = |name: &&str| {
        let other = ["visual", "vision", "projector", "norm", "correction_bias"];
        // Routers and gates are small.
        !name.trim_end_matches('.').ends_with("gate") && !other.iter().any(|it| name.contains(it))
    };
    modules.filter(is_large).collect()
}

/// The matrices of layers without those of excluded modules. `None` if only some layers have them.
fn without(excluded: &[&str]) -> Option<Scope> {
    let scope = match (any_has(excluded, "self_attn"), any_has(excluded, "shared_expert")) {
        (true, true) => Scope::Experts,
        (false, false) => Scope::Layers,
        _ => return None,
    };
    let single_layers = excluded.iter().any(|name| name.bytes().any(|byte| byte.is_ascii_digit()));
    (!single_layers).then_some(scope)
}

/// AWQ and GPTQ: all matrices of layers except those of excluded modules. Shards of these formats
/// have about as many bytes.
fn along_columns(config: &BTreeMap<String, Value>, gptq: bool) -> Option<(Encoding, Scope)> {
    let bits = config.get("bits").or(config.get("w_bit"));
    let group = config.get("group_size").or(config.get("q_group_size"));
    if bits.and_then(Value::as_u64) != Some(4) {
        return None;
    }
    let order = gptq && config.get("desc_act").and_then(Value::as_bool).unwrap_or(false);
    let group = match group?.as_f64()? as i64 {
        32 => ZerosGroup::Of32,
        64 => ZerosGroup::Of64,
        -1 | 128.. => ZerosGroup::Of128,
        _ => return None,
    };
    let groups = if order { Int4Groups::ActOrder(group) } else { Int4Groups::Zeros(group) };
    let excluded: Vec<&str> = match gptq {
        // Patterns of excluded modules begin with a minus; modules of other patterns have formats
        // of their own.
        true => match config.get("dynamic").and_then(Value::as_map) {
            Some(rules) if !rules.keys().all(|rule| rule.starts_with('-')) => return None,
            Some(rules) => rules.keys().map(String::as_str).collect(),
            None => Vec::new(),
        },
        false => match config.get("modules_to_not_convert").and_then(Value::as_list) {
            Some(names) => names.iter().map(Value::as_str).collect::<Option<_>>()?,
            None => Vec::new(),
        },
    };
    Some((Encoding::Int4(groups), without(&large(excluded.into_iter()))?))
}

/// True if any of the names contains this part.
fn any_has(names: &[&str], part: &str) -> bool {
    names.iter().any(|name| name.contains(part))
}

/// A single group of matrices: all except the ignored names.
fn packed(config: &BTreeMap<String, Value>) -> Option<(Encoding, Scope)> {
    let groups = config.get("config_groups")?.as_map()?;
    if groups.len() != 1 {
        return None;
    }
    let group = groups.values().next()?.as_map()?;
    let weights = group.get("weights")?.as_map()?;
    let bits = weights.get("num_bits")?.as_u64()?;
    let group_size = weights.get("group_size")?.as_u64()?;
    let encoding = match (config.get("format")?.as_str()?, bits, group_size) {
        ("pack-quantized", 4, 32) => Encoding::Int4(Int4Groups::Symmetric32),
        ("pack-quantized", 4, 128) => Encoding::Int4(Int4Groups::Symmetric128),
        ("nvfp4-pack-quantized", 4, 16) => Encoding::Nvfp4(Nvfp4Scale::Divided),
        ("mxfp4-pack-quantized", 4, 32) => Encoding::Mxfp4,
        _ => return None,
    };
    // The ignored names are module names or regular expressions for them.
    let ignored: Option<Vec<&str>> =
        config.get("ignore")?.as_list()?.iter().map(Value::as_str).collect();
    let ignored = ignored?;
    if !any_has(&ignored, "lm_head") {
        return None;
    }
    let scope = match (any_has(&ignored, "self_attn"), any_has(&ignored, "shared_expert")) {
        (true, true) => Scope::Experts,
        (false, false) => Scope::Layers,
        _ => return None,
    };
    Some((encoding, scope))
}

/// The configuration of the same model in plain floats.
pub(super) fn plain(config: &Configuration) -> Configuration {
    let mut config = config.clone();
    config.entries.remove(QUANTISED);
    if let Some(Value::Map(text)) = config.entries.get_mut("text_config") {
        text.remove(QUANTISED);
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_known_only_where_all_is_said() {
        let int4 = |bits: u32, group: u32, ignore: &str| {
            format!(
                r#"{{"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": {ignore},
                    "config_groups": {{"group_0": {{"weights": {{"num_bits": {bits}, "group_size": {group}}}}}}}}}"#
            )
        };
        let experts = r#"["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*"]"#;
        let named = |groups, scope| Some(Some((Encoding::Int4(groups), scope)));
        let mxfp8 = |scope| Some(Some((Encoding::Fp8(Fp8Scales::Thirtytwos), scope)));
        let cases = [
            ("null".to_owned(), Some(None)),
            (r#"{"quant_method": "mxfp4"}"#.into(), Some(Some((Encoding::Mxfp4, Scope::Experts)))),
            (r#"{"quant_method": "mxfp8"}"#.into(), mxfp8(Scope::Layers)),
            (
                r#"{"quant_method": "mxfp8", "weight_block_size": [1, 32], "scale_fmt": "ue8m0",
                    "ignored_layers": ["lm_head", "model.embed_tokens", "vision_tower.layers.0.self_attn",
                    "model.layers.0.input_layernorm",
                    "model.layers.3.block_sparse_moe.gate", "model.layers.3.block_sparse_moe.e_score_correction_bias"]}"#
                    .into(),
                mxfp8(Scope::Layers),
            ),
            (
                r#"{"quant_method": "mxfp8",
                    "modules_to_not_convert": ["re:.*self_attn.*", "re:.*shared_experts.*"]}"#
                    .into(),
                mxfp8(Scope::Experts),
            ),
            (r#"{"quant_method": "mxfp8", "weight_block_size": [128, 128]}"#.into(), None),
            (r#"{"quant_method": "mxfp8", "moe_quant_algo": "NVFP4"}"#.into(), None),
            (r#"{"quant_method": "mxfp8", "ignored_layers": ["self_attn"]}"#.into(), None),
            (r#"{"quant_method": "mxfp8", "ignored_layers": ["linear_attn"]}"#.into(), None),
            (r#"{"quant_method": "mxfp8", "ignored_layers": 7}"#.into(), None),
            (r#"{"quant_method": "mxfp8", "ignored_layers": ["lm_head", 7]}"#.into(), None),
            (
                r#"{"quant_method": "mxfp8", "modules_to_not_convert": ["lm_head"],
                    "ignored_layers": ["re:.*self_attn.*", "re:.*shared_experts.*"]}"#
                    .into(),
                mxfp8(Scope::Experts),
            ),
            (
                r#"{"quant_method": "mxfp8", "modules_to_not_convert": null,
                    "ignored_layers": ["lm_head"]}"#
                    .into(),
                mxfp8(Scope::Layers),
            ),
            (
                r#"{"quant_method": "fp8", "weight_block_size": [128, 128]}"#.into(),
                Some(Some((Encoding::Fp8(Fp8Scales::Squares), Scope::Layers))),
            ),
            (
                r#"{"quant_method": "fp8", "weight_block_size": [128, 128], "expert_dtype": "fp4"}"#
                    .into(),
                Some(Some((
                    Encoding::Mxfp4,
                    Scope::ExpertsAnd(Encoding::Fp8(Fp8Scales::SquaresE8m0)),
                ))),
            ),
            (r#"{"quant_method": "fp8"}"#.into(), None),
            (r#"{"quant_method": "gptq"}"#.into(), None),
            (
                r#"{"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": true}"#.into(),
                named(Int4Groups::ActOrder(ZerosGroup::Of32), Scope::Layers),
            ),
            (
                r#"{"quant_method": "gptq", "bits": 4, "group_size": -1,
                    "dynamic": {"-:.*self_attn.*": {}, "-:.*shared_expert.*": {}}}"#
                    .into(),
                named(Int4Groups::Zeros(ZerosGroup::Of128), Scope::Experts),
            ),
            (
                r#"{"quant_method": "gptq", "bits": 4, "group_size": 64, "dynamic": {"+:up": {}}}"#
                    .into(),
                None,
            ),
            (r#"{"quant_method": "gptq", "bits": 8, "group_size": 128}"#.into(), None),
            (
                r#"{"quant_method": "awq", "bits": 4, "group_size": 64,
                    "modules_to_not_convert": ["mlp.gate", "mlp.shared_expert_gate."]}"#
                    .into(),
                named(Int4Groups::Zeros(ZerosGroup::Of64), Scope::Layers),
            ),
            (
                r#"{"quant_method": "awq", "bits": 4, "group_size": 128,
                    "modules_to_not_convert": ["model.layers.0."]}"#
                    .into(),
                None,
            ),
            ("7".into(), None),
            (int4(4, 32, experts), named(Int4Groups::Symmetric32, Scope::Experts)),
            (
                int4(4, 32, experts).replace("pack", "mxfp4-pack"),
                Some(Some((Encoding::Mxfp4, Scope::Experts))),
            ),
            (int4(4, 128, r#"["lm_head"]"#), named(Int4Groups::Symmetric128, Scope::Layers)),
            (int4(4, 32, r#"["lm_head", "re:.*self_attn.*"]"#), None),
            (int4(4, 32, "[]"), None),
            (int4(8, 32, experts), None),
        ];
        for (json, expected) in cases {
            for json in [
                format!(r#"{{"{QUANTISED}": {json}}}"#),
                format!(r#"{{"text_config": {{"{QUANTISED}": {json}}}}}"#),
            ] {
                let config = Configuration::from_json("config.json", json.as_bytes()).unwrap();
                assert_eq!(published(&config).ok(), expected, "{json}");
                assert!(matches!(published(&plain(&config)), Ok(None)));
            }
        }
    }

    #[test]
    fn experts_of_inkling2_alone_are_in_mxfp8() {
        let method = r#""quantization_config": {"quant_method": "mxfp8", "scale_fmt": "ue8m0"}"#;
        for (kind, scope) in [
            ("inkling2", Scope::Experts),
            ("inkling2_loop_text", Scope::Experts),
            ("minimax_m3", Scope::Layers),
        ] {
            let json = format!(r#"{{"model_type": "{kind}", {method}}}"#);
            let config = Configuration::from_json("config.json", json.as_bytes()).unwrap();
            let (_, found) = published(&config).unwrap().unwrap();
            assert_eq!(found, scope, "{kind}");
        }
    }
}
