//! Signals that ask for an end, recorded when they arrive and handled at the next safe point.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::anyhow;
use sws::Cancel;
use sws_format::Clock;
use sws_os::process::exit_now;
use sws_os::signal::{ListenerHandle, Signal, SignalListener, set_flag};

use crate::atomic_file;
use crate::terminal::{can_draw, erase_line, note};

/// Flag that a signal sets. A second signal before the flag is reset ends the program, without
/// unfinished files, and with the terminal as it was.
pub(crate) struct Interrupt {
    asked: Arc<InterruptState>,
    signals: &'static [Signal],
}

/// What a first signal that takes a while is answered with.
const HEARD: &str = "stopping after this layer; again to stop at once";

#[derive(Default)]
struct InterruptState {
    stop: Arc<AtomicBool>,
    /// True once the first signal was noticed.
    once: Mutex<bool>,
}

/// Call that leaves the terminal as it was, before a second signal ends the program.
static BEFORE_AN_END: OnceLock<fn()> = OnceLock::new();

/// Sets what is called before a second signal ends the program.
pub(crate) fn before_an_end(restore: fn()) {
    let _ = BEFORE_AN_END.set(restore);
}

/// Exit code that a shell reports for a program ended by Ctrl-C.
pub(crate) const INTERRUPTED: u8 = 130;

/// Time after which a signal that has had no effect yet is answered.
const SOON: Duration = Duration::from_millis(300);

impl Interrupt {
    /// Listens for Ctrl-C only, for a single answer of a chat. SIGTERM while the chat waits for a
    /// message ends the program at once, as there is nothing to clean up.
    pub(crate) fn of_an_answer() -> anyhow::Result<Interrupt> {
        Interrupt::listen(&[Signal::Interrupt], Some(HEARD))
    }

    /// Listens for Ctrl-C and SIGTERM, the signal of `kill` and supervisors, for the whole program.
    pub(crate) fn of_the_program() -> anyhow::Result<Interrupt> {
        Interrupt::listen(&[Signal::Interrupt, Signal::Terminate], Some(HEARD))
    }

    /// The same for a server, which says itself how it ends, and for what watches one.
    #[cfg(feature = "serve")]
    pub(crate) fn of_a_server() -> anyhow::Result<Interrupt> {
        Interrupt::listen(&[Signal::Interrupt, Signal::Terminate], None)
    }

    fn listen(
        signals: &'static [Signal],
        answer: Option<&'static str>,
    ) -> anyhow::Result<Interrupt> {
        let asked = Arc::new(InterruptState::default());
        heed(signals, &asked, answer).map_err(unheard)?;
        Ok(Interrupt { asked, signals })
    }

    /// The signals that it listens for.
    pub(crate) fn signals(&self) -> &'static [Signal] {
        self.signals
    }

    pub(crate) fn is_requested(&self) -> bool {
        self.asked.stop.load(Ordering::SeqCst)
    }

    /// Handle that cancels a run between tokens, or a prompt at a layer, when the flag is set.
    pub(crate) fn cancel(&self) -> Cancel {
        Cancel::between_tokens(Arc::clone(&self.asked.stop))
    }

    pub(crate) fn reset(&self) {
        let mut once = self.asked.once();
        self.asked.stop.store(false, Ordering::SeqCst);
        *once = false;
    }
}

impl InterruptState {
    fn once(&self) -> MutexGuard<'_, bool> {
        self.once.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of a signal. True for the second one.
    fn is_second(&self) -> bool {
        let mut once = self.once();
        // A signal that came before the flag was reset is over.
        self.stop.load(Ordering::SeqCst) && std::mem::replace(&mut once, true)
    }
}

/// Sets the flag in the handler, at once, and lets a thread end the program.
fn heed(
    signals: &[Signal],
    asked: &Arc<InterruptState>,
    answer: Option<&'static str>,
) -> std::io::Result<()> {
    for &signal in signals {
        set_flag(signal, Arc::clone(&asked.stop))?;
    }
    let mut signals = SignalListener::new(signals)?;
    let asked = Arc::clone(asked);
    let wait = move || {
        while signals.wait().is_some() {
            if asked.is_second() {
                if let Some(restore) = BEFORE_AN_END.get() {
                    restore();
                }
                atomic_file::remove_all();
                exit_now(INTERRUPTED.into());
            }
            if let Some(answer) = answer {
                tell_if_slow(&asked, answer);
            }
        }
    };
    std::thread::Builder::new().stack_size(128 << 10).spawn(wait).map(drop)
}

/// Says that the first signal was noticed, on a terminal, where its effect is not seen soon.
fn tell_if_slow(asked: &Arc<InterruptState>, answer: &'static str) {
    if !can_draw() {
        return;
    }
    let asked = Arc::clone(asked);
    let tell = move || {
        Clock::real().sleep(SOON);
        if *asked.once() {
            note!("sws: {answer}");
        }
    };
    // Without a thread nothing is said.
    let _ = std::thread::Builder::new().stack_size(128 << 10).spawn(tell);
}

/// While it lives, Ctrl-C or SIGTERM ends the program at once, with a last word: for work that may be
/// cut at any moment, and that the same command continues.
#[derive(Debug)]
pub(crate) struct Ending(ListenerHandle);

impl Ending {
    pub(crate) fn at_a_signal(words: &'static str) -> anyhow::Result<Ending> {
        let mut signals =
            SignalListener::new(&[Signal::Interrupt, Signal::Terminate]).map_err(unheard)?;
        let handle = signals.handle();
        let wait = move || {
            if signals.wait().is_some() {
                atomic_file::remove_all();
                if can_draw() {
                    // The bar.
                    erase_line();
                }
                note!("sws: {words}");
                exit_now(INTERRUPTED.into());
            }
        };
        std::thread::Builder::new().stack_size(128 << 10).spawn(wait).map_err(unheard)?;
        Ok(Ending(handle))
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.close();
    }
}

fn unheard(error: std::io::Error) -> anyhow::Error {
    anyhow!("signals cannot be received: {error}; start the program in another way")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_signal_before_a_reset_counts() {
        let asked = InterruptState::default();
        let interrupt = Interrupt { asked: Arc::new(asked), signals: &[] };
        let signal = || {
            interrupt.asked.stop.store(true, Ordering::SeqCst);
            interrupt.asked.is_second()
        };
        assert_eq!([signal(), signal()], [false, true]);
        interrupt.reset();
        assert!(!interrupt.asked.is_second(), "noticed after the reset");
        assert!(!interrupt.is_requested());
        assert_eq!([signal(), signal(), signal()], [false, true, true]);
    }
}
