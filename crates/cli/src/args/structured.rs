//! Arguments for the structure of a text.

/// Heading of these options.
const STRUCTURED: &str = "Structured output";

/// The structure that a text must have. Without any, it is free.
#[derive(Debug, Default, clap::Args)]
#[group(multiple = false)]
pub(crate) struct StructuredArgs {
    /// Write JSON by this schema, or by the one in this file.
    #[arg(long, value_name = "SCHEMA", conflicts_with = "certify", help_heading = STRUCTURED, hide_short_help = true)]
    pub(crate) json_schema: Option<String>,
    /// Write a text that this regular expression matches as a whole.
    #[arg(long, value_name = "REGEX", conflicts_with = "certify", help_heading = STRUCTURED, hide_short_help = true)]
    pub(crate) regex: Option<String>,
    /// Write a text of this grammar, or of the one in this file: in Lark's notation, or in llama.cpp's
    /// (GBNF).
    #[arg(long, value_name = "GRAMMAR", conflicts_with = "certify", help_heading = STRUCTURED, hide_short_help = true)]
    pub(crate) grammar: Option<String>,
}
