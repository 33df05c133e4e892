//! Cost model of prefetching: measured times, and the gain and cost of a speculative read.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::wait::Moment;

/// Weight of a loss against a gain. It is one because reads are preemptible; it would be two for
/// reads that a demand had to wait for to their end.
const KAPPA: f64 = 1.0;
/// Number of steps within which a victim that is used again counts as evicted too soon.
pub(crate) const LIKELY_VICTIM_STEPS: usize = 4;
/// Weight of all earlier measurements, applied with each new one.
const KEEP: f64 = 0.9;

/// Model of read times by length: a latency and a time per byte, fitted as a line through the
/// measurements, with decaying weights of the past. If all reads have one length, times are
/// proportional to length.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadTimeModel {
    n: f64,
    bytes: f64,
    nanos: f64,
    squares: f64,
    products: f64,
}

impl ReadTimeModel {
    /// Adds a read of `bytes` bytes that has kept the device busy for `time`.
    pub(crate) fn note(&mut self, bytes: usize, time: Duration) {
        let bytes = bytes as f64;
        let nanos = time.as_nanos() as f64;
        let ReadTimeModel { n, bytes: sum, nanos: time, squares, products } = self;
        for (sum, value) in [
            (n, 1.0),
            (sum, bytes),
            (time, nanos),
            (squares, bytes * bytes),
            (products, bytes * nanos),
        ] {
            *sum = *sum * KEEP + value;
        }
    }

    /// Estimated nanoseconds of a read of `bytes` bytes; `None` if nothing was measured.
    pub(crate) fn nanos(&self, bytes: usize) -> Option<f64> {
        if self.n == 0.0 {
            return None;
        }
        let mean = self.nanos / self.n;
        let length = self.bytes / self.n;
        let spread = self.squares / self.n - length * length;
        let slope = match spread > 1e-6 * length * length {
            true => (self.products / self.n - length * mean) / spread,
            false => mean / length.max(1.0),
        };
        // Longer reads that take less time, or a negative latency, would be noise.
        let slope = slope.clamp(0.0, mean / length.max(1.0));
        Some(mean + slope * (bytes as f64 - length))
    }
}

/// Stage of a pass within a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PassStage {
    /// Between passes, or after the experts of a layer.
    Between,
    /// Before the router has chosen.
    Before,
    /// After the router's choice: the shared expert, if there is one, is computed.
    Chosen,
    /// Computing this many routed experts.
    Experts(usize),
}

/// Computing times of each layer, without waits.
#[derive(Clone, Debug)]
pub(crate) struct ComputePace {
    /// Binary logarithm of the number of tokens in the running pass, rounded down.
    class: u32,
    layers: Vec<LayerTimes>,
    /// Times of passes of the other classes.
    others: BTreeMap<u32, Vec<LayerTimes>>,
    layer: usize,
    stage: PassStage,
    since: Moment,
}

/// Computing times of one layer in nanoseconds; `None` if not measured.
#[derive(Clone, Copy, Debug, Default)]
struct LayerTimes {
    /// Before the layer's router has chosen.
    before: Option<f64>,
    /// Between the router's choice and the first routed expert.
    chosen: Option<f64>,
    /// Per routed expert.
    expert: Option<f64>,
    /// Mean number of routed experts.
    experts: f64,
}

impl ComputePace {
    pub(crate) fn new(layers: usize) -> ComputePace {
        ComputePace {
            class: 0,
            layers: vec![LayerTimes::default(); layers],
            others: BTreeMap::new(),
            layer: 0,
            stage: PassStage::Between,
            since: Moment::default(),
        }
    }

    /// Starts a pass of `tokens` tokens. Times are kept for each power of two tokens: steps in which
    /// sequences come and go do not forget them.
    pub(crate) fn pass_begins(&mut self, tokens: usize) {
        self.stage = PassStage::Between;
        let class = tokens.max(1).ilog2();
        if class != self.class {
            let times = match self.others.remove(&class) {
                Some(times) => times,
                None => vec![LayerTimes::default(); self.layers.len()],
            };
            let before = std::mem::replace(&mut self.layers, times);
            self.others.insert(self.class, before);
            self.class = class;
        }
    }

    pub(crate) fn entering(&mut self, layer: usize, at: Moment) {
        self.go(layer, PassStage::Before, at);
    }

    pub(crate) fn chosen(&mut self, layer: usize, at: Moment) {
        self.go(layer, PassStage::Chosen, at);
    }

    pub(crate) fn experts(&mut self, layer: usize, experts: usize, at: Moment) {
        self.go(layer, PassStage::Experts(experts), at);
    }

    /// Ends a layer whose experts have been computed.
    pub(crate) fn done(&mut self, at: Moment) {
        self.go(self.layer, PassStage::Between, at);
    }

    fn go(&mut self, layer: usize, stage: PassStage, at: Moment) {
        let took = at.computing(self.since);
        let onward = layer == self.layer + 1 && self.stage == PassStage::Before;
        if let Some(times) = self.layers.get_mut(self.layer)
            && (layer == self.layer || onward)
        {
            match self.stage {
                PassStage::Between => {}
                PassStage::Before => {
                    blend(&mut times.before, took);
                    if onward {
                        // The layer has no router.
                        (times.chosen, times.expert) = (Some(0.0), Some(0.0));
                    }
                }
                PassStage::Chosen => blend(&mut times.chosen, took),
                PassStage::Experts(experts) => {
                    let known = if times.expert.is_some() { 0.25 } else { 1.0 };
                    times.experts += known * (experts as f64 - times.experts);
                    blend(&mut times.expert, took / experts.max(1) as f64);
                }
            }
        }
        (self.layer, self.stage, self.since) = (layer, stage, at);
    }

    /// Nanoseconds of computing left until the router of `layer` chooses, waits excluded, counted
    /// from when the device has served the demanded reads that keep it busy for `busy` nanoseconds.
    /// Meanwhile all of the demanded experts but the last are computed. Infinite if not measured
    /// yet.
    pub(crate) fn time_until_router(&self, layer: usize, at: Moment, busy: f64) -> f64 {
        let spent = at.computing(self.since);
        let Some(here) = self.layers.get(self.layer) else { return f64::INFINITY };
        let left = match self.stage {
            PassStage::Before => {
                let before = (or_never(here.before) - spent).max(0.0);
                if layer <= self.layer {
                    return before;
                }
                before + here.since_choice()
            }
            PassStage::Chosen => (here.since_choice() - spent).max(0.0),
            PassStage::Experts(experts) => {
                (experts as f64 * or_never(here.expert) - spent).max(0.0)
            }
            PassStage::Between => 0.0,
        };
        let left = (left - busy).max(left.min(or_never(here.expert)));
        let between = self.layers.get(self.layer + 1..layer).unwrap_or_default();
        let there = self.layers.get(layer).copied().unwrap_or_default();
        let between = between.iter().map(|times| or_never(times.before) + times.since_choice());
        left + between.sum::<f64>() + or_never(there.before)
    }

    /// Nanoseconds of computing until the next prefetch decision.
    pub(crate) fn time_until_next_poll(&self, at: Moment) -> f64 {
        match self.stage {
            PassStage::Before => self.time_until_router(self.layer, at, 0.0),
            _ => {
                let next = self.layers.get(self.layer + 1).and_then(|next| next.before);
                (self.time_until_router(self.layer + 1, at, 0.0) - next.unwrap_or(0.0)).max(0.0)
            }
        }
    }

    /// Nanoseconds that a layer computes between its router's choice and its experts, and for each
    /// expert.
    pub(crate) fn of(&self, layer: usize) -> Option<(f64, f64)> {
        let times = self.layers.get(layer)?;
        Some((times.chosen?, times.expert?))
    }
}

impl LayerTimes {
    /// Computing time from the router's choice on; infinite if not measured.
    fn since_choice(&self) -> f64 {
        let experts = match self.expert {
            Some(expert) => self.experts * expert,
            None => f64::INFINITY,
        };
        or_never(self.chosen) + experts
    }
}

/// A measured time, or an infinite one.
fn or_never(time: Option<f64>) -> f64 {
    time.unwrap_or(f64::INFINITY)
}

fn blend(time: &mut Option<f64>, took: f64) {
    *time = Some(time.map_or(took, |time| time + 0.25 * (took - time)));
}

/// A possible speculative read, with the quantities that decide its worth. Times are in
/// nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadOffer {
    /// Probability that the piece is needed.
    pub(crate) probability: f64,
    /// Time from the earliest start of the read until the piece is needed.
    pub(crate) lead: f64,
    /// Duration of the read.
    pub(crate) service: f64,
    /// Duration of a chunk, which delays a demand that is made meanwhile.
    pub(crate) chunk: f64,
    /// Demanded reads per nanosecond.
    pub(crate) demands: f64,
    /// Probability that the victim is used soon.
    pub(crate) victim: f64,
}

impl ReadOffer {
    /// True if the expected saving exceeds the expected cost: the stall that the read avoids,
    /// against the delay of other reads and the reread of its victim.
    pub(crate) fn is_profitable(&self) -> bool {
        let ReadOffer { probability, lead, service, chunk, demands, victim } = *self;
        let meets = 1.0 - (-demands * service).exp();
        let gain = probability * service.min(lead.max(0.0));
        gain > KAPPA * (1.0 - probability) * (chunk.min(service) * meets + service * victim)
    }
}

/// Nanoseconds that a layer waits if it needs `needed` experts and reads `missing` of them one
/// after another. Resident experts are computed first, the others as they arrive. The first one
/// arrives after `first`, each later one after another `service`.
pub(crate) fn expected_stall(
    needed: usize,
    missing: usize,
    times: (f64, f64),
    first: f64,
    service: f64,
) -> f64 {
    let (before, expert) = times;
    let missing = missing.min(needed);
    let mut now = before + (needed - missing) as f64 * expert;
    let mut arrived = 0;
    let mut waited = 0.0;
    while arrived < missing {
        let next = first + arrived as f64 * service;
        if next > now {
            waited += next - now;
            now = next;
        }
        let after_first = if service > 0.0 { ((now - first) / service) as usize } else { missing };
        let there = (1 + after_first).clamp(arrived + 1, missing);
        now += (there - arrived) as f64 * expert;
        arrived = there;
    }
    waited
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_times_are_fitted_by_a_line() {
        let mut service = ReadTimeModel::default();
        assert_eq!(service.nanos(1), None);
        let of = |bytes: usize| Duration::from_nanos(1000 + 2 * bytes as u64);
        service.note(500, of(500));
        assert_eq!(service.nanos(500), Some(2000.0));
        assert_eq!(service.nanos(1000), Some(4000.0), "one length does not determine a latency");
        for bytes in [100, 700, 300, 900] {
            service.note(bytes, of(bytes));
        }
        for bytes in [0, 100, 500, 10_000] {
            let nanos = service.nanos(bytes).unwrap();
            assert!((nanos - of(bytes).as_nanos() as f64).abs() < 1e-3 * nanos, "{nanos}");
        }
    }

    #[test]
    fn offer_is_profitable_if_the_gain_exceeds_the_cost() {
        let offer = ReadOffer {
            probability: 0.5,
            lead: 100.0,
            service: 100.0,
            chunk: 10.0,
            demands: 0.01,
            victim: 0.5,
        };
        #[rustfmt::skip]
        let cases = [
            (offer, true), // 50 against 0.5 (6.3 + 50)
            (ReadOffer { probability: 0.3, ..offer }, false), // 30 against 0.7 (6.3 + 50)
            (ReadOffer { probability: 0.3, victim: 0.0, ..offer }, true),
            (ReadOffer { lead: 50.0, ..offer }, false), // 25 against 28
            (ReadOffer { lead: 50.0, victim: 0.2, ..offer }, true),
            (ReadOffer { lead: -1.0, victim: 0.0, ..offer }, false), // it comes too late
            (ReadOffer { lead: 5.0, victim: 0.0, chunk: 100.0, ..offer }, false),
            (ReadOffer { lead: 5.0, victim: 0.0, demands: 0.0, ..offer }, true),
            (ReadOffer { probability: 1.0, lead: 0.1, victim: 1.0, ..offer }, true), // certain
            (ReadOffer { service: 0.0, ..offer }, false), // an unlimited disk
            (ReadOffer { lead: f64::INFINITY, ..offer }, true), // nothing measured yet
        ];
        for (offer, is_profitable) in cases {
            assert_eq!(offer.is_profitable(), is_profitable, "{offer:?}");
        }
    }

    #[test]
    fn time_until_router_sums_the_work_before_it() {
        let at = |now, waited| Moment {
            now: Duration::from_nanos(now),
            waited: Duration::from_nanos(waited),
        };
        let mut pace = ComputePace::new(3);
        pace.pass_begins(1);
        for layer in 0..3 {
            assert_eq!(pace.time_until_router(layer, at(0, 0), 0.0), f64::INFINITY, "not measured");
        }
        // Each layer takes 10 ns before its router, 4 until its experts, and 5 for each of two
        // experts. Each layer waits for 100.
        let mut now = 0;
        let mut waited = 0;
        for layer in 0..3 {
            pace.entering(layer, at(now, waited));
            assert_eq!(pace.time_until_router(layer, at(now, waited), 0.0), f64::INFINITY);
            now += 10;
            pace.chosen(layer, at(now, waited));
            now += 4;
            pace.experts(layer, 2, at(now, waited));
            now += 110;
            waited += 100;
            pace.done(at(now, waited));
            now += 1000;
        }
        pace.pass_begins(1);
        assert_eq!(pace.of(1), Some((4.0, 5.0)));
        pace.entering(0, at(5000, waited));
        let here = |more: u64| at(5000 + more, waited);
        #[rustfmt::skip]
        let cases = [(0, 0, 10.0), (0, 3, 7.0), (0, 20, 0.0), (1, 0, 34.0), (2, 3, 55.0)];
        for (layer, more, until) in cases {
            assert_eq!(pace.time_until_router(layer, here(more), 0.0), until, "{layer}, {more}");
        }
        assert_eq!(pace.time_until_next_poll(here(3)), 7.0);
        pace.chosen(0, here(10));
        assert_eq!(pace.time_until_router(1, here(10), 0.0), 24.0);
        assert_eq!(pace.time_until_router(1, here(10), 3.0), 21.0, "a demand that computing hides");
        assert_eq!(
            pace.time_until_router(1, here(10), 300.0),
            15.0,
            "and one whose expert comes last"
        );
        assert_eq!(pace.time_until_next_poll(here(11)), 13.0);
        pace.experts(0, 2, here(14));
        assert_eq!(
            (pace.time_until_router(1, here(16), 0.0), pace.time_until_router(2, here(16), 0.0)),
            (18.0, 42.0)
        );
        pace.pass_begins(7);
        assert_eq!(pace.of(1), None, "another number of tokens");
        pace.pass_begins(1);
        assert_eq!(pace.of(1), Some((4.0, 5.0)), "kept");
    }

    #[test]
    fn stall_is_the_read_time_that_computing_does_not_hide() {
        #[rustfmt::skip]
        let cases = [
            // needed, missing, before and expert, the first read, each other, stall
            (4, 0, (0.0, 5.0), 10.0, 10.0, 0.0),
            (4, 1, (0.0, 5.0), 10.0, 10.0, 0.0), // 15 of computing before it
            (4, 1, (0.0, 5.0), 17.0, 10.0, 2.0),
            (4, 4, (0.0, 5.0), 10.0, 10.0, 25.0), // 10, and 5 before each of the others
            (4, 4, (0.0, 5.0), 12.0, 10.0, 27.0),
            (4, 2, (2.0, 1.0), 10.0, 10.0, 15.0), // 4, then 10 less 1, arrives at 20
            (4, 2, (0.0, 20.0), 10.0, 10.0, 0.0),
            (2, 2, (30.0, 1.0), 10.0, 10.0, 0.0),
            (4, 4, (0.0, 0.0), 0.0, 0.0, 0.0),
        ];
        for (needed, missing, times, first, service, expected) in cases {
            let stall = expected_stall(needed, missing, times, first, service);
            assert_eq!(stall, expected, "{needed}, {missing}, {times:?}, {first}, {service}");
        }
    }
}
