//! Time and cost of a text, without the time that the caller spends between its pieces.

use std::time::Duration;

use sws_engine::{Counters, Gauge, Metrics, Waiter};
use sws_format::Clock;

use crate::{Cost, Pace};

/// The clock of a waiter, or the real one.
pub(crate) fn clock_of(waiter: Option<&Waiter>) -> Clock {
    match waiter {
        Some(waiter) => waiter.clock().clone(),
        None => Clock::real(),
    }
}

/// Measures the time and cost of a text.
#[derive(Debug)]
pub(crate) struct TextTiming {
    clock: Clock,
    gauge: Option<Gauge>,
    /// Counters at the start and at the end of the prompt.
    counters: [Option<Counters>; 2],
    /// Start of the current interval, if the clock is running. `spent` is the sum of earlier
    /// intervals.
    since: Option<Duration>,
    spent: Duration,
    /// Time of the prompt.
    pub(crate) prompt: Duration,
    /// Tokens computed after the prompt.
    pub(crate) computed: usize,
}

impl TextTiming {
    pub(crate) fn new(gauge: Option<Gauge>) -> TextTiming {
        let began = gauge.as_ref().map(Gauge::read);
        TextTiming {
            clock: Clock::real(),
            gauge,
            counters: [began, None],
            since: None,
            spent: Duration::ZERO,
            prompt: Duration::ZERO,
            computed: 0,
        }
    }

    /// Starts the clock.
    pub(crate) fn begin(&mut self) {
        self.since = Some(self.clock.now());
    }

    /// Stops the clock while the caller has control.
    pub(crate) fn pause(&mut self) {
        self.spent += self.elapsed();
        self.since = None;
    }

    /// Time since the clock was started.
    pub(crate) fn elapsed(&self) -> Duration {
        self.since.map_or(Duration::ZERO, |since| self.clock.now() - since)
    }

    /// Ends the prompt and starts timing tokens.
    pub(crate) fn begin_tokens(&mut self) {
        self.prompt = self.elapsed();
        self.counters[1] = self.gauge.as_ref().map(Gauge::read);
        self.begin();
    }

    /// Stops the clock. Returns the pace of the tokens after the prompt, and the cost of both
    /// parts. No cost if the prompt was cancelled.
    pub(crate) fn end(&mut self) -> (Pace, Option<Cost>) {
        self.pause();
        let cost = match (&self.counters, &self.gauge) {
            ([Some(before), Some(between)], Some(gauge)) => Some(Cost {
                prompt: Metrics::between(before, between),
                generation: Metrics::between(between, &gauge.read()),
            }),
            _ => None,
        };
        (Pace::of(self.computed, self.spent), cost)
    }
}
