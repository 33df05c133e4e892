//! The engine as a library, on the bundled model.

mod prompts;
mod sequences;
mod tier;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use sws_cache::correction::{Correction, Corrections};
use sws_cache::history::HistoryShape;
use sws_cache::policy::PolicyKind;
use sws_cache::replay::{Replay, ReplayPolicy};
use sws_cache::{LookupCounts, SavedTensors, Trace};
use sws_draft::{Draft, DraftShape, DraftSize, Gates, LayerBlueprint, MicroDraftModel, NoDraft};
use sws_engine::{
    Ablations, Certificate, CertificateError, CertificateOutcome, Difference, MemoryUse, Metrics,
    Options, Plan, PlanError, ProcessMemory, RamBudget, ResidentLoad, SlotClass,
    SpeculativeWeightStreamer, StreamerError, Witness,
};
use sws_format::{Dtype, Manifest, Pass};
use sws_kernels::functional::top_k;
use sws_kernels::{Activations, Encoding};
use sws_model::{CausalLm, ForwardPass, KvPrecision, ModelSpec, Observer, Routed, SourceError};
use sws_store::{NVMeWeightStore, ReaderKind, StoreOptions};
use sws_testing::recorded::Recorded;
use sws_testing::tales;
use sws_text::{Sampler, Sampling};

const MIB: u64 = 1 << 20;
const PROMPT: [u32; 10] = [5, 300, 17, 99, 1000, 41, 7, 2048, 311, 12];

fn spec() -> ModelSpec {
    sws_testing::spec(&tales())
}

fn store(reader: ReaderKind) -> Arc<NVMeWeightStore> {
    let manifest = Arc::new(Manifest::load(tales()).unwrap());
    let reader = Some(reader.open(&manifest, &tales(), 4).unwrap());
    let options = StoreOptions { reader, cache: None, ..StoreOptions::default() };
    Arc::new(NVMeWeightStore::open(manifest, &tales(), options).unwrap())
}

fn resident() -> SpeculativeWeightStreamer {
    let store = store(ReaderKind::Mmap);
    let spec = spec();
    let source = ResidentLoad::new(&spec, &store).unwrap().load(|_| true).unwrap().unwrap();
    SpeculativeWeightStreamer::resident(ForwardPass::new(spec), source, 256, KvPrecision::F32)
}

/// A budget of `bytes` bytes more than the process takes without the model.
fn options(bytes: u64) -> Options {
    let process = Some(ProcessMemory::default());
    Options {
        ram_budget: RamBudget::Bytes(bytes),
        process,
        context: Some(256),
        ..Options::default()
    }
}

fn streaming(reader: ReaderKind, options: Options) -> SpeculativeWeightStreamer {
    SpeculativeWeightStreamer::new(ForwardPass::new(spec()), store(reader), options).unwrap()
}

#[test]
fn a_model_in_memory_allocates_nothing_for_a_token() {
    for threads in [1, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let lm = Mutex::new(resident());
        let decode = || {
            let mut lm = lm.lock().unwrap();
            lm.clear();
            for token in PROMPT.into_iter().cycle().take(40) {
                lm.decode(token).unwrap();
            }
        };
        // The first run grows buffers.
        pool.install(decode);
        let done = AtomicBool::new(false);
        let counted = pool.broadcast(|context| {
            allocation_counter::measure(|| match context.index() {
                0 => {
                    decode();
                    done.store(true, Ordering::Release);
                }
                // The other threads find their work within measurements of their own.
                _ => {
                    while !done.load(Ordering::Acquire) {
                        rayon::yield_now();
                    }
                }
            })
        });
        assert!(counted.iter().all(|c| c.count_total == 0), "{threads} threads: {counted:?}");
    }
}

/// An answer of `n` tokens, sampled with usual settings, with its witness.
fn answer(lm: &mut dyn CausalLm, sampling: &Sampling, n: usize) -> (Vec<u32>, Witness) {
    let mut witness = Witness::new(&spec(), &PROMPT);
    let mut sampler = Sampler::new(sampling.clone(), lm.vocab());
    sampler.prompt(&PROMPT).unwrap();
    let mut next = PROMPT.to_vec();
    let mut tokens = Vec::new();
    while tokens.len() < n {
        let mut logits = lm.observed(&next, &mut witness).unwrap().to_vec();
        witness.logits(lm.len() - 1, &logits);
        let token = sampler.sample(&mut logits, lm.len()).unwrap();
        tokens.push(token);
        next = vec![token];
    }
    (tokens, witness)
}

fn sampling() -> Sampling {
    Sampling { temperature: 1.0, top_k: 40, top_p: 0.95, seed: 7, ..Sampling::default() }
}

fn certificate() -> Certificate {
    let mut resident = resident();
    let (tokens, witness) = answer(&mut resident, &sampling(), 24);
    let manifest = Manifest::load(tales()).unwrap();
    Certificate::new(
        &manifest,
        Activations::F32,
        KvPrecision::F32,
        sampling(),
        &PROMPT,
        &tokens,
        witness,
    )
}

/// Smallest budget that works, in bytes.
fn least() -> u64 {
    smallest_for(options(0))
}

/// The smallest budget for options, whose own is too small.
fn smallest_for(options: Options) -> u64 {
    smallest_of(SpeculativeWeightStreamer::new(
        ForwardPass::new(spec()),
        store(ReaderKind::Mmap),
        options,
    ))
}

/// The smallest budget, from the error of a smaller one.
fn smallest_of(refused: Result<SpeculativeWeightStreamer, StreamerError>) -> u64 {
    match refused.unwrap_err() {
        StreamerError::Plan(PlanError::TooSmall { smallest, .. }) => smallest,
        error => panic!("{error}"),
    }
}

/// Every bit of routes and logits agrees, from the smallest budget to all usable memory, with every
/// policy and reader, and with chunks as planned or of a few tokens.
#[test]
fn answer_is_certified_at_any_budget() {
    let certificate = certificate();
    let least = least();
    let budgets = [least, least + MIB, least + 2 * MIB, least + 6 * MIB, least + 40 * MIB];
    let mut streamed = Vec::new();
    for (number, budget) in budgets.into_iter().enumerate() {
        for policy in PolicyKind::ALL {
            let reader = [ReaderKind::Direct, ReaderKind::Mmap][number % 2];
            let speculation = number % 3 != 2;
            let options = Options { policy, speculation, ..options(budget) };
            let mut streamer = streaming(reader, options);
            let spec = spec();
            let outcome = certificate.replay(&spec, &mut streamer, &mut |_| true).unwrap();
            assert_eq!(
                outcome,
                CertificateOutcome::Agrees { steps: 24 },
                "{budget} bytes, {policy}"
            );
            let metrics = streamer.aggregate_metrics();
            assert_eq!(metrics.tokens, (PROMPT.len() + 23) as u64);
            streamed.push((budget, metrics.bytes_per_token.values().sum::<f64>()));
            check(&metrics);
        }
    }
    let (first, last) = (streamed[0], streamed[streamed.len() - 1]);
    assert!(first.1 > 2.0 * last.1, "more memory means less reading: {first:?}, {last:?}");
}

/// The sampling noise of a position does not depend on the way to it.
#[test]
fn text_continues_alike_from_any_of_its_tokens() {
    let options = Options { sampling: sampling(), ..options(least() + 4 * MIB) };
    let mut streamer = streaming(ReaderKind::Mmap, options);
    let text = streamer.generate(&PROMPT, 24).unwrap();
    for begun in [1, 7, 23] {
        streamer.clear();
        let rest = streamer.generate(&[&PROMPT, &text[..begun]].concat(), 24 - begun).unwrap();
        assert_eq!(rest, text[begun..], "{begun}");
    }
}

/// Checks invariants of any run's metrics.
fn check(metrics: &Metrics) {
    let time = metrics.time;
    let sum = time.compute + time.stall + time.other;
    assert!((sum - metrics.seconds).abs() < 1e-6 + 0.01 * metrics.seconds, "{metrics:?}");
    assert!(metrics.disk.bytes as f64 >= metrics.bytes_per_token.values().sum::<f64>());
    assert!(
        metrics.experts.hit_rate.is_some_and(|rate| rate <= 1.0) && metrics.disk.busy <= 1.01,
        "{metrics:?}"
    );
    let misses: u64 = metrics.experts.layers.iter().map(|layer| layer.misses).sum();
    assert!(misses >= metrics.rejects, "{metrics:?}");
}

/// Seals a changed certificate again, as a forger would.
fn sealed(json: &str) -> String {
    let mut certificate: Certificate = serde_json::from_str(json).unwrap();
    certificate.seal();
    certificate.to_json()
}

#[test]
fn a_replay_says_where_bits_differ() {
    let certificate = certificate();
    let replay = |certificate: &Certificate| {
        let mut streamer = streaming(ReaderKind::Mmap, options(least() + 4 * MIB));
        certificate.replay(&spec(), &mut streamer, &mut |_| true).unwrap()
    };
    // Change in the JSON, and the outcome of a replay.
    type Change = fn(&mut serde_json::Value);
    let cases: [(Change, CertificateOutcome); 4] = [
        (
            |json| json["steps"][3]["routes"] = json["steps"][4]["routes"].clone(),
            CertificateOutcome::Differs { step: 3, what: Difference::Routes },
        ),
        (
            |json| json["steps"][5]["chain"] = json["steps"][4]["chain"].clone(),
            CertificateOutcome::Differs { step: 5, what: Difference::Logits },
        ),
        (
            |json| json["tokens"][2] = (json["tokens"][2].as_u64().unwrap() ^ 1).into(),
            CertificateOutcome::Differs { step: 2, what: Difference::Token },
        ),
        (
            |json| json["prompt"][0] = 6.into(),
            CertificateOutcome::Differs { step: 0, what: Difference::Routes },
        ),
    ];
    for (change, expected) in cases {
        let mut json: serde_json::Value = serde_json::from_str(&certificate.to_json()).unwrap();
        change(&mut json);
        let changed = json.to_string();
        let refused = Certificate::parse(changed.as_bytes());
        assert!(matches!(refused, Err(CertificateError::Changed)), "{refused:?}");
        let forged = Certificate::parse(sealed(&changed).as_bytes()).unwrap();
        assert_eq!(replay(&forged), expected);
    }
    let same = Certificate::parse(certificate.to_json().as_bytes()).unwrap();
    assert_eq!(same, certificate);
    let mut done = 0;
    let mut streamer = streaming(ReaderKind::Mmap, options(least()));
    let stopped = certificate.replay(&spec(), &mut streamer, &mut |step| {
        done = step;
        step < 2
    });
    assert_eq!((stopped.unwrap(), done), (CertificateOutcome::Stopped, 2));
}

#[test]
fn invalid_and_foreign_certificates_are_refused() {
    let certificate = certificate();
    let json: serde_json::Value = serde_json::from_str(&certificate.to_json()).unwrap();
    let long = "[".repeat(100_000);
    for bytes in ["", "{}", "[]", "null", "\u{0}", &long] {
        let error = Certificate::parse(bytes.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("this is not a certificate"), "{error}");
    }
    let mut manifest = Manifest::load(tales()).unwrap();
    certificate.check(&manifest, Activations::F32).unwrap();
    let mut quantised = manifest.clone();
    quantised.pieces[0].tensors[0].encoding = Some(Encoding::Q4);
    let error = certificate.check(&quantised, Activations::F32).unwrap_err().to_string();
    assert!(error.contains("version 1 of the arithmetic"), "{error}");
    let error = certificate.check(&manifest, Activations::Int8).unwrap_err().to_string();
    assert!(error.contains("f32 activations and this run has int8"), "{error}");
    assert!(!certificate.to_json().contains("activations"));
    manifest.encoding = None;
    let error = certificate.check(&manifest, Activations::F32).unwrap_err().to_string();
    assert!(error.contains("its checkpoint's numbers"), "{error}");
    manifest.model.fingerprint = "0123456789abcdef".to_owned();
    let error = certificate.check(&manifest, Activations::F32).unwrap_err().to_string();
    assert!(error.contains("another model") && error.contains("0123456789ab"), "{error}");
    for (field, value, expected) in [
        ("format", "other", "another format"),
        ("version", "9.9.9", "version 9.9.9"),
        ("sampler", "gumbel-9", "sampler gumbel-9"),
        ("kv", "f8", "precision"),
    ] {
        let mut json = json.clone();
        json[field] = value.into();
        let forged = sealed(&json.to_string());
        let error = Certificate::parse(forged.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// Records the routes of one sequence.
#[derive(Default)]
struct Routes(Vec<(usize, usize, Vec<u32>)>);

impl Observer for Routes {
    fn routed(&mut self, pass: &Pass, layer: usize, routed: &Routed) -> Result<(), SourceError> {
        let first = pass.first_position();
        for (token, choices) in routed.choices.chunks(routed.top_k).enumerate() {
            self.0.push((first + token, layer, choices.to_vec()));
        }
        Ok(())
    }
}

impl Routes {
    fn oracle(mut self) -> Recorded {
        self.0.sort();
        let ids = self.0.iter().flat_map(|(_, _, ids)| ids.iter().map(|&id| id as u16)).collect();
        Recorded::oracle((0..8).collect(), 32, 4, ids)
    }
}

/// A draft that has learned nothing.
fn micro() -> MicroDraftModel {
    let layers = (0..8).collect();
    let shape = DraftShape { hidden: 192, layers, experts: 32, top_k: 4, sequences: 1 };
    let size = DraftSize::within(1 << 20, &shape, 0, 4096).unwrap();
    MicroDraftModel::new(shape, size)
}

/// The answer is the same with any draft. A draft that knows all choices has no rejects.
#[test]
fn drafts_change_only_what_is_read() {
    let mut resident = resident();
    let mut routes = Routes::default();
    let mut expected = Vec::new();
    let tokens: Vec<u32> = (0..30).map(|t| (t * 131 + 5) % 4096).collect();
    for token in &tokens {
        expected.extend_from_slice(resident.observed(&[*token], &mut routes).unwrap());
    }
    let oracle = routes.oracle();
    let budget = least() + 4 * MIB;
    let mut rejects = Vec::new();
    for draft in ["none", "oracle", "adversarial", "micro"] {
        let draft: Box<dyn sws_draft::Draft> = match draft {
            "none" => Box::new(NoDraft),
            "micro" => Box::new(micro()),
            "oracle" => Box::new(oracle.clone()),
            _ => Box::new(oracle.clone().adversarial()),
        };
        let ablations = Ablations { governed: false, ..Ablations::default() };
        let options = Options { draft, ablations, ..options(budget) };
        let mut streamer = streaming(ReaderKind::Direct, options);
        let mut found = Vec::new();
        for token in &tokens {
            found.extend_from_slice(streamer.decode(*token).unwrap());
        }
        assert!(found == expected);
        let metrics = streamer.aggregate_metrics();
        check(&metrics);
        rejects.push(metrics.rejects);
    }
    assert_eq!(rejects[1], 0, "{rejects:?}");
    assert!(rejects[0] > 0 && rejects[2] > 0, "{rejects:?}");
    assert!(rejects[3] < rejects[0], "early forecasts are worth reading: {rejects:?}");
}

/// A draft larger than any budget here.
#[derive(Debug)]
struct Huge;

impl Draft for Huge {
    fn bytes(&self) -> usize {
        1 << 40
    }
}

/// A draft that has no room beside slots is refused, with its size.
#[test]
fn draft_without_room_is_refused() {
    let options = Options { draft: Box::new(Huge), ..options(least() + 4 * MIB) };
    let refused =
        SpeculativeWeightStreamer::new(ForwardPass::new(spec()), store(ReaderKind::Mmap), options);
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("1099511627776 bytes"), "{error}");
}

/// Queries a layer's own router with the state that it has seen, and records whether it names the
/// experts that were chosen.
#[derive(Clone, Debug, Default)]
struct Control {
    chosen: Vec<u32>,
    compared: Arc<Mutex<Vec<(usize, bool)>>>,
    /// Layers entered in this pass.
    entered: Vec<usize>,
}

impl Draft for Control {
    fn begin(&mut self, _: &Pass) {
        self.entered.clear();
    }

    fn entering(
        &mut self,
        layer: usize,
        hidden: &[f32],
        gates: &mut dyn Gates,
    ) -> Option<&[LayerBlueprint]> {
        self.entered.push(layer);
        assert_eq!(self.entered, (0..=layer).collect::<Vec<_>>());
        let mut logits = vec![0.0; hidden.len() / 192 * 32];
        assert!(gates.logits(layer, hidden, &mut logits) && logits.iter().any(|&x| x != 0.0));
        assert!(!gates.logits(8, hidden, &mut logits), "there are 8 layers");
        assert!(!gates.logits(layer, hidden, &mut logits[1..]), "a wrong length");
        None
    }

    fn adapt(&mut self, _: usize, choices: &[u32], top_k: usize) {
        assert_eq!(top_k, 4);
        self.chosen = choices.to_vec();
    }

    fn attended(
        &mut self,
        layer: usize,
        state: &[f32],
        gates: &mut dyn Gates,
    ) -> Option<&[LayerBlueprint]> {
        let tokens = state.len() / 192;
        let mut logits = vec![0.0; tokens * 32];
        assert!(gates.logits(layer, state, &mut logits));
        let mut named = vec![0; 4 * tokens];
        for (logits, named) in logits.chunks(32).zip(named.chunks_mut(4)) {
            top_k(logits, named);
        }
        self.compared.lock().unwrap().push((layer, named == self.chosen));
        None
    }
}

/// A draft sees the same state as the router, and can query the model's routers.
#[test]
fn gates_reproduce_the_choices_of_routers() {
    let control = Control::default();
    let compared = Arc::clone(&control.compared);
    let budget = options(least() + 4 * MIB);
    // However long its queries take.
    let ablations = Ablations { governed: false, ..Ablations::default() };
    let options = Options { draft: Box::new(control), ablations, ..budget };
    streaming(ReaderKind::Direct, options).generate(&PROMPT, 8).unwrap();
    let compared = compared.lock().unwrap();
    assert!(compared.len() >= 8 * 8 && compared.iter().all(|(_, same)| *same), "{compared:?}");
}

/// A budget can be lowered between passes, and no bit changes.
#[test]
fn a_budget_can_be_lowered() {
    let expected = resident().generate(&PROMPT, 16).unwrap();
    let (low, high) = (least() + 3 * MIB, least() + 8 * MIB);
    let mut streamer = streaming(ReaderKind::Mmap, options(high));
    assert_eq!(streamer.generate(&PROMPT, 16).unwrap(), expected);
    let before = streamer.plan().unwrap().ledger.budget();
    streamer.lower_budget(low).unwrap();
    assert!(streamer.plan().unwrap().ledger.budget() < before);
    streamer.clear();
    assert_eq!(streamer.generate(&PROMPT, 16).unwrap(), expected);
    let error = streamer.lower_budget(1).unwrap_err().to_string();
    assert!(error.contains("too small"), "{error}");
    streamer.clear();
    assert_eq!(streamer.generate(&PROMPT, 16).unwrap(), expected);
    assert_eq!(streamer.model().spec().layers.len(), 8);
}

/// The memory of a prompt's activations holds experts while tokens come one at a time, in any order
/// of prompts and tokens.
#[test]
fn prompt_memory_is_lent_as_slots_to_tokens() {
    let least = least();
    let mut lent = 0;
    for more in [4, 8, 16].map(|more| more * MIB) {
        let mut streamer = streaming(ReaderKind::Direct, options(least + more));
        let mut all = resident();
        let plan = streamer.plan().unwrap().clone();
        let bytes = |classes: &[SlotClass]| classes.iter().map(SlotClass::bytes).sum::<u64>();
        let [slots, more] = [bytes(&plan.slots), bytes(&plan.lent)];
        assert!(
            slots + more + plan.ledger.get(MemoryUse::Pinned)
                < streamer.plan().unwrap().ledger.budget()
        );
        for (n, tokens) in [&PROMPT[..], &[3], &[77], &PROMPT[2..6], &[900], &PROMPT, &[1; 60]]
            .into_iter()
            .enumerate()
        {
            let before = streamer.counters().peak_cache_bytes;
            let expected = all.prefill(tokens).unwrap().to_vec();
            assert_eq!(streamer.prefill(tokens).unwrap(), expected, "{n}: {more} bytes lent");
            let peak = streamer.counters().peak_cache_bytes;
            // A prompt never has lent slots.
            assert!(peak <= slots + more && (tokens.len() == 1 || peak <= before.max(slots)));
        }
        for token in 0..40 {
            let expected = all.decode(token * 97).unwrap().to_vec();
            assert_eq!(streamer.decode(token * 97).unwrap(), expected);
        }
        let peak = streamer.counters().peak_cache_bytes;
        lent += u64::from(more > 0 && peak > slots);
        assert!(peak <= slots + more);
    }
    assert!(lent >= 2, "lent memory held experts in {lent} of 3 cases");
}

/// A long context holds experts until a text needs it, whatever the order of prompts, tokens and draft
/// tokens.
#[test]
fn a_long_context_is_lent_as_far_as_a_text_does_not_need_it() {
    let options = |bytes| Options { context: Some(8192), verify_len: 4, ..options(bytes) };
    let model = || ForwardPass::new(ModelSpec { context: 8192, ..spec() });
    let open =
        |ram| SpeculativeWeightStreamer::new(model(), store(ReaderKind::Direct), options(ram));
    let ram = smallest_of(open(1)) + 8 * MIB;
    let mut lends = open(ram).unwrap();
    let plan = Plan { context_lent: Vec::new(), ..lends.plan().unwrap().clone() };
    let (store, options) = (store(ReaderKind::Direct), options(ram));
    let keeps = SpeculativeWeightStreamer::with_plan(model(), store, plan, options);
    let mut keeps = keeps.unwrap();
    let room = lends.plan().unwrap().ledger.get(MemoryUse::KvCache);
    let (mut most, mut len) = (0, 0);
    for (round, tokens) in [40, 1, 1, 4, 1, 600, 1, 1, 4, 5500, 1, 1].into_iter().enumerate() {
        let tokens: Vec<u32> = (0..tokens).map(|n| ((n * 37 + round) % 4096) as u32).collect();
        len += tokens.len();
        let mut found = [&mut lends, &mut keeps].map(|lm| {
            if tokens.len() != 4 {
                return lm.prefill(&tokens).unwrap().to_vec();
            }
            lm.verify(&tokens, &mut ()).unwrap();
            let logits = lm.verified_logits(3).to_vec();
            lm.accept(len);
            logits
        });
        let [found, expected] = found.each_mut().map(std::mem::take);
        assert_eq!(found, expected, "round {round}");
        let lent = lends.counters().context_lent;
        let pages = len.div_ceil(512) as u64;
        assert!(lent <= room / 16 * (16 - pages), "{lent} bytes behind {len} tokens");
        most = most.max(lent);
        if round == 4 {
            let [less, more] = [&mut lends, &mut keeps].map(|lm| lm.counters().bytes[0]);
            assert!(most > 8 * MIB && less < more, "{most} lent, {less} of {more} bytes");
        }
    }
    // An empty context lends again, unless a caller keeps prefixes there.
    let mut lent_after = |keeps: Option<u64>, tokens: &[u32]| {
        lends.lend_context(keeps);
        lends.clear();
        lends.score(tokens, &mut ()).unwrap();
        lends.decode(1).unwrap();
        lends.counters().context_lent
    };
    assert_eq!(lent_after(Some(0), &[3; 40]), 0);
    assert!(lent_after(None, &[3; 40]) >= most);
}

/// Records the routes of a run, pass by pass.
struct Recording {
    trace: Trace,
    layers: Vec<Vec<u32>>,
    /// Tokens of the next pass: a policy sees them, so a replay must, too.
    tokens: Vec<u32>,
}

impl Observer for Recording {
    fn routed(&mut self, _: &Pass, layer: usize, routed: &Routed) -> Result<(), SourceError> {
        self.layers.push(routed.choices.clone());
        if layer + 1 == self.trace.shape().layers {
            self.trace.push(&self.tokens, &std::mem::take(&mut self.layers)).unwrap();
        }
        Ok(())
    }
}

/// The routes of the prompt, in chunks, and of an answer of `new` tokens.
fn recorded(streamer: &mut SpeculativeWeightStreamer, chunk: usize, new: usize) -> Trace {
    let shape = HistoryShape { layers: 8, experts: 32, top_k: 4 };
    let (trace, layers) = (Trace::new(shape).unwrap(), Vec::new());
    let mut recording = Recording { trace, layers, tokens: Vec::new() };
    let mut sampler = Sampler::new(sampling(), streamer.vocab());
    let mut logits = Vec::new();
    for tokens in PROMPT.chunks(chunk) {
        recording.tokens = tokens.to_vec();
        logits = streamer.observed(tokens, &mut recording).unwrap().to_vec();
    }
    for _ in 0..new {
        let token = sampler.sample(&mut logits, streamer.len()).unwrap();
        recording.tokens = vec![token];
        logits.copy_from_slice(streamer.observed(&[token], &mut recording).unwrap());
    }
    Trace::read(&recording.trace.write()).unwrap()
}

/// Hits and misses of every layer agree, with the prompt in one chunk and token by token.
#[test]
fn replay_matches_the_engine() {
    let least = least();
    let mut found = Vec::new();
    for (policy, more) in PolicyKind::ALL.into_iter().flat_map(|p| [0, 8, 16].map(|m| (p, m))) {
        // A replay is exact only if all experts of a chunk have slots.
        for (chunk, slots_needed) in [(1, 4), (PROMPT.len(), 32)] {
            let options = Options { policy, speculation: false, ..options(least + more * MIB) };
            let plan = streaming(ReaderKind::Direct, options).plan().unwrap().clone();
            let [class] = plan.slots[..] else { panic!("one length of experts: {plan:?}") };
            if class.count < slots_needed || plan.chunk < chunk {
                continue;
            }
            // A replay has a constant number of slots.
            let plan = Plan { lent: Vec::new(), ..plan };
            let options = Options { policy, speculation: false, ..Options::default() };
            let (model, store) = (ForwardPass::new(spec()), store(ReaderKind::Direct));
            let mut streamer =
                SpeculativeWeightStreamer::with_plan(model, store, plan, options).unwrap();
            let trace = recorded(&mut streamer, chunk, 48);
            let replay = Replay::new(&trace, 1).without_warming();
            let replayed = replay.run(ReplayPolicy::Engine(policy), class.count, &mut |_| {});
            let engine: Vec<LookupCounts> = streamer.counters().layers.into_values().collect();
            assert_eq!(replayed.layers, engine, "{policy}, {class:?}, prompt by {chunk}");
            found.push((policy, chunk, class.count, replayed.misses));
        }
    }
    // There were hits and misses, and both kinds of prompt with both policies.
    for (policy, chunk) in PolicyKind::ALL.into_iter().flat_map(|p| [(p, 1), (p, PROMPT.len())]) {
        let of = found.iter().filter(|run| (run.0, run.1) == (policy, chunk));
        let misses: std::collections::BTreeSet<u64> = of.map(|run| run.3).collect();
        assert!(misses.len() > 1, "{policy} by {chunk}: {found:?}");
    }
}

/// A run starts from the learned state of the previous one. Unusable files are ignored.
#[test]
fn learned_state_is_kept_and_changes_no_bit() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("deep").join("learned.safetensors");
    let run = |warm_start: Option<&Path>| {
        let warm_start = warm_start.map(Path::to_owned);
        let options = Options { warm_start, speculation: false, ..options(least() + 8 * MIB) };
        let mut streamer = streaming(ReaderKind::Direct, options);
        let passed_over = streamer.passed_over().map(str::to_owned);
        let tokens = streamer.generate(&PROMPT, 64).unwrap();
        let misses: u64 = streamer.counters().layers.values().map(|layer| layer.misses).sum();
        (tokens, misses, passed_over)
    };
    let cold = run(None);
    assert!(!file.exists());
    assert_eq!(run(Some(&file)), cold, "nothing was saved before");
    let saved = std::fs::read(&file).unwrap();
    let warm = run(Some(&file));
    assert_eq!((&warm.0, &warm.2), (&cold.0, &None));
    // The text is the same, so much of the learned state applies again.
    assert!(warm.1 < cold.1, "{} misses, and {} without", warm.1, cold.1);
    assert_eq!(file.parent().unwrap().read_dir().unwrap().count(), 1, "nothing half-written");

    let other = String::from_utf8_lossy(&saved[8..400]);
    let fingerprint = other.split('"').find(|word| word.len() == 64).unwrap();
    let at = saved.windows(64).position(|bytes| bytes == fingerprint.as_bytes()).unwrap();
    let mut another = saved.clone();
    another[at..at + 64].fill(b'0');
    #[rustfmt::skip]
    let cases: [(&[u8], &str); 4] = [
        (&another, "another model"),
        (&saved[..saved.len() / 2], "not a safetensors file"),
        (b"", "not a safetensors file"),
        (&[0xff; 100], "not a safetensors file"),
    ];
    for (bytes, expected) in cases {
        std::fs::write(&file, bytes).unwrap();
        let (tokens, misses, passed_over) = run(Some(&file));
        assert_eq!((tokens, misses), (cold.0.clone(), cold.1), "{expected}");
        let said = passed_over.unwrap();
        assert!(said.contains("learned.safetensors") && said.contains(expected), "{said}");
        // The learned state of this run replaces it.
        assert_eq!(std::fs::read(&file).unwrap(), saved, "{expected}");
    }
    // An unwritable path is ignored, and the answer is the same.
    let nowhere = file.join("below a file");
    assert_eq!(run(Some(&nowhere)).0, cold.0);
}

/// A correction of evictions is learned from run to run, in memory that the plan sets aside, and changes
/// no bit. A run that does not learn leaves what was learned to the next one.
#[test]
fn correction_is_learned_from_run_to_run() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("learned.safetensors");
    let run = |corrections: Corrections| {
        let (warm_start, budget) = (Some(file.clone()), least() + 8 * MIB);
        let options = Options { warm_start, corrections, speculation: false, ..options(budget) };
        let mut streamer = streaming(ReaderKind::Direct, options);
        let passed_over = streamer.passed_over().map(str::to_owned);
        let taken = streamer.plan().unwrap().ledger.get(MemoryUse::Correction);
        let tokens = streamer.generate(&PROMPT, 200).unwrap();
        drop(streamer);
        (tokens, taken, passed_over)
    };
    let saved = || SavedTensors::of_any_model(&std::fs::read(&file).unwrap()).unwrap().1;
    let learned = || {
        let saved = saved();
        let shape = HistoryShape { layers: 8, experts: 32, top_k: 4 };
        Correction::recall(&saved, shape).unwrap()
    };
    let hidden = spec().state_width();
    let (expected, taken, _) = run(Corrections::None);
    assert_eq!((taken, learned()), (0, None));
    let mut known = Vec::new();
    for _ in 0..3 {
        let (tokens, taken, passed_over) = run(Corrections::Learned { hidden });
        assert_eq!((&tokens, passed_over), (&expected, None));
        assert!(taken > 500_000, "{taken} bytes");
        known.push(learned().unwrap());
    }
    let [a, b, c] = &known[..] else { unreachable!() };
    assert!(a != b && b != c, "each run adds to it");
    // So does each run's trial of it, in 8 layers, once the cache is full.
    let saved = saved();
    let [slots, turns, without, ..] = saved
        .get("correction.trial", Dtype::F32, |_| true)
        .map(|all| all.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect::<Vec<_>>())
        .unwrap()[..]
    else {
        unreachable!()
    };
    assert!(slots > 50.0 && turns > 1_000.0 && without > 100.0, "{slots} {turns} {without}");
    assert_eq!(run(Corrections::None).0, expected);
    assert_eq!(learned().as_ref(), Some(c), "kept for the next run");

    // Numbers that no correction has: the run begins anew, and its own state takes the place.
    let mut bytes = std::fs::read(&file).unwrap();
    let up = saved.get("correction.up", Dtype::F32, |_| true).unwrap();
    let at = bytes.windows(up.len()).position(|window| window == up).unwrap();
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&file, bytes).unwrap();
    let (tokens, _, passed_over) = run(Corrections::Learned { hidden });
    assert_eq!(tokens, expected);
    assert!(passed_over.unwrap().contains("`correction.up` that does not fit the model"));
    assert!(learned().is_some_and(|again| again != *c));
}
