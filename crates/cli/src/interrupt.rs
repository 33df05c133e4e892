//! Signals that ask for an end, recorded when they arrive and handled at the next safe point.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::unregister;
use signal_hook::{SigId, flag};
use sws::Cancel;

/// Flag that a signal sets. A second signal before the flag is reset ends the program.
pub(crate) struct Interrupt {
    stop: Arc<AtomicBool>,
    signals: &'static [i32],
    handlers: Mutex<Vec<SigId>>,
}

/// Exit code that a shell reports for a program ended by Ctrl-C.
pub(crate) const INTERRUPTED: u8 = 130;

impl Interrupt {
    /// Listens for Ctrl-C only, for a single answer of a chat. SIGTERM while the chat waits for a
    /// message ends the program at once, as there is nothing to clean up.
    pub(crate) fn of_an_answer() -> std::io::Result<Interrupt> {
        Interrupt::listen(&[SIGINT])
    }

    /// Listens for Ctrl-C and SIGTERM, the signal of `kill` and supervisors, for the whole program.
    pub(crate) fn of_the_program() -> std::io::Result<Interrupt> {
        Interrupt::listen(&[SIGINT, SIGTERM])
    }

    fn listen(signals: &'static [i32]) -> std::io::Result<Interrupt> {
        let interrupt = Interrupt { stop: Arc::default(), signals, handlers: Mutex::default() };
        interrupt.release()?;
        Ok(interrupt)
    }

    /// The signals that it listens for.
    pub(crate) fn signals(&self) -> &'static [i32] {
        self.signals
    }

    /// Leaves it to the caller to end the program at a second signal.
    pub(crate) fn hold(&self) -> std::io::Result<()> {
        self.register(false)
    }

    /// Ends the program at a second signal again.
    pub(crate) fn release(&self) -> std::io::Result<()> {
        self.register(true)
    }

    fn register(&self, ends_program: bool) -> std::io::Result<()> {
        let mut handlers = self.handlers.lock().unwrap_or_else(PoisonError::into_inner);
        for handler in handlers.drain(..) {
            unregister(handler);
        }
        for &signal in self.signals {
            let stop = || Arc::clone(&self.stop);
            if ends_program {
                // Registered in this order: the first signal finds the flag unset.
                let code = INTERRUPTED.into();
                handlers.push(flag::register_conditional_shutdown(signal, code, stop())?);
            }
            handlers.push(flag::register(signal, stop())?);
        }
        Ok(())
    }

    pub(crate) fn is_requested(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Handle that cancels a run between tokens, or a prompt at a layer, when the flag is set.
    pub(crate) fn cancel(&self) -> Cancel {
        Cancel::between_tokens(Arc::clone(&self.stop))
    }

    pub(crate) fn reset(&self) {
        self.stop.store(false, Ordering::Relaxed);
    }
}

/// Error of a command that was interrupted before it had any output.
#[derive(Debug)]
pub(crate) struct Interrupted(pub(crate) &'static str);

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "interrupted; {}", self.0)
    }
}

impl std::error::Error for Interrupted {}
