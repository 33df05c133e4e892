//! Counters of a run.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Counters, Metrics, SpeculativeWeightStreamer};
use crate::budget::SlotClass;
use crate::wait::bytes_read;
use crate::watch::RunWatch;

/// Totals of all passes, and the counters before the first.
#[derive(Debug)]
pub(super) struct Totals {
    began: Counters,
    pub(super) tokens: u64,
    pub(super) passes: Duration,
    pub(super) gauge: Gauge,
}

/// Counters of a run as of the last pass, readable from another thread.
#[derive(Clone, Debug)]
pub struct Gauge {
    counters: Arc<Mutex<Counters>>,
    watch: RunWatch,
}

impl Gauge {
    /// The view of the pass that is running.
    pub fn watch(&self) -> &RunWatch {
        &self.watch
    }

    /// Returns a copy of the counters.
    pub fn read(&self) -> Counters {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Counters> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Totals {
    /// Totals before the first pass.
    pub(super) fn new(watch: RunWatch) -> Totals {
        let gauge = Gauge { counters: Arc::default(), watch };
        Totals { began: Counters::default(), tokens: 0, passes: Duration::ZERO, gauge }
    }
}

impl SpeculativeWeightStreamer {
    /// Starts counting at this point.
    pub(super) fn begin_counting(&mut self) {
        self.totals.began = self.counters();
        self.publish_counters();
    }

    /// Publishes the counters to every [`Gauge`].
    pub(super) fn publish_counters(&mut self) {
        *self.totals.gauge.lock() = self.counters();
    }

    /// A handle to read the counters while a pass runs in another thread.
    pub fn gauge(&self) -> Gauge {
        self.totals.gauge.clone()
    }

    /// Metrics since this streamer was created. Loading the weights that stay in memory does not
    /// count.
    pub fn aggregate_metrics(&mut self) -> Metrics {
        Metrics::between(&self.totals.began.clone(), &self.counters())
    }

    /// Current counters.
    pub fn counters(&mut self) -> Counters {
        let Totals { tokens, passes, .. } = self.totals;
        let source = self.sequences.source();
        let clocks = source.meter().clocks();
        let bytes = source.meter().waiter().bytes();
        let proposals = self.speculative.counts();
        let mut counters =
            Counters { clocks, passes, tokens, bytes, proposals, ..Counters::default() };
        let Some(store) = &self.store else { return counters };
        let stats = store.stats();
        counters.device_bytes = bytes_read(&stats);
        counters.device_busy = stats.busy;
        counters.drives = stats.drives;
        counters.context_lent = self.contexts.bytes();
        if let Some(plan) = &self.plan
            && self.structured.has_lent()
        {
            counters.structured_lent = plan.structured_lent.iter().map(SlotClass::bytes).sum();
        }
        if let Some(assembler) = source.assembler() {
            let verifier = assembler.verifier();
            (counters.accepts, counters.rejects) = (verifier.accepts, verifier.rejects);
            (counters.offered, counters.caught) = (verifier.offered, verifier.caught);
            counters.run_ahead = assembler.run_ahead_counts();
            counters.layers = assembler.cache().counts().clone();
            counters.tier = assembler.tier_counts();
            counters.speculation = assembler.speculation();
            counters.peak_cache_bytes = assembler.cache().peak_bytes() as u64;
        }
        counters
    }
}
