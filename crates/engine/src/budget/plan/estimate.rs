//! The estimated cost of a token, labelled as an estimate wherever it is shown.

use serde::{Deserialize, Serialize};
use sws_model::ModelSpec;

use super::pieces::Pieces;
use super::{ArenaSplit, Planner, SlotClass};

/// Work of a generated token, on average over a long text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PerToken {
    /// Bytes of streamed infrastructure.
    pub infrastructure: u64,
    /// Bytes of embedding rows.
    pub embedding: u64,
    /// Bytes of rows of the table of what tokens give to layers.
    #[serde(default)]
    pub layer_table: u64,
    /// Bytes of experts, from slots or from disk.
    pub experts: u64,
    /// Expected hit rate of the experts.
    pub hit_rate: f64,
    /// Bytes of all weights of the computation, from memory or from disk.
    pub active: u64,
    /// Experts of the computation.
    pub calls: f64,
}

/// Costs of a token besides reading its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenCosts {
    /// Time of computing, relative to the time in which memory is read.
    pub compute: f64,
    /// Seconds of an expert that is computed: handing work to threads, and its share of the layer's
    /// own steps.
    pub call: f64,
    /// Seconds of an expert that is read, besides those of its bytes.
    pub miss: f64,
}

impl TokenCosts {
    /// The costs on the machine of docs/benchmarks/plans.md, fitted to all of its points.
    pub const FITTED: TokenCosts = TokenCosts { compute: 1.3, call: 2.0e-5, miss: 2.9e-5 };
}

impl PerToken {
    /// Bytes read from disk.
    pub fn read(&self) -> u64 {
        let misses = (self.experts as f64 * (1.0 - self.hit_rate)).ceil() as u64;
        self.infrastructure + self.embedding + self.layer_table + misses
    }

    /// True if nothing is read from disk but rows of the table of layers, which are at any budget.
    pub fn is_in_memory(&self) -> bool {
        self.read() == self.layer_table
    }

    /// Seconds from a disk and a memory of these speeds, in bytes per second. Experts are read once
    /// their layer's router has chosen, so reading and computing add up.
    pub fn seconds(&self, disk: f64, memory: f64, costs: &TokenCosts) -> f64 {
        self.read() as f64 / disk
            + costs.compute * self.active as f64 / memory
            + costs.call * self.calls
            + costs.miss * self.calls * (1.0 - self.hit_rate)
    }

    /// Tokens per second, with the fitted costs.
    pub fn pace(&self, disk: f64, memory: f64) -> f64 {
        1.0 / self.seconds(disk, memory, &TokenCosts::FITTED)
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
        let Pieces { cyclic, embedding, layer_table, slots, .. } = &self.pieces;
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
            layer_table: layer_table.map_or(0, |table| table.row),
            experts,
            hit_rate: if total == 0 { 1.0 } else { hit_rate(have as f64 / total as f64) },
            active: all / batch + experts,
            calls: used,
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
    fn seconds_add_up() {
        let costs = TokenCosts { compute: 1.2, call: 0.001, miss: 0.004 };
        for (infrastructure, hit_rate, costs, seconds) in [
            // 50 ms of computing, and 0, 10, 100, 200 ms of reading.
            (0, 1.0, TokenCosts { compute: 1.0, ..TokenCosts::default() }, 0.050),
            (0, 0.9, TokenCosts { compute: 1.0, ..TokenCosts::default() }, 0.060),
            (0, 0.0, TokenCosts { compute: 1.2, ..TokenCosts::default() }, 0.160),
            (1_000_000_000, 0.0, TokenCosts { compute: 1.2, ..TokenCosts::default() }, 0.260),
            // 16 experts, of which none and half are read.
            (0, 1.0, costs, 0.060 + 0.016),
            (0, 0.5, costs, 0.060 + 0.050 + 0.016 + 0.032),
        ] {
            let token = PerToken {
                infrastructure,
                embedding: 0,
                layer_table: 0,
                experts: 1_000_000_000,
                hit_rate,
                active: 2_000_000_000,
                calls: 16.0,
            };
            let found = token.seconds(1e10, 4e10, &costs);
            assert!((found / seconds - 1.0).abs() < 1e-6, "{token:?}: {found} s, not {seconds}");
        }
    }

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
