use crate::history::HistoryShape;
use proptest::prelude::*;

use super::*;

fn trace(shape: HistoryShape, sequences: &[Vec<Vec<u32>>]) -> Trace {
    let mut trace = Trace::new(shape).unwrap();
    for sequence in sequences {
        for token in sequence {
            let layers: Vec<&[u32]> = token.chunks(shape.top_k).collect();
            trace.push(&[0], &layers).unwrap();
        }
        trace.end_sequence();
    }
    trace
}

fn traces() -> impl Strategy<Value = Trace> {
    (1usize..4, 2usize..9, 1usize..3).prop_flat_map(|(layers, experts, top_k)| {
        let token = prop::collection::vec(0..experts as u32, layers * top_k);
        let sequence = prop::collection::vec(token, 1..20);
        let shape = HistoryShape { layers, experts, top_k };
        prop::collection::vec(sequence, 1..5).prop_map(move |sequences| trace(shape, &sequences))
    })
}

fn run(replay: &Replay<'_>, policy: ReplayPolicy, slots: usize) -> ReplayOutcome {
    replay.run(policy, slots, &mut |_| {})
}

proptest! {
    #[test]
    fn no_policy_misses_less_than_belady(trace in traces(), batch in 1usize..4, more in 0usize..12) {
        let HistoryShape { layers, experts, top_k } = trace.shape();
        let most = (batch * top_k).min(experts);
        // Everything is counted here: the optimum of the whole need not be that of its second half.
        let replay = Replay::new(&trace, batch).without_warming();
        let best = run(&replay, ReplayPolicy::Belady, most + more);
        for kind in PolicyKind::ALL {
            let other = run(&replay, ReplayPolicy::Engine(kind), most + more);
            prop_assert_eq!(best.uses, other.uses);
            prop_assert!(best.misses <= other.misses, "{} above {} of {}", best.misses, other.misses, kind);
        }
        // With a slot for every piece, each piece is read once.
        let roomy = run(&replay, ReplayPolicy::Engine(PolicyKind::Lru), layers * experts);
        let used = replay.uses().iter().filter(|uses| !uses.is_empty()).count();
        prop_assert_eq!(roomy.misses as usize, used);
    }

    #[test]
    fn a_tier_takes_uses_from_the_cache_and_none_is_lost(trace in traces(), room in 0usize..40, slots in 2usize..20, governed in any::<bool>()) {
        let times = AssumedTimes { here: 2.0, there: 1.0, read: 9.0, copy: 1.0, layer: 1.0 };
        let replay = Replay::new(&trace, 1).without_warming();
        let alone = run(&replay, ReplayPolicy::Engine(PolicyKind::Lru), slots);
        let replay = replay.with_tier(ReplayTier { slots: room, governed, times });
        let tiered = run(&replay, ReplayPolicy::Engine(PolicyKind::Lru), slots);
        let TierOutcome { hits, copies } = tiered.tier.unwrap();
        let in_cache: u64 = tiered.layers.iter().map(|layer| layer.hits + layer.misses).sum();
        prop_assert_eq!((tiered.uses, in_cache + hits), (alone.uses, alone.uses));
        prop_assert!(room > 0 || (hits, copies, tiered.misses) == (0, 0, alone.misses));
        if !governed && room >= trace.shape().layers * trace.shape().experts {
            // Each expert is read once, copied at once, and computed there ever after.
            prop_assert_eq!((tiered.misses, copies, hits), (copies, copies, alone.uses - copies));
        }
    }

    #[test]
    fn every_token_is_replayed_once(trace in traces(), batch in 1usize..5) {
        let replay = Replay::new(&trace, batch);
        let mut tokens: Vec<usize> = replay.passes.iter().flatten().flat_map(|part| part.tokens.clone()).collect();
        tokens.sort_unstable();
        prop_assert_eq!(tokens, (0..trace.token_count()).collect::<Vec<_>>());
        prop_assert!(replay.passes.iter().all(|pass| pass.len() <= batch));
    }
}

#[test]
fn sequences_share_passes_or_have_turns() {
    let shape = HistoryShape { layers: 1, experts: 4, top_k: 1 };
    let sequences = [5, 3, 2].map(|len| vec![vec![0]; len]);
    let trace = trace(shape, &sequences);
    let passes = |replay: Replay<'_>| -> Vec<Vec<(usize, usize)>> {
        let part = |part: &PassPart| (part.sequence, part.tokens.start);
        replay.passes.iter().map(|pass| pass.iter().map(part).collect()).collect()
    };
    // The first sequence warms; the others, of tokens 5 to 7 and 8 to 9, are counted.
    let together = Replay::new(&trace, 2);
    assert_eq!(together.counted, 5);
    assert_eq!(passes(together)[5..], [vec![(0, 5), (1, 8)], vec![(0, 6), (1, 9)], vec![(0, 7)]]);
    let turns = Replay::in_turns(&trace, 2, 2);
    assert_eq!(passes(turns)[5..], [(0, 5), (0, 6), (1, 8), (1, 9), (0, 7)].map(|part| vec![part]));
}

#[test]
fn first_half_warms_and_second_is_counted() {
    let shape = HistoryShape { layers: 1, experts: 4, top_k: 1 };
    let of = |lens: &[usize]| {
        let sequences: Vec<_> = lens.iter().map(|&len| vec![vec![0]; len]).collect();
        trace(shape, &sequences)
    };
    #[rustfmt::skip]
    let cases: [(&[usize], usize, usize, usize); 5] = [
        // lengths of sequences, batch, passes, tokens counted
        (&[3, 4, 5, 6], 1, 18, 11),
        (&[3, 4, 5], 1, 12, 9),
        (&[7], 1, 7, 4),
        (&[3, 4, 5, 6], 2, 10, 11),
        (&[3, 4, 2, 2, 2], 2, 8, 6),
    ];
    for (lens, batch, passes, counted) in cases {
        let trace = of(lens);
        let replay = Replay::new(&trace, batch);
        let outcome = run(&replay, ReplayPolicy::Belady, 1);
        assert_eq!((replay.passes.len(), outcome.tokens), (passes, counted), "{lens:?} by {batch}");
    }
}

#[test]
fn tokens_of_one_pass_share_experts() {
    let shape = HistoryShape { layers: 1, experts: 8, top_k: 2 };
    let mut trace = Trace::new(shape).unwrap();
    // A prompt of three tokens with four experts between them, then one token.
    trace.push(&[1, 2, 3], &[[0, 1, 1, 2, 2, 3]]).unwrap();
    trace.push(&[4], &[[0, 3]]).unwrap();
    trace.end_sequence();
    let replay = Replay::new(&trace, 1).without_warming();
    #[rustfmt::skip]
    let cases = [
        // slots, misses
        (1, 5), // the prompt's last expert is one of the next token's two
        (3, 5), // the first was evicted for the fourth
        (4, 4),
    ];
    for (slots, misses) in cases {
        let outcome = run(&replay, ReplayPolicy::Engine(PolicyKind::Lru), slots);
        assert_eq!((outcome.uses, outcome.misses, outcome.tokens), (6, misses, 4), "{slots} slots");
    }
}

#[test]
fn policy_names_parse_back() {
    for policy in ReplayPolicy::ALL {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    assert!("mru".parse::<ReplayPolicy>().is_err());
}
