//! Terminals: their size and settings.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

use std::io;

#[cfg(unix)]
use unix as system;
#[cfg(windows)]
use windows as system;

/// One of the standard streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StdStream {
    /// Standard input.
    In,
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Columns and lines of a terminal; `None` if the stream is none, or it does not tell.
pub fn size(of: StdStream) -> Option<(u16, u16)> {
    system::size(of).filter(|&(columns, lines)| columns > 0 && lines > 0)
}

/// Columns of a terminal; `None` if the stream is none, or it does not tell.
pub fn columns(of: StdStream) -> Option<u16> {
    match system::size(of) {
        Some((columns, _)) if columns > 0 => Some(columns),
        _ => None,
    }
}

/// Settings of a terminal.
#[derive(Clone, Debug)]
pub struct TerminalSettings(system::Mode);

impl TerminalSettings {
    /// The present settings.
    pub fn of(stream: StdStream) -> io::Result<TerminalSettings> {
        system::settings(stream).map(TerminalSettings)
    }

    /// These settings, but keys are not shown, and none stops the program or its output. Ctrl-C is still a
    /// signal.
    #[must_use]
    pub fn quiet(&self) -> TerminalSettings {
        TerminalSettings(system::quiet(&self.0))
    }

    /// Gives a terminal these settings.
    pub fn set(&self, stream: StdStream) -> io::Result<()> {
        system::set(stream, &self.0)
    }
}

/// True if another group of processes has the terminal. One that changes the terminal would be stopped.
pub fn is_background(stream: StdStream) -> bool {
    system::is_background(stream)
}

/// Makes the terminal obey escape sequences and take UTF-8, where it has to be asked.
pub fn prepare() {
    system::prepare();
}
