//! Several contenders, measured in turns.

use std::time::Duration;

use anyhow::Result;
use sws_store::Clock;

use crate::paired::{Ratios, median};

/// One way of doing a cell's work.
pub(super) struct Contender<'a> {
    /// The name in tables.
    pub(super) name: String,
    /// Bytes of weights that one call reads.
    pub(super) bytes: f64,
    /// Weights that one call uses.
    pub(super) weights: f64,
    /// One call: the `i`th, so that calls can go round a working set.
    pub(super) call: Box<dyn FnMut(usize) -> Result<()> + 'a>,
}

/// How long one contender took a call, round by round.
pub(super) struct Timing {
    /// Seconds a call, one number a round.
    pub(super) rounds: Vec<f64>,
}

impl Timing {
    /// The middle one.
    pub(super) fn median(&self) -> f64 {
        median(self.rounds.iter().copied())
    }

    /// How many times faster than `other` in the middle round, each round against the same
    /// round of the other: what slows the machine for a while slows both.
    pub(super) fn speed_over(&self, other: &Timing) -> f64 {
        Ratios::new(&other.rounds, &self.rounds).median()
    }
}

/// Lets every contender run for a slice of time in each of `rounds` rounds, forwards and backwards
/// in turn; each gets `seconds` in all, and as many calls a slice as fit, at least one.
pub(super) fn alternate(
    contenders: &mut [Contender<'_>],
    rounds: usize,
    seconds: f64,
) -> Result<Vec<Timing>> {
    let clock = Clock::real();
    let slice = Duration::from_secs_f64(seconds / rounds as f64);
    let mut calls = vec![0usize; contenders.len()];
    let mut timings: Vec<Timing> =
        contenders.iter().map(|_| Timing { rounds: Vec::with_capacity(rounds) }).collect();
    // A first call each, unmeasured: threads start, buffers grow, lazy repacking happens.
    for (contender, calls) in contenders.iter_mut().zip(&mut calls) {
        (contender.call)(*calls)?;
        *calls += 1;
    }
    for round in 0..rounds {
        for i in 0..contenders.len() {
            let i = if round % 2 == 0 { i } else { contenders.len() - 1 - i };
            let start = clock.now();
            let mut done = 0;
            let elapsed = loop {
                (contenders[i].call)(calls[i])?;
                calls[i] += 1;
                done += 1;
                let elapsed = clock.now() - start;
                if elapsed >= slice {
                    break elapsed;
                }
            };
            timings[i].rounds.push(elapsed.as_secs_f64() / f64::from(done));
        }
    }
    Ok(timings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contenders_take_turns_and_go_round() {
        let seen = std::cell::RefCell::new(Vec::new());
        let log = &seen;
        let mut contenders: Vec<_> = ["a", "b"]
            .into_iter()
            .map(|name| Contender {
                name: name.to_owned(),
                bytes: 1.0,
                weights: 1.0,
                call: Box::new(move |i| {
                    log.borrow_mut().push((name, i));
                    Ok(())
                }),
            })
            .collect();
        let timings = alternate(&mut contenders, 3, 0.0).unwrap();
        drop(contenders);
        let expected =
            [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("b", 2), ("a", 2), ("a", 3), ("b", 3)];
        assert_eq!(seen.into_inner(), expected);
        assert!(timings.iter().all(|timing| timing.rounds.len() == 3));
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        // The machine was ten times slower in the second round.
        let own = Timing { rounds: vec![1.0, 10.0, 1.1] };
        let other = Timing { rounds: vec![2.0, 20.0, 2.2] };
        assert_eq!(own.median(), 1.1);
        assert!((own.speed_over(&other) - 2.0).abs() < 1e-12);
    }
}
