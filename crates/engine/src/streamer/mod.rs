//! The streamer: runs a model within a memory budget, and measures the run.

mod lending;
mod meter;
mod metrics;
mod options;
mod source;
mod speculative;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sws_cache::SavedTensors;
use sws_cache::correction::Corrections;
use sws_format::{Clock, Progress};
use sws_model::{
    BatchLm, CausalLm, Chunk, ExpectedReads, ForwardError, ForwardPass, Inventory, KvPrecision,
    Observer, Prefix, ResidentSource, Session, SpeculativeLm, StepOutcome,
};
use sws_store::{Arena, NVMeWeightStore, Slot, SystemMemory, release_freed_memory};
use sws_text::{Sampler, Sampling};

use crate::budget::{
    MemoryUse, Plan, PlanOptions, Planner, ProcessMemory, SlotClass, page, routes_of,
};
use crate::error::StreamError;
use crate::experts::{AssemblerConfig, DynamicAssembler, Exactness, NoBound, layers_with_experts};
use crate::infrastructure::{Infrastructure, InfrastructurePlan};
use crate::speculation::WarmStart;
use crate::stand_ins::StandIns;
use crate::wait::Waiter;
use crate::watch::RunWatch;
pub use lending::Lending;
use lending::{ContextLending, StructuredLending};
pub use meter::ComputeCosts;
pub use metrics::{
    Clocks, Counters, Disk, ExpertMetrics, LayerMetrics, Metrics, StallMetrics, StandInMetrics,
    TimeSplit, memory, peak_memory,
};
pub use options::{Options, StreamerError};
pub use source::StreamingSource;
use speculative::SpeculativeState;
pub use speculative::{MAX_VERIFY_LEN, SpeculativeCounts};

/// A model that runs within a memory budget: its weights come from a store as they are needed.
///
/// Tokens and logits are bit for bit those of the resident model, whatever the budget, the policy
/// or the draft.
///
/// ```no_run
/// use std::path::Path;
/// use std::sync::Arc;
/// use sws_engine::{Options, SpeculativeWeightStreamer};
/// use sws_model::{ForwardPass, ModelSpec};
/// use sws_format::Manifest;
/// use sws_store::{NVMeWeightStore, StoreOptions};
///
/// let dir = Path::new("shards/tales-moe");
/// let manifest = Arc::new(Manifest::load(dir)?);
/// let config = manifest.read_small(dir, "config.json", None)?.ok_or("no config.json")?;
/// let spec = ModelSpec::parse(&config)?;
/// let store = NVMeWeightStore::open(manifest, dir, StoreOptions::default())?;
/// let options = Options { ram_budget: "64MiB".parse()?, ..Options::default() };
/// let mut streamer = SpeculativeWeightStreamer::new(ForwardPass::new(spec), Arc::new(store), options)?;
/// let tokens = streamer.generate(&[1, 2, 3], 16)?;
/// let metrics = streamer.aggregate_metrics();
/// assert!(metrics.tokens >= tokens.len() as u64);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SpeculativeWeightStreamer {
    session: Session<StreamingSource>,
    store: Option<Arc<NVMeWeightStore>>,
    arena: Option<Arena>,
    sampling: Sampling,
    plan: Option<Plan>,
    lending: Lending,
    contexts: ContextLending,
    structured: StructuredLending,
    /// True while a caller keeps prefixes, and says what nothing needs.
    caller_keeps: bool,
    totals: Totals,
    /// Logits of the last pass.
    logits: Vec<f32>,
    speculative: SpeculativeState,
    /// True if stand-ins of all experts are in memory.
    drafts: bool,
    warm_start: Option<WarmStart>,
    passed_over: Option<String>,
}

/// Totals of all passes, and the counters before the first.
#[derive(Debug)]
struct Totals {
    began: Counters,
    tokens: u64,
    passes: Duration,
    gauge: Gauge,
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
        let process = options
            .process
            .unwrap_or_else(|| ProcessMemory::measure(store.dir(), store.manifest()));
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
        // From here on, memory that passes free has to return to the system.
        release_freed_memory();
        let spec = model.spec();
        let bytes = plan.arena_bytes();
        let arena = Arena::new(bytes).map_err(|cause| StreamError::Memory { bytes, cause })?;
        let waiter = Waiter::new(store.clock().clone());
        let kept = InfrastructurePlan {
            pinned: plan.pinned.clone(),
            ring: plan.ring,
            experts: plan.experts_stream,
        };
        let mut done = 0;
        let total = plan.ledger.get(MemoryUse::Pinned);
        // The first piece may be large, and whoever waits for it should see that.
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
        let warm_start = options.warm_start.map(|path| WarmStart::new(path, fingerprint));
        let mut passed_over = None;
        let assembler = if plan.slots.is_empty() {
            None
        } else {
            let slot = |len| {
                arena.take(len).ok_or(StreamError::NoRoom { need: len, have: arena.free_bytes() })
            };
            let slots = SlotClass::each(&plan.slots).map(slot).collect::<Result<Vec<_>, _>>()?;
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
            let store = Arc::clone(&store);
            let waiter = waiter.clone();
            let stand_ins = StandIns::load(&store, &arena, &inventory, &plan.stand_ins)?;
            let run_ahead = options.speculation && options.ablations.run_ahead;
            let mut assembler =
                DynamicAssembler::new(spec, store, inventory, slots, deciders, waiter)
                    .with_stand_ins(stand_ins, options.exactness, run_ahead)
                    .with_ablations(options.ablations);
            if let Some(file) = &warm_start {
                passed_over = recall(file, &mut assembler);
            }
            Some(assembler)
        };
        let mut source = StreamingSource::new(infrastructure, assembler);
        source.pace(Arc::clone(&store), options.costs);
        let page = page(plan.sequences, plan.context);
        let mut session = Session::with_pages(model, source, plan.context, options.kv, page);
        session.set_chunk(plan.chunk);
        let contexts = ContextLending::new(&plan.context_lent);
        let mut streamer =
            SpeculativeWeightStreamer::around(session, Some((store, plan)), options.sampling);
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
        let session = Session::new(model, source, limit, kv);
        SpeculativeWeightStreamer::around(session, None, Sampling::default())
    }

    fn around(
        mut session: Session<StreamingSource>,
        streaming: Option<(Arc<NVMeWeightStore>, Plan)>,
        sampling: Sampling,
    ) -> SpeculativeWeightStreamer {
        let (store, plan) = streaming.unzip();
        let waiter = session.source().meter().waiter().clone();
        let watch = RunWatch::new(session.model().spec(), waiter, store.as_ref());
        session.source().report_to(watch.clone());
        let mut streamer = SpeculativeWeightStreamer {
            session,
            store,
            arena: None,
            sampling,
            plan,
            lending: Lending::default(),
            contexts: ContextLending::default(),
            structured: StructuredLending::default(),
            caller_keeps: false,
            totals: Totals {
                began: Counters::default(),
                tokens: 0,
                passes: Duration::ZERO,
                gauge: Gauge { counters: Arc::default(), watch },
            },
            logits: Vec::new(),
            speculative: SpeculativeState::default(),
            drafts: false,
            warm_start: None,
            passed_over: None,
        };
        let assembler = streamer.session.source().assembler();
        streamer.drafts = assembler.is_some_and(|assembler| assembler.can_draft());
        streamer.totals.began = streamer.counters();
        *streamer.totals.gauge.lock() = streamer.totals.began.clone();
        streamer
    }

    /// Adds a sequence with the same positions as another. `None` if the plan has no room for it, or
    /// a pass over the other failed in the middle.
    pub fn fork_sequence(&mut self, sequence: usize) -> Option<usize> {
        if self.has_room() { self.session.sequences().fork(sequence) } else { None }
    }

    fn has_room(&mut self) -> bool {
        let planned = self.plan.as_ref().map_or(usize::MAX, |plan| plan.sequences);
        self.session.state().sequences() < planned
    }

    /// Empties a sequence, which keeps its memory.
    pub fn clear_sequence(&mut self, sequence: usize) {
        self.session.sequences().clear(sequence);
    }

    /// Removes an added sequence and frees its memory.
    ///
    /// # Panics
    ///
    /// If there is no such sequence, or it is that of [`CausalLm`].
    pub fn remove_sequence(&mut self, sequence: usize) {
        assert_ne!(sequence, 0, "the sequence of `CausalLm` stays");
        self.session.sequences().remove(sequence);
    }

    /// Appends `prompt` to the sequence, then up to `new_tokens` tokens that the model chooses, as
    /// far as there is room. Without [`clear`](CausalLm::clear) the sequence continues from earlier
    /// calls.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        new_tokens: usize,
    ) -> Result<Vec<u32>, StreamerError> {
        let mut sampler = Sampler::new(self.sampling.clone(), self.vocab());
        sampler.prompt(prompt)?;
        let mut logits = self.prefill(prompt)?.to_vec();
        let mut tokens = Vec::with_capacity(new_tokens);
        while tokens.len() < new_tokens {
            let token = sampler.sample(&mut logits, self.len())?;
            tokens.push(token);
            if self.len() == self.limit() {
                break;
            }
            logits.copy_from_slice(self.decode(token)?);
        }
        Ok(tokens)
    }

    /// Metrics since this streamer was created, without reading the weights that stay in memory.
    pub fn aggregate_metrics(&mut self) -> Metrics {
        Metrics::between(&self.totals.began.clone(), &self.counters())
    }

    /// Current counters.
    pub fn counters(&mut self) -> Counters {
        let Totals { tokens, passes, .. } = self.totals;
        let source = self.session.source();
        let clocks = source.meter().clocks();
        let bytes = source.meter().waiter().bytes();
        let proposals = self.speculative.counts();
        let mut counters =
            Counters { clocks, passes, tokens, bytes, proposals, ..Counters::default() };
        let Some(store) = &self.store else { return counters };
        let stats = store.stats();
        counters.device_bytes = [&stats.demanded, &stats.ahead, &stats.speculative]
            .map(|traffic| traffic.bytes)
            .iter()
            .sum();
        counters.device_busy = stats.busy;
        counters.context_lent = self.contexts.bytes();
        if let Some(plan) = self.plan.as_ref().filter(|_| self.structured.has_lent()) {
            counters.structured_lent = plan.structured_lent.iter().map(SlotClass::bytes).sum();
        }
        if let Some(assembler) = source.assembler() {
            let verifier = assembler.verifier();
            (counters.accepts, counters.rejects) = (verifier.accepts, verifier.rejects);
            (counters.offered, counters.caught) = (verifier.offered, verifier.caught);
            counters.run_ahead = assembler.run_ahead_counts();
            let layers = assembler.cache().counts().iter();
            counters.layers = layers.map(|(&layer, &counts)| (layer, counts)).collect();
            counters.speculation = assembler.speculation();
            counters.peak_cache_bytes = assembler.cache().peak_bytes() as u64;
        }
        counters
    }

    /// Reason in one sentence why the warm-start file was ignored; `None` if it was not.
    pub fn passed_over(&self) -> Option<&str> {
        self.passed_over.as_deref()
    }

    /// A handle to read the counters while a pass runs in another thread.
    pub fn gauge(&self) -> Gauge {
        self.totals.gauge.clone()
    }

    /// The waiter, by which a run can be cancelled.
    pub fn waiter(&mut self) -> Waiter {
        self.session.source().meter().waiter().clone()
    }

    /// The division of the budget; `None` if everything is in memory.
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    /// The model.
    pub fn model(&self) -> &ForwardPass {
        self.session.model()
    }

    /// Lowers the budget of a running model. Slots are given up; everything else stays.
    pub fn lower_budget(&mut self, ram: u64) -> Result<(), StreamerError> {
        let Some(plan) = &self.plan else { return Ok(()) };
        let plan = plan.shrink(ram)?;
        self.set_idle(0);
        self.take_back();
        if let Some(own) = self.structured.ended() {
            self.keep_slots(own);
        }
        let slots: u64 = plan.slots.iter().map(|class| class.bytes()).sum();
        if let Some(assembler) = self.session.source().assembler() {
            // Reads in flight would keep their slots.
            assembler.abandon();
            assembler.trim_to_budget(slots as usize);
        }
        self.plan = Some(plan);
        self.give_back();
        Ok(())
    }

    /// Returns the memory of released slots to the system.
    fn give_back(&self) {
        if let Some(arena) = &self.arena {
            // Best effort: on failure the pages stay mapped but unused.
            let _ = arena.release_free();
        }
    }

    /// Lends the memory of a prompt's activations to slots, as long as each sequence gets at most a
    /// token per pass.
    fn lend(&mut self) {
        if !self.lending.small() {
            return;
        }
        let Some(plan) = &self.plan else { return };
        let bytes = plan.lent_bytes();
        let cut = SlotClass::each(&plan.lent);
        if bytes == 0 {
            return;
        }
        self.session.release_work();
        release_freed_memory();
        // On failure the run is slower, but otherwise the same.
        let slots = slots_of(bytes, cut).unwrap_or_default();
        if let Some(assembler) = self.session.source().assembler() {
            self.lending.lent(assembler.lend(slots));
        }
    }

    /// Lends the memory of structured output while no text has one, behind the plan's slots. Those behind
    /// these are lent anew.
    fn lend_structured_memory(&mut self) {
        let due = self.plan.as_ref().filter(|_| self.structured.is_due());
        let Some(lens) = due.map(|plan| SlotClass::each(&plan.structured_lent).collect::<Vec<_>>())
        else {
            return;
        };
        if let Some(own) = self.contexts.ended().or(self.lending.own()) {
            self.keep_slots(own);
        }
        release_freed_memory();
        // On failure the run is slower, but otherwise the same.
        let slots = slots_of(lens.iter().sum(), lens.into_iter()).unwrap_or_default();
        if let Some(assembler) = self.session.source().assembler() {
            self.structured.lent(assembler.lend(slots));
        }
    }

    /// Lends the memory of contexts that is idle, behind the slots of plan and structured output and before
    /// those of a prompt's activations.
    fn lend_contexts(&mut self) {
        if !self.contexts.has_more(self.lending.has_lent()) {
            return;
        }
        if let Some(own) = self.lending.own() {
            self.keep_slots(own);
        }
        release_freed_memory();
        while let Some(next) = self.contexts.next() {
            let slots = slots_of(next.iter().sum(), next.iter().copied());
            match (slots, self.session.source().assembler()) {
                (Some(slots), Some(assembler)) => self.contexts.lent(assembler.lend(slots)),
                _ => self.contexts.stop(),
            }
        }
    }

    /// Takes back what so many more tokens of the only sequence need. Of several, only their caller knows
    /// what else is kept.
    fn settle_context(&mut self, tokens: usize) {
        let is_only = self.plan.as_ref().is_some_and(|plan| plan.sequences == 1);
        if !is_only || self.caller_keeps || !self.contexts.lends() {
            return;
        }
        let state = self.session.state();
        let growth = state.growth(&[(0, tokens)]);
        // Of a prompt that is too long nothing is computed.
        if growth == 0 || tokens > self.session.limit() - self.session.len() {
            return;
        }
        let room = state.room(self.session.model().spec());
        let held = state.held(&mut std::iter::empty());
        self.set_idle(room.saturating_sub(held + growth));
    }

    /// Takes the memory of contexts back beyond so many bytes that nothing needs.
    fn set_idle(&mut self, bytes: u64) {
        if let Some(own) = self.contexts.set_idle(bytes) {
            self.keep_slots(own);
        }
    }

    /// Takes all but the first `own` slots back, with those in the memory of activations.
    fn keep_slots(&mut self, own: usize) {
        self.lending.ended();
        if let Some(assembler) = self.session.source().assembler() {
            assembler.take_back(own);
        }
    }

    /// Takes lent slots back before a prompt, which needs the memory for its activations.
    fn take_back(&mut self) {
        if let Some(own) = self.lending.large() {
            self.keep_slots(own);
        }
    }

    /// Runs passes over `tokens` tokens, and updates the counters. `pass` returns the number of tokens
    /// that have been processed, too.
    fn pass<T>(
        &mut self,
        tokens: usize,
        pass: impl FnOnce(&mut Session<StreamingSource>) -> (T, usize),
    ) -> T {
        let sequences = self.plan.as_ref().map_or(1, |plan| plan.sequences);
        self.lend_structured_memory();
        self.lend_contexts();
        match tokens <= sequences {
            true => self.lend(),
            false => self.take_back(),
        }
        self.timed(pass)
    }

    /// As [`pass`](Self::pass), whatever is lent.
    fn timed<T>(&mut self, pass: impl FnOnce(&mut Session<StreamingSource>) -> (T, usize)) -> T {
        let clock = self.session.source().meter().waiter().clock().clone();
        let started = clock.now();
        self.totals.gauge.watch.passes_begin(started);
        let (result, done) = pass(&mut self.session);
        let ended = clock.now();
        let source = self.session.source().meter().clocks().source;
        self.totals.gauge.watch.passes_end(ended, source);
        self.totals.passes += ended.saturating_sub(started);
        self.totals.tokens += done as u64;
        *self.totals.gauge.lock() = self.counters();
        result
    }
}

/// A mapping of so many bytes, cut into slots; `None` if there is no memory for it.
fn slots_of(bytes: usize, lens: impl Iterator<Item = usize>) -> Option<Vec<Slot>> {
    let arena = Arena::new(bytes).ok()?;
    Some(lens.filter_map(|len| arena.take(len)).collect())
}

/// A result with the number of tokens that have been processed.
fn counted<T, E>(result: Result<T, E>, tokens: &[u32]) -> (Result<T, E>, usize) {
    let done = if result.is_ok() { tokens.len() } else { 0 };
    (result, done)
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

impl Drop for SpeculativeWeightStreamer {
    /// Saves the learned state. On failure it is lost, and later runs learn it again.
    fn drop(&mut self) {
        let Some(file) = self.warm_start.take().filter(|_| self.totals.tokens > 0) else { return };
        let mut saved = SavedTensors::default();
        if let Some(assembler) = self.session.source().assembler() {
            // Releasing the slots makes room for the saved state.
            assembler.trim_to_budget(0);
            assembler.save(&mut saved);
        }
        self.give_back();
        if !saved.is_empty() {
            // A run that does not learn leaves what earlier ones have learned.
            if self.passed_over.is_none()
                && !saved.has_correction()
                && let Ok(Some(before)) = file.read()
            {
                saved.keep_correction(before);
            }
            let _ = file.write(&saved);
        }
    }
}

impl CausalLm for SpeculativeWeightStreamer {
    fn vocab(&self) -> usize {
        self.session.vocab()
    }

    fn limit(&self) -> usize {
        self.session.limit()
    }

    fn len(&self) -> usize {
        self.session.len()
    }

    fn clear(&mut self) {
        match self.contexts.lends() {
            true => self.session.sequences().release(0),
            false => self.session.clear(),
        }
    }

    fn observed(
        &mut self,
        tokens: &[u32],
        observer: &mut dyn Observer,
    ) -> Result<&[f32], ForwardError> {
        self.settle_context(tokens.len());
        let mut logits = std::mem::take(&mut self.logits);
        let done = self.pass(tokens.len(), |session| {
            let observed = session.observed(tokens, observer).map(|behind| {
                logits.clear();
                logits.extend_from_slice(behind);
            });
            counted(observed, tokens)
        });
        self.logits = logits;
        done?;
        Ok(&self.logits)
    }

    fn score(&mut self, tokens: &[u32], observer: &mut dyn Observer) -> Result<(), ForwardError> {
        self.settle_context(tokens.len());
        self.pass(tokens.len(), |session| counted(session.score(tokens, observer), tokens))
    }

    fn as_batch_lm(&mut self) -> Option<&mut dyn BatchLm> {
        Some(self)
    }

    /// `None` where a sequence cannot be cut anywhere, as with windows and recurrent layers.
    fn as_speculative_lm(&mut self) -> Option<&mut dyn SpeculativeLm> {
        if self.verify_len() > 1 && self.goes_back() { Some(self) } else { None }
    }
}

impl BatchLm for SpeculativeWeightStreamer {
    /// `None` if the plan has no room for another ([`Options::sequences`]).
    fn add_sequence(&mut self) -> Option<usize> {
        self.has_room().then(|| self.session.sequences().add())
    }

    fn truncate_sequence(&mut self, sequence: usize, len: usize) -> bool {
        self.session.sequences().truncate(sequence, len)
    }

    fn sequence_len(&self, sequence: usize) -> usize {
        self.session.state().len(sequence)
    }

    /// Without a plan the sequence has one page, since nothing says how many there will be.
    fn share(&mut self) {
        let planned = self.plan.is_some();
        let numbers: Vec<usize> = self.session.state().numbers().collect();
        let sequences = self.session.sequences();
        if !planned {
            sequences.set_pages(page(2, 0));
        }
        numbers.into_iter().for_each(|sequence| sequences.release(sequence));
    }

    fn prefix(&self, sequence: usize) -> Option<Prefix> {
        self.session.state().prefix(sequence)
    }

    fn empty_prefix(&self) -> Option<Prefix> {
        Some(self.session.state().empty_prefix(self.model().spec()))
    }

    fn begin_with(&mut self, sequence: usize, prefix: &Prefix, len: usize) -> bool {
        self.session.sequences().begin_with(sequence, prefix, len)
    }

    fn release(&mut self, sequence: usize) {
        self.session.sequences().release(sequence);
    }

    fn goes_back(&self) -> bool {
        self.session.state().goes_back(self.model().spec())
    }

    fn room(&self) -> u64 {
        self.session.state().room(self.model().spec())
    }

    fn growth(&self, parts: &[(usize, usize)]) -> u64 {
        self.session.state().growth(parts)
    }

    fn held(&self, prefixes: &mut dyn Iterator<Item = &Prefix>) -> u64 {
        self.session.state().held(prefixes)
    }

    fn lend_context(&mut self, idle: Option<u64>) -> u64 {
        self.caller_keeps = idle.is_some();
        self.set_idle(idle.unwrap_or(0));
        match self.session.source().assembler() {
            Some(assembler) if self.contexts.lends() => assembler.cache().capacity() as u64,
            _ => 0,
        }
    }

    fn lend_structured(&mut self, is_idle: bool) {
        if let Some(own) = self.structured.set_idle(is_idle) {
            self.contexts.ended();
            self.keep_slots(own);
        }
    }

    fn longest_pass(&self) -> usize {
        self.session.chunk()
    }

    fn expected_reads(&mut self, sequences: &[usize], turn: usize) -> Option<ExpectedReads> {
        self.session.source().assembler()?.expected_reads(sequences, turn)
    }

    fn step(&mut self, chunks: &[Chunk<'_>], observer: &mut dyn Observer, step: &mut StepOutcome) {
        let tokens = chunks.iter().map(|chunk| chunk.tokens.len()).sum();
        self.pass(tokens, |session| {
            session.sequences().step(chunks, observer, step);
            let done = chunks.iter().enumerate().filter(|(number, _)| step.logits(*number).is_ok());
            ((), done.map(|(_, chunk)| chunk.tokens.len()).sum())
        });
    }
}
