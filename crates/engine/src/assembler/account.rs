//! What speculation goes by, and what it has come to: measured as passes go.

use std::time::Duration;

use sws_store::{Pass, PieceId, StoreStats, Timing};

use super::DynamicAssembler;
use super::books::Books;
use super::fill::Filling;
use super::reading::Reading;
use crate::governor::{Governor, nanos};
use crate::price::{Moment, Offer, Pace, Service, stall};
use sws_cache::Lookup;

/// How much of the past the rate of demands keeps with each layer.
const KEEP: f64 = 0.98;

/// What is measured of a run, what was expected of it, and the account of both.
#[derive(Debug)]
pub(super) struct Speculating {
    pub(super) governor: Governor,
    pub(super) books: Books,
    pub(super) pace: Pace,
    /// What is expected of each layer, the most probable first.
    pub(super) offers: Vec<Vec<(u32, f32)>>,
    /// A demanded read that finds the device idle, and one that follows another.
    first: Service,
    demanded: Service,
    /// What fills free slots.
    pub(super) filling: Filling,
    /// A byte and a chunk of a speculative read, in nanoseconds.
    speculative: Option<(f64, f64)>,
    /// Demands, and in how many nanoseconds.
    demands: (f64, f64),
    /// When the last read ended.
    ended: Duration,
    /// Nanoseconds of this pass, and those of them that were waited, up to a moment.
    pass: f64,
    waited: f64,
    upto: Moment,
    stats: StoreStats,
    layer: Layer,
}

/// What the running layer found.
#[derive(Clone, Copy, Debug, Default)]
struct Layer {
    needed: usize,
    /// What would have been read without speculation, what is read, and what of that is read because
    /// of speculation.
    otherwise: usize,
    missing: usize,
    again: usize,
    /// Whether speculation has changed anything, and whether it was reading.
    touched: bool,
    behind: bool,
    bytes: usize,
    waited: Duration,
    /// How long the first demand waited for a speculative chunk.
    delay: Option<Duration>,
}

impl Speculating {
    pub(super) fn new(layers: usize, governed: bool) -> Speculating {
        Speculating {
            governor: Governor::new(governed),
            books: Books::default(),
            pace: Pace::new(layers),
            offers: vec![Vec::new(); layers],
            first: Service::default(),
            demanded: Service::default(),
            filling: Filling::default(),
            speculative: None,
            demands: (0.0, 0.0),
            ended: Duration::ZERO,
            pass: 0.0,
            waited: 0.0,
            upto: Moment::default(),
            stats: StoreStats::default(),
            layer: Layer::default(),
        }
    }

    /// A demanded read of so many bytes takes so many nanoseconds, if that is known.
    pub(super) fn demanded(&self, bytes: usize) -> Option<f64> {
        let slow = |(byte, _)| byte * bytes as f64;
        let known = self.demanded.nanos(bytes).or_else(|| self.first.nanos(bytes));
        known.or_else(|| self.speculative.map(slow))
    }

    /// The first of those that are demanded together.
    fn first(&self, bytes: usize) -> Option<f64> {
        self.first.nanos(bytes).or_else(|| self.demanded(bytes))
    }

    /// A speculative one.
    pub(super) fn speculative(&self, bytes: usize) -> Option<f64> {
        let known = self.speculative.map(|(byte, _)| byte * bytes as f64);
        known.or_else(|| self.demanded(bytes))
    }

    /// A read of so many bytes for a piece of this probability, needed so many nanoseconds after it
    /// could begin. None if nothing is known of the disk.
    pub(super) fn offer(&self, bytes: usize, probability: f32, lead: f64) -> Option<Offer> {
        let service = self.demanded(bytes)?;
        let slower = self.speculative(bytes)? / service.max(1.0);
        let (demands, time) = self.demands;
        Some(Offer {
            probability: f64::from(probability),
            lead: lead / slower.max(1.0),
            service,
            chunk: self.speculative.map_or(service, |(_, chunk)| chunk),
            demands: demands / time.max(1.0),
            victim: 0.0,
        })
    }

    /// A read has ended.
    pub(super) fn ended(&mut self, reading: &Reading, timing: &Timing) {
        let Some(started) = timing.started else { return };
        if reading.demanded && !reading.speculative {
            if timing.submitted < self.ended {
                let service = timing.finished.saturating_sub(started.max(self.ended));
                self.demanded.note(reading.bytes, service);
            } else if !self.layer.behind {
                // How long nobody took note of it is part of it. One that waits for a chunk does not tell:
                // its latency passes meanwhile.
                let service = timing.finished.saturating_sub(timing.submitted);
                self.first.note(reading.bytes, service);
            }
            self.layer.delay.get_or_insert(started.saturating_sub(timing.submitted));
        }
        self.ended = self.ended.max(timing.finished);
    }
}

impl DynamicAssembler {
    pub(super) fn moment(&self) -> Moment {
        let waited = self.waiter.stalls().time;
        Moment { now: self.waiter.clock().now(), waited }
    }

    /// A pass begins.
    pub(super) fn note_pass(&mut self, pass: &Pass) {
        let at = self.moment();
        if self.speculating.pass > 0.0 {
            self.filling_begins();
        }
        let account = &mut self.speculating;
        account.pace.pass(pass.len());
        if account.pass > 0.0 && !self.sweeping {
            account.governor.passed(account.pass, account.waited);
        }
        (account.pass, account.waited, account.upto) = (0.0, 0.0, at);
        let stats = self.store.stats();
        let (now, before) = (&stats.speculative, &account.stats.speculative);
        let (reads, bytes) = (now.reads - before.reads, now.bytes - before.bytes);
        if reads > 0 && bytes > 0 {
            let time = nanos(now.on_device.saturating_sub(before.on_device));
            let (byte, chunk) = (time / bytes as f64, time / reads as f64);
            let (old_byte, old_chunk) = account.speculative.unwrap_or((byte, chunk));
            account.speculative = Some(((byte + old_byte) / 2.0, (chunk + old_chunk) / 2.0));
        }
        account.stats = stats;
        let (teaches, on) = (account.governor.teaches(), account.governor.on());
        if !on {
            let cache = &self.cache;
            let there = |piece| cache.contains(piece);
            account.books.rest(cache.len(), there);
        }
        if teaches {
            let started = self.waiter.clock().now();
            self.draft.begin(pass);
            self.note_draft(started);
            self.note_forecast(started);
        }
    }

    /// A layer is entered.
    pub(super) fn note_entering(&mut self, layer: usize) {
        let at = self.moment();
        self.speculating.pace.entering(layer, at);
    }

    /// A draft has been asked, or told what came, since then.
    pub(super) fn note_draft(&mut self, started: Duration) {
        // Who remembers nothing computes nothing: there is no draft, or it reads from a record.
        if self.draft.bytes() == 0 {
            return;
        }
        let took = self.waiter.clock().now().saturating_sub(started);
        self.speculating.governor.asked(nanos(took));
    }

    /// All that speculation computes itself, since then: that is time, too.
    pub(super) fn note_forecast(&mut self, started: Duration) {
        let took = self.waiter.clock().now().saturating_sub(started);
        self.speculating.governor.book(0.0, nanos(took));
    }

    /// A router has chosen: compares what is there and on its way with what would be.
    pub(super) fn note_choice(&mut self, layer: usize, distinct: &[u32]) {
        let at = self.moment();
        self.speculating.pace.chosen(layer, at);
        let mut found = Layer { waited: at.waited, needed: distinct.len(), ..Layer::default() };
        if let Some(&expert) = distinct.first()
            && let Ok(layout) = self.layout(PieceId::expert(layer as u32, expert))
        {
            found.bytes = layout.slot_len();
        }
        let sweeping = self.sweeping;
        let DynamicAssembler { cache, reading, store, speculating, .. } = self;
        let Speculating { governor, books, .. } = speculating;
        if sweeping {
            books.clear();
        }
        let running = |id: PieceId| {
            let of = |&expert: &u32| PieceId::expert(layer as u32, expert) == id;
            distinct.iter().any(of)
        };
        for &expert in distinct {
            let id = PieceId::expert(layer as u32, expert);
            let lookup = cache.find(id);
            let missing = lookup != Lookup::Ready;
            let last = |may: &dyn Fn(PieceId) -> bool| cache.policy_mut().last(id, may);
            let known = books.would_have(id, |other| !running(other), last);
            let there = known.unwrap_or(!missing);
            let brought = books.settle(id);
            match lookup {
                Lookup::Ready if brought => {
                    governor.useful(found.bytes);
                    found.touched = true;
                }
                Lookup::Loading => {
                    if let Some(reading) = reading.get(&id)
                        && reading.unasked()
                        && store.begun(reading.ticket)
                    {
                        governor.issued(reading.bytes);
                        governor.useful(reading.bytes);
                        found.touched = true;
                    }
                }
                _ => {}
            }
            found.missing += usize::from(missing);
            found.otherwise += usize::from(!there);
            found.again += usize::from(missing && there);
            found.touched |= missing == there;
        }
        found.behind = reading.values().any(|r| r.unasked() && store.begun(r.ticket));
        found.touched |= found.behind;
        speculating.layer = found;
    }

    /// The pass runs ahead while this layer's experts are read: they are awaited longer for it, or not.
    pub(super) fn note_run_ahead(&mut self) {
        self.speculating.layer.touched = true;
    }

    /// The experts of a layer have been computed: what speculation has saved of the waits that there
    /// would have been, or added to them.
    pub(super) fn note_done(&mut self, layer: usize) {
        let at = self.moment();
        let account = &mut self.speculating;
        account.pace.done(at);
        let took = nanos(at.now.saturating_sub(account.upto.now));
        account.pass += took;
        account.waited += nanos(at.waited.saturating_sub(account.upto.waited));
        account.upto = at;
        let Layer { needed, otherwise, missing, again, touched, bytes, waited, delay, .. } =
            std::mem::take(&mut account.layer);
        let (demands, time) = account.demands;
        account.demands = (demands * KEEP + missing as f64, time * KEEP + took);
        if !touched || self.sweeping {
            return;
        }
        let (Some(times), Some(service)) = (account.pace.of(layer), account.demanded(bytes)) else {
            return;
        };
        let first = account.first(bytes).unwrap_or(service);
        let model = |missing: usize| stall(needed, missing, times, first, service);
        let chunk = account.speculative.map_or(service, |(_, chunk)| chunk);
        let delay = delay.map_or(0.0, nanos).min(chunk);
        let mut cost = delay + model(missing) - model(missing - again);
        let mut saved = model(otherwise) - nanos(at.waited.saturating_sub(waited)) + cost;
        // What was measured can be a little more than what there would have been.
        if saved < 0.0 {
            (saved, cost) = (0.0, cost - saved);
        }
        account.governor.book(saved, cost);
    }

    /// A read has begun into a slot, perhaps in the place of another piece.
    pub(super) fn note_begun(&mut self, id: PieceId, speculative: bool, evicted: Option<PieceId>) {
        let DynamicAssembler { cache, speculating, .. } = self;
        if speculative {
            let before = cache.pieces().filter(|&piece| piece != id).chain(evicted);
            speculating.books.depart(cache.slots(), before);
        }
        if speculating.books.begun(id, speculative, evicted) {
            speculating.governor.wasted();
        }
    }

    /// A read that nobody has asked for will not be complete.
    pub(super) fn note_given_up(&mut self, id: PieceId, begun: bool, bytes: usize) {
        let account = &mut self.speculating;
        if account.books.settle(id) && begun {
            account.governor.issued(bytes);
            account.governor.wasted();
        }
    }
}
