//! Handles that cancel loading or generation from any thread.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sws_engine::Waiter;
use sws_format::{Pass, ReadOp, ShardReader};
use sws_model::{Observer, Routed, SourceError};

/// Cancels loading or generation, from any thread. Clones share their state.
///
/// A used handle stays cancelled; a new operation needs a new handle.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<CancelShared>);

#[derive(Debug, Default)]
struct CancelShared {
    flag: Arc<AtomicBool>,
    /// True if the pass of a token is completed before the handle takes effect.
    between: bool,
    /// Waiter of the pass in progress.
    waiter: Mutex<Option<Waiter>>,
}

impl Cancel {
    /// Creates a handle that ends a pass at its next layer, or in the middle of a wait for a read.
    /// Text generated so far is kept, but continuing it computes the sequence anew.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Creates a handle that ends a prompt at its next layer, and generation after a token, when the
    /// flag is set. After a token the sequence can be continued from there. A signal can set the flag.
    pub fn between_tokens(flag: Arc<AtomicBool>) -> Cancel {
        Cancel(Arc::new(CancelShared { flag, between: true, waiter: Mutex::default() }))
    }

    /// Cancels the operation.
    pub fn cancel(&self) {
        self.0.flag.store(true, Ordering::Relaxed);
        if let Some(waiter) = &*self.waiter() {
            waiter.cancel();
        }
    }

    /// True once [`cancel`](Self::cancel) was called, or the flag set.
    pub fn is_cancelled(&self) -> bool {
        self.0.flag.load(Ordering::Relaxed)
    }

    /// True if the pass of a token ends early now.
    pub(crate) fn ends_passes(&self) -> bool {
        !self.0.between && self.is_cancelled()
    }

    /// True if the other handle is a clone of this one.
    pub(crate) fn is(&self, other: &Cancel) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Lets [`cancel`](Self::cancel) also end a wait of `waiter`, until [`detach`](Self::detach).
    pub(crate) fn attach(&self, waiter: Option<&Waiter>) {
        if !self.0.between {
            *self.waiter() = waiter.cloned();
        }
    }

    /// Detaches the waiter, and lets it wait again if it was cancelled.
    pub(crate) fn detach(&self) {
        if let Some(waiter) = self.waiter().take() {
            waiter.resume();
        }
    }

    fn waiter(&self) -> MutexGuard<'_, Option<Waiter>> {
        self.0.waiter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Observer that ends a pass at a layer once a [`Cancel`] handle was used, and otherwise forwards
/// to another observer.
pub(crate) struct CancelObserver<'a> {
    pub(crate) cancel: &'a Cancel,
    pub(crate) observer: &'a mut dyn Observer,
    /// Called at each layer of a prompt's pass; `None` in the pass of a token.
    pub(crate) prompt: Option<&'a mut OnLayer<'a>>,
}

/// A function of a pass and the number of a layer.
pub(crate) type OnLayer<'a> = dyn FnMut(&Pass, usize) + Send + 'a;

impl Observer for CancelObserver<'_> {
    fn pass_begins(&mut self, pass: &Pass) -> Result<(), SourceError> {
        self.observer.pass_begins(pass)
    }

    fn layer_begins(
        &mut self,
        pass: &Pass,
        layer: usize,
        hidden: &[f32],
    ) -> Result<(), SourceError> {
        let ends = match &self.prompt {
            Some(_) => self.cancel.is_cancelled(),
            None => self.cancel.ends_passes(),
        };
        if ends {
            return Err("the pass was cancelled".into());
        }
        if let Some(on_layer) = &mut self.prompt {
            on_layer(pass, layer);
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

/// State of a model that is being opened. Opening may read most of its weights, and reads are the
/// only place that checks the handle.
#[derive(Clone, Debug)]
pub(crate) struct Opening {
    cancel: Cancel,
    open: Arc<AtomicBool>,
}

/// Reader that fails once loading was cancelled, until the model is open.
struct OpeningReader {
    reader: Arc<dyn ShardReader>,
    opening: Opening,
}

impl Opening {
    pub(crate) fn new(cancel: Cancel) -> Opening {
        Opening { cancel, open: Arc::default() }
    }

    /// Wraps a reader of the model.
    pub(crate) fn reader(&self, reader: Arc<dyn ShardReader>) -> Arc<dyn ShardReader> {
        Arc::new(OpeningReader { reader, opening: self.clone() })
    }

    /// Marks the model as open. From now on, passes check for cancellation.
    pub(crate) fn set_open(&self) {
        self.open.store(true, Ordering::Relaxed);
    }

    fn check(&self) -> io::Result<()> {
        match self.cancel.is_cancelled() && !self.open.load(Ordering::Relaxed) {
            true => Err(interrupted()),
            false => Ok(()),
        }
    }
}

/// The error of a read that a caller has cancelled. Its kind says that no drive has failed.
fn interrupted() -> io::Error {
    io::Error::new(io::ErrorKind::Interrupted, "interrupted")
}

impl ShardReader for OpeningReader {
    fn name(&self) -> &'static str {
        self.reader.name()
    }

    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.opening.check()?;
        self.reader.read_at(file, offset, into)
    }

    fn reread_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.opening.check()?;
        self.reader.reread_at(file, offset, into)
    }

    fn batch(&self) -> usize {
        self.reader.batch()
    }

    fn read_batch(&self, reads: &mut [ReadOp<'_>]) {
        if self.opening.check().is_ok() {
            return self.reader.read_batch(reads);
        }
        for read in reads {
            read.result = Err(interrupted());
        }
    }
}

#[cfg(test)]
mod tests {
    use sws_testing::readers::MemoryReader;

    use super::*;

    #[test]
    fn cancelled_load_reads_nothing_more() {
        let cancel = Cancel::new();
        let opening = Opening::new(cancel.clone());
        let reader = opening.reader(Arc::new(MemoryReader::new(vec![vec![7; 4096]])));
        let reads = || {
            let mut one = [0; 4096];
            let mut other = [0; 4096];
            let alone = reader.read_at(0, 0, &mut one).is_ok();
            let mut batch = [ReadOp { file: 0, offset: 0, into: &mut other, result: Ok(0) }];
            reader.read_batch(&mut batch);
            let again = reader.reread_at(0, 0, &mut one).is_ok();
            (alone, again, matches!(batch[0].result, Ok(4096)))
        };
        assert_eq!(reads(), (true, true, true));
        cancel.cancel();
        assert_eq!(reads(), (false, false, false));
        opening.set_open();
        assert_eq!(reads(), (true, true, true));
    }
}
