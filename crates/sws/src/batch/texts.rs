//! The texts of several requests, as an iterator.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use sws_text::{Generation, TokenMask};

use crate::batch::{Batch, BatchRequest, Event};
use crate::run::loaded::prepared;
use crate::{Cancel, Generated, LoadedModel, Request, Result};

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

/// Tokens of a prompt, and the options of its continuation.
pub(crate) type TextPrompt = (Vec<u32>, Generation);

impl<'m> Texts<'m> {
    /// Continues prompts, each with its options. The next prompt is taken when a sequence becomes
    /// free.
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

    /// Restricts the tokens that may be chosen, in each text. Forced tokens are computed in one
    /// pass.
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
            let added = match prompt {
                Ok((tokens, generation)) => {
                    let text = BatchRequest {
                        constraint: self.constraint.clone(),
                        cancel: self.cancel.clone(),
                        ..BatchRequest::new(tokens, generation)
                    };
                    self.batch.add(number, text)
                }
                Err(error) => Err(error),
            };
            if let Err(error) = added {
                self.ended.push_back((number, Err(error)));
            }
        }
    }
}

impl LoadedModel {
    /// Continuous batching: several texts share passes, in which each expert is read once for all of them:
    /// as many at a time as was [declared](crate::Needs::texts) when the model was loaded. Each has the
    /// output that it has alone. Their costs are those of all together, and not measured by text.
    ///
    /// A request is taken when the text before it has ended, or the one before that, and so on.
    pub fn generate_all<'m, R>(&'m mut self, requests: R) -> Result<Texts<'m>>
    where
        R: IntoIterator<Item = Request>,
        R::IntoIter: 'm,
    {
        let LoadedModel { model, sequence, text, about, waiter, .. } = self;
        let model = &*model;
        let text = &*text;
        let batch = Batch::new(sequence, text.tokenizer(), waiter.clone(), about.texts)?;
        let prompts = requests.into_iter().map(|request| prepared(model, text, request));
        Ok(Texts::new(batch, prompts))
    }

    /// As [`generate_all`](Self::generate_all), with tokens and [resolved](crate::Model::generation) options
    /// for all of them.
    pub fn continued_all<'m>(
        &'m mut self,
        prompts: impl IntoIterator<Item = Vec<u32>, IntoIter: 'm>,
        generation: &'m Generation,
    ) -> Result<Texts<'m>> {
        let prompts = prompts.into_iter().map(|tokens| Ok((tokens, generation.clone())));
        Ok(Texts::new(self.batch()?, prompts))
    }

    /// Begins an empty batch, for the number of texts that was [declared](crate::Needs::texts) when
    /// the model was loaded.
    pub fn batch(&mut self) -> Result<Batch<'_>> {
        let LoadedModel { sequence, text, about, waiter, .. } = self;
        Batch::new(sequence, text.tokenizer(), waiter.clone(), about.texts)
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
