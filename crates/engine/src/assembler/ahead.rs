//! What is expected: read before it is asked for, and kept until it is.

use std::collections::VecDeque;

use sws_draft::ReassemblyBlueprint;
use sws_store::{PieceId, Priority};

use super::DynamicAssembler;
use super::reading::Reading;
use crate::price::{Offer, SOON};
use sws_cache::policy::Policy;
use sws_cache::{Claim, Need, NoRoom};

/// A piece that is expected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    pub(super) id: PieceId,
    pub(super) probability: f32,
    pub(super) priority: Priority,
}

/// Reads that nobody has asked for yet, at a time. More would hold slots that a demand has to
/// reclaim first, and the device reads them one after another anyway.
const AHEAD: usize = 16;
/// From this probability on the experts of the next layer are read ahead of their router.
const PROBABLE: f32 = 0.9;
/// From this one on it is as good as known, and the device is kept busy with them.
const CERTAIN: f32 = 0.99;

/// How probably one of so many tokens uses an expert, if all are used alike. One token alone tells
/// nothing.
fn probability(layer: Option<(usize, usize)>, tokens: usize) -> f32 {
    let Some((experts, top_k)) = layer.filter(|_| tokens > 1) else { return 0.0 };
    1.0 - (1.0 - top_k as f32 / experts as f32).powi(tokens as i32)
}

/// Forecasts below this are not even weighed.
const IMPROBABLE: f32 = 0.02;
/// Pieces whose victims are worth more than they, until the rest of a forecast waits for another time:
/// to find a victim is a look at everything in memory.
const REJECTED: usize = 4;

impl DynamicAssembler {
    /// Follows a forecast: what is there of it is kept where that is worth more than what is kept
    /// otherwise, and what is not is read if that earns. What was said before of the same layers is
    /// forgotten; reads that have not begun are weighed anew.
    pub fn assemble_from_blueprint(&mut self, blueprint: &ReassemblyBlueprint) {
        if !self.speculating.governor.on() {
            return;
        }
        for layer in &blueprint.layers {
            let number = layer.layer_idx;
            let Some(offers) = self.speculating.offers.get_mut(number) else { continue };
            let mut offers = std::mem::take(offers);
            for (expert, _) in offers.drain(..) {
                self.cache.foresee(PieceId::expert(number as u32, expert), 0.0);
            }
            let least = self.confidence.max(IMPROBABLE);
            offers.extend(layer.selected_experts.iter().filter_map(|&expert| {
                let probability = *layer.expert_probs.get(expert as usize)?;
                (probability >= least).then_some((expert, probability))
            }));
            for &(expert, probability) in &offers {
                self.cache.foresee(PieceId::expert(number as u32, expert), probability);
            }
            self.speculating.offers[number] = offers;
        }
        self.withdraw_offers();
        self.read_ahead();
    }

    /// Gives up all speculative reads that have not begun.
    pub(super) fn withdraw_offers(&mut self) {
        let idle = |(_, r): &(&PieceId, &Reading)| {
            r.unasked() && !r.filling && !self.store.begun(r.ticket)
        };
        let mut idle: Vec<PieceId> = self.reading.iter().filter(idle).map(|(id, _)| *id).collect();
        // What layers computed ahead have chosen is weighed once: it is more than a draft can tell.
        idle.retain(|&id| !self.inexact.has_foreseen(id));
        idle.sort_unstable();
        for id in idle {
            self.give_up(id);
        }
    }

    /// Nothing is expected any more.
    pub(super) fn forget_offers(&mut self) {
        self.speculating.offers.iter_mut().for_each(Vec::clear);
    }

    /// Begins the speculative reads that earn, the soonest needed first: those that the device will
    /// begin before this is asked again.
    fn speculate(&mut self) {
        if self.sweeping || !self.speculating.governor.on() {
            return;
        }
        let at = self.moment();
        let mut under_way = 0;
        let (mut demanded, mut speculative) = (0, 0);
        for reading in self.reading.values() {
            *(if reading.demanded { &mut demanded } else { &mut speculative }) += reading.bytes;
            under_way += usize::from(!reading.demanded);
        }
        let account = &self.speculating;
        let known = |nanos: Option<f64>, bytes: usize| nanos.filter(|_| bytes > 0).unwrap_or(0.0);
        let busy = known(account.demanded(demanded), demanded);
        let mut backlog = known(account.speculative(speculative), speculative);
        let next_look = account.pace.next_look(at);
        let mut rejected = 0;
        for layer in 0..account.offers.len() {
            if self.speculating.offers[layer].is_empty() {
                continue;
            }
            let until = self.speculating.pace.until(layer, at, busy);
            for place in 0..self.speculating.offers[layer].len() {
                let (expert, probability) = self.speculating.offers[layer][place];
                let certain = probability >= CERTAIN;
                if under_way >= AHEAD
                    || rejected >= REJECTED
                    || busy + backlog > next_look && !certain
                {
                    return;
                }
                let id = PieceId::expert(layer as u32, expert);
                if self.cache.contains(id) {
                    continue;
                }
                let Ok(layout) = self.layout(id) else { continue };
                let bytes = layout.slot_len();
                let offer = self.speculating.offer(bytes, probability, until - backlog);
                if !certain && !offer.is_some_and(|offer| offer.earns()) {
                    continue;
                }
                let worth = |policy: &mut dyn Policy, old: PieceId| {
                    let victim = f64::from(policy.within(old, SOON));
                    certain || offer.is_some_and(|offer| Offer { victim, ..offer }.earns())
                };
                let need = Need::Forecast(probability);
                match self.cache.begin_if(self.layer, id, bytes, need, worth) {
                    Ok(claim) => {
                        let Claim { payload, evicted, .. } = claim;
                        self.note_begun(id, true, evicted);
                        // What fails here is read when it is asked for.
                        let _ = self.fetch(id, layout, payload, Priority::Speculative, true);
                        under_way += 1;
                        backlog += self.speculating.speculative(bytes).unwrap_or(0.0);
                    }
                    Err(NoRoom::InUse { .. }) => return,
                    Err(_) => rejected += 1,
                }
            }
        }
    }

    /// In a long prompt all that is there of later layers will be used, once, in their order: it
    /// stays, and what has been computed goes.
    pub(super) fn keep_for_sweep(&mut self, tokens: usize) {
        let layer = self.layer as usize;
        if self.layers[..layer].iter().any(Option::is_some) {
            return;
        }
        self.sweeping = probability(self.layers[layer], tokens) >= PROBABLE;
        if !self.sweeping {
            return;
        }
        for (l, experts) in (0..).zip(self.layers.clone()).skip(layer + 1) {
            for expert in 0..experts.map_or(0, |(experts, _)| experts as u32) {
                self.promise(PieceId::expert(l, expert));
            }
        }
    }

    /// The next layer of a long prompt uses nearly all of its experts.
    pub(super) fn expect_next_layer(&mut self, tokens: usize) {
        let after = self.layer as usize + 1;
        let next = (after..self.layers.len()).find(|&l| self.layers[l].is_some());
        let Some((layer, of)) = next.map(|l| (l as u32, self.layers[l])) else { return };
        let probability = probability(of, tokens);
        if !self.forecast.is_empty() || probability < PROBABLE {
            return;
        }
        let experts = of.map_or(0, |(experts, _)| experts);
        let priority = if probability >= CERTAIN { Priority::Ahead } else { Priority::Speculative };
        let all = (0..experts as u32).map(|expert| PieceId::expert(layer, expert));
        let all = self.in_order(all).into_iter();
        self.expect(all.map(|id| Expected { id, probability, priority }).collect());
    }

    fn expect(&mut self, forecast: VecDeque<Expected>) {
        for expected in &forecast {
            self.promise(expected.id);
        }
        self.forecast = forecast;
        self.read_ahead();
    }

    /// Begins to read what is expected next, once everything that is needed has its slot.
    pub(super) fn read_ahead(&mut self) {
        if !self.wanted.is_empty() {
            return;
        }
        let mut under_way = self.reading.values().filter(|reading| !reading.demanded).count();
        let most = self.busy_with().unwrap_or(AHEAD).min(AHEAD);
        while under_way < most
            && let Some(&Expected { id, probability, priority }) = self.forecast.front()
        {
            if let Ok(layout) = self.layout(id) {
                let bytes = layout.slot_len();
                let need = Need::Forecast(probability);
                // In the sweep of a prompt all will be used; else it is what a layer computed ahead chose.
                let speculative = !self.sweeping;
                let offer = self.offer(id, bytes, probability);
                let worth = |policy: &mut dyn Policy, old: PieceId| {
                    let victim = f64::from(policy.within(old, SOON));
                    !speculative || offer.is_some_and(|offer| Offer { victim, ..offer }.earns())
                };
                match self.cache.begin_if(self.layer, id, bytes, need, worth) {
                    Ok(claim) => {
                        // What fails here is read when it is asked for.
                        self.note_begun(id, speculative, claim.evicted);
                        let _ = self.fetch(id, layout, claim.payload, priority, speculative);
                        under_way += 1;
                    }
                    Err(NoRoom::InUse { .. } | NoRoom::ExpectedSooner { .. }) => break,
                    Err(_) => {}
                }
            }
            self.forecast.pop_front();
        }
        self.speculate();
        self.fill();
    }

    /// What reading a piece is weighed by that a layer computed ahead has chosen with that probability. What
    /// is read before it is needed before it, and is waited for if it is late: it takes no time from it.
    fn offer(&self, id: PieceId, bytes: usize, probability: f32) -> Option<Offer> {
        let account = &self.speculating;
        let demanded = self.reading.values().filter(|reading| reading.demanded);
        let busy = account.demanded(demanded.map(|reading| reading.bytes).sum()).unwrap_or(0.0);
        let layer = id.layer().map_or(0, |layer| layer as usize);
        account.offer(bytes, probability, account.pace.until(layer, self.moment(), busy))
    }

    /// Keeps a piece that is there until its layer has chosen.
    pub(super) fn promise(&mut self, id: PieceId) {
        if !self.promised.contains(&id) && self.cache.pin(id) {
            self.promised.insert(id);
        }
    }

    /// Keeps nothing any more.
    pub(super) fn withdraw_promises(&mut self) {
        for id in std::mem::take(&mut self.promised) {
            self.cache.unpin(id);
        }
    }

    /// A router has chosen: what was expected of its layer and before is over. What it needs and is
    /// being read is now waited for; what it does not need is given up.
    pub(super) fn settle_forecast(&mut self, distinct: &[u32]) {
        let layer = self.layer;
        while let Some(&id) = self.promised.first()
            && id.layer() <= Some(layer)
        {
            self.promised.pop_first();
            self.cache.unpin(id);
        }
        self.forecast.retain(|expected| expected.id.layer() > Some(layer));
        let over = (layer as usize + 1).min(self.speculating.offers.len());
        self.speculating.offers[..over].iter_mut().for_each(Vec::clear);
        let here = |id: &&PieceId| id.layer() <= Some(layer);
        let over: Vec<PieceId> = self.reading.keys().filter(here).copied().collect();
        for id in self.in_order(over) {
            let needed = distinct.iter().any(|&expert| PieceId::expert(layer, expert) == id);
            if !needed {
                let filling = self.reading.get(&id).is_some_and(|reading| reading.filling);
                if !filling {
                    self.give_up(id);
                }
            } else if let Some(reading) = self.reading.get_mut(&id)
                && !reading.demanded
            {
                if self.mechanisms.promotion {
                    self.store.promote(reading.ticket);
                }
                reading.demanded = true;
            }
        }
    }
}
