//! Many sequences on one model, from tokens to logits.

use crate::forward::{Chunk, ForwardError, ForwardPass, LogitRows};
use crate::layer_state::KvPrecision;
use crate::observer::Observer;
use crate::source::{PassSource, RunAhead};
use crate::state::ForwardState;

/// A model with its weights and any number of sequences.
///
/// [`step`](Self::step) continues several sequences in shared passes. Each gets the bits that it
/// has alone, whatever the others do: sequences can be added, forked, truncated and removed between
/// steps, and one that fails leaves the others untouched.
#[derive(Debug)]
pub struct Sequences<S> {
    model: ForwardPass,
    source: S,
    state: ForwardState,
    chunk: usize,
}

/// Default number of tokens that go through the layers together.
const CHUNK: usize = 512;

/// The outcome of a step: for each chunk, the logits after its last token, or an error. The caller
/// keeps the outcome from step to step, so that its memory is reused.
#[derive(Debug, Default)]
pub struct StepOutcome {
    outcomes: Vec<Result<(), ForwardError>>,
    /// [chunks, vocab]
    logits: Vec<f32>,
}

/// The progress of a chunk through the passes of a step.
struct ChunkRun<'c> {
    sequence: usize,
    /// Position of the chunk's first token.
    first_position: usize,
    rest: &'c [u32],
    outcome: Result<(), ForwardError>,
}

impl<S: PassSource> Sequences<S> {
    /// Creates a model without sequences. Each sequence can have up to `limit` positions, capped at
    /// the model's context length.
    pub fn new(
        model: ForwardPass,
        source: S,
        limit: usize,
        precision: KvPrecision,
    ) -> Sequences<S> {
        let state = ForwardState::new(model.spec(), limit, precision);
        Sequences { model, source, state, chunk: CHUNK }
    }

    /// Stores the KV cache of sequences added from now on in [pages](ForwardState::with_pages).
    pub fn with_pages(mut self, positions: usize) -> Sequences<S> {
        self.state = self.state.with_pages(positions);
        self
    }

    /// Sets the largest number of tokens that go through the layers together. The results are the
    /// same bit for bit; only the amount of working memory depends on it.
    ///
    /// # Panics
    ///
    /// If it is 0.
    pub fn set_chunk(&mut self, tokens: usize) {
        assert!(tokens > 0, "a chunk needs at least one token");
        self.chunk = tokens;
    }

    /// The model.
    pub fn model(&self) -> &ForwardPass {
        &self.model
    }

    /// The positions of the sequences, and the state of the pass.
    pub fn state(&self) -> &ForwardState {
        &self.state
    }

    /// Like [`state`](Self::state), mutable: to fork, cut, clear and remove sequences.
    pub fn state_mut(&mut self) -> &mut ForwardState {
        &mut self.state
    }

    /// The source of the weights.
    pub fn source(&mut self) -> &mut S {
        &mut self.source
    }

    /// Adds an empty sequence and returns its number. Numbers of removed sequences are reused.
    pub fn add(&mut self) -> usize {
        self.state.add_sequence(self.model.spec())
    }

    /// Empties a sequence and frees its memory.
    pub fn release(&mut self, sequence: usize) {
        self.state.release(self.model.spec(), sequence);
    }

    /// Continues each chunk's sequence by its tokens, in as few passes as the largest number of tokens
    /// allows, and writes the logits behind each chunk to `step`.
    ///
    /// A chunk that cannot be continued (unknown tokens, a full context) fails alone. If a pass over
    /// several sequences fails, it is undone and each is continued by itself, so that only those fail
    /// that have to; observers then see these tokens again. A sequence that fails is as it was before
    /// the step; unless a part of its chunk was processed, or the step had no other chunk: then it has
    /// to be [cleared](ForwardState::clear).
    ///
    /// # Panics
    ///
    /// If two chunks continue the same sequence, or a sequence was never added.
    pub fn step(
        &mut self,
        chunks: &[Chunk<'_>],
        observer: &mut dyn Observer,
        step: &mut StepOutcome,
    ) {
        let StepOutcome { outcomes, logits } = step;
        for (number, Chunk { sequence, .. }) in chunks.iter().enumerate() {
            let twice = chunks[..number].iter().any(|other| other.sequence == *sequence);
            assert!(!twice, "two chunks continue the sequence {sequence}");
        }
        logits.clear();
        logits.reserve_exact(chunks.len() * self.model.spec().vocab);
        logits.resize(chunks.len() * self.model.spec().vocab, 0.0);
        let mut runs: Vec<ChunkRun<'_>> = Vec::with_capacity(chunks.len());
        for &chunk in chunks {
            let Chunk { sequence, tokens: rest } = chunk;
            let outcome = self.model.check(&self.state, &[chunk]);
            runs.push(ChunkRun {
                sequence,
                first_position: self.state.len(sequence),
                rest,
                outcome,
            });
        }
        loop {
            let batch = next_pass(&runs, self.chunk);
            if batch.is_empty() {
                break;
            }
            match self.pass(&runs, &batch, logits, observer) {
                Ok(()) => {
                    for (run, tokens) in batch {
                        runs[run].rest = &runs[run].rest[tokens..];
                    }
                }
                Err(error) if batch.len() == 1 => self.fail(&mut runs[batch[0].0], error),
                Err(_) => {
                    for (run, tokens) in batch {
                        match self.pass(&runs, &[(run, tokens)], logits, observer) {
                            Ok(()) => runs[run].rest = &runs[run].rest[tokens..],
                            Err(error) => self.fail(&mut runs[run], error),
                        }
                    }
                }
            }
        }
        outcomes.clear();
        outcomes.extend(runs.into_iter().map(|run| run.outcome));
    }

    /// Continues one sequence by tokens, and computes the logits after the last one. They are the
    /// first [row](Self::logits). Tokens that do not fit are refused before any of them is
    /// processed.
    pub fn continue_one(
        &mut self,
        sequence: usize,
        tokens: &[u32],
        observer: &mut dyn Observer,
    ) -> Result<(), ForwardError> {
        self.model.check(&self.state, &[Chunk { sequence, tokens }])?;
        for tokens in tokens.chunks(self.chunk) {
            self.layers(&[Chunk { sequence, tokens }], observer)?;
        }
        self.behind(LogitRows::Last)?;
        Ok(())
    }

    /// Like [`continue_one`](Self::continue_one), but passes the logits of every position to the observer, or
    /// the final states if it [takes](Observer::takes_states) those.
    pub fn score(
        &mut self,
        sequence: usize,
        tokens: &[u32],
        observer: &mut dyn Observer,
    ) -> Result<(), ForwardError> {
        self.model.check(&self.state, &[Chunk { sequence, tokens }])?;
        for tokens in tokens.chunks(self.chunk) {
            let first = self.state.len(sequence);
            self.layers(&[Chunk { sequence, tokens }], observer)?;
            if observer.takes_states() {
                let states = self.model.final_states(&mut self.state, &mut self.source)?;
                observer.states(self.model.spec().hidden, states);
            } else {
                observer.logits(first, self.behind(LogitRows::All)?);
            }
        }
        Ok(())
    }

    /// Continues one sequence by all tokens in one pass, and computes the logits after each token.
    /// They are the first [rows](Self::logits).
    pub fn verify(
        &mut self,
        sequence: usize,
        tokens: &[u32],
        observer: &mut dyn Observer,
    ) -> Result<(), ForwardError> {
        let batch = [Chunk { sequence, tokens }];
        self.model.check(&self.state, &batch)?;
        self.layers(&batch, observer)?;
        self.behind(LogitRows::All)?;
        Ok(())
    }

    /// A row of the logits of the last pass, which the caller may overwrite.
    ///
    /// # Panics
    ///
    /// If it had no such row, or another pass has begun since.
    pub fn logits(&mut self, row: usize) -> &mut [f32] {
        let vocab = self.model.spec().vocab;
        &mut self.state.work.logits[row * vocab..][..vocab]
    }

    /// Runs a pass over the next tokens of some chunks, and computes the logits of chunks that end
    /// with it. A failed pass over several sequences is undone.
    fn pass(
        &mut self,
        runs: &[ChunkRun<'_>],
        batch: &[(usize, usize)],
        logits: &mut [f32],
        observer: &mut dyn Observer,
    ) -> Result<(), ForwardError> {
        let chunk = |&(run, tokens): &(usize, usize)| {
            let ChunkRun { sequence, rest, .. } = &runs[run];
            Chunk { sequence: *sequence, tokens: &rest[..tokens] }
        };
        let chunks: Vec<Chunk<'_>> = batch.iter().map(chunk).collect();
        // A sequence alone in its step is not saved, because overwritten rows would take memory.
        let saved = (runs.len() > 1).then(|| self.state.save_between());
        let ends = batch.iter().any(|&(run, tokens)| tokens == runs[run].rest.len());
        let mut ran = self.layers(&chunks, observer);
        if ran.is_ok() && ends {
            let vocab = self.model.spec().vocab;
            match self.behind(LogitRows::Last) {
                Ok(rows) => {
                    for (row, &(run, _)) in rows.chunks_exact(vocab).zip(batch) {
                        logits[run * vocab..][..vocab].copy_from_slice(row);
                    }
                }
                Err(error) => ran = Err(error),
            }
        }
        match (&ran, saved) {
            (Ok(()), Some(saved)) => self.state.keep(saved),
            (Err(_), Some(saved)) => self.state.rewind(saved),
            (_, None) => {}
        }
        ran
    }

    /// Ends a chunk with an error. If a part of the chunk was processed, its sequence differs from
    /// the one before.
    fn fail(&mut self, run: &mut ChunkRun<'_>, error: ForwardError) {
        if self.state.len(run.sequence) != run.first_position {
            self.state.interrupt(run.sequence);
        }
        run.outcome = Err(error);
    }

    /// Checks a batch, and runs it through the layers in one pass. [`behind`](Self::behind) then
    /// computes its logits.
    fn layers(
        &mut self,
        batch: &[Chunk<'_>],
        observer: &mut dyn Observer,
    ) -> Result<(), ForwardError> {
        let Sequences { model, source, state, .. } = self;
        model.begin(state, batch, source)?;
        // The source is notified before the observer, here and below, so that it can start reading.
        source.pass_begins(state.pass())?;
        observer.pass_begins(state.pass())?;
        let alone = state.pass().len() == 1;
        let spec = model.spec();
        for visit in 0..spec.visits() {
            attend(model, visit, state, source, observer)?;
            // Running ahead is for single tokens: a prompt needs most experts anyway. It tells layers
            // ahead by their numbers, which rise only where each layer is visited once.
            let may = alone && spec.looped.is_none() && spec.layers[visit].moe().is_some();
            if may && source.run_ahead(RunAhead::From(visit))? {
                run_ahead(model, visit, state, source)?;
            }
            model.finish(visit, state, source)?;
        }
        Ok(())
    }

    /// Logits of the last pass.
    fn behind(&mut self, rows: LogitRows) -> Result<&[f32], ForwardError> {
        self.model.logits(rows, &mut self.state, &mut self.source)
    }

    /// The largest number of tokens in a pass.
    pub fn chunk(&self) -> usize {
        self.chunk
    }
}

impl StepOutcome {
    /// Turns this into the outcome of a successful step with `chunks` chunks. Returns their logits
    /// [chunks, vocab], which are zeros for the caller to fill: for a simulation without
    /// [`Sequences`].
    pub fn succeed(&mut self, chunks: usize, vocab: usize) -> &mut [f32] {
        self.outcomes.clear();
        self.outcomes.resize_with(chunks, || Ok(()));
        self.logits.clear();
        self.logits.resize(chunks * vocab, 0.0);
        &mut self.logits
    }

    /// Number of chunks.
    pub fn len(&self) -> usize {
        self.outcomes.len()
    }

    /// True if the step had no chunks.
    pub fn is_empty(&self) -> bool {
        self.outcomes.is_empty()
    }

    /// The `vocab` logits after the last token of a chunk.
    pub fn logits(&self, chunk: usize) -> Result<&[f32], &ForwardError> {
        let vocab = self.logits.len() / self.outcomes.len();
        self.outcomes[chunk].as_ref().map(|()| &self.logits[chunk * vocab..][..vocab])
    }

    /// Like [`logits`](Self::logits), but mutable, and with the error itself, which is returned
    /// only once.
    pub fn take(&mut self, chunk: usize) -> Result<&mut [f32], ForwardError> {
        let vocab = self.logits.len() / self.outcomes.len();
        match &mut self.outcomes[chunk] {
            Ok(()) => Ok(&mut self.logits[chunk * vocab..][..vocab]),
            Err(error) => Err(std::mem::replace(error, ForwardError::Interrupted)),
        }
    }

    /// The chunks that have failed, with their errors.
    pub fn errors(&self) -> impl Iterator<Item = (usize, &ForwardError)> {
        let outcomes = self.outcomes.iter().enumerate();
        outcomes.filter_map(|(chunk, outcome)| Some((chunk, outcome.as_ref().err()?)))
    }
}

/// Chunks of the next pass with their numbers of tokens, in the order of `runs`: at most `room`
/// tokens in all. Empty once all chunks have ended.
fn next_pass(runs: &[ChunkRun<'_>], room: usize) -> Vec<(usize, usize)> {
    let mut room = room;
    let mut batch = Vec::new();
    for (number, run) in runs.iter().enumerate().filter(|(_, run)| run.outcome.is_ok()) {
        let tokens = run.rest.len().min(room);
        if tokens > 0 {
            batch.push((number, tokens));
            room -= tokens;
        }
    }
    batch
}

/// Runs a layer up to its experts. The source is notified of the layer, the observer of the visit.
fn attend(
    model: &ForwardPass,
    visit: usize,
    state: &mut ForwardState,
    source: &mut dyn PassSource,
    observer: &mut dyn Observer,
) -> Result<(), ForwardError> {
    let layer = model.spec().layer_of(visit);
    source.layer_begins(state.pass(), layer, state.hidden())?;
    observer.layer_begins(state.pass(), visit, state.hidden())?;
    model.attend(visit, state, source)?;
    let routes = model.spec().layers[layer].moe().is_some();
    if routes {
        source.routing(state.pass(), layer, state.hidden())?;
        observer.routing(state.pass(), visit, state.hidden())?;
        source.routed(state.pass(), layer, state.routed())?;
        observer.routed(state.pass(), visit, state.routed())?;
    }
    model.share(visit, state, source)?;
    if routes {
        let shared = model.shared(visit, state);
        source.attended(state.pass(), layer, state.hidden(), shared)?;
        observer.attended(state.pass(), visit, state.hidden(), shared)?;
    }
    Ok(())
}

/// Finishes a layer whose attention has run, continues with later layers as long as the source
/// requests it, and then rewinds.
fn run_ahead(
    model: &ForwardPass,
    l: usize,
    state: &mut ForwardState,
    source: &mut dyn PassSource,
) -> Result<(), ForwardError> {
    let saved = state.save();
    let ran = run_on(model, l, state, source);
    match ran {
        Ok(()) => state.rewind(saved),
        // After an error the pass is over.
        Err(_) => state.keep(saved),
    }
    ran
}

/// Finishes a layer, and continues with later layers as long as the source requests it.
fn run_on(
    model: &ForwardPass,
    l: usize,
    state: &mut ForwardState,
    source: &mut dyn PassSource,
) -> Result<(), ForwardError> {
    model.finish(l, state, source)?;
    for next in l + 1..model.spec().layers.len() {
        if !source.run_ahead(RunAhead::On(next))? {
            break;
        }
        attend(model, next, state, source, &mut ())?;
        model.finish(next, state, source)?;
    }
    source.run_ahead(RunAhead::Done)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_are_filled_in_order_and_skip_failed_runs() {
        let run = |rest, fails: bool| ChunkRun {
            sequence: 0,
            first_position: 0,
            rest,
            outcome: if fails { Err(ForwardError::NoTokens) } else { Ok(()) },
        };
        let tokens = [0; 10];
        let runs = [
            run(&tokens[..3], false),
            run(&tokens[..9], true),
            run(&[], false),
            run(&tokens, false),
        ];
        for (room, expected) in
            [(20, &[(0, 3), (3, 10)][..]), (8, &[(0, 3), (3, 5)]), (3, &[(0, 3)]), (2, &[(0, 2)])]
        {
            assert_eq!(next_pass(&runs, room), expected, "{room}");
        }
        assert!(next_pass(&[run(&[], false), run(&tokens, true)], 5).is_empty());
    }
}
