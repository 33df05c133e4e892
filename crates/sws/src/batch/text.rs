//! A running text of a batch.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sws_engine::Witness;
use sws_format::Progress;
use sws_model::{ForwardError, Observer};

use super::request::{BatchRequest, Event};
use crate::open::pooling::PooledStates;
use crate::prefix_cache::AnswerKey;
use crate::run::writer::TokenWriter;
use crate::{End, Generated, Piece, Rank, Result};

/// Maximum number of forced tokens, which need no choice, in one step.
const FORCED: usize = 256;

/// A running text of a batch.
#[derive(Debug)]
pub(super) struct Running<'m> {
    pub(super) number: usize,
    pub(super) sequence: usize,
    /// The request, without its constraint, which the writer has.
    pub(super) request: BatchRequest,
    /// Tokens that are not in the sequence yet: those of the prompt, then the last chosen token
    /// with the forced ones after it.
    pub(super) next: Vec<u32>,
    pub(super) began: Duration,
    /// Time at which the last token was reported.
    pub(super) heard: Duration,
    pub(super) writer: TokenWriter<'m>,
    /// Key by which an identical request can resume the text.
    pub(super) key: Option<AnswerKey>,
    /// Number of the text that computes a shared prefix, and the length of the prefix. This text
    /// waits for it.
    pub(super) follows: Option<(usize, usize)>,
    /// Positions at which the state of the text is kept, ascending.
    pub(super) marks: Vec<usize>,
    /// Tokens of an identical earlier text, and its end if it had one, which are not reported yet.
    pub(super) resumed: (Vec<Piece>, Option<End>),
    /// The vector of the prompt so far, if that is what is asked for.
    pub(super) pooled: Option<PooledStates>,
}

/// State of a text's sequence after a step.
pub(super) struct SequencePlace {
    pub(super) position: usize,
    pub(super) limit: usize,
    pub(super) now: Duration,
}

impl Running<'_> {
    /// Prompt tokens in the sequence, while the prompt is computed.
    pub(super) fn done(&self) -> usize {
        match self.has_begun() {
            true => self.request.tokens.len() + self.writer.made.tokens.len() - self.next.len(),
            false if self.follows.is_some() => 0,
            false => self.request.tokens.len() - self.next.len(),
        }
    }

    /// Adds a position at which the state is kept.
    pub(super) fn mark(&mut self, tokens: usize) {
        if let Err(at) = self.marks.binary_search(&tokens) {
            self.marks.insert(at, tokens);
        }
    }

    /// Tokens before the next mark.
    pub(super) fn until_mark(&self) -> usize {
        let done = self.done();
        match self.marks.iter().find(|&&mark| mark > done) {
            Some(mark) => mark - done,
            None => usize::MAX,
        }
    }

    /// True if the text has a new token.
    pub(super) fn has_begun(&self) -> bool {
        !self.writer.made.tokens.is_empty()
    }

    /// True if the next tokens are those of a ranked or pooled prompt.
    pub(super) fn is_scored(&self) -> bool {
        self.request.is_scored() && !self.has_begun()
    }

    /// Goes on after `part` tokens of a pooled prompt.
    pub(super) fn pooled(
        &mut self,
        part: usize,
        now: Duration,
        each: &mut dyn FnMut(usize, Event),
    ) -> Option<End> {
        self.passed(part, now, each);
        if !self.next.is_empty() {
            return None;
        }
        let vector = self.pooled.as_ref()?.normed();
        each(self.number, Event::Pooled(vector));
        Some(End::Complete)
    }

    /// Reports the progress of the prompt after `part` more tokens.
    fn passed(&mut self, part: usize, now: Duration, each: &mut dyn FnMut(usize, Event)) {
        self.next.drain(..part);
        self.heard = now;
        if !self.has_begun() {
            let done = (self.request.tokens.len() - self.next.len()) as u64;
            let total = self.request.tokens.len() as u64;
            each(self.number, Event::Prompt(Progress { done, total }));
        }
    }

    /// Chooses the next token, if the first `part` of the next tokens end the prompt. Returns the
    /// reason if the text has ended.
    pub(super) fn continued(
        &mut self,
        part: usize,
        logits: &mut [f32],
        place: SequencePlace,
        each: &mut dyn FnMut(usize, Event),
    ) -> Result<Option<End>> {
        self.passed(part, place.now, each);
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
        for &(token, bias) in &self.request.bias {
            logits[token as usize] += bias;
        }
        let (piece, end) = self.writer.choose(logits, place.position)?;
        let Generated { tokens, first_token, .. } = &mut self.writer.made;
        first_token.get_or_insert_with(|| place.now - self.began);
        self.next.extend(tokens.last());
        let rank = match (raw, piece.token) {
            (Some((raw, top)), Some(token)) => Some(Rank::of(&raw, token, top)),
            _ => None,
        };
        each(self.number, Event::Piece(piece, rank));
        let mut position = place.position;
        let mut end = end_at(&self.writer, end, position, place.limit);
        // With ranks, each token needs the logits of the previous one.
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

    /// Handles a failed pass: distinguishes a cancelled text from a failed one.
    pub(super) fn failed(&self, error: ForwardError) -> Result<Option<End>> {
        match error {
            ForwardError::Source(_) if self.request.cancel.is_cancelled() => {
                Ok(Some(End::Cancelled))
            }
            error => Err(error.into()),
        }
    }
}

/// The reason why the text ends with its last token, at this position.
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
