//! The estimated reads of a plan, labelled as an estimate wherever they are shown.

use sws_model::ModelSpec;

use super::pieces::Pieces;
use super::{ArenaSplit, Planner, SlotClass};

/// Bytes per generated token, on average over a long text.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PerToken {
    /// Streamed infrastructure.
    pub infrastructure: u64,
    /// Embedding rows.
    pub embedding: u64,
    /// Experts, from slots or from disk.
    pub experts: u64,
    /// Expected hit rate of the experts.
    pub hit_rate: f64,
    /// All weights of the computation, from memory or from disk.
    pub active: u64,
}

impl PerToken {
    /// Bytes read from disk.
    pub fn read(&self) -> u64 {
        let misses = (self.experts as f64 * (1.0 - self.hit_rate)).ceil() as u64;
        self.infrastructure + self.embedding + misses
    }

    /// Tokens per second from a disk and a memory of these speeds, in bytes per second, if reads and
    /// computation overlap and computation is bound by memory.
    pub fn pace(&self, disk: f64, memory: f64) -> f64 {
        let reading = self.read() as f64 / disk;
        let computing = self.active as f64 / memory;
        1.0 / reading.max(computing)
    }
}

/// Share of the experts that have a slot, and hit rate: the routes of DeepSeek-V2-Lite under the
/// default policy (docs/benchmarks/caches.md). Of the measured models it reuses experts least.
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
    pub(super) fn per_token(&self, split: &ArenaSplit, lent: &[SlotClass]) -> PerToken {
        let Pieces { cyclic, embedding, slots, .. } = &self.pieces;
        let batch = self.options.batch.max(1) as u64;
        let all = self.pieces.cyclic_bytes();
        let pinned_embedding = split.pinned.contains(&sws_store::PieceId::EMBED);
        let lookup = embedding.map_or(0, |embedding| embedding.row);
        let pinned_bytes: u64 = cyclic
            .iter()
            .filter(|piece| split.pinned.contains(&piece.id))
            .map(|piece| piece.len)
            .sum();
        let total = slots.experts();
        let mean = slots.bytes().checked_div(total as u64).unwrap_or(0);
        let used = experts_per_step(&self.spec, batch) / batch as f64;
        let experts = (used * mean as f64) as u64;
        let have: usize = split.slots.iter().chain(lent).map(|class| class.count).sum();
        PerToken {
            infrastructure: (all - pinned_bytes) / batch,
            embedding: if pinned_embedding || embedding.is_none() { 0 } else { lookup },
            experts,
            hit_rate: if total == 0 { 1.0 } else { hit_rate(have as f64 / total as f64) },
            active: all / batch + experts,
        }
    }
}

/// Expected number of experts that a step of `batch` independent sequences uses, over all layers.
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
    fn hit_rates_are_interpolated() {
        let cases =
            [(0.0, 0.0), (0.05, 0.176), (0.1, 0.352), (0.45, 0.758), (1.0, 1.0), (2.0, 1.0)];
        for (share, expected) in cases {
            assert!((hit_rate(share) - expected).abs() < 1e-9, "{share}: {}", hit_rate(share));
        }
        let rates: Vec<f64> = (0..=100).map(|n| hit_rate(f64::from(n) / 100.0)).collect();
        assert!(rates.is_sorted());
    }
}
