//! The assembler of routed experts.

use std::sync::Arc;

use sws_cache::policy::{Choice, Layers, Policy};
use sws_cache::{Claim, Lookup, Need, NoRoom, PredictiveCache, Saved, SavedError};
use sws_draft::{Draft, Gates};
use sws_model::{Inventory, ModelSpec, Ready, Routed, RunAhead, SourceError};
use sws_store::{FetchError, NVMeWeightStore, Pass, PieceId, Priority, Slot};

use super::demand::Demand;
use super::verifier::{Exactness, Presence, RealPath, Verdict, Verifier, detect_miss};
use super::weights::Assembled;
use crate::error::StreamError;
use crate::reads::{Arrival, Computed, GivenUp, Loaded, Origin, Reads};
use crate::speculation::{
    Account, Chosen, Expected, Forecaster, LIKELY_VICTIM_STEPS, Moment, Prefetch, Prefetcher,
    Speculation, Tried, WarmFill, warm_fill,
};
use crate::stand_ins::{RunAheadCounts, RunAheadState, StandIns, Wait};
use crate::wait::Waiter;

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
    pub(super) cache: PredictiveCache<Loaded>,
    pub(super) reads: Reads,
    pub(super) demand: Demand,
    verifier: Verifier,
    pub(super) prefetcher: Prefetcher,
    forecaster: Forecaster,
    account: Account,
    run_ahead: RunAheadState,
    ablations: Ablations,
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
}

impl Default for Ablations {
    /// Every mechanism is on.
    fn default() -> Ablations {
        Ablations { arrival_order: true, promotion: true }
    }
}

/// The layers of a model as a policy sees them.
pub(crate) fn layers_with_experts(spec: &ModelSpec) -> Layers {
    let moe = |layer: &u32| spec.layers[*layer as usize].moe().is_some();
    let count = spec.layers.len() as u32;
    Layers {
        count,
        with_experts: (0..count).filter(moe).collect(),
        experts: spec.moes().map(|moe| moe.experts).max().unwrap_or(0),
        top_k: spec.max_top_k(),
    }
}

/// Maximum number of experts computed together while others of their layer wait for slots: few
/// enough to free a slot soon, enough for all threads.
const BATCH_WHILE_OTHERS_WAIT: usize = 4;
/// Number of slots that the experts of a layer share in turn during a sweep, so that experts of
/// later layers stay resident: enough to compute one while others are read.
const IN_TURN: usize = 8;

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
        let slots = slots.into_iter().map(|slot| (slot.len(), Loaded::empty(slot)));
        let layers = spec.layers.iter().map(|layer| {
            let moe = layer.moe()?;
            Some((moe.experts, moe.top_k))
        });
        DynamicAssembler {
            cache: PredictiveCache::new(policy, slots),
            reads: Reads::new(store, Arc::clone(&inventory), waiter),
            inventory,
            demand: Demand::default(),
            verifier: Verifier::default(),
            prefetcher: Prefetcher::new(layers.collect(), speculation, confidence),
            forecaster: Forecaster::new(draft, confidence),
            account: Account::new(spec.layers.len(), governed),
            run_ahead: RunAheadState::default(),
            ablations: Ablations::default(),
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
        self.run_ahead = RunAheadState::new(stand_ins, run_ahead, experts);
        self.verifier.exactness = exactness;
        self
    }

    /// Switches mechanisms off, to measure their worth.
    pub fn with_ablations(mut self, ablations: Ablations) -> DynamicAssembler {
        self.ablations = ablations;
        self
    }

    /// Starts a pass.
    pub fn begin(&mut self, pass: &Pass) {
        self.run_ahead.forget();
        self.cache.begin_pass(pass);
        if !self.prefetcher.enabled {
            return;
        }
        let at = self.moment();
        if self.account.has_passed() {
            self.begin_warm_fill();
        }
        let (sweeping, stats) = (self.prefetcher.is_sweeping(), self.reads.store.stats());
        self.account.pass_begins(at, pass.len(), sweeping, stats);
        if !self.account.governor.on() {
            self.account.idles(&self.cache);
        }
        if self.account.governor.may_train_draft() {
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
        if !self.account.governor.on() {
            self.prefetcher.forget_offers();
            self.withdraw_prefetches();
        }
        if self.account.governor.may_query_draft() {
            self.demand.enter(layer as u32);
            self.forecast(|forecaster| forecaster.layer_begins(layer, hidden, gates));
        }
        Ok(())
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
        let lookahead = self.run_ahead.is_lookahead_layer(layer);
        if self.prefetcher.enabled && !lookahead && self.account.governor.may_query_draft() {
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
            self.account.done(layer, at, self.prefetcher.is_sweeping());
        }
        self.or_abandon(result)
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
        self.account.slots_changed();
    }

    /// Adds slots, until they are [taken back](Self::take_back). Returns the number of slots
    /// before.
    pub fn lend(&mut self, slots: impl IntoIterator<Item = Slot>) -> usize {
        self.account.slots_changed();
        self.cache.extend(slots.into_iter().map(|slot| (slot.len(), Loaded::empty(slot))))
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
        self.account.slots_changed();
    }

    /// Saves the learned state of the policy and the draft for the next start.
    pub fn save(&self, to: &mut Saved) {
        self.cache.policy().save(to);
        self.forecaster.save(to);
    }

    /// Restores what [`save`](Self::save) has stored.
    pub fn recall(&mut self, saved: &Saved) -> Result<(), SavedError> {
        self.cache.policy_mut().recall(saved)?;
        self.prefetcher.fill = WarmFill::AfterFirstPrompt;
        self.forecaster.recall(saved)
    }

    /// The cache of experts.
    pub fn cache(&self) -> &PredictiveCache<Loaded> {
        &self.cache
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
        self.demand.begin(number, &routed.distinct);
        let (experts, per_step) = (&routed.choices[..], routed.top_k);
        self.cache.routed(&Choice { pass, layer: number, experts, per_step });
        if self.prefetcher.enabled {
            self.account_choice(layer, &routed.distinct);
        }
        let (cache, stand_ins) = (&mut self.cache, &self.run_ahead.stand_ins);
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
        if self.prefetcher.enabled {
            if self.account.governor.may_train_draft() {
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
        let (sweeping, begun) = (self.prefetcher.is_sweeping(), self.reads.speculative_begun());
        let chosen = Chosen { layer, distinct, bytes, sweeping, begun: &begun };
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
            ready(&now, &mut Assembled::exact(&self.cache, &self.inventory))?;
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

    /// Issues reads of the layer's misses, as far as there is room.
    fn fallback_reassemble(&mut self) -> Result<(), StreamError> {
        while let Some(id) = self.demand.next() {
            let len = self.reads.layout(id)?.slot_len();
            match self.cache.begin(self.demand.layer(), id, len, Need::Now) {
                Ok(claim) => {
                    self.issue(id, claim, Priority::Demanded, Origin::Demand)?;
                }
                // It was given up, but its read has not ended yet. It is demanded again once it
                // has.
                Err(NoRoom::Present { .. }) => {}
                Err(NoRoom::InUse { .. }) if !self.can_wait() && self.give_way() => continue,
                Err(NoRoom::InUse { .. }) => break,
                Err(error) => return Err(error.into()),
            }
            self.demand.advance();
        }
        Ok(())
    }

    /// Issues a read into a claimed slot.
    fn issue(
        &mut self,
        id: PieceId,
        claim: Claim<Loaded>,
        priority: Priority,
        origin: Origin,
    ) -> Result<(), StreamError> {
        let Claim { payload, evicted, .. } = claim;
        self.account.issued(id, origin.is_speculative(), evicted, &self.cache);
        self.reads.issue(id, payload, priority, origin).map_err(|(memory, error)| {
            self.cache.failed(id, memory);
            error
        })
    }

    /// Handles all reads that have ended.
    fn drain(&mut self) -> Result<(), StreamError> {
        while let Some(arrival) = self.reads.poll()? {
            self.land(arrival)?;
        }
        Ok(())
    }

    /// Handles a read that has ended. A failure is an error only if the piece is needed now and has
    /// failed before.
    fn land(&mut self, arrival: Arrival) -> Result<(), StreamError> {
        let Arrival { id, read, timing, result } = arrival;
        match (&read, &result) {
            (Some(read), Ok(_)) => {
                let demanded = read.demanded && !read.origin.is_speculative();
                self.account.landed(read.bytes, demanded, &timing);
            }
            (Some(read), Err(_)) if read.is_unasked() => {
                self.account.given_up(id, true, read.bytes);
            }
            _ => {}
        }
        match result {
            Ok(loaded) => {
                self.cache.ready(id, loaded);
                match read {
                    Some(read) if read.is_unasked() => {
                        self.account.landed_unasked(read.bytes);
                        if self.run_ahead.has_foreseen(id) {
                            self.pin(id);
                        }
                    }
                    Some(read) if !read.demanded && !read.ending => self.pin(id),
                    _ => {}
                }
                Ok(())
            }
            Err((memory, error)) => {
                self.cache.failed(id, memory);
                match error {
                    StreamError::Fetch(FetchError::Cancelled) => Ok(()),
                    error if self.demand.needs(id) && self.demand.fails_again(id) => Err(error),
                    _ => Ok(()),
                }
            }
        }
    }

    /// Gives up a read in flight. Its slot is empty now, or once the device has let go of it.
    fn give_up(&mut self, id: PieceId) {
        let Some(GivenUp { read, begun, slot }) = self.reads.give_up(id) else { return };
        if read.is_unasked() {
            self.account.given_up(id, begun, read.bytes);
        }
        if let Some(slot) = slot {
            self.cache.failed(id, slot);
        }
    }

    /// True if enough experts of this layer are resident or in flight for the rest to reuse their
    /// slots, each free once its expert is computed.
    fn can_wait(&self) -> bool {
        self.prefetcher.is_sweeping() && self.demand.in_hand() >= IN_TURN
    }

    /// Makes room for a demanded piece: unpins the pinned piece whose layer comes last, or else
    /// gives up the last prefetch. False if there is neither.
    fn give_way(&mut self) -> bool {
        if let Some(id) = self.prefetcher.unpin_last() {
            self.cache.unpin(id);
            return true;
        }
        let Some(id) = self.reads.latest_prefetch() else { return false };
        self.give_up(id);
        true
    }

    /// Issues the prefetches that the prefetcher proposes, once every demanded piece has its slot.
    fn prefetch(&mut self) {
        if self.demand.is_waiting() {
            return;
        }
        let most = match self.run_ahead.is_possible() {
            true => self.run_ahead.reads_until_next_poll(self.reads.seconds_per_expert()),
            false => None,
        };
        let (at, load) = (self.moment(), self.reads.load());
        let mut round = self.prefetcher.round(&self.account, at, load, most);
        loop {
            let DynamicAssembler { prefetcher, account, cache, reads, .. } = self;
            let next = prefetcher.next(&mut round, account, cache, |id| reads.slot_len(id));
            let Some(prefetch) = next else { return };
            let tried = self.try_prefetch(&prefetch);
            self.prefetcher.tried(&mut round, &self.account, &prefetch, tried);
        }
    }

    /// Issues a prefetch, if it finds a slot or a victim.
    fn try_prefetch(&mut self, prefetch: &Prefetch) -> Tried {
        let &Prefetch { id, bytes, need, priority, origin, .. } = prefetch;
        let worth = |policy: &mut dyn Policy, old: PieceId| {
            prefetch.is_worth(f64::from(policy.within(old, LIKELY_VICTIM_STEPS)))
        };
        match self.cache.begin_if(self.demand.layer(), id, bytes, need, worth) {
            Ok(claim) => {
                // A failed prefetch is harmless: the piece is read once a router demands it.
                let _ = self.issue(id, claim, priority, origin);
                Tried::Issued
            }
            Err(NoRoom::InUse { .. }) => Tried::InUse,
            Err(NoRoom::ExpectedSooner { .. }) => Tried::ExpectedSooner,
            Err(_) => Tried::Refused,
        }
    }

    /// Cancels prefetches of forecasts that the device has not begun. Those of layers computed
    /// ahead stay, as they are more reliable than a draft.
    fn withdraw_prefetches(&mut self) {
        for id in self.reads.not_begun() {
            if !self.run_ahead.has_foreseen(id) {
                self.give_up(id);
            }
        }
    }

    /// Pins a resident piece until its layer's router has chosen.
    fn pin(&mut self, id: PieceId) {
        if !self.prefetcher.is_pinned(id) && self.cache.pin(id) {
            self.prefetcher.pinned(id);
        }
    }

    /// Pins the resident experts of later layers. A sweep uses all of them once and in order, so
    /// computed experts are evicted instead.
    fn pin_later_layers(&mut self, layer: usize) {
        for later in layer + 1..self.prefetcher.layers() {
            for expert in 0..self.prefetcher.experts_of(later) {
                self.pin(PieceId::expert(later as u32, expert));
            }
        }
    }

    /// Prefetches the next layer of a long prompt, which uses nearly all of its experts.
    fn expect_next_layer(&mut self, tokens: usize) {
        let next = self.prefetcher.next_layer(self.demand.layer(), tokens);
        let Some((layer, probability, priority)) = next else { return };
        let experts = 0..self.prefetcher.experts_of(layer);
        let ids = experts.map(|expert| PieceId::expert(layer as u32, expert));
        for id in self.reads.in_disk_order(ids) {
            self.pin(id);
            self.prefetcher.expect([Expected { id, probability, priority }]);
        }
        self.prefetch();
    }

    /// Ends the forecasts of the running layer and of those before it, now that its router has
    /// chosen. Reads in flight that it needs become demanded; the others are given up, except those
    /// that fill free slots.
    fn settle_forecast(&mut self, distinct: &[u32]) {
        let layer = self.demand.layer();
        while let Some(id) = self.prefetcher.unpin_up_to(layer) {
            self.cache.unpin(id);
        }
        self.prefetcher.settle(layer);
        let over = self.reads.ids().into_iter().filter(|id| id.layer() <= Some(layer));
        for id in self.reads.in_disk_order(over.collect::<Vec<_>>()) {
            let needed = distinct.iter().any(|&expert| PieceId::expert(layer, expert) == id);
            let origin = self.reads.get(id).map(|read| read.origin);
            if needed {
                self.reads.demand(id, self.ablations.promotion);
            } else if origin != Some(Origin::WarmFill) {
                self.give_up(id);
            }
        }
    }

    /// Begins to fill free slots after the first pass, whose experts are resident by now, with the
    /// experts most likely to be used next.
    fn begin_warm_fill(&mut self) {
        if self.prefetcher.fill != WarmFill::AfterFirstPrompt {
            return;
        }
        let mut absent = Vec::new();
        for layer in 0..self.prefetcher.layers() {
            for expert in 0..self.prefetcher.experts_of(layer) {
                let id = PieceId::expert(layer as u32, expert);
                if !self.cache.contains(id) {
                    absent.push((self.cache.policy_mut().within(id, warm_fill::WITHIN), id));
                }
            }
        }
        self.prefetcher.fill.begin(absent);
    }

    /// Serves a layer computed ahead from resident experts, and from stand-ins for the rest.
    fn serve_with_stand_ins(
        &mut self,
        routed: &Routed,
        ready: Ready<'_>,
    ) -> Result<(), SourceError> {
        let mut weights = Assembled::exact(&self.cache, &self.inventory);
        weights.stand_ins = Some(&self.run_ahead.stand_ins);
        ready(&routed.distinct, &mut weights)
    }

    /// Computes the stand-ins that may count, and demands the experts of those that are too
    /// inaccurate.
    fn judge(&mut self, ready: Ready<'_>) -> Result<(), SourceError> {
        let to_judge = std::mem::take(&mut self.run_ahead.to_judge);
        if to_judge.is_empty() {
            return Ok(());
        }
        let mut weights = Assembled::exact(&self.cache, &self.inventory);
        weights.stand_ins = Some(&self.run_ahead.stand_ins);
        weights.verifier = Some(&self.verifier);
        ready(&to_judge, &mut weights)?;
        let refused = weights.refused;
        self.verifier.caught += refused.len() as u64;
        let layer = self.demand.layer();
        let counts = |expert: &u32| !refused.contains(&PieceId::expert(layer, *expert));
        let counted: Vec<u32> = to_judge.into_iter().filter(counts).collect();
        self.computed(&counted);
        let refused = self.reads.in_disk_order(refused);
        self.demand.queue(refused);
        Ok(self.fallback_reassemble()?)
    }

    /// Takes the choice that a layer computed ahead has made, as far as stand-ins predict it:
    /// resident experts are pinned, and the others are prefetched.
    fn foresee(&mut self, layer: usize, routed: &Routed) -> Result<(), StreamError> {
        self.drain()?;
        let probability = self.run_ahead.foresee(layer as u32, routed);
        let ids = routed.distinct.iter().map(|&expert| PieceId::expert(layer as u32, expert));
        for id in self.reads.in_disk_order(ids) {
            self.pin(id);
            let priority = Priority::Speculative;
            self.prefetcher.expect([Expected { id, probability, priority }]);
        }
        self.prefetch();
        Ok(())
    }

    /// Starts a run ahead if it is worth it, and only if no prefetch is pending: otherwise known
    /// experts of later layers are already being read.
    fn start_run_ahead(&mut self, layer: usize) -> Result<bool, StreamError> {
        if !self.run_ahead.can_start(layer) || !self.account.governor.on() {
            return Ok(false);
        }
        if !self.prefetcher.is_idle() || self.reads.load().prefetches > 0 {
            return Ok(false);
        }
        self.drain()?;
        self.fallback_reassemble()?;
        let wait =
            Wait { missing: self.missing(), seconds_per_expert: self.reads.seconds_per_expert() };
        let starts = self.run_ahead.is_worth_running(self.demand.layer() as usize, wait);
        if starts {
            self.account.runs_ahead();
            self.run_ahead.start(layer);
        }
        Ok(starts)
    }

    /// Continues a run ahead while the experts of the layer where it began are awaited, and
    /// stand-ins cover this one.
    fn continue_run_ahead(&mut self, layer: usize) -> Result<bool, StreamError> {
        self.reads.waiter.check()?;
        self.drain()?;
        Ok(self.run_ahead.can_continue(layer) && self.missing() > 0)
    }

    /// Number of the layer's needed experts that are not resident.
    fn missing(&self) -> usize {
        let absent = |&&expert: &&u32| self.presence(expert) != Presence::Exact;
        self.demand.needed().iter().filter(absent).count()
    }

    /// Abandons the pass on failure.
    fn or_abandon<T, E>(&mut self, result: Result<T, E>) -> Result<T, E> {
        if result.is_err() {
            self.abandon();
        }
        result
    }
}
