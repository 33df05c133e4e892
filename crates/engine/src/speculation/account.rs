//! The account of speculation: turns measured times into prices and a decision.

#[cfg(test)]
mod tests;

use std::time::Duration;

use sws_cache::{Lookup, PredictiveCache};
use sws_format::PieceId;
use sws_store::{StoreStats, Timing};

use super::counterfactual::Counterfactual;
use super::governor::{Governor, nanos};
use super::price::{ComputePace, ReadOffer, ReadTimeModel, expected_stall};
use crate::reads::{expert_ids, is_expert_of};
use crate::wait::Moment;

/// Weight of all earlier layers in the rate of demanded reads, applied at each layer.
const KEEP: f64 = 0.98;

/// Weight of all earlier layers in the stalls by which the model of stalls is scaled: some four
/// tokens of a model of 48 layers.
const KEEP_STALLS: f64 = 0.995;
/// Time of this many reads, which counts as a correctly predicted stall, so that a few layers do
/// not change the scale much.
const PRIOR_READS: f64 = 8.0;

/// Measured times of a run, and the time that speculation has gained and lost.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) governor: Governor,
    pub(crate) pace: ComputePace,
    counterfactual: Counterfactual,
    device: Device,
    pass: PassTime,
    stats: StoreStats,
    layer: LayerFindings,
}

/// Read times of the device.
#[derive(Debug, Default)]
struct Device {
    /// Demanded reads that find the device idle.
    first: ReadTimeModel,
    /// Demanded reads that follow another read.
    demanded: ReadTimeModel,
    /// Nanoseconds per byte and per chunk of speculative reads.
    speculative: Option<(f64, f64)>,
    /// Number of demanded reads, and the nanoseconds over which they were counted.
    demands: (f64, f64),
    /// Nanoseconds of stalls that speculation has not affected, measured and modelled.
    stalls: (f64, f64),
    /// End of the last read.
    ended: Duration,
}

/// Nanoseconds of the running pass up to a moment, in all and in waits.
#[derive(Debug, Default)]
struct PassTime {
    all: f64,
    waited: f64,
    upto: Moment,
}

/// Findings when the router of the running layer chose.
#[derive(Clone, Copy, Debug, Default)]
struct LayerFindings {
    needed: usize,
    /// Misses of a demand-only cache.
    misses_without: usize,
    misses: usize,
    /// Misses that a demand-only cache would have avoided.
    misses_caused: usize,
    /// True if speculation has affected the wait for the layer.
    touched: bool,
    /// True if the device was busy with a speculative read.
    behind: bool,
    bytes: usize,
    waited: Duration,
    /// Time that the first demanded read waited for the device.
    delay: Option<Duration>,
}

/// Input of the account when a router has chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChosenExperts<'a> {
    pub(crate) layer: usize,
    /// Experts that at least one token uses.
    pub(crate) distinct: &'a [u32],
    /// Length of an expert in bytes.
    pub(crate) bytes: usize,
    /// True during a sweep, in which nothing is booked.
    pub(crate) sweeping: bool,
    /// Speculative reads that the device has begun and no router has selected, with their bytes.
    pub(crate) begun: &'a [(PieceId, usize)],
}

impl Account {
    /// Creates an account for a model with this many layers. Unless `governed`, speculation is
    /// always on.
    pub(crate) fn new(layers: usize, governed: bool) -> Account {
        Account {
            governor: Governor::new(governed),
            pace: ComputePace::new(layers),
            counterfactual: Counterfactual::default(),
            device: Device::default(),
            pass: PassTime::default(),
            stats: StoreStats::default(),
            layer: LayerFindings::default(),
        }
    }

    /// Estimated nanoseconds to read `bytes` bytes on demand; 0 if nothing was measured.
    pub(crate) fn demanded_nanos(&self, bytes: usize) -> f64 {
        if bytes == 0 { 0.0 } else { self.device.demanded(bytes).unwrap_or(0.0) }
    }

    /// Estimated nanoseconds to read `bytes` bytes speculatively; 0 if nothing was measured.
    pub(crate) fn prefetch_nanos(&self, bytes: usize) -> f64 {
        if bytes == 0 { 0.0 } else { self.device.speculative(bytes).unwrap_or(0.0) }
    }

    /// Returns the offer to prefetch a piece of `bytes` bytes that is needed with this probability,
    /// `lead` nanoseconds after the read could begin. `None` if nothing is known of the disk.
    pub(crate) fn offer(&self, bytes: usize, probability: f32, lead: f64) -> Option<ReadOffer> {
        let service = self.device.demanded(bytes)?;
        let slower = self.device.speculative(bytes)? / service.max(1.0);
        let (demands, time) = self.device.demands;
        Some(ReadOffer {
            probability: f64::from(probability),
            lead: lead / slower.max(1.0),
            service,
            chunk: self.device.chunk().unwrap_or(service),
            demands: demands / time.max(1.0),
            victim: 0.0,
        })
    }

    /// True if the last pass has computed a layer with experts.
    pub(crate) fn has_passed(&self) -> bool {
        self.pass.all > 0.0
    }

    /// Starts a pass of `tokens` tokens. `sweeping` is true if the previous pass was a sweep, and
    /// `stats` are the store's counts so far.
    pub(crate) fn pass_begins(
        &mut self,
        at: Moment,
        tokens: usize,
        sweeping: bool,
        stats: StoreStats,
    ) {
        self.pace.pass_begins(tokens);
        let PassTime { all, waited, .. } =
            std::mem::replace(&mut self.pass, PassTime { upto: at, ..PassTime::default() });
        if all > 0.0 && !sweeping {
            self.governor.passed(all, waited);
        }
        let now = &stats.speculative;
        let before = &self.stats.speculative;
        let reads = now.reads - before.reads;
        let bytes = now.bytes - before.bytes;
        if reads > 0 && bytes > 0 {
            let time = nanos(now.on_device.saturating_sub(before.on_device));
            self.device.prefetched(time / bytes as f64, time / reads as f64);
        }
        self.stats = stats;
    }

    /// Drops the counterfactual cache if it has converged, in a pass without prefetches.
    pub(crate) fn idles<T>(&mut self, cache: &PredictiveCache<T>) {
        self.counterfactual.drop_if_converged(cache.len(), |piece| cache.contains(piece));
    }

    /// Drops the counterfactual cache after slots were added or removed, which makes it
    /// incomparable.
    pub(crate) fn slots_changed(&mut self) {
        self.counterfactual.clear();
    }

    /// Books time that the draft has computed.
    pub(crate) fn draft_took(&mut self, took: Duration) {
        self.governor.draft_took(nanos(took));
    }

    /// Books time spent on forecasts, the draft's included, as a cost.
    pub(crate) fn forecast_took(&mut self, took: Duration) {
        self.governor.book(0.0, nanos(took));
    }

    /// Compares a router's choice with the resident pieces, and with those of a demand-only cache.
    pub(crate) fn chosen<T>(
        &mut self,
        at: Moment,
        chosen: ChosenExperts<'_>,
        cache: &mut PredictiveCache<T>,
    ) {
        let ChosenExperts { layer, distinct, bytes, sweeping, begun } = chosen;
        self.pace.chosen(layer, at);
        let mut found = LayerFindings {
            waited: at.waited,
            needed: distinct.len(),
            bytes,
            ..LayerFindings::default()
        };
        if sweeping {
            self.counterfactual.clear();
        }
        let number = layer as u32;
        for id in expert_ids(number, distinct.iter().copied()) {
            let lookup = cache.find(id);
            let miss = lookup != Lookup::Ready;
            let last = |may: &dyn Fn(PieceId) -> bool| cache.policy_mut().least_urgent(id, may);
            let may_go = |other| !is_expert_of(other, number, distinct);
            let known = self.counterfactual.lookup(id, may_go, last);
            let hit_without = known.unwrap_or(!miss);
            let prefetched = self.counterfactual.settle(id);
            if lookup == Lookup::Ready && prefetched {
                self.governor.useful(bytes);
                found.touched = true;
            }
            if lookup == Lookup::Loading
                && let Some(&(_, bytes)) = begun.iter().find(|(begun, _)| *begun == id)
            {
                self.governor.issued(bytes);
                self.governor.useful(bytes);
                found.touched = true;
            }
            found.misses += usize::from(miss);
            found.misses_without += usize::from(!hit_without);
            found.misses_caused += usize::from(miss && hit_without);
            found.touched |= miss == hit_without;
        }
        found.behind = !begun.is_empty();
        found.touched |= found.behind;
        self.layer = found;
    }

    /// Marks the layer as affected, as the pass runs ahead during its wait.
    pub(crate) fn runs_ahead(&mut self) {
        self.layer.touched = true;
    }

    /// Books the stalls that speculation has saved or added, once the experts of a layer have been
    /// computed.
    pub(crate) fn done(&mut self, layer: usize, at: Moment, sweeping: bool) {
        self.pace.done(at);
        let PassTime { all, waited, upto } = &mut self.pass;
        let took = nanos(at.now.saturating_sub(upto.now));
        *all += took;
        *waited += nanos(at.waited.saturating_sub(upto.waited));
        *upto = at;
        let LayerFindings { needed, misses_without, misses, misses_caused, touched, bytes, .. } =
            self.layer;
        let LayerFindings { waited, delay, .. } = std::mem::take(&mut self.layer);
        let (demands, time) = self.device.demands;
        self.device.demands = (demands * KEEP + misses as f64, time * KEEP + took);
        let (Some(times), Some(service)) = (self.pace.of(layer), self.device.demanded(bytes))
        else {
            return;
        };
        if sweeping {
            return;
        }
        let waited = nanos(at.waited.saturating_sub(waited));
        let first = self.device.first(bytes).unwrap_or(service);
        let modelled = |misses: usize| expected_stall(needed, misses, times, first, service);
        if !touched {
            // While speculation is on, the layers that it does not affect are not representative.
            if !self.governor.on() {
                self.device.stalled(waited, modelled(misses));
            }
            return;
        }
        let scale = self.device.stall_scale(service);
        let stall = |misses: usize| scale * modelled(misses);
        let delay = delay.map_or(0.0, nanos).min(self.device.chunk().unwrap_or(service));
        let mut cost = delay + stall(misses) - stall(misses - misses_caused);
        let mut saved = stall(misses_without) - waited + cost;
        // A measured wait can be slightly longer than the one that the model predicts without
        // speculation.
        if saved < 0.0 {
            (saved, cost) = (0.0, cost - saved);
        }
        self.governor.book(saved, cost);
    }

    /// Notes that a read was issued into a slot, and which piece it has evicted, if any.
    pub(crate) fn issued<T>(
        &mut self,
        id: PieceId,
        speculative: bool,
        evicted: Option<PieceId>,
        cache: &PredictiveCache<T>,
    ) {
        if speculative {
            let before = cache.pieces().filter(|&piece| piece != id).chain(evicted);
            self.counterfactual.fork(cache.slots(), before);
        }
        if self.counterfactual.issued(id, speculative, evicted) {
            self.governor.wasted();
        }
    }

    /// Counts a speculative read that has landed before a router selected its piece.
    pub(crate) fn landed_unasked(&mut self, bytes: usize) {
        self.governor.issued(bytes);
    }

    /// Counts a read that was given up or has failed before a router selected its piece.
    pub(crate) fn given_up(&mut self, id: PieceId, begun: bool, bytes: usize) {
        if self.counterfactual.settle(id) && begun {
            self.governor.issued(bytes);
            self.governor.wasted();
        }
    }

    /// Notes the times of a successful read. `demanded` is true for a demanded read that did not
    /// begin as a speculative one.
    pub(crate) fn landed(&mut self, bytes: usize, demanded: bool, timing: &Timing) {
        let Some(started) = timing.started else { return };
        let Device { first, demanded: later, ended, .. } = &mut self.device;
        if demanded {
            if timing.submitted < *ended {
                later.note(bytes, timing.finished.saturating_sub(started.max(*ended)));
            } else if !self.layer.behind {
                // Measured from the request, so that the time until the reader begins is included.
                // A read that waits for a speculative chunk is left out, as its latency is hidden
                // behind the chunk.
                first.note(bytes, timing.finished.saturating_sub(timing.submitted));
            }
            self.layer.delay.get_or_insert(started.saturating_sub(timing.submitted));
        }
        *ended = (*ended).max(timing.finished);
    }
}

impl Device {
    /// Estimated nanoseconds of a demanded read.
    fn demanded(&self, bytes: usize) -> Option<f64> {
        let known = self.demanded.nanos(bytes);
        if known.is_some() { known } else { self.first.nanos(bytes).or(self.prefetch(bytes)) }
    }

    /// Estimated nanoseconds of the first of several reads demanded together.
    fn first(&self, bytes: usize) -> Option<f64> {
        let known = self.first.nanos(bytes);
        if known.is_some() { known } else { self.demanded(bytes) }
    }

    /// Estimated nanoseconds of a speculative read.
    fn speculative(&self, bytes: usize) -> Option<f64> {
        let known = self.prefetch(bytes);
        if known.is_some() { known } else { self.demanded(bytes) }
    }

    /// Estimated nanoseconds of a speculative read; `None` if none was measured.
    fn prefetch(&self, bytes: usize) -> Option<f64> {
        Some(self.speculative?.0 * bytes as f64)
    }

    /// Adds the stall of a layer that speculation has not affected, and the one that the model
    /// expects.
    fn stalled(&mut self, measured: f64, modelled: f64) {
        let (measured_before, modelled_before) = self.stalls;
        self.stalls =
            (measured_before * KEEP_STALLS + measured, modelled_before * KEEP_STALLS + modelled);
    }

    /// Measured stalls over modelled ones. The model only knows mean times. Where read times vary,
    /// or computing slows reads down, stalls are longer.
    fn stall_scale(&self, service: f64) -> f64 {
        let (measured, modelled) = self.stalls;
        let prior = PRIOR_READS * service;
        (measured + prior) / (modelled + prior).max(1.0)
    }

    /// Estimated nanoseconds of a chunk of a speculative read.
    fn chunk(&self) -> Option<f64> {
        Some(self.speculative?.1)
    }

    /// Adds the mean nanoseconds per byte and per chunk of a pass's speculative reads.
    fn prefetched(&mut self, byte: f64, chunk: f64) {
        let (old_byte, old_chunk) = self.speculative.unwrap_or((byte, chunk));
        self.speculative = Some(((byte + old_byte) / 2.0, (chunk + old_chunk) / 2.0));
    }
}
