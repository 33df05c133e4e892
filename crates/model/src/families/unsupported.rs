//! Families that are known and not supported, and what this program lacks for them.

/// Model types of a family, and the part that is missing, which follows "it has" in a sentence.
pub type Lacking = (&'static [&'static str], &'static str);

/// Families that transformers 5.24 defines, or other programs serve.
pub const LACKING: [Lacking; 1] =
    [(&["deepseek_v41"], "tables of n-grams for which there is no code in transformers")];

/// What is missing for a model type, as a part of a sentence; empty for an unknown one.
pub(crate) fn lacking(model_type: &str) -> String {
    match LACKING.iter().find(|(types, _)| types.contains(&model_type)) {
        Some((_, lacking)) => format!(" (it has {lacking})"),
        None => String::new(),
    }
}
