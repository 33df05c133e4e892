//! One sequence, from tokens to logits.

use sws_store::PieceKind;

use crate::forward::{Chunk, ForwardError, Model, Rows};
use crate::handle::{CausalLm, ModelHandle};
use crate::kv::KvPrecision;
use crate::source::{Compute, Ready, Routed, RunAhead, SourceError, WeightSource};
use crate::spec::ModelSpec;
use crate::state::State;

/// A model with its weights and one sequence: a [`CausalLm`].
#[derive(Debug)]
pub struct Session<S> {
    model: Model,
    source: S,
    state: State,
    chunk: usize,
}

/// Looks on while a pass runs.
pub trait Observer: Send {
    /// `hidden` [tokens, hidden] of the tokens at the positions from `first` on is about to enter a
    /// layer.
    fn entering(&mut self, first: usize, layer: usize, hidden: &[f32]) {
        let _ = (first, layer, hidden);
    }

    /// The attention of a layer has left `state` [tokens, hidden], from which its router chooses, and
    /// its shared expert will add `shared`, empty without one.
    fn attended(&mut self, first: usize, layer: usize, state: &[f32], shared: &[f32]) {
        let _ = (first, layer, state, shared);
    }

    /// The router of a layer has chosen for the tokens at the positions from `first` on.
    fn routed(&mut self, first: usize, layer: usize, routed: &Routed) {
        let _ = (first, layer, routed);
    }

    /// Positions below `done` have been processed.
    fn processed(&mut self, done: usize) {
        let _ = done;
    }

    /// The logits [tokens, vocab] of the tokens at the positions from `first` on.
    fn logits(&mut self, first: usize, logits: &[f32]) {
        let _ = (first, logits);
    }
}

/// Looks away.
impl Observer for () {}

/// A source that tells an observer what only it is shown.
struct Watched<'a, S> {
    source: &'a mut S,
    observer: &'a mut dyn Observer,
    first: usize,
    /// The layer whose state it has not been told yet; others are not for it.
    untold: Option<usize>,
}

/// Tokens of a prompt that go through the layers together, unless one asks otherwise.
const CHUNK: usize = 512;

impl<S: WeightSource> Session<S> {
    /// A sequence of up to `limit` positions, or as many as the model was made for.
    pub fn new(model: Model, source: S, limit: usize, precision: KvPrecision) -> Self {
        let mut state = State::new(model.spec(), limit, precision);
        state.add_sequence(model.spec());
        Session { model, source, state, chunk: CHUNK }
    }

    /// Lets so many tokens of a prompt go through the layers together. Not a bit depends on it,
    /// working memory does.
    ///
    /// # Panics
    ///
    /// If it is 0.
    pub fn set_chunk(&mut self, tokens: usize) {
        assert!(tokens > 0, "chunks of no tokens");
        self.chunk = tokens;
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The state of the pass.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Gives up the working memory that passes have grown; the next one grows what it needs.
    pub fn release_work(&mut self) {
        self.state.release_work();
    }

    /// Where the weights come from.
    pub fn source(&mut self) -> &mut S {
        &mut self.source
    }

    /// A prompt that does not fit is refused before any of it is processed.
    fn fits(&self, tokens: &[u32]) -> Result<(), ForwardError> {
        self.model.check(&self.state, &[Chunk { sequence: 0, tokens }])
    }

    fn run(&mut self, tokens: &[u32], observer: &mut dyn Observer) -> Result<(), ForwardError> {
        let Session { model, source, state, .. } = self;
        let first = state.len(0);
        model.begin(state, &[Chunk { sequence: 0, tokens }], source)?;
        for (l, layer) in model.spec().layers.iter().enumerate() {
            let experts = layer.moe().is_some();
            observer.entering(first, l, state.hidden());
            let mut source = Watched { source, observer, first, untold: Some(l) };
            model.attend(l, state, &mut source)?;
            // In a prompt most experts are needed anyway.
            if experts && tokens.len() == 1 && source.run_ahead(RunAhead::From(l))? {
                run_ahead(model, l, state, &mut source)?;
            }
            model.finish(l, state, &mut source)?;
            if experts {
                observer.routed(first, l, state.routed());
            }
        }
        observer.processed(first + tokens.len());
        Ok(())
    }
}

/// Finishes a layer that has been attended, and runs those behind it, as far as the source asks for
/// that; then goes back.
fn run_ahead(
    model: &Model,
    l: usize,
    state: &mut State,
    source: &mut dyn WeightSource,
) -> Result<(), ForwardError> {
    let saved = state.save();
    let ran = (|| {
        model.finish(l, state, source)?;
        for next in l + 1..model.spec().layers.len() {
            if !source.run_ahead(RunAhead::On(next))? {
                break;
            }
            model.layer(next, state, source)?;
        }
        source.run_ahead(RunAhead::Done)?;
        Ok(())
    })();
    match ran {
        Ok(()) => state.rewind(saved),
        // After an error the pass is over.
        Err(_) => state.keep(saved),
    }
    ran
}

impl<S: WeightSource> ModelHandle for Session<S> {
    fn spec(&self) -> &ModelSpec {
        self.model.spec()
    }

    fn as_causal_lm(&mut self) -> Option<&mut dyn CausalLm> {
        Some(self)
    }
}

impl<S: WeightSource> CausalLm for Session<S> {
    fn vocab(&self) -> usize {
        self.model.spec().vocab
    }

    fn limit(&self) -> usize {
        self.state.limit()
    }

    fn len(&self) -> usize {
        self.state.len(0)
    }

    fn clear(&mut self) {
        self.state.clear(0);
    }

    fn observed(
        &mut self,
        tokens: &[u32],
        observer: &mut dyn Observer,
    ) -> Result<&[f32], ForwardError> {
        self.fits(tokens)?;
        for chunk in tokens.chunks(self.chunk) {
            self.run(chunk, observer)?;
        }
        self.model.logits(Rows::Last, &mut self.state, &mut self.source)
    }

    fn score(&mut self, tokens: &[u32], observer: &mut dyn Observer) -> Result<(), ForwardError> {
        self.fits(tokens)?;
        for chunk in tokens.chunks(self.chunk) {
            let first = self.len();
            self.run(chunk, observer)?;
            observer
                .logits(first, self.model.logits(Rows::All, &mut self.state, &mut self.source)?);
        }
        Ok(())
    }
}

impl<S: WeightSource> WeightSource for Watched<'_, S> {
    fn embed(&mut self, tokens: &[u32], rows: &mut [f32]) -> Result<(), SourceError> {
        self.source.embed(tokens, rows)
    }

    fn entering(&mut self, layer: usize, hidden: &[f32]) -> Result<(), SourceError> {
        self.source.entering(layer, hidden)
    }

    fn infrastructure(
        &mut self,
        layer: usize,
        pieces: &[PieceKind],
        compute: Compute<'_>,
    ) -> Result<(), SourceError> {
        self.source.infrastructure(layer, pieces, compute)
    }

    fn routed(&mut self, layer: usize, routed: &Routed) -> Result<(), SourceError> {
        self.source.routed(layer, routed)
    }

    fn attended(&mut self, layer: usize, state: &[f32], shared: &[f32]) -> Result<(), SourceError> {
        if self.untold.take_if(|untold| *untold == layer).is_some() {
            self.observer.attended(self.first, layer, state, shared);
        }
        self.source.attended(layer, state, shared)
    }

    fn experts(
        &mut self,
        layer: usize,
        routed: &Routed,
        ready: Ready<'_>,
    ) -> Result<(), SourceError> {
        self.source.experts(layer, routed, ready)
    }

    fn run_ahead(&mut self, step: RunAhead) -> Result<bool, SourceError> {
        self.source.run_ahead(step)
    }

    fn head(&mut self, compute: Compute<'_>) -> Result<(), SourceError> {
        self.source.head(compute)
    }
}
