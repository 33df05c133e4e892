//! Several sequences through shared passes: each gets the bits that it has alone, at any budget.

use std::collections::HashMap;
use std::io;

use proptest::prelude::*;
use sws_cache::replay::Residency;
use sws_engine::{PlanOptions, Planner};
use sws_format::ShardReader;
use sws_kernels::functional::argmax;
use sws_model::{Chunk, Inventory, StepOutcome};
use sws_testing::each_nth;

use super::*;

/// A reader that fails while it is closed.
struct Gate {
    inner: Arc<dyn ShardReader>,
    closed: Arc<AtomicBool>,
}

impl ShardReader for Gate {
    fn name(&self) -> &'static str {
        "gate"
    }

    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        match self.closed.load(Ordering::SeqCst) {
            true => Err(io::Error::other("closed")),
            false => self.inner.read_at(file, offset, into),
        }
    }
}

fn gated(closed: &Arc<AtomicBool>) -> Arc<NVMeWeightStore> {
    let manifest = Arc::new(Manifest::load(tales()).unwrap());
    let inner = ReaderKind::Direct.open(&manifest, &tales(), 4).unwrap();
    let reader: Arc<dyn ShardReader> = Arc::new(Gate { inner, closed: Arc::clone(closed) });
    let options = StoreOptions { reader: Some(reader), cache: None, ..StoreOptions::default() };
    Arc::new(NVMeWeightStore::open(manifest, &tales(), options).unwrap())
}

/// The smallest budget for this number of sequences.
fn smallest(sequences: usize) -> u64 {
    smallest_for(Options { sequences, ..options(1) })
}

/// Bits of the logits behind a text, computed by a model in memory.
#[derive(Default)]
struct Truth(HashMap<Vec<u32>, Vec<u32>>);

impl Truth {
    fn of(&mut self, lm: &mut SpeculativeWeightStreamer, text: &[u32]) -> &Vec<u32> {
        self.0.entry(text.to_vec()).or_insert_with(|| {
            lm.clear();
            bits(lm.prefill(text).unwrap())
        })
    }
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

/// What happens around a step.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trouble {
    None,
    Cancelled,
    DiskFails,
}

#[derive(Clone, Debug)]
enum Event {
    Add,
    Fork(usize),
    Remove(usize),
    Clear(usize),
    Truncate(usize, usize),
    /// For some sequences, the first token and the number of tokens.
    Step(Vec<(usize, u32, usize)>, Trouble),
}

fn event() -> impl Strategy<Value = Event> {
    let tokens = prop_oneof![3 => Just(1usize), 1 => 2..30usize];
    let chunks = prop::collection::vec((0..4usize, 4..4000u32, tokens), 1..5);
    let trouble = prop_oneof![
        8 => Just(Trouble::None),
        1 => Just(Trouble::Cancelled),
        1 => Just(Trouble::DiskFails),
    ];
    prop_oneof![
        2 => Just(Event::Add),
        1 => (0..4usize).prop_map(Event::Fork),
        1 => (0..4usize).prop_map(Event::Remove),
        1 => (0..4usize).prop_map(Event::Clear),
        1 => (0..4usize, 0..40usize).prop_map(|(s, len)| Event::Truncate(s, len)),
        10 => (chunks, trouble).prop_map(|(chunks, trouble)| Event::Step(chunks, trouble)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn any_interleaving_gives_each_sequence_its_own_bits(
        sequences in 1..=4usize,
        more in 0..24u64,
        policy in prop::sample::select(PolicyKind::ALL.to_vec()),
        events in prop::collection::vec(event(), 4..24),
    ) {
        let closed = Arc::new(AtomicBool::new(false));
        let options = |bytes| Options { sequences, policy, ..options(bytes) };
        let (store, options) = (gated(&closed), options(smallest(sequences) + more * MIB));
        let mut lm = SpeculativeWeightStreamer::new(ForwardPass::new(spec()), store, options).unwrap();
        let waiter = lm.waiter();
        let (mut all, mut truth, mut step) = (resident(), Truth::default(), StepOutcome::default());
        let mut texts: Vec<(usize, Vec<u32>)> = vec![(0, Vec::new())];
        for event in events {
            let count = texts.len();
            match event {
                Event::Add => match lm.add_sequence() {
                    Some(sequence) => texts.push((sequence, Vec::new())),
                    None => prop_assert_eq!(count, sequences),
                },
                Event::Fork(which) => {
                    let (from, text) = texts[which % count].clone();
                    match lm.fork_sequence(from) {
                        Some(fork) => texts.push((fork, text)),
                        None => prop_assert_eq!(count, sequences),
                    }
                }
                Event::Remove(which) => {
                    if texts[which % count].0 != 0 {
                        lm.remove_sequence(texts.swap_remove(which % count).0);
                    }
                }
                Event::Clear(which) => {
                    lm.clear_sequence(texts[which % count].0);
                    texts[which % count].1.clear();
                }
                Event::Truncate(which, len) => {
                    let (sequence, text) = &mut texts[which % count];
                    prop_assert!(lm.truncate_sequence(*sequence, len));
                    text.truncate(len);
                }
                Event::Step(chunks, trouble) => {
                    let mut batch: Vec<(usize, Vec<u32>)> = Vec::new();
                    for (which, first, tokens) in chunks {
                        let room = 256 - texts[which % count].1.len();
                        let tokens = tokens.min(room) as u32;
                        if tokens > 0 && batch.iter().all(|(other, _)| *other != which % count) {
                            let tokens = (0..tokens).map(|t| (first + 83 * t) % 4096).collect();
                            batch.push((which % count, tokens));
                        }
                    }
                    let chunks: Vec<Chunk<'_>> = batch
                        .iter()
                        .map(|(which, tokens)| Chunk { sequence: texts[*which].0, tokens })
                        .collect();
                    match trouble {
                        Trouble::None => {}
                        Trouble::Cancelled => waiter.cancel(),
                        Trouble::DiskFails => closed.store(true, Ordering::SeqCst),
                    }
                    lm.step(&chunks, &mut (), &mut step);
                    closed.store(false, Ordering::SeqCst);
                    waiter.resume();
                    for (number, (which, tokens)) in batch.iter().enumerate() {
                        let (sequence, text) = &mut texts[*which];
                        match step.logits(number) {
                            Ok(logits) => {
                                text.extend(tokens);
                                prop_assert!(bits(logits) == *truth.of(&mut all, text));
                            }
                            Err(error) => {
                                let error = error.to_string();
                                match trouble {
                                    Trouble::None => prop_assert!(false, "{error}"),
                                    Trouble::Cancelled => prop_assert!(error.contains("cancel")),
                                    Trouble::DiskFails => prop_assert!(error.contains("closed")),
                                }
                                // Else it is as it was, as the next steps show.
                                if chunks.len() == 1 || lm.state().len(*sequence) != text.len() {
                                    lm.clear_sequence(*sequence);
                                    text.clear();
                                }
                            }
                        }
                    }
                }
            }
            for (sequence, text) in &texts {
                prop_assert_eq!(lm.state().len(*sequence), text.len());
            }
        }
    }
}

/// An expert that several sequences choose is read once for all of them.
#[test]
fn shared_passes_read_less_than_separate_ones() {
    let read = |together: bool| {
        let options =
            Options { sequences: 4, speculation: false, ..options(smallest(4) + 4 * MIB) };
        let mut lm = streaming(ReaderKind::Direct, options);
        let sequences: Vec<usize> =
            [0].into_iter().chain((1..4).map(|_| lm.add_sequence().unwrap())).collect();
        let mut step = StepOutcome::default();
        let before = lm.counters().bytes[0];
        for token in 0..40u32 {
            let tokens: Vec<[u32; 1]> = (0..4).map(|s| [(token * 97 + s * 5) % 4096]).collect();
            let chunks: Vec<Chunk<'_>> = sequences
                .iter()
                .zip(&tokens)
                .map(|(&sequence, tokens)| Chunk { sequence, tokens })
                .collect();
            for chunks in chunks.chunks(if together { 4 } else { 1 }) {
                lm.step(chunks, &mut (), &mut step);
                assert_eq!(step.errors().count(), 0);
            }
        }
        lm.counters().bytes[0] - before
    };
    let (together, apart) = (read(true), read(false));
    assert!(together * 10 < apart * 9, "{together} bytes together, {apart} apart");
}

/// Contexts that no sequence needs hold experts, within the budget, and give them up when sequences
/// grow. No bit changes, and less is read.
#[test]
fn contexts_that_nothing_needs_hold_experts() {
    let options = |bytes| Options { sequences: 4, context: Some(2048), ..options(bytes) };
    let ram = smallest_for(options(1)) + 2 * MIB;
    let [mut lends, mut keeps] = [(); 2].map(|()| streaming(ReaderKind::Direct, options(ram)));
    let plan = lends.plan().unwrap().clone();
    let bytes = |classes: &[SlotClass]| classes.iter().map(SlotClass::bytes).sum::<u64>();
    let own = bytes(&plan.slots) + bytes(&plan.lent);
    for lm in [&mut lends, &mut keeps] {
        while lm.add_sequence().is_some() {}
    }
    let room = lends.room();
    assert!(room <= plan.ledger.get(MemoryUse::KvCache));
    assert!(bytes(&plan.context_lent) > 8 * MIB, "{plan:?}");
    let [mut step, mut other] = [StepOutcome::default(), StepOutcome::default()];
    let mut most = 0;
    // Prompts that need no room to speak of, tokens, prompts that need most of it, tokens.
    for (round, len) in [40, 1, 1, 1, 1500, 1, 1, 1, 1].into_iter().enumerate() {
        for turn in 0..if len == 1 { 10 } else { 1 } {
            let tokens: Vec<u32> =
                (0..len).map(|n| ((n * 37 + turn * 11 + round) % 4096) as u32).collect();
            let chunks = [0, 1, 2, 3].map(|sequence| Chunk { sequence, tokens: &tokens });
            let growth = lends.state().growth(&[0, 1, 2, 3].map(|sequence| (sequence, len)));
            let idle = room - lends.state().held(&mut std::iter::empty()) - growth;
            assert!(lends.lend_context(Some(idle)) > 0);
            lends.step(&chunks, &mut (), &mut step);
            keeps.step(&chunks, &mut (), &mut other);
            for chunk in 0..4 {
                assert_eq!(bits(step.logits(chunk).unwrap()), bits(other.logits(chunk).unwrap()));
            }
            let lent = lends.counters().context_lent;
            assert!(lent <= idle, "{lent} of {idle} bytes in round {round}");
            assert!(round < 5 || lent * 4 < room, "{lent} bytes when sequences have grown");
            most = most.max(lent);
        }
        if round == 3 {
            let [less, more] = [&mut lends, &mut keeps].map(|lm| lm.counters().bytes[0]);
            assert!(less * 4 < more * 3, "{less} of {more} bytes");
        }
    }
    // At first there is room for all.
    let peak = lends.counters().peak_cache_bytes;
    assert!(most >= bytes(&plan.context_lent) && peak > own, "{most} and {peak} bytes: {plan:?}");
    lends.lend_context(None);
    assert_eq!(lends.counters().context_lent, 0);
}

/// While no text has structured output, experts have the memory of structured output. No bit changes when
/// they lose it and get it back, in the middle of texts, and beside lent contexts and activations.
#[test]
fn memory_of_structured_output_holds_experts_until_a_text_needs_it() {
    let options = |bytes| Options { sequences: 4, context: Some(1024), ..options(bytes) };
    let spec = spec();
    let inventory = Inventory::new(&spec, store(ReaderKind::Direct).manifest()).unwrap();
    let structured = 12 * MIB;
    let wanted =
        PlanOptions { batch: 4, context: Some(1024), structured, ..PlanOptions::default() };
    let process = ProcessMemory::default();
    let planner =
        Planner::new(&spec, &inventory, store(ReaderKind::Direct).manifest(), process, wanted);
    let planner = planner.unwrap();
    let plan = planner.plan(planner.minimum() + 2 * structured).unwrap();
    let own: u64 = plan.slots.iter().map(SlotClass::bytes).sum();
    let lent: u64 = plan.structured_lent.iter().map(SlotClass::bytes).sum();
    assert!(
        own > 0 && lent > 8 * MIB && lent <= plan.ledger.get(MemoryUse::Structured),
        "{plan:?}"
    );
    let open = |plan: Plan| {
        let ram = plan.ledger.budget();
        let (model, store) = (ForwardPass::new(spec.clone()), store(ReaderKind::Direct));
        SpeculativeWeightStreamer::with_plan(model, store, plan, options(ram)).unwrap()
    };
    let mut keeps = open(Plan { structured_lent: Vec::new(), ..plan.clone() });
    let mut lends = open(plan);
    for lm in [&mut lends, &mut keeps] {
        while lm.add_sequence().is_some() {}
    }
    let [mut step, mut other] = [StepOutcome::default(), StepOutcome::default()];
    for round in 0..60usize {
        // Idle from the beginning, needed, idle again; some passes are prompts, and contexts come and go.
        let idle = !(20..40).contains(&round);
        lends.lend_structured(idle);
        assert!(idle || lends.counters().structured_lent == 0);
        let room = lends.room() - lends.state().held(&mut std::iter::empty());
        lends.lend_context(Some(if round % 7 < 4 { room / 2 } else { 0 }));
        let len = if round % 13 == 5 { 30 } else { 1 };
        let tokens: Vec<u32> = (0..len).map(|n| ((n * 37 + round * 11) % 4096) as u32).collect();
        let chunks = [0, 1, 2, 3].map(|sequence| Chunk { sequence, tokens: &tokens });
        lends.step(&chunks, &mut (), &mut step);
        keeps.step(&chunks, &mut (), &mut other);
        for chunk in 0..4 {
            assert_eq!(bits(step.logits(chunk).unwrap()), bits(other.logits(chunk).unwrap()));
        }
        assert_eq!(lends.counters().structured_lent, if idle { lent } else { 0 }, "round {round}");
        if round == 19 {
            let [less, more] = [&mut lends, &mut keeps].map(|lm| lm.counters().bytes[0]);
            assert!(less < more, "{less} of {more} bytes");
        }
    }
    // A lower budget takes the lent slots back, and they are lent again.
    let ram = lends.plan().unwrap().ledger.budget();
    lends.lower_budget(ram - own / 4).unwrap();
    assert_eq!(lends.counters().structured_lent, 0);
    lends.step(&[Chunk { sequence: 0, tokens: &[1] }], &mut (), &mut step);
    keeps.step(&[Chunk { sequence: 0, tokens: &[1] }], &mut (), &mut other);
    assert_eq!(bits(step.logits(0).unwrap()), bits(other.logits(0).unwrap()));
    assert_eq!(lends.counters().structured_lent, lent);
}

/// Replays the passes of an engine as it runs them.
struct Shadow {
    residency: Residency,
    misses: u64,
}

impl Observer for Shadow {
    fn pass_begins(&mut self, pass: &Pass) -> Result<(), SourceError> {
        self.residency.begin(pass);
        Ok(())
    }

    fn routed(&mut self, _: &Pass, layer: usize, routed: &Routed) -> Result<(), SourceError> {
        self.misses += self.residency.layer(layer, &routed.choices).len() as u64;
        Ok(())
    }
}

/// Runs up to four sequences that come and go, with prompts among them. Returns the misses of the
/// engine and of a replay with the slots that the plan has for experts.
fn misses(policy: PolicyKind, more: u64, lends: bool) -> [u64; 2] {
    let options = Options { sequences: 4, policy, ..options(smallest(4) + more * MIB) };
    let plan = streaming(ReaderKind::Direct, Options { speculation: false, ..options });
    let plan = plan.plan().unwrap().clone();
    let [class] = plan.slots[..] else { panic!("one length of experts: {plan:?}") };
    let plan = if lends { plan } else { Plan { lent: Vec::new(), ..plan } };
    let options = Options { policy, speculation: false, ..Options::default() };
    let (model, store) = (ForwardPass::new(spec()), store(ReaderKind::Direct));
    let mut lm = SpeculativeWeightStreamer::with_plan(model, store, plan, options).unwrap();
    let shape = HistoryShape { layers: 8, experts: 32, top_k: 4 };
    let residency = Residency::new(shape, policy, class.count, 4);
    let mut shadow = Shadow { residency, misses: 0 };
    let mut step = StepOutcome::default();
    // The tokens that continue each sequence.
    let mut next: Vec<(usize, Vec<u32>)> = vec![(0, PROMPT.to_vec())];
    for round in 0..240u32 {
        match round % 40 {
            10 | 15 | 30 if next.len() < 4 => {
                let sequence = lm.add_sequence().unwrap();
                next.push((sequence, PROMPT.map(|token| token + round).to_vec()));
            }
            25 | 38 if next.len() > 1 => lm.remove_sequence(next.swap_remove(1).0),
            _ => {}
        }
        let chunks: Vec<Chunk<'_>> =
            next.iter().map(|&(sequence, ref tokens)| Chunk { sequence, tokens }).collect();
        lm.step(&chunks, &mut shadow, &mut step);
        for (number, (_, tokens)) in next.iter_mut().enumerate() {
            let logits = step.logits(number).unwrap();
            let likeliest = argmax(logits).unwrap();
            *tokens = vec![(likeliest as u32 + round) % 4096];
        }
    }
    [lm.counters().layers.values().map(|layer| layer.misses).sum(), shadow.misses]
}

/// A replay of the same passes has the misses of the engine. Slots lent and taken back while the
/// number of tokens changes cost no reads.
#[test]
fn replay_predicts_the_reads_of_sequences_that_come_and_go() {
    let cases =
        PolicyKind::ALL.into_iter().flat_map(|policy| [2, 6, 12].map(|more| (policy, more)));
    for (policy, more) in each_nth(cases, 2) {
        let [engine, replayed] = misses(policy, more, false);
        assert!(replayed > 1000, "{policy}, {more} MiB: {replayed} misses show nothing");
        let near = engine.abs_diff(replayed) * 50 <= replayed;
        assert!(near, "{policy}, {more} MiB: {engine} misses, and {replayed} replayed");
        let [engine, replayed] = misses(policy, more, true);
        let few = engine * 50 <= replayed * 51;
        assert!(few, "{policy}, {more} MiB: {engine} misses with lent slots, {replayed} without");
    }
}
