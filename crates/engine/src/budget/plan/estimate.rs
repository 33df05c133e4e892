//! The estimated cost of a token, labelled as an estimate wherever it is shown.

use serde::{Deserialize, Serialize};
use sws_model::ModelSpec;

use super::pieces::PieceSizes;
use super::{ArenaSplit, Planner};

/// Work per generated token, averaged over a long text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PerToken {
    /// Bytes of streamed infrastructure.
    pub infrastructure: u64,
    /// Bytes of embedding rows.
    pub embedding: u64,
    /// Bytes of the rows that a token reads from the tables of layers.
    pub table_rows: u64,
    /// Bytes of experts, from slots or from disk.
    pub experts: u64,
    /// Expected hit rate of the experts.
    pub hit_rate: f64,
    /// Bytes of all weights used by the computation, from memory or from disk.
    pub active: u64,
    /// Number of experts computed.
    pub calls: f64,
}

/// Costs of a token besides reading its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenCosts {
    /// Computing time in a run, relative to the time measured without weights.
    pub slowdown: f64,
    /// Seconds per computed expert besides its arithmetic: finding it in its slot, counting its
    /// use, and its share of the layer's bookkeeping.
    pub call: f64,
    /// Seconds per expert read, besides the transfer of its bytes.
    pub miss: f64,
    /// Seconds per embedding row read, besides the transfer of its bytes.
    pub lookup: f64,
    /// Computing time relative to the time of reading the weights from memory, where computing was
    /// not measured.
    pub compute: f64,
    /// Seconds of handing an expert to threads, where computing was not measured.
    pub handing: f64,
}

impl TokenCosts {
    /// The costs on the machine of `benchmarks/results/plans.json`, fitted to all of its points.
    pub const FITTED: TokenCosts = TokenCosts {
        slowdown: 1.25,
        call: 2.06e-6,
        miss: 4.21e-5,
        lookup: 7.00e-5,
        compute: 1.05,
        handing: 7.38e-6,
    };
}

impl PerToken {
    /// Bytes read from disk.
    pub fn read(&self) -> u64 {
        let misses = (self.experts as f64 * (1.0 - self.hit_rate)).ceil() as u64;
        self.infrastructure + self.embedding + self.table_rows + misses
    }

    /// True if a token reads nothing from disk except rows of the tables of layers, which are read
    /// at any budget.
    pub fn is_in_memory(&self) -> bool {
        self.read() == self.table_rows
    }

    /// Seconds of computing, where they were not measured, from the speed of memory in bytes per
    /// second.
    pub fn computing(&self, memory: f64, costs: &TokenCosts) -> f64 {
        costs.compute * self.active as f64 / memory + costs.handing * self.calls
    }

    /// Seconds of a token, from the speed of the disk in bytes per second and the seconds of computing.
    /// Experts are read once their layer's router has chosen, so reading and computing add up.
    pub fn seconds(&self, disk: f64, computing: f64, costs: &TokenCosts) -> f64 {
        let lookups = f64::from(u8::from(self.embedding > 0) + u8::from(self.table_rows > 0));
        self.read() as f64 / disk
            + costs.slowdown * computing
            + costs.call * self.calls
            + costs.miss * self.calls * (1.0 - self.hit_rate)
            + costs.lookup * lookups
    }

    /// Tokens per second from a disk and a memory of these speeds, with the fitted costs.
    pub fn pace(&self, disk: f64, memory: f64) -> f64 {
        let costs = TokenCosts::FITTED;
        1.0 / self.seconds(disk, self.computing(memory, &costs), &costs)
    }
}

impl Planner {
    /// Work per token with `have` slots in all, including lent ones.
    pub(super) fn per_token(&self, split: &ArenaSplit, have: usize) -> PerToken {
        let PieceSizes { cyclic, embedding, slots, .. } = &self.pieces;
        let batch = self.options.batch.max(1) as u64;
        let all: u64 = cyclic.iter().map(|piece| piece.per_pass(&self.spec)).sum();
        let pinned_embedding = split.pinned.contains(&sws_format::PieceId::EMBED);
        let lookup = embedding.unwrap_or_default().row;
        let total = slots.experts();
        let mean = slots.bytes().checked_div(total as u64).unwrap_or(0);
        let used = experts_per_step(&self.spec, batch) / batch as f64;
        let experts = (used * mean as f64) as u64;
        let shared = self.pieces.shared.checked_div(total as u64).unwrap_or(0);
        PerToken {
            infrastructure: self.streamed_per_pass(split) / batch,
            embedding: if pinned_embedding || embedding.is_none() { 0 } else { lookup },
            table_rows: self.table_rows(),
            experts,
            hit_rate: if total == 0 { 1.0 } else { self.hits.rate(have as f64 / total as f64) },
            active: all / batch + experts + (used * shared as f64) as u64,
            calls: used,
        }
    }
}

/// Expected number of experts that a step of `batch` independent sequences uses, over all layers.
fn experts_per_step(spec: &ModelSpec, batch: u64) -> f64 {
    let layers = spec.routings().map(|moe| {
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
        let costs = TokenCosts {
            slowdown: 1.5,
            call: 0.0006,
            miss: 0.004,
            lookup: 0.002,
            compute: 0.8,
            handing: 0.0004,
        };
        let plain = TokenCosts { slowdown: 1.0, compute: 1.0, ..TokenCosts::default() };
        for (infrastructure, embedding, hit_rate, costs, seconds) in [
            // 50 ms of computing, and 0, 10, 100, 200 ms of reading.
            (0, 0, 1.0, plain, 0.050),
            (0, 0, 0.9, plain, 0.060),
            (0, 0, 0.0, TokenCosts { compute: 1.2, ..plain }, 0.160),
            (1_000_000_000, 0, 0.0, TokenCosts { compute: 1.2, ..plain }, 0.260),
            // 16 experts, of which none and half are read; a row of 10 MB.
            (0, 0, 1.0, costs, 1.5 * 0.0464 + 0.0096),
            (0, 0, 0.5, costs, 1.5 * 0.0464 + 0.0096 + 0.050 + 0.032),
            (0, 10_000_000, 1.0, costs, 1.5 * 0.0464 + 0.0096 + 0.001 + 0.002),
        ] {
            let token = PerToken {
                infrastructure,
                embedding,
                table_rows: 0,
                experts: 1_000_000_000,
                hit_rate,
                active: 2_000_000_000,
                calls: 16.0,
            };
            let found = token.seconds(1e10, token.computing(4e10, &costs), &costs);
            assert!((found / seconds - 1.0).abs() < 1e-6, "{token:?}: {found} s, not {seconds}");
        }
    }
}
