//! The assembler of routed experts.

mod ahead;
mod landing;
mod pending_choices;
mod router_states;

use std::sync::Arc;

use router_states::LastStates;
use sws_cache::policy::{ExpertLayers, Policy, RouterChoice};
use sws_cache::{Lookup, NoRoom, PredictiveCache, SavedError, SavedTensors};
use sws_draft::{Draft, Gates};
use sws_format::{Pass, PieceId};
use sws_model::{
    ExpectedReads, Inventory, ModelSpec, PassSize, Ready, Routed, RunAhead, SourceError,
};
use sws_store::{NVMeWeightStore, Slot};

use super::demand::Demand;
use super::verifier::{Exactness, Presence, RealPath, Verdict, Verifier, detect_miss};
use super::weights::{Assembled, StandInWeights};
use crate::error::StreamError;
use crate::reads::{Computed, LoadedSlot, ReadsInFlight};
use crate::speculation::{
    Account, ChosenExperts, Forecaster, Moment, Prefetcher, Speculation, WarmFill,
};
use crate::stand_ins::{RunAheadCounts, RunAheadState, StandIns};
use crate::wait::Waiter;
use crate::watch::{ExpertPlace, RunWatch};
use pending_choices::PendingChoices;

/// Serves the routed experts of a model from a cache, and reads those that are not in it.
///
/// The caller reports each step of a pass: [`begin`](Self::begin), [`entering`](Self::entering),
/// [`routed`](Self::routed), [`attended`](Self::attended), [`experts`](Self::experts). Once the
/// router has chosen, a [`Verifier`] compares the choice with the resident experts. Misses are
/// demanded at once, in disk order, while resident experts are computed. An expert is read at most
/// once for all tokens of a pass, however few slots there are: a computed expert is evicted for the
/// next one of its layer if there is no other victim.
///
/// Reads, demand, prefetcher, forecaster, account and run ahead each own their state. Values pass
/// from one to another here, and only here reads meet the cache.
#[derive(Debug)]
pub struct DynamicAssembler {
    inventory: Arc<Inventory>,
    pub(super) cache: PredictiveCache<LoadedSlot>,
    pub(super) reads: ReadsInFlight,
    pub(super) demand: Demand,
    verifier: Verifier,
    pub(super) prefetcher: Prefetcher,
    forecaster: Forecaster,
    account: Account,
    run_ahead: RunAheadState,
    ablations: Ablations,
    pending: PendingChoices,
    watch: Option<RunWatch>,
    router_states: LastStates,
}

/// Configuration of a [`DynamicAssembler`].
#[derive(Debug)]
pub struct AssemblerConfig {
    /// Picks the victims of the cache.
    pub policy: Box<dyn Policy>,
    /// Forecasts experts.
    pub draft: Box<dyn Draft>,
    /// Lowest probability at which a forecast is followed.
    pub confidence: f32,
    /// True to speculate. Otherwise the draft is not queried, and the next layer of a prompt is
    /// read only once its router has chosen.
    pub speculation: bool,
    /// True to follow forecasts only while they pay; otherwise they are always followed.
    pub governed: bool,
}

/// Mechanisms of the engine that can be switched off, to measure their worth. The arithmetic stays
/// the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ablations {
    /// True to compute experts as they arrive, rather than once all of a layer are resident.
    pub arrival_order: bool,
    /// True to promote a prefetch to a demanded read once a router has selected its expert.
    pub promotion: bool,
    /// True to follow the forecasts of a draft only while they pay, rather than always.
    pub governed: bool,
    /// True to run ahead on stand-ins while a pass waits for experts.
    pub run_ahead: bool,
}

impl Default for Ablations {
    /// Every mechanism is on.
    fn default() -> Ablations {
        Ablations { arrival_order: true, promotion: true, governed: true, run_ahead: true }
    }
}

/// The layers of a model as the policy of so many sequences sees them.
pub(crate) fn layers_with_experts(spec: &ModelSpec, sequences: usize) -> ExpertLayers {
    let moe = |layer: &u32| spec.layers[*layer as usize].moe().is_some();
    let count = spec.layers.len() as u32;
    ExpertLayers {
        count,
        with_experts: (0..count).filter(moe).collect(),
        experts: spec.moes().map(|moe| moe.experts).max().unwrap_or(0),
        top_k: spec.max_top_k(),
        sequences,
    }
}

/// Maximum number of experts computed together while others of their layer wait for slots: few
/// enough to free a slot soon, enough for all threads.
const BATCH_WHILE_OTHERS_WAIT: usize = 4;

impl DynamicAssembler {
    /// Creates an assembler that caches experts in `slots`.
    pub fn new(
        spec: &ModelSpec,
        store: Arc<NVMeWeightStore>,
        inventory: Arc<Inventory>,
        slots: impl IntoIterator<Item = Slot>,
        config: AssemblerConfig,
        waiter: Waiter,
    ) -> DynamicAssembler {
        let AssemblerConfig { policy, draft, confidence, speculation, governed } = config;
        let slots = slots.into_iter().map(|slot| (slot.len(), LoadedSlot::empty(slot)));
        let layers = spec.layers.iter().map(|layer| {
            let moe = layer.moe()?;
            Some((moe.experts, moe.top_k))
        });
        DynamicAssembler {
            cache: PredictiveCache::new(policy, slots),
            reads: ReadsInFlight::new(store, Arc::clone(&inventory), waiter),
            inventory,
            demand: Demand::default(),
            verifier: Verifier::default(),
            prefetcher: Prefetcher::new(layers.collect(), speculation, confidence),
            forecaster: Forecaster::new(draft, confidence),
            account: Account::new(spec.layers.len(), governed),
            run_ahead: RunAheadState::default(),
            ablations: Ablations::default(),
            pending: PendingChoices::default(),
            watch: None,
            router_states: LastStates::default(),
        }
    }

    /// Adds stand-ins. They count as far as `exactness` allows. If only exact experts count and
    /// `run_ahead` is true, passes run ahead on them.
    pub fn with_stand_ins(
        mut self,
        stand_ins: StandIns,
        exactness: Exactness,
        run_ahead: bool,
    ) -> DynamicAssembler {
        let experts = (0..self.prefetcher.layers()).map(|layer| self.prefetcher.experts_of(layer));
        let run_ahead = run_ahead && exactness == Exactness::Exact;
        let stand_ins = Arc::new(stand_ins);
        self.reads.stand_ins = Arc::clone(&stand_ins);
        self.run_ahead = RunAheadState::new(stand_ins, run_ahead, experts);
        self.verifier.exactness = exactness;
        self
    }

    /// The experts in the cache.
    fn assembled(&self) -> Assembled<'_> {
        Assembled::exact(&self.cache, &self.inventory, &self.run_ahead.stand_ins)
    }

    /// Switches mechanisms off, to measure their worth.
    pub fn with_ablations(mut self, ablations: Ablations) -> DynamicAssembler {
        self.ablations = ablations;
        self
    }

    /// Reports choices and reads of experts.
    pub(crate) fn report_to(&mut self, watch: RunWatch) {
        self.watch = Some(watch);
    }

    /// Starts a pass.
    pub fn begin(&mut self, pass: &Pass) {
        self.run_ahead.forget();
        if let Some(watch) = &self.watch {
            watch.compare(|| self.places());
        }
        let unbooked = self.is_unbooked();
        let is_heard = self.pending.begin(pass);
        if is_heard {
            self.cache.begin_pass(pass);
        }
        if !self.prefetcher.enabled {
            return;
        }
        let at = self.moment();
        if self.account.has_passed() {
            self.begin_warm_fill();
        }
        self.account.pass_begins(at, pass.len(), unbooked, self.reads.store.stats());
        if !self.account.governor.on() {
            self.account.idles(&self.cache);
        }
        if is_heard && self.account.governor.may_train_draft() {
            self.with_draft(|forecaster| forecaster.pass_begins(pass));
        }
    }

    /// Starts a layer, which `hidden` [tokens, hidden] is about to enter.
    pub fn entering(
        &mut self,
        layer: usize,
        hidden: &[f32],
        gates: &mut dyn Gates,
    ) -> Result<(), StreamError> {
        self.drain()?;
        // The draft does not see layers computed ahead, and sees every other layer once.
        if self.run_ahead.is_lookahead_layer(layer) {
            return Ok(());
        }
        if self.run_ahead.is_possible() {
            self.prefetch();
            self.run_ahead.layer_begins(self.moment());
        }
        if !self.prefetcher.enabled {
            return Ok(());
        }
        self.account.pace.entering(layer, self.moment());
        let is_heard = self.pending.is_idle();
        if !self.account.governor.on() || !is_heard {
            self.prefetcher.forget_offers();
            self.withdraw_prefetches();
        }
        if is_heard && self.account.governor.may_query_draft() {
            self.demand.enter(layer as u32);
            self.forecast(|forecaster| forecaster.layer_begins(layer, hidden, gates));
        }
        Ok(())
    }

    /// Shows the policy the state [tokens, hidden] from which a layer's router chooses.
    pub fn routing(&mut self, pass: &Pass, layer: usize, state: &[f32]) {
        if !self.run_ahead.is_lookahead_layer(layer) {
            self.router_states.record(self.cache.policy(), pass, layer, state);
        }
    }

    /// Takes the choice of a layer's router, and demands the misses at once.
    pub fn routed(
        &mut self,
        pass: &Pass,
        layer: usize,
        routed: &Routed,
    ) -> Result<(), StreamError> {
        let result = match self.run_ahead.is_lookahead_layer(layer) {
            true => self.foresee(layer, routed),
            false => self.verify(pass, layer, routed),
        };
        self.or_abandon(result)
    }

    /// Passes the draft `state` [tokens, hidden], the hidden state after the layer's attention.
    /// `shared` is the output of the shared expert, which is yet to be added; empty if there is
    /// none.
    pub fn attended(
        &mut self,
        layer: usize,
        state: &[f32],
        shared: &[f32],
        gates: &mut dyn Gates,
    ) -> Result<(), StreamError> {
        let forecasts = !self.run_ahead.is_lookahead_layer(layer) && self.pending.is_idle();
        if self.prefetcher.enabled && forecasts && self.account.governor.may_query_draft() {
            self.forecast(|forecaster| forecaster.attended(layer, state, shared, gates));
        }
        Ok(())
    }

    /// Calls `ready` with the experts that the router has chosen, as they become resident.
    pub fn experts(
        &mut self,
        layer: usize,
        routed: &Routed,
        ready: Ready<'_>,
    ) -> Result<(), SourceError> {
        if self.run_ahead.is_running() {
            let result = self.serve_with_stand_ins(routed, ready);
            return self.or_abandon(result);
        }
        debug_assert_eq!(
            (self.demand.layer() as usize, self.demand.needed().len()),
            (layer, routed.distinct.len())
        );
        if self.prefetcher.enabled {
            let at = self.moment();
            self.account.pace.experts(layer, routed.distinct.len(), at);
        }
        let result = self.serve(ready);
        if self.prefetcher.enabled && result.is_ok() {
            let at = self.moment();
            let unbooked = self.is_unbooked();
            self.account.done(layer, at, unbooked);
        }
        self.or_abandon(result)
    }

    /// Lets the next pass be one whose tokens may turn out wrong: policy and draft hear of its choices
    /// when it is [accepted](Self::accept).
    pub fn expect_pending(&mut self) {
        self.pending.expect();
    }

    /// Ends such a pass: its first `tokens` tokens count, as if each had had a pass of its own.
    pub fn accept(&mut self, tokens: usize) {
        let trains = self.prefetcher.enabled && self.account.governor.may_train_draft();
        for (pass, choices) in self.pending.accept(tokens) {
            self.cache.begin_pass(&pass);
            if trains {
                self.forecaster.pass_begins(&pass);
            }
            for (layer, experts) in choices {
                self.cache.policy_mut().routed(&RouterChoice {
                    pass: &pass,
                    layer,
                    experts: &experts,
                });
                if trains {
                    self.forecaster.learn(layer as usize, &experts, experts.len());
                }
            }
        }
    }

    /// True if stand-ins of all experts are in memory.
    pub fn can_draft(&self) -> bool {
        let experts = |layer| {
            let ids = 0..self.prefetcher.experts_of(layer);
            ids.map(move |expert| PieceId::expert(layer as u32, expert))
        };
        let mut all = (0..self.prefetcher.layers()).flat_map(experts);
        all.all(|id| self.run_ahead.stand_ins.contains(id))
    }

    /// Calls `ready` with the stand-ins of all experts that the router has chosen, whatever else is in
    /// memory: they are the fewest bytes.
    pub fn draft(&mut self, routed: &Routed, ready: Ready<'_>) -> Result<(), SourceError> {
        ready(&routed.distinct, &mut StandInWeights(&self.run_ahead.stand_ins))
    }

    /// Decides on running ahead; see [`PassSource::run_ahead`](sws_model::PassSource::run_ahead).
    pub fn run_ahead(&mut self, step: RunAhead) -> Result<bool, StreamError> {
        let result = match step {
            RunAhead::From(layer) => self.start_run_ahead(layer),
            RunAhead::On(layer) => self.continue_run_ahead(layer),
            RunAhead::Done => {
                self.run_ahead.finish();
                Ok(false)
            }
        };
        self.or_abandon(result)
    }

    /// Abandons the pass: cancels the reads in flight, and drops all forecasts and pins.
    pub fn abandon(&mut self) {
        self.demand.clear();
        self.prefetcher.forget_queue();
        self.prefetcher.forget_offers();
        self.run_ahead.forget();
        while let Some(id) = self.prefetcher.unpin_any() {
            self.cache.unpin(id);
        }
        for id in self.reads.ids() {
            self.give_up(id);
        }
        while let Some(arrival) = self.reads.settle() {
            // No layer needs the piece any more, so a failure does not matter.
            let _ = self.land(arrival);
        }
        self.cache.idle();
    }

    /// Gives up slots until at most `bytes` are left. Slots in use stay until a later call. Their
    /// memory returns to the arena.
    pub fn trim_to_budget(&mut self, bytes: usize) {
        drop(self.cache.trim_to_budget(bytes));
        self.slots_changed();
    }

    /// Adds slots, until they are [taken back](Self::take_back). Returns the number of slots
    /// before.
    pub fn lend(&mut self, slots: impl IntoIterator<Item = Slot>) -> usize {
        self.account.slots_changed();
        self.cache.extend(slots.into_iter().map(|slot| (slot.len(), LoadedSlot::empty(slot))))
    }

    /// Gives up all but the first `slots` slots, between passes. Reads into the others go on.
    pub fn take_back(&mut self, slots: usize) {
        let loading: Vec<PieceId> = self.cache.loading_beyond(slots).collect();
        for &id in &loading {
            self.give_up(id);
        }
        while loading.iter().any(|&id| self.reads.contains(id))
            && let Some(arrival) = self.reads.settle()
        {
            // No layer needs the piece now, so a failure does not matter.
            let _ = self.land(arrival);
        }
        // Pieces in the other slots are gone, and no pass is running.
        while let Some(id) = self.prefetcher.unpin_any() {
            self.cache.unpin(id);
        }
        drop(self.cache.truncate(slots));
        self.slots_changed();
    }

    fn slots_changed(&mut self) {
        self.account.slots_changed();
        if let Some(watch) = &self.watch {
            watch.set_stale();
        }
    }

    /// Pieces that are in memory, or on their way to it.
    fn places(&self) -> impl Iterator<Item = (PieceId, ExpertPlace)> {
        self.cache.pieces().map(|id| match self.cache.find(id) {
            Lookup::Ready => (id, ExpertPlace::Memory),
            _ => (id, ExpertPlace::Reading),
        })
    }

    /// Saves the learned state of the policy and the draft for the next start.
    pub fn save(&self, to: &mut SavedTensors) {
        self.cache.policy().save(to);
        self.forecaster.save(to);
    }

    /// Restores what [`save`](Self::save) has stored.
    pub fn recall(&mut self, saved: &SavedTensors) -> Result<(), SavedError> {
        self.cache.policy_mut().recall(saved)?;
        self.prefetcher.fill = WarmFill::AfterFirstPrompt;
        self.forecaster.recall(saved)
    }

    /// The cache of experts.
    pub fn cache(&self) -> &PredictiveCache<LoadedSlot> {
        &self.cache
    }

    /// Forecasts what a token of these sequences reads, in shared passes and in turns of so many tokens.
    pub fn expected_reads(&mut self, sequences: &[usize], turn: usize) -> Option<ExpectedReads> {
        let slots = Some(self.cache.slots()).filter(|&slots| slots > 0)?;
        let misses = self.cache.policy_mut().shared_misses(sequences, slots, turn)?;
        let bytes = |misses: f32| f64::from(misses) * self.cache.capacity() as f64 / slots as f64;
        Some(ExpectedReads { together: bytes(misses.together), in_turns: bytes(misses.in_turns) })
    }

    /// The verifier, with its counts.
    pub fn verifier(&self) -> Verifier {
        self.verifier
    }

    /// Counts of speculation.
    pub fn speculation(&self) -> Speculation {
        self.account.governor.total()
    }

    /// Counts of running ahead.
    pub fn run_ahead_counts(&self) -> RunAheadCounts {
        self.run_ahead.counts()
    }

    /// Applies the draft's blueprint: protects resident experts, and prefetches missing ones when
    /// profitable. It replaces earlier forecasts of the same layers. Prefetches that have not begun
    /// are cancelled and scored again.
    fn assemble_from_blueprint(&mut self) {
        if !self.account.governor.on() {
            return;
        }
        for layer in &self.forecaster.blueprint().layers {
            self.prefetcher.follow(layer, |id, probability| self.cache.foresee(id, probability));
        }
        self.withdraw_prefetches();
        self.prefetch();
    }

    /// True if the account has nothing to compare the pass with: it uses nearly all experts once, or
    /// has several tokens of which no draft has heard.
    fn is_unbooked(&self) -> bool {
        self.prefetcher.is_sweeping() || !self.pending.is_idle()
    }

    /// The time, and all waits so far.
    fn moment(&self) -> Moment {
        let waiter = &self.reads.waiter;
        Moment { now: waiter.clock().now(), waited: waiter.stalls().time }
    }

    /// Runs the draft, and books the time.
    fn with_draft<T>(&mut self, work: impl FnOnce(&mut Forecaster) -> T) -> T {
        let started = self.reads.waiter.clock().now();
        let result = work(&mut self.forecaster);
        let took = self.reads.waiter.clock().now().saturating_sub(started);
        if self.forecaster.computes() {
            self.account.draft_took(took);
        }
        self.account.forecast_took(took);
        result
    }

    /// Queries the draft, and follows its new forecast, if any.
    fn forecast(&mut self, query: impl FnOnce(&mut Forecaster) -> bool) {
        let started = self.reads.waiter.clock().now();
        let news = query(&mut self.forecaster);
        let queried = self.reads.waiter.clock().now().saturating_sub(started);
        if self.forecaster.computes() {
            self.account.draft_took(queried);
        }
        if news {
            self.assemble_from_blueprint();
        }
        let took = self.reads.waiter.clock().now().saturating_sub(started);
        self.account.forecast_took(took);
    }

    /// State in memory of an expert of the running layer.
    fn presence(&self, expert: u32) -> Presence {
        let id = PieceId::expert(self.demand.layer(), expert);
        match self.cache.get(id) {
            Some(_) => Presence::Exact,
            None if self.reads.contains(id) => Presence::Coming,
            None if self.run_ahead.stand_ins.contains(id) => Presence::Inexact,
            None => Presence::Absent,
        }
    }

    /// Compares a router's choice with the experts in memory, and demands the misses.
    fn verify(&mut self, pass: &Pass, layer: usize, routed: &Routed) -> Result<(), StreamError> {
        self.reads.waiter.check()?;
        self.drain()?;
        let number = layer as u32;
        let tokens = routed.choices.len() / routed.top_k.max(1);
        self.demand.begin(number, tokens, &routed.distinct);
        if self.pending.hold(number, &routed.choices) {
            self.cache.runs(number, &routed.choices);
        } else {
            self.cache.routed(&RouterChoice { pass, layer: number, experts: &routed.choices });
            self.router_states.report(layer, self.cache.policy_mut());
        }
        if self.prefetcher.enabled {
            self.account_choice(layer, &routed.distinct);
        }
        if let Some(watch) = &self.watch {
            let is_ready = |expert| self.cache.get(PieceId::expert(number, expert)).is_some();
            watch.routed(layer, &routed.distinct, is_ready);
        }
        let cache = &mut self.cache;
        let stand_ins = &self.run_ahead.stand_ins;
        let real = RealPath { layer, experts: &routed.distinct };
        let verdict = self.verifier.check(real, |expert| {
            let id = PieceId::expert(number, expert);
            match cache.lookup(id) {
                Lookup::Ready => Presence::Exact,
                Lookup::Loading => Presence::Coming,
                Lookup::Absent if stand_ins.contains(id) => Presence::Inexact,
                Lookup::Absent => Presence::Absent,
            }
        });
        self.run_ahead.on_routed(number, &routed.distinct, verdict.misses());
        self.settle_forecast(&routed.distinct);
        if self.prefetcher.enabled && self.prefetcher.begins_sweep(number, tokens) {
            self.pin_later_layers(layer);
        }
        if let Verdict::Reject { mut missing, mut inexact } = verdict {
            missing.extend(self.verifier.catch(&mut inexact));
            self.run_ahead.to_judge = inexact;
            let ids = missing.into_iter().map(|expert| PieceId::expert(number, expert));
            self.demand.queue(self.reads.in_disk_order(ids));
            self.fallback_reassemble()?;
        }
        if self.pending.is_idle() {
            // What is missed is being read meanwhile.
            self.cache.policy_mut().on_layer_demanded(number);
        }
        if self.prefetcher.enabled {
            if self.pending.is_idle() && self.account.governor.may_train_draft() {
                let Routed { choices, top_k, .. } = routed;
                self.with_draft(|forecaster| forecaster.learn(layer, choices, *top_k));
            }
            self.expect_next_layer(tokens);
        }
        Ok(())
    }

    /// Passes a router's choice to the account.
    fn account_choice(&mut self, layer: usize, distinct: &[u32]) {
        let first = distinct.first().map(|&expert| PieceId::expert(layer as u32, expert));
        let bytes = first.and_then(|id| self.reads.slot_len(id)).unwrap_or(0);
        let sweeping = self.is_unbooked();
        let begun = self.reads.speculative_begun();
        let chosen = ChosenExperts { layer, distinct, bytes, sweeping, begun: &begun };
        let at = self.moment();
        self.account.chosen(at, chosen, &mut self.cache);
    }

    /// Computes the layer's experts: resident ones first, the others as they arrive.
    fn serve(&mut self, ready: Ready<'_>) -> Result<(), SourceError> {
        self.judge(ready)?;
        let mut now = Vec::with_capacity(self.demand.needed().len());
        while !self.demand.needed().is_empty() {
            self.drain()?;
            self.verify_again();
            self.fallback_reassemble()?;
            self.prefetch();
            let needed = self.demand.needed();
            now.clear();
            now.extend(needed.iter().filter(|&&e| self.presence(e) == Presence::Exact));
            let held = !self.ablations.arrival_order && now.len() < needed.len();
            let coming = |&expert: &u32| self.presence(expert) == Presence::Coming;
            if now.is_empty() || held && needed.iter().any(coming) {
                if let (true, Some(piece)) = (self.reads.is_empty(), self.demand.next()) {
                    return Err(StreamError::from(NoRoom::InUse { piece }).into());
                }
                if !self.compute_arriving(ready)? {
                    let arrival = self.reads.wait()?;
                    self.land(arrival)?;
                }
                continue;
            }
            if self.demand.is_waiting() {
                now.truncate(BATCH_WHILE_OTHERS_WAIT);
            }
            ready(&now, &mut self.assembled())?;
            self.computed(&now);
        }
        if self.run_ahead.is_possible() {
            self.run_ahead.layer_done(self.moment());
        }
        self.cache.idle();
        self.prefetch();
        Ok(())
    }

    /// Computes the layer's last missing expert while it arrives. False if that is not possible.
    fn compute_arriving(&mut self, ready: Ready<'_>) -> Result<bool, SourceError> {
        let (layer, &[expert]) = (self.demand.layer(), self.demand.needed()) else {
            return Ok(false);
        };
        // A matrix that arrives is multiplied with all tokens at once, which would take much memory.
        if self.demand.tokens() > PassSize::STRIP {
            return Ok(false);
        }
        if self.demand.has_failed(PieceId::expert(layer, expert)) {
            return Ok(false);
        }
        let computed = self.reads.compute_arriving(layer, expert, ready)?;
        let Some(Computed { arrivals, result }) = computed else { return Ok(false) };
        let mut landed = Ok(());
        for arrival in arrivals {
            landed = landed.and(self.land(arrival));
        }
        result?;
        landed?;
        self.computed(&[expert]);
        Ok(true)
    }

    /// Marks experts of the layer as computed: their slots may be reused.
    fn computed(&mut self, experts: &[u32]) {
        let layer = self.demand.layer();
        for &expert in experts {
            self.cache.computed(PieceId::expert(layer, expert));
        }
        self.demand.computed(|expert| experts.contains(&expert));
    }

    /// Checks the needed pieces again, and demands those that are neither resident nor in flight:
    /// their reads have failed or were given up.
    fn verify_again(&mut self) {
        for place in 0..self.demand.needed().len() {
            let expert = self.demand.needed()[place];
            if detect_miss(self.presence(expert)).is_some() {
                self.demand.queue_again(PieceId::expert(self.demand.layer(), expert));
            }
        }
    }

    /// Abandons the pass on failure.
    fn or_abandon<T, E>(&mut self, result: Result<T, E>) -> Result<T, E> {
        if result.is_err() {
            self.abandon();
        }
        result
    }
}
