//! The texts of several requests, as an iterator.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use sws_text::{Generation, Position, TokenMask};

use crate::batch::{Batch, BatchRequest, Event};
use crate::{Cancel, Generated, Result};

/// Several texts being generated: an iterator over the texts, in the order in which they end, each
/// with its number among the requests.
///
/// An error ends one text and leaves the others as they are. Once the iterator is dropped, the model
/// can be used again.
pub struct Texts<'m> {
    batch: Batch<'m>,
    prompts: Box<dyn Iterator<Item = (usize, Result<TextPrompt>)> + 'm>,
    ended: VecDeque<(usize, Result<Generated>)>,
    constraint: Option<Arc<dyn TokenMask>>,
    cancel: Cancel,
    progress: Option<Box<dyn FnMut() + 'm>>,
}

/// The tokens of a prompt, and how to continue them.
pub(crate) type TextPrompt = (Vec<u32>, Generation);

impl<'m> Texts<'m> {
    /// Continues prompts, each with its options, which are taken as sequences become free.
    pub(crate) fn new(
        batch: Batch<'m>,
        prompts: impl Iterator<Item = Result<TextPrompt>> + 'm,
    ) -> Texts<'m> {
        let prompts = Box::new(prompts.enumerate());
        let ended = VecDeque::new();
        Texts { batch, prompts, ended, constraint: None, cancel: Cancel::new(), progress: None }
    }

    /// Sets another handle that cancels all texts. Those that have begun then end as cancelled, and no
    /// other begins.
    pub fn cancelled_by(mut self, cancel: Cancel) -> Self {
        self.cancel = cancel;
        self
    }

    /// Restricts the tokens that may be chosen, in each text. Those that have to come are computed in
    /// one pass.
    pub fn restricted_by(mut self, constraint: Arc<dyn TokenMask>) -> Self {
        self.constraint = Some(constraint);
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
        let Texts { batch, ended, .. } = self;
        batch.step(&mut |number, event| {
            if let Event::Ended(made) = event {
                ended.push_back((number, *made));
            }
        });
        if let Some(report) = &mut self.progress {
            report();
        }
    }

    /// Gives free sequences to the next prompts.
    fn begin(&mut self) {
        if self.cancel.is_cancelled() {
            self.prompts = Box::new(std::iter::empty());
        }
        while self.batch.has_room(false) {
            let Some((number, prompt)) = self.prompts.next() else { return };
            let added = prompt.and_then(|(tokens, generation)| {
                let text = BatchRequest {
                    tokens,
                    generation,
                    position: Position::Middle,
                    bias: Vec::new(),
                    constraint: self.constraint.clone(),
                    ranks: None,
                    prompt_ranks: false,
                    witness: None,
                    short_lived: false,
                    owner: 0,
                    cancel: self.cancel.clone(),
                };
                self.batch.add(number, text)
            });
            if let Err(error) = added {
                self.ended.push_back((number, Err(error)));
            }
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
            self.begin();
            if !self.batch.is_empty() {
                self.advance();
            } else if self.ended.is_empty() {
                return None;
            }
        }
    }
}

impl fmt::Debug for Texts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Texts").field("batch", &self.batch).finish_non_exhaustive()
    }
}
