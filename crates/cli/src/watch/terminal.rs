//! The terminal under a screen: covered, and given back whatever ends the run.

use std::io::Write;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::bail;
use sws_format::Clock;
use sws_os::signal::{Signal, SignalListener, end_by};
use sws_os::terminal::{self, StdStream, TerminalSettings};

use crate::atomic_file::remove_all;
use crate::interrupt::Interrupt;
use crate::terminal::{can_draw, draw, hold, release};

/// Switches to a screen of its own, without a cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
const LEAVE: &str = "\x1b[0m\x1b[?25h\x1b[?1049l";

/// TerminalSettings of the terminal before it was covered; `None` while it is not.
static COVERED: Mutex<Option<TerminalSettings>> = Mutex::new(None);
/// Set once signals are watched.
static WATCHED: OnceLock<()> = OnceLock::new();

fn covered() -> MutexGuard<'static, Option<TerminalSettings>> {
    COVERED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// True if standard error is a terminal that can show a screen.
pub(crate) fn can_show() -> bool {
    can_draw()
}

/// Refuses a screen where standard error is no terminal that could show one.
pub(crate) fn check() -> anyhow::Result<()> {
    if !can_show() {
        bail!(
            "--watch needs a terminal on standard error; leave it out (`sws run --report FILE` writes a page)"
        );
    }
    Ok(())
}

/// A covered terminal, until this is dropped.
pub(crate) struct Cover(());

impl Cover {
    pub(crate) fn new(interrupt: &Interrupt) -> std::io::Result<Cover> {
        watch_signals(interrupt)?;
        let before = TerminalSettings::of(StdStream::Err)?;
        let mut covered = covered();
        before.quiet().set(StdStream::Err)?;
        *covered = Some(before);
        hold();
        let _ = std::io::stderr().write_all(ENTER.as_bytes());
        Ok(Cover(()))
    }
}

impl Drop for Cover {
    fn drop(&mut self) {
        restore();
    }
}

/// Writes to the screen, if the terminal is covered. Errors are ignored: the run goes on.
pub(super) fn write(text: &str) {
    // Held while writing, so that nothing is drawn on a terminal that was given back.
    let covered = covered();
    if covered.is_some() {
        draw(text);
    }
}

/// Columns and lines of the terminal.
pub(super) fn size() -> (u16, u16) {
    terminal::size(StdStream::Err).unwrap_or((80, 24))
}

/// Gives the terminal back, if it is covered.
pub(crate) fn restore() {
    let mut covered = covered();
    let Some(before) = covered.take() else { return };
    // A background process that changes the terminal would be stopped.
    if !terminal::is_background(StdStream::Err) {
        let _ = before.set(StdStream::Err);
    }
    let _ = std::io::stderr().write_all(LEAVE.as_bytes());
    release();
}

/// Gives the terminal back before a panic is reported, or a signal that nothing else heeds ends the
/// program.
fn watch_signals(interrupt: &Interrupt) -> std::io::Result<()> {
    if WATCHED.set(()).is_err() {
        return Ok(());
    }
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        restore();
        report(info);
    }));
    let mut others = vec![Signal::Interrupt, Signal::Terminate, Signal::HangUp, Signal::Quit];
    others.retain(|signal| !interrupt.signals().contains(signal));
    let mut signals = SignalListener::new(&others)?;
    let wait = move || {
        while let Some(signal) = signals.wait() {
            if covered().is_none() {
                // An editor of lines has its own handler, which comes first.
                Clock::real().sleep(Duration::from_millis(200));
            }
            restore();
            remove_all();
            end_by(signal);
        }
    };
    std::thread::Builder::new().stack_size(256 << 10).spawn(wait).map(drop)
}
