use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
pub(super) use signal_hook::iterator::{Handle as Closer, Signals as Source};

use super::Signal;

fn number(signal: Signal) -> i32 {
    match signal {
        Signal::Interrupt => SIGINT,
        Signal::Terminate => SIGTERM,
        Signal::HangUp => SIGHUP,
        Signal::Quit => SIGQUIT,
    }
}

pub(super) fn listen(signals: &[Signal]) -> io::Result<Source> {
    Source::new(signals.iter().map(|&signal| number(signal)))
}

pub(super) fn wait(source: &mut Source) -> Option<Signal> {
    Some(match source.forever().next()? {
        SIGINT => Signal::Interrupt,
        SIGHUP => Signal::HangUp,
        SIGQUIT => Signal::Quit,
        _ => Signal::Terminate,
    })
}

pub(super) fn set_flag(signal: Signal, flag: Arc<AtomicBool>) -> io::Result<()> {
    signal_hook::flag::register(number(signal), flag).map(drop)
}

pub(super) fn end_by(signal: Signal) {
    let _ = signal_hook::low_level::emulate_default_handler(number(signal));
}
