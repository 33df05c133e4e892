//! The terminal under a screen: covered, and given back whatever ends the run.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
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
use signal_hook::low_level::{emulate_default_handler, exit};
use sws_store::Clock;

use crate::atomic_file::remove_all;
use crate::interrupt::{INTERRUPTED, Interrupt};

/// Switches to a screen of its own, without a cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
const LEAVE: &str = "\x1b[0m\x1b[?25h\x1b[?1049l";

/// Settings of the terminal before it was covered; `None` while it is not.
static COVERED: Mutex<Option<Termios>> = Mutex::new(None);
/// Signals since then that ask for an end.
static ASKED: AtomicUsize = AtomicUsize::new(0);
/// Signals that an [`Interrupt`] heeds.
static HEEDED: OnceLock<&'static [i32]> = OnceLock::new();

fn covered() -> MutexGuard<'static, Option<Termios>> {
    COVERED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Refuses a screen where standard error is no terminal that could show one.
pub(crate) fn check() -> anyhow::Result<()> {
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    if !std::io::stderr().is_terminal() || is_dumb {
        bail!(
            "--watch draws on standard error, which is no terminal that could show it; leave it out (`sws run --report FILE` writes a page)"
        );
    }
    Ok(())
}

/// A covered terminal, until this is dropped.
pub(super) struct Cover<'i>(&'i Interrupt);

impl<'i> Cover<'i> {
    pub(super) fn new(interrupt: &'i Interrupt) -> std::io::Result<Cover<'i>> {
        watch_signals(interrupt)?;
        ASKED.store(0, Ordering::SeqCst);
        interrupt.hold()?;
        let cover = Cover(interrupt);
        let before = tcgetattr(std::io::stderr())?;
        let mut quiet = before.clone();
        // Keys are not shown, and none stops the program or its output; Ctrl-C is still a signal.
        quiet.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON);
        quiet.input_modes.remove(InputModes::IXON);
        quiet.special_codes[SpecialCodeIndex::VSUSP] = 0;
        let mut covered = covered();
        tcsetattr(std::io::stderr(), OptionalActions::Now, &quiet)?;
        *covered = Some(before);
        let _ = std::io::stderr().write_all(ENTER.as_bytes());
        Ok(cover)
    }
}

impl Drop for Cover<'_> {
    fn drop(&mut self) {
        restore();
        // An error would leave the first signal without its second.
        let _ = self.0.release();
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
}

/// Gives the terminal back before a panic is reported, or a signal ends the program.
fn watch_signals(interrupt: &Interrupt) -> std::io::Result<()> {
    if HEEDED.set(interrupt.signals()).is_err() {
        return Ok(());
    }
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        restore();
        report(info);
    }));
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT])?;
    let wait = move || {
        for signal in signals.forever() {
            let is_heeded = HEEDED.get().is_some_and(|heeded| heeded.contains(&signal));
            if !is_heeded {
                if covered().is_none() {
                    // An editor of lines has its own handler, which comes first.
                    Clock::real().sleep(Duration::from_millis(200));
                }
                restore();
                let _ = emulate_default_handler(signal);
            } else if covered().is_some() && ASKED.fetch_add(1, Ordering::SeqCst) > 0 {
                restore();
                remove_all();
                exit(INTERRUPTED.into());
            }
        }
    };
    std::thread::Builder::new().stack_size(256 << 10).spawn(wait).map(drop)
}
