//! Which texts go through the next pass: all of them together, or one at a time in turns.
//!
//! Texts in one pass share the weights that every token needs, and experts that several of them
//! choose. One at a time, a text keeps to experts that are in memory already. The cheaper way depends
//! on the model, its budget and the texts. Both ways are measured in rounds: the time of computing,
//! and the time of waiting for reads. A forecast of the bytes that each way reads carries the latter
//! over to the texts at hand, and says how soon the dearer way is worth measuring.

#[cfg(test)]
mod tests;

use std::time::Duration;

use sws_engine::ExpectedReads;

/// Maximum number of passes of a turn, and of a round of shared passes.
const PASSES: u32 = 128;
/// Passes that a turn has room for at least, or turns are not tried.
const LEAST: u32 = 8;
/// Rounds after which the dearer way is measured again, at least, and for each time that it costs
/// more: it takes a hundredth of the time or less.
const ROUNDS: u32 = 16;
const ROUNDS_PER_LOSS: f64 = 100.0;
/// Weight of a new round in the average of those shortly before. An older one counts no longer: what is
/// in memory has changed.
const WEIGHT: f64 = 0.3;
/// Rounds after which one is old.
const OLD: u32 = 2;
/// The most that a forecast changes what was measured, up and down.
const MOST_CHANGE: f64 = 4.0;

/// Decides by measured and forecast cost, within a limit on how long a text waits between tokens.
#[derive(Debug)]
pub(crate) struct Turns {
    gap: Duration,
    /// By the number of texts.
    costs: Vec<Costs>,
    round: Option<TurnRound>,
    /// Rounds that are over. The first, which has filled the memory, is not counted as a cost.
    over: u32,
}

/// A way to share passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SharingWay {
    Together,
    InTurns,
}

/// Costs of each way.
#[derive(Clone, Copy, Debug, Default)]
struct Costs {
    ways: [Option<TokenCost>; 2],
    /// Rounds since the dearer way was measured.
    rounds: u32,
}

/// Seconds per token.
#[derive(Clone, Copy, Debug)]
struct TokenCost {
    computing: f64,
    /// Waiting for reads.
    waiting: f64,
    /// Bytes that a token was expected to read.
    expected: Option<f64>,
    /// The round that has measured it last.
    last: u32,
}

/// Passes over the same texts in one way.
#[derive(Debug)]
struct TurnRound {
    way: SharingWay,
    texts: usize,
    expected: Option<f64>,
    tokens: usize,
    time: Duration,
    waited: Duration,
    passes: u32,
    turn: Option<TextTurn>,
    /// Turns that are over.
    turns: usize,
}

#[derive(Debug)]
struct TextTurn {
    text: usize,
    passes: u32,
    time: Duration,
}

impl Turns {
    pub(crate) fn new(gap: Duration) -> Turns {
        Turns { gap, costs: Vec::new(), round: None, over: 0 }
    }

    /// Returns the number of the text that goes through the next pass, or `None` for all of them.
    /// `texts` has their numbers, and the times of their last tokens. `forecast` tells what these texts
    /// read in turns of so many tokens, and together.
    pub(crate) fn next(
        &mut self,
        texts: &[(usize, Duration)],
        forecast: impl FnOnce(usize) -> Option<ExpectedReads>,
    ) -> Option<usize> {
        let count = texts.len();
        let share = self.share(count);
        if self.round.as_ref().is_some_and(|round| round.is_over(count, share)) {
            self.end_round();
        }
        if count < 2 {
            return None;
        }
        if self.round.is_none() {
            if self.costs.len() <= count {
                self.costs.resize(count + 1, Costs::default());
            }
            let expected = forecast(self.passes_of_a_turn(count));
            let way = self.way(count, expected);
            self.round =
                Some(TurnRound::new(way, count, expected.map(|expected| way.of(expected))));
        }
        let round = self.round.as_mut()?;
        if round.way == SharingWay::Together {
            return None;
        }
        let goes_on = |turn: &TextTurn| {
            !turn.is_over(share) && texts.iter().any(|&(number, _)| number == turn.text)
        };
        if !round.turn.as_ref().is_some_and(goes_on) {
            round.turns += usize::from(round.turn.is_some());
            let oldest = texts.iter().min_by_key(|&&(_, heard)| heard);
            round.turn =
                oldest.map(|&(text, _)| TextTurn { text, passes: 0, time: Duration::ZERO });
        }
        round.turn.as_ref().map(|turn| turn.text)
    }

    /// Counts a pass that [`next`](Self::next) has chosen, and the part of its time that was spent
    /// waiting for reads.
    pub(crate) fn passed(&mut self, tokens: usize, time: Duration, waited: Duration) {
        let Some(round) = &mut self.round else { return };
        round.passes += 1;
        round.tokens += tokens;
        round.time += time;
        round.waited += waited;
        if let Some(turn) = &mut round.turn {
            turn.passes += 1;
            turn.time += time;
        }
    }

    /// Ends the round, as texts have come.
    pub(crate) fn end_round(&mut self) {
        let Some(round) = self.round.take() else { return };
        // A short one says little.
        if round.tokens < LEAST as usize * round.texts {
            return;
        }
        self.over += 1;
        if self.over == 1 {
            return;
        }
        let cost = round.cost(self.over);
        let known = &mut self.costs[round.texts].ways[round.way as usize];
        let recent = known.filter(|known| self.over - known.last <= OLD);
        *known = Some(recent.map_or(cost, |recent| recent.towards(cost)));
    }

    /// Time of a turn among so many texts.
    fn share(&self, texts: usize) -> Duration {
        self.gap / texts.max(1) as u32
    }

    /// Passes that a turn has room for, by what passes have taken so far.
    fn passes_of_a_turn(&self, texts: usize) -> usize {
        let [together, in_turns] = self.costs[texts].ways;
        let pass = in_turns
            .map(|cost| cost.all())
            .or_else(|| Some(together?.all() * texts as f64))
            .filter(|&pass| pass > 0.0);
        let room = pass.map_or(f64::INFINITY, |pass| self.share(texts).as_secs_f64() / pass);
        room.clamp(1.0, PASSES.into()) as usize
    }

    /// Chooses the way of the next round.
    fn way(&mut self, texts: usize, expected: Option<ExpectedReads>) -> SharingWay {
        let share = self.share(texts).as_secs_f64();
        let Some(together) = self.estimate(SharingWay::Together, texts, expected) else {
            return SharingWay::Together;
        };
        let measured = self.estimate(SharingWay::InTurns, texts, expected);
        let in_turns = measured.unwrap_or_else(|| together.read(expected.map(|e| e.in_turns)));
        // A pass over one text takes no longer than one over all.
        let most = together.all() * texts as f64;
        let pass = match (measured, expected) {
            (Some(in_turns), _) => in_turns.all(),
            (None, Some(_)) => most.min(together.computing * texts as f64 + in_turns.waiting),
            (None, None) => most,
        };
        let least = LEAST.max(texts as u32 - 1);
        if pass * f64::from(least) > share {
            return SharingWay::Together;
        }
        let together = together.all();
        let in_turns = in_turns.all();
        let (better, worse, loss) = match in_turns < together {
            true => (SharingWay::InTurns, SharingWay::Together, together / in_turns - 1.0),
            false => (SharingWay::Together, SharingWay::InTurns, in_turns / together - 1.0),
        };
        let Costs { ways, rounds } = &mut self.costs[texts];
        if ways[better as usize].is_none() {
            return better;
        }
        *rounds += 1;
        // One that was never measured may be better than it seems.
        let least = if ways[worse as usize].is_some() { ROUNDS } else { 0 };
        if f64::from(*rounds) < (loss * ROUNDS_PER_LOSS).max(f64::from(least)) {
            return better;
        }
        *rounds = 0;
        worse
    }

    /// The cost of a way for these texts, from what was measured for as many, or for others.
    fn estimate(
        &self,
        way: SharingWay,
        texts: usize,
        expected: Option<ExpectedReads>,
    ) -> Option<TokenCost> {
        let now = expected.map(|expected| way.of(expected));
        if let Some(cost) = self.costs[texts].ways[way as usize] {
            return Some(cost.read(now));
        }
        let measured = self.costs.iter().enumerate();
        let measured =
            measured.filter_map(|(count, costs)| Some((count, costs.ways[way as usize]?)));
        let (count, cost) = measured.max_by_key(|(_, cost)| cost.last)?;
        let passes = match way {
            // A pass over more takes longer, by how much is not known.
            SharingWay::Together => count as f64 / texts as f64,
            SharingWay::InTurns => 1.0,
        };
        Some(TokenCost { computing: cost.computing * passes, ..cost.read(now) })
    }
}

impl SharingWay {
    /// Bytes that a token reads in this way.
    fn of(self, expected: ExpectedReads) -> f64 {
        match self {
            SharingWay::Together => expected.together,
            SharingWay::InTurns => expected.in_turns,
        }
    }
}

impl TokenCost {
    fn all(self) -> f64 {
        self.computing + self.waiting
    }

    /// The cost if a token reads so many bytes.
    fn read(self, now: Option<f64>) -> TokenCost {
        let change = self.expected.zip(now).filter(|(then, _)| *then > 0.0);
        let change = change.map_or(1.0, |(then, now)| now / then);
        let change = change.clamp(1.0 / MOST_CHANGE, MOST_CHANGE);
        TokenCost { waiting: self.waiting * change, ..self }
    }

    /// The average with a newer one.
    fn towards(self, new: TokenCost) -> TokenCost {
        let mean = |old: f64, new: f64| old + WEIGHT * (new - old);
        TokenCost {
            computing: mean(self.computing, new.computing),
            waiting: mean(self.waiting, new.waiting),
            expected: self.expected.zip(new.expected).map(|(old, new)| mean(old, new)),
            last: new.last,
        }
    }
}

impl TurnRound {
    fn new(way: SharingWay, texts: usize, expected: Option<f64>) -> TurnRound {
        let time = Duration::ZERO;
        let waited = Duration::ZERO;
        TurnRound { way, texts, expected, tokens: 0, time, waited, passes: 0, turn: None, turns: 0 }
    }

    /// Its cost, as the round with this number.
    fn cost(&self, number: u32) -> TokenCost {
        let per_token = |time: Duration| time.as_secs_f64() / self.tokens as f64;
        let computing = per_token(self.time.saturating_sub(self.waited));
        let waiting = per_token(self.waited);
        TokenCost { computing, waiting, expected: self.expected, last: number }
    }

    /// True if there are other texts, or each has had its turn.
    fn is_over(&self, texts: usize, share: Duration) -> bool {
        let turns = self.turns + usize::from(self.turn.as_ref().is_some_and(|t| t.is_over(share)));
        texts != self.texts
            || match self.way {
                SharingWay::Together => self.passes >= PASSES,
                SharingWay::InTurns => turns >= self.texts,
            }
    }
}

impl TextTurn {
    /// True if another pass could take more than its share of the time.
    fn is_over(&self, share: Duration) -> bool {
        let pass = self.time / self.passes.max(1);
        self.passes >= PASSES || (self.passes > 0 && self.time + pass > share)
    }
}
