//! The threads on which connections run and requests are prepared.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::thread::Builder;

use tokio::runtime::Runtime;
use tokio::sync::oneshot;

/// Runs connections on one thread.
pub(crate) fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

type Job = Box<dyn FnOnce() + Send>;

/// The thread on which requests are tokenised, one after another. Of its own, as a runtime panics where
/// the system has no thread for it.
pub(crate) struct Preparing(Sender<Job>);

impl Preparing {
    pub(crate) fn start() -> io::Result<Preparing> {
        let (sender, jobs) = channel::<Job>();
        Builder::new().name("sws-tokens".to_owned()).spawn(move || {
            while let Ok(job) = jobs.recv() {
                // Its sender is dropped, by which the request learns of it.
                drop(catch_unwind(AssertUnwindSafe(job)));
            }
        })?;
        Ok(Preparing(sender))
    }

    /// Runs a job after all others; `None` if it panics.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (made, result) = oneshot::channel();
        // A caller that has gone takes no result. If it went before its turn, there is nothing to do.
        let job = Box::new(move || {
            if !made.is_closed() {
                drop(made.send(job()));
            }
        });
        self.0.send(job).ok()?;
        result.await.ok()
    }
}
