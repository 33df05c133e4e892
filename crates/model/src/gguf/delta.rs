//! Gated delta nets, from the keys of a GGUF file.

use super::layers::add_kinds;
use super::{GgufKeys, GgufMap, exact, int, undamaged};
use crate::config::ConfigError;

/// Keys of architectures with delta nets, and the corresponding entries of configurations.
pub(super) const KEYS: &[(&str, &str)] = &[
    ("ssm.conv_kernel", "linear_conv_kernel_dim"),
    ("ssm.state_size", "linear_key_head_dim"),
    ("ssm.group_count", "linear_num_key_heads"),
    ("ssm.time_step_rank", "linear_num_value_heads"),
    ("ssm.inner_size", ""),
    ("attention.recurrent_layers", ""),
    ("full_attention_interval", "full_attention_interval"),
    ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
    ("rope.dimension_count", ""),
    // Sections for positions in pictures. For text all three positions are equal.
    ("rope.dimension_sections", ""),
];

impl GgufKeys<'_> {
    /// Adds the length of values and the kinds of layers.
    pub(super) fn add_delta(&self, entries: &mut GgufMap, layers: u64) -> Result<(), ConfigError> {
        for key in ["ssm.conv_kernel", "ssm.state_size", "ssm.group_count"] {
            self.needed(key)?;
        }
        let width = self.needed("ssm.inner_size")?;
        let heads = self.needed("ssm.time_step_rank")?;
        let name = self.name("ssm.inner_size");
        let dim = undamaged(exact(width, heads), &name, &int(width))?;
        entries.insert("linear_value_head_dim".to_owned(), int(dim));
        let name = self.name("attention.recurrent_layers");
        if let Some(given) = self.given.get(&name) {
            let mut recurrent = self.flags(&name, given)?;
            // Layers for multi-token prediction come last.
            recurrent.truncate(layers as usize);
            add_kinds(entries, &recurrent, ["full_attention", "linear_attention"]);
        }
        Ok(())
    }
}
