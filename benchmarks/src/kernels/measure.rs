//! Measures several contenders in turns.

use std::time::Duration;

use anyhow::Result;
use sws_format::Clock;

use crate::paired::{Ratios, median};

/// One implementation of a cell's work.
pub(super) struct Contender<'a> {
    /// Name in tables.
    pub(super) name: String,
    /// Bytes of weights read per call.
    pub(super) bytes: f64,
    /// Number of weights used per call.
    pub(super) weights: f64,
    /// One call. The argument is its number, so that calls can cycle through a working set.
    pub(super) call: Box<dyn FnMut(usize) -> Result<()> + 'a>,
}

/// Time of one contender per call, for each round.
pub(super) struct Timing {
    /// Seconds per call, one number per round.
    pub(super) rounds: Vec<f64>,
}

impl Timing {
    /// The median of the rounds.
    pub(super) fn median(&self) -> f64 {
        median(self.rounds.iter().copied())
    }

    /// Median speed-up over `other`, compared round by round: a temporary slowdown of the machine
    /// affects both.
    pub(super) fn speed_over(&self, other: &Timing) -> f64 {
        Ratios::new(&other.rounds, &self.rounds).median()
    }
}

/// Runs every contender for a slice of time in each of `rounds` rounds, in forward and backward
/// order alternately. Each contender gets `seconds` in all, and at least one call per slice.
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
    // One unmeasured call each: threads start, buffers grow, lazy repacking happens.
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
    fn contenders_alternate_and_number_their_calls() {
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
