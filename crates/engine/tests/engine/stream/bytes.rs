//! Bytes read and allocations made for each token.

use std::sync::Arc;

use rayon::ThreadPoolBuilder;
use sws_format::{PieceId, PieceKind};
use sws_kernels::Encoding;
use sws_model::CausalLm;
use sws_testing::is_night;

use super::support::{
    Fixture, goldens, hash, llama_with_a_large_head, llama_with_tables_in_fp8, waiter,
};

#[test]
fn tokens_read_only_what_does_not_fit() {
    let dir = tempfile::tempdir().unwrap();
    llama_with_a_large_head(dir.path());
    let tables = tempfile::tempdir().unwrap();
    llama_with_tables_in_fp8(tables.path());
    let fixtures = [
        Fixture::in_place(dir.path()),
        Fixture::sharded(dir.path(), Encoding::Bf12),
        Fixture::sharded(dir.path(), Encoding::Bf11),
        Fixture::sharded(dir.path(), Encoding::Q8),
        Fixture::in_place(tables.path()),
        Fixture::sharded(tables.path(), Encoding::Bf11),
    ];
    for (index, fixture) in fixtures.into_iter().enumerate() {
        let tokens = fixture.tokens(12);
        let expected = hash(&mut fixture.resident(), &tokens);
        let budgets = [(0, 0), (0, 8 << 20), (30, 1 << 20), (50, 16 << 20), (90, 0)];
        for (number, (percent, more)) in budgets.into_iter().enumerate() {
            if number % 2 != index % 2 && !is_night() {
                continue;
            }
            let plan = fixture.plan(percent, more);
            let waiter = waiter();
            let store = fixture.store(Some(Arc::new(fixture.memory())));
            let mut session = fixture.streaming(&plan, store, waiter.clone()).unwrap();
            let case = format!("{}: {percent} % + {more}", fixture.name);
            assert_eq!(hash(&mut session, &tokens), expected, "{case}");

            let passes = |piece: PieceId| {
                let vectors = matches!(piece.kind(), PieceKind::Norms | PieceKind::FinalNorm);
                !vectors && piece != PieceId::EMBED && !plan.pinned.contains(&piece)
            };
            let pieces = fixture.manifest.pieces.iter().filter(|piece| passes(piece.id));
            let cycle: u64 = pieces.map(|piece| piece.stored_bytes()).sum();
            // A row of the embedding, with the other bytes that its checksum covers.
            let row = if plan.pinned.contains(&PieceId::EMBED) { 0 } else { 80 << 10 };
            let before: u64 = waiter.bytes().iter().sum();
            for &token in tokens.iter().cycle().take(30) {
                session.decode(token).unwrap();
            }
            let read = (waiter.bytes().iter().sum::<u64>() - before) / 30;
            assert!(read as f64 >= 0.95 * cycle as f64, "{case}: {read} of {cycle}");
            assert!(read as f64 <= 1.05 * cycle as f64 + row as f64, "{case}: {read} of {cycle}");
        }
    }
}

#[test]
fn a_read_allocates_little() {
    // Allocations are counted on one thread. The store frees some of them on its own threads.
    let pool = ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    pool.install(|| {
        let fixture = Fixture::in_place(&goldens().join("mixtral"));
        let plan = fixture.plan(0, 0);
        let store = fixture.store(Some(Arc::new(fixture.memory())));
        let mut session = fixture.streaming(&plan, Arc::clone(&store), waiter()).unwrap();
        let tokens = fixture.tokens(20);
        hash(&mut session, &tokens);
        let reads = || store.stats().demanded.reads + store.stats().ahead.reads;
        let before = reads();
        let counted = allocation_counter::measure(|| {
            for &token in &tokens {
                session.decode(token).unwrap();
            }
        });
        let reads = reads() - before;
        assert!(counted.count_total < 32 * reads, "{reads} reads: {counted:?}");
        assert!(counted.bytes_total < 8192 * reads, "{reads} reads: {counted:?}");
    });
}
