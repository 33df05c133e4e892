//! Properties of sequences with every kind of layer, under arbitrary series of operations.

use proptest::prelude::*;
use sws_kernels::functional::KvData;

use super::*;
use crate::spec::{
    AttentionExtras, AttentionSpec, CompressedSpec, LatentSpec, PoolIndexer, PoolSpec,
};

const LIMIT: usize = 400;

/// Two heads of three elements.
fn attention(window: Option<usize>) -> AttentionSpec {
    AttentionSpec {
        heads: 2,
        kv_heads: 2,
        head_dim: 3,
        value_dim: 3,
        qkv_bias: false,
        output_bias: false,
        qk_norm: crate::QkNorm::None,
        rope: None,
        window,
        scale: 1.0,
        sinks: false,
        gate: None,
        key_values: crate::KeyValues::Own,
        extras: AttentionExtras::default(),
    }
}

/// Rows of six elements.
const LATENT: LatentSpec = LatentSpec {
    heads: 2,
    query_rank: None,
    rank: 4,
    plain: 3,
    rotated: 2,
    value_dim: 3,
    eps: 1e-6,
    key_norm: false,
    latent_scale: 1.0,
    scale: 1.0,
    rope: Some(0),
    gates: crate::spec::LatentGates::None,
    sinks: false,
    split: false,
    temperature: None,
    head_growth: false,
    latents: crate::KeyValues::Own,
    window: None,
    sparse: None,
};

/// Entries of four positions, of three numbers and, for an indexer, of two.
const SPARSE: CompressedSpec = CompressedSpec {
    heads: 2,
    head_dim: 3,
    rotated: 2,
    query_rank: 2,
    window: 7,
    groups: 1,
    group_rank: 2,
    eps: 1e-6,
    scale: 1.0,
    rope: 0,
    pools: Some(PoolSpec { ratio: 4, indexer: Some(PoolIndexer { heads: 1, dim: 2, most: 3 }) }),
};

/// Entries of ten positions.
const HEAVY: CompressedSpec =
    CompressedSpec { window: 90, pools: Some(PoolSpec { ratio: 10, indexer: None }), ..SPARSE };

/// Takes tokens into the state of such a layer; entries are sums.
fn take(state: &mut CompressedState, l: usize, first: usize, tokens: &[u32]) {
    let spec = if state.has_index() { SPARSE } else { HEAVY };
    let pools = spec.pools.unwrap();
    for (start, chunk) in (first..).step_by(state.chunk()).zip(tokens.chunks(state.chunk())) {
        let rows = (start..).zip(chunk).flat_map(|(p, &token)| row(l, p, token)[..3].to_vec());
        state.append(start, &rows.collect::<Vec<f32>>());
    }
    let of = [Some(3), pools.indexer.map(|indexer| indexer.dim)];
    for (index, dim) in [false, true].into_iter().zip(of.into_iter().flatten()) {
        for (position, &token) in (first..).zip(tokens) {
            let numbers = row(l, position, token);
            let of_position = &numbers[..pools.series() * dim];
            let negated: Vec<f32> = of_position.iter().map(|x| -x).collect();
            state.append_raw(index, position, [of_position, &negated]);
            if (position + 1).is_multiple_of(pools.ratio) {
                let number = position / pools.ratio;
                let from = (number + 1).saturating_sub(pools.series()) * pools.ratio;
                let sum = (from..=position).map(|p| state.raw(index, p)[0][0]).sum::<f32>();
                state.put(index, number, &vec![sum; dim]);
            }
        }
    }
}

/// A decaying sum behind a short convolution.
const MEMORY: RecurrentSize = RecurrentSize { past: 3, sums: 4 };

/// Takes one more position into the state of such a layer.
fn append(state: &mut RecurrentState, x: f32) {
    let [past, sums] = state.numbers();
    past.rotate_right(1);
    past[0] = x;
    let x = 0.5 * past[0] + 0.25 * past[1] - past[2];
    for (sum, decay) in sums.iter_mut().zip([0.5, 0.75, 0.9, 1.0]) {
        *sum = decay * *sum + x;
    }
}

/// The windows of the layers with keys and values; one with latents, two with entries and a
/// recurrent one follow.
const WINDOWS: [Option<usize>; 3] = [None, Some(5), Some(90)];

fn sequence(precision: KvPrecision, page: usize) -> SequenceState {
    let kv = |window| LayerState::Kv(KvState::new(&attention(window), LIMIT, precision, page));
    let mut layers: Vec<_> = WINDOWS.map(kv).into();
    layers.push(LayerState::Latent(LatentState::new(&LATENT, LIMIT, precision, page)));
    for spec in [SPARSE, HEAVY] {
        let state = CompressedState::new(&spec, LIMIT, precision, page);
        layers.push(LayerState::Compressed(state));
    }
    layers.push(LayerState::Recurrent(RecurrentState::new(MEMORY)));
    SequenceState { len: 0, partial: false, layers, more: 0 }
}

/// A made-up key row of a token at a position.
fn row(layer: usize, position: usize, token: u32) -> [f32; 6] {
    let number = |i: usize| (layer * 1000 + position) as f32 + token as f32 / 64.0 + i as f32 / 8.0;
    std::array::from_fn(number)
}

/// Takes tokens through all layers, as a pass does; stops before the layer `fails`.
fn pass(sequence: &mut SequenceState, tokens: &[u32], fails: Option<usize>) {
    sequence.reserve(tokens.len());
    let first = sequence.len;
    for (l, layer) in sequence.layers.iter_mut().enumerate() {
        sequence.partial = true;
        if fails == Some(l) {
            return;
        }
        match layer {
            LayerState::Kv(kv) => {
                for (n, chunk) in tokens.chunks(kv.chunk).enumerate() {
                    let start = first + n * kv.chunk;
                    let rows = (start..).zip(chunk).flat_map(|(p, &token)| row(l, p, token));
                    let rows: Vec<f32> = rows.collect();
                    let negated: Vec<f32> = rows.iter().map(|x| -x).collect();
                    kv.append(start, chunk.len(), &rows, &negated);
                }
            }
            LayerState::Latent(latent) => {
                let rows = (first..).zip(tokens).flat_map(|(p, &token)| row(l, p, token));
                latent.append(first, &rows.collect::<Vec<f32>>());
            }
            LayerState::Compressed(state) => take(state, l, first, tokens),
            LayerState::Recurrent(state) => tokens.iter().for_each(|&t| append(state, t as f32)),
        }
    }
    (sequence.len, sequence.partial) = (first + tokens.len(), false);
}

/// The rows that the next query of each layer would see.
fn seen(sequence: &SequenceState) -> Vec<Vec<f32>> {
    let of = |(l, layer): (usize, &LayerState)| match layer {
        LayerState::Kv(kv) => {
            let (view, window) = (kv.view(), WINDOWS[l].unwrap_or(usize::MAX));
            let first = (sequence.len + 1).saturating_sub(window);
            let mut rows = Vec::new();
            for position in first..sequence.len {
                for head in 0..2 {
                    let (page, at) = view.keys.place(head, position);
                    match view.data {
                        KvData::F32 { keys, values } => {
                            rows.extend([keys, values].map(|of| of[page][at..at + 3].to_vec()));
                        }
                        KvData::Bf16 { keys, values } => {
                            let bits = |of: &[u16]| of.iter().map(|&x| x.into()).collect();
                            rows.extend([keys, values].map(|of| bits(&of[page][at..at + 3])));
                        }
                        KvData::Q8 { keys, values } => {
                            let bytes = |of: &[u8]| of.iter().map(|&x| x.into()).collect();
                            let len = q8::bytes(3);
                            rows.extend([keys, values].map(|of| bytes(&of[page][at..at + len])));
                        }
                    }
                }
            }
            rows.concat()
        }
        LayerState::Latent(latent) => {
            let view = latent.view();
            let rows = (0..sequence.len).flat_map(|position| {
                let (page, at) = view.keys.place(0, position);
                let row: Vec<f32> = match view.data {
                    KvData::F32 { keys, .. } => keys[page][at..at + 6].to_vec(),
                    KvData::Bf16 { keys, .. } => {
                        keys[page][at..at + 6].iter().map(|&x| x.into()).collect()
                    }
                    KvData::Q8 { keys, .. } => {
                        keys[page][at..at + q8::bytes(6)].iter().map(|&x| x.into()).collect()
                    }
                };
                row
            });
            rows.collect()
        }
        LayerState::Compressed(state) => state.seen(sequence.len),
        LayerState::Recurrent(state) => state.seen(),
    };
    sequence.layers.iter().enumerate().map(of).collect()
}

/// An operation on a sequence.
#[derive(Clone, Debug)]
enum Event {
    Pass(Vec<u32>),
    Fail(Vec<u32>, usize),
    Save,
    Restore,
    Keep,
    Clear,
    /// Forks the sequence, so that `Swap` can continue with the fork.
    Fork,
    Swap,
    Truncate(usize),
}

fn event() -> impl Strategy<Value = Event> {
    let tokens = || prop::collection::vec(0u32..64, 1..90);
    prop_oneof![
        4 => tokens().prop_map(Event::Pass),
        2 => (tokens(), 0usize..8).prop_map(|(tokens, layer)| Event::Fail(tokens, layer)),
        2 => Just(Event::Save),
        2 => Just(Event::Restore),
        1 => Just(Event::Keep),
        1 => Just(Event::Clear),
        2 => Just(Event::Fork),
        2 => Just(Event::Swap),
        2 => (0usize..LIMIT).prop_map(Event::Truncate),
    ]
}

/// A sequence, the tokens that it should contain, and its snapshots.
struct Told {
    sequence: SequenceState,
    tokens: Vec<u32>,
    saved: Vec<(SequenceSnapshot, Vec<u32>)>,
}

proptest! {
    /// A sequence always equals a fresh one that was given the same tokens.
    #[test]
    fn sequence_state_depends_only_on_its_tokens(
        events in prop::collection::vec(event(), 1..40),
        precision in prop::sample::select(KvPrecision::ALL.to_vec()),
        page in prop::sample::select(vec![64, 128, usize::MAX]),
    ) {
        let fresh = || Told { sequence: sequence(precision, page), tokens: vec![], saved: vec![] };
        let (mut one, mut other) = (fresh(), fresh());
        for event in events {
            let Told { sequence: it, tokens, saved } = &mut one;
            match event {
                Event::Pass(new) if !it.partial && tokens.len() + new.len() <= LIMIT => {
                    pass(it, &new, None);
                    tokens.extend(new);
                }
                // After a failure it has to be cleared or restored.
                Event::Fail(new, layer) if !it.partial && tokens.len() + new.len() <= LIMIT => {
                    let before = saved.pop();
                    pass(it, &new, Some(layer));
                    match before {
                        Some((snapshot, then)) if it.partial => {
                            it.restore(snapshot);
                            *tokens = then;
                        }
                        before => {
                            saved.extend(before);
                            saved.drain(..).for_each(|(snapshot, _)| it.keep(snapshot));
                            it.clear();
                            tokens.clear();
                        }
                    }
                }
                Event::Save if saved.len() < 3 => saved.push((it.snapshot(), tokens.clone())),
                Event::Restore => {
                    if let Some((snapshot, then)) = saved.pop() {
                        it.restore(snapshot);
                        *tokens = then;
                    }
                }
                Event::Keep => {
                    if let Some((snapshot, _)) = saved.pop() {
                        it.keep(snapshot);
                    }
                }
                Event::Clear => {
                    saved.drain(..).for_each(|(snapshot, _)| it.keep(snapshot));
                    it.clear();
                    tokens.clear();
                }
                Event::Fork => {
                    let sequence = it.fork().unwrap();
                    other = Told { sequence, tokens: tokens.clone(), saved: vec![] };
                }
                Event::Swap => std::mem::swap(&mut one, &mut other),
                // A snapshot of a longer sequence would be invalid.
                Event::Truncate(len) if saved.is_empty() => {
                    let can = it.truncate(len);
                    prop_assert_eq!(can, len == 0 || len >= tokens.len(), "a recurrent layer");
                    if can {
                        tokens.truncate(len);
                    }
                }
                _ => {}
            }
            for Told { sequence: it, tokens, .. } in [&one, &other] {
                let mut alone = sequence(precision, usize::MAX);
                pass(&mut alone, tokens, None);
                prop_assert_eq!(it.len, tokens.len());
                prop_assert_eq!(seen(it), seen(&alone));
            }
        }
    }

    /// Without a recurrent layer, a sequence can be truncated to positions that its windows still
    /// hold.
    #[test]
    fn truncation_leaves_no_trace(
        first in 1usize..200,
        more in 0usize..150,
        cut in prop::option::of((1usize..60, 0usize..6)),
        then in 1usize..80,
    ) {
        let mut it = sequence(KvPrecision::F32, 64);
        it.layers.pop();
        let mut tokens: Vec<u32> = (0..first as u32 + more as u32).collect();
        for chunk in tokens.chunks(50) {
            pass(&mut it, chunk, None);
        }
        // A pass that ends before one of the layers.
        if let Some((cut, layer)) = cut {
            pass(&mut it, &vec![900; cut], Some(layer));
            prop_assert!(!it.truncate(tokens.len() + 1));
            tokens.extend(vec![900; cut]);
        }
        let kept = it.truncate(first);
        // Rows are stored in chunks of 64: after `more` of at most 64, everything in the window is
        // present.
        prop_assert!(kept || tokens.len() > first && tokens.len() > 5 + 63);
        prop_assert!(kept || tokens.len() - first >= 63, "{first} {more} {cut:?}");
        if kept {
            prop_assert!((it.len, it.partial) == (first, false));
            let new: Vec<u32> = (500..500 + then as u32).collect();
            pass(&mut it, &new, None);
            let mut alone = sequence(KvPrecision::F32, 64);
            alone.layers.pop();
            pass(&mut alone, &[&tokens[..first], &new].concat(), None);
            prop_assert_eq!(seen(&it), seen(&alone));
        }
    }

    /// Positions that a ring has overwritten stay lost, however often later ones are dropped.
    #[test]
    fn repeated_truncation_leaves_no_trace(
        first in 1usize..300,
        steps in prop::collection::vec((0usize..60, 1usize..40), 1..6),
    ) {
        let mut it = sequence(KvPrecision::F32, 64);
        it.layers.pop();
        let mut tokens: Vec<u32> = (0..first as u32).collect();
        tokens.chunks(50).for_each(|chunk| pass(&mut it, chunk, None));
        for (number, (back, more)) in steps.into_iter().enumerate() {
            let len = tokens.len().saturating_sub(back);
            if it.truncate(len) {
                tokens.truncate(len);
            }
            let new: Vec<u32> = (0..more as u32).map(|t| 1000 * (number as u32 + 1) + t).collect();
            pass(&mut it, &new, None);
            tokens.extend(new);
            let mut alone = sequence(KvPrecision::F32, 64);
            alone.layers.pop();
            pass(&mut alone, &tokens, None);
            prop_assert_eq!(seen(&it), seen(&alone));
        }
    }
}

#[test]
fn forks_share_pages_until_one_writes() {
    let mut one = sequence(KvPrecision::F32, 64);
    pass(&mut one, &[1; 300], None);
    let page = |sequence: &SequenceState, n: usize| match &sequence.layers[0] {
        LayerState::Kv(kv) => match kv.view().data {
            KvData::F32 { keys, .. } => keys[n].as_ptr(),
            KvData::Bf16 { .. } | KvData::Q8 { .. } => panic!("f32"),
        },
        _ => panic!("keys and values"),
    };
    let mut other = one.fork().unwrap();
    assert!((0..5).all(|n| page(&one, n) == page(&other, n)));
    pass(&mut other, &[2; 1], None);
    assert!((0..4).all(|n| page(&one, n) == page(&other, n)), "full pages stay shared");
    assert_ne!(page(&one, 4), page(&other, 4), "the last is written to");
    // Clearing keeps the sequence's own pages and drops shared ones.
    let held = other.bytes();
    other.clear();
    assert!(other.bytes() < held && other.bytes() > 0);
}

#[test]
fn bytes_are_bounded_by_the_formula() {
    for (window, limit) in [(None, 1), (None, 64), (None, 65), (Some(5), 300), (Some(290), 300)] {
        for precision in KvPrecision::ALL {
            let spec = attention(window);
            let most = KvState::bytes_for(&spec, limit, precision, usize::MAX);
            for page in [64, usize::MAX] {
                let mut kv = KvState::new(&spec, limit, precision, page);
                assert_eq!(kv.bytes(), 0);
                kv.reserve(limit);
                // Keys and values, two heads of three numbers.
                let page_less_one = 2 * 2 * 3 * 4 * 63;
                let found = kv.bytes();
                assert!(
                    (most..=most + page_less_one).contains(&found),
                    "{window:?} {limit} {page}"
                );
                assert!(page == 64 || found == most, "{window:?} {limit}");
            }
        }
    }
}

#[test]
fn bytes_of_latents_are_bounded_by_the_formula() {
    for limit in [1, 64, 65, 300] {
        for precision in KvPrecision::ALL {
            let most = LatentState::bytes_for(&LATENT, limit, precision, usize::MAX);
            assert_eq!(most, (limit * precision.row_bytes(6)) as u64);
            for page in [64, usize::MAX] {
                let mut latent = LatentState::new(&LATENT, limit, precision, page);
                assert_eq!(latent.bytes(), 0);
                latent.reserve(limit);
                let found = latent.bytes();
                let in_pages = LatentState::bytes_for(&LATENT, limit, precision, page);
                assert!(page == 64 || found == most, "{limit} {page}");
                assert!(most <= found && found <= in_pages.max(most), "{limit} {page}");
            }
        }
    }
}

#[test]
fn bytes_of_entries_are_bounded_by_the_formula() {
    for (spec, limit) in [(SPARSE, 4), (SPARSE, 64), (SPARSE, 300), (HEAVY, 9), (HEAVY, 400)] {
        for precision in KvPrecision::ALL {
            for page in [64, usize::MAX] {
                let most = CompressedState::bytes_for(&spec, limit, precision, page);
                let mut state = CompressedState::new(&spec, limit, precision, page);
                assert_eq!(state.bytes(), 0);
                state.reserve(limit);
                let found = state.bytes();
                assert!(
                    found <= most && (page == 64 || found == most),
                    "{limit}: {found} of {most}"
                );
            }
        }
    }
}
