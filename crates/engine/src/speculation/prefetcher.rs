//! Decides which pieces are read before a router selects them. It only decides: it issues no reads,
//! and does not change the cache.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};

use sws_cache::{Need, PredictiveCache};
use sws_draft::LayerBlueprint;
use sws_format::PieceId;
use sws_store::Priority;

use super::account::Account;
use super::price::ReadOffer;
use super::warm_fill::WarmFill;
use crate::reads::{Load, ReadOrigin};
use crate::wait::Moment;

/// Maximum number of prefetches in flight. More would hold slots that a demand has to reclaim
/// first, and the device reads them one after another anyway.
const IN_FLIGHT: usize = 16;
/// Lowest probability at which the experts of the next layer are read ahead of their router.
const PROBABLE: f32 = 0.9;
/// Lowest probability at which a piece is as good as demanded, and the device is kept busy.
const CERTAIN: f32 = 0.99;
/// Forecasts below this probability are ignored.
const IMPROBABLE: f32 = 0.02;
/// Number of refused prefetches after which a round leaves the rest of the forecasts to the next
/// one: finding a victim takes a scan of all resident pieces.
const REFUSALS: usize = 4;

/// Forecasts of later layers, and the prefetches that follow from them.
#[derive(Debug)]
pub(crate) struct Prefetcher {
    /// Experts of each layer, and experts per token; `None` for a dense layer.
    layers: Vec<Option<(usize, usize)>>,
    /// False without speculation: the draft is not queried, and no later layer of a prompt is
    /// prefetched.
    pub(crate) enabled: bool,
    /// Lowest probability at which a forecast is followed.
    confidence: f32,
    /// Forecast experts of each layer with their probabilities, the most probable first.
    offers: Vec<Vec<(u32, f32)>>,
    /// Pieces expected by a sweep, a run ahead or a table of experts, in the order of reading.
    queue: VecDeque<ExpectedPiece>,
    /// Resident pieces pinned until their layer's router has chosen.
    pinned: BTreeSet<PieceId>,
    /// Pieces that follow from the tokens of the pass.
    known: BTreeSet<PieceId>,
    /// True while a pass has so many tokens that they use nearly all experts of every layer.
    sweeping: bool,
    /// The last of the layers that a pass visits several times. An earlier one may follow it.
    turns_at: Option<u32>,
    /// Pieces for free slots, chosen by the expert usage of earlier runs.
    pub(crate) fill: WarmFill,
}

/// A piece that is expected to be used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ExpectedPiece {
    pub(crate) id: PieceId,
    pub(crate) probability: f32,
    pub(crate) priority: Priority,
}

/// A proposed prefetch. It may evict a victim that it [outweighs](Self::is_worth).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefetch {
    pub(crate) id: PieceId,
    pub(crate) bytes: usize,
    pub(crate) need: Need,
    pub(crate) priority: Priority,
    pub(crate) origin: ReadOrigin,
    price: Price,
}

/// Victims that a prefetch may evict.
#[derive(Clone, Copy, Debug)]
enum Price {
    /// Any victim.
    Any,
    /// No victim: a free slot only.
    Free,
    /// Victims worth less than the offer; none if nothing was measured.
    Offer(Option<ReadOffer>),
}

impl Prefetch {
    /// True if the prefetch may evict a victim that is used soon with this probability.
    pub(crate) fn is_worth(&self, victim: f64) -> bool {
        match self.price {
            Price::Any => true,
            Price::Free => false,
            Price::Offer(offer) => {
                matches!(offer, Some(offer) if ReadOffer { victim, ..offer }.is_profitable())
            }
        }
    }
}

/// Outcome of a proposed prefetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PrefetchOutcome {
    /// The read was issued.
    Issued,
    /// Every suitable slot is in use.
    InUse,
    /// Every possible victim is expected sooner.
    ExpectedSooner,
    /// The piece is present, or its victim is worth more.
    Refused,
}

/// A round of prefetches: as many as the device can begin before the next round.
#[derive(Debug)]
pub(crate) struct PrefetchRound {
    stage: RoundStage,
    at: Moment,
    load: Load,
    /// Maximum number of prefetches in flight while the queue is served.
    most: usize,
    /// Refused prefetches so far.
    refusals: usize,
    /// Nanoseconds of demanded reads in flight.
    busy: f64,
    /// Nanoseconds of prefetches in flight.
    backlog: f64,
    /// Nanoseconds until the next round.
    next_poll: f64,
}

/// Stages of a round: queued pieces, then forecasts, then pieces for free slots.
#[derive(Clone, Copy, Debug)]
enum RoundStage {
    Queue,
    Offers { layer: usize, place: usize, until: Option<f64> },
    Fill,
    Over,
}

impl Prefetcher {
    pub(crate) fn new(
        layers: Vec<Option<(usize, usize)>>,
        enabled: bool,
        confidence: f32,
    ) -> Prefetcher {
        Prefetcher {
            offers: vec![Vec::new(); layers.len()],
            layers,
            enabled,
            confidence,
            queue: VecDeque::new(),
            pinned: BTreeSet::new(),
            known: BTreeSet::new(),
            sweeping: false,
            turns_at: None,
            fill: WarmFill::default(),
        }
    }

    /// Prefetches nothing for the layer behind this one.
    pub(crate) fn turning_at(mut self, layer: Option<u32>) -> Prefetcher {
        self.turns_at = layer;
        self
    }

    /// Number of experts in a layer; 0 for a dense one.
    pub(crate) fn experts_of(&self, layer: usize) -> u32 {
        match self.layers.get(layer) {
            Some(Some((experts, _))) => *experts as u32,
            _ => 0,
        }
    }

    /// Number of layers.
    pub(crate) fn layers(&self) -> usize {
        self.layers.len()
    }

    /// True if the pass is a sweep.
    pub(crate) fn is_sweeping(&self) -> bool {
        self.sweeping
    }

    /// True if no sweep or run ahead has pieces queued.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Replaces a layer's forecast. `hint` gets the probability of every expert in the old or the
    /// new one.
    pub(crate) fn follow(&mut self, layer: &LayerBlueprint, mut hint: impl FnMut(PieceId, f32)) {
        let number = layer.layer_idx;
        let Some(offers) = self.offers.get_mut(number) else { return };
        for (expert, _) in offers.drain(..) {
            hint(PieceId::expert(number as u32, expert), 0.0);
        }
        let least = self.confidence.max(IMPROBABLE);
        for &expert in &layer.selected_experts {
            if let Some(&probability) = layer.expert_probs.get(expert as usize)
                && probability >= least
            {
                offers.push((expert, probability));
            }
        }
        for &(expert, probability) in &*offers {
            hint(PieceId::expert(number as u32, expert), probability);
        }
    }

    /// Drops all forecasts.
    pub(crate) fn forget_offers(&mut self) {
        self.offers.iter_mut().for_each(Vec::clear);
    }

    /// Drops the pieces that are queued.
    pub(crate) fn forget_queue(&mut self) {
        self.queue.clear();
        self.known.clear();
    }

    /// Queues a piece that follows from the tokens of the pass.
    pub(crate) fn expect_known(&mut self, id: PieceId) {
        self.known.insert(id);
        self.expect([ExpectedPiece { id, probability: 1.0, priority: Priority::Ahead }]);
    }

    /// True if a piece of a later layer follows from the tokens of the pass.
    pub(crate) fn is_known(&self, id: PieceId) -> bool {
        self.known.contains(&id)
    }

    /// Queues expected pieces.
    pub(crate) fn expect(&mut self, pieces: impl IntoIterator<Item = ExpectedPiece>) {
        self.queue.extend(pieces);
    }

    /// True if this piece is pinned.
    pub(crate) fn is_pinned(&self, id: PieceId) -> bool {
        self.pinned.contains(&id)
    }

    /// Notes that a resident piece was pinned until its layer's router has chosen.
    pub(crate) fn pinned(&mut self, id: PieceId) {
        self.pinned.insert(id);
    }

    /// Removes the pin whose layer comes last.
    pub(crate) fn unpin_last(&mut self) -> Option<PieceId> {
        self.pinned.pop_last()
    }

    /// Removes the first pin in the layers up to this one.
    pub(crate) fn unpin_up_to(&mut self, layer: u32) -> Option<PieceId> {
        let over = matches!(self.pinned.first(), Some(id) if id.layer() <= Some(layer));
        if over { self.pinned.pop_first() } else { None }
    }

    /// True if anything is pinned.
    #[cfg(test)]
    pub(crate) fn has_pins(&self) -> bool {
        !self.pinned.is_empty()
    }

    /// Removes any pin.
    pub(crate) fn unpin_any(&mut self) -> Option<PieceId> {
        self.pinned.pop_first()
    }

    /// Ends the forecasts of a layer whose router has chosen, and of those before it.
    pub(crate) fn settle(&mut self, layer: u32) {
        self.queue.retain(|expected| expected.id.layer() > Some(layer));
        self.known.retain(|id| id.layer() > Some(layer));
        let over = (layer as usize + 1).min(self.offers.len());
        self.offers[..over].iter_mut().for_each(Vec::clear);
    }

    /// Decides in the first layer with experts if a pass of `tokens` tokens is a sweep, which uses
    /// nearly all experts of all layers once, in order. True if a sweep begins here.
    pub(crate) fn begins_sweep(&mut self, layer: u32, tokens: usize) -> bool {
        let layer = layer as usize;
        if self.layers[..layer].iter().any(Option::is_some) {
            return false;
        }
        self.sweeping = usage(self.layers[layer], tokens) >= PROBABLE;
        self.sweeping
    }

    /// Returns the next layer with experts if a pass of `tokens` tokens uses nearly all of them and
    /// nothing else is queued, with the probability of each expert and the priority of its read.
    pub(crate) fn next_layer(&self, layer: u32, tokens: usize) -> Option<(usize, f32, Priority)> {
        if self.turns_at == Some(layer) {
            return None;
        }
        let after = layer as usize + 1;
        let next = (after..self.layers.len()).find(|&layer| self.layers[layer].is_some())?;
        let probability = usage(self.layers[next], tokens);
        if probability < PROBABLE || !self.queue.is_empty() {
            return None;
        }
        let priority = if probability >= CERTAIN { Priority::Ahead } else { Priority::Speculative };
        Some((next, probability, priority))
    }

    /// Begins a round. `most` limits the prefetches in flight while the queue is served, if it is
    /// known.
    pub(crate) fn round(
        &self,
        account: &Account,
        at: Moment,
        load: Load,
        most: Option<usize>,
    ) -> PrefetchRound {
        PrefetchRound {
            stage: RoundStage::Queue,
            at,
            load,
            most: most.unwrap_or(IN_FLIGHT).min(IN_FLIGHT),
            refusals: 0,
            busy: account.demanded_nanos(load.demanded),
            backlog: 0.0,
            next_poll: account.pace.time_until_next_poll(at),
        }
    }

    /// Returns the next prefetch of a round to try, or `None` when the round is over. The outcome
    /// goes to [`tried`](Self::tried). `slot_len` returns the length of a piece's slot, and `is_elsewhere`
    /// true for a piece that needs none.
    pub(crate) fn next<T>(
        &mut self,
        round: &mut PrefetchRound,
        account: &Account,
        cache: &PredictiveCache<T>,
        is_elsewhere: impl Fn(PieceId) -> bool,
        mut slot_len: impl FnMut(PieceId) -> Option<usize>,
    ) -> Option<Prefetch> {
        loop {
            let stage = round.stage;
            match stage {
                RoundStage::Queue => {
                    let next = self.queue.front().filter(|_| round.load.prefetches < round.most);
                    let Some(&ExpectedPiece { id, probability, priority }) = next else {
                        round.begin_offers(self.sweeping || !account.governor.on(), account);
                        continue;
                    };
                    let Some(bytes) = slot_len(id).filter(|_| !is_elsewhere(id)) else {
                        self.queue.pop_front();
                        continue;
                    };
                    let need = Need::Forecast(probability);
                    // A sweep uses all queued pieces; a run ahead only guesses.
                    let (origin, price) = match self.sweeping {
                        true => (ReadOrigin::Sweep, Price::Any),
                        false if probability >= CERTAIN => (ReadOrigin::Forecast, Price::Any),
                        false => {
                            let layer = id.layer().unwrap_or(0) as usize;
                            let lead = account.pace.time_until_router(layer, round.at, round.busy);
                            (
                                ReadOrigin::Forecast,
                                Price::Offer(account.offer(bytes, probability, lead)),
                            )
                        }
                    };
                    return Some(Prefetch { id, bytes, need, priority, origin, price });
                }
                RoundStage::Offers { layer, place, until } => {
                    let Some(offers) = self.offers.get(layer) else {
                        round.stage = RoundStage::Fill;
                        continue;
                    };
                    let Some(&(expert, probability)) = offers.get(place) else {
                        round.stage =
                            RoundStage::Offers { layer: layer + 1, place: 0, until: None };
                        continue;
                    };
                    let until = match until {
                        Some(until) => until,
                        None => account.pace.time_until_router(layer, round.at, round.busy),
                    };
                    round.stage =
                        RoundStage::Offers { layer, place: place + 1, until: Some(until) };
                    let certain = probability >= CERTAIN;
                    let full = round.load.prefetches >= IN_FLIGHT || round.refusals >= REFUSALS;
                    if full || round.busy + round.backlog > round.next_poll && !certain {
                        round.stage = RoundStage::Fill;
                        continue;
                    }
                    let id = PieceId::expert(layer as u32, expert);
                    if cache.contains(id) || is_elsewhere(id) {
                        continue;
                    }
                    let Some(bytes) = slot_len(id) else { continue };
                    let offer = account.offer(bytes, probability, until - round.backlog);
                    if !certain && !offer.as_ref().is_some_and(ReadOffer::is_profitable) {
                        continue;
                    }
                    let need = Need::Forecast(probability);
                    let priority = Priority::Speculative;
                    let price = if certain { Price::Any } else { Price::Offer(offer) };
                    let origin = ReadOrigin::Forecast;
                    return Some(Prefetch { id, bytes, need, priority, origin, price });
                }
                RoundStage::Fill => {
                    round.stage = RoundStage::Over;
                    let idle = round.load.reads == 0 && !self.sweeping;
                    if !idle || !self.enabled || !account.governor.on() {
                        continue;
                    }
                    let Some(id) = self.fill.next(|id| cache.contains(id) || is_elsewhere(id))
                    else {
                        continue;
                    };
                    let Some(bytes) = slot_len(id) else {
                        self.fill = WarmFill::Off;
                        continue;
                    };
                    let need = Need::Forecast(0.0);
                    let priority = Priority::Speculative;
                    let origin = ReadOrigin::WarmFill;
                    let price = Price::Free;
                    return Some(Prefetch { id, bytes, need, priority, origin, price });
                }
                RoundStage::Over => return None,
            }
        }
    }

    /// Takes the outcome of the prefetch that [`next`](Self::next) has returned.
    pub(crate) fn tried(
        &mut self,
        round: &mut PrefetchRound,
        account: &Account,
        prefetch: &Prefetch,
        tried: PrefetchOutcome,
    ) {
        if tried == PrefetchOutcome::Issued {
            round.load.reads += 1;
            round.load.prefetches += 1;
            round.load.prefetched += prefetch.bytes;
        }
        match (round.stage, tried) {
            (RoundStage::Queue, PrefetchOutcome::InUse | PrefetchOutcome::ExpectedSooner) => {
                round.begin_offers(self.sweeping || !account.governor.on(), account);
            }
            (RoundStage::Queue, _) => {
                self.queue.pop_front();
            }
            (RoundStage::Offers { .. }, PrefetchOutcome::Issued) => {
                round.backlog += account.prefetch_nanos(prefetch.bytes);
            }
            (RoundStage::Offers { .. }, PrefetchOutcome::InUse) => round.stage = RoundStage::Fill,
            (RoundStage::Offers { .. }, _) => round.refusals += 1,
            (RoundStage::Fill | RoundStage::Over, PrefetchOutcome::Issued) => {}
            (RoundStage::Fill | RoundStage::Over, _) => self.fill = WarmFill::Off,
        }
    }
}

impl PrefetchRound {
    /// Moves on to the forecasts, or past them if `skip`.
    fn begin_offers(&mut self, skip: bool, account: &Account) {
        self.backlog = account.prefetch_nanos(self.load.prefetched);
        self.stage = match skip {
            true => RoundStage::Fill,
            false => RoundStage::Offers { layer: 0, place: 0, until: None },
        };
    }
}

/// Probability that at least one of `tokens` tokens uses a given expert, if all experts are equally
/// likely. 0 for a single token, from which nothing follows.
fn usage(layer: Option<(usize, usize)>, tokens: usize) -> f32 {
    if tokens <= 1 {
        return 0.0;
    }
    let Some((experts, top_k)) = layer else { return 0.0 };
    1.0 - (1.0 - top_k as f32 / experts as f32).powi(tokens as i32)
}
