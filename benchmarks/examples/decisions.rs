//! Cost of a cache's decisions, without weights.
//!
//! ```text
//! cargo run --release -p sws-benchmarks --example decisions
//! ```

use std::error::Error;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use sws_cache::correction::Correction;
use sws_cache::history::Shape;
use sws_cache::policy::{Choice, Layers, PolicyKind};
use sws_cache::{Lookup, Need, PredictiveCache};
use sws_store::{Clock, Pass, PieceId};

const TOKENS: usize = 400;
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
    fn nanos(mut self) -> String {
        self.0.sort_unstable();
        let at =
            |tenths: usize| self.0.get(self.0.len() * tenths / 10).map_or(0, Duration::as_nanos);
        format!("{} {}", at(5), at(9))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout();
    writeln!(
        out,
        "{:>9} {:>6} {:>9} {:>16} {:>16}",
        "experts", "slots", "policy", "ns/layer", "ns/eviction"
    )?;
    for (count, experts, slots) in
        [(48, 128, 768), (48, 128, 3072), (58, 256, 768), (58, 256, 6144)]
    {
        let shape = format!("{count}x{experts}");
        let policies = PolicyKind::ALL.map(|kind| (kind.name(), kind, None));
        let correction = correction(count as usize, experts as usize);
        let corrected = ("corrected", PolicyKind::Expected, Some(Arc::new(correction)));
        for (name, policy, correction) in policies.into_iter().chain([corrected]) {
            let (routed, begun) = run(count, experts, slots, policy, correction)?;
            writeln!(
                out,
                "{shape:>9} {slots:>6} {name:>9} {:>16} {:>16}",
                routed.nanos(),
                begun.nanos()
            )?;
        }
    }
    Ok(())
}

/// A correction of rank 16 that looks at states as long as models of that shape have them.
fn correction(layers: usize, experts: usize) -> Correction {
    let hidden = if experts > 128 { 7168 } else { 2048 };
    let zeros = Correction::new(Shape { layers, experts, top_k: TOP_K }, hidden, 16);
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
    correction: Option<Arc<Correction>>,
) -> Result<(Spent, Spent), Box<dyn Error>> {
    let clock = Clock::real();
    let with_experts = (0..count).collect();
    let layers =
        Layers { count, with_experts, experts: experts as usize, top_k: TOP_K, sequences: 1 };
    let mut cache = PredictiveCache::new(
        policy.build_corrected(layers, correction.clone()),
        vec![(1, ()); slots],
    );
    let hidden = correction.as_ref().map_or(0, |correction| correction.hidden());
    let (seen, mut projected) = (vec![0.5; hidden], Vec::new());
    let (mut routed, mut begun) = (Spent::default(), Spent::default());
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
            let choice = Choice { pass: &pass, layer, experts: chosen };
            routed.time(&clock, || {
                cache.routed(&choice);
                if let Some(correction) = &correction {
                    correction.project(layer as usize, &seen, &mut projected);
                    cache.policy_mut().saw(layer, 0, &projected);
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
        }
    }
    Ok((routed, begun))
}
