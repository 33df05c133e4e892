//! Reasons why a pass ends early.

use crate::source::SourceError;

/// Reasons why a pass ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ForwardError {
    /// More tokens than fit into the context.
    #[error(
        "{}; shorten the text, or ask for a larger context if the model has one",
        match used {
            0 => format!("the text has {asked} tokens, and the context has room for {limit}"),
            _ => format!(
                "{asked} more tokens do not fit behind the {used} that the context holds, with room for {limit} in all"
            ),
        }
    )]
    ContextFull {
        used: usize,
        asked: usize,
        /// Maximum number of positions.
        limit: usize,
    },
    /// A token without an embedding.
    #[error(
        "the token id {token} does not exist in this model, whose ids end at {last}; use the tokenizer that was published with it"
    )]
    UnknownToken {
        token: u32,
        /// The largest token id of the model.
        last: usize,
    },
    /// An empty chunk.
    #[error("there are no tokens to continue with; give at least one")]
    NoTokens,
    /// An earlier pass over this sequence ended in the middle.
    #[error(
        "an earlier pass over this text failed in the middle; clear it, or rewind it to a state saved before"
    )]
    Interrupted,
    /// A sequence that was removed.
    #[error("the sequence {0} was removed; add another")]
    Removed(usize),
    /// The source failed.
    #[error(transparent)]
    Source(#[from] SourceError),
}
