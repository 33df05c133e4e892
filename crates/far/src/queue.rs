//! The queue of cells to download, and the readers that wait for them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sws_format::Clock;

use crate::FarError;

/// Time without demanded cells after which cells for later are downloaded.
const IDLE: Duration = Duration::from_secs(1);
/// Time without demanded cells after which several cells for later are downloaded at a time.
const LONG_IDLE: Duration = Duration::from_secs(5);
const AT_ONCE: usize = 4;
/// Pause in downloads for later after one has failed.
const PAUSE: Duration = Duration::from_secs(30);

/// The reason for downloading a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// A read waits for the cell.
    Demanded,
    /// The first answer needs the cell.
    Ahead,
    /// The cell may be needed later.
    Later,
}

/// The reason why a cell was not downloaded.
#[derive(Clone, Debug)]
pub(crate) enum Failed {
    /// The cache has no room.
    NoRoom,
    /// Any other failure.
    Error(Arc<FarError>),
}

/// The queue of cells to download.
#[derive(Debug)]
pub(crate) struct CellQueue {
    state: Mutex<CellQueueState>,
    /// Signalled when there is a cell to download.
    work: Condvar,
    /// Signalled when a cell was downloaded, or has failed.
    done: Condvar,
    clock: Clock,
}

#[derive(Debug, Default)]
struct CellQueueState {
    demanded: VecDeque<u32>,
    ahead: VecDeque<u32>,
    later: VecDeque<u32>,
    /// Cells that are demanded or being downloaded.
    pending: HashSet<u32>,
    failed: HashMap<u32, Failed>,
    /// Number of cells being downloaded; cells for later are counted separately.
    busy: usize,
    busy_later: usize,
    /// Time of the last download that was not for later.
    last: Duration,
    /// Time before which no cell for later is downloaded.
    later_from: Duration,
    closing: bool,
}

impl CellQueue {
    pub(crate) fn new(clock: Clock) -> CellQueue {
        let state = CellQueueState { last: clock.now(), ..CellQueueState::default() };
        CellQueue { state: Mutex::new(state), work: Condvar::new(), done: Condvar::new(), clock }
    }

    /// Demands cells.
    pub(crate) fn demand(&self, cells: impl IntoIterator<Item = u32>) {
        let mut state = self.lock();
        for cell in cells {
            if state.pending.insert(cell) {
                state.failed.remove(&cell);
                state.demanded.push_back(cell);
            }
        }
        drop(state);
        self.work.notify_all();
    }

    /// Waits until none of these cells is pending. Returns the first failure.
    pub(crate) fn wait(&self, cells: &[u32]) -> Result<(), Failed> {
        let mut state = self.lock();
        while !state.closing && cells.iter().any(|cell| state.pending.contains(cell)) {
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        for cell in cells {
            if let Some(failed) = state.failed.get(cell) {
                return Err(failed.clone());
            }
        }
        Ok(())
    }

    /// Sets the cells that the first answer needs.
    pub(crate) fn set_ahead(&self, cells: Vec<u32>) {
        self.lock().ahead = cells.into();
        self.work.notify_all();
    }

    /// Sets the cells that are downloaded while no others are requested.
    pub(crate) fn set_later(&self, cells: Vec<u32>) {
        self.lock().later = cells.into();
        self.work.notify_all();
    }

    /// Ends all waits, and closes the queue.
    pub(crate) fn close(&self) {
        self.lock().closing = true;
        self.work.notify_all();
        self.done.notify_all();
    }

    /// Waits for the next cell to download. `None` when the queue is closed.
    pub(crate) fn next(&self) -> Option<(u32, Reason)> {
        let mut state = self.lock();
        loop {
            if state.closing {
                return None;
            }
            if let Some(next) = state.take(self.clock.now()) {
                return Some(next);
            }
            state = match state.later.is_empty() {
                true => self.work.wait(state).unwrap_or_else(PoisonError::into_inner),
                false => {
                    let waited = self.work.wait_timeout(state, IDLE / 4);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Records the outcome of a cell.
    pub(crate) fn ended(&self, cell: u32, reason: Reason, outcome: Result<(), Failed>) {
        let now = self.clock.now();
        let mut state = self.lock();
        state.pending.remove(&cell);
        match reason {
            Reason::Later => state.busy_later -= 1,
            _ => (state.busy, state.last) = (state.busy - 1, now),
        }
        if let Err(failed) = outcome {
            match (reason, &failed) {
                // The other cells for later would not have room either.
                (Reason::Later, Failed::NoRoom) => state.later.clear(),
                (Reason::Later, Failed::Error(_)) => {
                    state.later_from = now.saturating_add(PAUSE);
                    state.later.push_back(cell);
                }
                _ => {}
            }
            state.failed.insert(cell, failed);
        }
        drop(state);
        self.done.notify_all();
        self.work.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, CellQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CellQueueState {
    fn take(&mut self, now: Duration) -> Option<(u32, Reason)> {
        if let Some(cell) = self.demanded.pop_front() {
            self.busy += 1;
            return Some((cell, Reason::Demanded));
        }
        while let Some(cell) = self.ahead.pop_front() {
            if self.pending.insert(cell) {
                self.failed.remove(&cell);
                self.busy += 1;
                return Some((cell, Reason::Ahead));
            }
        }
        let idle = now.saturating_sub(self.last);
        let most = if idle < LONG_IDLE { 1 } else { AT_ONCE };
        if self.busy > 0 || self.busy_later >= most || idle < IDLE || now < self.later_from {
            return None;
        }
        while let Some(cell) = self.later.pop_front() {
            if self.pending.insert(cell) {
                self.failed.remove(&cell);
                self.busy_later += 1;
                return Some((cell, Reason::Later));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demanded_cells_come_first_and_others_while_nothing_does() {
        let clock = Clock::simulated();
        let queue = CellQueue::new(clock.clone());
        queue.set_ahead(vec![1, 2, 3]);
        queue.set_later(vec![3, 4, 5]);
        queue.demand([2, 7]);
        queue.demand([7]);
        let order: Vec<_> = (0..4).filter_map(|_| queue.next()).collect();
        use Reason::{Ahead, Demanded, Later};
        assert_eq!(order, [(2, Demanded), (7, Demanded), (1, Ahead), (3, Ahead)]);
        for (cell, reason) in order {
            queue.ended(cell, reason, Ok(()));
        }
        let taken = |at: Duration| queue.lock().take(at);
        assert_eq!(taken(clock.now()), None);
        clock.sleep(IDLE);
        // The third cell is looked at again, and found to be here.
        assert_eq!(taken(clock.now()), Some((3, Later)));
        assert_eq!(taken(clock.now()), None);
        queue.ended(3, Later, Ok(()));
        clock.sleep(LONG_IDLE);
        assert_eq!(taken(clock.now()), Some((4, Later)));
        assert_eq!(taken(clock.now()), Some((5, Later)));
        let down = Arc::new(FarError::NoCache);
        queue.ended(4, Later, Err(Failed::Error(down)));
        assert_eq!(taken(clock.now()), None);
        clock.sleep(PAUSE);
        assert_eq!(taken(clock.now()), Some((4, Later)));
    }

    #[test]
    fn those_who_wait_learn_of_failures_and_may_ask_again() {
        let queue = CellQueue::new(Clock::simulated());
        queue.demand([1, 2]);
        let one = queue.next().unwrap();
        let two = queue.next().unwrap();
        queue.ended(one.0, one.1, Ok(()));
        queue.ended(two.0, two.1, Err(Failed::NoRoom));
        assert!(queue.wait(&[1]).is_ok());
        assert!(matches!(queue.wait(&[1, 2]), Err(Failed::NoRoom)));
        queue.demand([2]);
        let again = queue.next().unwrap();
        queue.ended(again.0, again.1, Ok(()));
        assert!(queue.wait(&[1, 2]).is_ok());
        queue.close();
        assert!(queue.next().is_none());
    }
}
