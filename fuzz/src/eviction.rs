//! Any bytes as the correction of a tiny model's evictions, which then sees steps and states.

use std::sync::Arc;

use sws_cache::SavedTensors;
use sws_cache::correction::{Correction, Corrections};
use sws_cache::history::{History, HistoryShape};
use sws_cache::policy::{ExpertLayers, PolicyKind, RouterChoice};
use sws_format::{Dtype, Pass};

/// The model that the correction must match.
const MODEL: &str = "m";
const SHAPE: HistoryShape = HistoryShape { layers: 2, experts: 4, top_k: 2 };
const HIDDEN: usize = 4;

/// True if the bytes were accepted: as they are, or as the numbers in an otherwise valid file.
pub(crate) fn check(data: &[u8]) -> bool {
    let whole = passes(data);
    let numbers = data.split_first().is_some_and(|(&form, numbers)| passes(&filled(form, numbers)));
    whole || numbers
}

/// A file of one of five forms, whose first numbers are replaced. The last is one from which learning goes on.
fn filled(form: u8, numbers: &[u8]) -> Vec<u8> {
    let (hidden, rank) = match form {
        u8::MAX => (HIDDEN, 16),
        _ => [(0, 0), (0, 2), (HIDDEN, 1), (HIDDEN, 3)][usize::from(form % 4)],
    };
    let mut saved = SavedTensors::default();
    Correction::new(SHAPE, hidden, rank).save(&mut saved);
    saved.push("correction.changes", Dtype::F32, &[SHAPE.layers], vec![0; 4 * SHAPE.layers]);
    let mut file = saved.write(MODEL);
    let header = 8 + u64::from_le_bytes(*file.first_chunk().expect("a header")) as usize;
    let len = numbers.len().min(file.len() - header);
    file[header..][..len].copy_from_slice(&numbers[..len]);
    file
}

fn passes(file: &[u8]) -> bool {
    let recalled = |file: &[u8]| {
        let saved = SavedTensors::read(file, MODEL).ok()?;
        Correction::recall(&saved, SHAPE).ok()?
    };
    let Some(correction) = recalled(file) else { return false };
    let correction = Arc::new(correction);
    let mut history = History::new(SHAPE, 1);
    history.correct(Corrections::Fitted(Arc::clone(&correction)));
    for step in 0..4u32 {
        for layer in 0..SHAPE.layers {
            history.step(layer, 0, &[step, 3 - step], Some(step));
            let state = [0.5, -1.0, step as f32 * 1e10, layer as f32];
            history.note_state(layer, 0, &state);
            check_chances(&mut history, layer);
        }
    }
    learns_on(file);
    let mut saved = SavedTensors::default();
    correction.save(&mut saved);
    assert_eq!(recalled(&saved.write(MODEL)).as_ref(), Some(&*correction));
    true
}

/// A policy that has learned the correction in the file, or begins anew, learns on from it.
fn learns_on(file: &[u8]) {
    let layers = ExpertLayers {
        count: SHAPE.layers as u32,
        with_experts: vec![0, 1],
        visits: Vec::new(),
        experts: SHAPE.experts,
        top_k: SHAPE.top_k,
        sequences: 1,
    };
    let learned = Corrections::Learned { hidden: HIDDEN };
    let mut policy = PolicyKind::Expected.build_corrected(layers.clone(), learned);
    let mut saved = SavedTensors::default();
    PolicyKind::Expected.build(layers).save(&mut saved);
    saved.keep_correction(SavedTensors::read(file, MODEL).expect("it was accepted"));
    let _ = policy.recall(&saved);
    for step in 0..360u32 {
        let pass = Pass::single(step as usize, &[step % 7]);
        policy.begin(&pass);
        for layer in 0..SHAPE.layers as u32 {
            let experts = [step % 3, 3 - step % 2];
            policy.routed(&RouterChoice { pass: &pass, layer, experts: &experts });
            policy.on_router_state(layer, 0, &[0.5, -1.0, step as f32, layer as f32]);
            policy.on_layer_demanded(layer);
        }
    }
    let mut saved = SavedTensors::default();
    policy.save(&mut saved);
    policy.recall(&saved).expect("what a policy saves is what it reads");
}

fn check_chances(history: &mut History, layer: usize) {
    let absence = history.absence(layer);
    let spans = [absence.within_1, absence.within_4, absence.within_16, absence.within_64];
    for expert in 0..SHAPE.experts {
        let mut before = 1.0;
        for p in spans.map(|span| span[expert]) {
            assert!((0.0..=before).contains(&p), "a chance of {p} after {before}");
            before = p;
        }
    }
}
