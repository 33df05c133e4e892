//! What a recording shows: reads in flight over time, latencies, and why the device was idle.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use sws_engine::watch::{RecordedRead, Recording, RecordingStep};

/// Parts of the recording for which the mean depth is shown.
const PARTS: usize = 20;

/// Why no read was on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Cause {
    /// The layer's router had not chosen yet.
    Router,
    /// The policy learned of the choice, and found victims.
    Policy,
    /// Misses had no slot.
    Slots,
    /// A read was requested and not begun, or ended and not noticed: a thread was waking.
    Waking,
    /// All misses of the layer had arrived.
    EndOfLayer,
    /// All experts of the layer were in memory.
    NoMisses,
    /// The head, sampling and the embedding.
    BetweenPasses,
}

impl Cause {
    pub(super) const ALL: [Cause; 7] = [
        Cause::Router,
        Cause::Policy,
        Cause::Slots,
        Cause::Waking,
        Cause::EndOfLayer,
        Cause::NoMisses,
        Cause::BetweenPasses,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Cause::Router => "router",
            Cause::Policy => "policy",
            Cause::Slots => "no slot for a miss",
            Cause::Waking => "waking threads",
            Cause::EndOfLayer => "end of a layer",
            Cause::NoMisses => "layer without misses",
            Cause::BetweenPasses => "head, sampling",
        }
    }
}

/// Idle time of a cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Idle {
    pub(super) seconds: f64,
    /// Number of times, and the longest.
    pub(super) gaps: u64,
    pub(super) longest: f64,
}

/// A layer, over all its passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Layer {
    pub(super) passes: u64,
    pub(super) seconds: f64,
    /// Time in it without a read on the device.
    pub(super) idle: f64,
    pub(super) misses: u64,
}

/// The results.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Timeline {
    /// From the first step to the last.
    pub(super) seconds: f64,
    pub(super) passes: u64,
    pub(super) tokens: u64,
    pub(super) reads: u64,
    pub(super) bytes: u64,
    /// Seconds with so many reads on the device.
    pub(super) at_depth: Vec<f64>,
    /// Mean depth in twenty equal parts of the time.
    pub(super) over_time: Vec<f64>,
    /// Seconds from the request of a read to its issue, and from there to its end: the median, the
    /// ninetieth and the ninety-ninth of a hundred, the longest.
    pub(super) queued: [f64; 4],
    pub(super) latency: [f64; 4],
    pub(super) idle: BTreeMap<Cause, Idle>,
    pub(super) layers: BTreeMap<usize, Layer>,
}

/// What happens at a moment. Reads end before others begin, and steps come last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Ends(usize),
    Asked(usize),
    Begins(usize),
    Step(usize),
}

/// Part of a layer's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Between,
    Routing,
    Choosing,
    Computing,
}

/// State of the run while the recording is walked through.
#[derive(Debug, Default)]
struct Walk {
    depth: usize,
    /// Reads that were requested and have not begun.
    waiting: usize,
    /// True while the pass waits for a read.
    waits: bool,
    phase: Phase,
    layer: Option<usize>,
    /// Misses of the layer, and reads of its pieces that were requested for them.
    misses: usize,
    asked: usize,
    /// Reads in flight by layer.
    in_flight: BTreeMap<u32, usize>,
    gap: Option<(Cause, f64)>,
}

impl Timeline {
    /// Analyses a recording.
    pub(super) fn of(recording: &Recording) -> Timeline {
        let Recording { reads, steps, .. } = recording;
        let mut timeline = Timeline::default();
        let (Some(first), Some(last)) = (steps.first(), steps.last()) else { return timeline };
        let from = first.at;
        let to = last.at;
        timeline.seconds = to.saturating_sub(from).as_secs_f64();
        timeline.over_time = vec![0.0; PARTS];
        timeline.count(reads, (from, to));
        let misses = misses_of_layers(recording);
        let mut walk = Walk::default();
        let mut at = from;
        for (now, what) in moments(recording) {
            if now > at && at < to {
                timeline.pass(&mut walk, [at, now.min(to)].map(|time| time.saturating_sub(from)));
            }
            at = at.max(now);
            match what {
                What::Asked(read) => walk.asked(&reads[read]),
                What::Begins(_) => {
                    walk.waiting = walk.waiting.saturating_sub(1);
                    walk.depth += 1;
                }
                What::Ends(read) => walk.ended(&reads[read]),
                What::Step(step) => {
                    let misses = misses[step];
                    timeline.step(&mut walk, steps[step].step, misses);
                }
            }
        }
        timeline.close(&mut walk);
        timeline
    }

    /// Seconds without a read on the device.
    pub(super) fn idle_seconds(&self) -> f64 {
        self.at_depth.first().copied().unwrap_or(0.0)
    }

    /// Counts reads that ended in the time of the steps.
    fn count(&mut self, reads: &[RecordedRead], (from, to): (Duration, Duration)) {
        let mut queued = Vec::new();
        let mut latency = Vec::new();
        for read in reads.iter().filter(|read| (from..=to).contains(&read.finished)) {
            self.reads += 1;
            self.bytes += read.bytes;
            if let Some(started) = read.started {
                queued.push(started.saturating_sub(read.submitted).as_secs_f64());
                latency.push(read.finished.saturating_sub(started).as_secs_f64());
            }
        }
        (self.queued, self.latency) = (percentiles(queued), percentiles(latency));
    }

    /// Accounts for the time between two moments, counted from the first step.
    fn pass(&mut self, walk: &mut Walk, [at, now]: [Duration; 2]) {
        let took = now.saturating_sub(at).as_secs_f64();
        if self.at_depth.len() <= walk.depth {
            self.at_depth.resize(walk.depth + 1, 0.0);
        }
        self.at_depth[walk.depth] += took;
        self.spread([at, now].map(|t| t.as_secs_f64()), walk.depth as f64);
        let idle = walk.depth == 0;
        if let Some(layer) = walk.layer {
            let layer = self.layers.entry(layer).or_default();
            layer.seconds += took;
            layer.idle += if idle { took } else { 0.0 };
        }
        let cause = idle.then(|| walk.cause());
        if walk.gap.map(|(cause, _)| cause) != cause {
            self.close(walk);
        }
        if let Some(cause) = cause {
            let before = walk.gap.map_or(0.0, |(_, before)| before);
            walk.gap = Some((cause, before + took));
        }
    }

    /// Adds a depth to the parts of the time in which it was.
    fn spread(&mut self, [at, now]: [f64; 2], depth: f64) {
        let part = self.seconds / PARTS as f64;
        if part <= 0.0 {
            return;
        }
        for (number, mean) in self.over_time.iter_mut().enumerate() {
            let begins = number as f64 * part;
            let ends = (number + 1) as f64 * part;
            let shared = now.min(ends) - at.max(begins);
            *mean += depth * shared.max(0.0) / part;
        }
    }

    /// Ends the gap that is under way.
    fn close(&mut self, walk: &mut Walk) {
        let Some((cause, took)) = walk.gap.take() else { return };
        let idle = self.idle.entry(cause).or_default();
        idle.seconds += took;
        idle.gaps += 1;
        idle.longest = idle.longest.max(took);
    }

    fn step(&mut self, walk: &mut Walk, step: RecordingStep, misses: usize) {
        match step {
            RecordingStep::Passes | RecordingStep::Over => {
                (walk.phase, walk.layer, walk.waits) = (Phase::Between, None, false);
            }
            RecordingStep::Pass { tokens } => {
                self.passes += 1;
                self.tokens += tokens as u64;
            }
            RecordingStep::Layer { layer } => {
                (walk.phase, walk.layer) = (Phase::Routing, Some(layer));
                (walk.misses, walk.asked) = (misses, 0);
                let of_layer = self.layers.entry(layer).or_default();
                of_layer.passes += 1;
                of_layer.misses += misses as u64;
            }
            RecordingStep::Chosen { layer } if walk.layer == Some(layer) => {
                walk.phase = Phase::Choosing;
                let layer = u32::try_from(layer).unwrap_or(u32::MAX);
                walk.asked = walk.in_flight.get(&layer).copied().unwrap_or(0);
            }
            RecordingStep::Requested { layer } if walk.layer == Some(layer) => {
                walk.phase = Phase::Computing
            }
            RecordingStep::Computed { layer } if walk.layer == Some(layer) => {
                (walk.phase, walk.layer) = (Phase::Between, None);
            }
            RecordingStep::Waits => walk.waits = true,
            RecordingStep::Waited => walk.waits = false,
            // Of layers that the run looks ahead at.
            RecordingStep::Chosen { .. }
            | RecordingStep::Compared { .. }
            | RecordingStep::Requested { .. }
            | RecordingStep::Computed { .. } => {}
        }
    }
}

impl Walk {
    fn asked(&mut self, read: &RecordedRead) {
        self.waiting += usize::from(read.started.is_some());
        if let Some(layer) = read.piece.layer() {
            *self.in_flight.entry(layer).or_default() += 1;
            if matches!(self.phase, Phase::Choosing | Phase::Computing)
                && self.layer == Some(layer as usize)
            {
                self.asked += 1;
            }
        }
    }

    fn ended(&mut self, read: &RecordedRead) {
        self.depth = self.depth.saturating_sub(usize::from(read.started.is_some()));
        if let Some(count) = read.piece.layer().and_then(|layer| self.in_flight.get_mut(&layer)) {
            *count = count.saturating_sub(1);
        }
    }

    /// Why no read is on the device.
    fn cause(&self) -> Cause {
        match self.phase {
            _ if self.waiting > 0 || self.waits => Cause::Waking,
            Phase::Between => Cause::BetweenPasses,
            _ if self.misses == 0 => Cause::NoMisses,
            Phase::Routing => Cause::Router,
            Phase::Choosing => Cause::Policy,
            Phase::Computing if self.asked < self.misses => Cause::Slots,
            Phase::Computing => Cause::EndOfLayer,
        }
    }
}

/// For each step that begins a layer, the misses that its router will have.
fn misses_of_layers(recording: &Recording) -> Vec<usize> {
    let mut misses = vec![0; recording.steps.len()];
    let mut begun = BTreeMap::new();
    for (number, step) in recording.steps.iter().enumerate() {
        match step.step {
            RecordingStep::Pass { .. } => begun.clear(),
            RecordingStep::Layer { layer } => {
                begun.insert(layer, number);
            }
            RecordingStep::Compared { layer, misses: found } => {
                if let Some(&number) = begun.get(&layer) {
                    misses[number] = found;
                }
            }
            _ => {}
        }
    }
    misses
}

/// Everything that happens, in the order of time.
fn moments(recording: &Recording) -> Vec<(Duration, What)> {
    let mut moments = Vec::new();
    for (number, read) in recording.reads.iter().enumerate() {
        moments.push((read.submitted, What::Asked(number)));
        moments.extend(read.started.map(|started| (started, What::Begins(number))));
        moments.push((read.finished, What::Ends(number)));
    }
    let steps = recording.steps.iter().enumerate();
    moments.extend(steps.map(|(number, step)| (step.at, What::Step(number))));
    moments.sort_unstable();
    moments
}

/// The median, the ninetieth and the ninety-ninth of a hundred, and the largest.
fn percentiles(mut numbers: Vec<f64>) -> [f64; 4] {
    numbers.sort_unstable_by(f64::total_cmp);
    let Some(last) = numbers.len().checked_sub(1) else { return [0.0; 4] };
    [0.5, 0.9, 0.99, 1.0].map(|share| numbers[(last as f64 * share).round() as usize])
}

#[cfg(test)]
mod tests {
    use sws_engine::watch::RecordedStep;
    use sws_format::PieceId;

    use super::*;

    fn ms(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    /// A read of an expert of a layer: requested, issued and ended at these milliseconds.
    fn read(layer: u32, expert: u32, [submitted, started, finished]: [u64; 3]) -> RecordedRead {
        let [submitted, started, finished] = [submitted, started, finished].map(ms);
        let piece = PieceId::expert(layer, expert);
        let started = Some(started);
        RecordedRead { piece, bytes: 1000, submitted, started, finished }
    }

    fn steps(steps: &[(u64, RecordingStep)]) -> Vec<RecordedStep> {
        steps.iter().map(|&(at, step)| RecordedStep { at: ms(at), step }).collect()
    }

    fn idle(timeline: &Timeline) -> Vec<(Cause, u64, u64)> {
        let rounded = |seconds: f64| (seconds * 1e3).round() as u64;
        let idle = timeline.idle.iter();
        idle.map(|(&cause, idle)| (cause, rounded(idle.seconds), idle.gaps)).collect()
    }

    /// A layer with two misses for one slot, one without misses, and the head.
    fn made_up() -> Recording {
        Recording {
            reads: vec![read(0, 4, [13, 14, 20]), read(0, 9, [23, 23, 30])],
            steps: steps(&[
                (0, RecordingStep::Passes),
                (2, RecordingStep::Pass { tokens: 1 }),
                (2, RecordingStep::Layer { layer: 0 }),
                (10, RecordingStep::Chosen { layer: 0 }),
                (11, RecordingStep::Compared { layer: 0, misses: 2 }),
                (13, RecordingStep::Requested { layer: 0 }),
                (18, RecordingStep::Waits),
                (21, RecordingStep::Waited),
                // Without a slot until the first expert is computed.
                (25, RecordingStep::Waits),
                (30, RecordingStep::Waited),
                (34, RecordingStep::Computed { layer: 0 }),
                (34, RecordingStep::Layer { layer: 1 }),
                (40, RecordingStep::Chosen { layer: 1 }),
                (40, RecordingStep::Compared { layer: 1, misses: 0 }),
                (40, RecordingStep::Requested { layer: 1 }),
                (44, RecordingStep::Computed { layer: 1 }),
                (50, RecordingStep::Over),
            ]),
            left_out: 0,
        }
    }

    #[test]
    fn idle_time_has_its_cause() {
        let timeline = Timeline::of(&made_up());
        let expected = [
            (Cause::Router, 8, 1),
            (Cause::Policy, 3, 1),
            (Cause::Slots, 2, 1),
            // Until the read began, and until its end was noticed.
            (Cause::Waking, 2, 2),
            (Cause::EndOfLayer, 4, 1),
            (Cause::NoMisses, 10, 1),
            (Cause::BetweenPasses, 8, 2),
        ];
        assert_eq!(idle(&timeline), expected);
        let all: f64 = timeline.idle.values().map(|idle| idle.seconds).sum();
        assert!((all - timeline.idle_seconds()).abs() < 1e-9, "{timeline:?}");
    }

    #[test]
    fn depths_latencies_and_layers_add_up() {
        let timeline = Timeline::of(&made_up());
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(near(timeline.seconds, 0.05) && near(timeline.at_depth.iter().sum(), 0.05));
        assert!(near(timeline.at_depth[0], 0.037) && near(timeline.at_depth[1], 0.013));
        assert_eq!((timeline.passes, timeline.tokens, timeline.reads), (1, 1, 2));
        assert_eq!(timeline.bytes, 2000);
        let mean = timeline.over_time.iter().sum::<f64>() / PARTS as f64;
        assert!(near(mean, 0.013 / 0.05), "{timeline:?}");
        assert!(near(timeline.latency[3], 0.007) && near(timeline.queued[3], 0.001));
        let layers: Vec<_> = timeline.layers.values().map(|it| (it.passes, it.misses)).collect();
        assert_eq!(layers, [(1, 2), (1, 0)]);
        assert!(near(timeline.layers[&0].seconds, 0.032), "{timeline:?}");
        assert!(near(timeline.layers[&1].idle, 0.010), "{timeline:?}");
    }

    #[test]
    fn reads_at_once_are_counted_together() {
        let mut recording = made_up();
        recording.reads.push(read(1, 0, [15, 16, 18]));
        // Given up before it began.
        let never = RecordedRead { started: None, bytes: 0, ..read(1, 1, [15, 15, 17]) };
        recording.reads.push(never);
        let timeline = Timeline::of(&recording);
        assert_eq!(timeline.at_depth.len(), 3);
        assert!((timeline.at_depth[2] - 0.002).abs() < 1e-9, "{timeline:?}");
        assert_eq!(timeline.reads, 4);
    }

    #[test]
    fn an_empty_recording_has_no_time() {
        assert_eq!(Timeline::of(&Recording::default()), Timeline::default());
    }
}
