//! Muse Glimmer, from the keys of a GGUF file.

use super::architectures::{Architecture, QWEN3, WINDOW};
use super::layers::add_kinds;
use super::{GgufKeys, GgufMap};
use crate::config::ConfigError;

/// Norm weights in files are those of the hub plus one, and the factor of queries is the weight of
/// their norm. Layers without a window do not rotate.
pub(super) const GLIMMER: Architecture = Architecture {
    name: "muse-glimmer",
    model_types: [Some("muse_glimmer_text"), None],
    paired: true,
    no_bias: true,
    needed: &[&[
        "attention.key_length",
        "attention.sliding_window",
        "final_logit_softcapping",
        "logit_scale",
    ]],
    own: &[
        WINDOW,
        &[
            ("attention.sliding_window_pattern", ""),
            ("final_logit_softcapping", "final_logit_softcapping"),
            ("logit_scale", "output_multiplier"),
            ("rope.freq_base_swa", ""),
        ],
    ],
    more: Some(glimmer),
    ..QWEN3
};

fn glimmer(keys: &GgufKeys<'_>, entries: &mut GgufMap, layers: u64) -> Result<(), ConfigError> {
    let kinds = ["full_attention", "sliding_attention"];
    add_kinds(entries, &keys.windowed(layers, 4, false)?, kinds);
    if let Some(base) = keys.get("rope.freq_base_swa")? {
        entries.insert("rope_theta".to_owned(), base.clone());
    }
    Ok(())
}
