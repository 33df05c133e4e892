//! A loaded model on a thread of its own, which does the work that Python's threads ask for.
//!
//! Functions here are called without the lock of the interpreter, and take it only to see signals.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use std::time::Duration;

use pyo3::prelude::*;
use sws::{Cancel, LoadedModel};

use crate::raised;

/// Time between two looks at signals while work is waited for.
const PATIENCE: Duration = Duration::from_millis(50);

const CLOSED: &str = "the model is closed; open it again";
const GONE: &str = "the thread of the model has failed, which is a bug: please report it, and open the model again";
const FORKED: &str =
    "the model was opened by another process, of which this one is a fork; open it again here";
const BUSY: &str = "a text of this model is not over, and a model continues one at a time; read it to its end, or close it";

type ModelWork = Box<dyn FnOnce(&mut LoadedModel) + Send>;

/// A loaded model on a thread of its own. Work is done in the order in which it is asked for.
pub(crate) struct ModelThread {
    /// `None` once the model is closed.
    jobs: Mutex<Option<Sender<ModelWork>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// True once the model is closed: texts in progress end.
    closing: Arc<AtomicBool>,
    /// The process that has the thread.
    process: u32,
    /// The caller's thread whose steps have not ended, and their number.
    stepping: Mutex<Option<(ThreadId, u64)>>,
    /// Number of the last steps.
    last: Mutex<u64>,
}

impl ModelThread {
    /// Starts the thread, which opens the model. Returns facts about it.
    pub(crate) fn start<T: Send + 'static>(
        cancel: &Cancel,
        open: impl FnOnce() -> sws::Result<LoadedModel> + Send + 'static,
        facts: impl FnOnce(&mut LoadedModel) -> sws::Result<T> + Send + 'static,
    ) -> PyResult<(ModelThread, T)> {
        let (jobs, work) = channel::<ModelWork>();
        let (reply, answer) = channel();
        let run = move || {
            let opened = open().and_then(|mut model| {
                let facts = facts(&mut model)?;
                Ok((model, facts))
            });
            let mut model = match opened {
                Ok((model, facts)) => {
                    let _ = reply.send(Ok(facts));
                    model
                }
                Err(error) => {
                    let _ = reply.send(Err(error.to_string()));
                    return;
                }
            };
            work.into_iter().for_each(|job| job(&mut model));
        };
        let thread = std::thread::Builder::new().name("sws-model".to_owned()).spawn(run);
        let thread = thread.map_err(|e| {
            raised(format!("no thread can be started for the model: {e}; raise `ulimit -u`"))
        })?;
        let facts = wait(&answer, cancel)?.map_err(raised)?;
        let worker = ModelThread {
            jobs: Mutex::new(Some(jobs)),
            thread: Mutex::new(Some(thread)),
            closing: Arc::default(),
            process: std::process::id(),
            stepping: Mutex::default(),
            last: Mutex::default(),
        };
        Ok((worker, facts))
    }

    /// Does work and waits for its result.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        cancel: &Cancel,
        work: impl FnOnce(&mut LoadedModel) -> sws::Result<T> + Send + 'static,
    ) -> PyResult<T> {
        let (reply, answer) = channel();
        let cancelled = cancel.clone();
        self.send(Box::new(move |model| {
            // Nobody waits any more for what was cancelled before it began.
            if !cancelled.is_cancelled() {
                let _ = reply.send(work(model).map_err(|error| error.to_string()));
            }
        }))?;
        wait(&answer, cancel)?.map_err(raised)
    }

    /// Begins work that goes on by steps, each as it is asked for.
    pub(crate) fn begin<I: Send + 'static, O: Send + 'static>(
        self: &Arc<ModelThread>,
        cancel: &Cancel,
        work: impl FnOnce(&mut LoadedModel, &StepRequests<I, O>) -> sws::Result<O> + Send + 'static,
    ) -> PyResult<PendingSteps<I, O>> {
        let (asks, asked) = channel();
        let (reply, steps) = channel();
        let cancelled = cancel.clone();
        let closing = Arc::clone(&self.closing);
        self.send(Box::new(move |model| {
            let asked = StepRequests { asks: asked, reply, closing };
            if !cancelled.is_cancelled() {
                let ended = work(model, &asked);
                let last = ended.map_or_else(|e| Step::Failed(e.to_string()), Step::Over);
                let _ = asked.reply.send(last);
            }
        }))?;
        match wait(&steps, cancel)? {
            Step::Failed(sentence) => return Err(raised(sentence)),
            Step::Begun | Step::Item(_) | Step::Over(_) => {}
        }
        let number = {
            let mut last = lock(&self.last);
            *last += 1;
            *last
        };
        *lock(&self.stepping) = Some((std::thread::current().id(), number));
        Ok(PendingSteps { asks, steps, worker: Arc::clone(self), number, cancel: cancel.clone() })
    }

    /// Ends texts in progress and the thread, and frees the model.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
        drop(lock(&self.jobs).take());
        let thread = lock(&self.thread).take();
        // A fork has no such thread.
        if let Some(thread) = thread.filter(|_| self.process == std::process::id()) {
            let _ = thread.join();
        }
    }

    fn send(&self, job: ModelWork) -> PyResult<()> {
        if self.process != std::process::id() {
            return Err(raised(FORKED));
        }
        // The work of this thread would wait for itself.
        if lock(&self.stepping).is_some_and(|(thread, _)| thread == std::thread::current().id()) {
            return Err(raised(BUSY));
        }
        match &*lock(&self.jobs) {
            Some(jobs) => jobs.send(job).map_err(|_| raised(GONE)),
            None => Err(raised(CLOSED)),
        }
    }
}

impl Drop for ModelThread {
    fn drop(&mut self) {
        self.close();
    }
}

/// An answer of work that goes on by steps.
pub(crate) enum Step<I, O> {
    /// The work has begun.
    Begun,
    /// A result of a step.
    Item(I),
    /// The result of the whole.
    Over(O),
    /// The sentence of an error, which ends the work.
    Failed(String),
}

/// The end of the model's thread.
pub(crate) struct StepRequests<I, O> {
    asks: Receiver<()>,
    reply: Sender<Step<I, O>>,
    closing: Arc<AtomicBool>,
}

impl<I, O> StepRequests<I, O> {
    /// Reports that the work has begun.
    pub(crate) fn begun(&self) {
        let _ = self.reply.send(Step::Begun);
    }

    /// Waits until the next step is asked for. Returns false if none ever will be.
    pub(crate) fn is_wanted(&self) -> bool {
        while !self.closing.load(Ordering::Relaxed) {
            match self.asks.recv_timeout(PATIENCE) {
                Ok(()) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        false
    }

    /// Reports the result of a step.
    pub(crate) fn item(&self, item: I) {
        let _ = self.reply.send(Step::Item(item));
    }
}

/// The end of Python's threads. Dropping it ends the work.
pub(crate) struct PendingSteps<I, O> {
    asks: Sender<()>,
    steps: Receiver<Step<I, O>>,
    worker: Arc<ModelThread>,
    number: u64,
    cancel: Cancel,
}

impl<I, O> PendingSteps<I, O> {
    /// Asks for a step and waits for it. After a signal, which cancels the work, the step is still to be
    /// [taken](Self::take).
    pub(crate) fn next(&self) -> PyResult<Step<I, O>> {
        self.ask();
        wait(&self.steps, &self.cancel)
    }

    /// Asks for a step.
    pub(crate) fn ask(&self) {
        // After the last step nobody listens.
        let _ = self.asks.send(());
    }

    /// Waits for a step of cancelled work. `None` if the model's thread has failed.
    pub(crate) fn take(&self) -> Option<Step<I, O>> {
        self.steps.recv().ok()
    }
}

impl<I, O> Drop for PendingSteps<I, O> {
    fn drop(&mut self) {
        let mut stepping = lock(&self.worker.stepping);
        if stepping.is_some_and(|(_, number)| number == self.number) {
            *stepping = None;
        }
    }
}

/// Waits for an answer. A signal that Python handles, such as that of Ctrl-C, cancels the work, and is
/// raised.
fn wait<T>(answers: &Receiver<T>, cancel: &Cancel) -> PyResult<T> {
    loop {
        match answers.recv_timeout(PATIENCE) {
            Ok(answer) => return Ok(answer),
            Err(RecvTimeoutError::Disconnected) => return Err(raised(GONE)),
            Err(RecvTimeoutError::Timeout) => {
                if let Err(signal) = Python::attach(|py| py.check_signals()) {
                    cancel.cancel();
                    return Err(signal);
                }
            }
        }
    }
}

/// Locks, whatever another thread has left behind.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
