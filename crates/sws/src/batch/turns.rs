//! Which texts go through the next pass: all of them together, or one at a time in turns.
//!
//! Texts in one pass share the weights that every token needs, and experts that several of them
//! choose. One at a time, a text keeps to experts that are in memory already. The cheaper way
//! depends on the model, its budget and the texts. Both ways are measured in rounds: the time of
//! computing, and the time of waiting for reads. A forecast of the bytes that each way reads adapts
//! the waiting time to the present texts, and decides how soon the more expensive way is measured
//! again.

#[cfg(test)]
mod tests;

use std::time::Duration;

use sws_engine::ExpectedReads;

/// Maximum number of passes of a turn, and of a round of shared passes.
const PASSES: u32 = 128;
/// Passes that have to fit into a turn at least. Otherwise turns are not tried.
const LEAST: u32 = 8;
/// Minimum number of rounds before the more expensive way is measured again, and the number of
/// rounds for each 100 % that it costs more: measuring takes at most a hundredth of the time.
const ROUNDS: u32 = 16;
const ROUNDS_PER_LOSS: f64 = 100.0;
/// Weight of a new round in the moving average of recent rounds. Older rounds do not count, because
/// the set of resident experts has changed.
const WEIGHT: f64 = 0.3;
/// Number of rounds after which a measurement is old.
const OLD: u32 = 2;
/// Maximum factor by which a forecast scales a measurement, up and down.
const MOST_CHANGE: f64 = 4.0;

/// Chooses the way by measured and forecast costs, within a limit on the time between two tokens of
/// a text.
#[derive(Debug)]
pub(crate) struct Turns {
    gap: Duration,
    /// Costs, indexed by the number of texts.
    costs: Vec<Costs>,
    round: Option<TurnRound>,
    /// Completed rounds. The first one, which fills the memory, is not measured.
    over: u32,
}

/// A way to share passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SharingWay {
    Together,
    InTurns,
}

/// Costs of both ways for one number of texts.
#[derive(Clone, Copy, Debug, Default)]
struct Costs {
    ways: [Option<TokenCost>; 2],
    /// Rounds since the more expensive way was measured.
    rounds: u32,
}

/// Seconds per token, split into computing and waiting.
#[derive(Clone, Copy, Debug)]
struct TokenCost {
    computing: f64,
    /// Seconds of waiting for reads.
    waiting: f64,
    /// Forecast bytes read per token.
    expected: Option<f64>,
    /// Number of the round that measured the cost last.
    last: u32,
}

/// Consecutive passes over the same texts in one way.
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
    /// Completed turns.
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

    /// Returns the number of the text that goes through the next pass alone, or `None` for all
    /// texts. `texts` has the number of each text and the time of its last token. `forecast`
    /// returns the expected reads of these texts in turns of so many tokens, and together.
    pub(crate) fn next(
        &mut self,
        texts: &[(usize, Duration)],
        forecast: impl FnOnce(usize) -> Option<ExpectedReads>,
    ) -> Option<usize> {
        let count = texts.len();
        let share = self.share(count);
        if let Some(round) = &self.round
            && round.is_over(count, share)
        {
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
            self.round = Some(TurnRound::new(way, count, way.of(expected)));
        }
        let round = self.round.as_mut()?;
        if round.way == SharingWay::Together {
            return None;
        }
        if let Some(turn) = &round.turn {
            let goes_on =
                !turn.is_over(share) && texts.iter().any(|&(number, _)| number == turn.text);
            if goes_on {
                return Some(turn.text);
            }
            round.turns += 1;
        }
        let &(oldest, _) = texts.iter().min_by_key(|&&(_, heard)| heard)?;
        round.turn = Some(TextTurn { text: oldest, passes: 0, time: Duration::ZERO });
        Some(oldest)
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

    /// Ends the round, if there is one, and records its measured cost.
    pub(crate) fn end_round(&mut self) {
        let Some(round) = self.round.take() else { return };
        // A short round is too noisy to count.
        if round.tokens < LEAST as usize * round.texts {
            return;
        }
        self.over += 1;
        if self.over == 1 {
            return;
        }
        let cost = round.cost(self.over);
        let known = &mut self.costs[round.texts].ways[round.way as usize];
        *known = Some(match *known {
            Some(recent) if self.over - recent.last <= OLD => recent.towards(cost),
            _ => cost,
        });
    }

    /// Duration of a turn among so many texts.
    fn share(&self, texts: usize) -> Duration {
        self.gap / texts.max(1) as u32
    }

    /// Number of passes that fit into a turn, by the measured time of a pass.
    fn passes_of_a_turn(&self, texts: usize) -> usize {
        let pass = match self.costs[texts].ways {
            [_, Some(in_turns)] => in_turns.all(),
            [Some(together), None] => together.all() * texts as f64,
            [None, None] => 0.0,
        };
        let share = self.share(texts).as_secs_f64();
        let room = if pass > 0.0 { share / pass } else { f64::INFINITY };
        room.clamp(1.0, PASSES.into()) as usize
    }

    /// Chooses between turns and shared passes for the next round.
    fn way(&mut self, texts: usize, expected: Option<ExpectedReads>) -> SharingWay {
        let share = self.share(texts).as_secs_f64();
        let Some(together) = self.estimate(SharingWay::Together, texts, expected) else {
            return SharingWay::Together;
        };
        let measured = self.estimate(SharingWay::InTurns, texts, expected);
        let in_turns = match measured {
            Some(in_turns) => in_turns,
            None => together.read(SharingWay::InTurns.of(expected)),
        };
        // A pass over one text takes no longer than a pass over all of them.
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
        // An unmeasured way may be cheaper than its estimate.
        let least = if ways[worse as usize].is_some() { ROUNDS } else { 0 };
        if f64::from(*rounds) < (loss * ROUNDS_PER_LOSS).max(f64::from(least)) {
            return better;
        }
        *rounds = 0;
        worse
    }

    /// Estimated cost of a way for these texts, from measurements with as many texts or with
    /// another number.
    fn estimate(
        &self,
        way: SharingWay,
        texts: usize,
        expected: Option<ExpectedReads>,
    ) -> Option<TokenCost> {
        let now = way.of(expected);
        if let Some(cost) = self.costs[texts].ways[way as usize] {
            return Some(cost.read(now));
        }
        let measured = self.costs.iter().enumerate();
        let measured =
            measured.filter_map(|(count, costs)| Some((count, costs.ways[way as usize]?)));
        let (count, cost) = measured.max_by_key(|(_, cost)| cost.last)?;
        let passes = match way {
            // Assumes that passes take the same time: how much longer one over more texts takes is
            // unknown.
            SharingWay::Together => count as f64 / texts as f64,
            SharingWay::InTurns => 1.0,
        };
        Some(TokenCost { computing: cost.computing * passes, ..cost.read(now) })
    }
}

impl SharingWay {
    /// Forecast bytes per token in this way.
    fn of(self, expected: Option<ExpectedReads>) -> Option<f64> {
        let ExpectedReads { together, in_turns } = expected?;
        match self {
            SharingWay::Together => Some(together),
            SharingWay::InTurns => Some(in_turns),
        }
    }
}

impl TokenCost {
    fn all(self) -> f64 {
        self.computing + self.waiting
    }

    /// The cost, scaled to another number of bytes read per token.
    fn read(self, now: Option<f64>) -> TokenCost {
        let change = match (self.expected, now) {
            (Some(then), Some(now)) if then > 0.0 => now / then,
            _ => 1.0,
        };
        let change = change.clamp(1.0 / MOST_CHANGE, MOST_CHANGE);
        TokenCost { waiting: self.waiting * change, ..self }
    }

    /// The moving average with a newer measurement.
    fn towards(self, new: TokenCost) -> TokenCost {
        TokenCost {
            computing: mean(self.computing, new.computing),
            waiting: mean(self.waiting, new.waiting),
            expected: self.expected.zip(new.expected).map(|(old, new)| mean(old, new)),
            last: new.last,
        }
    }
}

/// The moving average of a value with a newer one.
fn mean(old: f64, new: f64) -> f64 {
    old + WEIGHT * (new - old)
}

impl TurnRound {
    fn new(way: SharingWay, texts: usize, expected: Option<f64>) -> TurnRound {
        let time = Duration::ZERO;
        let waited = Duration::ZERO;
        TurnRound { way, texts, expected, tokens: 0, time, waited, passes: 0, turn: None, turns: 0 }
    }

    /// The cost per token measured by this round, which has this number.
    fn cost(&self, number: u32) -> TokenCost {
        let tokens = self.tokens as f64;
        let computing = self.time.saturating_sub(self.waited).as_secs_f64() / tokens;
        let waiting = self.waited.as_secs_f64() / tokens;
        TokenCost { computing, waiting, expected: self.expected, last: number }
    }

    /// True if the number of texts has changed, or the round is complete: every text has had its
    /// turn, or there were enough shared passes.
    fn is_over(&self, texts: usize, share: Duration) -> bool {
        let is_turn_over = matches!(&self.turn, Some(turn) if turn.is_over(share));
        let turns = self.turns + usize::from(is_turn_over);
        texts != self.texts
            || match self.way {
                SharingWay::Together => self.passes >= PASSES,
                SharingWay::InTurns => turns >= self.texts,
            }
    }
}

impl TextTurn {
    /// True if another pass could exceed the turn's share of the time.
    fn is_over(&self, share: Duration) -> bool {
        let pass = self.time / self.passes.max(1);
        self.passes >= PASSES || (self.passes > 0 && self.time + pass > share)
    }
}
