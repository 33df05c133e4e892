//! Sequences with a common prefix that diverge, and sequences that are truncated.

use sws_model::{Chunk, KvPrecision, LayerSpec, Mixer, Model, ResidentSource, Rows, State};

use crate::support::{Fixture, variants};

/// A model with any number of sequences.
struct Sequences {
    model: Model,
    source: ResidentSource,
    state: State,
}

impl Sequences {
    fn new(fixture: &Fixture, page: usize) -> Sequences {
        let model = Model::new(fixture.spec.clone());
        let state = State::new(&fixture.spec, usize::MAX, KvPrecision::F32).with_pages(page);
        Sequences { model, source: fixture.source(), state }
    }

    /// Continues a sequence; returns the bits of the logits of all tokens.
    fn go_on(&mut self, sequence: usize, tokens: &[u32]) -> Vec<u32> {
        let Sequences { model, source, state } = self;
        model.begin(state, &[Chunk { sequence, tokens }], source).unwrap();
        let layers = model.spec().layers.len();
        (0..layers).for_each(|l| model.layer(l, state, source).unwrap());
        let logits = model.logits(Rows::All, state, source).unwrap();
        logits.iter().map(|x| x.to_bits()).collect()
    }
}

#[test]
fn forks_and_truncated_sequences_equal_separate_ones() {
    for name in variants() {
        let fixture = Fixture::open(&name);
        let tokens: Vec<u32> = fixture.golden().tokens.iter().copied().cycle().take(180).collect();
        let (shared, rest) = tokens.split_at(100);
        let (one, other) = rest.split_at(50);
        let alone = |ends: &[u32]| {
            let mut alone = Sequences::new(&fixture, usize::MAX);
            let sequence = alone.state.add_sequence(&fixture.spec);
            alone.go_on(sequence, shared);
            alone.go_on(sequence, ends)
        };
        let expected = [one, other].map(alone);
        for page in [64, usize::MAX] {
            let mut it = Sequences::new(&fixture, page);
            let first = it.state.add_sequence(&fixture.spec);
            it.go_on(first, shared);
            let second = it.state.fork(first).unwrap();
            assert_eq!(it.state.len(second), 100);
            assert!(it.go_on(first, one) == expected[0], "{name}, {page}");
            assert!(it.go_on(second, other) == expected[1], "{name}, {page}");
            // Back to the common prefix. The 50 tokens since then are within what rings keep in
            // addition to a window; recurrent layers have taken them in.
            let recurrent = |layer: &LayerSpec| {
                layer.residual.conv.is_some()
                    || matches!(
                        layer.mixer,
                        Mixer::Delta(_) | Mixer::Conv(_) | Mixer::StateSpace(_)
                    )
            };
            let can = !fixture.spec.layers.iter().any(recurrent);
            assert_eq!(it.state.truncate(first, 100), can, "{name}");
            if can {
                assert!(
                    it.go_on(first, other) == expected[1],
                    "{name}, {page}: the end of another"
                );
            }
            assert!(it.state.truncate(second, 0) && it.state.len(second) == 0);
        }
    }
}
