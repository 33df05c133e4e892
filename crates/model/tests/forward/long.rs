//! Long texts: the experts and positions that are chosen for each token, and the last logits, equal
//! those of transformers.

use std::path::Path;

use sws_model::{Chunk, KvPrecision, Mixer, Model, Rows, State};
use sws_testing::goldens::{Tensors, runnable_from};

use crate::support::{Fixture, goldens};

/// Choices whose margin is smaller may differ: honest rounding could choose otherwise. Exact ties may
/// not: the lower position comes first.
const MARGIN: f32 = 1e-5;

/// Choices compared, and those left out.
#[derive(Debug, Default)]
struct Compared {
    all: usize,
    left_out: usize,
}

impl Compared {
    /// Compares sorted choices, one row per token.
    fn rows(&mut self, what: &str, (found, expected): (&[u32], &[u32]), margins: &[f32]) {
        let width = expected.len() / margins.len();
        assert_eq!(found.len(), expected.len(), "{what}");
        let rows = found.chunks(width).zip(expected.chunks(width));
        for (token, ((found, expected), &margin)) in rows.zip(margins).enumerate() {
            self.all += 1;
            match margin > MARGIN || margin == 0.0 {
                true => assert_eq!(found, expected, "{what}, token {token}, margin {margin}"),
                false => self.left_out += 1,
            }
        }
    }
}

#[expect(clippy::print_stdout, reason = "the figures of a long run")]
fn check(dir: &Path, chunk: usize) -> Compared {
    let file = Tensors::read(&dir.join("long.safetensors"));
    let runnable = runnable_from(dir);
    let fixture = Fixture::at(&runnable.dir);
    let (spec, mut source) = (&fixture.spec, fixture.source());
    let tokens = file.integers("tokens");
    let model = Model::new(spec.clone());
    let mut state = State::new(spec, tokens.len(), KvPrecision::F32).with_pages(512);
    let sequence = state.add_sequence(spec);
    // Of each layer: the experts, and the positions.
    let mut routes = vec![Vec::new(); spec.layers.len()];
    let mut selected = vec![Vec::new(); spec.layers.len()];
    let (mut logits, mut first) = (Vec::new(), 0);
    for chunk in tokens.chunks(chunk) {
        model.begin(&mut state, &[Chunk { sequence, tokens: chunk }], &mut source).unwrap();
        for (l, layer) in spec.layers.iter().enumerate() {
            model.layer(l, &mut state, &mut source).unwrap();
            if let Some(moe) = layer.moe() {
                for row in state.routed().choices.chunks(moe.top_k) {
                    let mut row = row.to_vec();
                    row.sort_unstable();
                    routes[l].extend(row);
                }
            }
            let Mixer::Latent(latent) = &layer.mixer else { continue };
            let Some(sparse) = latent.sparse.filter(|sparse| sparse.indexer.is_some()) else {
                continue;
            };
            for row in 0..chunk.len() {
                let seen = first + row + 1;
                match state.selected(row) {
                    Some(list) => selected[l].extend_from_slice(list),
                    None => selected[l].extend(0..seen as u32),
                }
                selected[l].extend(vec![u32::MAX; sparse.most.saturating_sub(seen)]);
            }
        }
        first += chunk.len();
        logits.extend_from_slice(model.logits(Rows::All, &mut state, &mut source).unwrap());
        let kept = file.0["logits"].1[0] * spec.vocab;
        logits.drain(..logits.len().saturating_sub(kept));
    }

    let mut compared = Compared::default();
    for (kind, margins, choices) in
        [("routes", "route_margins", routes), ("selected", "selected_margins", selected)]
    {
        let layers = choices.iter().filter(|choices| !choices.is_empty());
        for (number, found) in layers.enumerate() {
            let name = format!("{kind}.{number}");
            let mut expected = file.integers(&name);
            let margins = file.floats(&format!("{margins}.{number}"));
            let width = expected.len() / margins.len();
            if kind == "selected" {
                // Positions that a token does not see fill up its list.
                for (token, row) in expected.chunks_mut(width).enumerate() {
                    let unseen = |position: &&mut u32| **position > token as u32;
                    row.iter_mut().filter(unseen).for_each(|position| *position = u32::MAX);
                }
            }
            compared.rows(&format!("{} {name}", dir.display()), (found, &expected), &margins);
        }
    }
    let expected = file.floats("logits");
    assert_eq!(logits.len(), expected.len());
    let largest = expected.iter().fold(1.0, |m: f32, x| m.max(x.abs()));
    let pairs = logits.iter().zip(&expected).map(|(a, b)| (a - b).abs());
    let worst = pairs.fold(0.0, f32::max);
    println!("{}: largest difference {:.1e} of {largest}, {compared:?}", dir.display(), worst);
    assert!(worst < 1e-4 * largest, "{}: {worst}", dir.display());
    // The share that may be left out.
    assert!(compared.left_out * 1000 <= compared.all, "{compared:?}");
    compared
}

#[test]
fn choices_in_a_text_of_hundreds_of_tokens() {
    let mut checked = 0;
    for entry in goldens().read_dir().unwrap() {
        let dir = entry.unwrap().path();
        if dir.join("long.safetensors").exists() {
            assert!(check(&dir, 150).all > 0, "{}", dir.display());
            checked += 1;
        }
    }
    assert!(checked >= 2, "{checked}");
}

/// Checkpoints with a text that `generate.py --long` has written; see the README of the goldens.
#[test]
#[ignore = "set SWS_LONG to a folder that `generate.py --long` has written"]
fn choices_in_a_very_long_text() {
    let folder = std::env::var_os("SWS_LONG").expect("SWS_LONG");
    for entry in Path::new(&folder).read_dir().unwrap() {
        check(&entry.unwrap().path(), 512);
    }
}
