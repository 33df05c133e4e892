//! The upper bound on the working memory of a pass.

use rayon::prelude::*;
use sws_kernels::{Activations, Packings, ThreadScratch, Tier};
use sws_model::{CausalLm, ForwardPass, KvPrecision, PassSize, Session};
use sws_testing::is_night;

use crate::forward::support::{Fixture, Recorder, variants};

/// The formula is never below the memory that passes allocate, and hardly above it.
#[test]
fn working_memory_stays_within_the_formula() {
    // Tokens of a chunk, true if all logits are requested, and tokens of a strip.
    let whole = PassSize::STRIP;
    let cases = [
        (1, false, whole),
        (2, true, whole),
        (7, false, whole),
        (64, true, whole),
        (200, false, whole),
        (200, false, 64),
        (130, true, 64),
    ];
    let rounding = Tier::best().with_activations(Activations::Int8);
    let tiers = [Tier::PORTABLE, Tier::best(), rounding];
    variants().par_iter().enumerate().for_each(|(number, name)| {
        let fixture = Fixture::open(name);
        let golden = fixture.golden();
        // One thread and three, with each tier; at other times than at night, three models in a row have all.
        let all = [1, 3].into_iter().flat_map(|threads| tiers.map(|tier| (threads, tier)));
        for (at, (threads, tier)) in all.enumerate() {
            if at % 3 != number % 3 && !is_night() {
                continue;
            }
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            for (case, (tokens, all, strip)) in cases.into_iter().enumerate() {
                // And of each of these, the next three have the other half of the cases.
                if case % 2 == number / 3 % 2 && !is_night() {
                    continue;
                }
                let limit = fixture.spec.context.min(220);
                let prompt: Vec<u32> =
                    golden.tokens.iter().copied().cycle().take(limit.min(210)).collect();
                let model = ForwardPass::with_tier(fixture.spec.clone(), tier).with_strips(strip);
                let mut session = Session::new(model, fixture.source(), limit, KvPrecision::F32);
                session.set_chunk(tokens);
                pool.install(|| {
                    // A small pass first: growing in steps must not leave more than growing at
                    // once.
                    session.prefill(&prompt[..1]).unwrap();
                    match all {
                        true => session.score(&prompt[1..], &mut Recorder::default()).unwrap(),
                        false => drop(session.prefill(&prompt[1..]).unwrap()),
                    }
                });
                let logits = if all { tokens } else { 1 };
                let packings = fixture.manifest.packings(tier.activations(), false);
                let positions = limit;
                let size = PassSize { tokens, logits, positions, threads, strip, packings };
                let most = fixture.spec.work_bytes(tier, size);
                let grown = session.state().work_bytes();
                assert!(grown <= most, "{name} {tier} {size:?}: {grown} above {most}");
                // Most products of such small models are too small for a second thread, and the
                // buffers of experts are sized for one that all tokens choose.
                let slack = if fixture.spec.max_top_k() > 0 { 2.0 } else { 1.2 };
                // Not every buffer meets weights that need other packings.
                let slack = if packings == Default::default() { slack } else { 1.5 * slack };
                // With one row of logits, all products with several tokens may be of codes.
                let plain = match packings == Packings::default() {
                    true => 0,
                    false => ThreadScratch::bytes_for(tier, Packings::default(), tokens),
                };
                let loose = (most - plain as u64) as f64 / grown as f64;
                assert!(
                    threads > 1 || loose <= slack,
                    "{name} {tier} {size:?}: {most} is {loose} × {grown}"
                );
            }
        }
    });
}
