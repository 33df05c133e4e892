//! Streamed experts give the same bits as resident ones, with any slots, forecasts and failures.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use proptest::prelude::*;
use sws_cache::policy::PolicyKind;
use sws_draft::{Draft, NoDraft};
use sws_format::{Clock, Manifest, Pass, PieceId, PieceKind, ShardReader};
use sws_model::{
    CausalLm, Compute, FindRows, ForwardPass, Inventory, KvPrecision, ModelSpec, Observer,
    PassSource, Ready, ResidentSource, Role, Routed, Session, SourceError, TakeRow, WeightSource,
};
use sws_store::{Arena, NVMeWeightStore, Read, ReaderKind, Slot, StoreOptions};
use sws_testing::goldens::{self, golden_dir, runnable, runnable_from, variants};
use sws_testing::is_night;
use sws_testing::readers::{Failing, Short, Slow};
use sws_testing::recorded::Recorded;

use super::{AssemblerConfig, DynamicAssembler, Verifier, layers_with_experts};
use crate::ResidentLoad;
use crate::reads::LoadedSlot;
use crate::wait::Waiter;

/// A model on disk, and its results with everything in memory.
struct Fixture {
    dir: PathBuf,
    spec: ModelSpec,
    manifest: Arc<Manifest>,
    /// Length of the largest slot of an expert.
    slot: usize,
    experts: usize,
    truth: Run,
}

/// Results of a run.
#[derive(Clone, Debug, Default, PartialEq)]
struct Run {
    /// A hash of the logits of each position.
    logits: Vec<u64>,
    /// [tokens, layers with experts, k]
    routes: Vec<u16>,
}

const PROMPT: [u32; 12] = [5, 300, 17, 99, 1000, 41, 7, 2048, 311, 12, 801, 77];
const NEW: usize = 8;

impl Fixture {
    fn open(dir: &str) -> Fixture {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(dir);
        let (manifest, spec) = sws_testing::open(&dir).unwrap();
        let manifest = Arc::new(manifest);
        let mut fixture =
            Fixture { dir, spec, manifest, slot: 0, experts: 0, truth: Run::default() };
        let store = fixture.store(None);
        let experts = fixture.manifest.pieces.iter().map(|piece| piece.id);
        for id in experts.filter(|id| matches!(id.kind(), PieceKind::Expert(_))) {
            let len = store.layout(Read::Piece(id)).unwrap().slot_len();
            fixture.slot = fixture.slot.max(len);
            fixture.experts += 1;
        }
        let mut session = fixture.session(fixture.resident());
        fixture.truth = fixture.generate(&mut session, PROMPT.len()).unwrap();
        fixture
    }

    fn tales() -> &'static Fixture {
        static TALES: OnceLock<Fixture> = OnceLock::new();
        TALES.get_or_init(|| Fixture::open("shards/tales-moe"))
    }

    fn store(&self, reader: Option<Arc<dyn ShardReader>>) -> Arc<NVMeWeightStore> {
        let reader = reader.or_else(|| Some(self.reader(ReaderKind::Mmap)));
        // Small chunks, so that an expert takes several reads.
        let options =
            StoreOptions { reader, cache: None, chunk: 16 << 10, ..StoreOptions::default() };
        Arc::new(NVMeWeightStore::open(Arc::clone(&self.manifest), &self.dir, options).unwrap())
    }

    fn reader(&self, kind: ReaderKind) -> Arc<dyn ShardReader> {
        kind.open(&self.manifest, &self.dir, 4).unwrap()
    }

    fn resident(&self) -> ResidentSource {
        let store = self.store(None);
        let load = ResidentLoad::new(&self.spec, &store).unwrap();
        load.load(|_| true).unwrap().unwrap()
    }

    fn session<S: PassSource>(&self, source: S) -> Session<S> {
        Session::new(ForwardPass::new(self.spec.clone()), source, 512, KvPrecision::F32)
    }

    fn streaming(&self, slots: usize, draft: Box<dyn Draft>) -> Session<Streaming> {
        self.streaming_from(self.store(None), slots, draft, PolicyKind::Lru)
    }

    fn streaming_from(
        &self,
        store: Arc<NVMeWeightStore>,
        slots: usize,
        draft: Box<dyn Draft>,
        policy: PolicyKind,
    ) -> Session<Streaming> {
        let arena = Arena::new(slots * self.slot).unwrap();
        let slots: Vec<Slot> = (0..slots).map(|_| arena.take(self.slot).unwrap()).collect();
        let policy = policy.build(layers_with_experts(&self.spec, 1));
        let config =
            AssemblerConfig { policy, draft, confidence: 0.5, speculation: true, governed: false };
        let inventory = Arc::new(Inventory::new(&self.spec, &self.manifest).unwrap());
        let waiter = Waiter::new(Clock::real());
        let assembler =
            DynamicAssembler::new(&self.spec, store, inventory, slots, config, waiter.clone());
        let infrastructure = self.resident();
        let (spec, partly, meanwhile) = (self.spec.clone(), 0, None);
        let source =
            Streaming { spec, infrastructure, assembler, waiter, arena, partly, meanwhile };
        self.session(source)
    }

    fn layers(&self) -> Vec<usize> {
        let layers = self.spec.in_order().enumerate();
        layers.filter(|(_, layer)| layer.moe().is_some()).map(|(l, _)| l).collect()
    }

    fn oracle(&self) -> Recorded {
        let moe = self.spec.moes().next().unwrap();
        Recorded::oracle(self.layers(), moe.experts, moe.top_k, self.truth.routes.clone())
    }

    /// Runs the prompt, then generates greedily.
    fn generate<S: PassSource>(
        &self,
        session: &mut Session<S>,
        chunk: usize,
    ) -> Result<Run, sws_model::ForwardError> {
        session.clear();
        session.set_chunk(chunk);
        let layers = self.layers();
        let top_k = self.spec.max_top_k();
        let vocab = self.spec.vocab;
        let mut recorder = Recorder { layers, top_k, vocab, ..Recorder::default() };
        let mut tokens: Vec<u32> = PROMPT.iter().map(|&t| t % self.spec.vocab as u32).collect();
        for _ in 0..=NEW {
            session.score(&tokens, &mut recorder)?;
            tokens = vec![recorder.likeliest];
        }
        Ok(recorder.run)
    }
}

#[derive(Default)]
struct Recorder {
    layers: Vec<usize>,
    top_k: usize,
    vocab: usize,
    likeliest: u32,
    run: Run,
}

impl Observer for Recorder {
    fn routed(&mut self, pass: &Pass, layer: usize, routed: &Routed) -> Result<(), SourceError> {
        let first = pass.first_position();
        let place = self.layers.iter().position(|&l| l == layer).unwrap();
        let row = self.layers.len() * self.top_k;
        for (token, choices) in routed.choices.chunks(self.top_k).enumerate() {
            let at = (first + token) * row + place * self.top_k;
            self.run.routes.resize(self.run.routes.len().max((first + token + 1) * row), 0);
            let to = &mut self.run.routes[at..][..self.top_k];
            to.iter_mut().zip(choices).for_each(|(to, &id)| *to = id as u16);
        }
        Ok(())
    }

    fn logits(&mut self, first: usize, logits: &[f32]) {
        for row in logits.chunks(self.vocab) {
            let bytes: Vec<u8> = row.iter().flat_map(|x| x.to_bits().to_le_bytes()).collect();
            self.run.logits.push(sws_format::checksum(&bytes));
            self.likeliest = sws_kernels::functional::argmax(row).unwrap() as u32;
        }
        assert!(self.run.logits.len() > first);
    }
}

/// Experts from the assembler, everything else from memory.
struct Streaming {
    spec: ModelSpec,
    infrastructure: ResidentSource,
    assembler: DynamicAssembler,
    waiter: Waiter,
    arena: Arena,
    /// Number of times that an expert was computed before its last matrix had arrived, and an
    /// action to run then.
    partly: usize,
    meanwhile: Option<Box<dyn FnMut() + Send>>,
}

impl WeightSource for Streaming {
    fn embed(&mut self, tokens: &[u32], rows: &mut [f32]) -> Result<(), SourceError> {
        self.infrastructure.embed(tokens, rows)
    }

    fn look_up(
        &mut self,
        layer: usize,
        find: FindRows<'_>,
        take: TakeRow<'_>,
    ) -> Result<(), SourceError> {
        self.infrastructure.look_up(layer, find, take)
    }

    fn infrastructure(
        &mut self,
        layer: usize,
        pieces: &[PieceKind],
        compute: Compute<'_>,
    ) -> Result<(), SourceError> {
        self.infrastructure.infrastructure(layer, pieces, compute)
    }

    fn experts(
        &mut self,
        layer: usize,
        routed: &Routed,
        ready: Ready<'_>,
    ) -> Result<(), SourceError> {
        let Streaming { assembler, partly, meanwhile, .. } = self;
        assembler.experts(layer, routed, &mut |experts, weights| {
            let last = |expert| weights.matrix(PieceId::expert(layer as u32, expert), Role::Down);
            if experts.iter().any(|&expert| last(expert).is_none()) {
                *partly += 1;
                meanwhile.iter_mut().for_each(|act| act());
            }
            ready(experts, weights)
        })?;
        self.assembler.cache.assert_within_budget();
        Ok(())
    }

    fn head(&mut self, compute: Compute<'_>) -> Result<(), SourceError> {
        self.infrastructure.head(compute)
    }
}

impl PassSource for Streaming {}

impl Observer for Streaming {
    fn pass_begins(&mut self, pass: &Pass) -> Result<(), SourceError> {
        let Streaming { spec, infrastructure, assembler, .. } = self;
        assembler.begin(pass);
        infrastructure.infrastructure(0, &[], &mut |weights| {
            for layer in 0..spec.layers.len() {
                let mut experts = Vec::new();
                spec.known_experts(layer, weights, &pass.tokens, &mut experts);
                assembler.expect_known(layer, &experts);
            }
            Ok(())
        })
    }

    fn layer_begins(&mut self, _: &Pass, layer: usize, hidden: &[f32]) -> Result<(), SourceError> {
        Ok(self.assembler.entering(layer, hidden, &mut ())?)
    }

    fn routed(&mut self, pass: &Pass, layer: usize, routed: &Routed) -> Result<(), SourceError> {
        Ok(self.assembler.routed(pass, layer, routed)?)
    }

    fn attended(
        &mut self,
        _: &Pass,
        layer: usize,
        state: &[f32],
        shared: &[f32],
    ) -> Result<(), SourceError> {
        Ok(self.assembler.attended(layer, state, shared, &mut ())?)
    }
}

/// From one slot to a slot for every expert, prompts in chunks of one to all tokens, every draft.
#[test]
fn bits_do_not_depend_on_slots_chunks_or_drafts() {
    let tales = Fixture::tales();
    let draft = |name: &str| -> Box<dyn Draft> {
        match name {
            "none" => Box::new(NoDraft),
            "oracle" => Box::new(tales.oracle()),
            _ => Box::new(tales.oracle().adversarial()),
        }
    };
    let mut number = 0;
    for slots in [1, 3, 4, 26, 64, 128, 192, 256] {
        for (chunk, policy) in
            [(1, PolicyKind::Lru), (5, PolicyKind::Expected), (12, PolicyKind::Lru)]
        {
            for name in ["none", "oracle", "adversarial"] {
                number += 1;
                if number % 2 == 0 && !is_night() {
                    continue;
                }
                let mut session =
                    tales.streaming_from(tales.store(None), slots, draft(name), policy);
                let run = tales.generate(&mut session, chunk).unwrap();
                assert_eq!(run, tales.truth, "{slots} slots, chunks of {chunk}, draft {name}");
                let assembler = &session.source().assembler;
                let Verifier { accepts, rejects, misses, .. } = assembler.verifier();
                let steps = PROMPT.len().div_ceil(chunk) + NEW;
                assert_eq!(accepts + rejects, (tales.spec.layers.len() * steps) as u64);
                let counted: u64 = assembler.cache().counts().values().map(|c| c.misses).sum();
                assert_eq!(misses, counted, "{slots} slots, chunks of {chunk}, draft {name}");
                if name == "oracle" && chunk == 1 && slots >= 64 {
                    assert_eq!(rejects, 0, "{slots} slots: choices were known, with enough room");
                }
                if name == "adversarial" && chunk == 1 && slots == 256 {
                    let read = session.source().waiter.bytes()[0];
                    assert!(read > 0 && rejects > 0);
                }
            }
        }
    }
}

/// Checkpoints of the families with experts, read in place where that is possible.
#[test]
fn bits_do_not_depend_on_slots_in_other_families() {
    let mut tried = 0;
    for name in variants() {
        if sws_testing::spec(&golden_dir(&name)).moes().next().is_some() {
            let runnable = runnable(&name);
            let fixture = Fixture::open(runnable.dir.to_str().unwrap());
            for slots in [1, fixture.experts / 4, fixture.experts / 2, fixture.experts] {
                let mut session = fixture.streaming(slots.max(1), Box::new(fixture.oracle()));
                let run = fixture.generate(&mut session, 5).unwrap();
                assert_eq!(run, fixture.truth, "{name}, {slots} slots");
            }
            tried += 1;
        }
    }
    assert!(tried >= 5, "{tried}");
}

/// The first two layers have tables of experts; nothing else is known before a router has chosen.
#[test]
fn experts_of_a_table_are_read_before_their_layer() {
    let fixture = Fixture::open("tests/goldens/deepseek_v4");
    let mut session = fixture.streaming(fixture.experts, Box::new(NoDraft));
    assert_eq!(fixture.generate(&mut session, 1).unwrap(), fixture.truth);
    let counts = session.source().assembler.cache().counts();
    let missed: Vec<bool> = counts.values().map(|counts| counts.misses > 0).collect();
    assert_eq!(missed, [false, false, true, true]);
}

/// An expert that several tokens of a chunk use is read once for all of them.
#[test]
fn a_chunk_reads_each_expert_at_most_once() {
    let tales = Fixture::tales();
    for slots in [1, 26, 64, 256] {
        let mut session = tales.streaming(slots, Box::new(NoDraft));
        let tokens: Vec<u32> = (0..48).map(|t| t * 83 % 4096).collect();
        let mut recorder = Recorder {
            layers: tales.layers(),
            top_k: tales.spec.max_top_k(),
            vocab: tales.spec.vocab,
            ..Recorder::default()
        };
        session.observed(&tokens, &mut recorder).unwrap();
        let source = session.source();
        let read = source.waiter.bytes()[0];
        let store = source.assembler.reads.store.stats();
        let fetched =
            store.demanded.completed + store.ahead.completed + store.speculative.completed;
        assert!(fetched <= tales.experts as u64, "{slots} slots: {fetched} experts were read");
        assert!(read > 0);
    }
}

/// Experts of later layers are not evicted for those of earlier layers during a prompt.
#[test]
fn prompt_reads_only_absent_experts() {
    let tales = Fixture::tales();
    for policy in PolicyKind::ALL {
        for slots in [40, 64, 128, 192] {
            let store = tales.store(None);
            let draft = Box::new(NoDraft);
            let mut session = tales.streaming_from(store, slots, draft, policy);
            // Fills the cache.
            tales.generate(&mut session, 1).unwrap();
            session.clear();
            session.set_chunk(512);
            let tokens: Vec<u32> = (0..512).map(|t| t * 83 % 4096).collect();
            let mut needed = Distinct::default();
            let assembler = &session.source().assembler;
            let all = (0..8).flat_map(|l| (0..32).map(move |e| PieceId::expert(l, e)));
            let there: HashSet<PieceId> =
                all.filter(|id| assembler.cache.get(*id).is_some()).collect();
            let reads = |assembler: &DynamicAssembler| {
                let stats = assembler.reads.store.stats();
                stats.demanded.completed + stats.ahead.completed + stats.speculative.completed
            };
            let before = reads(assembler);
            session.observed(&tokens, &mut needed).unwrap();
            let read = reads(&session.source().assembler) - before;
            let absent = needed.0.difference(&there).count() as f64;
            assert!(read as f64 <= 1.05 * absent, "{policy}, {slots} slots: {read} of {absent}");
        }
    }
}

/// Distinct experts that a pass uses.
#[derive(Default)]
struct Distinct(HashSet<PieceId>);

impl Observer for Distinct {
    fn routed(&mut self, _: &Pass, layer: usize, routed: &Routed) -> Result<(), SourceError> {
        let ids = routed.distinct.iter().map(|&expert| PieceId::expert(layer as u32, expert));
        self.0.extend(ids);
        Ok(())
    }
}

#[test]
fn a_read_that_fails_once_leaves_no_trace() {
    let tales = Fixture::tales();
    for nth in (0..600).step_by(41) {
        let readers: [Arc<dyn ShardReader>; 2] = [
            Arc::new(Failing::nth(tales.reader(ReaderKind::Mmap), nth)),
            Arc::new(Short::new(tales.reader(ReaderKind::Mmap), nth, 512)),
        ];
        for reader in readers {
            let store = tales.store(Some(reader));
            let mut session =
                tales.streaming_from(store, 40, Box::new(NoDraft), PolicyKind::Expected);
            let run = tales.generate(&mut session, 12).unwrap();
            assert_eq!(run, tales.truth, "read {nth}");
        }
    }
}

/// All reads fail from some point on, then work again.
#[test]
fn disk_failure_is_reported_and_recovered_from() {
    let tales = Fixture::tales();
    let gate = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let reader = Gate { inner: tales.reader(ReaderKind::Mmap), closed: Arc::clone(&gate) };
    let store = tales.store(Some(Arc::new(reader)));
    let draft = Box::new(tales.oracle());
    let mut session = tales.streaming_from(store, 40, draft, PolicyKind::Lru);
    for _ in 0..3 {
        gate.store(true, std::sync::atomic::Ordering::SeqCst);
        session.clear();
        let error = session.prefill(&PROMPT).unwrap_err().to_string();
        assert!(error.contains("/expert_") && error.contains("closed"), "{error}");
        let assembler = &session.source().assembler;
        assert!(assembler.reads.is_empty() && !assembler.demand.is_waiting());
        gate.store(false, std::sync::atomic::Ordering::SeqCst);
        let run = tales.generate(&mut session, 12).unwrap();
        assert_eq!(run, tales.truth);
        // Cached experts would hide the next failure.
        session.source().assembler.trim_to_budget(0);
        let source = session.source();
        let slots: Vec<Slot> = (0..40).map(|_| source.arena.take(tales.slot).unwrap()).collect();
        let slots = slots.into_iter().map(|slot| (slot.len(), LoadedSlot::empty(slot)));
        source.assembler.cache.extend(slots);
    }
}

/// The last expert of a layer is computed while its last matrix is in flight.
#[test]
fn last_expert_is_computed_while_it_arrives() {
    // A bias follows the last matrix of the second.
    let checkpoint = wide_gpt_oss();
    let biased = runnable_from(checkpoint.path());
    let biased = Fixture::open(biased.dir.to_str().unwrap());
    for (fixture, slots) in [(Fixture::tales(), 40), (&biased, 8)] {
        let slow =
            || Slow::new(fixture.reader(ReaderKind::Mmap), Clock::real(), 60 << 20, Duration::ZERO);
        for policy in PolicyKind::ALL {
            let store = fixture.store(Some(Arc::new(slow())));
            let mut session = fixture.streaming_from(store, slots, Box::new(NoDraft), policy);
            for _ in 0..2 {
                assert_eq!(fixture.generate(&mut session, 12).unwrap(), fixture.truth, "{policy}");
            }
            assert!(session.source().partly > 0, "{policy}: no expert was computed in flight");
        }
    }
}

/// The golden of gpt-oss with experts so wide that their last matrix takes several reads.
fn wide_gpt_oss() -> tempfile::TempDir {
    const WIDTH: usize = 256;
    let dir = tempfile::tempdir().unwrap();
    goldens::copy("gpt_oss", dir.path());
    goldens::change(dir.path(), "config.json", |config| config["intermediate_size"] = WIDTH.into());
    let weights = dir.path().join("model.safetensors");
    let mut tensors = goldens::Tensors::read(&weights);
    for (name, (_, shape, bytes)) in &mut tensors.0 {
        match name.rsplit_once(".experts.") {
            Some((_, "gate_up_proj")) => shape[2] = 2 * WIDTH,
            Some((_, "gate_up_proj_bias" | "down_proj")) => {
                shape[1] = if name.ends_with("bias") { 2 * WIDTH } else { WIDTH };
            }
            _ => continue,
        }
        let old = std::mem::take(bytes);
        bytes.extend(old.iter().cycle().take(2 * shape.iter().product::<usize>()));
    }
    tensors.write(&weights);
    dir
}

/// The disk fails when all but the last matrix of an expert has arrived.
#[test]
fn failure_of_the_last_matrix_is_reported() {
    let tales = Fixture::tales();
    let closed = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let slow = Slow::new(tales.reader(ReaderKind::Mmap), Clock::real(), 60 << 20, Duration::ZERO);
    let reader = Gate { inner: Arc::new(slow), closed: Arc::clone(&closed) };
    let store = tales.store(Some(Arc::new(reader)));
    let mut session = tales.streaming_from(store, 40, Box::new(NoDraft), PolicyKind::Expected);
    assert_eq!(tales.generate(&mut session, 12).unwrap(), tales.truth);
    for _ in 0..3 {
        let close = Arc::clone(&closed);
        session.source().meanwhile =
            Some(Box::new(move || close.store(true, std::sync::atomic::Ordering::SeqCst)));
        let error = tales.generate(&mut session, 12).unwrap_err().to_string();
        assert!(error.contains("/expert_") && error.contains("closed"), "{error}");
        assert!(session.source().assembler.reads.is_empty());
        closed.store(false, std::sync::atomic::Ordering::SeqCst);
        session.source().meanwhile = None;
        assert_eq!(tales.generate(&mut session, 12).unwrap(), tales.truth);
    }
    let source = session.source();
    source.assembler.abandon();
    source.assembler.trim_to_budget(0);
    assert_eq!(source.arena.free_bytes(), source.arena.bytes(), "every slot has been returned");
}

/// Fails while it is closed.
struct Gate {
    inner: Arc<dyn ShardReader>,
    closed: Arc<std::sync::atomic::AtomicBool>,
}

impl ShardReader for Gate {
    fn name(&self) -> &'static str {
        "gate"
    }

    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> std::io::Result<usize> {
        match self.closed.load(std::sync::atomic::Ordering::SeqCst) {
            true => Err(std::io::Error::other("closed")),
            false => self.inner.read_at(file, offset, into),
        }
    }
}

/// A pass cancelled in the middle of a layer loses no memory, and the next prompt is answered.
#[test]
fn cancelled_pass_returns_its_memory() {
    let tales = Fixture::tales();
    let cancel = Cancel::default();
    let mut session = tales.streaming(20, Box::new(cancel.clone()));
    for layer in [0, 3, 7] {
        let waiter = session.source().waiter.clone();
        *cancel.0.lock().unwrap() = Some((layer, waiter.clone()));
        session.clear();
        let error = session.prefill(&PROMPT).unwrap_err().to_string();
        assert_eq!(error, "the pass was cancelled", "in layer {layer}");
        assert_eq!(session.source().assembler.demand.layer() as usize, layer);
        let assembler = &session.source().assembler;
        assert!(assembler.reads.is_empty() && !assembler.prefetcher.has_pins());
        assembler.cache.assert_within_budget();
        *cancel.0.lock().unwrap() = None;
        waiter.resume();
        assert_eq!(tales.generate(&mut session, 12).unwrap(), tales.truth);
    }
    let source = session.source();
    source.assembler.abandon();
    source.assembler.trim_to_budget(0);
    assert_eq!(source.arena.free_bytes(), source.arena.bytes(), "every slot has been returned");
}

/// Cancels the pass once a router has chosen and its misses have been demanded.
#[derive(Clone, Debug, Default)]
struct Cancel(Arc<std::sync::Mutex<Option<(usize, Waiter)>>>);

impl Draft for Cancel {
    fn adapt(&mut self, layer: usize, _: &[u32], _: usize) {
        if let Some((at, waiter)) = &*self.0.lock().unwrap()
            && *at == layer
        {
            waiter.cancel();
        }
    }
}

#[test]
fn too_short_slot_is_refused_with_a_remedy() {
    let tales = Fixture::tales();
    let mut session = tales.streaming(0, Box::new(NoDraft));
    let arena = Arena::new(4096).unwrap();
    let slot = arena.take(4096).unwrap();
    session.source().assembler.cache.extend([(4096, LoadedSlot::empty(slot))]);
    let error = session.prefill(&PROMPT).unwrap_err().to_string();
    assert!(error.contains("no slot") && error.contains("--ram"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Any number of slots, chunk length, lowered budget and forecast.
    #[test]
    fn bits_do_not_depend_on_any_setting(
        slots in 1usize..200,
        lower in 1usize..200,
        chunk in 1usize..13,
        forecast in prop::collection::vec(0u16..32, 0..20 * 8 * 4),
        reader in prop::sample::select(vec![ReaderKind::Mmap, ReaderKind::Direct]),
        policy in prop::sample::select(PolicyKind::ALL.to_vec()),
    ) {
        let tales = Fixture::tales();
        let whole = forecast.len() / 32 * 32;
        let draft = Recorded::oracle(tales.layers(), 32, 4, forecast[..whole].to_vec());
        let store = tales.store(Some(tales.reader(reader)));
        let mut session = tales.streaming_from(store, slots, Box::new(draft), policy);
        prop_assert_eq!(&tales.generate(&mut session, chunk).unwrap(), &tales.truth);
        session.source().assembler.trim_to_budget(lower.min(slots) * tales.slot);
        prop_assert_eq!(&tales.generate(&mut session, chunk).unwrap(), &tales.truth);
        let source = session.source();
        prop_assert!(source.assembler.cache.capacity() <= lower * tales.slot);
    }
}
