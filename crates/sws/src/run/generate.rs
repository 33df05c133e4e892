//! The generation loop, as an iterator over the generated text.

mod ahead;
#[cfg(test)]
mod tests;

use std::fmt;

use sws_engine::{Gauge, Waiter};
use sws_format::{Pass, Progress};
use sws_model::{CausalLm, ForwardError, Observer};
use sws_text::{Generation, Position, ReplyReader, TokenMask, Tokenizer};
use tracing::debug;

use crate::run::cancel::{CancelObserver, OnLayer};
use crate::run::sequence::Sequence;
use crate::run::timing::TextTiming;
use crate::run::turn::Turn;
use crate::run::writer::TokenWriter;
use crate::{Cancel, End, Generated, Pace, Piece, Result};
use ahead::Ahead;

/// Prompt tokens per pass: as many as go through the layers together where there is memory. The output
/// does not depend on it.
const CHUNK: usize = 4096;

/// A text being generated: an iterator over its [pieces](Piece), which ends with the text.
///
/// Each token is computed on demand. An error also ends the text. Once the iterator is dropped, the
/// model can be used again; its next text has the same bits as if it were the first.
#[derive(Debug)]
pub struct Generate<'m> {
    sequence: &'m mut Sequence,
    layers: usize,
    /// Prompt tokens that are not in the sequence yet; empty once the prompt is computed.
    prompt: Vec<u32>,
    writer: TokenWriter<'m>,
    /// Logits of the next token. Empty until the prompt is processed, and unused for a token whose
    /// logits were verified ahead.
    logits: Vec<f32>,
    ahead: Ahead<'m>,
    /// The conversation turn that the text completes.
    turn: Option<Turn<'m>>,
    hooks: Hooks<'m>,
    timing: TextTiming,
    over: bool,
}

/// Observer, progress callback and cancellation of a text.
struct Hooks<'m> {
    cancel: Cancel,
    waiter: Option<Waiter>,
    observer: Option<&'m mut dyn Observer>,
    progress: Option<Box<dyn FnMut(Progress) + Send + 'm>>,
}

/// A part of a prompt: the number of tokens before it, and of the whole prompt.
struct PromptPart {
    done: usize,
    total: usize,
}

/// Prompt of a text, and the parts of the model that it needs.
pub(crate) struct GenerateStart<'m, 'g> {
    /// Number of layers.
    pub(crate) layers: usize,
    pub(crate) tokens: Vec<u32>,
    pub(crate) generation: &'g Generation,
    pub(crate) tokenizer: Option<(&'m Tokenizer, Position)>,
    pub(crate) gauge: Option<Gauge>,
    pub(crate) waiter: Option<Waiter>,
}

impl<'m> Generate<'m> {
    pub(crate) fn new(
        sequence: &'m mut Sequence,
        start: GenerateStart<'m, '_>,
    ) -> Result<Generate<'m>> {
        let GenerateStart { layers, mut tokens, generation, tokenizer, gauge, waiter } = start;
        let used = sequence.resume(&tokens);
        let prompt = tokens.split_off(used);
        let limit = sequence.limit();
        let asked = prompt.len();
        if asked > limit - used {
            return Err(ForwardError::ContextFull { used, asked, limit }.into());
        }
        let vocab = sequence.vocab();
        let writer = TokenWriter::new(&[&tokens, &prompt], vocab, generation, tokenizer)?;
        if let Some(decoder) = &mut sequence.speculative {
            decoder.begins();
        }
        Ok(Generate {
            sequence,
            layers,
            prompt,
            writer,
            logits: Vec::new(),
            ahead: Ahead::new(waiter.as_ref()),
            turn: None,
            hooks: Hooks { cancel: Cancel::new(), waiter, observer: None, progress: None },
            timing: TextTiming::new(gauge),
            over: false,
        })
    }

    /// Returns the handle that cancels the text.
    pub fn cancel_handle(&self) -> Cancel {
        self.hooks.cancel.clone()
    }

    /// Sets another handle that cancels the text.
    pub fn cancelled_by(mut self, cancel: Cancel) -> Self {
        self.hooks.cancel = cancel;
        self
    }

    /// Sets an observer, which sees the routes of passes, and the logits from which tokens are
    /// chosen. Each token is then computed by itself.
    pub fn observed_by(mut self, observer: &'m mut dyn Observer) -> Self {
        self.hooks.observer = Some(observer);
        self
    }

    /// Restricts the tokens that may be chosen. The text ends where none may follow.
    pub fn restricted_by(mut self, constraint: &dyn TokenMask) -> Self {
        self.writer.restrict(constraint.begin());
        self
    }

    /// Ends the text once its last 200 tokens repeat the same tokens over and over.
    pub fn ending_repeats(mut self) -> Self {
        self.writer.end_repeats();
        self
    }

    /// Sets a callback for the progress of the prompt, called at each layer of its passes. Its unit
    /// is a token in a layer.
    pub fn reporting(mut self, progress: impl FnMut(Progress) + Send + 'm) -> Self {
        self.hooks.progress = Some(Box::new(progress));
        self
    }

    /// Number of layers that each token of the prompt goes through.
    pub fn layers(&self) -> usize {
        self.layers
    }

    /// Makes the text an answer in a conversation.
    pub(crate) fn in_turn(mut self, turn: Turn<'m>, reader: ReplyReader) -> Self {
        self.turn = Some(turn);
        self.writer.read_by(reader);
        self
    }

    /// Returns the text so far.
    pub fn so_far(&self) -> &Generated {
        &self.writer.made
    }

    /// Ends the text, if it is not over, and returns all of it.
    pub fn finish(mut self) -> Generated {
        self.close();
        std::mem::take(&mut self.writer.made)
    }

    fn step(&mut self) -> Result<Option<Piece>> {
        if self.logits.is_empty() {
            if !self.prefill()? {
                return Ok(self.ended(End::Cancelled));
            }
        } else if self.writer.is_complete() {
            return Ok(self.ended(End::Length));
        } else if self.reached() == self.sequence.limit() {
            return Ok(self.ended(End::Context));
        } else if let Some(&last) = self.writer.made.tokens.last() {
            if !self.advance(last)? {
                return Ok(self.ended(End::Cancelled));
            }
            self.timing.computed += 1;
        }
        if self.writer.is_complete() {
            return Ok(self.ended(End::Length));
        }
        if self.hooks.cancel.is_cancelled() {
            return Ok(self.ended(End::Cancelled));
        }
        let position = self.reached();
        let logits = match self.ahead.row() {
            Some(row) => self.sequence.lm.verifier().verified_logits(row),
            None => &mut self.logits[..],
        };
        if let Some(observer) = &mut self.hooks.observer {
            observer.logits(position - 1, logits);
        }
        let first = self.writer.made.tokens.is_empty();
        let (piece, end) = self.writer.choose(logits, position)?;
        if let (Some(decoder), Some(token)) = (self.speculative(), piece.token) {
            decoder.chose(token);
        }
        if first {
            self.writer.made.first_token = Some(self.timing.prompt + self.timing.elapsed());
        }
        if end.is_some() {
            self.close();
        }
        Ok(Some(piece))
    }

    /// Computes the part of the prompt that the sequence lacks. Returns false if it was cancelled.
    fn prefill(&mut self) -> Result<bool> {
        self.hooks.cancel.attach(self.hooks.waiter.as_ref());
        let prompt = std::mem::take(&mut self.prompt);
        let before = self.sequence.len();
        let mut done = 0;
        // The model refuses an empty prompt.
        let completed = loop {
            let next = prompt.len().min(done + CHUNK);
            if !self.pass(&prompt[done..next], Some(PromptPart { done, total: prompt.len() }))? {
                break false;
            }
            done = next;
            if done == prompt.len() {
                break true;
            }
            if self.hooks.cancel.is_cancelled() {
                break false;
            }
        };
        let computed = self.sequence.len().saturating_sub(before);
        self.writer.made.prompt = Pace::of(computed, self.timing.elapsed());
        debug!("the prompt is computed, {computed} tokens of it now");
        match completed {
            true => self.timing.begin_tokens(),
            false => self.timing.begin(),
        }
        Ok(completed)
    }

    /// Computes tokens, or a part of the prompt, and the logits of the next token. Returns false if
    /// cancelled.
    fn pass(&mut self, tokens: &[u32], part: Option<PromptPart>) -> Result<bool> {
        let layers = self.layers;
        let start = self.sequence.len();
        let Hooks { cancel, observer, progress, .. } = &mut self.hooks;
        let mut unobserved = ();
        let observer: &mut dyn Observer = match observer {
            Some(observer) => &mut **observer,
            None => &mut unobserved,
        };
        let mut report = |done: usize| {
            if let (Some(part), Some(progress)) = (&part, progress.as_mut()) {
                let done = part.done * layers + done;
                progress(Progress { done: done as u64, total: (part.total * layers) as u64 });
            }
        };
        // With little memory, the tokens are divided among several passes.
        let mut on_layer = |pass: &Pass, layer: usize| {
            report(pass.first_position().saturating_sub(start) * layers + pass.len() * layer);
        };
        let prompt: Option<&mut OnLayer<'_>> =
            if part.is_some() { Some(&mut on_layer) } else { None };
        match self.sequence.observed(tokens, &mut CancelObserver { cancel, observer, prompt }) {
            Ok(logits) => {
                self.logits.clear();
                self.logits.extend_from_slice(logits);
                report(tokens.len() * layers);
                Ok(true)
            }
            Err(ForwardError::Source(_)) if cancel.is_cancelled() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Ends the text. Returns the text held back, if any.
    fn ended(&mut self, end: End) -> Option<Piece> {
        let held_back = self.writer.end(end);
        self.close();
        held_back
    }

    /// Closes the text: completes its turn and its metrics. No tokens follow.
    fn close(&mut self) {
        if !std::mem::replace(&mut self.over, true) {
            self.hooks.cancel.detach();
            self.accept();
            if let Some(decoder) = &mut self.sequence.speculative {
                decoder.forget();
            }
            if let Some(turn) = self.turn.take() {
                turn.answered(&self.writer.made);
            }
            (self.writer.made.generation, self.writer.made.cost) = self.timing.end();
        }
    }
}

impl Iterator for Generate<'_> {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Result<Piece>> {
        if self.over {
            return None;
        }
        self.timing.begin();
        let piece = self.step();
        if piece.is_err() {
            if let Some(turn) = self.turn.take() {
                turn.failed();
            }
            self.close();
        }
        self.timing.pause();
        piece.transpose()
    }
}

impl Drop for Generate<'_> {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Hooks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks").field("cancel", &self.cancel).finish_non_exhaustive()
    }
}
