//! Starting a run: its plan, the resident weights, and the learned state of earlier runs.

use std::sync::Arc;

use sws_cache::correction::Corrections;
use sws_format::{Clock, Progress};
use sws_model::{ForwardPass, Inventory, KvPrecision, ModelSpec, ResidentSource, Sequences};
use sws_os::process::release_freed_memory;
use sws_store::{Arena, NVMeWeightStore, SystemMemory};
use sws_text::Sampling;

use super::gauge::Totals;
use super::lending::{ContextLending, Lending, StructuredLending};
use super::speculative::SpeculativeState;
use super::{Options, SpeculativeWeightStreamer, StreamerError, StreamingSource};
use crate::budget::{
    MemoryUse, Plan, PlanOptions, Planner, ProcessMemory, SlotClass, page, routes_of,
};
use crate::error::{StreamError, arena_of};
use crate::experts::{AssemblerConfig, DynamicAssembler, Exactness, NoBound, layers_with_experts};
use crate::infrastructure::{Infrastructure, InfrastructurePlan};
use crate::speculation::WarmStart;
use crate::stand_ins::StandIns;
use crate::wait::Waiter;
use crate::watch::RunWatch;

impl SpeculativeWeightStreamer {
    /// Plans the run of `model` within the budget, and reads the weights that stay in memory.
    ///
    /// A draft that has no room in the plan is refused. [`Planner::reserve_draft`] tells its share
    /// before it is made, for [`with_plan`](Self::with_plan).
    pub fn new(
        model: ForwardPass,
        store: Arc<NVMeWeightStore>,
        options: Options,
    ) -> Result<SpeculativeWeightStreamer, StreamerError> {
        let spec = model.spec();
        let inventory = Inventory::new(spec, store.manifest())?;
        let process = match options.process {
            Some(process) => process,
            None => ProcessMemory::measure(store.dir(), store.manifest()),
        };
        let plan_options = PlanOptions {
            context: options.context,
            kv: options.kv,
            batch: options.sequences,
            tier: model.tier(),
            stand_ins: options.stand_ins,
            verify_len: options.verify_len,
            draft: options.draft.bytes() as u64,
            correction: options.policy.bytes_of(
                &options.corrections,
                routes_of(spec),
                options.sequences,
            ) as u64,
            ..PlanOptions::default()
        };
        let planner = Planner::new(spec, &inventory, store.manifest(), process, plan_options)?;
        let (total, available) = match SystemMemory::now() {
            Some(memory) => (memory.total, memory.available),
            None => (u64::MAX, u64::MAX),
        };
        let ram = options.ram_budget.resolve(total, available, planner.minimum());
        let plan = planner.plan(ram)?;
        if plan.ledger.get(MemoryUse::Draft) < plan_options.draft {
            return Err(StreamerError::Draft { bytes: plan_options.draft });
        }
        SpeculativeWeightStreamer::with_plan(model, store, plan, options)
    }

    /// Runs `model` with a given plan.
    pub fn with_plan(
        model: ForwardPass,
        store: Arc<NVMeWeightStore>,
        plan: Plan,
        options: Options,
    ) -> Result<SpeculativeWeightStreamer, StreamerError> {
        SpeculativeWeightStreamer::reporting(model, store, plan, options, &mut |_| ())
    }

    /// Like [`with_plan`](Self::with_plan), and reports the progress of the weights that stay in
    /// memory.
    pub fn reporting(
        model: ForwardPass,
        store: Arc<NVMeWeightStore>,
        plan: Plan,
        options: Options,
        report: &mut dyn FnMut(Progress),
    ) -> Result<SpeculativeWeightStreamer, StreamerError> {
        options.exactness.check(model.spec())?;
        let mut pieces = store.manifest().pieces.iter();
        if matches!(options.exactness, Exactness::Within(_))
            && !plan.stand_ins.is_empty()
            && pieces.all(|piece| piece.stand_in.is_none())
        {
            return Err(NoBound.into());
        }
        // From here on, memory freed by passes has to return to the system.
        release_freed_memory();
        let arena = arena_of(plan.arena_bytes())?;
        let waiter = Waiter::new(store.clock().clone());
        let kept = InfrastructurePlan {
            pinned: plan.pinned.clone(),
            ring: plan.ring,
            experts: plan.experts_stream,
        };
        let mut done = 0;
        let total = plan.ledger.get(MemoryUse::Pinned);
        // Reading the first piece may take long, so progress is reported before it.
        report(Progress { done, total });
        let mut loaded = |bytes| {
            done = total.min(done + bytes);
            report(Progress { done, total });
        };
        let weights = Arc::clone(&store);
        let waiting = waiter.clone();
        let infrastructure =
            Infrastructure::open(&model, weights, &arena, &kept, waiting, &mut loaded)?;
        let fingerprint = &store.manifest().model.fingerprint;
        let Options { costs, kv, .. } = options;
        let sampling = options.sampling.clone();
        let warm_start = options.warm_start.clone().map(|path| WarmStart::new(path, fingerprint));
        let mut passed_over = None;
        let assembler = if plan.slots.is_empty() {
            None
        } else {
            let mut assembler = assembler_of(model.spec(), &store, &arena, &plan, options, waiter)?;
            if let Some(file) = &warm_start {
                passed_over = recall(file, &mut assembler);
            }
            Some(assembler)
        };
        let mut source = StreamingSource::new(infrastructure, assembler);
        source.pace(Arc::clone(&store), costs);
        let page = page(plan.sequences, plan.context);
        let mut sequences = Sequences::new(model, source, plan.context, kv).with_pages(page);
        sequences.set_chunk(plan.chunk);
        let contexts = ContextLending::new(&plan.context_lent);
        let mut streamer =
            SpeculativeWeightStreamer::around(sequences, Some((store, plan)), sampling);
        streamer.arena = Some(arena);
        streamer.contexts = contexts;
        streamer.warm_start = warm_start;
        streamer.passed_over = passed_over;
        Ok(streamer)
    }

    /// Runs a model that is entirely in memory, with the same metrics.
    pub fn resident(
        model: ForwardPass,
        source: ResidentSource,
        limit: usize,
        kv: KvPrecision,
    ) -> Self {
        let waiter = Waiter::new(Clock::real());
        let source = StreamingSource::resident(source, waiter);
        let sequences = Sequences::new(model, source, limit, kv);
        SpeculativeWeightStreamer::around(sequences, None, Sampling::default())
    }

    /// Adds the first sequence.
    fn around(
        mut sequences: Sequences<StreamingSource>,
        streaming: Option<(Arc<NVMeWeightStore>, Plan)>,
        sampling: Sampling,
    ) -> SpeculativeWeightStreamer {
        sequences.add();
        let (store, plan) = streaming.unzip();
        let waiter = sequences.source().meter().waiter().clone();
        let watch = RunWatch::new(sequences.model().spec(), waiter, store.as_ref());
        let source = sequences.source();
        source.report_to(watch.clone());
        let drafts = matches!(source.assembler(), Some(assembler) if assembler.can_draft());
        let mut streamer = SpeculativeWeightStreamer {
            sequences,
            store,
            arena: None,
            sampling,
            plan,
            lending: Lending::default(),
            contexts: ContextLending::default(),
            structured: StructuredLending::default(),
            caller_keeps: false,
            totals: Totals::new(watch),
            speculative: SpeculativeState::default(),
            drafts,
            warm_start: None,
            passed_over: None,
        };
        streamer.begin_counting();
        streamer
    }
}

/// The assembler of a plan with slots for experts.
fn assembler_of(
    spec: &ModelSpec,
    store: &Arc<NVMeWeightStore>,
    arena: &Arena,
    plan: &Plan,
    options: Options,
    waiter: Waiter,
) -> Result<DynamicAssembler, StreamerError> {
    let mut slots = Vec::new();
    for len in SlotClass::each(&plan.slots) {
        let Some(slot) = arena.take(len) else {
            return Err(StreamError::NoRoom { need: len, have: arena.free_bytes() }.into());
        };
        slots.push(slot);
    }
    let inventory = Arc::new(Inventory::new(spec, store.manifest())?);
    let has_room = plan.ledger.get(MemoryUse::Correction) > 0;
    let corrections = if has_room { options.corrections } else { Corrections::None };
    let layers = layers_with_experts(spec, plan.sequences);
    let deciders = AssemblerConfig {
        policy: options.policy.build_corrected(layers, corrections),
        draft: options.draft,
        confidence: options.confidence_threshold,
        speculation: options.speculation,
        governed: options.ablations.governed,
    };
    let stand_ins = StandIns::load(store, arena, &inventory, &plan.stand_ins)?;
    let run_ahead = options.speculation && options.ablations.run_ahead;
    let store = Arc::clone(store);
    Ok(DynamicAssembler::new(spec, store, inventory, slots, deciders, waiter)
        .with_stand_ins(stand_ins, options.exactness, run_ahead)
        .with_ablations(options.ablations))
}

/// Restores saved state. Returns the reason in a sentence if the file is unusable.
fn recall(file: &WarmStart, assembler: &mut DynamicAssembler) -> Option<String> {
    let recalled = file.read().and_then(|saved| match saved {
        Some(saved) => Ok(assembler.recall(&saved)?),
        None => Ok(()),
    });
    let why = recalled.err()?;
    Some(format!("`{}` {why}; what is learned in this run takes its place", file.path().display()))
}
