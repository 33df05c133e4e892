//! The time and the work of a text, the caller's time between its pieces not counted.

use std::time::Duration;

use sws_engine::{Counters, Gauge, Metrics};
use sws_store::Clock;

use crate::{Cost, Pace};

/// Measures the time and the work of a text.
#[derive(Debug)]
pub(crate) struct Timing {
    clock: Clock,
    gauge: Option<Gauge>,
    /// As the prompt began, and as it was over.
    counters: [Option<Counters>; 2],
    /// The beginning of the time that counts now, if it does, and what counted before.
    since: Option<Duration>,
    spent: Duration,
    /// The time of the prompt.
    pub(crate) prompt: Duration,
    /// Tokens computed after the prompt.
    pub(crate) computed: usize,
}

impl Timing {
    pub(crate) fn new(gauge: Option<Gauge>) -> Timing {
        let began = gauge.as_ref().map(Gauge::read);
        Timing {
            clock: Clock::real(),
            gauge,
            counters: [began, None],
            since: None,
            spent: Duration::ZERO,
            prompt: Duration::ZERO,
            computed: 0,
        }
    }

    /// Time counts from now on.
    pub(crate) fn begin(&mut self) {
        self.since = Some(self.clock.now());
    }

    /// Time counts no more, until it begins again: it is the caller's.
    pub(crate) fn pause(&mut self) {
        self.spent += self.elapsed();
        self.since = None;
    }

    /// The time since it began.
    pub(crate) fn elapsed(&self) -> Duration {
        self.since.map_or(Duration::ZERO, |since| self.clock.now() - since)
    }

    /// The prompt is over.
    pub(crate) fn begin_tokens(&mut self) {
        self.prompt = self.elapsed();
        self.counters[1] = self.gauge.as_ref().map(Gauge::read);
        self.begin();
    }

    /// The pace of the tokens after the prompt, and the cost of all; none if the prompt was cut off.
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
