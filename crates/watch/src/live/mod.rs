//! A run as a stream of events, for listeners elsewhere: what the server writes, and readers of it.
//!
//! A stream begins with a [`Hello`]. [`LiveFrame`]s follow, ten in a second at most, each with what has
//! happened since the one before. All is JSON; a listener who leaves frames out has lost tokens and
//! passes, which the next frame counts.

mod reader;
mod writer;

use serde::{Deserialize, Serialize};

use crate::RunStep;

pub use reader::Reader;
pub use writer::{FrameWriter, Log, LogPlace};

/// Version of the events.
pub const VERSION: u32 = 1;

/// The first event: what does not change.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`].
    pub version: u32,
    /// Id of the model.
    pub model: String,
    /// The number of each layer with experts, and of its experts.
    pub rows: Vec<[usize; 2]>,
    /// The memory budget in bytes, if there is one.
    pub budget: Option<u64>,
    /// Uses of the budget with their bytes, which add up to it.
    pub uses: Vec<(String, u64)>,
    /// What the plan of the budget expects of a text alone.
    pub plan: Option<Expected>,
    /// Maximum number of texts at a time.
    pub texts: usize,
    /// Multiples of the usual cost above which a token is dear.
    pub levels: Vec<f64>,
}

/// What a plan expects of each token of a text alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Expected {
    /// Share of the chosen experts that are in memory; `None` for a model without experts.
    pub hit_rate: Option<f64>,
    /// Bytes read.
    pub bytes: u64,
}

/// An event after the first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LiveFrame {
    /// Time in seconds, from a beginning that is the same for all frames.
    pub at: f64,
    /// The engine's work since the frame before.
    pub step: RunStep,
    /// The pass that is running: its tokens, and the layer that it has reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<[usize; 2]>,
    /// Memory of the process in bytes, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// The parts of the wall that are new: the number of the first letter, and the letters. A letter
    /// has two states: `A` + first + 5 × second.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub wall: Vec<(usize, String)>,
    /// Passes that have ended.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub passes: Vec<Passed>,
    /// The layers of a pass of late, in microseconds: duration, waits for reads, and reading.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<[u32; 3]>,
    /// Tokens that were chosen.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<Said>,
    /// Passes and tokens that were left out, as the listener reads too slowly.
    #[serde(skip_serializing_if = "is_zero")]
    pub lost: u64,
    /// The listener's requests, if they have changed: the first of those that wait or run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<Vec<LiveRequest>>,
    /// Texts of all clients that have a sequence, and those that wait for one.
    pub texts: [usize; 2],
}

/// A pass over tokens of one or several texts, with the work around it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Passed {
    /// Its number.
    pub number: u64,
    /// Time of its end.
    pub at: f64,
    /// Number of its tokens.
    pub tokens: u64,
    /// Number of texts that were continued or begun.
    pub texts: usize,
    /// True if it computed a part of a prompt.
    pub prompt: bool,
    /// Its cost, which its texts share.
    pub step: RunStep,
}

/// A token that was chosen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Said {
    /// The number of the pass that computed it.
    pub pass: u64,
    /// The text that it completes, and the id of its request; `None` if it is not the listener's.
    pub text: Option<String>,
    /// See `text`.
    pub request: Option<String>,
}

/// A request of the listener that waits or runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LiveRequest {
    /// Its id.
    pub id: String,
    /// Where it was sent.
    pub endpoint: String,
    /// `waiting`, `prompt` or `generation`.
    pub state: String,
    /// Its place among those that wait, from 1 on.
    pub place: Option<usize>,
    /// Time at which it came.
    pub queued: f64,
    /// Tokens of its prompts, and those that are done.
    pub prompt: u64,
    /// See `prompt`.
    pub done: u64,
    /// New tokens.
    pub made: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A line of the stream has at most as many bytes. One of a model of 15,000 experts has 20,000.
pub const MAX_EVENT: usize = 1 << 20;

#[cfg(test)]
mod tests;
