//! Source of all weights of a run.

use std::sync::Arc;

use sws_format::{Pass, PieceKind};
use sws_model::{
    Compute, FindRows, Observer, PassSource, Ready, ResidentSource, Routed, RunAhead, SourceError,
    TakeRow, WeightSource, Weights,
};
use sws_store::NVMeWeightStore;

use super::meter::{ComputeCosts, Meter};
use crate::experts::DynamicAssembler;
use crate::infrastructure::Infrastructure;
use crate::wait::Waiter;
use crate::watch::{RecordingStep, RunWatch};

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

#[derive(Debug)]
struct StreamedModel {
    infrastructure: Infrastructure,
    /// `None` if all experts flow through the ring.
    assembler: Option<DynamicAssembler>,
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
        match &mut self.holder {
            WeightHolder::Resident(_) => None,
            WeightHolder::Streamed(streamed) => streamed.assembler.as_mut(),
        }
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

    /// Runs one step of a pass. After an error no read is left in flight, and the next pass starts
    /// afresh.
    fn step<T>(
        &mut self,
        step: impl FnOnce(&mut WeightHolder, &mut Meter) -> Result<T, SourceError>,
    ) -> Result<T, SourceError> {
        let StreamingSource { holder, meter, watch, .. } = self;
        let started = meter.enter();
        let result = step(holder, meter);
        meter.leave(started);
        if let Some(watch) = watch {
            watch.source_took(|| meter.clocks().source);
        }
        if let (Err(_), WeightHolder::Streamed(streamed)) = (&result, holder) {
            streamed.infrastructure.interrupt();
            if let Some(assembler) = &mut streamed.assembler {
                assembler.abandon();
            }
        }
        result
    }

    /// Records a step of a pass.
    fn record(&self, step: RecordingStep) {
        if let Some(watch) = &self.watch {
            watch.step(step);
        }
    }

    /// Runs one step of a pass that streams; does nothing for a resident model.
    fn streamed<T: Default>(
        &mut self,
        step: impl FnOnce(&mut Infrastructure, Option<&mut DynamicAssembler>) -> Result<T, SourceError>,
    ) -> Result<T, SourceError> {
        self.step(|holder, _| match holder {
            WeightHolder::Resident(_) => Ok(T::default()),
            WeightHolder::Streamed(streamed) => {
                step(&mut streamed.infrastructure, streamed.assembler.as_mut())
            }
        })
    }
}

impl WeightSource for StreamingSource {
    fn embed(&mut self, tokens: &[u32], rows: &mut [f32]) -> Result<(), SourceError> {
        self.step(|holder, _| match holder {
            WeightHolder::Resident(source) => source.embed(tokens, rows),
            WeightHolder::Streamed(streamed) => Ok(streamed.infrastructure.embed(tokens, rows)?),
        })
    }

    fn expect_rows(&mut self, layer: usize, find: FindRows<'_>) -> Result<(), SourceError> {
        self.step(|holder, _| match holder {
            WeightHolder::Resident(_) => Ok(()),
            WeightHolder::Streamed(streamed) => streamed.infrastructure.expect_rows(layer, find),
        })
    }

    fn look_up(
        &mut self,
        layer: usize,
        find: FindRows<'_>,
        take: TakeRow<'_>,
    ) -> Result<(), SourceError> {
        self.step(|holder, _| match holder {
            WeightHolder::Resident(source) => source.look_up(layer, find, take),
            WeightHolder::Streamed(streamed) => streamed.infrastructure.look_up(layer, find, take),
        })
    }

    fn infrastructure(
        &mut self,
        layer: usize,
        pieces: &[PieceKind],
        compute: Compute<'_>,
    ) -> Result<(), SourceError> {
        self.step(|holder, meter| {
            let mut compute = |weights: &mut dyn Weights| {
                meter.compute(|costs| costs.infrastructure, || compute(weights))
            };
            match holder {
                WeightHolder::Resident(source) => {
                    source.infrastructure(layer, pieces, &mut compute)
                }
                WeightHolder::Streamed(streamed) => compute(&mut streamed.infrastructure),
            }
        })
    }

    fn experts(
        &mut self,
        layer: usize,
        routed: &Routed,
        ready: Ready<'_>,
    ) -> Result<(), SourceError> {
        let drafting = self.drafting;
        self.step(|holder, meter| {
            let mut ready = |experts: &[u32], weights: &mut dyn Weights| {
                let cost = |costs: &ComputeCosts| costs.expert * experts.len() as u32;
                meter.compute(cost, || ready(experts, weights))
            };
            match holder {
                WeightHolder::Resident(source) => source.experts(layer, routed, &mut ready),
                WeightHolder::Streamed(streamed) => match &mut streamed.assembler {
                    Some(assembler) if drafting => assembler.draft(routed, &mut ready),
                    Some(assembler) => assembler.experts(layer, routed, &mut ready),
                    // Experts come one at a time, so that their matrices are requested in the order
                    // in which they are read.
                    None => (routed.distinct.chunks(1))
                        .try_for_each(|expert| ready(expert, &mut streamed.infrastructure)),
                },
            }
        })?;
        if !drafting {
            self.record(RecordingStep::Computed { layer });
        }
        Ok(())
    }

    fn head(&mut self, compute: Compute<'_>) -> Result<(), SourceError> {
        self.step(|holder, meter| {
            let mut compute =
                |weights: &mut dyn Weights| meter.compute(|costs| costs.head, || compute(weights));
            match holder {
                WeightHolder::Resident(source) => source.head(&mut compute),
                WeightHolder::Streamed(streamed) => compute(&mut streamed.infrastructure),
            }
        })
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
        self.streamed(|infrastructure, assembler| {
            let Some(assembler) = assembler else { return Ok(()) };
            assembler.begin(pass);
            for (layer, experts) in infrastructure.known_experts(&pass.tokens) {
                assembler.expect_known(layer, &experts);
            }
            Ok(())
        })
    }

    fn layer_begins(&mut self, _: &Pass, layer: usize, hidden: &[f32]) -> Result<(), SourceError> {
        if self.drafting {
            return self.streamed(|infrastructure, _| Ok(infrastructure.read_ahead()?));
        }
        if let Some(watch) = &self.watch {
            watch.layer_begins(layer);
        }
        self.streamed(|infrastructure, assembler| {
            infrastructure.read_ahead()?;
            let Some(assembler) = assembler else { return Ok(()) };
            Ok(assembler.entering(layer, hidden, infrastructure)?)
        })
    }

    fn routing(&mut self, pass: &Pass, layer: usize, state: &[f32]) -> Result<(), SourceError> {
        if self.drafting {
            return Ok(());
        }
        self.streamed(|_, assembler| {
            if let Some(assembler) = assembler {
                assembler.routing(pass, layer, state);
            }
            Ok(())
        })
    }

    fn routed(&mut self, pass: &Pass, layer: usize, routed: &Routed) -> Result<(), SourceError> {
        if self.drafting {
            return Ok(());
        }
        self.record(RecordingStep::Chosen { layer });
        // With slots, the assembler reports hits and misses.
        let has_slots = self.assembler().is_some();
        if let Some(watch) = self.watch.as_ref().filter(|_| !has_slots) {
            let is_resident = matches!(self.holder, WeightHolder::Resident(_));
            watch.routed(layer, &routed.distinct, |_| is_resident);
        }
        self.streamed(|infrastructure, assembler| match assembler {
            Some(assembler) => Ok(assembler.routed(pass, layer, routed)?),
            None => Ok(infrastructure.routed(layer, &routed.distinct)?),
        })?;
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
        self.streamed(|infrastructure, assembler| {
            let Some(assembler) = assembler else { return Ok(()) };
            Ok(assembler.attended(layer, state, shared, infrastructure)?)
        })
    }
}

impl PassSource for StreamingSource {
    fn run_ahead(&mut self, step: RunAhead) -> Result<bool, SourceError> {
        if self.drafting {
            return Ok(false);
        }
        let before = self.meter.reading();
        let answer = self.streamed(|_, assembler| {
            assembler.map_or(Ok(false), |assembler| Ok(assembler.run_ahead(step)?))
        })?;
        self.meter.ran_ahead(step, before, answer);
        if let Some(watch) = &self.watch {
            watch.source_took(|| self.meter.clocks().source);
        }
        Ok(answer)
    }
}
