//! A long text, run in chunks: the choices made for its tokens, and the last logits.

use std::path::Path;
use std::time::Duration;

use sws_format::Clock;
use sws_model::{Chunk, ForwardPass, ForwardState, KvPrecision, LayerSpec, LogitRows, Mixer};
use sws_testing::goldens::runnable_from;

use crate::forward::support::Fixture;

/// Positions of a pages of the KV cache.
const PAGE: usize = 512;

/// Everything that a run is compared by.
pub(super) struct Found {
    /// Of each layer with experts: the experts.
    pub(super) routes: Vec<Choices>,
    /// Of each layer with an indexer: the positions, blocks or entries.
    pub(super) selected: Vec<Choices>,
    /// At the last positions.
    pub(super) logits: Vec<f32>,
    /// Bytes of the state of the sequence at its end.
    pub(super) held: u64,
    pub(super) time: Duration,
}

/// What was chosen for each token, by one head after another.
pub(super) struct Choices {
    /// Heads that choose for themselves.
    pub(super) lists: usize,
    /// The first token that saw more than were chosen.
    pub(super) first: usize,
    /// From that token on, or from the first where the earlier ones are known as well; ascending.
    pub(super) rows: Vec<Vec<u32>>,
}

impl Choices {
    fn of(lists: usize, first: usize) -> Choices {
        Choices { lists, first, rows: Vec::new() }
    }
}

/// Runs the checkpoint in `dir` over a text, in chunks, and keeps `kept` of the last logits.
pub(super) fn run(dir: &Path, tokens: &[u32], chunk: usize, kept: usize) -> Found {
    let runnable = runnable_from(dir);
    let fixture = Fixture::at(&runnable.dir);
    let (spec, mut source) = (&fixture.spec, fixture.source());
    assert!(spec.context >= tokens.len(), "{}: a context of {}", dir.display(), spec.context);
    let model = ForwardPass::new(spec.clone());
    let mut state = ForwardState::new(spec, tokens.len(), KvPrecision::F32).with_pages(PAGE);
    let sequence = state.add_sequence(spec);
    state.note_selections();
    let mut routes: Vec<_> =
        spec.in_order().map(|layer| layer.moe().map(|_| Choices::of(1, 0))).collect();
    let mut selected: Vec<_> = spec.in_order().map(selecting).collect();
    let (mut logits, mut first) = (Vec::new(), 0);
    let clock = Clock::real();
    let start = clock.now();
    for chunk in tokens.chunks(chunk) {
        model.begin(&mut state, &[Chunk { sequence, tokens: chunk }], &mut source).unwrap();
        for (l, layer) in spec.in_order().enumerate() {
            model.layer(l, &mut state, &mut source).unwrap();
            if let (Some(moe), Some(routes)) = (layer.moe(), &mut routes[l]) {
                let choices = state.routed().choices.chunks(moe.top_k);
                routes.rows.extend(choices.map(|row| {
                    let mut row = row.to_vec();
                    row.sort_unstable();
                    row
                }));
            }
            if let Some(selected) = &mut selected[l] {
                selected.rows.extend(selections(layer, &mut state, (first, chunk.len())));
            }
        }
        first += chunk.len();
        logits.extend_from_slice(model.logits(LogitRows::All, &mut state, &mut source).unwrap());
        logits.drain(..logits.len().saturating_sub(kept * spec.vocab));
    }
    let (time, held) = (clock.now() - start, state.held_bytes(sequence));
    assert_eq!(held, ForwardState::paged_bytes(spec, tokens.len(), KvPrecision::F32, PAGE));
    let [routes, selected] = [routes, selected].map(|all| all.into_iter().flatten().collect());
    Found { routes, selected, logits, held, time }
}

/// The choices of a layer that selects, with none yet.
fn selecting(layer: &LayerSpec) -> Option<Choices> {
    match &layer.mixer {
        Mixer::Latent(latent) => {
            let sparse = latent.sparse.filter(|sparse| sparse.indexer.is_some())?;
            Some(Choices::of(1, sparse.most))
        }
        Mixer::Attention(attention) => {
            let blocks = attention.extras.blocks?;
            Some(Choices::of(blocks.heads, blocks.positions()))
        }
        Mixer::Compressed(spec) => {
            let (pools, indexer) = (spec.pools?, spec.indexer()?);
            Some(Choices::of(1, (indexer.most + 1) * pools.ratio - 1))
        }
        _ => None,
    }
}

/// The selections of a layer for the tokens of a chunk.
fn selections(
    layer: &LayerSpec,
    state: &mut ForwardState,
    (first, tokens): (usize, usize),
) -> Vec<Vec<u32>> {
    let noted = state.take_selections();
    match &layer.mixer {
        Mixer::Latent(_) => {
            let row = |row| match state.selected(row) {
                Some(list) => list.to_vec(),
                None => (0..(first + row + 1) as u32).collect(),
            };
            (0..tokens).map(row).collect()
        }
        Mixer::Attention(attention) => {
            let blocks = attention.extras.blocks.expect("a layer that selects");
            let list = |positions: &[u32]| {
                let known = positions.iter().filter(|&&position| position != u32::MAX);
                let mut list: Vec<u32> = known.map(|&it| it / blocks.size as u32).collect();
                list.dedup();
                list
            };
            noted.chunks(blocks.positions()).map(list).collect()
        }
        Mixer::Compressed(spec) => {
            let indexer = spec.indexer().expect("a layer that selects");
            noted.chunks(indexer.most).map(<[u32]>::to_vec).collect()
        }
        _ => unreachable!("a layer that selects"),
    }
}
