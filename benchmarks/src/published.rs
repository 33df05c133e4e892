//! Published models, from their configurations in `configs`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use safetensors::Dtype;
use serde_json::{Value, json};
use sws::Outline;
use sws_format::Configuration;
use sws_kernels::{Encoding, Fp8Scales, Int4Groups};
use sws_model::HubTensor;

use crate::checkpoint::PlannedTensor;

/// Lists with an entry a layer, whose first layers are dense in some models: skipping some skips them
/// in all.
const DENSE_FIRST: [&str; 4] =
    ["mlp_layer_types", "is_moe_layer", "moe_layer_freq", "sparse_attention_freq"];

/// The directory of configurations in this repository.
pub fn configs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs")
}

/// The configuration of a published model, perhaps with fewer layers or other changes.
#[derive(Clone, Debug)]
pub struct Published {
    config: Value,
}

impl Published {
    /// Reads the configuration of this name. `None` if there is none.
    pub fn named(name: &str) -> Result<Option<Published>> {
        let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c));
        let path = configs().join(format!("{name}.json"));
        if !plain || !path.exists() {
            return Ok(None);
        }
        let text = std::fs::read(&path).with_context(|| format!("`{}`", path.display()))?;
        Ok(Some(Published { config: serde_json::from_slice(&text)? }))
    }

    /// A model with this configuration.
    pub fn of(config: Value) -> Published {
        Published { config }
    }

    /// The names of all configurations.
    pub fn names() -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in configs().read_dir()? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            names.extend(name.strip_suffix(".json").map(str::to_owned));
        }
        names.sort();
        Ok(names)
    }

    /// Keeps the first `layers` layers, of which at most one is dense if others have experts, and at
    /// most one has a table of experts. Where layers have one branch each, keeps the first run with
    /// the most experts.
    pub fn keep_layers(&mut self, layers: usize) -> Result<()> {
        let entries = self.entries();
        let before = entries.get("num_hidden_layers").and_then(Value::as_u64);
        let before = before.context("this configuration does not say how many layers there are")?;
        for (key, value) in entries.iter_mut() {
            match (key.as_str(), value) {
                ("mlp_only_layers", Value::Array(list)) => list.retain(|layer| *layer == json!(0)),
                (key, Value::Array(list)) => keep_first(key, list, before, layers),
                ("sparse_attention_config", Value::Object(given)) => {
                    for (key, value) in given.iter_mut() {
                        if let Value::Array(list) = value {
                            keep_first(key, list, before, layers);
                        }
                    }
                }
                (
                    "first_k_dense_replace"
                    | "num_dense_layers"
                    | "moe_layer_start_index"
                    | "dense_mlp_idx"
                    | "num_hash_layers",
                    Value::Number(first),
                ) if first.as_u64() > Some(1) => *first = 1.into(),
                // Numbers of layers, from 1 on.
                ("linear_attn_config", Value::Object(given)) => {
                    for list in given.values_mut().filter_map(Value::as_array_mut) {
                        list.retain(|layer| layer.as_u64() <= Some(layers as u64));
                    }
                }
                ("hybrid_override_pattern", Value::String(letters)) => {
                    *letters = most_experts(letters, layers);
                }
                ("num_kv_shared_layers", Value::Number(last)) => {
                    let first = before - last.as_u64().unwrap_or(0).min(before);
                    *last = (layers as u64).saturating_sub(first).into();
                }
                ("interleave_moe_layer_step", step) => *step = 1.into(),
                ("moe_layers_enum", Value::String(routed)) => {
                    let numbers: Vec<String> = (1..layers).map(|layer| layer.to_string()).collect();
                    *routed = numbers.join(",");
                }
                ("moe_layer_end_index", Value::Number(last)) => *last = (layers - 1).into(),
                _ => {}
            }
        }
        entries.insert("num_hidden_layers".to_owned(), json!(layers));
        Ok(())
    }

    /// Changes one entry: `KEY=VALUE`, where the value is JSON.
    pub fn set(&mut self, change: &str) -> Result<()> {
        let told = || format!("`--set {change}` is no KEY=VALUE with a value in JSON");
        let (key, value) = change.split_once('=').with_context(told)?;
        let value = serde_json::from_str(value).with_context(told)?;
        self.entries().insert(key.to_owned(), value);
        Ok(())
    }

    /// Gives up the format of the published weights for bf16.
    pub fn make_plain(&mut self) {
        self.entries().remove("quantization_config");
        if let Some(outer) = self.config.as_object_mut() {
            outer.remove("quantization_config");
        }
    }

    /// Content of `config.json`.
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// All tensors of a checkpoint in the published layout and format.
    pub fn tensors(&self) -> Result<Vec<PlannedTensor>> {
        let json = serde_json::to_vec(&self.config)?;
        let config = Configuration::from_json("config.json", &json)?;
        let outline = Outline::of(Path::new("config.json"), &config)?;
        let Some(spec) = outline.spec() else {
            let reason = outline.refusal().map(ToString::to_string).unwrap_or_default();
            bail!("the tensors of this model are not known: {reason}");
        };
        if spec.layers.iter().any(|layer| layer.ngrams.is_some()) {
            bail!("the numbers by which n-grams find rows cannot be drawn; choose another model");
        }
        let format = outline.format(Encoding::Bf16);
        let format = format.context("no checkpoint can be written in this format; add --plain")?;
        let mut planned = Vec::new();
        for tensor in spec.hub_tensors()? {
            let quantised = tensor.matrix && !tensor.name.contains(".compressor.");
            let encoding = if quantised { format.of(tensor.kind) } else { Encoding::Bf16 };
            stored(tensor, encoding, &mut planned)?;
        }
        Ok(planned)
    }

    /// The entries of the language model.
    fn entries(&mut self) -> &mut serde_json::Map<String, Value> {
        let has_text = self.config.get("text_config").is_some_and(Value::is_object);
        let entries = if has_text { &mut self.config["text_config"] } else { &mut self.config };
        entries.as_object_mut().expect("a configuration is an object")
    }
}

/// The first run of `layers` letters, one for each layer, with the most layers of experts.
fn most_experts(pattern: &str, layers: usize) -> String {
    let letters: Vec<char> = pattern.chars().collect();
    let runs = letters.windows(layers.max(1)).rev();
    let run = runs.max_by_key(|run| experts(run)).unwrap_or(&letters);
    run.iter().collect()
}

fn experts(letters: &[char]) -> usize {
    letters.iter().filter(|letter| **letter == 'E').count()
}

/// Shortens a list that has an entry for each of the layers there were before.
fn keep_first(key: &str, list: &mut Vec<Value>, before: u64, layers: usize) {
    if list.len() as u64 == before {
        if DENSE_FIRST.contains(&key) {
            skip_dense(list, layers);
        }
        list.truncate(layers);
    }
}

/// Drops dense layers but the first, of a list that says of each layer whether it has experts, as
/// long as `layers` are left.
fn skip_dense(list: &mut Vec<Value>, layers: usize) {
    let of_dense = [json!(false), json!(0), json!("dense")];
    let dense = list.iter().take_while(|kind| of_dense.contains(kind)).count();
    let more = dense.saturating_sub(1).min(list.len().saturating_sub(layers));
    list.drain(..more);
}

/// Adds the tensors that hold one matrix or vector.
fn stored(tensor: HubTensor, encoding: Encoding, planned: &mut Vec<PlannedTensor>) -> Result<()> {
    let HubTensor { name, shape, transposed, table, .. } = tensor;
    let mut shape: Vec<usize> = shape.iter().map(|&n| n as usize).collect();
    let mut add = |name: String, dtype, shape: Vec<usize>| {
        planned.push(PlannedTensor { name, dtype, shape, below: table.unwrap_or(0) });
    };
    if table.is_some() {
        add(name, Dtype::I64, shape);
        return Ok(());
    }
    let dims = shape.len();
    // DeepSeek V4 names its scales otherwise than all others.
    let beside = |scale: &str| match name.strip_suffix("weight") {
        Some(stem) => format!("{stem}{scale}"),
        None => format!("{name}_{scale}"),
    };
    let whole = |cols: usize| {
        let reason = format!("`{name}` has {cols} columns, and {encoding} has blocks of 32");
        ensure!(cols.is_multiple_of(32), reason);
        Ok(cols / 32)
    };
    match encoding {
        Encoding::Fp8(Fp8Scales::Squares) => {
            let mut scales = shape.clone();
            for n in &mut scales[dims - 2..] {
                *n = n.div_ceil(128);
            }
            add(name.clone(), Dtype::F8_E4M3, shape);
            add(name + "_scale_inv", Dtype::F32, scales);
        }
        Encoding::Fp8(Fp8Scales::SquaresE8m0) => {
            let mut scales = shape.clone();
            for n in &mut scales[dims - 2..] {
                *n = n.div_ceil(128);
            }
            let scale = beside("scale");
            add(name, Dtype::F8_E4M3, shape);
            add(scale, Dtype::F8_E8M0, scales);
        }
        Encoding::Mxfp4 if name.ends_with(".weight") => {
            let scales = [&shape[..dims - 1], &[whole(shape[dims - 1])?]].concat();
            shape[dims - 1] /= 2;
            let scale = beside("scale");
            add(name, Dtype::I8, shape);
            add(scale, Dtype::F8_E8M0, scales);
        }
        Encoding::Mxfp4 => {
            shape[dims - 1] = whole(shape[dims - 1])?;
            let blocks = [shape.as_slice(), &[16]].concat();
            add(format!("{name}_blocks"), Dtype::U8, blocks);
            add(name + "_scales", Dtype::U8, shape);
        }
        Encoding::Int4(Int4Groups::Symmetric32) => {
            let blocks = whole(shape[dims - 1])?;
            let scales = [&shape[..dims - 1], &[blocks]].concat();
            shape[dims - 1] = 4 * blocks;
            add(format!("{name}_packed"), Dtype::I32, shape);
            add(name + "_scale", Dtype::BF16, scales);
        }
        Encoding::Bf16 => {
            if transposed {
                shape.swap(dims - 1, dims - 2);
            }
            let dtype = if is_single(&name) { Dtype::F32 } else { Dtype::BF16 };
            add(name, dtype, shape);
        }
        _ => bail!("random weights are not written in {encoding}; add --plain"),
    }
    Ok(())
}

/// True for the small tensors that checkpoints have in f32: corrections of routers, and in DeepSeek
/// V4 the weights of streams, sinks and positions in pools.
fn is_single(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    name.ends_with(".ffn.gate.bias")
        || last.starts_with("hc_")
        || ["e_score_correction_bias", "attn_sink", "ape"].contains(&last)
}
