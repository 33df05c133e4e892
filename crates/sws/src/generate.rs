//! The loop of generation, as an iterator: a prompt goes in, text comes out as it is made.

use std::fmt;

use sws_engine::{Gauge, Waiter};
use sws_model::text::{Finish, Generation, Position, SampleError, Sampler, TextStream, Tokenizer};
use sws_model::{CausalLm, ForwardError, Observer};
use sws_store::shard::Progress;

use crate::cancel::Looking;
use crate::chat::Turn;
use crate::sequence::Sequence;
use crate::timing::Timing;
use crate::{Cancel, End, Error, Generated, Pace, Piece, Result};

/// Tokens of a prompt between two looks at a handle that ends between passes: as many as go through the
/// layers together where there is room. Not a bit depends on it.
const CHUNK: usize = 512;

/// A text under way: an iterator of its [pieces](Piece), which ends with the text.
///
/// A token is computed when it is asked for. An error ends it, too. When the iterator is dropped, the
/// model can be used again: what it generates next has the bits that it would have had alone.
#[derive(Debug)]
pub struct Generate<'m> {
    sequence: &'m mut Sequence,
    /// The tokens of the prompt that are not in the sequence yet; none once they are.
    prompt: Vec<u32>,
    rules: Rules,
    /// Of what comes next.
    logits: Vec<f32>,
    text: Option<TextStream<'m>>,
    /// The conversation that the text is an answer in.
    turn: Option<Turn<'m>>,
    aside: Aside<'m>,
    timing: Timing,
    made: Generated,
    over: bool,
}

/// Rules for choosing tokens, and for ending the text.
#[derive(Debug)]
struct Rules {
    sampler: Sampler,
    stop_tokens: Vec<u32>,
    most: usize,
}

/// Observers of a text under way, and the handle that ends it.
struct Aside<'m> {
    cancel: Cancel,
    waiter: Option<Waiter>,
    observer: Option<&'m mut dyn Observer>,
    progress: Option<Box<dyn FnMut(Progress) + 'm>>,
}

/// The beginning of a text, and the parts of a model that it needs.
pub(crate) struct Start<'m, 'g> {
    pub(crate) tokens: Vec<u32>,
    pub(crate) generation: &'g Generation,
    pub(crate) tokenizer: Option<(&'m Tokenizer, Position)>,
    pub(crate) gauge: Option<Gauge>,
    pub(crate) waiter: Option<Waiter>,
}

impl<'m> Generate<'m> {
    pub(crate) fn new(sequence: &'m mut Sequence, start: Start<'m, '_>) -> Result<Generate<'m>> {
        let Start { mut tokens, generation, tokenizer, gauge, waiter } = start;
        let used = sequence.resume(&tokens);
        let prompt = tokens.split_off(used);
        let (limit, asked) = (sequence.limit(), prompt.len());
        if asked > limit - used {
            return Err(ForwardError::ContextFull { used, asked, limit }.into());
        }
        let mut sampler = Sampler::new(generation.sampling.clone(), sequence.vocab());
        let unknown = |error| match error {
            SampleError::Outside { id, vocab_size } => {
                ForwardError::UnknownToken { token: id, last: vocab_size - 1 }.into()
            }
            error => Error::from(error),
        };
        sampler.prompt(&tokens).and_then(|()| sampler.prompt(&prompt)).map_err(unknown)?;
        let (stop_tokens, stop_strings) = (&generation.stop_tokens, &generation.stop_strings);
        let text = tokenizer.map(|(tokenizer, position)| {
            TextStream::new(tokenizer, position, stop_tokens, stop_strings)
        });
        Ok(Generate {
            sequence,
            prompt,
            rules: Rules {
                sampler,
                stop_tokens: stop_tokens.clone(),
                most: generation.max_new_tokens.unwrap_or(usize::MAX),
            },
            logits: Vec::new(),
            text,
            turn: None,
            aside: Aside { cancel: Cancel::new(), waiter, observer: None, progress: None },
            timing: Timing::new(gauge),
            made: Generated::default(),
            over: false,
        })
    }

    /// The handle that ends it.
    pub fn cancel_handle(&self) -> Cancel {
        self.aside.cancel.clone()
    }

    /// With another handle to end it.
    pub fn cancelled_by(mut self, cancel: Cancel) -> Self {
        self.aside.cancel = cancel;
        self
    }

    /// With an observer, who sees the routes of passes, and of logits those from which a token is
    /// chosen.
    pub fn observed_by(mut self, observer: &'m mut dyn Observer) -> Self {
        self.aside.observer = Some(observer);
        self
    }

    /// Says how far the prompt is, now and then, and when it is over.
    pub fn reporting(mut self, progress: impl FnMut(Progress) + 'm) -> Self {
        self.aside.progress = Some(Box::new(progress));
        self
    }

    /// As an answer in a conversation.
    pub(crate) fn in_turn(mut self, turn: Turn<'m>) -> Self {
        self.turn = Some(turn);
        self
    }

    /// The text so far.
    pub fn so_far(&self) -> &Generated {
        &self.made
    }

    /// Ends it, if it is not over, and returns all of it.
    pub fn finish(mut self) -> Generated {
        self.close();
        std::mem::take(&mut self.made)
    }

    fn step(&mut self) -> Result<Option<Piece>> {
        if self.logits.is_empty() {
            if !self.prefill()? {
                return Ok(self.ended(End::Cancelled));
            }
        } else if self.made.tokens.len() == self.rules.most {
            return Ok(self.ended(End::Length));
        } else if self.sequence.len() == self.sequence.limit() {
            return Ok(self.ended(End::Context));
        } else if let Some(&last) = self.made.tokens.last() {
            if !self.pass(&[last])? {
                return Ok(self.ended(End::Cancelled));
            }
            self.timing.computed += 1;
        }
        if self.made.tokens.len() == self.rules.most {
            return Ok(self.ended(End::Length));
        }
        if self.aside.cancel.is_cancelled() {
            return Ok(self.ended(End::Cancelled));
        }
        let position = self.sequence.len();
        if let Some(observer) = &mut self.aside.observer {
            observer.logits(position - 1, &self.logits);
        }
        let token = self.rules.sampler.sample(&mut self.logits, position)?;
        if self.made.tokens.is_empty() {
            self.made.first_token = Some(self.timing.prompt + self.timing.elapsed());
        }
        self.made.tokens.push(token);
        let before = self.made.text.len();
        let finish = match &mut self.text {
            Some(text) => text.push(token, &mut self.made.text),
            None if self.rules.stop_tokens.contains(&token) => Some(Finish::Token(token)),
            None => None,
        };
        if let Some(finish) = finish {
            self.text = None;
            let end = match finish {
                Finish::Token(_) => End::StopToken,
                Finish::String => End::StopString,
            };
            self.ended(end);
        }
        Ok(Some(Piece { token: Some(token), text: self.made.text[before..].to_owned() }))
    }

    /// Computes what the sequence lacks of the prompt; false if it was cancelled.
    fn prefill(&mut self) -> Result<bool> {
        self.aside.cancel.attach(self.aside.waiter.as_ref());
        let prompt = std::mem::take(&mut self.prompt);
        let before = self.sequence.len();
        let total = prompt.len() as u64;
        let mut done = 0;
        // An empty prompt is refused by the model.
        let completed = loop {
            let next = prompt.len().min(done + CHUNK);
            if !self.pass(&prompt[done..next])? {
                break false;
            }
            done = next;
            self.aside.report(Progress { done: done as u64, total });
            if done == prompt.len() {
                break true;
            }
            if self.aside.cancel.is_cancelled() {
                break false;
            }
        };
        let computed = self.sequence.len().saturating_sub(before);
        self.made.prompt = Pace::of(computed, self.timing.elapsed());
        match completed {
            true => self.timing.begin_tokens(),
            false => self.timing.begin(),
        }
        Ok(completed)
    }

    /// Computes tokens, and the logits of what comes next; false if it was cancelled.
    fn pass(&mut self, tokens: &[u32]) -> Result<bool> {
        let Aside { cancel, observer, .. } = &mut self.aside;
        let mut nobody = ();
        let observer: &mut dyn Observer = match observer {
            Some(observer) => &mut **observer,
            None => &mut nobody,
        };
        match self.sequence.observed(tokens, &mut Looking { cancel, observer }) {
            Ok(logits) => {
                self.logits.clear();
                self.logits.extend_from_slice(logits);
                Ok(true)
            }
            Err(ForwardError::Source(_)) if cancel.is_cancelled() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Ends the text, with what was held back of it, if there is such.
    fn ended(&mut self, end: End) -> Option<Piece> {
        self.made.end = end;
        let before = self.made.text.len();
        if let Some(mut text) = self.text.take()
            && text.finish(&mut self.made.text) == Some(Finish::String)
        {
            self.made.end = End::StopString;
        }
        self.close();
        let text = &self.made.text[before..];
        (!text.is_empty()).then(|| Piece { token: None, text: text.to_owned() })
    }

    /// Counts what there is to count. There will be no more tokens.
    fn close(&mut self) {
        if !std::mem::replace(&mut self.over, true) {
            self.aside.cancel.detach();
            if let Some(turn) = self.turn.take() {
                turn.answered(&self.made.text);
            }
            (self.made.generation, self.made.cost) = self.timing.end();
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

impl Aside<'_> {
    fn report(&mut self, done: Progress) {
        if let Some(report) = &mut self.progress {
            report(done);
        }
    }
}

impl fmt::Debug for Aside<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aside").field("cancel", &self.cancel).finish_non_exhaustive()
    }
}
