//! Cases whose outcome follows by hand or from a replay, and what holds for every routing.

use std::sync::Arc;
use std::time::Duration;

use sws::Threads;
use sws_cache::Trace;
use sws_cache::history::HistoryShape;
use sws_cache::policy::PolicyKind;
use sws_cache::replay::{Replay, ReplayPolicy};
use sws_text::SplitMix64;

use super::{Alone, Case, Costs, Outcome, Router, Routing, Texts, simulate};

const ALL: [Routing; 3] = [Routing::Affinity, Routing::Random, Routing::LeastLoaded];
/// Powers of two, so that sums are exact.
const COSTS: Costs = Costs {
    pass: 0.25,
    token: 0.0625,
    expert: 0.0078125,
    read: 0.125,
    fetch: 0.0,
    between: 0.0,
    expert_bytes: 1000,
    other_bytes: 0,
    alone: None,
};

/// Sequences of so many tokens, each with experts around one of its own, so that they differ.
fn trace(sequences: usize, tokens: usize) -> Trace {
    let mut trace = Trace::new(HistoryShape { layers: 3, experts: 16, top_k: 2 }).unwrap();
    for sequence in 0..sequences {
        let mut random = SplitMix64::new(sequence as u64);
        for token in 0..tokens {
            let layers: Vec<[u32; 2]> = (0..3)
                .map(|layer| {
                    let first = (3 * sequence as u32 + layer + random.next_u64() as u32 % 3) % 16;
                    [first, (first + 1 + random.next_u64() as u32 % 4) % 16]
                })
                .collect();
            trace.push(&[token as u32 % 7], &layers).unwrap();
        }
        trace.end_sequence();
    }
    trace
}

fn case(replicas: usize, clients: usize, requests: usize) -> Case {
    Case {
        replicas,
        clients,
        routing: Routing::Affinity,
        requests,
        slots: 20,
        lent: 0,
        parallel: 4,
        gap: Duration::from_secs(10),
        seed: 1,
    }
}

fn run(texts: &Arc<Texts>, costs: Costs, case: Case) -> Outcome {
    simulate(texts, costs, case, &Threads::start(1).unwrap()).unwrap()
}

/// Prompts of one token, so that each token has its pass, as in the trace.
fn texts(sequences: usize, tokens: usize) -> Arc<Texts> {
    Arc::new(Texts::of(trace(sequences, tokens), 1, tokens, sequences).unwrap())
}

#[test]
fn one_replica_with_one_client_is_a_replay() {
    let texts = texts(12, 30);
    for slots in [7, 20, 48] {
        let replay = Replay::new(texts.trace(), 1);
        let expected = replay.run(ReplayPolicy::Engine(PolicyKind::default()), slots, &mut |_| ());
        for routing in ALL {
            let case = Case { slots, routing, parallel: 1, ..case(1, 1, 12) };
            let outcome = run(&texts, COSTS, case);
            assert_eq!(
                (outcome.uses, outcome.misses),
                (expected.uses, expected.misses),
                "{slots} slots"
            );
            assert_eq!(outcome.tokens, 12 * 30);
        }
    }
}

/// A prompt of nine tokens takes the lent slots back, and the tokens after it have them again.
#[test]
fn lent_slots_are_there_while_no_prompt_is_computed() {
    let one = texts(1, 30);
    let own = run(&one, COSTS, Case { slots: 12, ..case(1, 1, 8) });
    let lent = run(&one, COSTS, Case { slots: 12, lent: 36, ..case(1, 1, 8) });
    // Without prompts of several tokens they are as good as own ones, and there is no more than one an expert.
    assert_eq!((lent.misses, own.misses > 0), (0, true));
    let prompts = Arc::new(Texts::of(trace(1, 30), 9, 22, 1).unwrap());
    let none = run(&prompts, COSTS, Case { slots: 12, ..case(1, 1, 8) });
    let some = run(&prompts, COSTS, Case { slots: 12, lent: 360, ..case(1, 1, 8) });
    assert!(0 < some.misses && some.misses < none.misses, "{some:?} {none:?}");
}

#[test]
fn time_is_the_sum_of_the_costs() {
    // All experts have slots and come once: 3 layers, 2 experts a token.
    let texts = texts(1, 10);
    let outcome = run(&texts, COSTS, Case { slots: 48, ..case(1, 1, 2) });
    let (passes, uses) = (20.0, 20.0 * 6.0);
    // The second request is the first again: all its experts are there.
    assert_eq!((outcome.misses, outcome.hit_rate), (0, 1.0));
    let reads = outcome.fetched_bytes as f64 / 1000.0;
    let seconds = passes * (0.25 + 0.0625) + uses * 0.0078125 + reads * 0.125;
    assert_eq!(outcome.seconds, seconds);
    let pass = 0.25 + 0.0625 + 6.0 * 0.0078125;
    assert_eq!((outcome.first, outcome.between), ([pass; 3], [pass; 3]));
}

#[test]
fn a_prompt_is_one_pass_and_waits_for_the_texts_before_it() {
    let texts = Arc::new(Texts::of(trace(1, 12), 9, 4, 1).unwrap());
    let free = Costs { pass: 1.0, token: 0.0, expert: 0.0, read: 0.0, ..COSTS };
    // Four passes for a prompt and four new tokens.
    assert_eq!(run(&texts, free, case(1, 1, 2)).seconds, 8.0);
    // Two clients and one text at a time: the second waits for the four passes of the first.
    let outcome = run(&texts, free, Case { parallel: 1, ..case(1, 2, 8) });
    assert_eq!((outcome.seconds, outcome.first), (32.0, [5.0; 3]));
    // Two at a time share passes. Each comes while the other has a pass, and waits for its end: five
    // passes a request, and the second client begins after the first.
    let outcome = run(&texts, free, Case { gap: Duration::ZERO, ..case(1, 2, 8) });
    assert_eq!((outcome.seconds, outcome.first, outcome.between), (20.0, [2.0; 3], [1.0; 3]));
}

#[test]
fn a_replica_that_works_alone_has_costs_of_its_own() {
    let texts = Arc::new(Texts::of(trace(1, 12), 9, 4, 1).unwrap());
    let free = Costs { pass: 1.0, token: 0.0, expert: 0.0, read: 0.0, ..COSTS };
    let costs = Costs { alone: Some(Alone { pass: 0.5, ..Alone::default() }), ..free };
    // Four passes for a prompt and four new tokens.
    assert_eq!(run(&texts, costs, case(1, 1, 2)).seconds, 4.0);
    // Of two, the first is alone for its first pass, and for the last three of its second request.
    let two = Case { routing: Routing::LeastLoaded, ..case(2, 2, 3) };
    assert_eq!(run(&texts, free, two).seconds, 8.0);
    assert_eq!(run(&texts, costs, two).seconds, 0.5 + 3.0 + 1.0 + 1.5);
}

#[test]
fn replicas_with_a_client_each_serve_as_many_times_the_tokens() {
    // One topic a client, and routing that gives each its own replica.
    let one = texts(1, 20);
    let alone = run(&one, COSTS, case(1, 1, 8));
    for replicas in [2, 5] {
        let routing = Routing::LeastLoaded;
        let outcome = run(&one, COSTS, Case { routing, ..case(replicas, replicas, 8 * replicas) });
        assert_eq!(outcome.tokens, replicas * alone.tokens);
        assert_eq!(outcome.seconds, alone.seconds);
        assert_eq!(outcome.tokens_per_second, replicas as f64 * alone.tokens_per_second);
        assert_eq!(outcome.fetched_bytes, replicas as u64 * alone.fetched_bytes);
        assert_eq!((outcome.first, outcome.between), (alone.first, alone.between));
    }
}

#[test]
fn every_token_that_is_asked_for_is_served_under_every_routing() {
    let texts = Arc::new(Texts::of(trace(9, 40), 6, 8, 1).unwrap());
    for seed in 0..6 {
        for routing in ALL {
            let (replicas, clients) = (1 + seed as usize % 5, 1 + 7 * seed as usize);
            let requests = 4 * clients + seed as usize;
            let case = Case {
                routing,
                seed,
                gap: Duration::from_secs(seed),
                ..case(replicas, clients, requests)
            };
            let outcome = run(&texts, COSTS, case);
            assert_eq!(outcome.tokens, requests * 8, "{case:?}");
            assert_eq!(run(&texts, COSTS, case), outcome, "{case:?}");
            // No pass is shorter than its computing, and none reads what is not there.
            assert!(outcome.hit_rate > 0.0 && outcome.misses <= outcome.uses);
            assert!(outcome.tokens_per_second <= (4 * replicas) as f64 / COSTS.pass);
        }
    }
}

/// Two topics without a common expert, of which one fits into a replica.
#[test]
fn affinity_keeps_topics_apart_where_memory_is_short() {
    let mut trace = Trace::new(HistoryShape { layers: 3, experts: 16, top_k: 2 }).unwrap();
    for topic in [0, 8] {
        for token in 0..200 {
            let experts = [topic + token % 8, topic + (token + 1) % 8];
            trace.push(&[token], &[experts; 3]).unwrap();
        }
        trace.end_sequence();
    }
    let texts = Arc::new(Texts::of(trace, 1, 40, 1).unwrap());
    let home = |replicas, topic| Router::new(Routing::Affinity, replicas, 2, 1).choose(topic);
    let replicas = (2..8).find(|&count| home(count, 0) != home(count, 1)).unwrap();
    let [affinity, random, least] = ALL.map(|routing| {
        let case = Case { routing, slots: 24, parallel: 1, ..case(replicas, 2, 60) };
        run(&texts, COSTS, case)
    });
    assert_eq!((affinity.hit_rate, affinity.misses), (1.0, 0));
    // Each of the two replicas fetches its own 24 experts, once.
    assert_eq!(affinity.fetched_bytes, 2 * 24 * COSTS.expert_bytes);
    for other in [random, least] {
        assert!(other.hit_rate < 0.99, "{other:?}");
        assert!(other.tokens_per_second < affinity.tokens_per_second, "{other:?}");
        let all = replicas as u64 * 48 * COSTS.expert_bytes;
        assert!((affinity.fetched_bytes + 1..=all).contains(&other.fetched_bytes), "{other:?}");
    }
}

#[test]
fn routers_choose_as_they_say() {
    let mut affinity = Router::new(Routing::Affinity, 8, 3, 1);
    let firsts: Vec<usize> = (0..100).map(|topic| affinity.clone().choose(topic)).collect();
    assert!((0..8).all(|replica| firsts.contains(&replica)), "{firsts:?}");
    // A topic stays until its replica is full, and comes back when it is not.
    let home = affinity.choose(5);
    assert_eq!([affinity.choose(5), affinity.choose(5)], [home, home]);
    assert_ne!(affinity.choose(5), home);
    affinity.ended(home);
    assert_eq!(affinity.choose(5), home);
    // One replica more moves only the topics that it takes.
    let mut more = Router::new(Routing::Affinity, 9, 1000, 1);
    for (topic, &first) in firsts.iter().enumerate() {
        let moved = more.choose(topic);
        assert!(moved == first || moved == 8, "{topic}: {first} to {moved}");
    }
    let mut least = Router::new(Routing::LeastLoaded, 4, 1, 1);
    let mut chosen: Vec<usize> = (0..8).map(|topic| least.choose(topic)).collect();
    chosen[..4].sort_unstable();
    assert_eq!(chosen[..4], [0, 1, 2, 3]);
    chosen[4..].sort_unstable();
    assert_eq!(chosen[4..], [0, 1, 2, 3]);
    let mut random = Router::new(Routing::Random, 4, 1, 1);
    let counts = (0..4000).fold([0; 4], |mut counts, topic| {
        counts[random.choose(topic)] += 1;
        counts
    });
    assert!(counts.iter().all(|count| (900..1100).contains(count)), "{counts:?}");
}

#[test]
fn texts_are_parts_of_sequences() {
    let texts = Texts::of(trace(4, 25), 4, 5, 2).unwrap();
    let ranges: Vec<_> = texts.all().iter().map(|text| (text.topic, text.tokens.clone())).collect();
    assert_eq!(ranges[..4], [(0, 0..8), (0, 8..16), (0, 16..24), (0, 25..33)]);
    assert_eq!((texts.topics(), texts.all().len(), ranges[6].0), (2, 12, 1));
    // Clients of a topic begin with different texts, and go through all of them.
    assert_eq!([0, 1, 2, 3].map(|client| texts.topic(client)), [0, 1, 0, 1]);
    assert_eq!([0, 2, 4].map(|client| texts.asked(client, 0)), [0, 1, 2]);
    assert_eq!([0, 1, 5, 6].map(|before| texts.asked(1, before)), [6, 7, 11, 6]);
    assert!(Texts::of(trace(4, 25), 20, 7, 2).is_err());
}
