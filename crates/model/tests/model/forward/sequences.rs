//! Sequences with a common prefix that diverge, and sequences that are truncated.

use std::io::{self, Write};

use sws_model::{
    Chunk, ForwardPass, ForwardState, KvPrecision, LayerSpec, LogitRows, Mixer, Prefix,
    ResidentSource,
};
use sws_testing::is_night;

use crate::forward::support::{Fixture, variants};

/// A model with any number of sequences.
struct Sequences {
    model: ForwardPass,
    source: ResidentSource,
    state: ForwardState,
}

impl Sequences {
    fn new(fixture: &Fixture, page: usize) -> Sequences {
        Sequences::with(fixture, page, KvPrecision::F32)
    }

    fn with(fixture: &Fixture, page: usize, precision: KvPrecision) -> Sequences {
        let model = ForwardPass::new(fixture.spec.clone());
        let state = ForwardState::new(&fixture.spec, usize::MAX, precision).with_pages(page);
        Sequences { model, source: fixture.source(), state }
    }

    /// Continues a sequence; returns the bits of the logits of all tokens.
    fn go_on(&mut self, sequence: usize, tokens: &[u32]) -> Vec<u32> {
        let Sequences { model, source, state } = self;
        model.begin(state, &[Chunk { sequence, tokens }], source).unwrap();
        let visits = model.spec().visits();
        (0..visits).for_each(|l| model.layer(l, state, source).unwrap());
        let logits = model.logits(LogitRows::All, state, source).unwrap();
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

fn bytes(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut bytes).unwrap();
    bytes
}

#[test]
fn prefixes_continue_as_their_sequence_does_from_bytes_too() {
    let kinds = [(64, KvPrecision::F32), (usize::MAX, KvPrecision::Bf16), (64, KvPrecision::Q8)];
    for (index, name) in variants().into_iter().enumerate() {
        let mut fixture = Fixture::open(&name);
        // Room for a whole block.
        fixture.spec.context = fixture.spec.context.max(400);
        for (number, (page, precision)) in kinds.into_iter().enumerate() {
            // Three models in a row have all.
            if number != index % 3 && !is_night() {
                continue;
            }
            let mut it = Sequences::with(&fixture, page, precision);
            let len = 290;
            let tokens = fixture.golden().tokens;
            let tokens: Vec<u32> = tokens.into_iter().cycle().take(len + 40).collect();
            let [first, second] = [(); 2].map(|()| it.state.add_sequence(&fixture.spec));
            it.go_on(first, &tokens[..len]);
            let prefix = it.state.prefix(first).unwrap();
            let expected = it.go_on(first, &tokens[len..]);

            let mut loaded = it.state.empty_prefix(&fixture.spec);
            assert_eq!(loaded.layout(), prefix.layout(), "{name}, {page}");
            for number in 0..prefix.blocks() {
                let bytes = bytes(|to| prefix.write_block(number, to));
                let mut rest = &bytes[..];
                loaded.read_block(&mut rest).unwrap();
                assert!(rest.is_empty(), "{name}, {page}: the block {number}");
            }
            let end = bytes(|to| prefix.write_end(to));
            let mut rest = &end[..];
            loaded.read_end(len, &mut rest).unwrap();
            assert!(rest.is_empty(), "{name}, {page}: the end");
            for (what, prefix) in [("shared", &prefix), ("from bytes", &loaded)] {
                assert!(it.state.begin_with(second, prefix, len), "{name}, {page}: {what}");
                let continued = it.go_on(second, &tokens[len..]);
                assert!(continued == expected, "{name}, {page}: {what}");
            }

            // Fewer positions, where the layers have them.
            let goes_back = it.state.goes_back(&fixture.spec);
            let cut = it.state.begin_with(second, &loaded, len - 30);
            assert!(cut || !goes_back, "{name}, {page}");
            if cut {
                let continued = it.go_on(second, &tokens[len - 30..]);
                assert!(continued.ends_with(&expected), "{name}, {page}: cut");
            }

            let mut damaged = it.state.empty_prefix(&fixture.spec);
            let mut cut = &end[..end.len().saturating_sub(1)];
            let read = damaged.read_end(len % Prefix::BLOCK, &mut cut);
            assert!(read.is_err() || end.is_empty(), "{name}, {page}");
        }
    }
}

#[test]
fn shared_pages_count_once_and_what_writes_to_them_is_foreseen() {
    let fixture = Fixture::open("qwen3_moe");
    let mut it = Sequences::new(&fixture, 64);
    let tokens: Vec<u32> = fixture.golden().tokens.iter().copied().cycle().take(100).collect();
    let sequence = it.state.add_sequence(&fixture.spec);
    it.go_on(sequence, &tokens[..70]);
    let alone = it.state.held(&mut std::iter::empty::<&Prefix>());
    let prefix = it.state.prefix(sequence).unwrap();
    let held = |it: &Sequences| it.state.held(&mut [&prefix].into_iter());
    assert_eq!(held(&it), alone);
    // Two pages of each kind: the second is written to, and shared.
    let growth = it.state.growth(&[(sequence, 30)]);
    assert_eq!(growth, alone / 2);
    it.go_on(sequence, &tokens[70..]);
    assert_eq!(held(&it), alone + growth);
    assert_eq!(it.state.growth(&[(sequence, 28)]), 0);
    it.state.release(&fixture.spec, sequence);
    assert_eq!(held(&it), alone);
}
