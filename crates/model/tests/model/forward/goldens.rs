//! Logits equal those of transformers.

use sws_model::CausalLm;

use crate::forward::support::{Fixture, Recorder, argmax, variants};

#[test]
fn logits_and_routes_of_every_position() {
    for name in variants() {
        let fixture = Fixture::open(&name);
        let golden = fixture.golden();
        let mut seen = Recorder::default();
        fixture.session().score(&golden.tokens, &mut seen).unwrap();
        assert_eq!(seen.logits.len(), golden.logits.len(), "{name}");
        let pairs = || seen.logits.iter().zip(&golden.logits);
        let worst = pairs().map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let largest = golden.logits.iter().fold(1.0, |m: f32, x| m.max(x.abs()));
        assert!(pairs().all(|(a, b)| (a - b).abs() < 1e-4 * largest), "{name}: {worst}");
        let routes: Vec<u32> = golden
            .moe_layers
            .iter()
            .flat_map(|&layer| seen.routes[&(layer as usize)].clone())
            .collect();
        assert_eq!(routes, golden.routes, "{name}");
        assert_eq!(seen.routes.len(), golden.moe_layers.len(), "{name}");
    }
}

#[test]
fn greedy_tokens_with_cache() {
    for name in variants() {
        let fixture = Fixture::open(&name);
        let golden = fixture.golden();
        let mut session = fixture.session();
        let mut tokens = vec![argmax(session.prefill(&golden.tokens).unwrap())];
        while tokens.len() < golden.greedy.len() {
            tokens.push(argmax(session.decode(tokens[tokens.len() - 1]).unwrap()));
        }
        assert_eq!(tokens, golden.greedy, "{name}");
    }
}

#[test]
fn greedy_tokens_without_cache() {
    for name in variants() {
        let fixture = Fixture::open(&name);
        let golden = fixture.golden();
        let mut session = fixture.session();
        let mut tokens = golden.tokens.clone();
        for expected in golden.greedy {
            session.clear();
            let next = argmax(session.prefill(&tokens).unwrap());
            assert_eq!(next, expected, "{name} after {} tokens", tokens.len());
            tokens.push(next);
        }
    }
}
