//! Several texts in shared passes, which begin and end at any time.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sws_engine::Waiter;
use sws_model::text::{Constrain, Generation, Position, Tokenizer};
use sws_model::{CausalLm, Chunk, ForwardError, Observer, SourceError, Step, check_tokens};
use sws_store::shard::Progress;
use sws_store::{Clock, Pass};

use crate::free::{Free, FreeList};
use crate::rank::Scores;
use crate::sequence::Sequence;
use crate::writer::Writer;
use crate::{Cancel, End, Error, Generated, Piece, Rank, Result};

/// Prompt tokens of a step, for all texts that begin. Texts that have begun get a token each beside
/// them, so they wait no longer for it than for so many tokens.
const PROMPT: usize = 256;

/// Several texts in shared passes, in which each expert is read once for all of them. Each has the
/// output that it has alone.
///
/// Texts are [added](Self::add) and cancelled at any time, and advanced by [`step`](Self::step). An
/// error ends one text and leaves the others as they are.
pub struct Batch<'m> {
    model: &'m mut Sequence,
    tokenizer: Option<&'m Tokenizer>,
    waiter: Option<Waiter>,
    running: Vec<Text<'m>>,
    free: FreeList,
    step: Step,
    clock: Clock,
}

/// A text to continue among others.
#[derive(Clone, Debug)]
pub struct Continuation {
    /// The tokens of the prompt.
    pub tokens: Vec<u32>,
    /// The [resolved](crate::Model::generation) options; without a limit of new tokens, the text goes
    /// on as far as the context allows.
    pub generation: Generation,
    /// The place of the new text: at the start of an answer, or in the middle of a text.
    pub position: Position,
    /// Numbers added to the logits of tokens before a token is chosen.
    pub bias: Vec<(u32, f32)>,
    /// Restricts the tokens that may be chosen. Those that it forces are computed in one pass, unless
    /// `ranks` asks for the probabilities of each.
    pub constraint: Option<Arc<dyn Constrain>>,
    /// Number of likeliest tokens to report beside each token, with their probabilities; `None` for
    /// no probabilities at all.
    pub ranks: Option<usize>,
    /// True if the tokens of the prompt are ranked, too. A budget has room for that if
    /// [`Needs::all_logits`](crate::Needs::all_logits) was declared.
    pub prompt_ranks: bool,
    /// The owner of the text. What was computed for a text is used again for texts of its owner that
    /// begin as it does.
    pub owner: u64,
    /// Cancels the text.
    pub cancel: Cancel,
}

/// Progress of a text in a step.
#[derive(Debug)]
pub enum Event {
    /// A part of its prompt was computed.
    Prompt(Progress),
    /// Tokens of its prompt, from the second on, with their probabilities.
    Ranked(Vec<Rank>),
    /// A token was chosen, or text that was held back is complete.
    Piece(Piece, Option<Rank>),
    /// The text is over.
    Ended(Box<Result<Generated>>),
}

/// A text among others.
#[derive(Debug)]
struct Text<'m> {
    number: usize,
    sequence: usize,
    /// Tokens that continue its sequence: those of the prompt, then the last one chosen with those that
    /// had to follow.
    next: Vec<u32>,
    /// The tokens of the prompt.
    prompt: Vec<u32>,
    owner: u64,
    began: Duration,
    writer: Writer<'m>,
    bias: Vec<(u32, f32)>,
    ranks: Option<usize>,
    prompt_ranks: bool,
    cancel: Cancel,
    /// True once a pass over it was cancelled.
    has_failed: bool,
}

/// State of a text's sequence after a step.
struct Place {
    position: usize,
    limit: usize,
    now: Duration,
}

impl<'m> Batch<'m> {
    /// A batch of at most `most` texts.
    pub(crate) fn new(
        model: &'m mut Sequence,
        tokenizer: Option<&'m Tokenizer>,
        waiter: Option<Waiter>,
        most: usize,
    ) -> Result<Batch<'m>> {
        let free = FreeList::new(model.several(most).ok_or(Error::OneText)?);
        let (running, step, clock) = (Vec::new(), Step::default(), Clock::real());
        Ok(Batch { model, tokenizer, waiter, running, free, step, clock })
    }

    /// True if there is no text.
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Number of texts.
    pub fn len(&self) -> usize {
        self.running.len()
    }

    /// True if a text can be added; one with the ranks of its prompt needs the first sequence.
    pub fn has_room(&self, prompt_ranks: bool) -> bool {
        self.free.has(prompt_ranks.then_some(0))
    }

    /// Adds a text, with a number of the caller's choice. Returns the number of its tokens that are
    /// known from an earlier text. Fails if its tokens cannot be continued.
    ///
    /// # Panics
    ///
    /// If there is no [room](Self::has_room).
    pub fn add(&mut self, number: usize, text: Continuation) -> Result<usize> {
        let Continuation { tokens: prompt, generation, position, owner, .. } = text;
        let (limit, vocab) = (self.model.limit(), self.model.vocab());
        check_tokens(&prompt, 0, limit, vocab)?;
        if let Some(&(token, _)) = text.bias.iter().find(|(token, _)| *token as usize >= vocab) {
            return Err(ForwardError::UnknownToken { token, last: vocab - 1 }.into());
        }
        let tokenizer = self.tokenizer.map(|tokenizer| (tokenizer, position));
        let mut writer = Writer::new(&[&prompt], vocab, &generation, tokenizer)?;
        if let Some(constraint) = text.constraint {
            writer.restrict(constraint.begin());
        }
        // The last token is computed in any case, for its logits.
        let begins = &prompt[..prompt.len() - 1];
        let place = match text.prompt_ranks {
            true => self.free.take(0).map(|sequence| (sequence, 0)),
            false => self.free.take_best(begins, owner),
        };
        let (sequence, known) = place.expect("there is room for the text");
        let known = self.model.truncate_one(sequence, known);
        self.running.push(Text {
            number,
            sequence,
            next: prompt[known..].to_vec(),
            prompt,
            owner,
            began: self.clock.now(),
            writer,
            bias: text.bias,
            ranks: text.ranks,
            prompt_ranks: text.prompt_ranks,
            cancel: text.cancel,
            has_failed: false,
        });
        Ok(known)
    }

    /// Advances all texts: each gets a token, or a part of its prompt is computed. `each` gets the
    /// numbers of the texts with what happened to them.
    pub fn step(&mut self, each: &mut dyn FnMut(usize, Event)) {
        let running = self.without_cancelled(each);
        let parts = parts(&running);
        let together = |(text, part): &(&Text<'_>, &usize)| **part > 0 && !text.is_scored();
        let (chunks, cancels): (Vec<Chunk<'_>>, Vec<Cancel>) = running
            .iter()
            .zip(&parts)
            .filter(together)
            .map(|(text, &part)| {
                let chunk = Chunk { sequence: text.sequence, tokens: &text.next[..part] };
                (chunk, text.cancel.clone())
            })
            .unzip();
        if !chunks.is_empty() {
            // A wait for a read ends early only if nobody else needs it.
            let one = Some(&cancels[0]).filter(|one| cancels.iter().all(|other| other.is(one)));
            if let Some(cancel) = one {
                cancel.attach(self.waiter.as_ref());
            }
            let mut watch = Watch { cancels: &cancels, scores: None };
            self.model.step(&chunks, &mut watch, &mut self.step);
            if let Some(cancel) = one {
                cancel.detach();
            }
        }
        let mut chunk = 0;
        for (mut text, part) in running.into_iter().zip(parts) {
            let end = if part == 0 {
                Ok(None)
            } else if text.is_scored() {
                self.score(&mut text, part, each)
            } else {
                chunk += 1;
                self.stepped(&mut text, part, chunk - 1, each)
            };
            match end {
                Ok(None) => self.running.push(text),
                Ok(Some(end)) => self.end(text, Ok(end), each),
                Err(error) => self.end(text, Err(error), each),
            }
        }
    }

    /// Takes the running texts, and ends those that were cancelled.
    fn without_cancelled(&mut self, each: &mut dyn FnMut(usize, Event)) -> Vec<Text<'m>> {
        let (over, running): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.running).into_iter().partition(|t| t.cancel.is_cancelled());
        over.into_iter().for_each(|text| self.end(text, Ok(End::Cancelled), each));
        running
    }

    /// Takes the result of a step for a text, whose next `part` tokens were a chunk of it. Returns the
    /// reason if the text is over.
    fn stepped(
        &mut self,
        text: &mut Text<'_>,
        part: usize,
        chunk: usize,
        each: &mut dyn FnMut(usize, Event),
    ) -> Result<Option<End>> {
        let place = self.place(text.sequence);
        match self.step.take(chunk) {
            Ok(logits) => text.continued(part, logits, place, each),
            Err(error) => text.failed(error),
        }
    }

    /// Continues a text by a part of its prompt, whose tokens are ranked.
    fn score(
        &mut self,
        text: &mut Text<'_>,
        part: usize,
        each: &mut dyn FnMut(usize, Event),
    ) -> Result<Option<End>> {
        let top = text.ranks.unwrap_or(0);
        let mut scores = Scores::new(&text.next, self.model.len(), self.model.vocab(), top);
        text.cancel.attach(self.waiter.as_ref());
        let cancels = std::slice::from_ref(&text.cancel);
        let mut watch = Watch { cancels, scores: Some(&mut scores) };
        let scored = self.model.score(&text.next[..part], &mut watch);
        text.cancel.detach();
        if let Err(error) = scored {
            return text.failed(error);
        }
        let (ranks, mut last) = scores.into_parts();
        each(text.number, Event::Ranked(ranks));
        let place = self.place(text.sequence);
        text.continued(part, &mut last, place, each)
    }

    fn place(&mut self, sequence: usize) -> Place {
        let (position, limit) = (self.model.len_of(sequence), self.model.limit());
        Place { position, limit, now: self.clock.now() }
    }

    /// Ends a text. Its sequence is known as far as no pass over it has failed.
    fn end(&mut self, mut text: Text<'_>, end: Result<End>, each: &mut dyn FnMut(usize, Event)) {
        let Text { sequence, owner, .. } = text;
        let mut tokens = std::mem::take(&mut text.prompt);
        if end.is_ok() && !text.has_failed {
            tokens.extend(&text.writer.made.tokens);
            tokens.truncate(self.model.len_of(sequence));
        } else {
            tokens = Vec::new();
            self.model.clear_one(sequence);
        }
        self.free.add(Free { sequence, tokens, owner });
        let made = end.map(|end| {
            if let Some(held_back) = text.writer.end(end) {
                each(text.number, Event::Piece(held_back, None));
            }
            text.writer.made
        });
        each(text.number, Event::Ended(Box::new(made)));
    }
}

/// Numbers of tokens by which texts are continued in a step; 0 for those that wait.
fn parts(texts: &[Text<'_>]) -> Vec<usize> {
    let mut room = PROMPT;
    let part = |text: &Text<'_>| {
        // A text that has begun gets one in any case.
        let least = usize::from(text.next.len() == 1 || !text.writer.made.tokens.is_empty());
        let part = text.next.len().min(room.max(least));
        room -= if part > 1 { part } else { 0 };
        part
    };
    texts.iter().map(part).collect()
}

impl Text<'_> {
    /// True if its next tokens are of a prompt that is ranked.
    fn is_scored(&self) -> bool {
        self.prompt_ranks && self.writer.made.tokens.is_empty()
    }

    /// Chooses the next token, if the prompt ends with the first `part` of its next tokens. Returns
    /// the reason if the text is over.
    fn continued(
        &mut self,
        part: usize,
        logits: &mut [f32],
        place: Place,
        each: &mut dyn FnMut(usize, Event),
    ) -> Result<Option<End>> {
        self.next.drain(..part);
        if self.writer.made.tokens.is_empty() {
            let (done, total) =
                ((self.prompt.len() - self.next.len()) as u64, self.prompt.len() as u64);
            each(self.number, Event::Prompt(Progress { done, total }));
        }
        if !self.next.is_empty() {
            return Ok(None);
        }
        if self.writer.is_complete() {
            return Ok(Some(End::Length));
        }
        // Choosing a token overwrites the logits.
        let raw = self.ranks.map(|top| (logits.to_vec(), top));
        self.bias.iter().for_each(|&(token, bias)| logits[token as usize] += bias);
        let (piece, end) = self.writer.choose(logits, place.position)?;
        let Generated { tokens, first_token, .. } = &mut self.writer.made;
        first_token.get_or_insert_with(|| place.now - self.began);
        self.next.extend(tokens.last());
        let rank = raw.zip(piece.token).map(|((raw, top), token)| Rank::of(&raw, token, top));
        each(self.number, Event::Piece(piece, rank));
        let mut position = place.position;
        let mut end = self.end_at(end, position, place.limit);
        // With probabilities, each token needs the logits of the one before.
        while end.is_none() && self.ranks.is_none() && self.next.len() < PROMPT {
            let mut forced = self.writer.forced()?;
            if forced.is_empty() {
                break;
            }
            forced.truncate(PROMPT - self.next.len());
            for token in forced {
                let (piece, over) = self.writer.take(token)?;
                self.next.push(token);
                each(self.number, Event::Piece(piece, None));
                position += 1;
                end = self.end_at(over, position, place.limit);
                if end.is_some() {
                    break;
                }
            }
        }
        Ok(end)
    }

    /// The reason why the text is over with its last token, which has this position.
    fn end_at(&self, end: Option<End>, position: usize, limit: usize) -> Option<End> {
        match end {
            Some(end) => Some(end),
            None if self.writer.is_complete() => Some(End::Length),
            None if position == limit => Some(End::Context),
            None => None,
        }
    }

    /// Takes a failed pass, and tells a cancelled text from a failed one.
    fn failed(&mut self, error: ForwardError) -> Result<Option<End>> {
        self.has_failed = true;
        match error {
            ForwardError::Source(_) if self.cancel.is_cancelled() => Ok(Some(End::Cancelled)),
            error => Err(error.into()),
        }
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        let running = self.running.iter().map(|text| text.sequence);
        running.chain(self.free.sequences()).for_each(|sequence| self.model.clear_one(sequence));
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("running", &self.running).finish_non_exhaustive()
    }
}

/// Ends a pass at a layer once all its texts are cancelled, and passes logits on.
struct Watch<'a, 't> {
    cancels: &'a [Cancel],
    scores: Option<&'a mut Scores<'t>>,
}

impl Observer for Watch<'_, '_> {
    fn layer_begins(&mut self, _: &Pass, _: usize, _: &[f32]) -> Result<(), SourceError> {
        match self.cancels.iter().all(Cancel::ends_passes) {
            true => Err("the pass was cancelled".into()),
            false => Ok(()),
        }
    }

    fn logits(&mut self, first: usize, logits: &[f32]) {
        if let Some(scores) = &mut self.scores {
            scores.take(first, logits);
        }
    }
}
