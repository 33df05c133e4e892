//! Arguments for the structure of texts and answers.

/// Heading of these options.
#[cfg(feature = "forms")]
const STRUCTURED: &str = "Structured output";

/// The structure that a text must have. Without any, it is free; a program without the feature `forms` has
/// none of these options.
#[derive(Debug, Default, clap::Args)]
#[group(multiple = false)]
pub(crate) struct StructuredArgs {
    #[cfg(feature = "forms")]
    /// Write JSON by this schema, or by the one in this file.
    #[arg(long, value_name = "SCHEMA", help_heading = STRUCTURED, hide_short_help = true)]
    pub(crate) json_schema: Option<String>,
    #[cfg(feature = "forms")]
    /// Write a text that this regular expression matches as a whole.
    #[arg(long, value_name = "REGEX", help_heading = STRUCTURED, hide_short_help = true)]
    pub(crate) regex: Option<String>,
    #[cfg(feature = "forms")]
    /// Write a text of this grammar, or of the one in this file: in Lark's notation, or in llama.cpp's
    /// (GBNF).
    #[arg(long, value_name = "GRAMMAR", help_heading = STRUCTURED, hide_short_help = true)]
    pub(crate) grammar: Option<String>,
}
