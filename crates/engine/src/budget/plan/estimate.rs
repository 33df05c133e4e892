//! What a plan is expected to read. An estimate, and called one wherever it is shown.

use sws_model::ModelSpec;

use super::pieces::Pieces;
use super::{Cut, Planner, SlotClass};

/// Bytes that generating one token takes, on average over a long text.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PerToken {
    /// Infrastructure that streams.
    pub infrastructure: u64,
    /// Embedding rows.
    pub embedding: u64,
    /// Experts that are computed with.
    pub experts: u64,
    /// The share of these that is expected in a slot.
    pub hit_rate: f64,
    /// All weights that are computed with, from wherever they come.
    pub active: u64,
}

impl PerToken {
    /// What is read.
    pub fn read(&self) -> u64 {
        let misses = (self.experts as f64 * (1.0 - self.hit_rate)).ceil() as u64;
        self.infrastructure + self.embedding + misses
    }
}

/// Share of the experts that have a slot, and share of the uses that found them there: the routes
/// of DeepSeek-V2-Lite under the default policy (docs/benchmarks.md). Of the models measured it repeats
/// itself least.
const HITS: [(f64, f64); 9] = [
    (0.0, 0.0),
    (0.1, 0.352),
    (0.2, 0.517),
    (0.3, 0.632),
    (0.4, 0.721),
    (0.5, 0.795),
    (0.6, 0.856),
    (0.75, 0.929),
    (1.0, 1.0),
];

/// The expected hit rate with slots for this share of the experts.
fn hit_rate(share: f64) -> f64 {
    let pair = HITS.windows(2).find(|pair| share < pair[1].0);
    pair.map_or(1.0, |pair| {
        let [(x, low), (end, high)] = [pair[0], pair[1]];
        low + (high - low) * (share - x) / (end - x)
    })
}

impl Planner {
    pub(super) fn per_token(&self, cut: &Cut, lent: &[SlotClass]) -> PerToken {
        let Pieces { cyclic, embedding, slots, .. } = &self.pieces;
        let batch = self.options.batch.max(1) as u64;
        let all = self.pieces.cyclic_bytes();
        let pinned_embedding = cut.pinned.contains(&sws_store::PieceId::EMBED);
        let lookup = embedding.map_or(0, |embedding| embedding.row);
        let kept: u64 = cyclic
            .iter()
            .filter(|piece| cut.pinned.contains(&piece.id))
            .map(|piece| piece.len)
            .sum();
        let total = slots.experts();
        let mean = slots.bytes().checked_div(total as u64).unwrap_or(0);
        let used = experts_per_step(&self.spec, batch) / batch as f64;
        let experts = (used * mean as f64) as u64;
        let have: usize = cut.slots.iter().chain(lent).map(|class| class.count).sum();
        PerToken {
            infrastructure: (all - kept) / batch,
            embedding: if pinned_embedding || embedding.is_none() { 0 } else { lookup },
            experts,
            hit_rate: if total == 0 { 1.0 } else { hit_rate(have as f64 / total as f64) },
            active: all / batch + experts,
        }
    }
}

/// Experts that a step of so many sequences uses, over all layers, if each chooses for itself.
fn experts_per_step(spec: &ModelSpec, batch: u64) -> f64 {
    let layers = spec.moes().map(|moe| {
        let experts = moe.experts as f64;
        let unused = 1.0 - moe.top_k as f64 / experts;
        experts * (1.0 - unused.powf(batch as f64))
    });
    layers.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hit_rates_lie_between_the_measured_ones() {
        let cases =
            [(0.0, 0.0), (0.05, 0.176), (0.1, 0.352), (0.45, 0.758), (1.0, 1.0), (2.0, 1.0)];
        for (share, expected) in cases {
            assert!((hit_rate(share) - expected).abs() < 1e-9, "{share}: {}", hit_rate(share));
        }
        let rates: Vec<f64> = (0..=100).map(|n| hit_rate(f64::from(n) / 100.0)).collect();
        assert!(rates.is_sorted());
    }
}
