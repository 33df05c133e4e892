//! Continuous batching: several texts in shared passes, which begin and end at any time.

mod add;
mod portion;
mod request;
mod reuse;
mod step;
#[cfg(test)]
mod tests;
mod text;
pub(crate) mod texts;
mod turns;

use std::fmt;
use std::time::Duration;

use sws_engine::Waiter;
use sws_format::Clock;
use sws_model::StepOutcome;
use sws_text::Tokenizer;

use crate::prefix_cache::PrefixCache;
use crate::prefix_cache::disk::PrefixDisk;
use crate::run::sequence::Sequence;
use crate::run::timing::clock_of;
use crate::{Error, LoadedSequences, Result};
use portion::Portion;
pub use request::{BatchRequest, Event};
use text::Running;
use turns::Turns;

/// Continuous batching: texts share passes, in which each expert is read once for all of them. Each has the
/// output that it has alone.
///
/// Texts are [added](Self::add) and cancelled at any time, and advanced by [`step`](Self::step). An
/// error ends one text and leaves the others as they are.
pub struct Batch<'m> {
    model: &'m mut Sequence,
    tokenizer: Option<&'m Tokenizer>,
    waiter: Option<Waiter>,
    running: Vec<Running<'m>>,
    /// Empty sequences without a text.
    idle: Vec<usize>,
    /// Prefixes of texts, kept apart from sequences.
    prefixes: PrefixCache,
    disk: Option<PrefixDisk>,
    /// Upper bound on the bytes held by sequences and kept prefixes; `None` if they have to be
    /// counted.
    held: Option<u64>,
    /// Bytes available to sequences and kept prefixes.
    room: u64,
    /// True if kept prefixes can be cut anywhere.
    goes_back: bool,
    /// Bytes of experts in memory, if they get the memory that texts and kept prefixes leave
    /// unused.
    experts: u64,
    step: StepOutcome,
    clock: Clock,
    turns: Option<Turns>,
    portion: Portion,
}

impl<'m> Batch<'m> {
    /// A batch of at most `most` texts.
    pub(crate) fn new(
        model: &'m mut Sequence,
        tokenizer: Option<&'m Tokenizer>,
        waiter: Option<Waiter>,
        most: usize,
    ) -> Result<Batch<'m>> {
        let idle = model.several(most).ok_or(Error::OneText)?;
        let (room, goes_back) = match model.lm.streamer() {
            Some(streamer) => (streamer.room(), streamer.goes_back()),
            // A simulation has no KV cache.
            None => (u64::MAX, true),
        };
        let portion = Portion::new(model.longest_pass());
        let clock = clock_of(waiter.as_ref());
        Ok(Batch {
            model,
            tokenizer,
            waiter,
            running: Vec::new(),
            idle,
            prefixes: PrefixCache::new(),
            disk: None,
            held: None,
            room,
            goes_back,
            experts: 0,
            step: StepOutcome::default(),
            clock,
            turns: None,
            portion,
        })
    }

    /// Allows texts to take turns, one at a time, where that is cheaper. The decision uses the
    /// measured cost of passes and a forecast of the bytes that the texts read. In turns, a step
    /// continues one text, and no text waits longer than `gap` between tokens. Without this, a step
    /// advances every text.
    pub fn with_turns(mut self, gap: Duration) -> Batch<'m> {
        self.turns = Some(Turns::new(gap));
        self
    }

    /// True if there is no text.
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Number of texts.
    pub fn len(&self) -> usize {
        self.running.len()
    }

    /// Number of positions in all sequences.
    pub fn positions(&self) -> usize {
        self.running.iter().map(Running::done).sum()
    }

    /// True if a text can be added. A text with the ranks of its prompt needs the first sequence.
    pub fn has_room(&self, prompt_ranks: bool) -> bool {
        match prompt_ranks {
            true => self.idle.contains(&0),
            false => !self.idle.is_empty(),
        }
    }

    /// Lends the memory [planned](crate::Needs::structured) for structured output to experts, as no
    /// text has structured output from now on (`is_idle`), or takes it back, as some may. At first
    /// it is not lent.
    pub fn lend_structured(&mut self, is_idle: bool) {
        if let Some(streamer) = self.model.lm.streamer() {
            streamer.lend_structured(is_idle);
        }
    }
}

impl LoadedSequences {
    /// Begins an empty batch of at most so many texts. Its pieces are tokens without text.
    pub fn batch(&mut self, texts: usize) -> Result<Batch<'_>> {
        Batch::new(&mut self.sequence, None, Some(self.waiter.clone()), texts)
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if let Some(streamer) = self.model.lm.streamer() {
            streamer.lend_context(None);
            streamer.lend_structured(false);
        }
        for text in &self.running {
            self.model.release(text.sequence);
        }
        for &sequence in &self.idle {
            self.model.release(sequence);
        }
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("running", &self.running).finish_non_exhaustive()
    }
}
