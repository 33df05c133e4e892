//! Tensors of the weights that a model does not need.

use std::collections::{BTreeMap, HashSet};
use std::convert::Infallible;

use sws_format::{Manifest, PieceId, PieceKind, Tensor};

use crate::families::{self, Names};
use crate::spec::{KeyValues, LayerSpec, Mixer, ModelSpec};

/// A tensor that no pass reads.
#[derive(Clone, Copy, Debug)]
pub struct Unused<'m> {
    /// The tensor.
    pub tensor: &'m Tensor,
    /// The part of the model to which it belongs.
    pub part: UnusedPart,
}

/// Parts of models whose tensors are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnusedPart {
    /// The part for images and videos.
    Images,
    /// The part for sound.
    Sound,
    /// Layers for multi-token prediction.
    Prediction,
    /// No part: values that other tensors contain, too, or that the arithmetic of f32 does not
    /// need.
    Needless,
    /// Possibly the language model. The configuration may then belong to another model.
    Unknown,
}

/// Unused tensors of one part with similar names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Their part of the model.
    pub part: UnusedPart,
    /// Their names, with `*` for numbers that differ, or their common beginning.
    pub names: String,
    /// Number of tensors.
    pub tensors: usize,
    /// Bytes of these tensors.
    pub bytes: u64,
}

impl UnusedPart {
    /// Describes `count` tensors of the part in words.
    pub fn tensors(self, count: usize) -> String {
        let (tensors, predict) = match count {
            1 => ("tensor", "predicts"),
            _ => ("tensors", "predict"),
        };
        match self {
            UnusedPart::Images => format!("{count} {tensors} for images"),
            UnusedPart::Sound => format!("{count} {tensors} for sound"),
            UnusedPart::Prediction => format!("{count} {tensors} that {predict} further tokens"),
            UnusedPart::Needless => format!("{count} {tensors} that the computation does not need"),
            UnusedPart::Unknown => {
                format!("{count} {tensors} that the configuration does not ask for")
            }
        }
    }
}

impl ModelSpec {
    /// The tensors that no pass reads. The weights must contain all tensors that passes do read.
    pub fn unused<'m>(&self, manifest: &'m Manifest) -> Vec<Unused<'m>> {
        let Some(names) = families::names(&self.model_type, self.wrapper.as_deref()) else {
            return Vec::new();
        };
        let names = names.of_weights(manifest);
        let predicting = predicting(names, manifest);
        let mut read = HashSet::new();
        let mut unused = Vec::new();
        let Ok(()) = self.pieces(|id, wanted| {
            read.insert(id);
            let tensors = manifest.piece(id).map_or(&[][..], |piece| &piece.tensors);
            if tensors.len() > wanted.len() {
                let mut known = HashSet::new();
                for it in wanted {
                    known.extend(names.names_of(id, it.role));
                    known.insert(names.name_of(id, it.role));
                }
                // Programs that produce GPTQ add biases of zeros.
                let packed = tensors.iter().any(|tensor| tensor.packing.is_some());
                // Checkpoints of A.X K1 have a norm after experts for dense layers, too.
                let norm = (self.model_type == "axk1").then_some("post_mlp_layernorm.weight");
                for tensor in tensors {
                    if known.contains(&tensor.name) {
                        continue;
                    }
                    let of_experts = norm.is_some_and(|norm| tensor.name.ends_with(norm));
                    let part = match of_experts || packed && tensor.name.ends_with(".bias") {
                        true => UnusedPart::Needless,
                        false => UnusedPart::Unknown,
                    };
                    unused.push(Unused { tensor, part });
                }
            }
            Ok::<(), Infallible>(())
        });
        for piece in &manifest.pieces {
            if read.contains(&piece.id) {
                continue;
            }
            for tensor in &piece.tensors {
                let part = match piece.id.kind() {
                    PieceKind::Extra => self.part_of(names, &tensor.name, &predicting),
                    _ => UnusedPart::Unknown,
                };
                unused.push(Unused { tensor, part });
            }
        }
        unused
    }

    /// Like [`unused`](Self::unused), with similar names grouped, so that few lines name all
    /// tensors.
    pub fn left_out(&self, manifest: &Manifest) -> Vec<LeftOut> {
        LeftOut::of(self.unused(manifest))
    }

    /// The part of a tensor that has no place among the pieces.
    fn part_of(&self, names: Names, name: &str, predicting: &HashSet<u64>) -> UnusedPart {
        let in_layer = layer_of(names, name);
        if let Some((layer, _)) = in_layer
            && predicting.contains(&layer)
        {
            return UnusedPart::Prediction;
        }
        if NEEDLESS.iter().any(|ending| name.ends_with(ending)) {
            return UnusedPart::Needless;
        }
        if let Some((layer, rest)) = in_layer {
            // Published checkpoints contain keys and values of layers that use those of other
            // layers.
            let layer = self.layers.get(layer as usize);
            let lent = matches!(layer, Some(LayerSpec { mixer: Mixer::Attention(attention), .. })
                if matches!(attention.key_values, KeyValues::Of(_)));
            let of_keys = rest.split('.').any(|it| ["k_proj", "v_proj", "k_norm"].contains(&it));
            return match rest.ends_with(OF_IMAGES) {
                true => UnusedPart::Images,
                false if lent && of_keys => UnusedPart::Needless,
                false => UnusedPart::Unknown,
            };
        }
        if name.contains("mtp") {
            UnusedPart::Prediction
        } else if has_any(name, &["audio", "sound", "speech"]) {
            UnusedPart::Sound
        } else if has_any(name, &["vis", "image", "vit_", "patch", "projector", "aligner"]) {
            UnusedPart::Images
        } else {
            UnusedPart::Unknown
        }
    }
}

fn has_any(name: &str, words: &[&str]) -> bool {
    words.iter().any(|word| name.contains(word))
}

/// Endings of tensors whose numbers are computed, checked elsewhere or used for rounded activations
/// and caches.
const NEEDLESS: [&str; 13] = [
    "inv_freq",
    "position_ids",
    ".weight_shape",
    ".input_scale",
    ".input_global_scale",
    ".output_scale",
    ".activation_scale",
    ".qscale_act",
    ".q_scale",
    ".k_scale",
    ".v_scale",
    ".kv_scale",
    ".prob_output_scale",
];

/// The ending of tensors in the language model's layers that only image positions use.
const OF_IMAGES: &str = "_vl";

impl LeftOut {
    /// Groups tensors with similar names. Tensors of a whole part of the model are grouped by the
    /// beginnings of their names.
    pub fn of<'m>(unused: impl IntoIterator<Item = Unused<'m>>) -> Vec<LeftOut> {
        let mut groups: BTreeMap<(UnusedPart, String), LeftOut> = BTreeMap::new();
        for Unused { tensor, part } in unused {
            let name = tensor.name.as_str();
            let whole =
                matches!(part, UnusedPart::Images | UnusedPart::Sound | UnusedPart::Prediction);
            let (like, name) = match whole && !name.ends_with(OF_IMAGES) {
                true => (beginning(name), beginning(name)),
                false => (without_numbers(name), name.to_owned()),
            };
            let none = LeftOut { part, names: name.clone(), tensors: 0, bytes: 0 };
            let group = groups.entry((part, like)).or_insert(none);
            if group.names != name {
                group.names = both(&group.names, &name);
            }
            group.tensors += 1;
            group.bytes += tensor.stored_bytes();
        }
        groups.into_values().collect()
    }
}

/// The parts of a name before the first number, two at most.
fn beginning(name: &str) -> String {
    let parts = name.split('.').take(2).take_while(|part| part.parse::<u64>().is_err());
    let whole = parts.collect::<Vec<_>>().join(".");
    if whole == name { whole } else { format!("{whole}.*") }
}

/// A name with `*` for its numbers.
fn without_numbers(name: &str) -> String {
    let parts = name.split('.').map(|part| if part.parse::<u64>().is_ok() { "*" } else { part });
    parts.collect::<Vec<_>>().join(".")
}

/// Merges two names of the same form, with `*` for numbers that differ.
fn both(one: &str, other: &str) -> String {
    let parts = one.split('.').zip(other.split('.'));
    parts.map(|(a, b)| if a == b { a } else { "*" }).collect::<Vec<_>>().join(".")
}

/// The layers for multi-token prediction, which first combine a hidden state with an embedding.
fn predicting(names: Names, manifest: &Manifest) -> HashSet<u64> {
    let mut layers = HashSet::new();
    let Some(extra) = manifest.piece(PieceId::EXTRA) else { return layers };
    for tensor in &extra.tensors {
        if tensor.name.contains("eh_proj")
            && let Some((layer, _)) = layer_of(names, &tensor.name)
        {
            layers.insert(layer);
        }
    }
    layers
}

/// Number of the layer in the name of a tensor, from safetensors or GGUF files, and the rest of the
/// name.
fn layer_of(names: Names, name: &str) -> Option<(u64, &str)> {
    let rest = names.in_layers(name).or(name.strip_prefix("blk."))?;
    let (layer, rest) = rest.split_once('.')?;
    Some((layer.parse().ok()?, rest))
}
