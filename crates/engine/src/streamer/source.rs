//! Source of all weights of a run.

use std::sync::Arc;
use std::time::Duration;

use sws_format::{Pass, PieceKind};
use sws_model::{
    Compute, FindRows, Observer, PassSource, Ready, ResidentSource, Routed, RunAhead, SourceError,
    TakeRow, WeightSource, Weights,
};
use sws_store::NVMeWeightStore;

use super::meter::{ComputeCosts, Meter};
use super::streamed::StreamedModel;
use crate::experts::DynamicAssembler;
use crate::infrastructure::Infrastructure;
use crate::wait::Waiter;
use crate::watch::{HitPlace, RecordingStep, RunWatch};

/// Supplies the forward pass with weights within a budget: infrastructure from memory or through
/// the ring, routed experts from cache slots. Alternatively all weights are resident, and measured
/// in the same way.
///
/// Experts that are too large for slots flow through the ring like everything else: one after
/// another, each when it is needed. A dense model has none.
#[derive(Debug)]
pub struct StreamingSource {
    holder: WeightHolder,
    meter: Meter,
    watch: Option<RunWatch>,
    /// True while passes are computed on stand-ins. Such passes read nothing, and the policy and
    /// the draft learn nothing from them.
    drafting: bool,
}

/// Location of the weights.
#[derive(Debug)]
enum WeightHolder {
    Resident(ResidentSource),
    Streamed(Box<StreamedModel>),
}

impl StreamingSource {
    /// Creates a source that streams. Without an assembler all experts flow through the ring.
    pub fn new(infrastructure: Infrastructure, assembler: Option<DynamicAssembler>) -> Self {
        let meter = Meter::new(infrastructure.waiter().clone());
        let streamed = Box::new(StreamedModel { infrastructure, assembler });
        StreamingSource {
            holder: WeightHolder::Streamed(streamed),
            meter,
            watch: None,
            drafting: false,
        }
    }

    /// Creates a source with all weights in memory. `waiter` has the clock.
    pub fn resident(source: ResidentSource, waiter: Waiter) -> Self {
        let holder = WeightHolder::Resident(source);
        StreamingSource { holder, meter: Meter::new(waiter), watch: None, drafting: false }
    }

    /// Makes computing advance the virtual time of `store`.
    pub(crate) fn pace(&mut self, store: Arc<NVMeWeightStore>, costs: ComputeCosts) {
        self.meter.pace(store, costs);
    }

    /// Reports passes, and the reads and uses of experts, to `watch`.
    pub(crate) fn report_to(&mut self, watch: RunWatch) {
        if let Some(assembler) = self.assembler() {
            assembler.report_to(watch.clone());
        }
        self.watch = Some(watch);
    }

    /// Meter of the time spent.
    pub(crate) fn meter(&self) -> &Meter {
        &self.meter
    }

    /// The assembler of experts in slots, if there are slots.
    pub fn assembler(&mut self) -> Option<&mut DynamicAssembler> {
        self.streamed()?.assembler.as_mut()
    }

    /// Computes passes on stand-ins, or on experts again.
    pub(crate) fn set_drafting(&mut self, drafting: bool) {
        self.drafting = drafting;
    }

    /// Free bytes of the ring.
    pub fn free_ring_bytes(&self) -> usize {
        match &self.holder {
            WeightHolder::Resident(_) => 0,
            WeightHolder::Streamed(streamed) => streamed.infrastructure.free_bytes(),
        }
    }

    /// Ends a step of a pass that began at `started`. After an error no read is left in flight, and
    /// the next pass starts afresh.
    fn end_step<T, E: Into<SourceError>>(
        &mut self,
        started: Duration,
        result: Result<T, E>,
    ) -> Result<T, SourceError> {
        self.meter.leave(started);
        self.report_time();
        if let (Err(_), Some(streamed)) = (&result, self.streamed()) {
            streamed.infrastructure.interrupt();
            if let Some(assembler) = &mut streamed.assembler {
                assembler.abandon();
            }
        }
        result.map_err(E::into)
    }

    /// Reports the time taken so far.
    fn report_time(&self) {
        if let Some(watch) = &self.watch
            && watch.is_on()
        {
            watch.source_took(self.meter.clocks().source);
        }
    }

    /// Records a step of a pass.
    fn record(&self, step: RecordingStep) {
        if let Some(watch) = &self.watch {
            watch.step(step);
        }
    }

    /// The model, if it streams.
    fn streamed(&mut self) -> Option<&mut StreamedModel> {
        match &mut self.holder {
            WeightHolder::Resident(_) => None,
            WeightHolder::Streamed(streamed) => Some(streamed),
        }
    }
}

impl WeightSource for StreamingSource {
    fn embed(&mut self, tokens: &[u32], rows: &mut [f32]) -> Result<(), SourceError> {
        let started = self.meter.enter();
        let result = match &mut self.holder {
            WeightHolder::Resident(source) => source.embed(tokens, rows),
            WeightHolder::Streamed(streamed) => {
                streamed.infrastructure.embed(tokens, rows).map_err(SourceError::from)
            }
        };
        self.end_step(started, result)
    }

    fn expect_rows(&mut self, layer: usize, find: FindRows<'_>) -> Result<(), SourceError> {
        let started = self.meter.enter();
        let result = match self.streamed() {
            Some(streamed) => streamed.infrastructure.expect_rows(layer, find),
            None => Ok(()),
        };
        self.end_step(started, result)
    }

    fn look_up(
        &mut self,
        layer: usize,
        find: FindRows<'_>,
        take: TakeRow<'_>,
    ) -> Result<(), SourceError> {
        let started = self.meter.enter();
        let result = match &mut self.holder {
            WeightHolder::Resident(source) => source.look_up(layer, find, take),
            WeightHolder::Streamed(streamed) => streamed.infrastructure.look_up(layer, find, take),
        };
        self.end_step(started, result)
    }

    fn infrastructure(
        &mut self,
        layer: usize,
        pieces: &[PieceKind],
        compute: Compute<'_>,
    ) -> Result<(), SourceError> {
        let started = self.meter.enter();
        let StreamingSource { holder, meter, .. } = self;
        let mut compute = |weights: &mut dyn Weights| {
            let before = meter.begin_computing(meter.costs().infrastructure);
            let result = compute(weights);
            meter.end_computing(before);
            result
        };
        let result = match holder {
            WeightHolder::Resident(source) => source.infrastructure(layer, pieces, &mut compute),
            WeightHolder::Streamed(streamed) => compute(&mut streamed.infrastructure),
        };
        self.end_step(started, result)
    }

    fn experts(
        &mut self,
        layer: usize,
        routed: &Routed,
        ready: Ready<'_>,
    ) -> Result<(), SourceError> {
        let started = self.meter.enter();
        let StreamingSource { holder, meter, drafting, .. } = self;
        let mut ready = |experts: &[u32], weights: &mut dyn Weights| {
            let cost = meter.costs().expert * experts.len() as u32;
            let before = meter.begin_computing(cost);
            let result = ready(experts, weights);
            meter.end_computing(before);
            result
        };
        let result = match holder {
            WeightHolder::Resident(source) => source.experts(layer, routed, &mut ready),
            WeightHolder::Streamed(streamed) => {
                streamed.experts(layer, routed, *drafting, &mut ready)
            }
        };
        self.end_step(started, result)?;
        if !self.drafting {
            self.record(RecordingStep::Computed { layer });
        }
        Ok(())
    }

    fn head(&mut self, compute: Compute<'_>) -> Result<(), SourceError> {
        let started = self.meter.enter();
        let StreamingSource { holder, meter, .. } = self;
        let mut compute = |weights: &mut dyn Weights| {
            let before = meter.begin_computing(meter.costs().head);
            let result = compute(weights);
            meter.end_computing(before);
            result
        };
        let result = match holder {
            WeightHolder::Resident(source) => source.head(&mut compute),
            WeightHolder::Streamed(streamed) => compute(&mut streamed.infrastructure),
        };
        self.end_step(started, result)
    }
}

impl Observer for StreamingSource {
    fn pass_begins(&mut self, pass: &Pass) -> Result<(), SourceError> {
        if self.drafting {
            return Ok(());
        }
        if let Some(watch) = &self.watch {
            watch.pass_begins(pass.len());
            if matches!(self.holder, WeightHolder::Resident(_)) {
                watch.compare_resident();
            }
        }
        let started = self.meter.enter();
        if let Some(streamed) = self.streamed() {
            streamed.pass_begins(pass);
        }
        self.end_step(started, Ok::<(), SourceError>(()))
    }

    fn layer_begins(&mut self, _: &Pass, layer: usize, hidden: &[f32]) -> Result<(), SourceError> {
        if let Some(watch) = &self.watch
            && !self.drafting
        {
            watch.layer_begins(layer);
        }
        let started = self.meter.enter();
        let drafting = self.drafting;
        let result = match self.streamed() {
            Some(streamed) if drafting => streamed.infrastructure.read_ahead(),
            Some(streamed) => streamed.layer_begins(layer, hidden),
            None => Ok(()),
        };
        self.end_step(started, result)
    }

    fn routing(&mut self, pass: &Pass, layer: usize, state: &[f32]) -> Result<(), SourceError> {
        if self.drafting {
            return Ok(());
        }
        let started = self.meter.enter();
        if let Some(assembler) = self.assembler() {
            assembler.routing(pass, layer, state);
        }
        self.end_step(started, Ok::<(), SourceError>(()))
    }

    fn routed(&mut self, pass: &Pass, layer: usize, routed: &Routed) -> Result<(), SourceError> {
        if self.drafting {
            return Ok(());
        }
        self.record(RecordingStep::Chosen { layer });
        // With slots, the assembler reports hits and misses.
        let has_slots = self.assembler().is_some();
        if let Some(watch) = &self.watch
            && !has_slots
        {
            let is_resident = matches!(self.holder, WeightHolder::Resident(_));
            let found = is_resident.then_some(HitPlace::Memory);
            watch.routed(layer, &routed.distinct, |_| found);
        }
        let started = self.meter.enter();
        let result = match self.streamed() {
            Some(streamed) => streamed.routed(pass, layer, routed),
            None => Ok(()),
        };
        self.end_step(started, result)?;
        self.record(RecordingStep::Requested { layer });
        Ok(())
    }

    fn attended(
        &mut self,
        _: &Pass,
        layer: usize,
        state: &[f32],
        shared: &[f32],
    ) -> Result<(), SourceError> {
        if self.drafting {
            return Ok(());
        }
        let started = self.meter.enter();
        let result = match self.streamed() {
            Some(streamed) => streamed.attended(layer, state, shared),
            None => Ok(()),
        };
        self.end_step(started, result)
    }
}

impl PassSource for StreamingSource {
    fn run_ahead(&mut self, step: RunAhead) -> Result<bool, SourceError> {
        if self.drafting {
            return Ok(false);
        }
        let before = self.meter.reading();
        let started = self.meter.enter();
        let result = match self.streamed() {
            Some(streamed) => streamed.run_ahead(step),
            None => Ok(false),
        };
        let answer = self.end_step(started, result)?;
        self.meter.ran_ahead(step, before, answer);
        self.report_time();
        Ok(answer)
    }
}
