//! A token allocates nothing once memory has grown.

use rayon::ThreadPoolBuilder;
use sws_model::CausalLm;

use crate::support::{Fixture, variants};

#[test]
fn decoding_allocates_nothing() {
    // One thread, whose allocations are counted.
    let pool = ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    for name in variants() {
        pool.install(|| {
            let fixture = Fixture::open(&name);
            let tokens = fixture.golden().tokens;
            let mut session = fixture.session();
            session.prefill(&tokens).unwrap();
            for &token in &tokens {
                session.decode(token).unwrap();
            }
            let counted = allocation_counter::measure(|| {
                for &token in &tokens[..20] {
                    session.decode(token).unwrap();
                }
            });
            assert_eq!(counted.count_total, 0, "{name}: {counted:?}");
        });
    }
}
