//! Which texts go through the next pass: all of them together, or one at a time in turns.
//!
//! Texts in one pass share the weights that every token needs, and experts that several of them
//! choose. One at a time, a text keeps to experts that are in memory already. What costs less depends
//! on the model and its budget, so both are measured in rounds, and the dearer one again now and then.

use std::time::Duration;

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

/// Decides by measured cost, within a limit on how long a text waits between tokens.
#[derive(Debug)]
pub(crate) struct Turns {
    gap: Duration,
    /// By the number of texts.
    costs: Vec<Costs>,
    round: Option<Round>,
    /// Rounds that are over. The first, which has filled the memory, is not counted as a cost.
    over: u32,
}

/// A way to share passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Together,
    InTurns,
}

/// Seconds per token, of each way, and the round that has measured it last.
#[derive(Clone, Copy, Debug, Default)]
struct Costs {
    ways: [Option<f64>; 2],
    last: [u32; 2],
    /// Rounds since the dearer way was measured.
    rounds: u32,
}

/// Passes over the same texts in one way.
#[derive(Debug)]
struct Round {
    way: Way,
    texts: usize,
    tokens: usize,
    time: Duration,
    passes: u32,
    turn: Option<Turn>,
    /// Turns that are over.
    turns: usize,
}

#[derive(Debug)]
struct Turn {
    text: usize,
    passes: u32,
    time: Duration,
}

impl Turns {
    pub(crate) fn new(gap: Duration) -> Turns {
        Turns { gap, costs: Vec::new(), round: None, over: 0 }
    }

    /// Returns the number of the text that goes through the next pass, or `None` for all of them.
    /// `texts` has their numbers, and the times of their last tokens.
    pub(crate) fn next(&mut self, texts: &[(usize, Duration)]) -> Option<usize> {
        let count = texts.len();
        if self.round.as_ref().is_some_and(|round| round.is_over(count, self.share(count))) {
            self.end_round();
        }
        if count < 2 {
            return None;
        }
        let share = self.share(count);
        let way = self.way(count);
        let round = self.round.get_or_insert_with(|| Round::new(way, count));
        if round.way == Way::Together {
            return None;
        }
        let goes_on = |turn: &Turn| {
            !turn.is_over(share) && texts.iter().any(|&(number, _)| number == turn.text)
        };
        if !round.turn.as_ref().is_some_and(goes_on) {
            round.turns += usize::from(round.turn.is_some());
            let oldest = texts.iter().min_by_key(|&&(_, heard)| heard);
            round.turn = oldest.map(|&(text, _)| Turn { text, passes: 0, time: Duration::ZERO });
        }
        round.turn.as_ref().map(|turn| turn.text)
    }

    /// Counts a pass that [`next`](Self::next) has chosen.
    pub(crate) fn passed(&mut self, tokens: usize, time: Duration) {
        let Some(round) = &mut self.round else { return };
        round.passes += 1;
        round.tokens += tokens;
        round.time += time;
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
        let cost = round.time.as_secs_f64() / round.tokens as f64;
        let (costs, way) = (&mut self.costs[round.texts], round.way as usize);
        let is_old = self.over - costs.last[way] > OLD;
        let known = costs.ways[way].filter(|_| !is_old);
        costs.ways[way] = Some(known.map_or(cost, |known| known + WEIGHT * (cost - known)));
        costs.last[way] = self.over;
    }

    /// Time of a turn among so many texts.
    fn share(&self, texts: usize) -> Duration {
        self.gap / texts.max(1) as u32
    }

    /// Chooses the way of the next round.
    fn way(&mut self, texts: usize) -> Way {
        if self.round.is_some() || texts < 2 {
            return Way::Together;
        }
        if self.costs.len() <= texts {
            self.costs.resize(texts + 1, Costs::default());
        }
        let share = self.share(texts).as_secs_f64();
        let Costs { ways, rounds, .. } = &mut self.costs[texts];
        let [together, in_turns] = *ways;
        let Some(together) = together else { return Way::Together };
        // A pass over one text takes no longer than one over all.
        let pass = in_turns.unwrap_or(together * texts as f64);
        let least = LEAST.max(texts as u32 - 1);
        if pass * f64::from(least) > share {
            return Way::Together;
        }
        let Some(in_turns) = in_turns else { return Way::InTurns };
        let (better, worse, loss) = match in_turns < together {
            true => (Way::InTurns, Way::Together, together / in_turns - 1.0),
            false => (Way::Together, Way::InTurns, in_turns / together - 1.0),
        };
        *rounds += 1;
        if f64::from(*rounds) < (loss * ROUNDS_PER_LOSS).max(f64::from(ROUNDS)) {
            return better;
        }
        *rounds = 0;
        worse
    }
}

impl Round {
    fn new(way: Way, texts: usize) -> Round {
        let (tokens, time, passes) = (0, Duration::ZERO, 0);
        Round { way, texts, tokens, time, passes, turn: None, turns: 0 }
    }

    /// True if there are other texts, or each has had its turn.
    fn is_over(&self, texts: usize, share: Duration) -> bool {
        let turns = self.turns + usize::from(self.turn.as_ref().is_some_and(|t| t.is_over(share)));
        texts != self.texts
            || match self.way {
                Way::Together => self.passes >= PASSES,
                Way::InTurns => turns >= self.texts,
            }
    }
}

impl Turn {
    /// True if another pass could take more than its share of the time.
    fn is_over(&self, share: Duration) -> bool {
        let pass = self.time / self.passes.max(1);
        self.passes >= PASSES || (self.passes > 0 && self.time + pass > share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model whose passes take these milliseconds: over all texts, over one whose experts are in
    /// memory, and longer by so much for the first passes of a turn.
    struct Model {
        together: f64,
        alone: f64,
        more: f64,
        firsts: u32,
    }

    /// Milliseconds per token of many passes, the longest wait of a text in milliseconds, and tokens of
    /// the texts.
    fn serve(model: &Model, gap: u64, count: usize) -> (f64, f64, Vec<u32>) {
        let mut turns = Turns::new(Duration::from_millis(gap));
        let mut heard = vec![Duration::ZERO; count];
        let mut tokens = vec![0; count];
        let (mut now, mut longest, mut last) = (Duration::ZERO, Duration::ZERO, (None, 0));
        for _ in 0..100_000 {
            let texts: Vec<_> = heard.iter().copied().enumerate().collect();
            let chosen = turns.next(&texts);
            last = (chosen, if last.0 == chosen { last.1 + 1 } else { 0 });
            let cold = chosen.is_some() && last.1 < model.firsts;
            let pass = if chosen.is_some() { model.alone } else { model.together };
            let pass = pass + if cold { model.more } else { 0.0 };
            let pass = Duration::from_secs_f64(pass / 1e3);
            now += pass;
            let ran = chosen.map_or(0..count, |text| text..text + 1);
            turns.passed(ran.len(), pass);
            for text in ran {
                longest = longest.max(now - heard[text]);
                heard[text] = now;
                tokens[text] += 1;
            }
        }
        let all = f64::from(tokens.iter().sum::<u32>());
        (1e3 * now.as_secs_f64() / all, 1e3 * longest.as_secs_f64(), tokens)
    }

    #[test]
    fn no_dearer_than_either_way_and_within_the_gap() {
        #[rustfmt::skip]
        let cases = [
            // everything in memory: shared passes
            (Model { together: 20.0, alone: 12.0, more: 0.0, firsts: 0 }, 10_000, 4),
            // experts from the disk: turns
            (Model { together: 70.0, alone: 10.0, more: 20.0, firsts: 8 }, 10_000, 4),
            (Model { together: 21.0, alone: 10.0, more: 20.0, firsts: 4 }, 10_000, 2),
            // turns too short to be worth it
            (Model { together: 70.0, alone: 10.0, more: 40.0, firsts: 8 }, 600, 4),
            // too slow for turns
            (Model { together: 2000.0, alone: 900.0, more: 0.0, firsts: 0 }, 10_000, 8),
            // shared passes always
            (Model { together: 70.0, alone: 1.0, more: 0.0, firsts: 0 }, 0, 4),
        ];
        for (at, (model, gap, count)) in cases.into_iter().enumerate() {
            let (cost, longest, tokens) = serve(&model, gap, count);
            // Full turns that the gap has room for.
            let share = gap as f64 / count as f64;
            let cold = f64::from(model.firsts) * (model.alone + model.more);
            let passes = (f64::from(model.firsts) + (share - cold).max(0.0) / model.alone)
                .floor()
                .min(f64::from(PASSES));
            let turns = match passes >= f64::from(LEAST) && share > 0.0 {
                true => model.alone + model.more * f64::from(model.firsts) / passes,
                false => f64::INFINITY,
            };
            let together = model.together / count as f64;
            let best = turns.min(together);
            assert!(
                cost <= 1.03 * best,
                "{at}: {cost} ms a token, {together} together, {turns} in turns"
            );
            let bound = (gap as f64).max(model.together);
            assert!(longest <= bound, "{at}: a wait of {longest} ms");
            let (least, most) = (tokens.iter().min().unwrap(), tokens.iter().max().unwrap());
            assert!(most - least <= PASSES, "{at}: {tokens:?}");
        }
    }

    #[test]
    fn texts_that_come_and_go_have_their_turns() {
        let second = Duration::from_secs(1);
        let mut turns = Turns::new(1000 * second);
        let heard = |numbers: &[usize]| -> Vec<_> {
            numbers.iter().map(|&number| (number, second * number as u32)).collect()
        };
        // A round that fills the memory, and one that is measured.
        for _ in 0..2 * PASSES {
            assert_eq!(turns.next(&heard(&[1, 2, 3])), None);
            turns.passed(3, 9 * second);
        }
        assert_eq!(turns.next(&heard(&[1, 2, 3])), Some(1));
        turns.passed(1, second);
        // The text whose turn it is has ended: another count of texts, whose costs are not known.
        assert_eq!(turns.next(&heard(&[2, 3])), None);
        assert_eq!(turns.next(&heard(&[3])), None);
        assert_eq!(turns.next(&[]), None);
    }
}
