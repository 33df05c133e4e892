//! Writes the events of a run.

use std::collections::VecDeque;
use std::time::Duration;

use sws_engine::watch::Lap;

use super::{LiveFrame, Passed, Said};
use crate::story::{beginning, packed};
use crate::{Follower, RunStep, Wall};

/// Number of latest passes and tokens in a log.
const KEPT: usize = 1024;
/// Maximum bytes of a token's text.
const TEXT: usize = 128;
/// Maximum number of equal letters between two changes that are sent together.
const GAP: usize = 8;

/// The latest passes and tokens of a run, for all listeners.
#[derive(Debug, Default)]
pub struct Log {
    passes: LogRing<Passed>,
    tokens: LogRing<LoggedToken>,
    layers: Vec<[u32; 3]>,
}

/// A token and its owner.
#[derive(Debug)]
struct LoggedToken {
    pass: u64,
    owner: u64,
    text: String,
    request: String,
}

/// The latest values, and the number of all values.
#[derive(Debug)]
struct LogRing<T> {
    kept: VecDeque<T>,
    all: u64,
}

impl<T> Default for LogRing<T> {
    fn default() -> LogRing<T> {
        LogRing { kept: VecDeque::new(), all: 0 }
    }
}

impl<T> LogRing<T> {
    fn push(&mut self, value: T) {
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(value);
        self.all += 1;
    }

    /// The values from a number on, and the number of those that are no longer kept.
    fn since(&self, number: u64) -> (impl Iterator<Item = &T>, u64) {
        let first = self.all - self.kept.len() as u64;
        let skipped = usize::try_from(number.saturating_sub(first)).unwrap_or(usize::MAX);
        (self.kept.iter().skip(skipped), first.saturating_sub(number))
    }
}

impl Log {
    /// Maximum bytes of a log.
    pub const BYTES: u64 =
        (KEPT * (size_of::<Passed>() + size_of::<LoggedToken>() + TEXT + 64)) as u64;

    /// Appends a token of the next pass. Only `owner` may see its text.
    pub fn token(&mut self, owner: u64, request: &str, text: &str) {
        let text = beginning(text, TEXT).to_owned();
        let request = request.chars().take(64).collect();
        self.tokens.push(LoggedToken { pass: self.passes.all, owner, text, request });
    }

    /// Appends a pass, and gives it a number.
    pub fn pass(&mut self, pass: Passed) {
        let step = pass.step.rounded();
        let number = self.passes.all;
        self.passes.push(Passed { number, at: rounded(pass.at), step, ..pass });
    }

    /// Stores the layers of a pass.
    pub fn layers(&mut self, layers: &[Lap]) {
        self.layers.clear();
        for lap in layers {
            self.layers.push([lap.time, lap.waiting, lap.reading].map(micros));
        }
    }

    /// The place after the last token and pass.
    pub fn end(&self) -> LogPlace {
        LogPlace { passes: self.passes.all, tokens: self.tokens.all }
    }

    /// Adds everything since a place to a frame, as far as an owner may see it, and advances the
    /// place.
    fn read(&self, place: &mut LogPlace, owner: u64, frame: &mut LiveFrame) {
        let (passes, lost) = self.passes.since(place.passes);
        frame.passes.extend(passes);
        frame.lost += lost;
        let (tokens, lost) = self.tokens.since(place.tokens);
        frame.lost += lost;
        let mut seen = lost;
        for token in tokens {
            // Tokens of the running pass have no cost yet.
            if token.pass >= self.passes.all {
                break;
            }
            let mut said = Said { pass: token.pass, ..Said::default() };
            if token.owner == owner {
                said.text = Some(token.text.clone());
                said.request = Some(token.request.clone());
            }
            frame.tokens.push(said);
            seen += 1;
        }
        if !frame.passes.is_empty() {
            frame.layers.clone_from(&self.layers);
        }
        *place = LogPlace { passes: self.passes.all, tokens: place.tokens + seen };
    }
}

/// A place in a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPlace {
    passes: u64,
    tokens: u64,
}

/// The state that was sent to a listener. The next frame contains the difference.
#[derive(Debug)]
pub struct FrameWriter {
    follower: Option<Follower>,
    owner: u64,
    place: LogPlace,
    wall: Wall,
    letters: String,
}

impl FrameWriter {
    /// Creates the writer for a listener who may see the texts of an owner. `follower` provides the
    /// state of the experts, if there is one.
    pub fn new(follower: Option<Follower>, owner: u64, place: LogPlace) -> FrameWriter {
        let rows = follower.as_ref().map_or(Vec::new(), Follower::rows);
        FrameWriter { follower, owner, place, wall: Wall::new(rows), letters: String::new() }
    }

    /// Bytes per listener, for a model with this many experts: old and new states and letters, and
    /// the longest event.
    pub fn bytes_for(experts: usize) -> u64 {
        let entry = 3 * (size_of::<Passed>() + size_of::<Said>()) + TEXT;
        (experts * 16 + KEPT * entry) as u64
    }

    /// The layers with experts, and the number of experts in each.
    pub fn rows(&self) -> Vec<[usize; 2]> {
        self.wall.rows.iter().map(|row| [row.layer, row.experts]).collect()
    }

    /// The next frame, with the changes since the last one.
    pub fn frame(&mut self, at: f64, log: &Log) -> LiveFrame {
        let mut frame = LiveFrame { at: rounded(at), ..LiveFrame::default() };
        if let Some(follower) = &mut self.follower {
            frame.step = follower.step().rounded();
            frame.running = follower.running();
            frame.drives = follower.drives();
            frame.tier = follower.tier();
            follower.look(&mut self.wall);
            let letters = packed(&self.wall.states);
            frame.wall = changed(&self.letters, &letters);
            self.letters = letters;
        }
        log.read(&mut self.place, self.owner, &mut frame);
        frame
    }
}

/// The runs of letters that differ.
fn changed(before: &str, after: &str) -> Vec<(usize, String)> {
    let old = before.as_bytes();
    let new = after.as_bytes();
    let mut runs: Vec<(usize, String)> = Vec::new();
    for (at, letter) in new.iter().enumerate() {
        if old.get(at) == Some(letter) {
            continue;
        }
        match runs.last_mut() {
            Some((start, run)) if at - (*start + run.len()) <= GAP => {
                run.push_str(&after[*start + run.len()..=at]);
            }
            _ => runs.push((at, char::from(*letter).to_string())),
        }
    }
    runs
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

/// A time, rounded to microseconds.
fn rounded(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e6
}

impl RunStep {
    /// The step with times rounded to microseconds, which take less room as text.
    pub(crate) fn rounded(self) -> RunStep {
        let RunStep { seconds, computing, waiting, reading, .. } = self;
        let [seconds, computing, waiting, reading] =
            [seconds, computing, waiting, reading].map(rounded);
        RunStep { seconds, computing, waiting, reading, ..self }
    }
}
