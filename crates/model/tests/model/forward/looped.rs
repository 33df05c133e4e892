//! Layers that a pass visits several times.

use std::collections::BTreeSet;

use sws_format::PieceKind;
use sws_model::{ForwardState, KvPrecision, LoopSpec, ModelSpec, ReadStep, Role};

use crate::forward::support::Fixture;

#[test]
fn layers_are_visited_in_rounds() {
    let spec = |first, end, rounds| {
        let looped = Some(LoopSpec { first, end, rounds, rank: 1 });
        ModelSpec { looped, ..Fixture::open("inkling2_loop").spec }
    };
    for ((first, end, rounds), expected) in [
        ((2, 6, 2), &[0, 1, 2, 3, 4, 5, 2, 3, 4, 5][..]),
        ((1, 3, 3), &[0, 1, 2, 1, 2, 1, 2, 3, 4, 5]),
        ((4, 5, 3), &[0, 1, 2, 3, 4, 4, 4, 5]),
        ((1, 6, 1), &[0, 1, 2, 3, 4, 5]),
    ] {
        let spec = spec(first, end, rounds);
        let found: Vec<usize> = (0..spec.visits()).map(|visit| spec.layer_of(visit)).collect();
        assert_eq!(found, expected);
        for layer in 0..6 {
            let times = expected.iter().filter(|&&visited| visited == layer).count();
            assert_eq!(spec.times(layer), times, "{expected:?}: layer {layer}");
        }
    }
}

/// Weights have one place, and each visit has keys, values and inputs of convolutions of its own.
#[test]
fn a_visit_has_a_cache_and_no_weights_of_its_own() {
    let spec = Fixture::open("inkling2_loop").spec;
    let bytes = |spec: &ModelSpec| ForwardState::cache_bytes(spec, 100, KvPrecision::F32);
    let once = ModelSpec { looped: None, ..spec.clone() };
    let before = ModelSpec { layers: once.layers[..2].to_vec(), ..once.clone() };
    assert_eq!(bytes(&spec) - bytes(&once), bytes(&once) - bytes(&before));
    let roles = |reads: Vec<ReadStep>| {
        let of = |read| match read {
            ReadStep::Tensor(kind, tensor) => Some((kind, tensor.role)),
            ReadStep::Experts { .. } => None,
        };
        reads.into_iter().filter_map(of).collect::<BTreeSet<(PieceKind, Role)>>()
    };
    let [first, second] = [3, 7].map(|visit| spec.reads_of(visit));
    assert_eq!([first.0, second.0], [3, 3]);
    let (first, second) = (roles(first.1), roles(second.1));
    assert!(first.is_subset(&second) && second == roles(spec.reads(3)));
    assert_eq!(second.len() - first.len(), 12, "the matrices of gates of messages");
}
