//! Generated text, piece by piece and as a whole.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use serde::Serialize;

use crate::{Cost, Pace};

/// A text that was generated.
#[derive(Clone, Debug, Default)]
pub struct Generated {
    /// The new tokens; one that ended the text is the last of them.
    pub tokens: Vec<u32>,
    /// All pieces of text, joined.
    pub text: String,
    /// The reason why there is no more.
    pub end: End,
    /// From the prompt to the first of them.
    pub first_token: Option<Duration>,
    /// The pace of the prompt, as far as it was computed.
    pub prompt: Pace,
    /// The pace of the tokens that were computed after it.
    pub generation: Pace,
    /// The work that it took, if that is measured.
    pub cost: Option<Cost>,
}

/// The reason why there is no more of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The model said so.
    StopToken,
    /// A stop string came up.
    StopString,
    /// As many tokens as were asked for.
    Length,
    /// The context is full.
    Context,
    /// A [`Cancel`](crate::Cancel) handle ended it, or the iterator was given up before its end.
    #[default]
    #[serde(rename = "interrupted")]
    Cancelled,
}

/// A token, and the text that it completes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The token; none for text that was held back until the end.
    pub token: Option<u32>,
    /// The text; empty while a character, or what may be a stop string, is incomplete.
    pub text: String,
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
