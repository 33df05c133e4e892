//! Builds a story from events.

use std::collections::VecDeque;

use sws_engine::watch::LayerRow;

use super::{Hello, LiveFrame, LiveRequest, Passed, VERSION};
use crate::screen::{Now, Phase, Waiting};
use crate::story::unpack;
use crate::{RunStep, Story, StorySubject, Wall};

/// Number of passes whose costs are kept for tokens that arrive later.
const PASSES: usize = 1024;
/// Maximum number of tokens over which the pace is averaged.
const TIMES: usize = 1 << 14;
/// Seconds over which the pace is averaged.
const PACED: f64 = 5.0;
/// Maximum number of drives that are shown.
const DRIVES: usize = 64;
/// Maximum number of experts of a displayed model.
const EXPERTS: usize = 1 << 20;

/// The story of a stream of events, and the state for frames of it.
#[derive(Debug)]
pub struct Reader {
    /// Tokens and steps of the run.
    pub story: Story,
    /// The state of the last frame.
    pub now: Now,
    passes: VecDeque<Passed>,
    /// Times of the latest tokens.
    times: VecDeque<f64>,
    /// The request whose text is shown. Tokens of requests with other keys have no text.
    shown: Option<Option<String>>,
    requests: Vec<LiveRequest>,
}

impl Reader {
    /// Begins with the first event. `None` for an event of another version, or of an impossible
    /// model.
    pub fn new(hello: &Hello) -> Option<Reader> {
        let experts = hello.rows.iter().try_fold(0usize, |sum, &[_, n]| sum.checked_add(n))?;
        if hello.version != VERSION || experts > EXPERTS || hello.rows.len() > EXPERTS {
            return None;
        }
        let mut rows = Vec::with_capacity(hello.rows.len());
        for &[layer, experts] in &hello.rows {
            rows.push(LayerRow { layer, experts });
        }
        let about = StorySubject {
            model: hello.model.clone(),
            notes: Vec::new(),
            budget: hello.budget,
            is_timed: true,
            has_places: true,
        };
        let now = Now { wall: Wall::new(rows.clone()), phase: Phase::Idle, ..Now::default() };
        Some(Reader {
            story: Story::new(about, rows),
            now,
            passes: VecDeque::new(),
            times: VecDeque::new(),
            shown: None,
            requests: Vec::new(),
        })
    }

    /// Takes the next frame.
    pub fn take(&mut self, frame: LiveFrame) {
        let LiveFrame {
            at,
            step,
            memory,
            mut drives,
            tier,
            wall,
            passes,
            tokens,
            requests,
            texts,
            ..
        } = frame;
        self.story.step(step);
        self.now.tier = tier.or(self.now.tier);
        self.now.memory = memory.or(self.now.memory);
        drives.truncate(DRIVES);
        self.now.drives = drives;
        for (start, letters) in wall {
            unpack(&letters, start, &mut self.now.wall.states);
        }
        for pass in passes {
            if self.passes.len() == PASSES {
                self.passes.pop_front();
            }
            self.passes.push_back(pass);
        }
        if let Some(requests) = requests {
            self.requests = requests;
        }
        for token in tokens {
            let pass = self.passes.iter().rev().find(|pass| pass.number == token.pass);
            let step = pass.map_or(RunStep::default(), |pass| pass.step);
            if self.times.len() == TIMES {
                self.times.pop_front();
            }
            self.times.push_back(pass.map_or(at, |pass| pass.at));
            if self.shows(token.request) {
                self.story.token(token.text.as_deref().unwrap_or("·"), step);
            }
        }
        while self.times.front().is_some_and(|&time| time < at - PACED) {
            self.times.pop_front();
        }
        let first = self.times.front().copied().unwrap_or(at);
        let pace = self.times.len() as f64 / (at - first).max(1.0);
        self.now.pace = (self.times.len() > 1).then_some(pace);
        self.now.phase = self.phase(texts[0]);
        self.now.requests = self.requests.iter().map(|request| waiting(request, at)).collect();
        self.now.texts = Some(texts);
    }

    /// True if the text of this request is shown. A request is shown until it ends.
    fn shows(&mut self, request: Option<String>) -> bool {
        if self.shown.as_ref() == Some(&request) {
            return true;
        }
        if let Some(Some(shown)) = &self.shown
            && self.requests.iter().any(|request| request.id == *shown)
        {
            return false;
        }
        if self.shown.is_some() {
            self.story.aside("\n\n");
        }
        self.shown = Some(request);
        true
    }

    /// The phase of the oldest running text.
    fn phase(&self, running: usize) -> Phase {
        let reading = self.requests.iter().find(|request| request.state == "prompt");
        let writes = self.requests.iter().any(|request| request.state == "generation");
        match reading {
            Some(request) if !writes => {
                Phase::Prompt(request.done as f64 / request.prompt.max(1) as f64)
            }
            _ if running > 0 => Phase::Text,
            _ => Phase::Idle,
        }
    }
}

/// A description of a request.
fn waiting(request: &LiveRequest, at: f64) -> Waiting {
    let LiveRequest { id, endpoint, state, place, queued, prompt, done, made } = request;
    let doing = match (state.as_str(), place) {
        ("waiting", Some(place)) => format!("waits, place {place}"),
        ("prompt", _) => format!("prompt {done}/{prompt}"),
        _ => format!("{made} tokens"),
    };
    let age = format!("{:.0} s", (at - queued).max(0.0));
    Waiting { id: id.clone(), endpoint: endpoint.clone(), doing, age }
}
