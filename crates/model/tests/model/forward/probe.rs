//! Routers queried early rank experts as the pass does.

use sws_kernels::Tier;
use sws_kernels::functional::top_k;
use sws_model::{Chunk, ForwardPass, ForwardState, KvPrecision, RouterProbe, WeightSource};

use crate::forward::support::{Fixture, variants};

#[test]
fn a_probe_of_the_state_after_attention_gives_the_choices_of_the_pass() {
    for name in variants() {
        let fixture = Fixture::open(&name);
        let (spec, mut source) = (&fixture.spec, fixture.source());
        let model = ForwardPass::new(spec.clone());
        let mut probe = RouterProbe::new(Tier::best());
        let mut state = ForwardState::new(spec, usize::MAX, KvPrecision::F32);
        let sequence = state.add_sequence(spec);
        let tokens = &fixture.golden().tokens;
        model.begin(&mut state, &[Chunk { sequence, tokens }], &mut source).unwrap();
        for (visit, layer) in spec.in_order().enumerate() {
            let l = spec.layer_of(visit);
            let before = state.hidden().to_vec();
            model.attend(visit, &mut state, &mut source).unwrap();
            // A table gives experts without a state.
            if let Some(moe) = layer.moe().filter(|moe| !moe.has_table()) {
                // A router beside attention selects from the state before it.
                let hidden = if layer.residual.parallel { &before[..] } else { state.hidden() };
                let mut scores = vec![f32::NAN; tokens.len() * moe.experts];
                let mut done = false;
                let asked = source.infrastructure(l, &[], &mut |weights| {
                    done = probe.scores(spec, l, weights, hidden, &mut scores);
                    Ok(())
                });
                asked.unwrap();
                // Messages of earlier rounds are not known from a state.
                assert_eq!(done, spec.times(l) == 1, "{name}: layer {l}");
                if !done {
                    scores.clear();
                }
                assert!(scores.iter().all(|score| score.is_finite()), "{name}: layer {l}");
                let mut found = Vec::new();
                for scores in scores.chunks_exact(moe.experts) {
                    let mut best = vec![0; moe.top_k];
                    top_k(scores, &mut best);
                    found.extend(best);
                }
                let routed = state.routed();
                let weighted =
                    routed.choices.chunks(moe.top_k).zip(routed.weights.chunks(moe.top_k));
                for ((choices, weights), found) in weighted.zip(found.chunks(moe.top_k)) {
                    // Choices that return their input take places of experts.
                    let real = choices.iter().zip(weights).filter(|(_, weight)| **weight != 0.0);
                    let real: Vec<u32> = real.map(|(choice, _)| *choice).collect();
                    assert_eq!(found[..real.len()], real, "{name}: layer {l}");
                    assert!(moe.identities > 0 || real.len() == moe.top_k, "{name}: layer {l}");
                }
            }
            model.share(visit, &mut state, &mut source).unwrap();
            model.finish(visit, &mut state, &mut source).unwrap();
        }
    }
}
