//! Reading: what the threads of a store share, and what each of them does.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::time::Duration;

use sws_format::ReadOp;

use crate::fetch::{FetchError, Ticket};
use crate::integrity::FileVerifier;
use crate::scheduler::{FetchQueue, ReadJob};
use crate::sync::{Condvar, Mutex, MutexGuard};

/// The parts of a store that its threads share.
pub(crate) struct StoreShared {
    pub(crate) queue: Mutex<StoreState>,
    pub(crate) work: Condvar,
    /// Signalled when a lane has begun, and when bytes have landed that a caller of
    /// [`landed`](crate::NVMeWeightStore::landed) waits for.
    pub(crate) progress: Condvar,
    pub(crate) verifier: FileVerifier,
}

/// The state of a store, locked.
pub(crate) struct StoreState {
    pub(crate) queue: FetchQueue,
    pub(crate) closing: bool,
    /// Lanes that have begun.
    pub(crate) begun: usize,
    /// Lanes that wait for work, including those being woken.
    pub(crate) idle: usize,
    /// Fetches with a caller waiting for a verified prefix: (ticket, bytes).
    pub(crate) watched: Vec<(Ticket, usize)>,
}

impl StoreShared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, StoreState> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn run_lane(&self, batch: usize) {
        {
            let mut state = self.lock();
            state.begun += 1;
            self.progress.notify_all();
        }
        while let Some(jobs) = self.wait_for_jobs(batch) {
            if !self.verifier.drives.are_several() {
                self.run(0, jobs, self.verifier.clock.now());
                continue;
            }
            for (drive, jobs) in self.placed(jobs) {
                self.run(drive, jobs, self.verifier.clock.now());
            }
        }
    }

    /// Chooses a drive for each of these reads, and as few of them as have all the files.
    fn placed(&self, jobs: Vec<ReadJob>) -> Vec<(usize, Vec<ReadJob>)> {
        let drives = &self.verifier.drives;
        let mut placed: Vec<(usize, Vec<ReadJob>)> = Vec::new();
        for job in jobs {
            match placed.iter_mut().find(|(drive, _)| drives.has(*drive, job.file)) {
                Some((drive, others)) => {
                    drives.begin(*drive, job.range.len());
                    others.push(job);
                }
                None => placed.push((drives.place(job.file, job.range.len()), vec![job])),
            }
        }
        placed
    }

    /// Waits for the next reads to perform; `None` when the store closes.
    fn wait_for_jobs(&self, batch: usize) -> Option<Vec<ReadJob>> {
        let mut state = self.lock();
        loop {
            if state.closing {
                return None;
            }
            let jobs = state.queue.take(batch, self.verifier.clock.now());
            if !jobs.is_empty() {
                return Some(jobs);
            }
            state.idle += 1;
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }

    /// Returns the next read to perform and its drive, if there is one.
    pub(crate) fn next_job(&self) -> Option<(usize, ReadJob)> {
        let job = self.lock().queue.take(1, self.verifier.clock.now()).pop()?;
        Some((self.verifier.drives.place(job.file, job.range.len()), job))
    }

    /// Performs reads that were issued to a drive at `started`, verifies their bytes and finishes the
    /// jobs.
    pub(crate) fn run(&self, drive: usize, jobs: Vec<ReadJob>, started: Duration) {
        let clock = &self.verifier.clock;
        let mut reads: Vec<ReadOp<'_>> = jobs
            .iter()
            .map(|job| ReadOp {
                file: job.file,
                offset: job.offset,
                // SAFETY: the queue holds the slot until `done` was called for every job of the
                // transfer, and hands out every range once.
                into: unsafe { job.transfer.memory.slice_mut(job.range.clone()) },
                result: Ok(0),
            })
            .collect();
        // A reader may be a caller's own. If it panics, whoever waits for the reads must learn of it.
        let drives = &self.verifier.drives;
        let read = AssertUnwindSafe(|| drives.read(drive, &mut reads, |read| jobs[read].present));
        let has_read = catch_unwind(read).is_ok();
        let panicked = || std::io::Error::other("the reader panicked");
        let results: Vec<_> = reads
            .into_iter()
            .map(|read| if has_read { read.result } else { Err(panicked()) })
            .collect();
        let now = clock.now();
        let next = {
            let mut state = self.lock();
            for job in &jobs {
                state.queue.off_device(job.priority, started, now);
            }
            state.idle > 0 && state.queue.waits()
        };
        if next {
            // The next chunk can be read while this one is being hashed.
            self.work.notify_one();
        }
        for (job, result) in jobs.into_iter().zip(results) {
            let result = self.judge(&job, result).and_then(|()| {
                // SAFETY: the slot is held (as above), the range has just been filled, and no other
                // job has it.
                unsafe { job.transfer.land(job.range.clone(), &self.verifier) }
            });
            let ticket = job.ticket;
            drop(job);
            let mut state = self.lock();
            state.queue.done(ticket, result, clock.now());
            if state.has_landed(ticket) {
                self.progress.notify_all();
            }
        }
    }

    /// Checks the result of a read, which may be short only at the end of its file.
    fn judge(&self, job: &ReadJob, result: std::io::Result<usize>) -> Result<(), FetchError> {
        let piece = job.transfer.layout.read().piece();
        match result {
            Ok(got) if got >= job.present => Ok(()),
            Ok(got) => Err(FetchError::Short {
                piece,
                file: self.verifier.path(job.file),
                offset: job.offset,
                wanted: job.present,
                got,
            }),
            Err(source) => {
                Err(FetchError::Read { piece, file: self.verifier.path(job.file), source })
            }
        }
    }
}

impl StoreState {
    /// True if a waiter for the prefix of a fetch should check again.
    fn has_landed(&self, ticket: Ticket) -> bool {
        let mut watched = self.watched.iter();
        watched.any(|&(other, len)| other == ticket && self.queue.has_landed(ticket, len))
    }
}
