//! Where the time of passes goes: to computing, to waits, or to the source of weights.

use std::sync::Arc;
use std::time::Duration;

use sws_model::RunAhead;
use sws_store::NVMeWeightStore;

use super::metrics::Clocks;
use crate::wait::Waiter;

/// Measures how long a source is busy with neither computing nor waiting.
#[derive(Debug)]
pub(crate) struct Meter {
    waiter: Waiter,
    pace: Option<(Arc<NVMeWeightStore>, Costs)>,
    spent: Spent,
    /// The reading when a run ahead began.
    ahead: Option<Reading>,
}

/// How long computing takes in virtual time, where nothing takes any by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// What a layer does before its router has chosen, and as much again for a shared expert or for
    /// the feed-forward block of a layer without routed experts.
    pub infrastructure: Duration,
    /// A routed expert, whatever the number of its tokens.
    pub expert: Duration,
    /// The head.
    pub head: Duration,
}

/// Where the time of passes went, apart from what the forward pass does between two calls of its source.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    /// In calls of the source, all of it.
    inside: Duration,
    /// Of that, in what the source has called to compute.
    computing: Duration,
    /// Of that, in waits for the next rows of a matrix.
    stalled: Duration,
}

/// A moment, with what had been spent and waited until then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    now: Duration,
    spent: Spent,
    waited: Duration,
}

impl Meter {
    /// A meter for a source that waits with `waiter`.
    pub(crate) fn new(waiter: Waiter) -> Meter {
        Meter { waiter, pace: None, spent: Spent::default(), ahead: None }
    }

    /// Lets `store`'s virtual time pass while something is computed.
    pub(crate) fn pace(&mut self, store: Arc<NVMeWeightStore>, costs: Costs) {
        self.pace = Some((store, costs));
    }

    /// What the source waits with.
    pub(crate) fn waiter(&self) -> &Waiter {
        &self.waiter
    }

    /// The time now, and how much of it went where so far.
    pub(crate) fn clocks(&self) -> Clocks {
        let Spent { inside, computing, stalled } = self.spent;
        let stalls = self.waiter.stalls();
        let waiting = stalls.time.saturating_sub(stalled);
        Clocks {
            now: self.waiter.clock().now(),
            source: inside.saturating_sub(computing).saturating_sub(waiting),
            stalls,
        }
    }

    /// A call of the source begins; [`leave`](Self::leave) takes what this returns.
    pub(crate) fn enter(&self) -> Duration {
        self.waiter.clock().now()
    }

    /// A call of the source is over.
    pub(crate) fn leave(&mut self, started: Duration) {
        self.spent.inside += self.waiter.clock().now().saturating_sub(started);
    }

    /// Computes within a call of the source.
    pub(crate) fn compute<T>(
        &mut self,
        cost: impl FnOnce(&Costs) -> Duration,
        compute: impl FnOnce() -> T,
    ) -> T {
        let (started, stalls) = (self.waiter.clock().now(), self.waiter.stalls());
        if let Some((store, costs)) = &self.pace {
            store.spend(cost(costs));
        }
        let result = compute();
        self.spent.computing += self.waiter.clock().now().saturating_sub(started);
        self.spent.stalled += self.waiter.stalls().time.saturating_sub(stalls.time);
        result
    }

    /// The moment.
    pub(crate) fn reading(&self) -> Reading {
        let (now, waited) = (self.waiter.clock().now(), self.waiter.stalls().time);
        Reading { now, spent: self.spent, waited }
    }

    /// Notes a step of running ahead that began at `before`. Results computed ahead are computed again:
    /// that time is part of the wait that it fills.
    pub(crate) fn ran_ahead(&mut self, step: RunAhead, before: Reading, answer: bool) {
        match step {
            RunAhead::From(_) => self.ahead = answer.then_some(before),
            RunAhead::On(_) => {}
            RunAhead::Done => {
                if let Some(Reading { now, spent, waited }) = self.ahead.take() {
                    let waited = self.waiter.stalls().time.saturating_sub(waited);
                    let ahead = self.waiter.clock().now().saturating_sub(now + waited);
                    self.waiter.bridged(ahead);
                    let stalled = spent.stalled + waited + ahead;
                    self.spent = Spent { stalled, ..spent };
                }
            }
        }
    }
}
