//! Ctrl-C, heard and heeded when it suits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::SIGINT;
use signal_hook::flag;

/// Whether somebody pressed Ctrl-C. A second one, before the first was heeded, ends the program.
pub(crate) struct Interrupt(Arc<AtomicBool>);

/// What a shell reports of a program that Ctrl-C ended.
pub(crate) const INTERRUPTED: u8 = 130;

impl Interrupt {
    pub(crate) fn listen() -> std::io::Result<Interrupt> {
        let asked = Arc::new(AtomicBool::new(false));
        // In this order: the first signal finds the flag unset.
        flag::register_conditional_shutdown(SIGINT, i32::from(INTERRUPTED), Arc::clone(&asked))?;
        flag::register(SIGINT, Arc::clone(&asked))?;
        Ok(Interrupt(asked))
    }

    pub(crate) fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
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
