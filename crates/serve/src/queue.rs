//! The queue of texts that wait for the worker.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sws::{BatchRequest, Generated, Piece, Progress, Rank};
use tokio::sync::mpsc::Sender;

use crate::cost::Spent;
use crate::failure::Failure;
use crate::requests::RequestEntry;

/// A text that waits for the worker.
#[derive(Debug)]
pub(crate) struct QueuedText {
    pub(crate) text: BatchRequest,
    /// Number of the text among those of its request.
    pub(crate) number: usize,
    pub(crate) events: Sender<(usize, Happened)>,
    /// Time at which the text was queued.
    pub(crate) queued: Duration,
    /// The request of the text.
    pub(crate) entry: Arc<RequestEntry>,
}

/// An event of a text, for its response.
#[derive(Debug)]
pub(crate) enum Happened {
    /// The text has a sequence, which holds this many of its tokens.
    Began(usize),
    /// A part of the prompt was computed.
    Prompt(Progress),
    /// Probabilities of tokens of the prompt.
    Ranked(Vec<Rank>),
    /// The vector of the text.
    Pooled(Vec<f32>),
    /// An identical earlier text is resumed, with these pieces.
    Resumed(Vec<Piece>),
    /// The text has a new piece.
    Piece(Piece, Option<Rank>),
    /// The text has ended.
    Ended(Box<Result<Made, Failure>>),
}

impl Happened {
    /// The end of a text that has failed.
    pub(crate) fn failed(failure: Failure) -> Happened {
        Happened::Ended(Box::new(Err(failure)))
    }
}

/// A text that has ended.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) made: Generated,
    pub(crate) times: TextTimes,
    pub(crate) spent: Spent,
}

/// Times of a text.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TextTimes {
    /// Time until the text had a sequence.
    pub(crate) queue: Duration,
    /// Time of computing the prompt.
    pub(crate) prompt: Duration,
    /// Time from the first token to the last.
    pub(crate) generation: Duration,
}

/// A queue of texts, bounded by requests.
#[derive(Debug, Default)]
pub(crate) struct TextQueue {
    state: Mutex<TextQueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct TextQueueState {
    waiting: VecDeque<QueuedText>,
    closed: bool,
    /// True if the worker should stop waiting, or not begin to wait.
    woken: bool,
}

/// The next text of the queue, if any.
#[derive(Debug)]
pub(crate) enum NextText {
    Job(Box<QueuedText>),
    /// No waiting text has room now.
    Nothing,
    /// The queue is closed and empty.
    Closed,
}

impl TextQueue {
    /// Adds the texts of a request, if fewer than `most` requests wait.
    pub(crate) fn push(&self, jobs: Vec<QueuedText>, most: usize) -> Result<(), Failure> {
        let mut state = self.lock();
        if state.closed {
            return Err(Failure::unavailable("the server is about to end; try another"));
        }
        // Texts whose clients have left do not count.
        state.waiting.retain(|job| !job.text.cancel.is_cancelled());
        // Every request has exactly one text with the number 0.
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

    /// Takes the first text, if it has room. With `wait`, waits for a text unless
    /// [woken](Self::wake).
    pub(crate) fn next(&self, wait: bool, has_room: impl Fn(&QueuedText) -> bool) -> NextText {
        let mut state = self.lock();
        loop {
            while let Some(first) = state.waiting.front() {
                if first.text.cancel.is_cancelled() {
                    state.waiting.pop_front();
                } else if has_room(first) {
                    break;
                } else {
                    return NextText::Nothing;
                }
            }
            match state.waiting.pop_front() {
                Some(job) => return NextText::Job(Box::new(job)),
                None if state.closed => return NextText::Closed,
                None if !wait || std::mem::take(&mut state.woken) => return NextText::Nothing,
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

    /// Refuses new texts, and fails those that wait.
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

    fn lock(&self) -> MutexGuard<'_, TextQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use sws::{Cancel, Model};
    use sws_text::Position;
    use tokio::sync::mpsc::{Receiver, channel};

    use super::*;
    use crate::cost::RequestCost;
    use crate::requests::RequestOrigin;

    fn job(number: usize, cancel: &Cancel) -> (QueuedText, Receiver<(usize, Happened)>) {
        let (events, received) = channel(4);
        let shards = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shards/tales-moe");
        let generation = Model::open(shards).unwrap().generation(&Default::default()).unwrap();
        let text = BatchRequest {
            tokens: vec![1],
            generation,
            position: Position::Middle,
            bias: Vec::new(),
            constraint: None,
            ranks: None,
            prompt_ranks: false,
            pooling: None,
            witness: None,
            short_lived: false,
            owner: 0,
            cancel: cancel.clone(),
        };
        let queued = Duration::ZERO;
        let cost = RequestCost::new(None);
        let entry = Arc::new(RequestEntry::new(
            RequestOrigin::default(),
            cancel.clone(),
            cost,
            queued,
            &[1],
        ));
        (QueuedText { text, number, events, queued, entry }, received)
    }

    #[test]
    fn a_text_whose_client_has_left_is_never_taken() {
        let queue = TextQueue::default();
        let gone = Cancel::new();
        let here = Cancel::new();
        for cancel in [&gone, &here] {
            queue.push(vec![job(0, cancel).0], 2).unwrap();
        }
        let (third, _) = job(0, &here);
        assert_eq!(queue.push(vec![third], 2).unwrap_err().status.as_u16(), 429);
        gone.cancel();
        assert_eq!(queue.len(), 1);
        let NextText::Job(taken) = queue.next(false, |_| true) else { panic!("a text waits") };
        assert!(!taken.text.cancel.is_cancelled());
        assert!(matches!(queue.next(false, |_| true), NextText::Nothing));
    }

    #[test]
    fn a_wait_that_is_woken_ends_without_a_text() {
        let queue = TextQueue::default();
        queue.wake();
        assert!(matches!(queue.next(true, |_| true), NextText::Nothing));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| queue.next(true, |_| true));
            queue.wake();
            assert!(matches!(waits.join().unwrap(), NextText::Nothing));
        });
        let (waiting, _) = job(0, &Cancel::new());
        queue.push(vec![waiting], 1).unwrap();
        assert!(matches!(queue.next(true, |_| true), NextText::Job(_)));
    }

    #[test]
    fn a_closed_queue_fails_what_waits_and_refuses_more() {
        let queue = TextQueue::default();
        let cancel = Cancel::new();
        let (waiting, mut events) = job(0, &cancel);
        queue.push(vec![waiting], 1).unwrap();
        queue.close();
        let Ok((0, Happened::Ended(ended))) = events.try_recv() else { panic!("it is over") };
        assert!(ended.is_err());
        assert!(matches!(queue.next(true, |_| true), NextText::Closed));
        let (late, _) = job(0, &cancel);
        assert_eq!(queue.push(vec![late], 1).unwrap_err().status.as_u16(), 503);
    }
}
