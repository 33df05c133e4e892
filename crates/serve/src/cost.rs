//! Work of the engine during a request.

use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use sws_engine::{Counters, Gauge};

use crate::engine::ServedEngine;

/// Values of the counters when a request was queued, or when its model was loaded for it.
#[derive(Debug, Default)]
pub(crate) struct RequestCost(Mutex<Option<Counted>>);

#[derive(Debug)]
struct Counted {
    /// Number of the load, of which these are the counters.
    load: u64,
    gauge: Gauge,
    before: Counters,
}

/// Work of the engine since a request was queued. It includes the work for other texts in the same
/// passes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Spent {
    bytes: u64,
    /// Share of chosen experts that were in memory.
    hit_rate: Option<f64>,
    /// Share of the time in passes spent waiting for reads.
    stall_share: Option<f64>,
}

impl RequestCost {
    /// Begins to count, unless the work of this load is counted already.
    pub(crate) fn count(&self, engine: &ServedEngine) {
        let Some((load, gauge)) = engine.run() else { return };
        let mut counted = self.lock();
        if counted.as_ref().is_none_or(|counted| counted.load != load) {
            let before = gauge.read();
            *counted = Some(Counted { load, gauge, before });
        }
    }

    pub(crate) fn spent(&self) -> Spent {
        match &*self.lock() {
            Some(Counted { gauge, before, .. }) => Spent::between(before, &gauge.read()),
            None => Spent::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Counted>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A part as a share from 0 to 1; `None` of nothing.
fn share(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| (part / whole).clamp(0.0, 1.0))
}

/// Number of hits, and of all experts that routers chose.
fn hits_of(counters: &Counters) -> [u64; 2] {
    let mut hits = 0;
    let mut all = 0;
    for layer in counters.layers.values() {
        hits += layer.hits;
        all += layer.hits + layer.late + layer.misses;
    }
    [hits, all]
}

impl Spent {
    fn between(before: &Counters, now: &Counters) -> Spent {
        let [hits, all] = hits_of(now);
        let [hits_before, all_before] = hits_of(before);
        let passes = now.passes.saturating_sub(before.passes).as_secs_f64();
        let stalls = now.clocks.stalls.time.saturating_sub(before.clocks.stalls.time).as_secs_f64();
        Spent {
            bytes: now.device_bytes.saturating_sub(before.device_bytes),
            hit_rate: share((hits - hits_before) as f64, (all - all_before) as f64),
            stall_share: share(stalls, passes),
        }
    }

    pub(crate) fn json(&self) -> Value {
        let Spent { bytes, hit_rate, stall_share } = self;
        json!({"bytes_read": bytes, "hit_rate": hit_rate, "stall_share": stall_share})
    }

    /// The cost as a dictionary of structured fields (RFC 9651).
    pub(crate) fn header(&self) -> String {
        let mut header = format!("bytes-read={}", self.bytes);
        for (name, share) in [("hit-rate", self.hit_rate), ("stall-share", self.stall_share)] {
            if let Some(share) = share {
                let _ = write!(header, ", {name}={share:.3}");
            }
        }
        header
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn shares_are_of_what_happened_since() {
        let mut before = Counters { device_bytes: 100, ..Counters::default() };
        before.layers.entry(0).or_default().hits = 5;
        let mut now = before.clone();
        assert_eq!(Spent::between(&before, &now).header(), "bytes-read=0");
        now.device_bytes = 350;
        let layer = now.layers.entry(1).or_default();
        (layer.hits, layer.misses) = (3, 1);
        now.passes = Duration::from_secs(8);
        now.clocks.stalls.time = Duration::from_secs(2);
        let spent = Spent::between(&before, &now);
        assert_eq!(spent.header(), "bytes-read=250, hit-rate=0.750, stall-share=0.250");
        assert_eq!(spent.json()["hit_rate"], 0.75);
    }
}
