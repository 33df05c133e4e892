//! Metrics of a run, measured in the same way for every source of weights.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::speculative::SpeculativeCounts;
use crate::experts::TierCounts;
use crate::speculation::Speculation;
use crate::stand_ins::RunAheadCounts;
use crate::wait::{Stalls, WeightKind};
use sws_cache::LookupCounts;
use sws_os::process;
use sws_store::DriveStats;

/// Readings of the clocks of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clocks {
    /// Current time.
    pub now: Duration,
    /// Time that the source took besides computing and waiting.
    pub source: Duration,
    /// Time and number of waits for reads.
    pub stalls: Stalls,
}

/// All counters at one moment, one field each. [`Metrics`] are the difference of two.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// The clocks.
    pub clocks: Clocks,
    /// Time spent in passes, measured by their caller.
    pub passes: Duration,
    /// Number of tokens processed.
    pub tokens: u64,
    /// Bytes that have arrived by kind of piece, in the order of [`WeightKind::ALL`].
    pub bytes: [u64; WeightKind::ALL.len()],
    /// Bytes read from the device, including reads that were given up.
    pub device_bytes: u64,
    /// Time during which at least one read was on the device.
    pub device_busy: Duration,
    /// Counters of each drive, the model's own first; empty without copies on others.
    pub drives: Vec<DriveStats>,
    /// Hits and misses of each layer's experts.
    pub layers: BTreeMap<u32, LookupCounts>,
    /// Layers whose experts were all resident or in flight.
    pub accepts: u64,
    /// Layers with at least one miss.
    pub rejects: u64,
    /// Stand-ins found in place of experts when a router chose.
    pub offered: u64,
    /// Number of these that did not count.
    pub caught: u64,
    /// Counts of running ahead.
    pub run_ahead: RunAheadCounts,
    /// Counts of draft tokens.
    pub proposals: SpeculativeCounts,
    /// Counts and balance of speculation.
    pub speculation: Speculation,
    /// Peak number of bytes in expert slots.
    pub peak_cache_bytes: u64,
    /// Counts of the tier of experts outside memory, if there is one.
    pub tier: Option<TierCounts>,
    /// Bytes of context memory that is lent to experts at the moment.
    pub context_lent: u64,
    /// Bytes of structured-output memory that is lent to slots.
    pub structured_lent: u64,
}

/// Metrics of a run, or of a part of it: the fields of its JSON.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Metrics {
    /// Number of tokens processed.
    pub tokens: u64,
    /// Duration in seconds.
    pub seconds: f64,
    /// Tokens per second.
    pub tokens_per_second: f64,
    /// Bytes that have arrived per token, by kind of piece.
    pub bytes_per_token: BTreeMap<&'static str, f64>,
    /// Reads from the device.
    pub disk: Disk,
    /// Reads from each drive, the model's own first; empty without copies on others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drives: Vec<DriveMetrics>,
    /// Waits of the computation for reads of any kind.
    pub stalls: StallMetrics,
    /// Split of the time.
    pub time: TimeSplit,
    /// Hits and misses of experts.
    pub experts: ExpertMetrics,
    /// The tier of experts outside memory, with the hits and copies of this part of the run; `None` without one. Its
    /// hits are not among those of `experts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vram: Option<TierCounts>,
    /// Layers whose experts were all resident or in flight.
    pub accepts: u64,
    /// Layers with at least one miss.
    pub rejects: u64,
    /// Use of stand-ins; `None` if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stand_ins: Option<StandInMetrics>,
    /// Counts of draft tokens; `None` if there were none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proposals: Option<SpeculativeCounts>,
    /// Counts and balance of speculation.
    pub speculation: Speculation,
    /// Peak number of bytes in expert slots.
    pub peak_cache_bytes: u64,
    /// Peak memory of the process in bytes, if the system reports it.
    pub peak_rss_bytes: Option<u64>,
}

/// Reads from the device.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Disk {
    /// Bytes read.
    pub bytes: u64,
    /// Throughput in GB/s while at least one read was in flight.
    pub gb_per_second_reading: f64,
    /// Throughput in GB/s over the whole time.
    pub gb_per_second: f64,
    /// Share of the time during which a read was in flight.
    pub busy: f64,
}

/// Reads from one of several drives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriveMetrics {
    /// Bytes read.
    pub bytes: u64,
    /// True if it failed, or had wrong bytes, and was left out.
    pub left_out: bool,
}

impl From<&DriveStats> for DriveMetrics {
    fn from(&DriveStats { bytes, is_left_out }: &DriveStats) -> DriveMetrics {
        DriveMetrics { bytes, left_out: is_left_out }
    }
}

/// Waits for the device.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct StallMetrics {
    /// Number of waits.
    pub count: u64,
    /// Total duration in seconds.
    pub seconds: f64,
}

/// Split of the time, in seconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct TimeSplit {
    /// Time in the forward pass.
    pub compute: f64,
    /// Time waiting for reads.
    pub stall: f64,
    /// Other time: supplying the weights, and work around passes such as sampling and text.
    pub other: f64,
}

/// Hits and misses of experts.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ExpertMetrics {
    /// Share of lookups that found the expert resident; `None` (null in JSON) without lookups.
    pub hit_rate: Option<f64>,
    /// Share of lookups that found the expert neither resident nor in flight; 0 without lookups.
    pub miss_rate: f64,
    /// Counts of each layer.
    pub layers: Vec<LayerMetrics>,
}

/// Use of stand-ins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StandInMetrics {
    /// Stand-ins found in place of experts when a router chose.
    pub offered: u64,
    /// Number of these that did not count, so that the expert was fetched.
    pub caught: u64,
    /// Number of these that counted. The result is then inexact, and not reproducible, as it
    /// depends on which experts were in memory.
    pub counted: u64,
    /// Number of times that a pass ran ahead on stand-ins.
    pub run_ahead: u64,
    /// Layers computed ahead, to learn their choices.
    pub layers_ahead: u64,
    /// Experts chosen by these layers.
    pub foreseen: u64,
    /// Number of these that were chosen again in the real pass.
    pub foreseen_right: u64,
}

impl StandInMetrics {
    fn between(before: &Counters, after: &Counters) -> Option<StandInMetrics> {
        let offered = after.offered - before.offered;
        let caught = after.caught - before.caught;
        let ahead = after.run_ahead;
        let old = before.run_ahead;
        let found = StandInMetrics {
            offered,
            caught,
            counted: offered.saturating_sub(caught),
            run_ahead: ahead.runs - old.runs,
            layers_ahead: ahead.layers - old.layers,
            foreseen: ahead.foreseen - old.foreseen,
            foreseen_right: ahead.right - old.right,
        };
        (found != StandInMetrics::default()).then_some(found)
    }
}

/// Hits and misses of one layer.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct LayerMetrics {
    /// Number of the layer.
    pub layer: u32,
    /// Experts that were resident when the router chose.
    pub hits: u64,
    /// Experts that were in flight.
    pub late: u64,
    /// Experts that had to be fetched.
    pub misses: u64,
}

impl Metrics {
    /// Computes the metrics between two moments.
    pub fn between(before: &Counters, after: &Counters) -> Metrics {
        let seconds = (after.clocks.now.saturating_sub(before.clocks.now)).as_secs_f64();
        let tokens = after.tokens - before.tokens;
        let mut drives = Vec::with_capacity(after.drives.len());
        for (number, drive) in after.drives.iter().enumerate() {
            let old = before.drives.get(number).copied().unwrap_or_default();
            let bytes = drive.bytes - old.bytes;
            drives.push(DriveMetrics { bytes, ..DriveMetrics::from(drive) });
        }
        let mut bytes_per_token = BTreeMap::new();
        for (number, kind) in WeightKind::ALL.iter().enumerate() {
            let bytes = after.bytes[number] - before.bytes[number];
            let each = per(bytes as f64, tokens as f64);
            if each > 0.0 {
                bytes_per_token.insert(kind.name(), each);
            }
        }
        let device = after.device_bytes - before.device_bytes;
        let busy = after.device_busy.saturating_sub(before.device_busy).as_secs_f64();
        let stall = after.clocks.stalls.time.saturating_sub(before.clocks.stalls.time);
        let source = after.clocks.source.saturating_sub(before.clocks.source);
        let passes = after.passes.saturating_sub(before.passes);
        let compute = passes.saturating_sub(stall).saturating_sub(source).as_secs_f64();
        let stall = stall.as_secs_f64();
        let mut layers = Vec::with_capacity(after.layers.len());
        let mut all = LayerMetrics::default();
        for (&layer, now) in &after.layers {
            let old = before.layers.get(&layer).copied().unwrap_or_default();
            let hits = now.hits - old.hits;
            let late = now.late - old.late;
            let misses = now.misses - old.misses;
            layers.push(LayerMetrics { layer, hits, late, misses });
            all.hits += hits;
            all.late += late;
            all.misses += misses;
        }
        let hits = all.hits as f64;
        let misses = all.misses as f64;
        let lookups = hits + all.late as f64 + misses;
        let proposals = after.proposals.since(&before.proposals);
        Metrics {
            tokens,
            seconds,
            tokens_per_second: per(tokens as f64, seconds),
            bytes_per_token,
            disk: Disk {
                bytes: device,
                gb_per_second_reading: per(device as f64 / 1e9, busy),
                gb_per_second: per(device as f64 / 1e9, seconds),
                busy: per(busy, seconds),
            },
            drives,
            stalls: StallMetrics {
                count: after.clocks.stalls.count - before.clocks.stalls.count,
                seconds: stall,
            },
            time: TimeSplit { compute, stall, other: (seconds - compute - stall).max(0.0) },
            experts: ExpertMetrics {
                hit_rate: (lookups > 0.0).then_some(hits / lookups),
                miss_rate: per(misses, lookups),
                layers,
            },
            vram: tier_between(before, after),
            accepts: after.accepts - before.accepts,
            rejects: after.rejects - before.rejects,
            stand_ins: StandInMetrics::between(before, after),
            proposals: (proposals != SpeculativeCounts::default()).then_some(proposals),
            speculation: after.speculation.since(&before.speculation),
            peak_cache_bytes: after.peak_cache_bytes,
            peak_rss_bytes: peak_memory(),
        }
    }
}

/// The ratio of two quantities; 0 if there is nothing to divide by.
fn per(n: f64, d: f64) -> f64 {
    if d > 0.0 { n / d } else { 0.0 }
}

fn tier_between(before: &Counters, after: &Counters) -> Option<TierCounts> {
    let mut counts = after.tier.clone()?;
    if let Some(old) = &before.tier {
        counts.hits -= old.hits;
        counts.copies -= old.copies;
    }
    Some(counts)
}

/// Peak memory of this process in bytes, if the system reports it.
pub fn peak_memory() -> Option<u64> {
    process::memory().peak
}

/// Memory of this process in bytes, if the system reports it.
pub fn memory() -> Option<u64> {
    process::memory().resident
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_differences_of_counters() {
        let seconds = Duration::from_secs;
        let counts = |hits, late, misses| LookupCounts { hits, late, misses };
        let mut before = Counters { tokens: 10, accepts: 1, ..Counters::default() };
        before.clocks.now = seconds(100);
        before.layers.insert(0, counts(5, 0, 5));
        let mut after = Counters { tokens: 14, accepts: 3, rejects: 6, ..before.clone() };
        after.clocks.now = seconds(110);
        after.clocks.source = seconds(1);
        after.clocks.stalls = Stalls { time: seconds(4), count: 7 };
        after.passes = seconds(9);
        after.bytes[WeightKind::Experts as usize] = 8_000_000_000;
        after.device_bytes = 10_000_000_000;
        after.device_busy = seconds(5);
        after.layers.insert(0, counts(11, 1, 6));
        after.layers.insert(2, counts(0, 0, 2));
        after.speculation = Speculation {
            issued: 4,
            useful: 3,
            wasted: 1,
            bytes: 400,
            useful_bytes: 300,
            saved_ns: 5e6,
            cost_ns: 2e6,
            draft_ns: 1e6,
            windows_on: 2,
            windows_off: 0,
        };
        let metrics = Metrics::between(&before, &after);
        let mut json = serde_json::to_value(&metrics).unwrap();
        json.as_object_mut().unwrap().remove("peak_rss_bytes").unwrap();
        let expected = serde_json::json!({
            "tokens": 4, "seconds": 10.0, "tokens_per_second": 0.4,
            "bytes_per_token": { "experts": 2e9 },
            "disk": {
                "bytes": 10_000_000_000u64, "gb_per_second_reading": 2.0, "gb_per_second": 1.0,
                "busy": 0.5,
            },
            "stalls": { "count": 7, "seconds": 4.0 },
            "time": { "compute": 4.0, "stall": 4.0, "other": 2.0 },
            "experts": {
                "hit_rate": 0.6, "miss_rate": 0.3,
                "layers": [
                    { "layer": 0, "hits": 6, "late": 1, "misses": 1 },
                    { "layer": 2, "hits": 0, "late": 0, "misses": 2 },
                ],
            },
            "accepts": 2, "rejects": 6,
            "speculation": {
                "issued": 4, "useful": 3, "wasted": 1, "bytes": 400, "useful_bytes": 300,
                "saved_ns": 5e6, "cost_ns": 2e6, "draft_ns": 1e6, "windows_on": 2, "windows_off": 0,
            },
            "peak_cache_bytes": 0,
        });
        assert_eq!(json, expected);
    }
}
