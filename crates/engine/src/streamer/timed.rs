//! The source of all weights, and where the time goes while it serves.

use std::sync::Arc;
use std::time::Duration;

use sws_model::{Compute, Ready, ResidentSource, Routed, RunAhead, SourceError, WeightSource};
use sws_store::{NVMeWeightStore, PieceKind};

use crate::assembler::DynamicAssembler;
use crate::metrics::Clocks;
use crate::source::StreamingSource;
use crate::wait::Waiter;

/// Where all weights come from.
#[derive(Debug)]
pub(super) enum Source {
    Resident(ResidentSource),
    Streaming(Box<StreamingSource>),
}

impl Source {
    fn inner(&mut self) -> &mut dyn WeightSource {
        match self {
            Source::Resident(source) => source,
            Source::Streaming(source) => &mut **source,
        }
    }
}

/// Measures how long is computed with what a source serves, and how long the source takes.
#[derive(Debug)]
pub(super) struct Timed {
    source: Source,
    waiter: Waiter,
    pace: Option<(Arc<NVMeWeightStore>, Costs)>,
    spent: Spent,
    /// When a run ahead began, what had been spent then, and how long had been waited.
    ahead: Option<(Duration, Spent, Duration)>,
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

/// Where the time of passes went, apart from what the forward pass does between two moments of its
/// source.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    /// In moments of the source, all of it.
    inside: Duration,
    /// Of that, in what the source has called to compute.
    computing: Duration,
    /// Of that, in waits for the next rows of a matrix.
    stalled: Duration,
}

impl Timed {
    /// Measures `source`, which waits with `waiter`.
    pub(super) fn new(source: Source, waiter: Waiter) -> Timed {
        Timed { source, waiter, pace: None, spent: Spent::default(), ahead: None }
    }

    /// Lets `store`'s virtual time pass while something is computed.
    pub(super) fn pace(&mut self, store: Arc<NVMeWeightStore>, costs: Costs) {
        self.pace = Some((store, costs));
    }

    /// What it waits with.
    pub(super) fn waiter(&self) -> &Waiter {
        &self.waiter
    }

    /// Who serves experts from slots, if anybody does.
    pub(super) fn assembler(&mut self) -> Option<&mut DynamicAssembler> {
        match &mut self.source {
            Source::Resident(_) => None,
            Source::Streaming(source) => source.assembler(),
        }
    }

    /// The time now, and how much of it went where so far.
    pub(super) fn clocks(&self) -> Clocks {
        let Spent { inside, computing, stalled } = self.spent;
        let stalls = self.waiter.stalls();
        let waiting = stalls.time.saturating_sub(stalled);
        Clocks {
            now: self.waiter.clock().now(),
            source: inside.saturating_sub(computing).saturating_sub(waiting),
            stalls,
        }
    }

    /// Runs one moment of the source; `moment` gets a place to note what is computed in it.
    fn inside<T>(&mut self, moment: impl FnOnce(&mut dyn WeightSource, &mut Within<'_>) -> T) -> T {
        let Timed { source, waiter, pace, spent, .. } = self;
        let started = waiter.clock().now();
        let result = moment(source.inner(), &mut Within { waiter, pace: pace.as_ref(), spent });
        spent.inside += waiter.clock().now().saturating_sub(started);
        result
    }
}

/// What a [`Timed`] source measures while it serves.
struct Within<'a> {
    waiter: &'a Waiter,
    pace: Option<&'a (Arc<NVMeWeightStore>, Costs)>,
    spent: &'a mut Spent,
}

impl Within<'_> {
    fn compute<T>(
        &mut self,
        cost: impl FnOnce(&Costs) -> Duration,
        compute: impl FnOnce() -> T,
    ) -> T {
        let (started, stalls) = (self.waiter.clock().now(), self.waiter.stalls());
        if let Some((store, costs)) = self.pace {
            store.spend(cost(costs));
        }
        let result = compute();
        self.spent.computing += self.waiter.clock().now().saturating_sub(started);
        self.spent.stalled += self.waiter.stalls().time.saturating_sub(stalls.time);
        result
    }
}

impl WeightSource for Timed {
    fn embed(&mut self, tokens: &[u32], rows: &mut [f32]) -> Result<(), SourceError> {
        self.inside(|source, _| source.embed(tokens, rows))
    }

    fn entering(&mut self, layer: usize, hidden: &[f32]) -> Result<(), SourceError> {
        self.inside(|source, _| source.entering(layer, hidden))
    }

    fn infrastructure(
        &mut self,
        layer: usize,
        pieces: &[PieceKind],
        compute: Compute<'_>,
    ) -> Result<(), SourceError> {
        self.inside(|source, within| {
            source.infrastructure(layer, pieces, &mut |weights| {
                within.compute(|costs| costs.infrastructure, || compute(weights))
            })
        })
    }

    fn routed(&mut self, layer: usize, routed: &Routed) -> Result<(), SourceError> {
        self.inside(|source, _| source.routed(layer, routed))
    }

    fn attended(&mut self, layer: usize, state: &[f32], shared: &[f32]) -> Result<(), SourceError> {
        self.inside(|source, _| source.attended(layer, state, shared))
    }

    fn experts(
        &mut self,
        layer: usize,
        routed: &Routed,
        ready: Ready<'_>,
    ) -> Result<(), SourceError> {
        self.inside(|source, within| {
            source.experts(layer, routed, &mut |experts, weights| {
                let cost = |costs: &Costs| costs.expert * experts.len() as u32;
                within.compute(cost, || ready(experts, weights))
            })
        })
    }

    /// What is computed ahead is computed again: it is part of the wait that it fills.
    fn run_ahead(&mut self, step: RunAhead) -> Result<bool, SourceError> {
        let before = (self.waiter.clock().now(), self.spent);
        let waited = self.waiter.stalls().time;
        let answer = self.inside(|source, _| source.run_ahead(step))?;
        match step {
            RunAhead::From(_) => self.ahead = answer.then_some((before.0, before.1, waited)),
            RunAhead::On(_) => {}
            RunAhead::Done => {
                if let Some((began, spent, waited)) = self.ahead.take() {
                    let waited = self.waiter.stalls().time.saturating_sub(waited);
                    let ahead = self.waiter.clock().now().saturating_sub(began + waited);
                    self.waiter.bridged(ahead);
                    let stalled = spent.stalled + waited + ahead;
                    self.spent = Spent { stalled, ..spent };
                }
            }
        }
        Ok(answer)
    }

    fn head(&mut self, compute: Compute<'_>) -> Result<(), SourceError> {
        self.inside(|source, within| {
            source.head(&mut |weights| within.compute(|costs| costs.head, || compute(weights)))
        })
    }
}
