//! The assembler of routed experts.

mod ahead;
mod config;
mod landing;
mod pending_choices;
mod routed;
mod router_states;
mod serving;
mod slots;

use std::sync::Arc;
use std::time::Duration;

use router_states::LastStates;
use sws_cache::policy::ExpertLayers;
use sws_cache::{Lookup, PredictiveCache, SavedError, SavedTensors};
use sws_draft::Gates;
use sws_format::{Pass, PieceId};
use sws_model::{Inventory, ModelSpec, RunAhead};
use sws_store::{NVMeWeightStore, Slot};

use super::demand::Demand;
use super::tier::{ExpertTier, PlacedTier, TierCounts};
use super::verifier::{Exactness, Verifier};
use super::weights::Assembled;
use crate::budget::routes_of;
use crate::error::StreamError;
use crate::reads::{LoadedSlot, ReadsInFlight};
use crate::speculation::{Account, Forecaster, Prefetcher, Speculation, WarmFill};
use crate::stand_ins::{RunAheadCounts, RunAheadState, StandIns};
use crate::wait::{Moment, Waiter};
use crate::watch::{ExpertPlace, RunWatch};
pub use config::{Ablations, AssemblerConfig};
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
    tier: Option<PlacedTier>,
    /// True to use a tier only where it is faster.
    governed: bool,
    router_states: LastStates,
}

/// A forecast of the bytes of experts that a token reads, by the way in which sequences share a model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExpectedReads {
    /// Bytes per token in shared passes over all sequences.
    pub together: f64,
    /// Bytes per token if sequences take turns.
    pub in_turns: f64,
}

/// The layers of a model, as a policy for this many sequences sees them.
pub(crate) fn layers_with_experts(spec: &ModelSpec, sequences: usize) -> ExpertLayers {
    let moe = |layer: &u32| spec.layers[*layer as usize].moe().is_some();
    let count = spec.layers.len() as u32;
    let with_experts: Vec<u32> = (0..count).filter(moe).collect();
    let visits = with_experts.iter().map(|&layer| spec.times(layer as usize) as u32).collect();
    ExpertLayers {
        count,
        with_experts,
        visits,
        experts: routes_of(spec).experts,
        top_k: spec.max_top_k(),
        sequences,
    }
}

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
        let slots = slots.into_iter().map(LoadedSlot::with_len);
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
            prefetcher: Prefetcher::new(layers.collect(), speculation, confidence)
                .turning_at(spec.looped.map(|looped| looped.end as u32 - 1)),
            forecaster: Forecaster::new(draft, confidence),
            account: Account::new(spec.layers.len(), governed),
            run_ahead: RunAheadState::default(),
            ablations: Ablations::default(),
            pending: PendingChoices::default(),
            watch: None,
            tier: None,
            governed,
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

    /// Adds a tier of experts outside memory. Those that are used most are copied to it once they are computed, and
    /// their slots are free then, as long as it is faster than the CPU with its misses.
    pub fn set_tier(&mut self, tier: Box<dyn ExpertTier>) {
        self.tier = Some(PlacedTier::new(tier, self.governed));
    }

    /// The tier of experts outside memory.
    pub fn tier(&self) -> Option<&dyn ExpertTier> {
        Some(&*self.tier.as_ref()?.tier)
    }

    /// Counts of the tier.
    pub fn tier_counts(&self) -> Option<TierCounts> {
        self.tier.as_ref().map(PlacedTier::counts)
    }

    /// Reports choices and reads of experts.
    pub(crate) fn report_to(&mut self, watch: RunWatch) {
        self.watch = Some(watch);
    }

    /// Starts a pass.
    pub fn begin(&mut self, pass: &Pass) {
        self.run_ahead.forget();
        let at = self.moment();
        if let Some(tier) = &mut self.tier {
            tier.pass_begins(at);
        }
        if let Some(watch) = &self.watch {
            watch.compare(self.places());
            watch.tier(|| self.tier_counts());
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
            let started = self.now();
            self.forecaster.pass_begins(pass);
            self.draft_ran(started);
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
            let started = self.now();
            let is_new = self.forecaster.layer_begins(layer, hidden, gates);
            self.forecast(started, is_new);
        }
        Ok(())
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
            let started = self.now();
            let is_new = self.forecaster.attended(layer, state, shared, gates);
            self.forecast(started, is_new);
        }
        Ok(())
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

    /// Pieces that are in memory, a tier's included, or on their way to it.
    fn places(&self) -> impl Iterator<Item = (PieceId, ExpertPlace)> {
        let cached = self.cache.pieces().map(|id| match self.cache.find(id) {
            Lookup::Ready => (id, ExpertPlace::Memory),
            _ => (id, ExpertPlace::Reading),
        });
        let on_tier = self.tier.iter().flat_map(PlacedTier::pieces);
        cached.chain(on_tier.map(|id| (id, ExpertPlace::Memory)))
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

    /// Forecasts the bytes that a token of these sequences reads, in shared passes and in turns of
    /// `turn` tokens.
    pub fn expected_reads(&mut self, sequences: &[usize], turn: usize) -> Option<ExpectedReads> {
        let slots = self.cache.slots();
        if slots == 0 {
            return None;
        }
        let misses = self.cache.policy_mut().shared_misses(sequences, slots, turn)?;
        let capacity = self.cache.capacity() as f64;
        Some(ExpectedReads {
            together: f64::from(misses.together) * capacity / slots as f64,
            in_turns: f64::from(misses.in_turns) * capacity / slots as f64,
        })
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

    /// True if the account cannot compare the pass with one without speculation: the pass uses
    /// nearly all experts once, or has pending tokens, which no draft has seen.
    fn is_unbooked(&self) -> bool {
        self.prefetcher.is_sweeping() || !self.pending.is_idle()
    }

    /// The current time, and the total waiting time so far.
    fn moment(&self) -> Moment {
        self.reads.waiter.moment()
    }

    /// The current time.
    fn now(&self) -> Duration {
        self.reads.waiter.clock().now()
    }

    /// Abandons the pass on failure.
    fn or_abandon<T, E>(&mut self, result: Result<T, E>) -> Result<T, E> {
        if result.is_err() {
            self.abandon();
        }
        result
    }
}
