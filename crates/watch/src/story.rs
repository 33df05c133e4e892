//! The course of a run, in a bounded amount of memory.

use std::collections::VecDeque;

use sws_engine::watch::LayerRow;

use crate::{ExpertState, RunStep, Wall};

/// Maximum number of tokens in a story. The latest are kept.
pub const MAX_TOKENS: usize = 8192;
/// Maximum bytes of the frames in a story.
pub const MAX_FRAME_BYTES: usize = 2 << 20;
/// Maximum bytes of a token's text, and of the text before all tokens.
const MAX_TEXT: usize = 256;
const MAX_OPENING: usize = 4096;
/// Number of steps kept for the lanes of a screen. The widest screen has as many columns.
const MAX_STEPS: usize = 512;
/// Number of latest tokens whose median is the usual cost.
const USUAL: usize = 256;

/// Subject of a story.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StorySubject {
    /// Name of the model, or of a recording.
    pub model: String,
    /// Sentences about how the story was made.
    pub notes: Vec<String>,
    /// The memory budget in bytes, if there is one.
    pub budget: Option<u64>,
    /// True if times are known.
    pub is_timed: bool,
    /// True if it is known which experts were in memory.
    pub has_places: bool,
}

/// A token and its cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoryToken {
    /// The text that the token completes.
    pub text: String,
    /// The pass that computed the token, including the work around it. For the first token, the
    /// prompt.
    pub step: RunStep,
    /// True for text between answers, which is not a token and cost nothing.
    pub is_aside: bool,
}

/// The wall after a token.
#[derive(Clone, Debug, PartialEq)]
pub struct StoryFrame {
    /// Number of tokens up to the frame.
    pub tokens: u64,
    /// Memory of the process in bytes, if known.
    pub memory: Option<u64>,
    /// States of the experts, two per letter.
    pub states: String,
}

/// The course of a run: its text, the cost of the text, and the walls along the way.
#[derive(Clone, Debug, Default)]
pub struct Story {
    /// Subject of the story.
    pub about: StorySubject,
    /// Layers with experts.
    pub rows: Vec<LayerRow>,
    opening: String,
    tokens: VecDeque<StoryToken>,
    left_out: u64,
    asides: u64,
    steps: VecDeque<RunStep>,
    frames: Vec<StoryFrame>,
    /// Number of tokens from one frame to the next.
    every: u64,
    total: RunStep,
    /// Of all periods, also those that are not kept.
    read_bytes: u64,
}

impl Story {
    /// An empty story.
    pub fn new(about: StorySubject, rows: Vec<LayerRow>) -> Story {
        Story { about, rows, every: 1, ..Story::default() }
    }

    /// Maximum bytes of a story with a wall of this many experts and a text of this many tokens. A
    /// story that is only for a screen has no frames.
    pub fn bytes_for(experts: usize, tokens: usize, frames: bool) -> u64 {
        let tokens = tokens.min(MAX_TOKENS);
        let frame = experts.div_ceil(2) + size_of::<StoryFrame>() + 16;
        let frames = match frames {
            true => (frame * (tokens + 1)).min(frame * 4 + MAX_FRAME_BYTES),
            false => 0,
        };
        // Doubled, because a growing list may have twice the capacity that it needs.
        let grows = 2 * tokens * (size_of::<StoryToken>() + 64) + 2 * frames;
        (grows + MAX_STEPS * size_of::<RunStep>() + MAX_OPENING + 2 * experts) as u64
    }

    /// Sets the text before the tokens. Only its end is kept.
    pub fn set_opening(&mut self, text: &str) {
        let start = (0..=text.len())
            .find(|&at| text.is_char_boundary(at) && text.len() - at <= MAX_OPENING);
        self.opening = text[start.unwrap_or(text.len())..].to_owned();
    }

    /// The text before the tokens.
    pub fn opening(&self) -> &str {
        &self.opening
    }

    /// Appends a token.
    pub fn token(&mut self, text: &str, step: RunStep) {
        self.push(text, step, false);
    }

    /// Appends text that is not the model's, such as the next question. The token after it is the
    /// first of an answer. The text has a place among the tokens, but does not count as one.
    pub fn aside(&mut self, text: &str) {
        self.push(text, RunStep::default(), true);
        self.asides += 1;
    }

    fn push(&mut self, text: &str, step: RunStep, is_aside: bool) {
        if self.tokens.len() == MAX_TOKENS {
            self.tokens.pop_front();
            self.left_out += 1;
        }
        let text = beginning(text, MAX_TEXT).to_owned();
        self.tokens.push_back(StoryToken { text, step, is_aside });
        self.total = RunStep::sum([&self.total, &step]);
    }

    /// Stores the wall after the last token. If there are too many frames, only every second one is
    /// kept from then on.
    pub fn frame(&mut self, wall: &Wall, memory: Option<u64>) {
        let tokens = self.all_tokens();
        let bytes = wall.states.len().div_ceil(2).max(1);
        let most = (MAX_FRAME_BYTES / bytes).clamp(4, MAX_TOKENS);
        if !tokens.is_multiple_of(self.every) {
            return;
        }
        if self.frames.len() >= most {
            self.every *= 2;
            let every = self.every;
            self.frames.retain(|frame| frame.tokens.is_multiple_of(every));
        }
        if tokens.is_multiple_of(self.every) {
            self.frames.push(StoryFrame { tokens, memory, states: packed(&wall.states) });
        }
    }

    /// Appends a period to the lanes.
    pub fn step(&mut self, step: RunStep) {
        if self.steps.len() == MAX_STEPS {
            self.steps.pop_front();
        }
        self.steps.push_back(step);
        self.read_bytes = self.read_bytes.saturating_add(step.bytes);
    }

    /// Bytes read in all periods.
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// The tokens that are kept.
    pub fn tokens(&self) -> &VecDeque<StoryToken> {
        &self.tokens
    }

    /// Number of all tokens, including texts between answers.
    pub fn all_tokens(&self) -> u64 {
        self.left_out + self.tokens.len() as u64
    }

    /// Number of the tokens that the model wrote.
    pub fn written(&self) -> u64 {
        self.all_tokens() - self.asides
    }

    /// Number of tokens that are not kept any more.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// The frames that are kept.
    pub fn frames(&self) -> &[StoryFrame] {
        &self.frames
    }

    /// The latest periods, for lanes.
    pub fn steps(&self) -> &VecDeque<RunStep> {
        &self.steps
    }

    /// Sum of the steps of all tokens.
    pub fn total(&self) -> RunStep {
        self.total
    }

    /// Median cost of the latest tokens, without the first one of each answer, which has the cost
    /// of the prompt; 0 if there are none.
    pub fn usual(&self) -> f64 {
        let mut costs = Vec::new();
        for (number, token) in self.tokens.iter().enumerate().rev() {
            if costs.len() == USUAL {
                break;
            }
            if !token.is_aside && !self.begins(number) {
                costs.push(self.cost(token));
            }
        }
        let middle = costs.len() / 2;
        if costs.is_empty() {
            return 0.0;
        }
        *costs.select_nth_unstable_by(middle, f64::total_cmp).1
    }

    /// Cost of a token: seconds, or misses if times are unknown.
    pub fn cost(&self, token: &StoryToken) -> f64 {
        match self.about.is_timed {
            true => token.step.seconds,
            false => token.step.misses as f64,
        }
    }

    /// True for the first token of an answer.
    fn begins(&self, number: usize) -> bool {
        match number.checked_sub(1) {
            None => self.left_out == 0,
            Some(before) => self.tokens.get(before).is_some_and(|token| token.is_aside),
        }
    }

    /// Level of a token's cost compared with the usual cost: 0 to 3. The first token of an answer
    /// has the cost of the prompt, and always has level 0.
    pub fn level(&self, number: usize, usual: f64) -> usize {
        let Some(token) = self.tokens.get(number) else { return 0 };
        if usual <= 0.0 || self.about.is_timed && self.begins(number) {
            return 0;
        }
        LEVELS.iter().filter(|&&level| self.cost(token) > level * usual).count()
    }
}

/// Multiples of the usual cost above which a token is expensive.
pub const LEVELS: [f64; 3] = [1.25, 2.0, 4.0];

/// The beginning of a text, of at most this many bytes.
pub(crate) fn beginning(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The states as text, two per letter.
pub(crate) fn packed(states: &[ExpertState]) -> String {
    let letter = |pair: &[ExpertState]| {
        let second = pair.get(1).map_or(0, |&state| state as u8);
        char::from(b'A' + pair[0] as u8 + 5 * second)
    };
    states.chunks(2).map(letter).collect()
}

/// Decodes letters into states of a wall, beginning with this letter of it. Invalid letters become
/// the default state.
pub(crate) fn unpack(letters: &str, start: usize, states: &mut [ExpertState]) {
    let Some(states) = start.checked_mul(2).and_then(|first| states.get_mut(first..)) else {
        return;
    };
    for (pair, letter) in states.chunks_mut(2).zip(letters.bytes()) {
        let number = usize::from(letter.wrapping_sub(b'A'));
        let of = [number % 5, number / 5];
        for (state, number) in pair.iter_mut().zip(of) {
            *state = ExpertState::ALL.get(number).copied().unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn story() -> Story {
        Story::new(StorySubject { is_timed: true, ..StorySubject::default() }, Vec::new())
    }

    #[test]
    fn memory_of_a_story_is_bounded() {
        let mut story = story();
        let mut wall = Wall::new(vec![LayerRow { layer: 0, experts: 1000 }]);
        wall.states[0] = ExpertState::Waited;
        for number in 0..3 * MAX_TOKENS as u64 {
            story.token(&"ü".repeat(1000), RunStep { seconds: 1.0, ..RunStep::default() });
            story.frame(&wall, Some(number));
            story.step(RunStep::default());
        }
        assert_eq!(story.tokens().len(), MAX_TOKENS);
        assert_eq!((story.left_out(), story.all_tokens()), (2 * 8192, 3 * 8192));
        assert!(story.tokens()[0].text.len() <= MAX_TEXT);
        let frames = story.frames();
        assert!(frames.len() * 500 <= MAX_FRAME_BYTES && frames.len() > 1000, "{}", frames.len());
        assert!(frames.iter().all(|frame| frame.states.starts_with('E')));
        let gaps: Vec<u64> = frames.windows(2).map(|two| two[1].tokens - two[0].tokens).collect();
        assert!(gaps.iter().all(|&gap| gap == gaps[0]), "evenly spaced");
        assert_eq!(story.steps().len(), MAX_STEPS);
        story.set_opening(&"ü".repeat(MAX_OPENING));
        assert_eq!(story.opening().len(), MAX_OPENING);
    }

    #[test]
    fn dear_tokens_stand_out_from_the_usual_ones() {
        let mut story = story();
        for seconds in [50.0, 1.0, 1.0, 1.0, 1.5, 3.0, 9.0] {
            story.token("a", RunStep { seconds, ..RunStep::default() });
        }
        let usual = story.usual();
        assert_eq!(usual, 1.0 + 0.5, "the middle of six");
        let levels: Vec<usize> = (0..7).map(|number| story.level(number, 1.0)).collect();
        assert_eq!(levels, [0, 0, 0, 0, 1, 2, 3], "the prompt is none of them");
        assert_eq!(super::Story::default().usual(), 0.0);
    }

    #[test]
    fn states_are_packed_in_pairs() {
        use ExpertState::{Disk, Memory, Reading, Waited};
        let states = [Disk, Disk, Memory, Reading, Waited, Waited, Waited];
        assert_eq!(packed(&states), "ALYE");
        let mut found = [Disk; 7];
        unpack("YE", 2, &mut found);
        unpack("AL", 0, &mut found);
        assert_eq!(found, states);
        // Whatever a server sends.
        unpack("~é\0", 3, &mut found);
        unpack("A", usize::MAX, &mut found);
    }

    #[test]
    fn asides_are_no_tokens_and_cost_nothing() {
        let mut story = story();
        let seconds = |seconds| RunStep { seconds, ..RunStep::default() };
        for (text, cost) in [("a", 9.0), ("b", 1.0), ("c", 1.0)] {
            story.token(text, seconds(cost));
        }
        story.aside("and then?");
        for (text, cost) in [("d", 9.0), ("e", 3.0)] {
            story.token(text, seconds(cost));
        }
        assert_eq!((story.all_tokens(), story.written()), (6, 5));
        assert_eq!(story.usual(), 1.0);
        let levels: Vec<usize> = (0..6).map(|number| story.level(number, 1.0)).collect();
        assert_eq!(levels, [0, 0, 0, 0, 0, 2]);
        assert_eq!(story.total().seconds, 23.0);
    }
}
