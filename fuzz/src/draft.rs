//! Any bytes as the learned file of a tiny model: as its draft, which then processes tokens.

use sws_draft::{Draft, DraftShape, DraftSize, Gates, MicroDraftModel};
use sws_format::Pass;

/// Fingerprint of the model that the draft must match.
const FINGERPRINT: &str = "m";

/// Shape of the draft.
fn shape() -> DraftShape {
    DraftShape { hidden: 4, layers: vec![0, 2], experts: 4, top_k: 2, sequences: 1 }
}

/// Routers of the model.
struct Routers;

impl Gates for Routers {
    fn logits(&mut self, layer: usize, state: &[f32], logits: &mut [f32]) -> bool {
        for (state, logits) in state.chunks(4).zip(logits.chunks_mut(4)) {
            for (expert, logit) in logits.iter_mut().enumerate() {
                *logit = state[expert] * (layer as f32 - 0.5);
            }
        }
        true
    }
}

/// True if the bytes were accepted: as they are, or as the numbers in an otherwise valid draft.
pub(crate) fn check(data: &[u8]) -> bool {
    let whole = passes(data);
    let numbers = data.split_first().is_some_and(|(&form, numbers)| passes(&filled(form, numbers)));
    whole || numbers
}

/// A draft of one of four sizes, whose first numbers are replaced.
fn filled(form: u8, numbers: &[u8]) -> Vec<u8> {
    let sizes = [(0, 0, 0), (1, 4, 1), (2, 4, 4), (0, 8, 2)];
    let (rank, tokens, distances) = sizes[usize::from(form % 4)];
    let draft = MicroDraftModel::new(shape(), DraftSize { rank, tokens, distances });
    let mut file = draft.write(FINGERPRINT);
    let header = 8 + u64::from_le_bytes(*file.first_chunk().expect("a header")) as usize;
    let len = numbers.len().min(file.len() - header);
    file[header..][..len].copy_from_slice(&numbers[..len]);
    file
}

fn passes(file: &[u8]) -> bool {
    let shape = shape();
    let Ok(Some(mut draft)) = MicroDraftModel::read(file, &shape, FINGERPRINT, 1 << 20) else {
        return false;
    };
    let limit = MicroDraftModel::most_bytes(&shape, 1 << 10);
    for token in 0..3 {
        draft.begin(&Pass::single(token as usize, &[token]));
        for layer in 0..3 {
            let state = [0.5, -1.0, token as f32, layer as f32];
            for attended in [false, true] {
                let said = match attended {
                    false => draft.entering(layer, &state, &mut Routers),
                    true => draft.attended(layer, &state, &mut Routers),
                };
                for p in said.unwrap_or_default().iter().flat_map(|layer| &layer.expert_probs) {
                    assert!((0.0..=1.0).contains(p), "a probability of {p}");
                }
                if !attended && layer != 1 {
                    draft.adapt(layer, &[token % 4, 3 - token % 4], 2);
                }
            }
        }
    }
    let written = draft.write(FINGERPRINT);
    assert!(written.len() <= limit);
    let read = MicroDraftModel::read(&written, &shape, FINGERPRINT, 1 << 20);
    assert!(read.expect("what was written can be read").is_some());
    true
}
