//! Tokens computed before they are chosen: speculative decoding.

use std::fmt;
use std::time::Duration;

use sws_engine::Waiter;
use sws_format::Clock;
use sws_model::{CausalLm, ForwardError, Observer};

use super::{Generate, Hooks};
use crate::Result;
use crate::run::cancel::CancelObserver;
use crate::run::timing::clock_of;
use crate::speculative::{DecodeStep, SpeculativeDecoder};

/// Function that drafts at most so many tokens to follow a text.
type Propose<'m> = Box<dyn FnMut(&[u32], usize) -> Vec<u32> + Send + 'm>;

/// Tokens verified in one pass, and the source of draft tokens.
pub(super) struct Ahead<'m> {
    verified: Option<VerifiedTokens>,
    /// Source of the caller's draft tokens, which are always verified.
    propose: Option<Propose<'m>>,
    clock: Clock,
}

/// Tokens of a verifying pass. The first of them is right.
struct VerifiedTokens {
    /// Position of the first token.
    first: usize,
    tokens: Vec<u32>,
    /// Index of the last token known to be right.
    row: usize,
}

impl<'m> Ahead<'m> {
    pub(super) fn new(waiter: Option<&Waiter>) -> Ahead<'m> {
        Ahead { verified: None, propose: None, clock: clock_of(waiter) }
    }

    /// Row of the last pass with the logits of the next token; `None` if the pass had only one row.
    pub(super) fn row(&self) -> Option<usize> {
        Some(self.verified.as_ref()?.row)
    }
}

impl<'m> Generate<'m> {
    /// Sets a source of draft tokens, such as the text that is being edited. `propose` gets the
    /// tokens so far and a maximum, and returns the tokens that may follow. They are verified in
    /// one pass, so the text stays the same. The more of them are wrong, the longer it takes.
    ///
    /// Has no effect with an [observer](Self::observed_by), and on models whose sequence cannot be cut
    /// anywhere.
    pub fn proposed_by(
        mut self,
        propose: impl FnMut(&[u32], usize) -> Vec<u32> + Send + 'm,
    ) -> Self {
        self.ahead.propose = Some(Box::new(propose));
        self
    }

    /// Number of positions, up to the last token known to be right.
    pub(super) fn reached(&self) -> usize {
        match &self.ahead.verified {
            Some(VerifiedTokens { first, row, .. }) => first + row + 1,
            None => self.sequence.len(),
        }
    }

    /// Computes the logits after the last token, unless they are known. Returns false if cancelled.
    pub(super) fn advance(&mut self, last: u32) -> Result<bool> {
        if let Some(VerifiedTokens { tokens, row, .. }) = &mut self.ahead.verified
            && tokens.get(*row + 1) == Some(&last)
        {
            *row += 1;
            return Ok(true);
        }
        self.accept();
        let began = self.ahead.clock.now();
        let next = self.next_step(last);
        let (proposed, drafting) = match next {
            DecodeStep::Plain => (Vec::new(), Duration::ZERO),
            DecodeStep::Verify(tokens) => (tokens, Duration::ZERO),
            DecodeStep::Draft { tokens, verify } => {
                let Some(proposed) = self.draft_tokens(last, tokens)? else { return Ok(false) };
                let took = self.ahead.clock.now() - began;
                if let Some(decoder) = self.speculative() {
                    decoder.drafted(&proposed, took, verify);
                }
                if verify { (proposed, took) } else { (Vec::new(), Duration::ZERO) }
            }
        };
        let began = self.ahead.clock.now();
        let count = proposed.len();
        let computed = match count {
            0 => self.pass(&[last], None)?,
            _ => self.verify(last, proposed)?,
        };
        let took = self.ahead.clock.now() - began;
        if let (Some(decoder), true) = (self.speculative(), computed) {
            match count {
                0 => decoder.passed(took),
                _ => decoder.verified(count, drafting, took),
            }
        }
        Ok(computed)
    }

    /// The speculative decoder, which measures its gain. `None` if the caller supplies the draft
    /// tokens.
    pub(super) fn speculative(&mut self) -> Option<&mut SpeculativeDecoder> {
        match self.ahead.propose {
            Some(_) => None,
            None => self.sequence.speculative.as_mut(),
        }
    }

    /// Drops the positions after the last right token.
    pub(super) fn accept(&mut self) {
        if self.ahead.verified.is_some() {
            let len = self.reached();
            self.ahead.verified = None;
            self.sequence.accept(len);
        }
    }

    /// Decides on the next step of the text, whose last token is not in the sequence yet.
    fn next_step(&mut self, last: u32) -> DecodeStep {
        let used = self.sequence.len();
        let room = self.sequence.limit() - used - 1;
        let (verify_len, drafts) = match self.sequence.lm.streamer() {
            Some(streamer) => (streamer.verify_len(), streamer.can_draft()),
            None => (0, false),
        };
        let rows = verify_len.saturating_sub(1);
        // The last token of a text needs no successor.
        let most = rows.min(room).min(self.writer.remaining().saturating_sub(1));
        let proposes = self.ahead.propose.is_some() || self.sequence.speculative.is_some();
        if most == 0 || !proposes || self.hooks.observer.is_some() {
            return DecodeStep::Plain;
        }
        let vocab = self.sequence.vocab();
        let propose = &mut self.ahead.propose;
        self.sequence.with_next(last, |text, decoder| match (propose, decoder) {
            (Some(propose), _) => {
                let mut tokens = propose(text, most);
                let is_known = |&&token: &&u32| (token as usize) < vocab;
                tokens.truncate(tokens.iter().take(most).take_while(is_known).count());
                if tokens.is_empty() { DecodeStep::Plain } else { DecodeStep::Verify(tokens) }
            }
            (None, Some(decoder)) => decoder.next(text, most, drafts),
            (None, None) => DecodeStep::Plain,
        })
    }

    /// Drafts up to `count` tokens after the last one on stand-ins. The sequence stays as it was.
    /// `None` if cancelled.
    fn draft_tokens(&mut self, last: u32, count: usize) -> Result<Option<Vec<u32>>> {
        let before = self.sequence.len();
        let mut proposed = Vec::with_capacity(count);
        let mut token = last;
        while proposed.len() < count && !self.writer.is_stop(token) {
            let Generate { sequence, hooks, logits, writer, .. } = self;
            let drafted = hooks.observe(|observer| {
                logits.clear();
                logits.extend_from_slice(sequence.draft_token(token, observer)?);
                Ok(())
            })?;
            if !drafted {
                return Ok(None);
            }
            let Some(next) = writer.guess(logits, before + proposed.len() + 1) else { break };
            proposed.push(next);
            token = next;
        }
        self.sequence.accept(before);
        Ok(Some(proposed))
    }

    /// Computes the last token and the draft tokens after it in one pass. Returns false if
    /// cancelled.
    fn verify(&mut self, last: u32, proposed: Vec<u32>) -> Result<bool> {
        let first = self.sequence.len();
        let mut tokens = proposed;
        tokens.insert(0, last);
        let Generate { sequence, hooks, .. } = self;
        let done = hooks.observe(|observer| sequence.verify(&tokens, observer))?;
        if done {
            self.ahead.verified = Some(VerifiedTokens { first, tokens, row: 0 });
        }
        Ok(done)
    }
}

impl Hooks<'_> {
    /// Runs a pass that can be cancelled. Returns false if cancelled.
    fn observe(
        &mut self,
        pass: impl FnOnce(&mut dyn Observer) -> std::result::Result<(), ForwardError>,
    ) -> Result<bool> {
        let Hooks { cancel, .. } = self;
        match pass(&mut CancelObserver { cancel, observer: &mut (), prompt: None }) {
            Ok(()) => Ok(true),
            Err(ForwardError::Source(_)) if cancel.is_cancelled() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl fmt::Debug for Ahead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ahead").field("row", &self.row()).finish_non_exhaustive()
    }
}
