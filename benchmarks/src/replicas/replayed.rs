//! A model that takes no weights: its tokens choose the experts that were recorded, and its passes take
//! virtual time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sws::SimulatedLm;
use sws_cache::history::HistoryShape;
use sws_cache::policy::PolicyKind;
use sws_cache::replay::Residency;
use sws_engine::Lending;
use sws_format::{Clock, Pass};
use sws_model::{CausalLm, Chunk, ForwardError, Observer, StepOutcome};

use super::costs::{Costs, Work};
use super::texts::Texts;

/// Tokens of a pass of prompts that wait together.
const LONGEST_PASS: usize = 512;

/// The model of a replica. Each token of a text is the number of the text, and so is the likeliest next
/// one: the scheduler sees tokens, and the model knows whose they are.
#[derive(Debug)]
pub(crate) struct Replayed {
    texts: Arc<Texts>,
    costs: Costs,
    clock: Clock,
    cache: Residency,
    /// Positions of each sequence.
    lens: Vec<usize>,
    most: usize,
    /// Slots that are lent while no prompt is computed.
    lent: usize,
    lending: Lending,
    /// Experts that were read before, [layers, experts].
    known: Vec<bool>,
    has_begun: bool,
    done: Done,
    working: Working,
    pass: Pass,
    /// Tokens of the trace in the rows of the pass.
    rows: Vec<usize>,
    experts: Vec<u32>,
    logits: Vec<f32>,
}

/// What a replica has done, for those who look at it between passes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Done(Arc<Mutex<Work>>);

impl Done {
    pub(crate) fn read(&self) -> Work {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, work: Work) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.tokens += work.tokens;
        all.uses += work.uses;
        all.misses += work.misses;
        all.fetched += work.fetched;
    }
}

/// The number of replicas that work.
#[derive(Clone, Debug, Default)]
pub(crate) struct Working(Arc<AtomicUsize>);

impl Working {
    /// Counts a replica that begins to work.
    pub(crate) fn begins(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a replica that has ended its work.
    pub(crate) fn ends(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    fn is_one(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 1
    }
}

impl Replayed {
    /// A replica among those of `working`, with so many slots for experts and lent ones, which continues so
    /// many texts at a time.
    pub(crate) fn new(
        texts: Arc<Texts>,
        costs: Costs,
        slots: [usize; 2],
        most: usize,
        working: Working,
    ) -> Replayed {
        let [slots, lent] = slots;
        let shape = texts.trace().shape();
        Replayed {
            cache: Residency::new(shape, PolicyKind::default(), slots, most),
            texts,
            costs,
            clock: Clock::simulated(),
            lens: vec![0],
            most,
            lent,
            lending: Lending::default(),
            known: vec![false; shape.layers * shape.experts],
            has_begun: false,
            done: Done::default(),
            working,
            pass: Pass::default(),
            rows: Vec::new(),
            experts: Vec::new(),
            logits: Vec::new(),
        }
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock.clone()
    }

    pub(crate) fn done(&self) -> Done {
        self.done.clone()
    }

    /// Lets the tokens of sequences go through the layers together.
    fn through(&mut self, chunks: &[Chunk<'_>]) {
        let Replayed { texts, cache, pass, rows, experts, .. } = self;
        let trace = texts.trace();
        let HistoryShape { layers, experts: of_layer, .. } = trace.shape();
        pass.clear();
        rows.clear();
        for &Chunk { sequence, tokens } in chunks {
            let len = &mut self.lens[sequence];
            let recorded = &texts.all()[tokens[0] as usize].tokens;
            let range = recorded.start + *len..recorded.start + *len + tokens.len();
            match trace.tokens().get(range.clone()) {
                Some(ids) => pass.push(sequence, *len, ids),
                None => pass.push_unknown(sequence, *len, tokens.len()),
            }
            rows.extend(range);
            *len += tokens.len();
        }
        match rows.len() <= self.most {
            true if self.lending.small() => self.lending.lent(cache.extend(self.lent)),
            true => {}
            false => self.lending.large().into_iter().for_each(|own| cache.truncate(own)),
        }
        let mut work = Work { tokens: rows.len() as u64, ..Work::default() };
        cache.begin(pass);
        for layer in 0..layers {
            experts.clear();
            experts.extend(
                rows.iter().flat_map(|&row| trace.experts(row, layer)).map(|&e| u32::from(e)),
            );
            for &expert in cache.layer(layer, experts) {
                let known = &mut self.known[layer * of_layer + expert as usize];
                work.misses += 1;
                work.fetched += u64::from(!std::mem::replace(known, true));
            }
            experts.sort_unstable();
            experts.dedup();
            work.uses += experts.len() as u64;
        }
        if !std::mem::replace(&mut self.has_begun, true) {
            self.clock.sleep(self.costs.start());
        }
        self.clock.sleep(self.costs.time(work, self.working.is_one()));
        self.done.add(work);
    }
}

/// Makes a token the likeliest.
fn choose(logits: &mut [f32], chunk: &Chunk<'_>) {
    logits[chunk.tokens[0] as usize] = 1.0;
}

impl CausalLm for Replayed {
    fn vocab(&self) -> usize {
        self.texts.all().len()
    }

    /// Texts end where they were recorded to end.
    fn limit(&self) -> usize {
        1 << 30
    }

    fn len(&self) -> usize {
        self.lens[0]
    }

    fn clear(&mut self) {
        self.lens[0] = 0;
    }

    fn observed(&mut self, tokens: &[u32], _: &mut dyn Observer) -> Result<&[f32], ForwardError> {
        let chunk = Chunk { sequence: 0, tokens };
        self.through(&[chunk]);
        self.logits.clear();
        self.logits.resize(self.vocab(), 0.0);
        choose(&mut self.logits, &chunk);
        Ok(&self.logits)
    }

    fn score(&mut self, tokens: &[u32], observer: &mut dyn Observer) -> Result<(), ForwardError> {
        self.observed(tokens, observer).map(|_| ())
    }
}

/// Without keys and values: nothing is kept of a text.
impl SimulatedLm for Replayed {
    fn add_sequence(&mut self) -> Option<usize> {
        (self.lens.len() < self.most).then(|| {
            self.lens.push(0);
            self.lens.len() - 1
        })
    }

    fn sequence_len(&self, sequence: usize) -> usize {
        self.lens[sequence]
    }

    fn release(&mut self, sequence: usize) {
        self.lens[sequence] = 0;
    }

    fn longest_pass(&self) -> usize {
        LONGEST_PASS
    }

    fn step(&mut self, chunks: &[Chunk<'_>], _: &mut dyn Observer, step: &mut StepOutcome) {
        self.through(chunks);
        let vocab = self.vocab();
        let logits = step.succeed(chunks.len(), vocab);
        logits
            .chunks_exact_mut(vocab)
            .zip(chunks)
            .for_each(|(logits, chunk)| choose(logits, chunk));
    }
}
