//! The choice of a router: compared with the experts in memory, and reported to policy, draft and account.

use sws_cache::Lookup;
use sws_cache::policy::RouterChoice;
use sws_format::{Pass, PieceId};
use sws_model::Routed;

use super::DynamicAssembler;
use crate::error::StreamError;
use crate::experts::verifier::{Presence, RealPath, Verdict, detect_miss};
use crate::reads::expert_ids;
use crate::speculation::ChosenExperts;
use crate::watch::HitPlace;

impl DynamicAssembler {
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

    /// Makes the next pass a pending pass, whose tokens may turn out wrong. The policy and the
    /// draft see its choices when it is [accepted](Self::accept).
    pub fn expect_pending(&mut self) {
        self.pending.expect();
    }

    /// Ends a pending pass. Its first `tokens` tokens count as if each had had a pass of its own.
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

    /// State in memory of an expert of the running layer.
    pub(super) fn presence(&self, expert: u32) -> Presence {
        let id = PieceId::expert(self.demand.layer(), expert);
        match self.cache.get(id) {
            Some(_) => Presence::Exact,
            None if self.is_on_tier(id) => Presence::Exact,
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
        if let Some(tier) = &mut self.tier {
            tier.layer_begins(tokens);
        }
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
            let found = |expert| {
                let id = PieceId::expert(number, expert);
                match self.is_on_tier(id) {
                    true => Some(HitPlace::Tier),
                    false => self.cache.get(id).map(|_| HitPlace::Memory),
                }
            };
            watch.routed(layer, &routed.distinct, found);
        }
        let cache = &mut self.cache;
        let stand_ins = &self.run_ahead.stand_ins;
        let tier = self.tier.as_ref();
        let real = RealPath { layer, experts: &routed.distinct };
        let verdict = self.verifier.check(real, |expert| {
            let id = PieceId::expert(number, expert);
            if matches!(tier, Some(tier) if tier.holds(id)) {
                return Presence::Exact;
            }
            match cache.lookup(id) {
                Lookup::Ready => Presence::Exact,
                Lookup::Loading => Presence::Coming,
                Lookup::Absent if stand_ins.contains(id) => Presence::Inexact,
                Lookup::Absent => Presence::Absent,
            }
        });
        if let Some(tier) = &mut self.tier {
            let missing = match &verdict {
                Verdict::Accept => &[][..],
                Verdict::Reject { missing, .. } => missing,
            };
            tier.placement.chosen(number, &routed.distinct, missing);
        }
        self.run_ahead.on_routed(number, &routed.distinct, verdict.misses());
        self.settle_forecast(&routed.distinct);
        if self.prefetcher.enabled && self.prefetcher.begins_sweep(number, tokens) {
            self.pin_later_layers(layer);
        }
        if let Verdict::Reject { mut missing, mut inexact } = verdict {
            missing.extend(self.verifier.catch(&mut inexact));
            self.run_ahead.to_judge = inexact;
            self.demand.queue(self.reads.in_disk_order(expert_ids(number, missing)));
            self.fallback_reassemble()?;
        }
        if self.pending.is_idle() {
            // Missing experts are read meanwhile.
            self.cache.policy_mut().on_layer_demanded(number);
        }
        if self.prefetcher.enabled {
            if self.pending.is_idle() && self.account.governor.may_train_draft() {
                let started = self.now();
                self.forecaster.learn(layer, &routed.choices, routed.top_k);
                self.draft_ran(started);
            }
            self.expect_next_layer(tokens);
        }
        Ok(())
    }

    /// Passes a router's choice to the account.
    fn account_choice(&mut self, layer: usize, distinct: &[u32]) {
        let bytes = match distinct.first() {
            Some(&expert) => {
                let first = PieceId::expert(layer as u32, expert);
                self.reads.slot_len(first).unwrap_or(0)
            }
            None => 0,
        };
        let sweeping = self.is_unbooked();
        let begun = self.reads.speculative_begun();
        let chosen = ChosenExperts { layer, distinct, bytes, sweeping, begun: &begun };
        let at = self.moment();
        self.account.chosen(at, chosen, &mut self.cache);
    }

    /// Checks the needed pieces again, and demands those that are neither resident nor in flight:
    /// their reads have failed or were given up.
    pub(super) fn verify_again(&mut self) {
        for place in 0..self.demand.needed().len() {
            let expert = self.demand.needed()[place];
            if detect_miss(self.presence(expert)).is_some() {
                self.demand.queue_again(PieceId::expert(self.demand.layer(), expert));
            }
        }
    }
}
