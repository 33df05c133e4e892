//! Every model family, in place and in shards, at every budget: the same bits as the resident
//! model.

use std::sync::Arc;

use sws_kernels::Encoding;
use sws_store::ShardReader;
use sws_testing::goldens::is_readable_in_place;

use crate::support::{Fixture, goldens, hash, variants, waiter};

#[test]
fn bits_are_those_of_the_resident_model() {
    for (index, name) in variants().into_iter().enumerate() {
        let dir = goldens().join(&name);
        let in_place = is_readable_in_place(&name).then(|| Fixture::in_place(&dir));
        let sharded = Fixture::sharded(&dir, [Encoding::Bf12, Encoding::Bf11][index % 2]);
        for fixture in in_place.into_iter().chain([sharded]) {
            let tokens = fixture.tokens(80);
            let expected = hash(&mut fixture.resident(), &tokens);
            for (percent, more) in [(0, 0), (0, 100_000), (50, 0), (50, 1 << 20), (100, 0)] {
                let plan = fixture.plan(percent, more);
                // Small reads are slow on a device, so most cases read from memory.
                let (reader, chunks): (Option<Arc<dyn ShardReader>>, _) = match (percent, more) {
                    (50, 0) => (None, &[7][..]),
                    _ => (Some(Arc::new(fixture.memory())), &[1, 7, 64, 512][..]),
                };
                let store = fixture.store(reader);
                let mut session = fixture.streaming(&plan, store, waiter()).unwrap();
                for &chunk in chunks {
                    session.set_chunk(chunk);
                    let found = hash(&mut session, &tokens);
                    assert_eq!(found, expected, "{}: {percent} % + {more}, {chunk}", fixture.name);
                }
            }
        }
    }
}
