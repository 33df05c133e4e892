//! Handles that end what is under way, from any thread.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sws_engine::Waiter;
use sws_model::{Observer, Routed, SourceError};
use sws_store::{Pass, ReadOp, ShardReader};

/// Ends loading or generating, from any thread. Clones end the same.
///
/// A handle that was used stays used: something new needs a new one.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    asked: Arc<AtomicBool>,
    /// True if a pass is completed once it has begun.
    between: bool,
    /// The waiter of the pass under way.
    waiter: Mutex<Option<Waiter>>,
}

impl Cancel {
    /// Ends a pass at its next layer, or at the read that it waits for. What was generated stays; the
    /// sequence is computed anew by what continues it.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Ends between passes only, when the flag is set: after a token, or a few hundred of a prompt. The
    /// sequence can be continued where it ended. A flag is what a signal can set.
    pub fn between_passes(flag: Arc<AtomicBool>) -> Cancel {
        Cancel(Arc::new(Shared { asked: flag, between: true, waiter: Mutex::default() }))
    }

    /// Ends it.
    pub fn cancel(&self) {
        self.0.asked.store(true, Ordering::Relaxed);
        if let Some(waiter) = &*self.waiter() {
            waiter.cancel();
        }
    }

    /// True once it was asked for.
    pub fn is_cancelled(&self) -> bool {
        self.0.asked.load(Ordering::Relaxed)
    }

    /// Ends a pass too that waits with `waiter`, until [`detach`](Self::detach).
    pub(crate) fn attach(&self, waiter: Option<&Waiter>) {
        if !self.0.between {
            *self.waiter() = waiter.cloned();
        }
    }

    /// Lets waiting begin again, if it was ended.
    pub(crate) fn detach(&self) {
        if let Some(waiter) = self.waiter().take() {
            waiter.resume();
        }
    }

    fn waiter(&self) -> MutexGuard<'_, Option<Waiter>> {
        self.0.waiter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An observer that ends a pass for a [`Cancel`], before another one is told of a layer.
pub(crate) struct Looking<'a> {
    pub(crate) cancel: &'a Cancel,
    pub(crate) observer: &'a mut dyn Observer,
}

impl Observer for Looking<'_> {
    fn pass_begins(&mut self, pass: &Pass) -> Result<(), SourceError> {
        self.observer.pass_begins(pass)
    }

    fn layer_begins(
        &mut self,
        pass: &Pass,
        layer: usize,
        hidden: &[f32],
    ) -> Result<(), SourceError> {
        if !self.cancel.0.between && self.cancel.is_cancelled() {
            return Err("the pass was cancelled".into());
        }
        self.observer.layer_begins(pass, layer, hidden)
    }

    fn routed(&mut self, pass: &Pass, layer: usize, routed: &Routed) -> Result<(), SourceError> {
        self.observer.routed(pass, layer, routed)
    }

    fn attended(
        &mut self,
        pass: &Pass,
        layer: usize,
        state: &[f32],
        shared: &[f32],
    ) -> Result<(), SourceError> {
        self.observer.attended(pass, layer, state, shared)
    }

    fn logits(&mut self, first: usize, logits: &[f32]) {
        self.observer.logits(first, logits);
    }
}

/// A reader that reads no more once it was cancelled, until the model is open: what is read while a
/// model is opened may be most of its weights, and nothing in between looks at the handle.
pub(crate) struct Opening {
    reader: Arc<dyn ShardReader>,
    cancel: Cancel,
    over: AtomicBool,
}

impl Opening {
    pub(crate) fn new(reader: Arc<dyn ShardReader>, cancel: Cancel) -> Arc<Opening> {
        Arc::new(Opening { reader, cancel, over: AtomicBool::new(false) })
    }

    /// The model is open: it is cancelled between passes, or within, from now on.
    pub(crate) fn is_over(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    fn go_on(&self) -> io::Result<()> {
        match self.cancel.is_cancelled() && !self.over.load(Ordering::Relaxed) {
            true => Err(interrupted()),
            false => Ok(()),
        }
    }
}

fn interrupted() -> io::Error {
    io::Error::other("interrupted")
}

impl ShardReader for Opening {
    fn name(&self) -> &'static str {
        self.reader.name()
    }

    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.go_on()?;
        self.reader.read_at(file, offset, into)
    }

    fn reread_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.go_on()?;
        self.reader.reread_at(file, offset, into)
    }

    fn batch(&self) -> usize {
        self.reader.batch()
    }

    fn read_batch(&self, reads: &mut [ReadOp<'_>]) {
        if self.go_on().is_ok() {
            return self.reader.read_batch(reads);
        }
        for read in reads {
            read.result = Err(interrupted());
        }
    }
}

#[cfg(test)]
mod tests {
    use sws_store::MemoryReader;

    use super::*;

    #[test]
    fn nothing_is_read_for_a_model_that_is_no_longer_wanted() {
        let cancel = Cancel::new();
        let reader = Arc::new(MemoryReader::new(vec![vec![7; 4096]]));
        let opening = Opening::new(reader, cancel.clone());
        let reads = || {
            let (mut one, mut other) = ([0; 4096], [0; 4096]);
            let alone = opening.read_at(0, 0, &mut one).is_ok();
            let mut batch = [ReadOp { file: 0, offset: 0, into: &mut other, result: Ok(0) }];
            opening.read_batch(&mut batch);
            let again = opening.reread_at(0, 0, &mut one).is_ok();
            (alone, again, matches!(batch[0].result, Ok(4096)))
        };
        assert_eq!(reads(), (true, true, true));
        cancel.cancel();
        assert_eq!(reads(), (false, false, false));
        opening.is_over();
        assert_eq!(reads(), (true, true, true));
    }
}
