//! Signals that ask for an end, recorded when they arrive and handled at the next safe point.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use sws::Cancel;

/// Flag that a signal sets. A second signal before the flag is reset ends the program.
pub(crate) struct Interrupt(Arc<AtomicBool>);

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

    fn listen(signals: &[i32]) -> std::io::Result<Interrupt> {
        let stop = Arc::new(AtomicBool::new(false));
        for &signal in signals {
            // Registered in this order: the first signal finds the flag unset.
            flag::register_conditional_shutdown(signal, INTERRUPTED.into(), Arc::clone(&stop))?;
            flag::register(signal, Arc::clone(&stop))?;
        }
        Ok(Interrupt(stop))
    }

    pub(crate) fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Handle that cancels a run between tokens, or a prompt at a layer, when the flag is set.
    pub(crate) fn cancel(&self) -> Cancel {
        Cancel::between_tokens(Arc::clone(&self.0))
    }

    pub(crate) fn reset(&self) {
        self.0.store(false, Ordering::Relaxed);
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
