//! Decoding a token allocates nothing once memory has grown.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rayon::ThreadPoolBuilder;
use sws_kernels::Tier;
use sws_model::{CausalLm, ForwardPass, KvPrecision, Session};

use crate::forward::support::{Fixture, variants};

/// Runs `f` on a pool of `threads` threads. Returns the allocations of all of them, since the other
/// threads look for work inside a measurement of their own, and how often they found work.
fn allocations(threads: usize, f: impl Fn() + Sync) -> (u64, usize) {
    let pool = ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let (done, helped) = (AtomicBool::new(false), AtomicUsize::new(0));
    let counted = pool.broadcast(|context| {
        allocation_counter::measure(|| {
            if context.index() == 0 {
                f();
                return done.store(true, Ordering::Release);
            }
            while !done.load(Ordering::Acquire) {
                if rayon::yield_now() == Some(rayon::Yield::Executed) {
                    helped.fetch_add(1, Ordering::Relaxed);
                }
            }
        })
    });
    (counted.iter().map(|counted| counted.count_total).sum(), helped.into_inner())
}

#[test]
fn decoding_allocates_nothing() {
    let tales = sws_testing::tales();
    let mut sessions: Vec<_> = variants()
        .into_iter()
        .map(|name| {
            let fixture = Fixture::open(&name);
            (name, fixture.golden().tokens, fixture.session())
        })
        .collect();
    sessions.push(("tales-moe".to_owned(), (5..40).collect(), Fixture::at(&tales).session()));
    for (name, tokens, session) in sessions {
        let session = Mutex::new(session);
        for threads in [1, 3] {
            let decode = || {
                let mut session = session.lock().unwrap();
                session.clear();
                for &token in &tokens[..20] {
                    session.decode(token).unwrap();
                }
            };
            // The first run grows the working memory of each thread.
            allocations(threads, decode);
            // The tiny models are too small to share work. The last one is large enough, but on a
            // busy machine it may take a while until another thread is there to help.
            let shared = name == "tales-moe" && threads > 1;
            let rounds = if shared { 500 } else { 1 };
            let helped = (0..rounds).any(|_| {
                let (counted, helped) = allocations(threads, decode);
                assert_eq!(counted, 0, "{name}, {threads} threads");
                helped > 0
            });
            assert!(helped || !shared, "{name}: no other thread helped");
        }
    }
}

/// The scalar references of products and attention can be recognised by their allocations.
#[test]
fn the_chosen_tier_is_used() {
    let pool = ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    for (tier, expected) in [(Tier::PORTABLE, false), (Tier::SCALAR, true)] {
        pool.install(|| {
            let fixture = Fixture::open("qwen3_moe");
            let model = ForwardPass::with_tier(fixture.spec.clone(), tier);
            let mut session = Session::new(model, fixture.source(), 64, KvPrecision::F32);
            session.prefill(&[1, 2, 3, 4, 5, 6, 7, 8, 9]).unwrap();
            session.decode(5).unwrap();
            let counted = allocation_counter::measure(|| {
                session.decode(8).unwrap();
            });
            assert_eq!(counted.count_total > 0, expected, "{tier}: {counted:?}");
        });
    }
}
