//! A loaded model on a thread of its own, which does the work that Python's threads ask for.
//!
//! Functions here are called without the lock of the interpreter, and take it only for a moment, to see signals.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use pyo3::prelude::*;
use sws::{Cancel, LoadedModel};

use crate::{raised, sentence};

/// Time between two looks at signals while work is waited for.
const PATIENCE: Duration = Duration::from_millis(50);

const CLOSED: &str = "the model is closed; open it again";
const GONE: &str = "the thread of the model has failed, which is a bug: please report it, and open the model again";
const FORKED: &str =
    "the model was opened by another process, of which this one is a fork; open it again here";
const BUSY: &str = "a text of this model is not over, and a model continues one at a time; read it to its end, or close it";

/// Work of the model's thread, and the handle that cancels it.
struct ModelJob {
    cancel: Cancel,
    work: Box<dyn FnOnce(&mut LoadedModel) + Send>,
}

/// A loaded model on a thread of its own. Work is done in the order in which it is asked for.
pub(crate) struct ModelThread {
    /// `None` once the model is closed.
    jobs: Mutex<Option<Sender<ModelJob>>>,
    closing: Arc<Closing>,
    /// Disconnected once the thread has freed the model.
    freed: Mutex<Receiver<()>>,
    process: Process,
    /// The caller's thread whose steps have not ended, and their number.
    stepping: Mutex<Option<(ThreadId, u64)>>,
    /// Number of the last steps.
    last: Mutex<u64>,
}

/// A process that has threads, which its forks have not.
#[derive(Clone, Copy)]
pub(crate) struct Process(u32);

impl Process {
    fn this() -> Process {
        Process(std::process::id())
    }

    pub(crate) fn is_this(self) -> bool {
        self.0 == std::process::id()
    }

    /// Refuses a fork, which no thread would answer.
    pub(crate) fn check(self) -> PyResult<()> {
        if self.is_this() { Ok(()) } else { Err(raised(FORKED)) }
    }
}

/// The end of a model, of which its thread hears.
#[derive(Default)]
struct Closing {
    is_closing: AtomicBool,
    /// Handle of the work in progress, or of the last.
    running: Mutex<Option<Cancel>>,
}

impl Closing {
    fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }

    /// Notes work that is about to begin. Returns false if none may any more.
    fn begins(&self, cancel: &Cancel) -> bool {
        let mut running = lock(&self.running);
        *running = Some(cancel.clone());
        !self.is_closing()
    }

    /// Cancels the work in progress, and lets no other begin.
    fn close(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
        if let Some(running) = &*lock(&self.running) {
            running.cancel();
        }
    }
}

impl ModelThread {
    /// Starts the thread, which opens the model. Returns facts about it.
    pub(crate) fn start<T: Send + 'static>(
        cancel: &Cancel,
        open: impl FnOnce() -> sws::Result<LoadedModel> + Send + 'static,
        facts: impl FnOnce(&mut LoadedModel) -> sws::Result<T> + Send + 'static,
    ) -> PyResult<(ModelThread, T)> {
        let (jobs, work) = channel::<ModelJob>();
        let (reply, answer) = channel();
        let (frees, freed) = channel();
        let closing = Arc::new(Closing::default());
        let thread_closing = Arc::clone(&closing);
        let run = move || {
            // Dropped after the model.
            let _frees: Sender<()> = frees;
            let mut model = match opened(open, facts) {
                Ok((model, facts)) => {
                    let _ = reply.send(Ok(facts));
                    model
                }
                Err(error) => {
                    let _ = reply.send(Err(error.to_string()));
                    return;
                }
            };
            for ModelJob { cancel, work } in work {
                if !thread_closing.begins(&cancel) {
                    break;
                }
                work(&mut model);
            }
        };
        let thread = std::thread::Builder::new().name("sws-model".to_owned()).spawn(run);
        if let Err(e) = thread {
            return Err(raised(format!(
                "no thread can be started for the model: {e}; raise `ulimit -u`"
            )));
        }
        let facts = wait(&answer, cancel, &closing)?.map_err(raised)?;
        let worker = ModelThread {
            jobs: Mutex::new(Some(jobs)),
            closing,
            freed: Mutex::new(freed),
            process: Process::this(),
            stepping: Mutex::default(),
            last: Mutex::default(),
        };
        Ok((worker, facts))
    }

    /// The process that has the thread.
    pub(crate) fn process(&self) -> Process {
        self.process
    }

    /// Does work and waits for its result.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        cancel: &Cancel,
        work: impl FnOnce(&mut LoadedModel) -> sws::Result<T> + Send + 'static,
    ) -> PyResult<T> {
        let (reply, answer) = channel();
        let cancelled = cancel.clone();
        self.send(cancel, move |model| {
            // Nobody waits any more for what was cancelled before it began.
            if !cancelled.is_cancelled() {
                let _ = reply.send(work(model).map_err(sentence));
            }
        })?;
        match wait(&answer, cancel, &self.closing)? {
            Ok(done) => Ok(done),
            Err(_) if self.closing.is_closing() => Err(raised(CLOSED)),
            Err(sentence) => Err(raised(sentence)),
        }
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
        self.send(cancel, move |model| {
            let asked = StepRequests { asks: asked, reply, closing };
            if !cancelled.is_cancelled() {
                let last = match work(model, &asked) {
                    Ok(done) => Step::Over(done),
                    Err(error) => Step::Failed(error.to_string()),
                };
                let _ = asked.reply.send(last);
            }
        })?;
        match wait(&steps, cancel, &self.closing)? {
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

    /// Cancels work in progress, begins none of what waits, and frees the model. A signal is raised at once,
    /// and the model is then freed in the background.
    pub(crate) fn close(&self) -> PyResult<()> {
        if !self.process.is_this() {
            return Ok(());
        }
        self.begin_to_close();
        while !self.is_freed() {
            check_signals()?;
        }
        Ok(())
    }

    fn begin_to_close(&self) {
        self.closing.close();
        drop(lock(&self.jobs).take());
    }

    /// Waits a moment for the model to be freed.
    fn is_freed(&self) -> bool {
        let freed = lock(&self.freed).recv_timeout(PATIENCE);
        matches!(freed, Err(RecvTimeoutError::Disconnected))
    }

    fn send(
        &self,
        cancel: &Cancel,
        work: impl FnOnce(&mut LoadedModel) + Send + 'static,
    ) -> PyResult<()> {
        self.process.check()?;
        // The work of this thread would wait for itself.
        let this = std::thread::current().id();
        if matches!(*lock(&self.stepping), Some((thread, _)) if thread == this) {
            return Err(raised(BUSY));
        }
        let job = ModelJob { cancel: cancel.clone(), work: Box::new(work) };
        match &*lock(&self.jobs) {
            Some(jobs) => match jobs.send(job) {
                Ok(()) => Ok(()),
                Err(_) => Err(raised(GONE)),
            },
            None => Err(raised(CLOSED)),
        }
    }
}

impl Drop for ModelThread {
    /// Waits for the thread without the lock of the interpreter, which the thread takes to record logits and
    /// the caller may hold.
    fn drop(&mut self) {
        if !self.process.is_this() {
            return;
        }
        self.begin_to_close();
        let wait = || while !self.is_freed() {};
        if Python::try_attach(|py| py.detach(wait)).is_none() {
            wait();
        }
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
    closing: Arc<Closing>,
}

impl<I, O> StepRequests<I, O> {
    /// Reports that the work has begun.
    pub(crate) fn begun(&self) {
        let _ = self.reply.send(Step::Begun);
    }

    /// Waits until the next step is asked for. Returns false if none ever will be.
    pub(crate) fn is_wanted(&self) -> bool {
        while !self.closing.is_closing() {
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
        wait(&self.steps, &self.cancel, &self.worker.closing)
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
        if matches!(*stepping, Some((_, number)) if number == self.number) {
            *stepping = None;
        }
    }
}

/// Opens a model. Returns it with facts about it.
fn opened<T>(
    open: impl FnOnce() -> sws::Result<LoadedModel>,
    facts: impl FnOnce(&mut LoadedModel) -> sws::Result<T>,
) -> sws::Result<(LoadedModel, T)> {
    let mut model = open()?;
    let facts = facts(&mut model)?;
    Ok((model, facts))
}

/// Raises a signal that Python handles.
fn check_signals() -> PyResult<()> {
    Python::attach(|py| py.check_signals())
}

/// Waits for an answer. A signal that Python handles, such as that of Ctrl-C, cancels the work, and is
/// raised.
fn wait<T>(answers: &Receiver<T>, cancel: &Cancel, closing: &Closing) -> PyResult<T> {
    loop {
        match answers.recv_timeout(PATIENCE) {
            Ok(answer) => return Ok(answer),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(raised(if closing.is_closing() { CLOSED } else { GONE }));
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Err(signal) = check_signals() {
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
