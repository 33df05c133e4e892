//! Sparse attention of DeepSeek V3.2 and GLM 5: the indexers that select positions, and the layers
//! that have one.

use sws_kernels::functional::RopePairs;

use super::common::{MAX_WIDTH, switched_on};
use super::entries::{count_or, size_or};
use super::per_layer::wrong_length;
use crate::config::{ConfigEntry, ConfigError, FamilyConfig, MAX_COUNT};
use crate::rope::MAX_HEAD_DIM;
use crate::spec::{IndexerSpec, SparseSpec};

/// Defaults: the layers with an indexer, and its rotation.
struct IndexerDefaults {
    heads: usize,
    /// Eps of the norm of the indexer's keys.
    eps: f32,
    pairs: RopePairs,
    /// True if the last elements are rotated, instead of the first.
    turns_last: bool,
    /// True if layers may use the selection of an earlier layer.
    shares: bool,
}

/// Defaults of families whose layers may share a selection. The first elements are rotated, in
/// halves.
const FIRST: IndexerDefaults = IndexerDefaults {
    heads: 32,
    eps: 1e-6,
    pairs: RopePairs::HalfSplit,
    turns_last: false,
    shares: true,
};

/// Maximum number of selected positions.
const MAX_SELECTED: u64 = 1 << 20;
/// Maximum number of positions that are scored together.
const MAX_GROUP: u64 = 4096;

/// The sparse attention of each layer; None if the family has none.
pub(super) fn read(
    config: &FamilyConfig,
    layers: usize,
    rotated: usize,
) -> Result<Option<Vec<SparseSpec>>, ConfigError> {
    let defaults = match config.model_type() {
        "axk2" => IndexerDefaults { heads: 16, shares: false, ..FIRST },
        "deepseek_v32" => IndexerDefaults { heads: 64, shares: false, ..FIRST },
        "glm_moe_dsa" | "mistral_large4_text" => {
            IndexerDefaults { pairs: RopePairs::Interleaved, ..FIRST }
        }
        _ => {
            return match config.get("index_topk") {
                Some(entry) => Err(config.unsupported(entry, "attention to all positions")),
                None => Ok(None),
            };
        }
    };
    // Configurations of transformers 5 have a list.
    if let Some(entry) = config.get("layer_types")
        && entry.list()?.iter().any(|kind| kind.as_str() != Some("indexed_attention"))
    {
        return Err(config.unsupported(entry, "indexed_attention in all layers"));
    }
    fixed(config, "rope_interleave", true)?;
    fixed(config, "indexer_rope_interleave", defaults.pairs == RopePairs::Interleaved)?;
    let (most, indexer) = indexer(config, &defaults, rotated)?;
    let own = if defaults.shares { own(config, layers, 0)? } else { vec![true; layers] };
    Ok(Some(selections(&own, most, indexer)))
}

/// Maximum number of selected positions, and the indexer.
fn indexer(
    config: &FamilyConfig,
    defaults: &IndexerDefaults,
    rotated: usize,
) -> Result<(usize, IndexerSpec), ConfigError> {
    let heads = size_or(config.get("index_n_heads"), defaults.heads, MAX_COUNT)?;
    let dim = size_or(config.get("index_head_dim"), 128, MAX_HEAD_DIM)?;
    let most = size_or(config.get("index_topk"), 2048, MAX_SELECTED)?;
    if dim < rotated {
        let reason = format!("which is less than the {rotated} elements that are rotated");
        let entry = match config.get("index_head_dim") {
            Some(entry) => entry,
            None => config.need("qk_rope_head_dim")?,
        };
        return Err(entry.invalid(reason));
    }
    if (heads * dim) as u64 > MAX_WIDTH {
        let reason = format!("which with {dim} elements each no model has");
        return Err(config.need("index_n_heads")?.invalid(reason));
    }
    let &IndexerDefaults { eps, pairs, turns_last, .. } = defaults;
    let of_hidden = config.model_type() == "mistral_large4_text";
    let indexer = IndexerSpec { heads, dim, turns_last, eps, pairs, group: 1, of_hidden };
    Ok((most, indexer))
}

/// Selections of up to `most` positions, by the indexer in the layers that have their own.
fn selections(own: &[bool], most: usize, indexer: IndexerSpec) -> Vec<SparseSpec> {
    own.iter().map(|own| SparseSpec { most, indexer: own.then_some(indexer) }).collect()
}

/// The sparse attention of dots3-note, in whose layers with an indexer each has its own.
pub(super) fn interleaved(
    config: &FamilyConfig,
    rotated: usize,
) -> Result<SparseSpec, ConfigError> {
    let defaults = IndexerDefaults { heads: 64, pairs: RopePairs::Interleaved, ..FIRST };
    let (most, indexer) = indexer(config, &defaults, rotated)?;
    Ok(SparseSpec { most, indexer: Some(indexer) })
}

/// The sparse attention of Hy4, whose indexers rotate the last elements. By default, the first two
/// layers and every fourth one after them have an indexer.
pub(super) fn turning_last(
    config: &FamilyConfig,
    layers: usize,
    rotated: usize,
    eps: f32,
) -> Result<Vec<SparseSpec>, ConfigError> {
    let defaults = IndexerDefaults { heads: 16, eps, turns_last: true, ..FIRST };
    let (most, indexer) = indexer(config, &defaults, rotated)?;
    let keys = ["indexer_types", "index_topk_pattern", "index_topk_freq"];
    let own = match config.any(&keys) {
        Some(_) => own(config, layers, 0)?,
        None => (0..layers).map(|l| l == 0 || (l - 1).is_multiple_of(4)).collect(),
    };
    Ok(selections(&own, most, indexer))
}

/// The sparse attention of layers whose indexer scores groups of positions.
pub(super) fn grouped(
    config: &FamilyConfig,
    full: &[bool],
) -> Result<Vec<SparseSpec>, ConfigError> {
    switched_on(config, "index_kpool_always_select_tail")?;
    let (most, indexer) = indexer(config, &FIRST, 0)?;
    let entry = config.get("index_kpool");
    let group = size_or(entry, 16, MAX_GROUP)?;
    if !most.is_multiple_of(group) {
        let entry =
            entry.or(config.get("index_topk")).ok_or(ConfigError::MissingKey("index_kpool"))?;
        return Err(entry.invalid(format!("and {most} positions are not a multiple of {group}")));
    }
    let indexer = IndexerSpec { group, ..indexer };
    // The positions of whole groups, and the positions after them.
    let most = most + group - 1;
    let first = full.iter().position(|full| *full).unwrap_or(0);
    let own = own(config, full.len(), first)?;
    Ok(selections(&own, most, indexer))
}

/// Refuses an entry with another value.
fn fixed(config: &FamilyConfig, key: &'static str, value: bool) -> Result<(), ConfigError> {
    match config.get(key) {
        Some(entry) if entry.flag()? != value => {
            Err(config.unsupported(entry, if value { "true" } else { "false" }))
        }
        _ => Ok(()),
    }
}

/// True for each layer with an indexer of its own, which the layer `first` must have. Lists may
/// include layers for multi-token prediction, which are not part of the model.
fn own(config: &FamilyConfig, layers: usize, first: usize) -> Result<Vec<bool>, ConfigError> {
    let (entry, own) = if let Some(entry) = config.get("indexer_types") {
        (entry, own_by_words(entry)?)
    } else if let Some(entry) = config.get("index_topk_pattern") {
        match entry.value.as_str() {
            Some(letters) => (entry, own_by_letters(letters)),
            None => (entry, own_by_words(entry)?),
        }
    } else {
        let every = count_or(config.get("index_topk_freq"), 1)?.max(1) as usize;
        let skipped = count_or(config.get("index_skip_topk_offset"), 2)? as usize;
        let Some(entry) = config.get("index_topk_freq") else { return Ok(vec![true; layers]) };
        let mut own = Vec::with_capacity(layers);
        for number in 1..=layers {
            own.push(Some(number.saturating_sub(skipped).is_multiple_of(every)));
        }
        (entry, own)
    };
    if own.len() < layers {
        return Err(wrong_length(entry, own.len(), layers));
    }
    let own: Option<Vec<bool>> = own.into_iter().take(layers).collect();
    let Some(own) = own else { return Err(config.unsupported(entry, "full and shared")) };
    match own[first] {
        true => Ok(own),
        false => Err(entry.invalid("and the first layer has no selection to share")),
    }
}

/// True for each word of an own indexer, and None for unknown words.
fn own_by_words(entry: ConfigEntry<'_>) -> Result<Vec<Option<bool>>, ConfigError> {
    let mut own = Vec::new();
    for word in entry.list()? {
        own.push(match word.as_str() {
            Some("full") => Some(true),
            Some("shared") => Some(false),
            _ => None,
        });
    }
    Ok(own)
}

/// True for each letter of an own indexer, and None for unknown letters.
fn own_by_letters(letters: &str) -> Vec<Option<bool>> {
    let mut own = Vec::new();
    for letter in letters.chars() {
        own.push(match letter {
            'F' => Some(true),
            'S' => Some(false),
            _ => None,
        });
    }
    own
}
