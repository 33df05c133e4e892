//! Every model family, in place and in shards, at every budget: the same bits as the resident
//! model.

use std::sync::Arc;

use sws_format::{PieceKind, ShardReader};
use sws_kernels::Encoding;
use sws_testing::gguf::convertible;
use sws_testing::goldens::is_readable_in_place;
use sws_testing::is_night;

use super::support::{Fixture, goldens, hash, variants, waiter};

#[test]
fn bits_are_those_of_the_resident_model() {
    bits_of_every_other_model(0);
}

/// A test of its own, so that it runs beside the first.
#[test]
fn bits_of_the_other_models_are_those_of_the_resident_model() {
    bits_of_every_other_model(1);
}

fn bits_of_every_other_model(first: usize) {
    for (index, name) in variants().into_iter().enumerate().skip(first).step_by(2) {
        let dir = goldens().join(&name);
        let in_place = is_readable_in_place(&name).then(|| Fixture::in_place(&dir));
        let is_fp8 = name.ends_with("_fp8") || name.ends_with("_fp4");
        let encoding = if is_fp8 || index % 2 == 1 { Encoding::Bf11 } else { Encoding::Bf12 };
        let sharded = Fixture::sharded(&dir, encoding);
        let mut tensors = sharded.manifest.pieces.iter().flat_map(|piece| &piece.tensors);
        let is_packed = tensors.any(|tensor| matches!(tensor.encoding, Some(Encoding::Fp7(_))));
        assert_eq!(is_packed, is_fp8, "{name}");
        for fixture in in_place.into_iter().chain([sharded]) {
            let tokens = fixture.tokens(80);
            let expected = hash(&mut fixture.resident(), &tokens);
            let budgets = [(0, 0), (0, 100_000), (50, 0), (50, 1 << 20), (100, 0)];
            for (number, (percent, more)) in budgets.into_iter().enumerate() {
                // Three models in a row have all budgets.
                if number % 3 != index % 3 && !is_night() {
                    continue;
                }
                let plan = fixture.plan(percent, more);
                // Small reads are slow on a device, so most cases read from memory.
                let (reader, chunks): (Option<Arc<dyn ShardReader>>, _) = match (percent, more) {
                    (50, 0) => (None, &[7][..]),
                    _ if is_night() => (Some(Arc::new(fixture.memory())), &[1, 7, 64, 512][..]),
                    _ => (Some(Arc::new(fixture.memory())), &[1, 64][..]),
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

/// Rows of it are read as tokens choose them, like those of other checkpoints.
#[test]
fn a_gguf_file_with_a_table_streams() {
    let mut count = 0;
    for (name, _, file) in convertible() {
        if !name.ends_with("_inputs") {
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        file.write(&dir.path().join("model.gguf"));
        let fixture = Fixture::in_place(dir.path());
        let is_table = |kind| matches!(kind, PieceKind::Table(_));
        assert!(fixture.manifest.pieces.iter().any(|piece| is_table(piece.id.kind())), "{name}");
        let tokens = fixture.tokens(80);
        let expected = hash(&mut fixture.resident(), &tokens);
        for (percent, more) in [(0, 0), (50, 1 << 20), (100, 0)] {
            let plan = fixture.plan(percent, more);
            let store = fixture.store(Some(Arc::new(fixture.memory())));
            let mut session = fixture.streaming(&plan, store, waiter()).unwrap();
            for chunk in [1, 7, 64] {
                session.set_chunk(chunk);
                assert_eq!(hash(&mut session, &tokens), expected, "{name}: {percent} %, {chunk}");
            }
        }
        count += 1;
    }
    assert_eq!(count, 2);
}
