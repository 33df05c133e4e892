//! Tasks for processes of their own, and what comes back.

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sws_draft::{Adapting, Draft, NoDraft};
use sws_model::ModelSpec;
use sws_testing::cgroup::Group;
use sws_testing::child;
use sws_text::Sampling;

/// Bytes for a draft.
pub(crate) const DRAFT_BYTES: usize = 1 << 20;

/// A task for a child process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) model: PathBuf,
    pub(crate) ram: Ram,
    pub(crate) policy: String,
    pub(crate) reader: String,
    pub(crate) context: usize,
    pub(crate) work: Work,
    #[serde(default)]
    pub(crate) draft: Drafting,
    /// True if the child only reports its plan.
    #[serde(default)]
    pub(crate) only_plan: bool,
}

/// Draft used by a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) enum Drafting {
    #[default]
    No,
    /// Our draft, untrained, which does not learn.
    Frozen,
    /// Our draft, untrained at the start, which learns.
    Learning,
}

impl Drafting {
    pub(crate) fn make(self, spec: &ModelSpec) -> Result<Box<dyn Draft>> {
        if self == Drafting::No {
            return Ok(Box::new(NoDraft));
        }
        let mut draft = sws_testing::draft(spec, DRAFT_BYTES)?;
        if self == Drafting::Frozen {
            draft.set_adapting(Adapting::History);
        }
        Ok(Box::new(draft))
    }
}

/// Memory for a task.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Ram {
    /// All weights are loaded.
    Resident,
    /// The smallest budget that works in this very process, with all weights streamed.
    Least,
    /// The smallest budget that also works in another process.
    Min,
    /// The budget that leaves slots for this share of the experts' bytes.
    Share(f64),
    Bytes(u64),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Work {
    /// Computes the logits of every token.
    Score(Vec<u32>),
    /// Makes certificates of answers.
    Certify { prompt: Vec<u32>, tokens: usize, samplings: Vec<Sampling> },
    /// Replays certificates.
    Replay(Vec<String>),
    /// Continues a text by prompts of these lengths, with a few tokens of its own after each.
    /// Starts again when the text no longer fits.
    Talk(Vec<usize>),
    /// Gives this many short answers, then lowers the budget by half of the slots.
    Endure(usize),
    /// Continues many texts.
    Crowd(Crowd),
    /// Continues texts of two models in turns.
    Switch(Switch),
    /// Continues a text on each request.
    Turns { prompt: Vec<u32>, sampling: Sampling },
}

/// A number of texts, and the reads of a thousand that fail.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Crowd {
    pub(crate) texts: usize,
    pub(crate) per_mille: u32,
}

/// A second model, and the number of loads of both in turns.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Switch {
    pub(crate) other: PathBuf,
    pub(crate) loads: usize,
}

/// Request to a contender for one turn.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// This many further tokens of its text.
    Generate(usize),
    /// The logits after a prompt in an empty context, with the cache as it is.
    Prompt(Vec<u32>),
    /// A new text of this many tokens, sampled with this seed. The turn's figures leave out its
    /// prompt.
    Topic { prompt: Vec<u32>, seed: u64, tokens: usize },
}

/// Measurements of one turn.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Turn {
    pub(crate) seconds: f64,
    /// Bytes read from the device.
    pub(crate) bytes: u64,
    /// Share of the time in which a read was in flight.
    pub(crate) busy: f64,
    /// Seconds in which computing stalled.
    pub(crate) stalled: f64,
    /// Forecast bytes that were resident or in flight when a router asked for them.
    pub(crate) early: u64,
    /// Generated tokens.
    pub(crate) tokens: Vec<u32>,
}

/// Result of a task: the fields of every kind of work.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Done {
    /// Budget; 0 for a resident model. The fields after it say how it was divided.
    pub(crate) budget: u64,
    /// Bytes of the process without the model.
    pub(crate) floor: u64,
    pub(crate) pinned: usize,
    pub(crate) slots: u64,
    /// Bytes of the slots that exist only while tokens come one at a time.
    pub(crate) lent: u64,
    pub(crate) arena: u64,
    /// Bytes of all weights; `experts` has those of the experts.
    pub(crate) weights: u64,
    pub(crate) experts: u64,
    pub(crate) peak_rss: u64,
    pub(crate) metrics: Value,
    /// Bits of logits.
    pub(crate) logits: Vec<u32>,
    pub(crate) certificates: Vec<String>,
    /// Reads that have failed.
    pub(crate) faults: u64,
    /// Number of steps whose every bit agreed, out of `steps`.
    pub(crate) agreed: usize,
    pub(crate) steps: usize,
    pub(crate) differs: Option<String>,
    pub(crate) endured: Endured,
}

/// Memory of the process as reported by the system.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Endured {
    /// After a few answers; `late` is after many more.
    pub(crate) early: u64,
    pub(crate) late: u64,
    /// After the budget was lowered; `given_up` is the drop in slot bytes.
    pub(crate) lowered: u64,
    pub(crate) given_up: u64,
}

/// End of a child that did not finish.
#[derive(Debug)]
pub(crate) enum Ended {
    Killed(i32),
    Failed(anyhow::Error),
}

impl Task {
    /// Runs the task in a process of its own, in a control group if one is given.
    pub(crate) fn run(&self, group: Option<&Group>) -> Result<Done, Ended> {
        let output = child::run("child", self, group).map_err(Ended::Failed)?;
        if let Some(signal) = output.status.signal() {
            return Err(Ended::Killed(signal));
        }
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Ended::Failed(anyhow!("{said}")));
        }
        serde_json::from_slice(&output.stdout).map_err(|e| Ended::Failed(e.into()))
    }
}

/// Turns an unfinished child into an error.
pub(crate) fn finished(ended: Result<Done, Ended>) -> Result<Done> {
    match ended {
        Ok(done) => Ok(done),
        Err(Ended::Failed(error)) => Err(error),
        Err(Ended::Killed(signal)) => bail!("a child was killed by signal {signal}"),
    }
}
