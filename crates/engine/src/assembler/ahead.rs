//! What is expected: read before it is asked for, and kept until it is.

use std::collections::VecDeque;

use sws_draft::ReassemblyBlueprint;
use sws_store::{PieceId, Priority};

use super::DynamicAssembler;
use crate::cache::{Need, NoRoom};

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

impl DynamicAssembler {
    /// Follows a forecast: keeps what is there of it, and reads the rest as far as there is room.
    pub fn assemble_from_blueprint(&mut self, blueprint: &ReassemblyBlueprint) {
        self.withdraw_promises();
        let pieces = blueprint.high_priority_pieces.iter();
        let expected = pieces.map(|&id| Expected {
            id,
            probability: blueprint.probability(id),
            priority: Priority::Speculative,
        });
        self.expect(expected.collect());
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
            let key = self.key(id);
            if let Ok(layout) = self.layout(id) {
                let need = Need::Forecast(probability);
                match self.cache.begin(self.layer, key, layout.slot_len(), need) {
                    Ok(claim) => {
                        // What fails here is read when it is asked for.
                        let _ = self.fetch(id, layout, claim.payload, priority);
                        under_way += 1;
                    }
                    Err(NoRoom::InUse { .. } | NoRoom::ExpectedSooner { .. }) => return,
                    Err(_) => {}
                }
            }
            self.forecast.pop_front();
        }
    }

    /// Keeps a piece that is there until its layer has chosen.
    pub(super) fn promise(&mut self, id: PieceId) {
        let key = self.key(id);
        if !self.promised.contains(&id) && self.cache.pin(key) {
            self.promised.insert(id);
        }
    }

    /// Keeps nothing any more.
    pub(super) fn withdraw_promises(&mut self) {
        for id in std::mem::take(&mut self.promised) {
            let key = self.key(id);
            self.cache.unpin(key);
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
            let key = self.key(id);
            self.cache.unpin(key);
        }
        self.forecast.retain(|expected| expected.id.layer() > Some(layer));
        let here = |id: &&PieceId| id.layer() <= Some(layer);
        let over: Vec<PieceId> = self.reading.keys().filter(here).copied().collect();
        for id in self.in_order(over) {
            let needed = distinct.iter().any(|&expert| PieceId::expert(layer, expert) == id);
            if !needed {
                self.give_up(id);
            } else if let Some(reading) = self.reading.get_mut(&id)
                && !reading.demanded
            {
                self.store.promote(reading.ticket);
                reading.demanded = true;
            }
        }
    }
}
