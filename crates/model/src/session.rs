//! One sequence, from tokens to logits.

use crate::forward::{Chunk, ForwardError, Model, Rows};
use crate::handle::{CausalLm, ModelHandle};
use crate::layer_state::KvPrecision;
use crate::observer::Observer;
use crate::source::{PassSource, RunAhead, SourceError};
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

/// Default number of prompt tokens that go through the layers together.
const CHUNK: usize = 512;

impl<S: PassSource> Session<S> {
    /// A session for a sequence of up to `limit` positions, capped at the model's context length.
    pub fn new(model: Model, source: S, limit: usize, precision: KvPrecision) -> Self {
        let mut state = State::new(model.spec(), limit, precision);
        state.add_sequence(model.spec());
        Session { model, source, state, chunk: CHUNK }
    }

    /// Sets how many tokens of a prompt go through the layers together. The results are the same
    /// bit for bit; only the amount of working memory depends on it.
    ///
    /// # Panics
    ///
    /// If it is 0.
    pub fn set_chunk(&mut self, tokens: usize) {
        assert!(tokens > 0, "a chunk needs at least one token");
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

    /// Frees the working memory that passes have grown; the next pass allocates what it needs.
    pub fn release_work(&mut self) {
        self.state.release_work();
    }

    /// The source of the weights.
    pub fn source(&mut self) -> &mut S {
        &mut self.source
    }

    /// Refuses a prompt that does not fit before any of it is processed.
    fn fits(&self, tokens: &[u32]) -> Result<(), ForwardError> {
        self.model.check(&self.state, &[Chunk { sequence: 0, tokens }])
    }

    fn run(&mut self, tokens: &[u32], observer: &mut dyn Observer) -> Result<(), ForwardError> {
        let Session { model, source, state, .. } = self;
        model.begin(state, &[Chunk { sequence: 0, tokens }], source)?;
        tell(source, observer, |o| o.pass_begins(state.pass()))?;
        for l in 0..model.spec().layers.len() {
            attend(model, l, state, source, observer)?;
            // In a prompt most experts are needed anyway.
            let alone = tokens.len() == 1 && model.spec().layers[l].moe().is_some();
            if alone && source.run_ahead(RunAhead::From(l))? {
                run_ahead(model, l, state, source)?;
            }
            model.finish(l, state, source)?;
        }
        Ok(())
    }
}

/// Notifies the source before the observer, so that it can start reading.
fn tell(
    source: &mut dyn PassSource,
    observer: &mut dyn Observer,
    mut moment: impl FnMut(&mut dyn Observer) -> Result<(), SourceError>,
) -> Result<(), SourceError> {
    moment(source)?;
    moment(observer)
}

/// Runs a layer up to its experts.
fn attend(
    model: &Model,
    l: usize,
    state: &mut State,
    source: &mut dyn PassSource,
    observer: &mut dyn Observer,
) -> Result<(), ForwardError> {
    tell(source, observer, |o| o.layer_begins(state.pass(), l, state.hidden()))?;
    model.attend(l, state, source)?;
    let routes = model.spec().layers[l].moe().is_some();
    if routes {
        tell(source, observer, |o| o.routed(state.pass(), l, state.routed()))?;
    }
    model.share(l, state, source)?;
    if routes {
        let shared = model.shared(l, state);
        tell(source, observer, |o| o.attended(state.pass(), l, state.hidden(), shared))?;
    }
    Ok(())
}

/// Finishes a layer whose attention has run, then runs the following layers for as long as the
/// source asks for it, then rewinds.
fn run_ahead(
    model: &Model,
    l: usize,
    state: &mut State,
    source: &mut dyn PassSource,
) -> Result<(), ForwardError> {
    let saved = state.save();
    let ran = (|| {
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
    })();
    match ran {
        Ok(()) => state.rewind(saved),
        // After an error the pass is over.
        Err(_) => state.keep(saved),
    }
    ran
}

impl<S: PassSource> ModelHandle for Session<S> {
    fn spec(&self) -> &ModelSpec {
        self.model.spec()
    }

    fn as_causal_lm(&mut self) -> Option<&mut dyn CausalLm> {
        Some(self)
    }
}

impl<S: PassSource> CausalLm for Session<S> {
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
