//! Ctrl-C, and being told to end: heard, and heeded when it suits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use sws::Cancel;

/// Whether somebody asked for an end. Asking again, before that was heeded, ends the program.
pub(crate) struct Interrupt(Arc<AtomicBool>);

/// What a shell reports of a program that Ctrl-C ended.
pub(crate) const INTERRUPTED: u8 = 130;

impl Interrupt {
    /// For one answer of many: only Ctrl-C, for whoever is told to end while waiting for a question
    /// has nothing to tidy.
    pub(crate) fn of_an_answer() -> std::io::Result<Interrupt> {
        Interrupt::listen(&[SIGINT])
    }

    /// For all that the program does: Ctrl-C, and the signal by which `kill` and supervisors ask.
    pub(crate) fn of_the_program() -> std::io::Result<Interrupt> {
        Interrupt::listen(&[SIGINT, SIGTERM])
    }

    fn listen(signals: &[i32]) -> std::io::Result<Interrupt> {
        let asked = Arc::new(AtomicBool::new(false));
        for &signal in signals {
            // In this order: the first signal finds the flag unset.
            flag::register_conditional_shutdown(signal, INTERRUPTED.into(), Arc::clone(&asked))?;
            flag::register(signal, Arc::clone(&asked))?;
        }
        Ok(Interrupt(asked))
    }

    pub(crate) fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// By which what is under way ends when it suits.
    pub(crate) fn cancel(&self) -> Cancel {
        Cancel::between_passes(Arc::clone(&self.0))
    }

    pub(crate) fn heeded(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// The error of what Ctrl-C ended before there was anything to show.
#[derive(Debug)]
pub(crate) struct Interrupted(pub(crate) &'static str);

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "interrupted; {}", self.0)
    }
}

impl std::error::Error for Interrupted {}
