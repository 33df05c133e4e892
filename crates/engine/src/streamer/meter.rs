//! Split of the time of passes into computing, waits, and work of the weight source.

use std::sync::Arc;
use std::time::Duration;

use sws_model::RunAhead;
use sws_store::NVMeWeightStore;

use super::metrics::Clocks;
use crate::wait::Waiter;

/// Measures the time that a weight source takes besides computing and waiting.
#[derive(Debug)]
pub(crate) struct Meter {
    waiter: Waiter,
    pace: Option<(Arc<NVMeWeightStore>, ComputeCosts)>,
    spent: SpentTime,
    /// The reading at the start of a run ahead.
    ahead: Option<MeterReading>,
}

/// Computing times in virtual time, where computing itself takes no time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ComputeCosts {
    /// Time of a layer before its router has chosen, and again for a shared expert or for the
    /// feed-forward block of a layer without routed experts.
    pub infrastructure: Duration,
    /// Time of a routed expert, whatever its number of tokens.
    pub expert: Duration,
    /// Time of the head.
    pub head: Duration,
}

/// Time of passes spent in the source. The forward pass's work between two calls of the source is
/// not included.
#[derive(Clone, Copy, Debug, Default)]
struct SpentTime {
    /// All time in calls of the source.
    inside: Duration,
    /// Part of it in computations that the source has called.
    computing: Duration,
    /// Part of the computations spent waiting for rows of a matrix.
    stalled: Duration,
}

/// A moment, with the times spent and waited until then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeterReading {
    now: Duration,
    spent: SpentTime,
    waited: Duration,
}

impl Meter {
    /// Creates a meter for a source that waits with `waiter`.
    pub(crate) fn new(waiter: Waiter) -> Meter {
        Meter { waiter, pace: None, spent: SpentTime::default(), ahead: None }
    }

    /// Makes computing advance the virtual time of `store`.
    pub(crate) fn pace(&mut self, store: Arc<NVMeWeightStore>, costs: ComputeCosts) {
        self.pace = Some((store, costs));
    }

    /// The source's waiter.
    pub(crate) fn waiter(&self) -> &Waiter {
        &self.waiter
    }

    /// Reads the clocks.
    pub(crate) fn clocks(&self) -> Clocks {
        let SpentTime { inside, computing, stalled } = self.spent;
        let stalls = self.waiter.stalls();
        let waiting = stalls.time.saturating_sub(stalled);
        Clocks {
            now: self.waiter.clock().now(),
            source: inside.saturating_sub(computing).saturating_sub(waiting),
            stalls,
        }
    }

    /// Starts a call of the source. Returns the argument for [`leave`](Self::leave).
    pub(crate) fn enter(&self) -> Duration {
        self.waiter.clock().now()
    }

    /// Ends a call of the source.
    pub(crate) fn leave(&mut self, started: Duration) {
        self.spent.inside += self.waiter.clock().now().saturating_sub(started);
    }

    /// Computing times in virtual time; zeros in real time.
    pub(crate) fn costs(&self) -> ComputeCosts {
        match &self.pace {
            Some((_, costs)) => *costs,
            None => ComputeCosts::default(),
        }
    }

    /// Starts a computation within a call of the source, which takes `cost` in virtual time. Returns
    /// the argument for [`end_computing`](Self::end_computing).
    pub(crate) fn begin_computing(&self, cost: Duration) -> MeterReading {
        let before = self.reading();
        if let Some((store, _)) = &self.pace {
            store.spend(cost);
        }
        before
    }

    /// Ends a computation within a call of the source.
    pub(crate) fn end_computing(&mut self, before: MeterReading) {
        let MeterReading { now, waited, .. } = before;
        self.spent.computing += self.waiter.clock().now().saturating_sub(now);
        self.spent.stalled += self.waiter.stalls().time.saturating_sub(waited);
    }

    /// Returns the current reading.
    pub(crate) fn reading(&self) -> MeterReading {
        let now = self.waiter.clock().now();
        let waited = self.waiter.stalls().time;
        MeterReading { now, spent: self.spent, waited }
    }

    /// Accounts for a step of running ahead that began at `before`. Results computed ahead are
    /// computed again, so their time counts as part of the wait that it fills.
    pub(crate) fn ran_ahead(&mut self, step: RunAhead, before: MeterReading, answer: bool) {
        match step {
            RunAhead::From(_) => self.ahead = answer.then_some(before),
            RunAhead::On(_) => {}
            RunAhead::Done => {
                if let Some(MeterReading { now, spent, waited }) = self.ahead.take() {
                    let waited = self.waiter.stalls().time.saturating_sub(waited);
                    let ahead = self.waiter.clock().now().saturating_sub(now + waited);
                    self.waiter.bridged(ahead);
                    let stalled = spent.stalled + waited + ahead;
                    self.spent = SpentTime { stalled, ..spent };
                }
            }
        }
    }
}
