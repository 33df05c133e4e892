//! Events of the console, which arrive on a thread of their own.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use windows_sys::Win32::Foundation::{FALSE, TRUE};
use windows_sys::Win32::System::Console::{
    CTRL_BREAK_EVENT, CTRL_C_EVENT, CTRL_CLOSE_EVENT, SetConsoleCtrlHandler,
};
use windows_sys::core::BOOL;

use super::Signal;

/// Exit code of a program that Ctrl-C ended.
const INTERRUPTED: i32 = 130;

#[derive(Debug)]
pub(super) struct Source {
    arrived: Receiver<Option<Signal>>,
    closer: Closer,
}

#[derive(Clone, Debug)]
pub(super) struct Closer(Sender<Option<Signal>>);

/// What is told of an event.
enum ConsoleListener {
    Waiting(Vec<Signal>, Sender<Option<Signal>>),
    Flag(Signal, Arc<AtomicBool>),
}

static LISTENERS: Mutex<Vec<ConsoleListener>> = Mutex::new(Vec::new());

fn listeners() -> MutexGuard<'static, Vec<ConsoleListener>> {
    LISTENERS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn add(listener: ConsoleListener) -> io::Result<()> {
    static HANDLED: OnceLock<()> = OnceLock::new();
    listeners().push(listener);
    if HANDLED.set(()).is_err() {
        return Ok(());
    }
    // SAFETY: the handler is a function, which is there as long as the program.
    match unsafe { SetConsoleCtrlHandler(Some(handle), TRUE) } {
        FALSE => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

unsafe extern "system" fn handle(event: u32) -> BOOL {
    let signal = match event {
        CTRL_C_EVENT => Signal::Interrupt,
        CTRL_BREAK_EVENT => Signal::Quit,
        CTRL_CLOSE_EVENT => Signal::HangUp,
        _ => Signal::Terminate,
    };
    let mut heeded = FALSE;
    listeners().retain(|listener| match listener {
        ConsoleListener::Flag(of, flag) if *of == signal => {
            flag.store(true, Ordering::SeqCst);
            heeded = TRUE;
            true
        }
        // Fails if nothing waits any more.
        ConsoleListener::Waiting(of, sender) if of.contains(&signal) => {
            let is_there = sender.send(Some(signal)).is_ok();
            if is_there {
                heeded = TRUE;
            }
            is_there
        }
        _ => true,
    });
    if heeded == TRUE && matches!(signal, Signal::HangUp | Signal::Terminate) {
        // The system ends the program once this returns.
        #[expect(clippy::disallowed_methods, reason = "the system's own limit, of five seconds")]
        std::thread::sleep(std::time::Duration::from_secs(4));
    }
    heeded
}

pub(super) fn listen(signals: &[Signal]) -> io::Result<Source> {
    let (sender, arrived) = channel();
    add(ConsoleListener::Waiting(signals.to_vec(), sender.clone()))?;
    Ok(Source { arrived, closer: Closer(sender) })
}

pub(super) fn wait(source: &mut Source) -> Option<Signal> {
    source.arrived.recv().ok().flatten()
}

impl Source {
    pub(super) fn handle(&self) -> Closer {
        self.closer.clone()
    }
}

impl Closer {
    pub(super) fn close(&self) {
        let _ = self.0.send(None);
    }
}

pub(super) fn set_flag(signal: Signal, flag: Arc<AtomicBool>) -> io::Result<()> {
    add(ConsoleListener::Flag(signal, flag))
}

pub(super) fn end_by(_: Signal) {
    crate::process::exit_now(INTERRUPTED)
}
