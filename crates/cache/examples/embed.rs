//! A cache of experts in an engine of another kind: here experts are vectors of bytes, and the
//! routers' choices are made up.
//!
//! ```text
//! cargo run --release -p sws-cache --example embed
//! ```

use std::error::Error;
use std::io::Write;

use sws_cache::policy::{ExpertLayers, PolicyKind, RouterChoice};
use sws_cache::{Claim, Lookup, Need, PredictiveCache};
use sws_format::{Pass, PieceId};

const LAYERS: u32 = 4;
const EXPERTS: u32 = 16;
const TOP_K: usize = 2;
/// Bytes of an expert.
const LEN: usize = 4096;
const TOKENS: u32 = 400;

/// Stands for a read from a disk.
fn read(expert: PieceId, into: &mut Vec<u8>) {
    into.clear();
    into.resize(LEN, expert.layer().unwrap_or(0) as u8);
}

/// A router with favourites that change slowly.
fn choice(token: u32, layer: u32) -> [u32; TOP_K] {
    [(token / 50 + layer) % EXPERTS, (token.wrapping_mul(2_654_435_761) >> 16) % EXPERTS]
}

fn main() -> Result<(), Box<dyn Error>> {
    for policy in PolicyKind::ALL {
        let with_experts = (0..LAYERS).collect();
        let experts = EXPERTS as usize;
        let top_k = TOP_K;
        let visits = Vec::new();
        let layers =
            ExpertLayers { count: LAYERS, with_experts, visits, experts, top_k, sequences: 1 };
        // Room for a quarter of the experts.
        let slots = (0..LAYERS * EXPERTS / 4).map(|_| (LEN, Vec::with_capacity(LEN)));
        let mut cache = PredictiveCache::new(policy.build(layers), slots);
        let mut sum = 0;
        for token in 0..TOKENS {
            let pass = Pass::single(token as usize, &[token]);
            cache.begin_pass(&pass);
            for layer in 0..LAYERS {
                let experts = choice(token, layer);
                cache.routed(&RouterChoice { pass: &pass, layer, experts: &experts });
                for expert in experts {
                    let id = PieceId::expert(layer, expert);
                    if cache.lookup(id) == Lookup::Absent {
                        let Claim { mut payload, .. } = cache.begin(layer, id, LEN, Need::Now)?;
                        read(id, &mut payload);
                        cache.ready(id, payload);
                    }
                    sum += cache.get(id).map_or(0, |bytes| usize::from(bytes[0]));
                    cache.computed(id);
                }
            }
            cache.idle();
        }
        let misses: u64 = cache.counts().values().map(|counts| counts.misses).sum();
        let lookups = u64::from(TOKENS * LAYERS) * TOP_K as u64;
        writeln!(std::io::stdout(), "{policy}: {misses} misses of {lookups} lookups (sum {sum})")?;
    }
    Ok(())
}
