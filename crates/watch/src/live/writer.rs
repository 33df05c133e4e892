//! Makes events of a run.

use std::collections::VecDeque;

use sws_engine::watch::Lap;

use super::{LiveFrame, Passed, Said};
use crate::story::packed;
use crate::{Follower, RunStep, Wall};

/// Passes and tokens that a log keeps: the latest.
const KEPT: usize = 1024;
/// Most bytes of the text of a token.
const TEXT: usize = 128;
/// Equal letters between two changes that are sent with them.
const GAP: usize = 8;

/// The latest passes and tokens of a run, for all listeners.
#[derive(Debug, Default)]
pub struct Log {
    passes: LogRing<Passed>,
    tokens: LogRing<LoggedToken>,
    layers: Vec<[u32; 3]>,
}

/// A token, and whose it is.
#[derive(Debug)]
struct LoggedToken {
    pass: u64,
    owner: u64,
    text: String,
    request: String,
}

/// The latest of many values, and the number of all.
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

    /// The values from a number on, and how many of those are no longer kept.
    fn since(&self, number: u64) -> (impl Iterator<Item = &T>, u64) {
        let first = self.all - self.kept.len() as u64;
        let skipped = usize::try_from(number.saturating_sub(first)).unwrap_or(usize::MAX);
        (self.kept.iter().skip(skipped), first.saturating_sub(number))
    }
}

impl Log {
    /// Most bytes that it takes.
    pub const BYTES: u64 =
        (KEPT * (size_of::<Passed>() + size_of::<LoggedToken>() + TEXT + 64)) as u64;

    /// Appends a token of the next pass. `owner` says who may see its text.
    pub fn token(&mut self, owner: u64, request: &str, text: &str) {
        let end = (0..=text.len().min(TEXT)).rev().find(|&at| text.is_char_boundary(at));
        let text = text[..end.unwrap_or(0)].to_owned();
        let request = request.chars().take(64).collect();
        self.tokens.push(LoggedToken { pass: self.passes.all, owner, text, request });
    }

    /// Appends a pass, whose number is chosen here.
    pub fn pass(&mut self, pass: Passed) {
        let step = pass.step.rounded();
        let number = self.passes.all;
        self.passes.push(Passed { number, at: rounded(pass.at), step, ..pass });
    }

    /// Keeps the layers of a pass.
    pub fn layers(&mut self, layers: &[Lap]) {
        let micros =
            |time: std::time::Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
        let lap = |lap: &Lap| [micros(lap.time), micros(lap.waiting), micros(lap.reading)];
        self.layers.clear();
        self.layers.extend(layers.iter().map(lap));
    }

    /// The place behind the last token and pass.
    pub fn end(&self) -> LogPlace {
        LogPlace { passes: self.passes.all, tokens: self.tokens.all }
    }

    /// Adds what an owner may see of everything since a place to a frame, and moves the place.
    fn read(&self, place: &mut LogPlace, owner: u64, frame: &mut LiveFrame) {
        let (passes, lost) = self.passes.since(place.passes);
        frame.passes.extend(passes);
        frame.lost += lost;
        // Tokens of the pass that is running have no cost yet.
        let whole = |token: &&LoggedToken| token.pass < self.passes.all;
        let (tokens, lost) = self.tokens.since(place.tokens);
        frame.lost += lost;
        let mut seen = lost;
        for token in tokens.take_while(whole) {
            let own = token.owner == owner;
            let render = |text: &String| own.then(|| text.clone());
            let text = render(&token.text);
            let request = render(&token.request);
            frame.tokens.push(Said { pass: token.pass, text, request });
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

/// What a listener has been sent, of which the next frame has the difference.
#[derive(Debug)]
pub struct FrameWriter {
    follower: Option<Follower>,
    owner: u64,
    place: LogPlace,
    wall: Wall,
    letters: String,
}

impl FrameWriter {
    /// For a listener who may see the texts of an owner. `follower` knows the experts, if anyone does.
    pub fn new(follower: Option<Follower>, owner: u64, place: LogPlace) -> FrameWriter {
        let rows = follower.as_ref().map_or(Vec::new(), Follower::rows);
        FrameWriter { follower, owner, place, wall: Wall::new(rows), letters: String::new() }
    }

    /// Bytes of a listener to a model with so many experts: states and letters, old and new, and the
    /// longest event.
    pub fn bytes_for(experts: usize) -> u64 {
        let entry = 3 * (size_of::<Passed>() + size_of::<Said>()) + TEXT;
        (experts * 16 + KEPT * entry) as u64
    }

    /// The layers with experts, and the number of experts in each.
    pub fn rows(&self) -> Vec<[usize; 2]> {
        self.wall.rows.iter().map(|row| [row.layer, row.experts]).collect()
    }

    /// The next frame: what has happened since the last one.
    pub fn frame(&mut self, at: f64, log: &Log) -> LiveFrame {
        let mut frame = LiveFrame { at: rounded(at), ..LiveFrame::default() };
        if let Some(follower) = &mut self.follower {
            frame.step = follower.step().rounded();
            frame.running = follower.running();
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

/// A time in whole microseconds.
fn rounded(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e6
}

impl RunStep {
    /// The step with times in whole microseconds, which take less room as text.
    pub(crate) fn rounded(self) -> RunStep {
        let RunStep { seconds, computing, waiting, reading, .. } = self;
        let [seconds, computing, waiting, reading] =
            [seconds, computing, waiting, reading].map(rounded);
        RunStep { seconds, computing, waiting, reading, ..self }
    }
}
