//! The worker's thread, which takes texts of a model from the queue and advances them together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use sws::{Batch, Cancel, Event, LoadedModel, PrefixDisk};
use sws_engine::Gauge;
use sws_engine::watch::Lap;
use sws_format::Clock;
use sws_watch::Follower;
use sws_watch::live::Passed;
use tokio::sync::mpsc::Sender;

use crate::app::App;
use crate::failure::Failure;
use crate::queue::{Happened, Made, ModelTurn, NextText, QueuedText, TextTimes, TextWait};
use crate::requests::RequestEntry;
use crate::served::Served;

/// A text with a sequence.
struct RunningText {
    number: usize,
    events: Sender<(usize, Happened)>,
    cancel: Cancel,
    /// Times at which the text was queued, got its sequence, and last had an event.
    queued: Duration,
    began: Duration,
    heard: Duration,
    /// Time of its first token.
    first: Option<Duration>,
    /// Prompt tokens that are done, and prompt tokens that were not computed again.
    done: u64,
    known: u64,
    entry: Arc<RequestEntry>,
    /// True if the text has structured output.
    is_structured: bool,
}

/// Times of the layers, measured for one pass now and then.
#[derive(Debug, Default)]
struct Laps {
    laps: Vec<Lap>,
    /// True if the next pass is timed.
    is_next: bool,
    /// Time of the last measured pass.
    at: Option<Duration>,
}

/// Time between two passes whose layers are timed.
const LAPS: Duration = Duration::from_millis(100);

/// Events of a step, for listeners.
#[derive(Debug, Default)]
struct StepNews {
    tokens: u64,
    /// Numbers of the texts in the step.
    texts: BTreeSet<usize>,
    /// True if the step computed a part of a prompt.
    prompt: bool,
}

/// The worker: texts with sequences, by their numbers in the batch.
struct Worker<'a> {
    app: &'a App,
    served: &'a Served,
    /// Time at which the worker began.
    since: Duration,
    clock: &'a Clock,
    running: BTreeMap<usize, RunningText>,
    /// Number of the next text.
    next: usize,
    /// Reader of the run, while there are listeners.
    follower: Option<Follower>,
    news: StepNews,
    laps: Laps,
}

/// Reasons for which the worker has no more texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerEnd {
    /// The queue is closed.
    Closed,
    /// Another model is needed.
    Others,
    /// The model was idle for as long as clients asked.
    Idle,
}

/// Serves texts of a loaded model until the queue is closed or another model is needed, and all
/// texts have ended.
pub(crate) fn run(
    app: &App,
    served: &Served,
    model: &mut LoadedModel,
    disk: &mut Option<PrefixDisk>,
) -> Result<WorkerEnd, sws::Error> {
    let gauge = model.gauge();
    let mut batch = model.batch()?.with_turns(app.config.limits.gap);
    if let Some(disk) = disk.take() {
        batch = batch.with_disk(disk);
    }
    let running = BTreeMap::new();
    let clock = &app.clock;
    let news = StepNews::default();
    let laps = Laps::default();
    let since = clock.now();
    let mut worker =
        Worker { app, served, since, clock, running, next: 0, follower: None, news, laps };
    loop {
        let end = worker.admit(&mut batch);
        if batch.is_empty() {
            if let Some(end) = end {
                worker.store_all(&mut batch);
                *disk = batch.take_disk();
                return Ok(end);
            }
            continue;
        }
        if app.is_cut() {
            for running in worker.running.values() {
                running.cancel.cancel();
            }
        }
        worker.listened(gauge.as_ref());
        batch.step(&mut |number, event| worker.happened(number, event));
        worker.passed();
        app.counts.running.set(worker.running.len() as u64);
        worker.kept(&mut batch);
    }
}

impl Worker<'_> {
    /// Gives sequences to waiting texts. If there are no texts at all, waits for one. Returns the
    /// reason if there will be no more texts.
    fn admit(&mut self, batch: &mut Batch<'_>) -> Option<WorkerEnd> {
        loop {
            self.settle_structured(batch);
            let has_room = |job: &QueuedText| {
                batch.has_room(job.text.is_scored())
                    && (job.text.constraint.is_none() || self.has_room_for_structured())
            };
            match self.app.queue.next(self.turn(), TextWait::No, has_room) {
                NextText::Job(job) => {
                    self.begin(batch, *job);
                    continue;
                }
                NextText::Closed => return Some(WorkerEnd::Closed),
                NextText::Others => return Some(WorkerEnd::Others),
                _ if !batch.is_empty() => return None,
                NextText::Nothing | NextText::Late => {}
            }
            // Prefixes are stored while there are no texts.
            if self.store(batch) {
                continue;
            }
            let left = self.served.engine.left(self.clock.now());
            let wait = left.map_or(TextWait::Forever, TextWait::For);
            let has_room = |job: &QueuedText| batch.has_room(job.text.is_scored());
            let next = self.app.queue.next(self.turn(), wait, has_room);
            if let Some(follower) = &mut self.follower {
                // Time without texts does not count as a cost.
                follower.step();
            }
            match next {
                NextText::Job(job) => self.begin(batch, *job),
                NextText::Nothing => return None,
                NextText::Closed => return Some(WorkerEnd::Closed),
                NextText::Others => return Some(WorkerEnd::Others),
                NextText::Late => return Some(WorkerEnd::Idle),
            }
        }
    }

    /// The turn of this model among others.
    fn turn(&self) -> ModelTurn {
        let time = self.clock.now().saturating_sub(self.since);
        let is_over = time >= self.app.config.limits.switch_after;
        ModelTurn { model: self.served.identity.number, is_over }
    }

    /// Lends the memory for structured output to experts or takes it back, depending on the
    /// requests.
    fn settle_structured(&self, batch: &mut Batch<'_>) {
        self.served.room.settle(self.clock.now(), |is_idle| batch.lend_structured(is_idle));
    }

    /// True if there is memory for another structured text.
    fn has_room_for_structured(&self) -> bool {
        let begun = self.running.values().filter(|running| running.is_structured).count();
        begun < self.served.room.texts()
    }

    /// Writes one block of the prefix cache to disk. Returns true if there is more to write.
    fn store(&self, batch: &mut Batch<'_>) -> bool {
        let more = batch.store();
        self.kept(batch);
        more
    }

    /// Writes the prefix cache to disk, for at most the time that running texts have to end.
    fn store_all(&self, batch: &mut Batch<'_>) {
        let end = self.clock.now() + self.app.config.limits.drain;
        while self.clock.now() < end && self.store(batch) {}
    }

    /// Updates the counters of the prefix cache, and logs errors of the disk.
    fn kept(&self, batch: &mut Batch<'_>) {
        self.app.counts.kept.set(batch.kept_prefixes() as u64);
        self.app.counts.positions.set(batch.positions() as u64);
        let memory = batch.memory();
        for (count, bytes) in self.app.counts.states.iter().zip(memory) {
            count.set(bytes);
        }
        if let Some(counts) = batch.disk_counts() {
            self.app.counts.disk.set(counts);
        }
        for fault in batch.disk_faults() {
            (self.app.config.log)(&fault.to_string());
        }
    }

    /// Begins to follow the run if there are listeners, and stops if there are none.
    fn listened(&mut self, gauge: Option<&Gauge>) {
        match (self.app.events.is_heard(), gauge) {
            (true, Some(gauge)) => {
                self.follower.get_or_insert_with(|| Follower::beside(gauge.watch()));
            }
            _ => (self.follower, self.laps) = (None, Laps::default()),
        }
    }

    /// Reports a step to listeners. Its tokens were reported already.
    fn passed(&mut self) {
        let Some(follower) = &mut self.follower else { return };
        let step = follower.step();
        let StepNews { tokens, texts, prompt } = std::mem::take(&mut self.news);
        if tokens == 0 {
            return;
        }
        let now = self.clock.now();
        let at = now.as_secs_f64();
        let texts = texts.len();
        let mut log = self.app.events.log();
        log.pass(Passed { number: 0, at, tokens, texts, prompt, step });
        let Laps { laps, is_next, at } = &mut self.laps;
        if *is_next {
            follower.laps(laps);
            log.layers(laps);
            (*is_next, *at) = (false, Some(now));
            follower.time_layers(false);
        } else if at.is_none_or(|at| now.saturating_sub(at) >= LAPS) {
            *is_next = true;
            follower.time_layers(true);
        }
    }

    fn begin(&mut self, batch: &mut Batch<'_>, job: QueuedText) {
        let QueuedText { text, number, events, queued, entry, keep, .. } = job;
        if let Some(time) = keep {
            // Not sooner, or the model may be closed before this text.
            self.served.engine.keep(time);
        }
        // A text may have waited for its model.
        entry.cost.count(&self.served.engine);
        let cancel = text.cancel.clone();
        let began = self.clock.now();
        let is_structured = text.constraint.is_some();
        let prompt = text.tokens.len() as u64;
        let known = match batch.add(self.next, text) {
            Ok(known) => known,
            Err(error) => {
                let failure = Failure::of(&error);
                let _ = events.try_send((number, Happened::failed(failure)));
                return;
            }
        };
        self.app.counts.queue.add(began - queued);
        self.app.counts.prompt_tokens.add(prompt);
        entry.begun.add(1);
        let _ = events.try_send((number, Happened::Began));
        let heard = began;
        let first = None;
        let done = 0;
        let running = RunningText {
            number,
            events,
            cancel,
            queued,
            began,
            heard,
            first,
            done,
            known: 0,
            entry,
            is_structured,
        };
        self.running.insert(self.next, running);
        if let Some(known) = known {
            self.happened(self.next, Event::Begun(known));
        }
        self.next += 1;
        self.app.counts.running.set(self.running.len() as u64);
    }

    /// Passes an event on to the request.
    fn happened(&mut self, number: usize, event: Event) {
        let counts = &self.app.counts;
        let now = self.clock.now();
        let Some(running) = self.running.get_mut(&number) else { return };
        let happened = match event {
            Event::Begun(known) => {
                running.known = known as u64;
                running.entry.known.add(running.known);
                counts.known_tokens.add(running.known);
                Happened::Known(known)
            }
            Event::Prompt(progress) => {
                running.entry.done.add(progress.done - running.done);
                if self.follower.is_some() {
                    self.news.tokens += progress.done - running.done.max(running.known);
                    self.news.texts.insert(number);
                    self.news.prompt = true;
                }
                running.done = progress.done;
                Happened::Prompt(progress)
            }
            Event::Ranked(ranks) => Happened::Ranked(ranks),
            Event::Pooled(vector) => Happened::Pooled(vector),
            Event::Resumed(pieces) => {
                running.entry.made.add(pieces.len() as u64);
                running.first = Some(now);
                running.heard = now;
                Happened::Resumed(pieces)
            }
            Event::Piece(piece, rank) => {
                if piece.token.is_some() {
                    counts.new_tokens.add(1);
                    if self.follower.is_some() {
                        self.news.tokens += 1;
                        self.news.texts.insert(number);
                        let (id, owner) = running.entry.origin();
                        let text = [piece.reasoning.as_str(), &piece.text].concat();
                        self.app.events.log().token(owner, id, &text);
                    }
                    running.entry.made.add(1);
                    match running.first {
                        Some(_) => counts.between.add(now - running.heard),
                        None => counts.first.add(now - running.queued),
                    }
                    running.first.get_or_insert(now);
                    running.heard = now;
                }
                Happened::Piece(piece, rank)
            }
            Event::Ended(made) => {
                let first = running.first.unwrap_or(now);
                let times = TextTimes {
                    queue: running.began - running.queued,
                    prompt: first - running.began,
                    generation: running.heard.saturating_sub(first),
                };
                running.entry.ended.add(1);
                let spent = running.entry.cost.spent();
                let made = (*made).map(|made| Made { made, times, spent });
                let made = made.map_err(|error| Failure::of(&error));
                match running.entry.is_cancelled() {
                    true => Happened::failed(Failure::cancelled()),
                    false => Happened::Ended(Box::new(made)),
                }
            }
        };
        let over = matches!(happened, Happened::Ended(_));
        // The client reads too slowly, or has left.
        if running.events.try_send((running.number, happened)).is_err() {
            running.cancel.cancel();
        }
        if over {
            self.running.remove(&number);
            self.served.engine.used(now);
        }
    }
}
