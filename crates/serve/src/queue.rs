//! Texts that wait for the engine.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sws::{Continuation, Generated, Piece, Progress, Rank};
use tokio::sync::mpsc::Sender;

use crate::cost::Spent;
use crate::failure::Failure;
use crate::requests::Entry;

/// A text for the engine.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) text: Continuation,
    /// Its number among the texts of its request.
    pub(crate) number: usize,
    pub(crate) events: Sender<(usize, Happened)>,
    /// Time at which it was queued.
    pub(crate) queued: Duration,
    /// The request.
    pub(crate) entry: Arc<Entry>,
}

/// What has happened to a text.
#[derive(Debug)]
pub(crate) enum Happened {
    /// It has a sequence, which holds so many of its tokens.
    Began(usize),
    /// A part of its prompt was computed.
    Prompt(Progress),
    /// Tokens of its prompt have these probabilities.
    Ranked(Vec<Rank>),
    /// It is what the same text had come to before.
    Again(Vec<Piece>),
    /// It is longer.
    Piece(Piece, Option<Rank>),
    /// It is over.
    Ended(Box<Result<Made, Failure>>),
}

impl Happened {
    /// The end of a text that has failed.
    pub(crate) fn failed(failure: Failure) -> Happened {
        Happened::Ended(Box::new(Err(failure)))
    }
}

/// A text that is over.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) made: Generated,
    pub(crate) times: Times,
    pub(crate) spent: Spent,
}

/// Times of a text.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    /// Time before it had a sequence.
    pub(crate) queue: Duration,
    /// Time of the prompt.
    pub(crate) prompt: Duration,
    /// Time from the first token to the last.
    pub(crate) generation: Duration,
}

/// A queue of texts, bounded by requests.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Job>,
    closed: bool,
    /// True if the engine should not wait, or wait no longer.
    woken: bool,
}

/// The next text, as far as there is one.
#[derive(Debug)]
pub(crate) enum Next {
    Job(Box<Job>),
    /// None that has room now.
    Nothing,
    /// There will be no other.
    Closed,
}

impl Queue {
    /// Adds the texts of a request, if fewer than `most` requests wait.
    pub(crate) fn push(&self, jobs: Vec<Job>, most: usize) -> Result<(), Failure> {
        let mut state = self.lock();
        if state.closed {
            return Err(Failure::unavailable("the server is about to end; try another"));
        }
        // Those whose clients have left take no place.
        state.waiting.retain(|job| !job.text.cancel.is_cancelled());
        // Each request has one text with the number 0.
        let requests = state.waiting.iter().filter(|job| job.number == 0).count();
        if requests >= most {
            return Err(Failure::busy(format!(
                "{requests} requests are waiting, and no more can; try again later"
            )));
        }
        state.waiting.extend(jobs);
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// Takes the first text, if it has room. Waits for one if asked to, unless it is [woken](Self::wake).
    pub(crate) fn next(&self, wait: bool, has_room: impl Fn(&Job) -> bool) -> Next {
        let mut state = self.lock();
        loop {
            while let Some(first) = state.waiting.front() {
                if first.text.cancel.is_cancelled() {
                    state.waiting.pop_front();
                } else if has_room(first) {
                    break;
                } else {
                    return Next::Nothing;
                }
            }
            match state.waiting.pop_front() {
                Some(job) => return Next::Job(Box::new(job)),
                None if state.closed => return Next::Closed,
                None if !wait || std::mem::take(&mut state.woken) => return Next::Nothing,
                None => {
                    let waited = self.changed.wait(state);
                    state = waited.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Ends the wait for a text, or the next one.
    pub(crate) fn wake(&self) {
        self.lock().woken = true;
        self.changed.notify_one();
    }

    /// Refuses texts from now on, and fails those that wait.
    pub(crate) fn close(&self) {
        let waiting = {
            let mut state = self.lock();
            state.closed = true;
            std::mem::take(&mut state.waiting)
        };
        self.changed.notify_all();
        for job in waiting {
            let failure = Failure::unavailable("the server is about to end; try another");
            let _ = job.events.try_send((job.number, Happened::failed(failure)));
        }
    }

    /// Drops the texts that were cancelled.
    pub(crate) fn drop_cancelled(&self) {
        self.lock().waiting.retain(|job| !job.text.cancel.is_cancelled());
    }

    /// Number of texts that wait.
    pub(crate) fn len(&self) -> usize {
        self.lock().waiting.iter().filter(|job| !job.text.cancel.is_cancelled()).count()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use sws::{Cancel, Model};
    use sws_model::text::Position;
    use tokio::sync::mpsc::{Receiver, channel};

    use super::*;
    use crate::cost::Cost;
    use crate::requests::Origin;

    fn job(number: usize, cancel: &Cancel) -> (Job, Receiver<(usize, Happened)>) {
        let (events, received) = channel(4);
        let shards = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shards/tales-moe");
        let generation = Model::open(shards).unwrap().generation(&Default::default()).unwrap();
        let text = Continuation {
            tokens: vec![1],
            generation,
            position: Position::Middle,
            bias: Vec::new(),
            constraint: None,
            ranks: None,
            prompt_ranks: false,
            witness: None,
            passing: false,
            owner: 0,
            cancel: cancel.clone(),
        };
        let (queued, cost) = (Duration::ZERO, Cost::new(None));
        let entry = Arc::new(Entry::new(Origin::default(), cancel.clone(), cost, queued, &[1]));
        (Job { text, number, events, queued, entry }, received)
    }

    #[test]
    fn a_text_whose_client_has_left_is_never_taken() {
        let queue = Queue::default();
        let (gone, here) = (Cancel::new(), Cancel::new());
        for cancel in [&gone, &here] {
            queue.push(vec![job(0, cancel).0], 2).unwrap();
        }
        let (third, _) = job(0, &here);
        assert_eq!(queue.push(vec![third], 2).unwrap_err().status.as_u16(), 429);
        gone.cancel();
        assert_eq!(queue.len(), 1);
        let Next::Job(taken) = queue.next(false, |_| true) else { panic!("a text waits") };
        assert!(!taken.text.cancel.is_cancelled());
        assert!(matches!(queue.next(false, |_| true), Next::Nothing));
    }

    #[test]
    fn a_wait_that_is_woken_ends_without_a_text() {
        let queue = Queue::default();
        queue.wake();
        assert!(matches!(queue.next(true, |_| true), Next::Nothing));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| queue.next(true, |_| true));
            queue.wake();
            assert!(matches!(waits.join().unwrap(), Next::Nothing));
        });
        let (waiting, _) = job(0, &Cancel::new());
        queue.push(vec![waiting], 1).unwrap();
        assert!(matches!(queue.next(true, |_| true), Next::Job(_)));
    }

    #[test]
    fn a_closed_queue_fails_what_waits_and_refuses_more() {
        let queue = Queue::default();
        let cancel = Cancel::new();
        let (waiting, mut events) = job(0, &cancel);
        queue.push(vec![waiting], 1).unwrap();
        queue.close();
        let Ok((0, Happened::Ended(ended))) = events.try_recv() else { panic!("it is over") };
        assert!(ended.is_err());
        assert!(matches!(queue.next(true, |_| true), Next::Closed));
        let (late, _) = job(0, &cancel);
        assert_eq!(queue.push(vec![late], 1).unwrap_err().status.as_u16(), 503);
    }
}
