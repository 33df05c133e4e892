//! Cost of a part of a run.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sws_engine::watch::RunTally;

/// A part of a run, such as a pass, or the time between two frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunStep {
    /// Duration in seconds; 0 if times are unknown.
    pub seconds: f64,
    /// Seconds of passes, without waits and without supplying the weights.
    pub computing: f64,
    /// Seconds of waits for reads.
    pub waiting: f64,
    /// Seconds during which a read was on the device.
    pub reading: f64,
    /// Bytes read.
    pub bytes: u64,
    /// Experts that were in memory when a router chose them.
    pub hits: u64,
    /// Experts that were not in memory.
    pub misses: u64,
    /// Of the hits, experts that were computed on a tier outside memory.
    #[serde(skip_serializing_if = "is_zero")]
    pub on_tier: u64,
}

impl RunStep {
    /// The step between two readings.
    pub fn between(before: &RunTally, after: &RunTally) -> RunStep {
        let in_passes = seconds_between(before.in_passes, after.in_passes);
        let waiting = seconds_between(before.stalled, after.stalled);
        let source = seconds_between(before.source, after.source);
        RunStep {
            seconds: seconds_between(before.now, after.now),
            computing: (in_passes - waiting - source).max(0.0),
            waiting,
            reading: seconds_between(before.device_busy, after.device_busy),
            bytes: after.device_bytes.saturating_sub(before.device_bytes),
            hits: after.hits.saturating_sub(before.hits),
            misses: after.misses.saturating_sub(before.misses),
            on_tier: after.on_tier.saturating_sub(before.on_tier),
        }
    }

    /// The sum of steps. Numbers of a server may be any.
    pub fn sum<'a>(steps: impl IntoIterator<Item = &'a RunStep>) -> RunStep {
        let mut sum = RunStep::default();
        for step in steps {
            sum.seconds += step.seconds;
            sum.computing += step.computing;
            sum.waiting += step.waiting;
            sum.reading += step.reading;
            sum.bytes = sum.bytes.saturating_add(step.bytes);
            sum.hits = sum.hits.saturating_add(step.hits);
            sum.misses = sum.misses.saturating_add(step.misses);
            sum.on_tier = sum.on_tier.saturating_add(step.on_tier);
        }
        sum
    }

    /// Share of the chosen experts that were in memory; `None` if none were chosen.
    pub fn hit_rate(&self) -> Option<f64> {
        self.share_of_chosen(self.hits)
    }

    /// Share of the chosen experts that were computed on a tier; `None` if none were chosen.
    pub fn tier_rate(&self) -> Option<f64> {
        self.share_of_chosen(self.on_tier)
    }

    fn share_of_chosen(&self, experts: u64) -> Option<f64> {
        let all = self.hits.saturating_add(self.misses);
        (all > 0).then(|| experts as f64 / all as f64)
    }

    /// Gigabytes read per second.
    pub fn gb_per_second(&self) -> f64 {
        self.share(self.bytes as f64 / 1e9)
    }

    /// A part of the duration as a share from 0 to 1.
    pub(crate) fn share(&self, part: f64) -> f64 {
        if self.seconds > 0.0 { part / self.seconds } else { 0.0 }
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn seconds_between(before: Duration, after: Duration) -> f64 {
    after.saturating_sub(before).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sws_engine::watch::TierTally;

    use super::*;

    #[test]
    fn steps_are_differences_of_readings() {
        let seconds = Duration::from_secs;
        let before = RunTally { now: seconds(10), hits: 5, ..RunTally::default() };
        let after = RunTally {
            now: seconds(14),
            in_passes: seconds(5),
            stalled: seconds(1),
            source: seconds(2),
            device_busy: seconds(2),
            device_bytes: 8_000_000_000,
            hits: 8,
            misses: 1,
            on_tier: 2,
            // Most of them before the watch began.
            tier: Some(TierTally { hits: 1000, ..TierTally::default() }),
            ..before
        };
        let step = RunStep::between(&before, &after);
        assert_eq!((step.computing, step.waiting, step.reading), (2.0, 1.0, 2.0));
        assert_eq!((step.hit_rate(), step.gb_per_second()), (Some(0.75), 2.0));
        assert_eq!(step.tier_rate(), Some(0.5));
        assert_eq!(RunStep::sum([&step, &step]).gb_per_second(), 2.0);
        let nothing = RunStep::between(&after, &after);
        assert_eq!((nothing.hit_rate(), nothing.gb_per_second()), (None, 0.0));
    }

    #[test]
    fn sums_and_rates_of_any_numbers_are_finite() {
        let most = u64::MAX;
        let step =
            RunStep { bytes: most, hits: most, misses: most, on_tier: most, ..RunStep::default() };
        let sum = RunStep::sum([&step, &step]);
        assert_eq!(sum, step);
        assert_eq!((sum.hit_rate(), sum.tier_rate()), (Some(1.0), Some(1.0)));
    }
}
