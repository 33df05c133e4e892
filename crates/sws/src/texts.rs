//! Several texts through shared passes, each with the output that it has alone.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use sws_engine::Waiter;
use sws_model::text::{Generation, Position, Tokenizer};
use sws_model::{CausalLm, Chunk, ForwardError, Step, check_tokens};
use sws_store::Clock;

use crate::cancel::CancelObserver;
use crate::sequence::Sequence;
use crate::writer::Writer;
use crate::{Cancel, End, Error, Generated, Result};

/// Prompt tokens of a step, for all texts that begin. Texts that have begun get a token each beside
/// them, so they wait no longer for it than for so many tokens.
const PROMPT: usize = 256;

/// Several texts being generated: an iterator over the texts, in the order in which they end, each
/// with its number among the requests.
///
/// An error ends one text and leaves the others as they are. Once the iterator is dropped, the model
/// can be used again.
pub struct Texts<'m> {
    model: &'m mut Sequence,
    prompts: Box<dyn Iterator<Item = (usize, Result<Prompt>)> + 'm>,
    shared: Shared<'m>,
    running: Vec<(usize, Text<'m>)>,
    /// Sequences without a text.
    free: Vec<usize>,
    ended: VecDeque<(usize, Result<Generated>)>,
    step: Step,
    cancel: Cancel,
    progress: Option<Box<dyn FnMut() + 'm>>,
    clock: Clock,
}

/// A text among others.
#[derive(Debug)]
struct Text<'m> {
    /// Its number among the requests.
    number: usize,
    /// Tokens that continue its sequence: those of the prompt, then the last one chosen.
    next: Vec<u32>,
    began: Duration,
    writer: Writer<'m>,
}

/// The tokens of a prompt, and how to continue them.
pub(crate) type Prompt = (Vec<u32>, Generation);

/// Parts of the model that all texts need.
pub(crate) struct Shared<'m> {
    pub(crate) tokenizer: Option<&'m Tokenizer>,
    pub(crate) waiter: Option<Waiter>,
    /// Maximum number of texts at a time.
    pub(crate) most: usize,
}

impl<'m> Texts<'m> {
    /// Continues prompts, each with its options, which are taken as sequences become free.
    pub(crate) fn new(
        model: &'m mut Sequence,
        prompts: impl Iterator<Item = Result<Prompt>> + 'm,
        shared: Shared<'m>,
    ) -> Result<Texts<'m>> {
        let mut free = model.several(shared.most).ok_or(Error::OneText)?;
        // The first text gets the first sequence.
        free.reverse();
        Ok(Texts {
            prompts: Box::new(prompts.enumerate()),
            shared,
            running: Vec::new(),
            free,
            ended: VecDeque::new(),
            step: Step::default(),
            cancel: Cancel::new(),
            progress: None,
            clock: Clock::real(),
            model,
        })
    }

    /// Sets another handle that cancels all texts. Those that have begun then end as cancelled, and no
    /// other begins.
    pub fn cancelled_by(mut self, cancel: Cancel) -> Self {
        self.cancel = cancel;
        self
    }

    /// Sets a callback, called after each step, in which every running text gets a token or a part of
    /// its prompt is computed.
    pub fn reporting(mut self, progress: impl FnMut() + 'm) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// Advances all running texts by a step.
    fn advance(&mut self) {
        if self.cancel.is_cancelled() {
            return self.end_all();
        }
        self.begin();
        let mut room = PROMPT;
        let mut tokens = Vec::with_capacity(self.running.len());
        for (_, text) in &self.running {
            let some = if text.next.len() == 1 { 1 } else { text.next.len().min(room) };
            room -= if some > 1 { some } else { 0 };
            tokens.push(some);
        }
        let Texts { model, running, step, cancel, shared, .. } = self;
        let chunks: Vec<Chunk<'_>> = running
            .iter()
            .zip(&tokens)
            .filter(|(_, tokens)| **tokens > 0)
            .map(|((sequence, text), &some)| Chunk {
                sequence: *sequence,
                tokens: &text.next[..some],
            })
            .collect();
        cancel.attach(shared.waiter.as_ref());
        let observer = &mut CancelObserver { cancel, observer: &mut () };
        model.step(&chunks, observer, step);
        cancel.detach();
        let mut stepped = 0;
        let mut still = Vec::with_capacity(self.running.len());
        for ((sequence, mut text), some) in
            std::mem::take(&mut self.running).into_iter().zip(tokens)
        {
            if some == 0 {
                still.push((sequence, text));
                continue;
            }
            let result = self.continued(sequence, &mut text, some, stepped);
            stepped += 1;
            match result {
                Ok(None) => still.push((sequence, text)),
                Ok(Some(end)) => self.end(sequence, text, Ok(end)),
                Err(error) => self.end(sequence, text, Err(error)),
            }
        }
        self.running = still;
        if let Some(report) = &mut self.progress {
            report();
        }
    }

    /// Gives free sequences to the next prompts.
    fn begin(&mut self) {
        while let Some(&sequence) = self.free.last() {
            let Some((number, prompt)) = self.prompts.next() else { return };
            match prompt.and_then(|prompt| self.text(number, prompt)) {
                Ok(text) => {
                    self.free.pop();
                    self.running.push((sequence, text));
                }
                Err(error) => self.ended.push_back((number, Err(error))),
            }
        }
    }

    fn text(&self, number: usize, (next, generation): Prompt) -> Result<Text<'m>> {
        let (limit, vocab) = (self.model.limit(), self.model.vocab());
        check_tokens(&next, 0, limit, vocab)?;
        let tokenizer = self.shared.tokenizer.map(|tokenizer| (tokenizer, Position::Middle));
        let writer = Writer::new(&[&next], vocab, &generation, tokenizer)?;
        Ok(Text { number, next, began: self.clock.now(), writer })
    }

    /// Takes the result of a step for a text, `some` of whose tokens were a chunk of it. Returns the
    /// reason if the text is over.
    fn continued(
        &mut self,
        sequence: usize,
        text: &mut Text<'_>,
        some: usize,
        chunk: usize,
    ) -> Result<Option<End>> {
        let logits = match self.step.take(chunk) {
            Ok(logits) => logits,
            Err(ForwardError::Source(_)) if self.cancel.is_cancelled() => {
                return Ok(Some(End::Cancelled));
            }
            Err(error) => return Err(error.into()),
        };
        text.next.drain(..some);
        if !text.next.is_empty() {
            return Ok(None);
        }
        if text.writer.is_complete() {
            return Ok(Some(End::Length));
        }
        let position = self.model.len_of(sequence);
        let (_, end) = text.writer.choose(logits, position)?;
        let Generated { tokens, first_token, .. } = &mut text.writer.made;
        first_token.get_or_insert_with(|| self.clock.now() - text.began);
        text.next.extend(tokens.last());
        Ok(match end {
            Some(end) => Some(end),
            None if text.writer.is_complete() => Some(End::Length),
            None if position == self.model.limit() => Some(End::Context),
            None => None,
        })
    }

    fn end(&mut self, sequence: usize, mut text: Text<'_>, end: Result<End>) {
        self.model.clear_one(sequence);
        self.free.push(sequence);
        let made = end.map(|end| {
            text.writer.end(end);
            text.writer.made
        });
        self.ended.push_back((text.number, made));
    }

    fn end_all(&mut self) {
        self.prompts = Box::new(std::iter::empty());
        for (sequence, text) in std::mem::take(&mut self.running) {
            self.end(sequence, text, Ok(End::Cancelled));
        }
    }
}

impl Iterator for Texts<'_> {
    type Item = (usize, Result<Generated>);

    fn next(&mut self) -> Option<(usize, Result<Generated>)> {
        loop {
            if let Some(ended) = self.ended.pop_front() {
                return Some(ended);
            }
            if self.running.is_empty() {
                self.begin();
                if self.running.is_empty() && self.ended.is_empty() {
                    return None;
                }
            } else {
                self.advance();
            }
        }
    }
}

impl Drop for Texts<'_> {
    fn drop(&mut self) {
        self.running.iter().for_each(|&(sequence, _)| self.model.clear_one(sequence));
    }
}

impl fmt::Debug for Texts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Texts").field("running", &self.running).finish_non_exhaustive()
    }
}
