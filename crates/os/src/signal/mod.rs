//! Signals that ask a program to end.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

#[cfg(unix)]
use unix as system;
#[cfg(windows)]
use windows as system;

/// A signal that asks for an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Ctrl-C.
    Interrupt,
    /// That of `kill` and of supervisors; on Windows the end of the system.
    Terminate,
    /// The terminal was closed.
    HangUp,
    /// Ctrl-\; on Windows Ctrl-Break.
    Quit,
}

/// Signals that are waited for, instead of ending the program.
#[derive(Debug)]
pub struct SignalListener(system::Source);

/// Ends the waiting of a [`SignalListener`].
#[derive(Debug)]
pub struct ListenerHandle(system::Closer);

impl SignalListener {
    /// From now on these signals do not end the program.
    pub fn new(signals: &[Signal]) -> io::Result<SignalListener> {
        system::listen(signals).map(SignalListener)
    }

    /// What ends the waiting.
    pub fn handle(&self) -> ListenerHandle {
        ListenerHandle(self.0.handle())
    }

    /// Waits for the next signal. `None` once the handle was closed.
    pub fn wait(&mut self) -> Option<Signal> {
        system::wait(&mut self.0)
    }
}

impl ListenerHandle {
    /// Ends the waiting.
    pub fn close(&self) {
        self.0.close();
    }
}

/// Sets a flag when a signal arrives, at once. The signal does not end the program any more.
pub fn set_flag(signal: Signal, flag: Arc<AtomicBool>) -> io::Result<()> {
    system::set_flag(signal, flag)
}

/// Ends the program as a signal that nothing heeds would.
pub fn end_by(signal: Signal) {
    system::end_by(signal);
}
