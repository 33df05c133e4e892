//! What earlier runs have learned fills slots that are free while the disk has nothing else to do.

use std::collections::VecDeque;

use sws_store::{PieceId, Priority};

use super::DynamicAssembler;
use sws_cache::policy::Policy;
use sws_cache::{Claim, Need};

/// Tokens within which a piece has to be probable.
const SOON: usize = 64;

/// What there is to fill free slots with.
#[derive(Debug, Default)]
pub(super) enum Filling {
    /// Nothing: nobody has learned anything, or no slot is free any more.
    #[default]
    No,
    /// What has been learned is there, and the first prompt is not through.
    After,
    /// These, the most probable first.
    With(VecDeque<PieceId>),
}

impl DynamicAssembler {
    /// A pass has gone through: what it has used is there, and what else is probable can be read.
    pub(super) fn filling_begins(&mut self) {
        if !matches!(self.speculating.filling, Filling::After) {
            return;
        }
        let mut probable = Vec::new();
        for (layer, experts) in (0..).zip(&self.layers) {
            for expert in 0..experts.map_or(0, |(experts, _)| experts as u32) {
                let id = PieceId::expert(layer, expert);
                if !self.cache.contains(id) {
                    probable.push((self.cache.policy_mut().within(id, SOON), id));
                }
            }
        }
        probable.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let probable = probable.into_iter().map(|(_, id)| id).collect();
        self.speculating.filling = Filling::With(probable);
    }

    /// Reads one more if nothing else is being read, into a slot that is free.
    pub(super) fn fill(&mut self) {
        let Filling::With(probable) = &self.speculating.filling else { return };
        let busy = !self.reading.is_empty() || !self.wanted.is_empty() || self.sweeping;
        if busy || !self.ahead || !self.speculating.governor.on() {
            return;
        }
        let there = |id: &&PieceId| self.cache.contains(**id);
        let passed = probable.iter().take_while(there).count();
        let next = probable.get(passed).copied();
        if let Filling::With(probable) = &mut self.speculating.filling {
            probable.drain(..passed);
        }
        let Some(id) = next else { return self.filled() };
        let Ok(layout) = self.layout(id) else { return self.filled() };
        let bytes = layout.slot_len();
        let none_goes = |_: &mut dyn Policy, _: PieceId| false;
        match self.cache.begin_if(self.layer, id, bytes, Need::Forecast(0.0), none_goes) {
            Ok(Claim { payload, .. }) => {
                self.note_begun(id, true, None);
                // What fails here is read when it is asked for.
                let _ = self.fetch(id, layout, payload, Priority::Speculative, true);
                if let Some(reading) = self.reading.get_mut(&id) {
                    reading.filling = true;
                }
            }
            Err(_) => self.filled(),
        }
    }

    fn filled(&mut self) {
        self.speculating.filling = Filling::No;
    }
}
