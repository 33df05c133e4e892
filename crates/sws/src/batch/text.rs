//! A text that is being continued among others.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sws_engine::Witness;
use sws_model::{ForwardError, Observer};
use sws_store::shard::Progress;

use super::request::{BatchRequest, Event};
use crate::prefix_cache::AnswerKey;
use crate::run::writer::TokenWriter;
use crate::{End, Generated, Piece, Rank, Result};

/// Tokens that follow from each other without a choice, and go through a step together, at most.
const FORCED: usize = 256;

/// A text among others.
#[derive(Debug)]
pub(super) struct Running<'m> {
    pub(super) number: usize,
    pub(super) sequence: usize,
    /// What was asked for, without its constraint, which the writer has.
    pub(super) request: BatchRequest,
    /// Tokens that continue its sequence: those of the prompt, then the last one chosen with those that
    /// had to follow.
    pub(super) next: Vec<u32>,
    pub(super) began: Duration,
    /// Time of its last token.
    pub(super) heard: Duration,
    pub(super) writer: TokenWriter<'m>,
    /// With what it can be continued when it is asked for again.
    pub(super) key: Option<AnswerKey>,
    /// A text, by its number, that computes so many of its first tokens: it waits for that one.
    pub(super) follows: Option<(usize, usize)>,
    /// Numbers of tokens at which its state is kept, ascending.
    pub(super) marks: Vec<usize>,
    /// Tokens of the same text before, and its end if it had one: not told yet.
    pub(super) resumed: (Vec<Piece>, Option<End>),
}

/// State of a text's sequence after a step.
pub(super) struct SequencePlace {
    pub(super) position: usize,
    pub(super) limit: usize,
    pub(super) now: Duration,
}

impl Running<'_> {
    /// Tokens in its sequence, while its prompt is computed.
    pub(super) fn done(&self) -> usize {
        match self.has_begun() {
            true => self.request.tokens.len() + self.writer.made.tokens.len() - self.next.len(),
            false if self.follows.is_some() => 0,
            false => self.request.tokens.len() - self.next.len(),
        }
    }

    /// Adds a number of tokens at which its state is kept.
    pub(super) fn mark(&mut self, tokens: usize) {
        if let Err(at) = self.marks.binary_search(&tokens) {
            self.marks.insert(at, tokens);
        }
    }

    /// Tokens before the next mark.
    pub(super) fn until_mark(&self) -> usize {
        let done = self.done();
        let next = self.marks.iter().find(|&&mark| mark > done);
        next.map_or(usize::MAX, |mark| mark - done)
    }

    /// True if it has a new token.
    pub(super) fn has_begun(&self) -> bool {
        !self.writer.made.tokens.is_empty()
    }

    /// True if its next tokens are of a prompt that is ranked.
    pub(super) fn is_scored(&self) -> bool {
        self.request.prompt_ranks && !self.has_begun()
    }

    /// Chooses the next token, if the prompt ends with the first `part` of its next tokens. Returns
    /// the reason if the text is over.
    pub(super) fn continued(
        &mut self,
        part: usize,
        logits: &mut [f32],
        place: SequencePlace,
        each: &mut dyn FnMut(usize, Event),
    ) -> Result<Option<End>> {
        self.next.drain(..part);
        self.heard = place.now;
        if !self.has_begun() {
            let done = (self.request.tokens.len() - self.next.len()) as u64;
            let total = self.request.tokens.len() as u64;
            each(self.number, Event::Prompt(Progress { done, total }));
        }
        if !self.next.is_empty() {
            return Ok(None);
        }
        if self.writer.is_complete() {
            return Ok(Some(End::Length));
        }
        if let Some(witness) = &self.request.witness {
            locked(witness).logits(place.position - 1, logits);
        }
        // Choosing a token overwrites the logits.
        let raw = self.request.ranks.map(|top| (logits.to_vec(), top));
        self.request.bias.iter().for_each(|&(token, bias)| logits[token as usize] += bias);
        let (piece, end) = self.writer.choose(logits, place.position)?;
        let Generated { tokens, first_token, .. } = &mut self.writer.made;
        first_token.get_or_insert_with(|| place.now - self.began);
        self.next.extend(tokens.last());
        let rank = raw.zip(piece.token).map(|((raw, top), token)| Rank::of(&raw, token, top));
        each(self.number, Event::Piece(piece, rank));
        let mut position = place.position;
        let mut end = end_at(&self.writer, end, position, place.limit);
        // With probabilities, each token needs the logits of the one before.
        while end.is_none() && self.request.ranks.is_none() && self.next.len() < FORCED {
            let mut forced = self.writer.forced()?;
            if forced.is_empty() {
                break;
            }
            forced.truncate(FORCED - self.next.len());
            for token in forced {
                let (piece, over) = self.writer.take(token)?;
                self.next.push(token);
                each(self.number, Event::Piece(piece, None));
                position += 1;
                end = end_at(&self.writer, over, position, place.limit);
                if end.is_some() {
                    break;
                }
            }
        }
        Ok(end)
    }

    /// Takes a failed pass, and tells a cancelled text from a failed one.
    pub(super) fn failed(&self, error: ForwardError) -> Result<Option<End>> {
        match error {
            ForwardError::Source(_) if self.request.cancel.is_cancelled() => {
                Ok(Some(End::Cancelled))
            }
            error => Err(error.into()),
        }
    }
}

/// The reason why a text is over with its last token, which has this position.
pub(super) fn end_at(
    writer: &TokenWriter<'_>,
    end: Option<End>,
    position: usize,
    limit: usize,
) -> Option<End> {
    match end {
        Some(end) => Some(end),
        None if writer.is_complete() => Some(End::Length),
        None if position == limit => Some(End::Context),
        None => None,
    }
}

pub(super) fn locked(witness: &Mutex<Witness>) -> MutexGuard<'_, Witness> {
    witness.lock().unwrap_or_else(PoisonError::into_inner)
}
