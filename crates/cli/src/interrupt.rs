//! Ctrl-C, and being told to end: heard, and heeded when it suits.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use sws_store::{ReadOp, ShardReader};

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

    /// A reader that reads no more once an end was asked for, until [`Opening::is_over`]: what is read
    /// while a model is opened may be most of its weights, and nothing in between looks at this.
    pub(crate) fn while_opening(&self, reader: Arc<dyn ShardReader>) -> Arc<Opening> {
        Arc::new(Opening { reader, asked: Arc::clone(&self.0), over: AtomicBool::new(false) })
    }

    pub(crate) fn heeded(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// See [`Interrupt::while_opening`].
pub(crate) struct Opening {
    reader: Arc<dyn ShardReader>,
    asked: Arc<AtomicBool>,
    over: AtomicBool,
}

impl Opening {
    /// The model is open. An end is heeded between tokens from now on.
    pub(crate) fn is_over(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    fn go_on(&self) -> io::Result<()> {
        match self.asked.load(Ordering::Relaxed) && !self.over.load(Ordering::Relaxed) {
            true => Err(interrupted()),
            false => Ok(()),
        }
    }
}

fn interrupted() -> io::Error {
    io::Error::other("interrupted")
}

impl ShardReader for Opening {
    fn name(&self) -> &'static str {
        self.reader.name()
    }

    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.go_on()?;
        self.reader.read_at(file, offset, into)
    }

    fn reread_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.go_on()?;
        self.reader.reread_at(file, offset, into)
    }

    fn batch(&self) -> usize {
        self.reader.batch()
    }

    fn read_batch(&self, reads: &mut [ReadOp<'_>]) {
        if self.go_on().is_ok() {
            return self.reader.read_batch(reads);
        }
        for read in reads {
            read.result = Err(interrupted());
        }
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

#[cfg(test)]
mod tests {
    use sws_store::MemoryReader;

    use super::*;

    #[test]
    fn nothing_is_read_for_a_model_that_is_no_longer_wanted() {
        let interrupt = Interrupt(Arc::default());
        let opening = interrupt.while_opening(Arc::new(MemoryReader::new(vec![vec![7; 4096]])));
        let reads = || {
            let (mut one, mut other) = ([0; 4096], [0; 4096]);
            let alone = opening.read_at(0, 0, &mut one).is_ok();
            let mut batch = [ReadOp { file: 0, offset: 0, into: &mut other, result: Ok(0) }];
            opening.read_batch(&mut batch);
            let again = opening.reread_at(0, 0, &mut one).is_ok();
            (alone, again, matches!(batch[0].result, Ok(4096)))
        };
        assert_eq!(reads(), (true, true, true));
        interrupt.0.store(true, Ordering::Relaxed);
        assert_eq!(reads(), (false, false, false));
        opening.is_over();
        assert_eq!(reads(), (true, true, true));
    }
}
