//! Stand-ins: judged where some may count, and computed with to look ahead.

use std::collections::VecDeque;
use std::time::Duration;

use sws_model::{Ready, Routed, RunAhead, SourceError};
use sws_store::{PieceId, Priority};

use super::ahead::Expected;
use super::weights::Assembled;
use super::{DynamicAssembler, Presence};
use crate::error::StreamError;
use crate::stand_ins::StandIns;
use crate::verifier::Exactness;

/// What is known and done of stand-ins.
#[derive(Debug, Default)]
pub(super) struct Inexact {
    pub(super) stand_ins: StandIns,
    /// Those that may count for the layer whose router chose last, if they are near enough.
    pub(super) judging: Vec<u32>,
    /// Of each layer, whether it can be computed without its experts; none if nothing runs ahead.
    whole: Vec<bool>,
    /// The layer from which the pass is running ahead.
    running: Option<u32>,
    /// What layers are expected to choose, with the first of them in front.
    foreseen: VecDeque<(u32, Vec<u32>)>,
    /// What reading an expert reads, of the last that was asked for.
    expert_bytes: Option<usize>,
    pace: Pace,
    counts: RunAheadCounts,
}

/// What runs ahead have come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunAheadCounts {
    /// How often the pass ran ahead, and went back.
    pub runs: u64,
    /// Layers that were computed to learn what they choose.
    pub layers: u64,
    /// Experts that they chose.
    pub foreseen: u64,
    /// How many of these were chosen when it counted.
    pub right: u64,
}

/// What layers have taken lately.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    /// When the layer was entered, and how long had been waited then.
    entered: Option<(Duration, Duration)>,
    /// Time that a layer of one token takes without waiting.
    layer: Duration,
    /// Experts that a layer misses.
    misses: f64,
}

/// The last of so many count as much as all before.
const LATELY: u32 = 8;
/// What a run ahead costs is at most a layer that is begun just before the wait is over, and this one's
/// experts that are there, computed twice. It has to gain as much, and what is gained is an estimate.
const SURE: u32 = 2;

impl DynamicAssembler {
    /// Lets stand-ins serve: to count where `exactness` says so; and, where nothing but experts counts
    /// and `ahead` is set, to look ahead.
    pub fn with_stand_ins(
        mut self,
        stand_ins: StandIns,
        exactness: Exactness,
        ahead: bool,
    ) -> DynamicAssembler {
        let layers = (0..).zip(&self.layers).map(|(layer, experts)| {
            let experts = experts.map_or(0, |(experts, _)| experts as u32);
            (0..experts).all(|expert| stand_ins.contains(PieceId::expert(layer, expert)))
        });
        if ahead && exactness == Exactness::Exact {
            self.inexact.whole = layers.collect();
        }
        self.inexact.stand_ins = stand_ins;
        self.verifier.exactness = exactness;
        self
    }

    /// What runs ahead have come to.
    pub fn run_ahead_counts(&self) -> RunAheadCounts {
        self.inexact.counts
    }

    /// As [`PassSource::run_ahead`](sws_model::PassSource::run_ahead).
    pub fn run_ahead(&mut self, step: RunAhead) -> Result<bool, StreamError> {
        let result = match step {
            RunAhead::From(layer) => self.begins(layer),
            RunAhead::On(layer) => self.goes_on(layer),
            RunAhead::Done => {
                self.inexact.running = None;
                Ok(false)
            }
        };
        self.or_abandon(result)
    }

    /// Nothing of the pass before is under way.
    pub(super) fn forget_run_ahead(&mut self) {
        let inexact = &mut self.inexact;
        inexact.running = None;
        inexact.judging.clear();
        inexact.foreseen.clear();
    }

    /// Whether this layer is computed to see what it chooses, and not to count.
    pub(super) fn is_beyond(&self, layer: usize) -> bool {
        self.inexact.running.is_some_and(|from| (from as usize) < layer)
    }

    /// Whether the pass is running ahead.
    pub(super) fn is_ahead(&self) -> bool {
        self.inexact.running.is_some()
    }

    /// Serves a layer with what is there, for a pass that is running ahead.
    pub(super) fn serve_anyhow(
        &mut self,
        routed: &Routed,
        ready: Ready<'_>,
    ) -> Result<(), SourceError> {
        let mut weights = Assembled::exact(&self.cache, &self.inventory);
        weights.stand_ins = Some(&self.inexact.stand_ins);
        ready(&routed.distinct, &mut weights)
    }

    /// Computes with the stand-ins that may count, and fetches the experts of those that are too far
    /// off.
    pub(super) fn judge(&mut self, ready: Ready<'_>) -> Result<(), SourceError> {
        let judging = std::mem::take(&mut self.inexact.judging);
        if judging.is_empty() {
            return Ok(());
        }
        let mut weights = Assembled::exact(&self.cache, &self.inventory);
        weights.stand_ins = Some(&self.inexact.stand_ins);
        weights.verifier = Some(&self.verifier);
        ready(&judging, &mut weights)?;
        let refused = weights.refused;
        self.verifier.caught += refused.len() as u64;
        let layer = self.layer;
        let counts = |expert: u32| {
            judging.contains(&expert) && !refused.contains(&PieceId::expert(layer, expert))
        };
        for &expert in judging.iter().filter(|&&expert| counts(expert)) {
            self.cache.computed(PieceId::expert(layer, expert));
        }
        self.needed.retain(|&expert| !counts(expert));
        let refused = self.in_order(refused);
        self.wanted.extend(refused);
        Ok(self.fallback_reassemble()?)
    }

    /// A pass is entering a layer that counts.
    pub(super) fn pace_begins(&mut self) {
        if !self.inexact.whole.is_empty() {
            self.read_ahead();
            let now = self.waiter.clock().now();
            self.inexact.pace.entered = Some((now, self.waiter.stalls().time));
        }
    }

    /// An expert of so many bytes is being read.
    pub(super) fn reads(&mut self, bytes: usize) {
        self.inexact.expert_bytes = Some(bytes);
    }

    /// The layer has been computed.
    pub(super) fn pace_ends(&mut self) {
        let pace = &mut self.inexact.pace;
        if let Some((entered, waited)) = pace.entered.take() {
            let waited = self.waiter.stalls().time.saturating_sub(waited);
            let took = self.waiter.clock().now().saturating_sub(entered + waited);
            let before = if pace.layer.is_zero() { took } else { pace.layer };
            pace.layer = (before * (LATELY - 1) + took) / LATELY;
        }
    }

    /// The router of a layer has chosen, and it counts.
    pub(super) fn chosen(&mut self, experts: &[u32], misses: usize) {
        let Inexact { pace, foreseen, counts, .. } = &mut self.inexact;
        pace.misses += (misses as f64 - pace.misses) / f64::from(LATELY);
        while foreseen.front().is_some_and(|(layer, _)| *layer < self.layer) {
            foreseen.pop_front();
        }
        if let Some((_, expected)) = foreseen.pop_front_if(|(layer, _)| *layer == self.layer) {
            counts.foreseen += expected.len() as u64;
            counts.right += expected.iter().filter(|e| experts.contains(e)).count() as u64;
        }
    }

    /// A pass that is running ahead has come to know what a layer chooses, as far as stand-ins tell:
    /// what is there of it stays, and the rest is read.
    pub(super) fn foresee(&mut self, layer: usize, routed: &Routed) -> Result<(), StreamError> {
        self.drain()?;
        let layer = layer as u32;
        let ids = routed.distinct.iter().map(|&expert| PieceId::expert(layer, expert));
        for id in self.in_order(ids) {
            self.promise(id);
            let probability = self.inexact.counts.probability();
            self.forecast.push_back(Expected { id, probability, priority: Priority::Speculative });
        }
        self.inexact.counts.layers += 1;
        self.inexact.foreseen.push_back((layer, routed.distinct.clone()));
        self.read_ahead();
        Ok(())
    }

    /// Only where nothing is known yet of what comes later: what is known is being read already.
    fn begins(&mut self, layer: usize) -> Result<bool, StreamError> {
        let whole = &self.inexact.whole;
        let later = layer + 1 < whole.len() && whole[layer];
        let idle = self.forecast.is_empty() && self.reading.values().all(|r| r.demanded);
        let begins = later && idle && self.speculating.governor.on() && self.pays()?;
        if begins {
            self.note_run_ahead();
            self.inexact.running = Some(layer as u32);
            self.inexact.counts.runs += 1;
        }
        Ok(begins)
    }

    /// Whether the first layer's experts are still awaited.
    fn goes_on(&mut self, layer: usize) -> Result<bool, StreamError> {
        self.waiter.check()?;
        self.drain()?;
        let whole = self.inexact.whole.get(layer).is_some_and(|whole| *whole);
        Ok(whole && self.missing() > 0)
    }

    /// Experts of the layer that are not there.
    fn missing(&self) -> usize {
        self.needed.iter().filter(|&&expert| self.presence(expert) != Presence::Exact).count()
    }

    /// How many reads keep the device busy until somebody looks at it again; none if nobody knows. A read
    /// that waits for others has a slot already, in which something else could be: with 16 at a time on a
    /// disk of 0.1 GB/s, running ahead read 7 % more bytes than with these.
    pub(super) fn busy_with(&self) -> Option<usize> {
        let layer = self.inexact.pace.layer.as_secs_f64();
        let one = self.one_read().filter(|_| layer > 0.0)?;
        Some(1 + (f64::from(SURE) * layer / one).ceil() as usize)
    }

    /// Seconds that reading an expert takes, by what has been read so far.
    fn one_read(&self) -> Option<f64> {
        let expert = self.inexact.expert_bytes.filter(|_| !self.inexact.whole.is_empty())?;
        let stats = self.store.stats();
        let traffic = [stats.demanded, stats.ahead, stats.speculative];
        let read: u64 = traffic.iter().map(|traffic| traffic.bytes).sum();
        (read > 0).then(|| stats.busy.as_secs_f64() * expert as f64 / read as f64)
    }

    /// Whether the wait for this layer's experts, and those that later layers will make, are long
    /// enough to compute a layer in.
    fn pays(&mut self) -> Result<bool, StreamError> {
        self.drain()?;
        self.fallback_reassemble()?;
        let missing = self.missing();
        let Some(one) = self.one_read().filter(|_| missing > 0) else { return Ok(false) };
        let Pace { layer, misses, .. } = self.inexact.pace;
        let later = self.inexact.whole.len() - 1 - self.layer as usize;
        let enough = (layer * SURE).as_secs_f64();
        Ok(missing as f64 * one > enough && misses * later as f64 * one > enough)
    }
}

impl Inexact {
    /// Whether the layer of a piece has been computed ahead, and has not come yet.
    pub(super) fn has_foreseen(&self, id: PieceId) -> bool {
        self.foreseen.iter().any(|&(layer, _)| id.layer() == Some(layer))
    }
}

impl RunAheadCounts {
    /// How often what was foreseen was right, with a beginner's luck of one in two.
    fn probability(&self) -> f32 {
        (self.right as f32 + 1.0) / (self.foreseen as f32 + 2.0)
    }
}
