//! Brings the experts of a layer together: those that are there, and the others as they arrive.

mod account;
mod ahead;
mod arriving;
mod books;
mod fill;
mod inexact;
mod layouts;
mod reading;
#[cfg(test)]
mod tests;
mod weights;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, unbounded};
use sws_cache::{Saved, SavedError};
use sws_draft::{Draft, Gates, ReassemblyBlueprint};
use sws_model::{Inventory, ModelSpec, Ready, Routed, SourceError};
use sws_store::{Completion, LayoutError, NVMeWeightStore, Pass, PieceId, PieceLayout, Slot};

use crate::error::StreamError;
use crate::governor::Speculation;
use crate::verifier::{Presence, RealPath, Verdict, Verifier, detect_miss};
use crate::wait::Waiter;
use account::Speculating;
use ahead::Expected;
use fill::Filling;
use inexact::Inexact;
pub use inexact::RunAheadCounts;
use layouts::Layouts;
use reading::Reading;
use sws_cache::policy::{Choice, Layers, Policy};
use sws_cache::{Lookup, NoRoom, PredictiveCache};
use weights::Assembled;
pub use weights::Loaded;

/// Serves the routed experts of a model from a cache, and fetches what is not in it.
///
/// A [`PassSource`](sws_model::PassSource) hands its moments on: [`begin`](Self::begin),
/// [`entering`](Self::entering), [`routed`](Self::routed), [`attended`](Self::attended),
/// [`experts`](Self::experts). Once the router has chosen, a [`Verifier`] compares with what is there; what is
/// missing is demanded
/// at once, in the order of the disk, while experts that are there compute. An expert is read at
/// most once for all tokens of a pass, however few slots there are: one that has been computed
/// makes room for the next of its layer, if nothing else can.
#[derive(Debug)]
pub struct DynamicAssembler {
    store: Arc<NVMeWeightStore>,
    inventory: Arc<Inventory>,
    layouts: Layouts,
    cache: PredictiveCache<Loaded>,
    inexact: Inexact,
    verifier: Verifier,
    draft: Box<dyn Draft>,
    confidence: f32,
    ahead: bool,
    /// What the draft said last.
    blueprint: ReassemblyBlueprint,
    /// A state with what a shared expert adds to it.
    sum: Vec<f32>,
    waiter: Waiter,
    reply: Sender<Completion>,
    arrived: Receiver<Completion>,
    /// Experts and choices of each layer; none of a dense one.
    layers: Vec<Option<(usize, usize)>>,
    /// The layer whose router chose last.
    layer: u32,
    /// Its experts that have not been computed.
    needed: Vec<u32>,
    /// Those of them that have to be read and have no slot yet, in the order of the disk.
    wanted: VecDeque<PieceId>,
    reading: HashMap<PieceId, Reading>,
    /// Pieces whose read has failed for this layer.
    failed: HashSet<PieceId>,
    /// What is expected and not there, the next first.
    forecast: VecDeque<Expected>,
    /// What is expected and pinned until then.
    promised: BTreeSet<PieceId>,
    /// What a draft expects, what that is worth, and what it has come to.
    speculating: Speculating,
    mechanisms: Mechanisms,
    /// Whether so many tokens go through together that they use nearly all experts of every layer.
    sweeping: bool,
    /// Pieces whose numbers have been looked at. Their checksums do not change.
    looked_at: HashSet<PieceId>,
}

/// Who decides for a [`DynamicAssembler`].
#[derive(Debug)]
pub struct Deciders {
    /// What makes room.
    pub policy: Box<dyn Policy>,
    /// What is read before it is asked for.
    pub draft: Box<dyn Draft>,
    /// From which probability on.
    pub confidence: f32,
    /// Whether anything is: without, the draft is not asked, and the next layer of a prompt waits
    /// for its router.
    pub ahead: bool,
    /// Whether what the draft forecasts is read only as long as that pays. Without, always.
    pub governed: bool,
}

/// What of the engine can be left out, to measure what it is worth. Nothing is computed differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mechanisms {
    /// Whether experts are computed as they arrive, rather than when all of a layer are there.
    pub arrival_order: bool,
    /// Whether a read that was begun for a forecast goes before others once a router has asked for it.
    pub promotion: bool,
}

impl Default for Mechanisms {
    /// All of it.
    fn default() -> Mechanisms {
        Mechanisms { arrival_order: true, promotion: true }
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

/// Experts that are computed together while others of their layer wait for their slots: few enough
/// to free a slot soon, enough for all threads.
const WHILE_OTHERS_WAIT: usize = 4;

impl DynamicAssembler {
    /// Experts come and go in `slots`.
    pub fn new(
        spec: &ModelSpec,
        store: Arc<NVMeWeightStore>,
        inventory: Arc<Inventory>,
        slots: impl IntoIterator<Item = Slot>,
        deciders: Deciders,
        waiter: Waiter,
    ) -> DynamicAssembler {
        let Deciders { policy, draft, confidence, ahead, governed } = deciders;
        let slots = slots.into_iter().map(|slot| (slot.len(), Loaded::empty(slot)));
        let (reply, arrived) = unbounded();
        let layers = spec.layers.iter().map(|layer| {
            let moe = layer.moe()?;
            Some((moe.experts, moe.top_k))
        });
        DynamicAssembler {
            store,
            inventory,
            layouts: Layouts::default(),
            cache: PredictiveCache::new(policy, slots),
            inexact: Inexact::default(),
            verifier: Verifier::default(),
            draft,
            confidence,
            ahead,
            blueprint: ReassemblyBlueprint::default(),
            sum: Vec::new(),
            waiter,
            reply,
            arrived,
            speculating: Speculating::new(spec.layers.len(), governed),
            mechanisms: Mechanisms::default(),
            layers: layers.collect(),
            layer: 0,
            needed: Vec::new(),
            wanted: VecDeque::new(),
            reading: HashMap::new(),
            failed: HashSet::new(),
            forecast: VecDeque::new(),
            promised: BTreeSet::new(),
            sweeping: false,
            looked_at: HashSet::new(),
        }
    }

    /// A pass begins.
    pub fn begin(&mut self, pass: &Pass) {
        self.forget_run_ahead();
        self.cache.begin_pass(pass);
        if self.ahead {
            self.note_pass(pass);
        }
    }

    /// `hidden` [tokens, hidden] is about to enter a layer.
    pub fn entering(
        &mut self,
        layer: usize,
        hidden: &[f32],
        gates: &mut dyn Gates,
    ) -> Result<(), StreamError> {
        self.drain()?;
        // What a draft is shown is what counts, once.
        if self.is_beyond(layer) {
            return Ok(());
        }
        self.pace_begins();
        if !self.ahead {
            return Ok(());
        }
        self.note_entering(layer);
        if !self.speculating.governor.on() {
            self.forget_offers();
            self.withdraw_offers();
        }
        if self.speculating.governor.asks() {
            let started = self.waiter.clock().now();
            let said = self.draft.entering(layer, hidden, gates);
            let news = said.map(|layers| self.blueprint.plan(layers, self.confidence)).is_some();
            self.note_draft(started);
            if news {
                self.layer = layer as u32;
                self.follow_blueprint();
            }
            self.note_forecast(started);
        }
        Ok(())
    }

    /// The router of a layer has chosen: what is missing is asked for at once.
    pub fn routed(
        &mut self,
        pass: &Pass,
        layer: usize,
        routed: &Routed,
    ) -> Result<(), StreamError> {
        let result = if self.is_beyond(layer) {
            self.foresee(layer, routed)
        } else {
            self.verify(pass, layer, routed)
        };
        self.or_abandon(result)
    }

    /// The layer's attention has left `state` [tokens, hidden], to which its shared expert, if there is
    /// one, adds `shared`.
    pub fn attended(
        &mut self,
        layer: usize,
        state: &[f32],
        shared: &[f32],
        gates: &mut dyn Gates,
    ) -> Result<(), StreamError> {
        if !self.ahead || self.is_beyond(layer) || !self.speculating.governor.asks() {
            return Ok(());
        }
        let started = self.waiter.clock().now();
        let DynamicAssembler { draft, blueprint, sum, .. } = self;
        let state = match shared {
            [] => state,
            shared => {
                sum.clear();
                sum.extend(state.iter().zip(shared).map(|(a, b)| a + b));
                sum
            }
        };
        let said = draft.attended(layer, state, gates);
        let news = said.map(|layers| blueprint.plan(layers, self.confidence)).is_some();
        self.note_draft(started);
        if news {
            self.follow_blueprint();
        }
        self.note_forecast(started);
        Ok(())
    }

    fn follow_blueprint(&mut self) {
        let blueprint = std::mem::take(&mut self.blueprint);
        self.assemble_from_blueprint(&blueprint);
        self.blueprint = blueprint;
    }

    /// Calls `ready` with the experts that the router has chosen, as they are there.
    pub fn experts(
        &mut self,
        layer: usize,
        routed: &Routed,
        ready: Ready<'_>,
    ) -> Result<(), SourceError> {
        let asked = (layer, routed.distinct.len());
        debug_assert!(self.is_beyond(layer) || (self.layer as usize, self.needed.len()) == asked);
        let counts = self.ahead && !self.is_ahead();
        if counts {
            let at = self.moment();
            self.speculating.pace.experts(layer, routed.distinct.len(), at);
        }
        let result = match self.is_ahead() {
            true => self.serve_anyhow(routed, ready),
            false => self.execute_assembled(ready),
        };
        if counts && result.is_ok() {
            self.note_done(layer);
        }
        self.or_abandon(result)
    }

    /// Ends the pass: reads under way are given up, and nothing is expected any more.
    pub fn abandon(&mut self) {
        self.needed.clear();
        self.wanted.clear();
        self.forecast.clear();
        self.forget_run_ahead();
        self.forget_offers();
        self.withdraw_promises();
        let all: Vec<PieceId> = self.reading.keys().copied().collect();
        for id in all {
            self.give_up(id);
        }
        while !self.reading.is_empty()
            && let Some(completion) = self.waiter.settle(&self.store, &self.arrived)
        {
            // Nobody asks for it any more, so a failure is nobody's.
            let _ = self.land(completion);
        }
        self.cache.idle();
    }

    /// Leaves out what is to be measured.
    pub fn with_mechanisms(mut self, mechanisms: Mechanisms) -> DynamicAssembler {
        self.mechanisms = mechanisms;
        self
    }

    /// Gives slots up until they have at most `bytes`: now those that are not in use, the others
    /// after the next layer. Their memory returns to where the slots were cut from.
    pub fn trim_to_budget(&mut self, bytes: usize) {
        drop(self.cache.trim_to_budget(bytes));
        self.speculating.books.clear();
    }

    /// More slots, until they are [taken back](Self::take_back). Returns how many there were.
    pub fn lend(&mut self, slots: impl IntoIterator<Item = Slot>) -> usize {
        self.speculating.books.clear();
        self.cache.extend(slots.into_iter().map(|slot| (slot.len(), Loaded::empty(slot))))
    }

    /// Gives up all slots but the first so many, and with them what is under way.
    pub fn take_back(&mut self, slots: usize) {
        self.abandon();
        drop(self.cache.truncate(slots));
        self.speculating.books.clear();
    }

    /// What has been learned of the model, for its next start.
    pub fn save(&self, to: &mut Saved) {
        self.cache.policy().save(to);
        self.draft.save(to);
    }

    /// Goes on from what [`save`](Self::save) added.
    pub fn recall(&mut self, saved: &Saved) -> Result<(), SavedError> {
        self.cache.policy_mut().recall(saved)?;
        self.speculating.filling = Filling::After;
        self.draft.recall(saved)
    }

    /// The books of what is in memory.
    pub fn cache(&self) -> &PredictiveCache<Loaded> {
        &self.cache
    }

    /// What was accepted and what rejected.
    pub fn verifier(&self) -> Verifier {
        self.verifier
    }

    /// What speculation has come to.
    pub fn speculation(&self) -> Speculation {
        self.speculating.governor.total()
    }

    /// Begins to count anew.
    pub fn reset_counts(&mut self) {
        self.verifier = Verifier::default();
        self.cache.reset_counts();
    }

    fn presence(&self, expert: u32) -> Presence {
        let id = PieceId::expert(self.layer, expert);
        match self.cache.get(id) {
            Some(_) => Presence::Exact,
            None if self.reading.contains_key(&id) => Presence::Coming,
            None if self.inexact.stand_ins.contains(id) => Presence::Inexact,
            None => Presence::Absent,
        }
    }

    fn verify(&mut self, pass: &Pass, layer: usize, routed: &Routed) -> Result<(), StreamError> {
        self.waiter.check()?;
        self.drain()?;
        self.layer = layer as u32;
        self.failed.clear();
        self.wanted.clear();
        self.needed.clone_from(&routed.distinct);
        let number = self.layer;
        let (experts, per_step) = (&routed.choices[..], routed.top_k);
        self.cache.routed(&Choice { pass, layer: number, experts, per_step });
        if self.ahead {
            self.note_choice(layer, &routed.distinct);
        }
        let (cache, real) = (&mut self.cache, RealPath { layer, experts: &routed.distinct });
        let stand_ins = &self.inexact.stand_ins;
        let verdict = self.verifier.check(real, |expert| {
            match cache.lookup(PieceId::expert(number, expert)) {
                Lookup::Ready => Presence::Exact,
                Lookup::Loading => Presence::Coming,
                Lookup::Absent if stand_ins.contains(PieceId::expert(number, expert)) => {
                    Presence::Inexact
                }
                Lookup::Absent => Presence::Absent,
            }
        });
        let misses = match &verdict {
            Verdict::Accept => 0,
            Verdict::Reject { missing, inexact } => missing.len() + inexact.len(),
        };
        self.chosen(&routed.distinct, misses);
        self.settle_forecast(&routed.distinct);
        if self.ahead {
            self.keep_for_sweep(routed.choices.len() / routed.top_k.max(1));
        }
        if let Verdict::Reject { mut missing, mut inexact } = verdict {
            missing.extend(self.verifier.catch(&mut inexact));
            self.inexact.judging = inexact;
            let ids = missing.into_iter().map(|expert| PieceId::expert(number, expert));
            self.wanted = self.in_order(ids).into();
            self.fallback_reassemble()?;
        }
        if self.ahead {
            if self.speculating.governor.teaches() {
                let started = self.waiter.clock().now();
                self.draft.adapt(layer, &routed.choices, routed.top_k);
                self.note_draft(started);
                self.note_forecast(started);
            }
            self.expect_next_layer(routed.choices.len() / routed.top_k.max(1));
        }
        Ok(())
    }

    fn execute_assembled(&mut self, ready: Ready<'_>) -> Result<(), SourceError> {
        self.judge(ready)?;
        let mut now = Vec::with_capacity(self.needed.len());
        while !self.needed.is_empty() {
            self.drain()?;
            self.verify_again();
            self.fallback_reassemble()?;
            self.read_ahead();
            let there = |&expert: &u32| self.presence(expert) == Presence::Exact;
            now.clear();
            now.extend(self.needed.iter().copied().filter(there));
            let held = !self.mechanisms.arrival_order && now.len() < self.needed.len();
            let coming = |&expert: &u32| self.presence(expert) == Presence::Coming;
            if now.is_empty() || held && self.needed.iter().any(coming) {
                if let (true, Some(&piece)) = (self.reading.is_empty(), self.wanted.front()) {
                    return Err(StreamError::from(NoRoom::InUse { piece }).into());
                }
                if self.compute_arriving(ready)? {
                    continue;
                }
                let completion = self.waiter.wait(&self.store, &self.arrived)?;
                self.land(completion)?;
                continue;
            }
            if !self.wanted.is_empty() {
                now.truncate(WHILE_OTHERS_WAIT);
            }
            let DynamicAssembler { cache, inventory, .. } = self;
            let mut weights = Assembled::exact(cache, inventory);
            ready(&now, &mut weights)?;
            for &expert in &now {
                self.cache.computed(PieceId::expert(self.layer, expert));
            }
            self.needed.retain(|expert| !now.contains(expert));
        }
        self.pace_ends();
        self.cache.idle();
        self.read_ahead();
        Ok(())
    }

    /// What was fetched because it was missing is checked like what was there: whatever is needed
    /// and neither there nor on its way, because a read has failed or was given up, is wanted again.
    fn verify_again(&mut self) {
        for &expert in &self.needed {
            let id = PieceId::expert(self.layer, expert);
            if detect_miss(self.presence(expert)).is_some() && !self.wanted.contains(&id) {
                self.wanted.push_front(id);
            }
        }
    }

    fn or_abandon<T, E>(&mut self, result: Result<T, E>) -> Result<T, E> {
        if result.is_err() {
            self.abandon();
        }
        result
    }

    fn layout(&mut self, id: PieceId) -> Result<Arc<PieceLayout>, LayoutError> {
        self.layouts.of(&self.store, id).cloned()
    }

    /// As they lie on the disk.
    fn in_order(&mut self, ids: impl IntoIterator<Item = PieceId>) -> Vec<PieceId> {
        let mut ids: Vec<PieceId> = ids.into_iter().collect();
        self.layouts.sort(&self.store, &mut ids);
        ids
    }
}

impl Drop for DynamicAssembler {
    /// The store hands slots back only while somebody listens; they return to their arena anyway.
    fn drop(&mut self) {
        for reading in self.reading.values() {
            let _ = self.store.cancel(reading.ticket);
        }
    }
}
