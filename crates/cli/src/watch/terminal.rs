//! The terminal under a screen: covered, and given back whatever ends the run.

use std::io::Write;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::bail;
use rustix::process::getpgrp;
use rustix::termios::{
    InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp,
    tcgetwinsize, tcsetattr,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use sws_format::Clock;

use crate::atomic_file::remove_all;
use crate::interrupt::Interrupt;
use crate::terminal::{can_draw, hold, release};

/// Switches to a screen of its own, without a cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
const LEAVE: &str = "\x1b[0m\x1b[?25h\x1b[?1049l";

/// Settings of the terminal before it was covered; `None` while it is not.
static COVERED: Mutex<Option<Termios>> = Mutex::new(None);
/// Set once signals are watched.
static WATCHED: OnceLock<()> = OnceLock::new();

fn covered() -> MutexGuard<'static, Option<Termios>> {
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
        let before = tcgetattr(std::io::stderr())?;
        let mut quiet = before.clone();
        // Keys are not shown, and none stops the program or its output; Ctrl-C is still a signal.
        quiet.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON);
        quiet.input_modes.remove(InputModes::IXON);
        quiet.special_codes[SpecialCodeIndex::VSUSP] = 0;
        let mut covered = covered();
        tcsetattr(std::io::stderr(), OptionalActions::Now, &quiet)?;
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
        let mut err = std::io::stderr().lock();
        let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
    }
}

/// Columns and lines of the terminal.
pub(super) fn size() -> (u16, u16) {
    let size = tcgetwinsize(std::io::stderr()).map(|size| (size.ws_col, size.ws_row));
    size.ok().filter(|&(columns, lines)| columns > 0 && lines > 0).unwrap_or((80, 24))
}

/// Gives the terminal back, if it is covered.
pub(crate) fn restore() {
    let mut covered = covered();
    let Some(before) = covered.take() else { return };
    // A background process that changes the terminal would be stopped.
    if !tcgetpgrp(std::io::stderr()).is_ok_and(|group| group != getpgrp()) {
        let _ = tcsetattr(std::io::stderr(), OptionalActions::Now, &before);
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
    let others = [SIGINT, SIGTERM, SIGHUP, SIGQUIT];
    let others = others.iter().filter(|signal| !interrupt.signals().contains(signal));
    let mut signals = Signals::new(others)?;
    let wait = move || {
        for signal in signals.forever() {
            if covered().is_none() {
                // An editor of lines has its own handler, which comes first.
                Clock::real().sleep(Duration::from_millis(200));
            }
            restore();
            remove_all();
            let _ = emulate_default_handler(signal);
        }
    };
    std::thread::Builder::new().stack_size(256 << 10).spawn(wait).map(drop)
}
