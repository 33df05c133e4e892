//! State of running ahead. While experts are read, later layers are computed on stand-ins, to learn
//! which experts they choose. The state also holds stand-ins to be judged, where inexact results
//! may count.

use std::collections::VecDeque;
use std::sync::Arc;

use sws_format::PieceId;
use sws_model::Routed;

use super::copies::StandIns;
use crate::wait::Moment;
use std::time::Duration;

/// Stand-ins, and the state of a run ahead.
#[derive(Debug, Default)]
pub(crate) struct RunAheadState {
    pub(crate) stand_ins: Arc<StandIns>,
    /// Stand-ins that may count for the layer whose router chose last, if their error is small
    /// enough.
    pub(crate) to_judge: Vec<u32>,
    /// For each layer, true if stand-ins can serve all of its experts; empty if no pass runs ahead.
    covered: Vec<bool>,
    /// The layer from which the pass is running ahead.
    from: Option<u32>,
    /// Choices of the layers computed ahead, in order.
    foreseen: VecDeque<(u32, Vec<u32>)>,
    pace: LayerPace,
    counts: RunAheadCounts,
}

/// Counts of running ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunAheadCounts {
    /// Number of runs ahead.
    pub runs: u64,
    /// Layers computed ahead.
    pub layers: u64,
    /// Experts chosen by these layers.
    pub foreseen: u64,
    /// Number of these that were also chosen in the real computation.
    pub right: u64,
}

/// Recent averages over layers.
#[derive(Clone, Copy, Debug, Default)]
struct LayerPace {
    entered: Option<Moment>,
    /// Compute time of a layer for one token, without stalls.
    layer: Duration,
    /// Misses per layer.
    misses: f64,
}

/// Span of the moving averages: the latest value has a weight of one part in this many.
const RECENT: u32 = 8;
/// Minimum gain of a run ahead, in layers. A run ahead costs at most one layer begun just before
/// the wait ends, and a second computation of this layer's resident experts. The gain is only an
/// estimate.
const MIN_GAIN_LAYERS: u32 = 2;

/// The wait for a layer's misses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Wait {
    /// Experts of the layer that are not resident.
    pub(crate) missing: usize,
    /// Read time of an expert in seconds; `None` before the first read.
    pub(crate) seconds_per_expert: Option<f64>,
}

impl RunAheadState {
    /// Creates the state with these stand-ins. `run_ahead` allows running ahead through the layers
    /// that they cover. `experts` has the number of experts of each layer.
    pub(crate) fn new(
        stand_ins: Arc<StandIns>,
        run_ahead: bool,
        experts: impl Iterator<Item = u32>,
    ) -> RunAheadState {
        let mut covered = Vec::new();
        if run_ahead {
            for (layer, experts) in (0..).zip(experts) {
                covered.push(stand_ins.covers(layer, experts));
            }
        }
        RunAheadState { stand_ins, covered, ..RunAheadState::default() }
    }

    pub(crate) fn counts(&self) -> RunAheadCounts {
        self.counts
    }

    /// True if passes may run ahead at all.
    pub(crate) fn is_possible(&self) -> bool {
        !self.covered.is_empty()
    }

    /// Ends a run ahead, and drops its foreseen choices.
    pub(crate) fn forget(&mut self) {
        self.from = None;
        self.to_judge.clear();
        self.foreseen.clear();
    }

    /// True while the pass is running ahead.
    pub(crate) fn is_running(&self) -> bool {
        self.from.is_some()
    }

    /// True if a layer is computed only to learn its choice.
    pub(crate) fn is_lookahead_layer(&self, layer: usize) -> bool {
        matches!(self.from, Some(from) if (from as usize) < layer)
    }

    /// True if the choice of this piece's layer has been foreseen.
    pub(crate) fn has_foreseen(&self, id: PieceId) -> bool {
        self.foreseen.iter().any(|&(layer, _)| id.layer() == Some(layer))
    }

    /// Records the start of a layer of the real computation.
    pub(crate) fn layer_begins(&mut self, at: Moment) {
        self.pace.entered = Some(at);
    }

    /// Records the end of that layer.
    pub(crate) fn layer_done(&mut self, at: Moment) {
        if let Some(entered) = self.pace.entered.take() {
            let took = Duration::from_nanos(at.computing(entered) as u64);
            let layer = &mut self.pace.layer;
            let before = if layer.is_zero() { took } else { *layer };
            *layer = (before * (RECENT - 1) + took) / RECENT;
        }
    }

    /// Records the choice of a layer of the real computation, and its misses.
    pub(crate) fn on_routed(&mut self, layer: u32, experts: &[u32], misses: usize) {
        let RunAheadState { pace, foreseen, counts, .. } = self;
        pace.misses += (misses as f64 - pace.misses) / f64::from(RECENT);
        while let Some((first, _)) = foreseen.front()
            && *first < layer
        {
            foreseen.pop_front();
        }
        if let Some((_, expected)) = foreseen.pop_front_if(|(foreseen, _)| *foreseen == layer) {
            counts.foreseen += expected.len() as u64;
            counts.right += expected.iter().filter(|e| experts.contains(e)).count() as u64;
        }
    }

    /// Records the choice of a layer computed ahead. Returns the probability that each chosen
    /// expert is right.
    pub(crate) fn foresee(&mut self, layer: u32, routed: &Routed) -> f32 {
        self.counts.layers += 1;
        self.foreseen.push_back((layer, routed.distinct.clone()));
        self.counts.probability()
    }

    /// True if stand-ins cover this layer and it is not the last.
    pub(crate) fn can_start(&self, layer: usize) -> bool {
        layer + 1 < self.covered.len() && self.covered[layer]
    }

    /// True if the wait for this layer's misses, and the expected waits of later layers, are long
    /// enough for computing ahead.
    pub(crate) fn is_worth_running(&self, layer: usize, wait: Wait) -> bool {
        let Wait { missing, seconds_per_expert } = wait;
        let Some(one) = seconds_per_expert else { return false };
        if missing == 0 {
            return false;
        }
        let later = self.covered.len() - 1 - layer;
        let enough = (self.pace.layer * MIN_GAIN_LAYERS).as_secs_f64();
        missing as f64 * one > enough && self.pace.misses * later as f64 * one > enough
    }

    /// Starts running ahead from this layer.
    pub(crate) fn start(&mut self, layer: usize) {
        self.from = Some(layer as u32);
        self.counts.runs += 1;
    }

    /// True if stand-ins cover this layer.
    pub(crate) fn can_continue(&self, layer: usize) -> bool {
        self.covered.get(layer).copied().unwrap_or(false)
    }

    /// Ends the run ahead, and keeps its foreseen choices.
    pub(crate) fn finish(&mut self) {
        self.from = None;
    }

    /// Number of reads that keep the device busy until the next poll; `None` if times are unknown.
    /// A queued read occupies a slot that another expert could use: with 16 reads at a time on a
    /// disk of 0.1 GB/s, running ahead read 7 % more bytes than with this number.
    pub(crate) fn reads_until_next_poll(&self, seconds_per_expert: Option<f64>) -> Option<usize> {
        if self.pace.layer.is_zero() || !self.is_possible() {
            return None;
        }
        let layer = self.pace.layer.as_secs_f64();
        let one = seconds_per_expert?;
        Some(1 + (f64::from(MIN_GAIN_LAYERS) * layer / one).ceil() as usize)
    }
}

impl RunAheadCounts {
    /// Share of right choices, starting at one half.
    fn probability(&self) -> f32 {
        (self.right as f32 + 1.0) / (self.foreseen as f32 + 2.0)
    }
}
