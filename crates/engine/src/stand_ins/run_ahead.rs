//! Runs the pass ahead on stand-ins while experts are read, and judges stand-ins where some may count.

use std::collections::VecDeque;

use sws_model::Routed;
use sws_store::PieceId;

use super::StandIns;
use crate::speculation::Moment;
use std::time::Duration;

/// Stand-ins, and the run ahead that they allow.
#[derive(Debug, Default)]
pub(crate) struct RunAheadState {
    pub(crate) stand_ins: StandIns,
    /// Stand-ins that may count for the layer whose router chose last, if they are close enough.
    pub(crate) to_judge: Vec<u32>,
    /// For each layer, true if stand-ins can serve all of its experts; empty if no pass runs ahead.
    covered: Vec<bool>,
    /// The layer from which the pass is running ahead.
    from: Option<u32>,
    /// Choices that layers computed ahead have made, the first layer in front.
    foreseen: VecDeque<(u32, Vec<u32>)>,
    pace: Pace,
    counts: RunAheadCounts,
}

/// Results of running ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunAheadCounts {
    /// Number of times that the pass ran ahead, and went back.
    pub runs: u64,
    /// Layers computed ahead.
    pub layers: u64,
    /// Experts that they chose.
    pub foreseen: u64,
    /// Number of these that were chosen when it counted.
    pub right: u64,
}

/// Recent times of a layer.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    entered: Option<Moment>,
    /// Time that a layer of one token takes without waiting.
    layer: Duration,
    /// Misses of a layer.
    misses: f64,
}

/// The last of so many values counts as much as all before.
const RECENT: u32 = 8;
/// A run ahead costs at most a layer that is begun just before the wait is over, and a second computation
/// of this layer's resident experts. Its gain has to be as much, and is an estimate.
const SURE: u32 = 2;

/// The wait for a layer's misses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Wait {
    /// Experts of the layer that are not resident.
    pub(crate) missing: usize,
    /// Seconds that reading an expert takes; none if nothing was read yet.
    pub(crate) seconds_per_expert: Option<f64>,
}

impl RunAheadState {
    /// Uses stand-ins. `run_ahead` allows running ahead through the layers that they cover, of which
    /// `experts` has the numbers of experts.
    pub(crate) fn new(
        stand_ins: StandIns,
        run_ahead: bool,
        experts: impl Iterator<Item = u32>,
    ) -> RunAheadState {
        let covers = |(layer, experts): (u32, u32)| {
            (0..experts).all(|expert| stand_ins.contains(PieceId::expert(layer, expert)))
        };
        let covered = if run_ahead { (0..).zip(experts).map(covers).collect() } else { Vec::new() };
        RunAheadState { stand_ins, covered, ..RunAheadState::default() }
    }

    pub(crate) fn counts(&self) -> RunAheadCounts {
        self.counts
    }

    /// True if passes may run ahead at all.
    pub(crate) fn is_possible(&self) -> bool {
        !self.covered.is_empty()
    }

    /// Ends a run ahead, and forgets what it has foreseen.
    pub(crate) fn forget(&mut self) {
        self.from = None;
        self.to_judge.clear();
        self.foreseen.clear();
    }

    /// True while the pass is running ahead.
    pub(crate) fn is_running(&self) -> bool {
        self.from.is_some()
    }

    /// True if this layer is computed to learn its choice, and does not count.
    pub(crate) fn is_lookahead_layer(&self, layer: usize) -> bool {
        self.from.is_some_and(|from| (from as usize) < layer)
    }

    /// True if a layer computed ahead, which has not come yet, has made a choice about this piece.
    pub(crate) fn has_foreseen(&self, id: PieceId) -> bool {
        self.foreseen.iter().any(|&(layer, _)| id.layer() == Some(layer))
    }

    /// A layer that counts is entered.
    pub(crate) fn layer_begins(&mut self, at: Moment) {
        self.pace.entered = Some(at);
    }

    /// The layer has been computed.
    pub(crate) fn layer_done(&mut self, at: Moment) {
        if let Some(entered) = self.pace.entered.take() {
            let took = Duration::from_nanos(at.computing(entered) as u64);
            let layer = &mut self.pace.layer;
            let before = if layer.is_zero() { took } else { *layer };
            *layer = (before * (RECENT - 1) + took) / RECENT;
        }
    }

    /// The router of a layer that counts has chosen, with so many misses.
    pub(crate) fn on_routed(&mut self, layer: u32, experts: &[u32], misses: usize) {
        let RunAheadState { pace, foreseen, counts, .. } = self;
        pace.misses += (misses as f64 - pace.misses) / f64::from(RECENT);
        while foreseen.front().is_some_and(|(foreseen, _)| *foreseen < layer) {
            foreseen.pop_front();
        }
        if let Some((_, expected)) = foreseen.pop_front_if(|(foreseen, _)| *foreseen == layer) {
            counts.foreseen += expected.len() as u64;
            counts.right += expected.iter().filter(|e| experts.contains(e)).count() as u64;
        }
    }

    /// A layer computed ahead has chosen. Returns the probability that each choice is right.
    pub(crate) fn foresee(&mut self, layer: u32, routed: &Routed) -> f32 {
        self.counts.layers += 1;
        self.foreseen.push_back((layer, routed.distinct.clone()));
        self.counts.probability()
    }

    /// True if stand-ins can serve this layer and there are layers behind it.
    pub(crate) fn can_start(&self, layer: usize) -> bool {
        layer + 1 < self.covered.len() && self.covered[layer]
    }

    /// True if the wait for this layer's misses, and those that later layers will make, are long enough to
    /// compute a layer in.
    pub(crate) fn is_worth_running(&self, layer: usize, wait: Wait) -> bool {
        let Wait { missing, seconds_per_expert } = wait;
        let Some(one) = seconds_per_expert.filter(|_| missing > 0) else { return false };
        let later = self.covered.len() - 1 - layer;
        let enough = (self.pace.layer * SURE).as_secs_f64();
        missing as f64 * one > enough && self.pace.misses * later as f64 * one > enough
    }

    /// The pass runs ahead from this layer on.
    pub(crate) fn start(&mut self, layer: usize) {
        self.from = Some(layer as u32);
        self.counts.runs += 1;
    }

    /// True if stand-ins can serve this layer, too.
    pub(crate) fn can_continue(&self, layer: usize) -> bool {
        self.covered.get(layer).is_some_and(|covered| *covered)
    }

    /// The pass has gone back.
    pub(crate) fn finish(&mut self) {
        self.from = None;
    }

    /// Number of reads that keep the device busy until the next poll; none if nothing is known. A read
    /// that waits for others has a slot already, in which something else could be: with 16 at a time on a
    /// disk of 0.1 GB/s, running ahead read 7 % more bytes than with these.
    pub(crate) fn reads_until_next_poll(&self, seconds_per_expert: Option<f64>) -> Option<usize> {
        let layer = self.pace.layer.as_secs_f64();
        let one = seconds_per_expert.filter(|_| layer > 0.0 && self.is_possible())?;
        Some(1 + (f64::from(SURE) * layer / one).ceil() as usize)
    }
}

impl RunAheadCounts {
    /// Share of right choices, beginning with one in two.
    fn probability(&self) -> f32 {
        (self.right as f32 + 1.0) / (self.foreseen as f32 + 2.0)
    }
}
