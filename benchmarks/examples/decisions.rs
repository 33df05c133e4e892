//! Cost of a cache's decisions, without weights.
//!
//! ```text
//! cargo run --release -p sws-benchmarks --example decisions
//! ```

use std::error::Error;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use sws_cache::correction::{Correction, Corrections};
use sws_cache::history::HistoryShape;
use sws_cache::policy::{ExpertLayers, PolicyKind, RouterChoice};
use sws_cache::{Lookup, Need, PredictiveCache};
use sws_format::{Clock, Pass, PieceId};

const TOKENS: usize = 600;
const TOP_K: usize = 8;

/// Durations of an operation.
#[derive(Default)]
struct Spent(Vec<Duration>);

impl Spent {
    fn time<T>(&mut self, clock: &Clock, what: impl FnOnce() -> T) -> T {
        let started = clock.now();
        let result = what();
        self.0.push(clock.now() - started);
        result
    }

    /// The median and the 90th percentile. A mean would include other work of the machine.
    fn percentiles(&self) -> String {
        let mut all = self.0.clone();
        all.sort_unstable();
        let at = |tenths: usize| all.get(all.len() * tenths / 10).map_or(0, Duration::as_nanos);
        format!("{} {}", at(5), at(9))
    }

    /// The mean, for what is done once in several steps.
    fn mean(&self) -> u128 {
        self.0.iter().sum::<Duration>().as_nanos() / self.0.len().max(1) as u128
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout();
    writeln!(
        out,
        "{:>9} {:>6} {:>9} {:>16} {:>16} {:>16} {:>9}",
        "experts", "slots", "policy", "ns/layer", "ns/eviction", "ns/learning", "mean"
    )?;
    for (count, experts, slots) in
        [(48, 128, 768), (48, 128, 3072), (58, 256, 768), (58, 256, 6144)]
    {
        let shape = format!("{count}x{experts}");
        let hidden = if experts > 128 { 7168 } else { 2048 };
        let correction = correction(count as usize, experts as usize, hidden);
        let policies = PolicyKind::ALL.map(|kind| (kind.name(), kind, Corrections::None));
        let corrected = [
            ("corrected", PolicyKind::Expected, Corrections::Fitted(Arc::new(correction))),
            ("learning", PolicyKind::Expected, Corrections::Learned { hidden }),
        ];
        for (name, policy, corrections) in policies.into_iter().chain(corrected) {
            let Times { routed, begun, learned } = run(count, experts, slots, policy, corrections)?;
            writeln!(
                out,
                "{shape:>9} {slots:>6} {name:>9} {:>16} {:>16} {:>16} {:>9}",
                routed.percentiles(),
                begun.percentiles(),
                learned.percentiles(),
                learned.mean()
            )?;
        }
    }
    Ok(())
}

/// What the operations of a run took.
#[derive(Default)]
struct Times {
    /// Noting a layer's choice.
    routed: Spent,
    /// Making room.
    begun: Spent,
    /// Learning from a layer's choices.
    learned: Spent,
}

/// A correction of rank 16 that looks at states of so many elements.
fn correction(layers: usize, experts: usize, hidden: usize) -> Correction {
    let zeros = Correction::new(HistoryShape { layers, experts, top_k: TOP_K }, hidden, 16);
    // A copy has pages of its own, which zeros may not have.
    zeros.clone()
}

/// Measures the cost of noting a choice and of making room. Each token keeps about half of the
/// experts of the one before it.
fn run(
    count: u32,
    experts: u32,
    slots: usize,
    policy: PolicyKind,
    corrections: Corrections,
) -> Result<Times, Box<dyn Error>> {
    let clock = Clock::real();
    let layers = ExpertLayers {
        count,
        with_experts: (0..count).collect(),
        visits: Vec::new(),
        experts: experts as usize,
        top_k: TOP_K,
        sequences: 1,
    };
    let mut cache =
        PredictiveCache::new(policy.build_corrected(layers, corrections), vec![(1, ()); slots]);
    let seen = vec![0.5; cache.policy().hidden()];
    let Times { mut routed, mut begun, mut learned } = Times::default();
    let mut chosen = vec![vec![0u32; TOP_K]; count as usize];
    let mut state = 1u64;
    for token in 0..TOKENS {
        let pass = Pass::single(token, &[0]);
        cache.begin_pass(&pass);
        for (layer, chosen) in (0u32..).zip(&mut chosen) {
            for (place, expert) in chosen.iter_mut().enumerate() {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                if token == 0 || (state >> 62).is_multiple_of(2) {
                    // An expert can appear in one place only.
                    let each = u64::from(experts) / TOP_K as u64;
                    *expert = (place as u64 * each + (state >> 32) % each) as u32;
                }
            }
            let choice = RouterChoice { pass: &pass, layer, experts: chosen };
            routed.time(&clock, || {
                cache.routed(&choice);
                if !seen.is_empty() {
                    cache.policy_mut().on_router_state(layer, 0, &seen);
                }
            });
            for &expert in &*chosen {
                let piece = PieceId::expert(layer, expert);
                if cache.lookup(piece) == Lookup::Absent {
                    let full = cache.bytes() == cache.capacity();
                    let mut free = Spent::default();
                    let spent = if full { &mut begun } else { &mut free };
                    spent.time(&clock, || cache.begin(layer, piece, 1, Need::Now))?;
                    cache.ready(piece, ());
                }
            }
            learned.time(&clock, || cache.policy_mut().on_layer_demanded(layer));
        }
    }
    Ok(Times { routed, begun, learned })
}
