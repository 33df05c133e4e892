//! A run as a stream of events for remote listeners: the server's writer, and the reader.
//!
//! A stream begins with a [`Hello`]. [`LiveFrame`]s follow, at most ten per second, each with the
//! changes since the previous one. All events are JSON. A listener that reads too slowly loses
//! tokens and passes, and the next frame has their number.

mod reader;
mod writer;

use serde::{Deserialize, Serialize};
use sws_engine::DriveMetrics;
use sws_engine::watch::TierTally;

use crate::RunStep;

pub use reader::Reader;
pub use writer::{FrameWriter, Log, LogPlace};

/// Version of the events.
pub const VERSION: u32 = 1;

/// The first event, with facts that do not change.
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
    /// Uses of the budget with their bytes, whose sum is the budget.
    pub uses: Vec<(String, u64)>,
    /// The plan's expectations for a single text.
    pub plan: Option<Expected>,
    /// Maximum number of texts at a time.
    pub texts: usize,
    /// Multiples of the usual cost above which a token is expensive.
    pub levels: Vec<f64>,
}

/// The plan's expectations for each token of a single text.
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
    /// Time in seconds since the same origin in all frames.
    pub at: f64,
    /// Work of the engine since the previous frame.
    pub step: RunStep,
    /// The running pass: its number of tokens, and the layer that it has reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<[usize; 2]>,
    /// Memory of the process in bytes, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Reads from each of several drives since the model was loaded, its own first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drives: Vec<DriveMetrics>,
    /// The tier of experts outside memory, such as a graphics card.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<TierTally>,
    /// The changed parts of the wall: the index of the first letter, and the letters. A letter has
    /// two states: `A` + first + 5 × second.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub wall: Vec<(usize, String)>,
    /// Passes that have ended.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub passes: Vec<Passed>,
    /// The layers of a recent pass, in microseconds: duration, waits for reads, and reading.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<[u32; 3]>,
    /// Tokens that were chosen.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<Said>,
    /// Number of passes and tokens that were lost, because the listener reads too slowly.
    #[serde(skip_serializing_if = "is_zero")]
    pub lost: u64,
    /// The listener's requests, if they have changed: the first of those that are waiting or
    /// running.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<Vec<LiveRequest>>,
    /// Number of texts of all clients that have a sequence, and number of texts that wait for one.
    pub texts: [usize; 2],
}

/// A pass over tokens of one or several texts, including the work around it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Passed {
    /// Number of the pass.
    pub number: u64,
    /// Time of its end.
    pub at: f64,
    /// Number of its tokens.
    pub tokens: u64,
    /// Number of texts that were continued or begun.
    pub texts: usize,
    /// True if it computed a part of a prompt.
    pub prompt: bool,
    /// Cost of the pass, which its texts share.
    pub step: RunStep,
}

/// A token that was chosen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Said {
    /// The number of the pass that computed it.
    pub pass: u64,
    /// The text that the token completes, and the id of its request; `None` if the request belongs
    /// to another listener.
    pub text: Option<String>,
    /// See `text`.
    pub request: Option<String>,
}

/// A waiting or running request of the listener.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LiveRequest {
    /// Id of the request.
    pub id: String,
    /// Endpoint of the request.
    pub endpoint: String,
    /// `waiting`, `prompt` or `generation`.
    pub state: String,
    /// Place in the queue, from 1.
    pub place: Option<usize>,
    /// Time at which the request arrived.
    pub queued: f64,
    /// Number of tokens of its prompts, and number of prompt tokens that are done.
    pub prompt: u64,
    /// See `prompt`.
    pub done: u64,
    /// New tokens.
    pub made: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Maximum bytes of a line of the stream. With 15,000 experts, a line has 20,000.
pub const MAX_EVENT: usize = 1 << 20;

#[cfg(test)]
mod tests;
