//! The expected places of experts beside a tier outside memory, labelled as an estimate wherever they are shown.

use serde::Serialize;

use super::distribute::usual_slots;
use super::{PerToken, Plan, Planner};

/// Expected places of the experts that a token uses, with a tier outside memory that is always used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TierHits {
    /// Share that is computed on the tier.
    pub on_tier: f64,
    /// Share that is in memory when it is chosen.
    pub in_memory: f64,
    /// Bytes that a token reads.
    pub read_bytes_per_token: u64,
}

impl Planner {
    /// Expected places with a tier of so many experts beside the slots of a plan. The tier is hit like a cache of its
    /// size, and both together like one of their sum. `None` without slots, from which experts move to a tier.
    pub fn tier_hits(&self, plan: &Plan, experts: u64) -> Option<TierHits> {
        let total = self.pieces.slots.experts();
        if plan.slots.is_empty() || total == 0 {
            return None;
        }
        let Plan { slots, structured_lent, lent, context_lent, context, .. } = plan;
        let in_memory = usual_slots([slots, structured_lent, lent], context_lent, *context);
        let rate = |experts: f64| self.hits.rate(experts / total as f64);
        let on_tier = rate(experts as f64);
        let both = rate(experts as f64 + in_memory as f64);
        let per_token = PerToken { hit_rate: both, ..plan.per_token };
        let in_memory = both - on_tier;
        Some(TierHits { on_tier, in_memory, read_bytes_per_token: per_token.read() })
    }
}
