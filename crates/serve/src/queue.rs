//! The queue of texts that wait for the worker.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sws::{BatchRequest, Generated, Piece, Progress, Rank};
use tokio::sync::mpsc::Sender;

use crate::config::ServerLimits;
use crate::cost::Spent;
use crate::engine::KeepTime;
use crate::failure::Failure;
use crate::requests::RequestEntry;

/// A text that waits for the worker.
#[derive(Debug)]
pub(crate) struct QueuedText {
    /// Number of the model.
    pub(crate) model: usize,
    pub(crate) text: BatchRequest,
    /// Number of the text among those of its request.
    pub(crate) number: usize,
    pub(crate) events: Sender<(usize, Happened)>,
    /// Time at which the text was queued.
    pub(crate) queued: Duration,
    /// The request of the text.
    pub(crate) entry: Arc<RequestEntry>,
    /// How long its model is kept from then on, if the request says so.
    pub(crate) keep: Option<KeepTime>,
}

/// An event of a text, for its response.
#[derive(Debug)]
pub(crate) enum Happened {
    /// The text has a sequence.
    Began,
    /// So many tokens of the text need no computing.
    Known(usize),
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
    /// The model that a client asked to be loaded, without a text.
    preloaded: Option<WantedModel>,
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
    /// Only other models are needed, or their texts come first.
    Others,
    /// The time to wait is over.
    Late,
    /// The queue is closed and empty.
    Closed,
}

/// The loaded model, as the queue knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelTurn {
    /// Number of the model.
    pub(crate) model: usize,
    /// True once texts of other models come first, if they have waited longer.
    pub(crate) is_over: bool,
}

/// A model that is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WantedModel {
    /// Number of the model.
    pub(crate) model: usize,
    /// How long it is kept from its loading on, if a client said so without a text. A text brings its
    /// own time along.
    pub(crate) keep: Option<KeepTime>,
}

/// The time to wait for a text.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TextWait {
    No,
    Forever,
    For(Duration),
}

impl TextQueueState {
    /// Place of the next text of a model, unless texts of others come first.
    fn next_of(&self, turn: ModelTurn) -> Option<usize> {
        let at = self.waiting.iter().position(|job| job.model == turn.model)?;
        // Texts are in the order in which they came.
        (at == 0 || !turn.is_over).then_some(at)
    }

    fn drop_cancelled(&mut self) {
        self.waiting.retain(|job| !job.text.cancel.is_cancelled());
    }
}

/// Bytes of a text that waits, most of which are tokens, stop strings and biases.
pub(crate) fn text_bytes(text: &BatchRequest) -> usize {
    let stops: usize = text.generation.stop_strings.iter().map(String::len).sum();
    size_of::<QueuedText>() + size_of_val(&text.tokens[..]) + stops + size_of_val(&text.bias[..])
}

/// Refuses a request whose texts take so many bytes, unless they may wait.
pub(crate) fn check_bytes(bytes: usize, limits: &ServerLimits) -> Result<(), Failure> {
    let most = limits.waiting();
    if bytes <= most {
        return Ok(());
    }
    Err(Failure::invalid(format!(
        "the texts of this request take {bytes} bytes of memory, and may take {most}; ask for fewer in one request"
    )))
}

impl TextQueue {
    /// Adds the texts of a request, if fewer than [`ServerLimits::queue`] requests wait, and their texts
    /// leave room.
    pub(crate) fn push(&self, jobs: Vec<QueuedText>, limits: &ServerLimits) -> Result<(), Failure> {
        let mut state = self.lock();
        if state.closed {
            return Err(Failure::unavailable("the server is about to end; try another"));
        }
        // Texts whose clients have left do not count.
        state.drop_cancelled();
        // Every request has exactly one text with the number 0.
        let requests = state.waiting.iter().filter(|job| job.number == 0).count();
        let bytes: usize = state.waiting.iter().chain(&jobs).map(|job| text_bytes(&job.text)).sum();
        if requests >= limits.queue || (!state.waiting.is_empty() && bytes > limits.waiting()) {
            return Err(Failure::busy(format!(
                "{requests} requests are waiting, and this one cannot, too; try again later"
            )));
        }
        state.waiting.extend(jobs);
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// Takes the first text of a model, if it has room. Waits for a text as long as `wait` says,
    /// unless [woken](Self::wake).
    pub(crate) fn next(
        &self,
        turn: ModelTurn,
        wait: TextWait,
        has_room: impl Fn(&QueuedText) -> bool,
    ) -> NextText {
        let mut state = self.lock();
        loop {
            state.drop_cancelled();
            if let Some(at) = state.next_of(turn) {
                if !has_room(&state.waiting[at]) {
                    return NextText::Nothing;
                }
                return match state.waiting.remove(at) {
                    Some(job) => NextText::Job(Box::new(job)),
                    None => NextText::Nothing,
                };
            }
            state.preloaded = state.preloaded.filter(|wanted| wanted.model != turn.model);
            if !state.waiting.is_empty() || state.preloaded.is_some() {
                return NextText::Others;
            }
            if state.closed {
                return NextText::Closed;
            }
            if std::mem::take(&mut state.woken) {
                return NextText::Nothing;
            }
            state = match wait {
                TextWait::No => return NextText::Nothing,
                TextWait::For(Duration::ZERO) => return NextText::Late,
                TextWait::Forever => {
                    self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
                }
                TextWait::For(time) => {
                    let waited = self.changed.wait_timeout(state, time);
                    let (state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
                    if waited.timed_out() && state.waiting.is_empty() && !state.closed {
                        return NextText::Late;
                    }
                    state
                }
            };
        }
    }

    /// Waits until a model is needed: that of the text that has waited longest. `None` if the queue is
    /// closed.
    pub(crate) fn wanted(&self) -> Option<WantedModel> {
        let mut state = self.lock();
        loop {
            state.drop_cancelled();
            if let Some(first) = state.waiting.front() {
                let model = first.model;
                let asked = state.preloaded.filter(|wanted| wanted.model == model);
                return Some(WantedModel { model, keep: asked.and_then(|wanted| wanted.keep) });
            }
            if let Some(wanted) = state.preloaded.take() {
                return Some(wanted);
            }
            if state.closed {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Asks for a model to be loaded once no text needs another.
    pub(crate) fn preload(&self, wanted: WantedModel) {
        let mut state = self.lock();
        state.preloaded = Some(wanted);
        // The time for which the loaded model is kept may have changed.
        state.woken = true;
        drop(state);
        self.changed.notify_one();
    }

    /// Takes back that a model is to be loaded, and wakes the worker, which may close it.
    pub(crate) fn unload(&self, model: usize) {
        let mut state = self.lock();
        state.preloaded = state.preloaded.filter(|wanted| wanted.model != model);
        state.woken = true;
        drop(state);
        self.changed.notify_one();
    }

    /// Fails the texts that wait for a model.
    pub(crate) fn fail(&self, model: usize, failure: &Failure) {
        let failed: VecDeque<QueuedText> = {
            let mut state = self.lock();
            let waiting = std::mem::take(&mut state.waiting);
            let (failed, others) = waiting.into_iter().partition(|job| job.model == model);
            state.waiting = others;
            failed
        };
        for job in failed {
            let _ = job.events.try_send((job.number, Happened::failed(failure.clone())));
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
        self.lock().drop_cancelled();
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

    /// The turn of the only model.
    const TURN: ModelTurn = ModelTurn { model: 0, is_over: true };

    fn limits(queue: usize) -> ServerLimits {
        ServerLimits { queue, ..ServerLimits::default() }
    }

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
        let cost = RequestCost::default();
        let entry = Arc::new(RequestEntry::new(
            RequestOrigin::default(),
            cancel.clone(),
            cost,
            queued,
            &[1],
        ));
        (QueuedText { model: 0, text, number, events, queued, entry, keep: None }, received)
    }

    #[test]
    fn a_text_whose_client_has_left_is_never_taken() {
        let queue = TextQueue::default();
        let gone = Cancel::new();
        let here = Cancel::new();
        for cancel in [&gone, &here] {
            queue.push(vec![job(0, cancel).0], &limits(2)).unwrap();
        }
        let (third, _) = job(0, &here);
        assert_eq!(queue.push(vec![third], &limits(2)).unwrap_err().status.as_u16(), 429);
        gone.cancel();
        assert_eq!(queue.len(), 1);
        let NextText::Job(taken) = queue.next(TURN, TextWait::No, |_| true) else {
            panic!("a text waits")
        };
        assert!(!taken.text.cancel.is_cancelled());
        assert!(matches!(queue.next(TURN, TextWait::No, |_| true), NextText::Nothing));
    }

    #[test]
    fn texts_wait_as_far_as_they_leave_room() {
        let queue = TextQueue::default();
        let here = Cancel::new();
        let large = |number| {
            let (mut job, _) = job(number, &here);
            job.text.tokens = vec![1; 300_000];
            job
        };
        let take = || match queue.next(TURN, TextWait::No, |_| true) {
            NextText::Job(job) => job.number,
            other => panic!("no text waits: {other:?}"),
        };
        // What comes alone may always wait, however long.
        let limits = ServerLimits { body: 2 << 20, ..limits(9) };
        queue.push(vec![large(0), large(1)], &limits).unwrap();
        assert_eq!(queue.push(vec![large(0)], &limits).unwrap_err().status.as_u16(), 429);
        // The second text of a request that has begun counts.
        assert_eq!(take(), 0);
        assert_eq!(queue.push(vec![large(0)], &limits).unwrap_err().status.as_u16(), 429);
        queue.push(vec![job(0, &here).0], &limits).unwrap();
        assert_eq!(take(), 1);
        queue.push(vec![large(0)], &limits).unwrap();
    }

    #[test]
    fn a_wait_that_is_woken_ends_without_a_text() {
        let queue = TextQueue::default();
        queue.wake();
        assert!(matches!(queue.next(TURN, TextWait::Forever, |_| true), NextText::Nothing));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| queue.next(TURN, TextWait::Forever, |_| true));
            queue.wake();
            assert!(matches!(waits.join().unwrap(), NextText::Nothing));
        });
        let (waiting, _) = job(0, &Cancel::new());
        queue.push(vec![waiting], &limits(1)).unwrap();
        assert!(matches!(queue.next(TURN, TextWait::Forever, |_| true), NextText::Job(_)));
    }

    #[test]
    fn a_closed_queue_fails_what_waits_and_refuses_more() {
        let queue = TextQueue::default();
        let cancel = Cancel::new();
        let (waiting, mut events) = job(0, &cancel);
        queue.push(vec![waiting], &limits(1)).unwrap();
        queue.close();
        let Ok((0, Happened::Ended(ended))) = events.try_recv() else { panic!("it is over") };
        assert!(ended.is_err());
        assert!(matches!(queue.next(TURN, TextWait::Forever, |_| true), NextText::Closed));
        let (late, _) = job(0, &cancel);
        assert_eq!(queue.push(vec![late], &limits(1)).unwrap_err().status.as_u16(), 503);
    }

    #[test]
    fn texts_of_other_models_come_first_once_a_turn_is_over() {
        let queue = TextQueue::default();
        let cancel = Cancel::new();
        let mut events = Vec::new();
        for model in [0, 1, 0, 1] {
            let (job, received) = job(0, &cancel);
            queue.push(vec![QueuedText { model, ..job }], &limits(9)).unwrap();
            events.push(received);
        }
        let next =
            |model, is_over| match queue.next(ModelTurn { model, is_over }, TextWait::No, |_| true)
            {
                NextText::Job(job) => format!("{}", job.model),
                other => format!("{other:?}"),
            };
        // Model and end of its turn, and what is next.
        for (model, is_over, expected) in [
            (0, true, "0"),
            (0, true, "Others"),
            (0, false, "0"),
            (0, false, "Others"),
            (2, true, "Others"),
            (1, true, "1"),
        ] {
            assert_eq!(next(model, is_over), expected, "{model}");
        }
        let wanted = |model, keep| WantedModel { model, keep };
        assert_eq!(queue.wanted(), Some(wanted(1, None)));
        queue.fail(0, &Failure::server("not this one"));
        queue.fail(1, &Failure::server("it is damaged"));
        assert!(matches!(events[3].try_recv(), Ok((0, Happened::Ended(ended))) if ended.is_err()));
        assert_eq!(next(1, true), "Nothing");
        let asked = wanted(1, Some(Some(Duration::from_secs(5))));
        queue.preload(asked);
        assert_eq!((next(0, false), queue.wanted()), ("Others".to_owned(), Some(asked)));
        queue.preload(asked);
        queue.unload(0);
        assert_eq!(next(0, false), "Others");
        queue.unload(1);
        assert_eq!(next(0, false), "Nothing");
        // A text does not lose the time of its model.
        let (text, _events) = job(0, &cancel);
        queue.push(vec![QueuedText { model: 1, ..text }], &limits(9)).unwrap();
        queue.preload(asked);
        assert_eq!((queue.wanted(), next(1, false)), (Some(asked), "1".to_owned()));
        queue.preload(asked);
        assert_eq!(next(1, false), "Nothing");
        let turn = ModelTurn { model: 1, is_over: false };
        let late = queue.next(turn, TextWait::For(Duration::ZERO), |_| true);
        assert!(matches!(late, NextText::Late));
    }
}
