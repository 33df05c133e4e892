//! Generated text, piece by piece and as a whole.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use serde::Serialize;

use crate::{Cost, Pace};

/// A generated text.
#[derive(Clone, Debug, Default)]
pub struct Generated {
    /// The new tokens, including one that ended the text.
    pub tokens: Vec<u32>,
    /// All pieces of text, joined.
    pub text: String,
    /// The model's reasoning before an answer in a conversation.
    pub reasoning: String,
    /// The reason why the text ended.
    pub end: End,
    /// Time from the prompt to the first of the tokens.
    pub first_token: Option<Duration>,
    /// Pace of the prompt, as far as it was computed.
    pub prompt: Pace,
    /// Pace of the tokens computed after the prompt.
    pub generation: Pace,
    /// Cost of the text, if it is measured.
    pub cost: Option<Cost>,
}

/// Reason why a text ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The model chose a stop token.
    StopToken,
    /// The text reached a stop string.
    StopString,
    /// The required structure is complete, and no token can follow.
    Complete,
    /// The last tokens of the text repeat themselves; see [`Generate::ending_repeats`](crate::Generate::ending_repeats).
    Repeats,
    /// The text has the requested number of tokens.
    Length,
    /// The context is full.
    Context,
    /// A [`Cancel`](crate::Cancel) handle ended the text, or the iterator was dropped early.
    #[default]
    #[serde(rename = "interrupted")]
    Cancelled,
}

/// A token and the text that it completes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The token. `None` for text that was held back until the end.
    pub token: Option<u32>,
    /// The text. Empty while a character or a possible stop string is incomplete.
    pub text: String,
    /// A part of the model's reasoning before its answer in a conversation. It precedes the text.
    pub reasoning: String,
}

impl Deref for Piece {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}
