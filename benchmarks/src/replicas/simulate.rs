//! Clients and replicas in virtual time.
//!
//! Each replica is a [`Batch`], the scheduler of `sws serve` with its turns, over a model that replays
//! recorded routes through the engine's cache. Requests wait in order until their replica has room.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use sws::{Batch, BatchRequest, Cancel, Event, LoadedSequences, Threads};
use sws_engine::Waiter;
use sws_format::Clock;
use sws_text::{Generation, Position};

use super::costs::{Costs, Work};
use super::replayed::{Done, Replayed, Working};
use super::routing::{Router, Routing};
use super::texts::Texts;

/// A number of replicas, and who asks them.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Number of replicas.
    pub replicas: usize,
    /// Clients, each of which has one request at a time.
    pub clients: usize,
    /// Choice of the replica.
    pub routing: Routing,
    /// Requests of all clients.
    pub requests: usize,
    /// Slots for experts of each replica, and further ones while no prompt is computed.
    pub slots: usize,
    /// See `slots`.
    pub lent: usize,
    /// Texts at a time of each replica.
    pub parallel: usize,
    /// Time that a text waits for the turns of others.
    pub gap: Duration,
    /// Seed of the router.
    pub seed: u64,
}

/// What clients and replicas saw. The first half of the requests warms the replicas; shares, reads and
/// times are of the second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Number of replicas.
    pub replicas: usize,
    /// Number of clients.
    pub clients: usize,
    /// Choice of the replica.
    pub routing: Routing,
    /// Requests that were answered.
    pub requests: usize,
    /// New tokens of all answers.
    pub tokens: usize,
    /// Seconds until the last one.
    pub seconds: f64,
    /// New tokens a second of all clients, while all of them ask.
    pub tokens_per_second: f64,
    /// Seconds from a request to its first token: 50, 95 and 99 of 100.
    pub first: [f64; 3],
    /// Seconds between two tokens of a text: 50, 95 and 99 of 100.
    pub between: [f64; 3],
    /// Means of both.
    pub means: [f64; 2],
    /// Share of the experts used that were in memory.
    pub hit_rate: f64,
    /// Experts used, each counted once per layer and pass.
    pub uses: u64,
    /// Those of them that were not in memory.
    pub misses: u64,
    /// Bytes that all replicas have fetched from object storage, from the beginning on.
    pub fetched_bytes: u64,
    /// Tokens of the busiest replica, of the mean of all.
    pub busiest: f64,
}

/// A request of a client.
#[derive(Clone, Copy, Debug)]
struct Asked {
    client: usize,
    text: usize,
    at: Duration,
    /// Time of its last token.
    heard: Option<Duration>,
    /// True if it is counted.
    counts: bool,
}

struct Replica<'m> {
    batch: Batch<'m>,
    clock: Clock,
    done: Done,
    /// Numbers of requests that wait.
    waiting: VecDeque<usize>,
    /// Requests that a step has continued or ended: known once the step is over.
    told: Vec<(usize, Told)>,
    is_stepping: bool,
    tokens: usize,
}

#[derive(Clone, Copy, Debug)]
enum Told {
    Token,
    End,
}

/// What happens next. Those of the same time happen in the order in which they were foreseen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happens {
    Asks(usize),
    Steps(usize),
}

struct Simulation<'m> {
    case: Case,
    costs: Costs,
    texts: Arc<Texts>,
    router: Router,
    replicas: Vec<Replica<'m>>,
    working: Working,
    agenda: BinaryHeap<Reverse<(Duration, u64, Happens)>>,
    /// Number of the next event.
    next: u64,
    requests: Vec<Asked>,
    /// Requests of each client so far.
    asked: Vec<usize>,
    /// The replica of each request that is not over.
    places: BTreeMap<usize, usize>,
    ended: usize,
    tokens: usize,
    first: Vec<f64>,
    between: Vec<f64>,
    /// Time, tokens and work when half of the requests were over, and time and tokens when the last one
    /// was sent.
    half: Option<(Duration, usize, Work)>,
    last: Option<(Duration, usize)>,
}

/// Simulates a case.
pub fn simulate(
    texts: &Arc<Texts>,
    costs: Costs,
    case: Case,
    threads: &Threads,
) -> Result<Outcome> {
    ensure!(case.replicas > 0 && case.clients > 0 && case.requests > 0, "a case without requests");
    let mut models = Vec::new();
    let working = Working::default();
    for _ in 0..case.replicas {
        let slots = [case.slots, case.lent];
        let lm = Replayed::new(Arc::clone(texts), costs, slots, case.parallel, working.clone());
        let clock = lm.clock();
        let done = lm.done();
        let waiter = Waiter::new(clock.clone());
        models.push((LoadedSequences::simulated(Box::new(lm), threads, waiter), clock, done));
    }
    let mut replicas = Vec::new();
    for (sequences, clock, done) in &mut models {
        replicas.push(Replica {
            batch: sequences.batch(case.parallel)?.with_turns(case.gap),
            clock: clock.clone(),
            done: done.clone(),
            waiting: VecDeque::new(),
            told: Vec::new(),
            is_stepping: false,
            tokens: 0,
        });
    }
    let mut simulation = Simulation {
        case,
        costs,
        texts: Arc::clone(texts),
        router: Router::new(case.routing, case.replicas, 2 * case.parallel, case.seed),
        replicas,
        working,
        agenda: BinaryHeap::new(),
        next: 0,
        requests: Vec::new(),
        asked: vec![0; case.clients],
        places: BTreeMap::new(),
        ended: 0,
        tokens: 0,
        first: Vec::new(),
        between: Vec::new(),
        half: None,
        last: None,
    };
    for client in 0..case.clients {
        simulation.foresee(Duration::ZERO, Happens::Asks(client));
    }
    let end = simulation.run()?;
    simulation.outcome(end)
}

impl Simulation<'_> {
    fn foresee(&mut self, at: Duration, happens: Happens) {
        self.agenda.push(Reverse((at, self.next, happens)));
        self.next += 1;
    }

    /// Runs until all requests are over. Returns that time.
    fn run(&mut self) -> Result<Duration> {
        let mut now = Duration::ZERO;
        while let Some(Reverse((at, _, happens))) = self.agenda.pop() {
            now = at;
            match happens {
                Happens::Asks(client) => self.asks(client, at)?,
                Happens::Steps(replica) => self.stepped(replica, at)?,
            }
        }
        ensure!(
            self.ended == self.case.requests,
            "{} of {} requests are over",
            self.ended,
            self.case.requests
        );
        Ok(now)
    }

    /// Sends the next request of a client, if there is one.
    fn asks(&mut self, client: usize, at: Duration) -> Result<()> {
        if self.requests.len() == self.case.requests {
            return Ok(());
        }
        let text = self.texts.asked(client, self.asked[client]);
        self.asked[client] += 1;
        let number = self.requests.len();
        self.requests.push(Asked { client, text, at, heard: None, counts: self.half.is_some() });
        if self.requests.len() == self.case.requests {
            self.last = Some((at, self.tokens));
        }
        let replica = self.router.choose(self.texts.topic(client));
        self.places.insert(number, replica);
        self.replicas[replica].waiting.push_back(number);
        match self.replicas[replica].is_stepping {
            true => Ok(()),
            false => self.step(replica, at),
        }
    }

    /// Lets a replica go on, if it has something to do.
    fn step(&mut self, replica: usize, at: Duration) -> Result<()> {
        let Simulation { replicas, working, requests, texts, .. } = self;
        let Replica { batch, clock, waiting, told, is_stepping, .. } = &mut replicas[replica];
        clock.sleep_until(at);
        while batch.has_room(false)
            && let Some(number) = waiting.pop_front()
        {
            batch.add(number, continuation(texts, requests[number].text, number))?;
        }
        let worked = std::mem::replace(is_stepping, !batch.is_empty());
        match (worked, *is_stepping) {
            (false, true) => working.begins(),
            (true, false) => working.ends(),
            _ => {}
        }
        if !*is_stepping {
            return Ok(());
        }
        let mut failed = None;
        batch.step(&mut |number, event| match event {
            Event::Piece(piece, _) if piece.token.is_some() => told.push((number, Told::Token)),
            Event::Ended(made) => match *made {
                Ok(_) => told.push((number, Told::End)),
                Err(error) => failed = Some(error),
            },
            _ => {}
        });
        if let Some(error) = failed {
            return Err(error.into());
        }
        let end = clock.now();
        self.foresee(end, Happens::Steps(replica));
        Ok(())
    }

    /// Ends a step.
    fn stepped(&mut self, replica: usize, at: Duration) -> Result<()> {
        for (number, told) in std::mem::take(&mut self.replicas[replica].told) {
            match told {
                Told::Token => {
                    let Asked { at: asked, heard, counts, .. } = &mut self.requests[number];
                    let times = if heard.is_none() { &mut self.first } else { &mut self.between };
                    if *counts {
                        times.push((at - heard.unwrap_or(*asked)).as_secs_f64());
                    }
                    *heard = Some(at);
                    self.tokens += 1;
                    self.replicas[replica].tokens += 1;
                }
                Told::End => {
                    let place = self.places.remove(&number);
                    self.router.ended(place.context("a text ends twice")?);
                    self.ended += 1;
                    if self.ended == self.case.requests.div_ceil(2) {
                        self.half = Some((at, self.tokens, self.work()));
                    }
                    let next = at + Duration::from_secs_f64(self.costs.between);
                    self.foresee(next, Happens::Asks(self.requests[number].client));
                }
            }
        }
        self.step(replica, at)
    }

    /// The work of all replicas so far.
    fn work(&self) -> Work {
        let mut all = Work::default();
        for replica in &self.replicas {
            let Work { tokens, uses, misses, fetched } = replica.done.read();
            all.tokens += tokens;
            all.uses += uses;
            all.misses += misses;
            all.fetched += fetched;
        }
        all
    }

    fn outcome(mut self, end: Duration) -> Result<Outcome> {
        let (half, already, before) = self.half.context("no request is over")?;
        let (last, until) = self.last.context("no request was sent")?;
        let after = self.work();
        // With few requests, all are sent before half of them are over.
        let (from, to, tokens) = match until > already {
            true => (half, last, until - already),
            false => (Duration::ZERO, end, self.tokens),
        };
        let uses = after.uses - before.uses;
        let misses = after.misses - before.misses;
        let Case { replicas, clients, routing, requests, .. } = self.case;
        let began = self.replicas.iter().filter(|replica| replica.tokens > 0).count() as u64;
        let most = self.replicas.iter().map(|replica| replica.tokens).max().unwrap_or(0);
        Ok(Outcome {
            replicas,
            clients,
            routing,
            requests,
            tokens: self.tokens,
            seconds: end.as_secs_f64(),
            tokens_per_second: tokens as f64 / (to - from).as_secs_f64(),
            means: [mean(&self.first), mean(&self.between)],
            first: percentiles(&mut self.first),
            between: percentiles(&mut self.between),
            hit_rate: 1.0 - misses as f64 / uses.max(1) as f64,
            uses,
            misses,
            fetched_bytes: after.fetched * self.costs.expert_bytes + began * self.costs.other_bytes,
            busiest: (most * replicas) as f64 / self.tokens.max(1) as f64,
        })
    }
}

fn mean(times: &[f64]) -> f64 {
    times.iter().sum::<f64>() / times.len().max(1) as f64
}

/// 50, 95 and 99 of 100 are no longer than these; 0 without any.
fn percentiles(times: &mut [f64]) -> [f64; 3] {
    times.sort_by(f64::total_cmp);
    [0.5, 0.95, 0.99].map(|share| {
        let at = (share * times.len() as f64).ceil() as usize;
        times.get(at.saturating_sub(1)).copied().unwrap_or(0.0)
    })
}

/// A text for a batch. Each is its own owner: nothing of it is used for another.
fn continuation(texts: &Texts, text: usize, number: usize) -> BatchRequest {
    let about = &texts.all()[text];
    BatchRequest {
        tokens: vec![text as u32; about.prompt],
        generation: Generation { max_new_tokens: Some(about.new), ..Generation::default() },
        position: Position::Middle,
        bias: Vec::new(),
        constraint: None,
        ranks: None,
        prompt_ranks: false,
        pooling: None,
        witness: None,
        short_lived: false,
        owner: number as u64,
        cancel: Cancel::new(),
    }
}
