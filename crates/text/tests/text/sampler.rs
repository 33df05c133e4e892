//! Selection of a token from logits: order and meaning of each step, ties, invalid logits. The draw
//! is tested in `draws.rs`.

use std::path::Path;

use proptest::prelude::*;
use safetensors::SafeTensors;
use serde::Deserialize;
use sws_text::{SampleError, Sampler, Sampling};

/// Samples from all tokens, without any filter.
fn plain() -> Sampling {
    Sampling { temperature: 1.0, ..Sampling::default() }
}

/// The tokens kept after this prompt and text, with their probabilities.
fn kept(sampling: &Sampling, prompt: &[u32], text: &[u32], logits: &[f32]) -> Vec<(u32, f64)> {
    let mut sampler = Sampler::new(sampling.clone(), logits.len());
    sampler.prompt(prompt).unwrap();
    sampler.generated(text).unwrap();
    sampler.distribution(&mut logits.to_vec()).unwrap()
}

fn ids(kept: &[(u32, f64)]) -> Vec<u32> {
    kept.iter().map(|&(id, _)| id).collect()
}

#[test]
fn greedy_takes_the_largest_and_the_first_on_ties() {
    let cases: [(&[f32], u32); 6] = [
        (&[1.0], 0),
        (&[1.0, 3.0, 2.0], 1),
        (&[1.0, 3.0, 3.0], 1),
        (&[-0.0, 0.0], 0),
        (&[f32::NEG_INFINITY, -1e30], 1),
        (&[-2.0, -1.0, -1.0], 1),
    ];
    for (logits, expected) in cases {
        let mut sampler = Sampler::new(Sampling::default(), logits.len());
        assert_eq!(sampler.sample(&mut logits.to_vec(), 0), Ok(expected), "{logits:?}");
    }
}

#[test]
fn filters_keep_the_same_tokens_as_transformers() {
    // Probabilities 0.5, 0.25, 0.125, 0.125, in another order.
    let logits = [0.125f32, 0.5, 0.125, 0.25].map(f32::ln);
    let cases: [(Sampling, &[u32]); 15] = [
        (plain(), &[0, 1, 2, 3]),
        (Sampling { top_k: 1, ..plain() }, &[1]),
        (Sampling { top_k: 2, ..plain() }, &[1, 3]),
        // Tokens equal to the k-th are kept.
        (Sampling { top_k: 3, ..plain() }, &[0, 1, 2, 3]),
        (Sampling { top_k: 9, ..plain() }, &[0, 1, 2, 3]),
        (Sampling { top_p: 0.0, ..plain() }, &[1]),
        (Sampling { top_p: 0.4, ..plain() }, &[1]),
        (Sampling { top_p: 0.6, ..plain() }, &[1, 3]),
        (Sampling { top_p: 0.8, ..plain() }, &[0, 1, 3]),
        (Sampling { top_p: 1.0, ..plain() }, &[0, 1, 2, 3]),
        (Sampling { min_p: 0.6, ..plain() }, &[1]),
        (Sampling { min_p: 0.3, ..plain() }, &[1, 3]),
        (Sampling { min_p: 1.0, ..plain() }, &[1]),
        // Top-p applies to the result of top-k: of 2/3 and 1/3, the first alone reaches 0.6.
        (Sampling { top_k: 2, top_p: 0.6, ..plain() }, &[1]),
        // Temperature comes first: squared and renormalised, the first has 0.73.
        (Sampling { temperature: 0.5, top_p: 0.6, ..plain() }, &[1]),
    ];
    for (sampling, expected) in cases {
        let kept = kept(&sampling, &[], &[], &logits);
        assert_eq!(ids(&kept), expected, "{sampling:?}");
        let sum: f64 = kept.iter().map(|(_, p)| p).sum();
        assert!((sum - 1.0).abs() < 1e-12, "{sampling:?}: {sum}");
    }
}

#[test]
fn penalties_act_on_the_logits_of_earlier_tokens() {
    let logits = [2.0f32, -2.0, 1.0];
    // Settings, prompt, text, and the resulting logits.
    type Case = (Sampling, &'static [u32], &'static [u32], [f32; 3]);
    let cases: [Case; 8] = [
        (plain(), &[0], &[1], logits),
        (Sampling { repetition_penalty: 2.0, ..plain() }, &[0, 1], &[], [1.0, -4.0, 1.0]),
        // Applied once, however often the token occurred.
        (Sampling { repetition_penalty: 2.0, ..plain() }, &[0, 0], &[0, 0], [1.0, -2.0, 1.0]),
        (Sampling { presence_penalty: 0.5, ..plain() }, &[], &[0, 0, 1], [1.5, -2.5, 1.0]),
        (Sampling { frequency_penalty: 0.5, ..plain() }, &[], &[0, 0, 1], [1.0, -2.5, 1.0]),
        // These two penalties apply to the text, not to the prompt.
        (Sampling { presence_penalty: 0.5, ..plain() }, &[0], &[2], [2.0, -2.0, 0.5]),
        (
            Sampling { presence_penalty: 0.5, frequency_penalty: 0.25, ..plain() },
            &[2],
            &[0, 0],
            [1.0, -2.0, 1.0],
        ),
        (
            Sampling { repetition_penalty: 2.0, presence_penalty: 0.5, ..plain() },
            &[],
            &[0],
            [0.5, -2.0, 1.0],
        ),
    ];
    for (sampling, prompt, text, expected) in cases {
        let mut sampler = Sampler::new(sampling.clone(), 3);
        sampler.prompt(prompt).unwrap();
        sampler.generated(text).unwrap();
        let mut changed = logits;
        sampler.distribution(&mut changed).unwrap();
        assert_eq!(changed, expected, "{sampling:?} after {prompt:?} and {text:?}");
    }
    // Penalties also apply when the likeliest token is taken.
    let greedy = Sampling { repetition_penalty: 4.0, ..Sampling::default() };
    assert_eq!(ids(&kept(&greedy, &[0], &[], &logits)), [2]);
}

#[test]
fn invalid_logits_are_an_error() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    for temperature in [0.0, 1.0] {
        let sampling = Sampling { temperature, ..Sampling::default() };
        let sample = |logits: [f32; 3]| {
            let mut logits = logits;
            Sampler::new(sampling.clone(), 3).sample(&mut logits, 0).unwrap_err()
        };
        assert!(matches!(sample([0.0, nan, inf]), SampleError::NotFinite { id: 1, .. }));
        assert_eq!(sample([0.0, 0.0, inf]), SampleError::NotFinite { id: 2, value: inf });
        assert_eq!(sample([-inf; 3]), SampleError::Nothing);
    }
    let error = Sampler::new(plain(), 3).prompt(&[1, 3]).unwrap_err();
    assert_eq!(error.to_string(), "token 3 is outside the vocabulary of 3 tokens");
}

/// A case recorded from transformers.
#[derive(Deserialize)]
struct Recorded {
    name: String,
    compare: String,
    prompt: Vec<u32>,
    generated: Vec<u32>,
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    repetition_penalty: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
}

#[test]
fn logits_processors_match_transformers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens");
    let cases = std::fs::read(folder.join("logits_processors.json")).unwrap();
    let cases: Vec<Recorded> = serde_json::from_slice(&cases).unwrap();
    let file = std::fs::read(folder.join("logits_processors.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let row = |name: String| -> Vec<f32> {
        let (bytes, _) = tensors.tensor(&name).unwrap().data().as_chunks::<4>();
        bytes.iter().map(|b| f32::from_le_bytes(*b)).collect()
    };
    assert!(cases.len() > 40);
    for case in cases {
        let Recorded { name, temperature, top_k, top_p, min_p, .. } = case;
        let Recorded { repetition_penalty, presence_penalty, frequency_penalty, .. } = case;
        let sampling = Sampling {
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            dry: None,
            seed: 0,
        };
        let mut logits = row(format!("{name}.logits"));
        let expected = row(format!("{name}.expected"));
        let mut sampler = Sampler::new(sampling, logits.len());
        sampler.prompt(&case.prompt).unwrap();
        sampler.generated(&case.generated).unwrap();
        let kept = sampler.distribution(&mut logits).unwrap();
        let expected_ids: Vec<u32> =
            (0..).zip(&expected).filter(|(_, x)| x.is_finite()).map(|(id, _)| id).collect();
        if case.compare == "count" {
            assert_eq!(kept.len(), expected_ids.len(), "{name}");
            continue;
        }
        assert_eq!(ids(&kept), expected_ids, "{name}");
        let largest = expected.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weight = |id: u32| f64::from(expected[id as usize] - largest).exp();
        let total: f64 = expected_ids.iter().map(|&id| weight(id)).sum();
        for (id, p) in kept {
            let (found, expected) = (logits[id as usize], expected[id as usize]);
            assert!((found - expected).abs() <= 1e-6 * expected.abs().max(1.0), "{name}: {id}");
            assert!((p - weight(id) / total).abs() < 1e-6, "{name}: {id}");
        }
    }
}

proptest! {
    /// Compares with the definitions in their plainest form, where everything is sorted.
    #[test]
    fn filters_match_their_definitions(
        logits in prop::collection::vec(-6i8..6, 1..400),
        top_k in 0usize..40,
        top_p in 0u8..=20,
        min_p in 0u8..10,
    ) {
        // Steps of 1/2 make ties at every border.
        let logits: Vec<f32> = logits.iter().map(|&x| f32::from(x) / 2.0).collect();
        let (top_p, min_p) = (f32::from(top_p) / 20.0, f32::from(min_p) / 20.0);
        let sampling = Sampling { top_k, top_p, min_p, ..plain() };

        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
        if top_k > 0 && top_k < order.len() {
            let least = logits[order[top_k - 1]];
            order.retain(|&id| logits[id] >= least);
        }
        let weight = |id: usize| f64::from(logits[id]).exp();
        let total: f64 = order.iter().map(|&id| weight(id)).sum();
        let mut before = 0.0;
        let mut near = false;
        order.retain(|&id| {
            let share = before / total;
            near |= (share - f64::from(top_p)).abs() < 1e-6;
            before += weight(id);
            top_p == 1.0 || share < f64::from(top_p) || share == 0.0
        });
        let largest = weight(order[0]);
        order.retain(|&id| weight(id) >= f64::from(min_p) * largest);
        order.sort();
        // If a share equals the limit to the last digit, rounding may decide.
        prop_assume!(!near || top_p == 0.0);

        let found = kept(&sampling, &[], &[], &logits);
        prop_assert_eq!(ids(&found), order.iter().map(|&id| id as u32).collect::<Vec<_>>());
        let total: f64 = order.iter().map(|&id| weight(id)).sum();
        for (id, p) in found {
            prop_assert!((p - weight(id as usize) / total).abs() < 1e-6);
        }
    }
}
