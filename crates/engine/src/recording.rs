//! A recording of every read and step of a run, for later inspection.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sws_format::{Clock, PieceId};
use sws_store::{Completion, PieceLayout};

/// Reads and steps of a run, each kind in the order in which the run noticed them. Times are those
/// of the run's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// Reads that ended.
    pub reads: Vec<RecordedRead>,
    /// Steps of passes.
    pub steps: Vec<RecordedStep>,
    /// Number of reads and steps for which there was no room.
    pub left_out: u64,
}

/// A read that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedRead {
    /// The piece to which the read belongs.
    pub piece: PieceId,
    /// Bytes read from the device; 0 if the read failed or was given up.
    pub bytes: u64,
    /// Time of the request.
    pub submitted: Duration,
    /// Time at which it was issued to the device; `None` if it never was.
    pub started: Option<Duration>,
    /// Time at which it was complete and verified, or had failed.
    pub finished: Duration,
}

/// A step of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedStep {
    /// Time of the step.
    pub at: Duration,
    /// Kind of the step.
    pub step: RecordingStep,
}

/// Kinds of steps of passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordingStep {
    /// One or several passes are about to begin.
    Passes,
    /// The layers of a pass begin.
    Pass {
        /// Number of tokens in the pass.
        tokens: usize,
    },
    /// The pass has reached a layer.
    Layer {
        /// Number of the layer.
        layer: usize,
    },
    /// The layer's router has chosen. Policies learn the choice, and pick victims.
    Chosen {
        /// Number of the layer.
        layer: usize,
    },
    /// The choice was compared with the experts in memory.
    Compared {
        /// Number of the layer.
        layer: usize,
        /// Chosen experts that are not in memory.
        misses: usize,
    },
    /// Misses are requested, as far as there are slots.
    Requested {
        /// Number of the layer.
        layer: usize,
    },
    /// The pass waits for a read.
    Waits,
    /// The wait is over.
    Waited,
    /// The layer's experts are computed.
    Computed {
        /// Number of the layer.
        layer: usize,
    },
    /// The passes have ended.
    Over,
}

/// Bytes of a read that its files have.
pub(crate) fn present_bytes(layout: &PieceLayout) -> u64 {
    layout.segments().iter().map(|segment| segment.present as u64).sum()
}

/// Records events while a recording is on. Otherwise an event costs one comparison.
#[derive(Debug, Default)]
pub(crate) struct EventRecorder {
    is_on: AtomicBool,
    kept: Mutex<RecordingBuffer>,
}

#[derive(Debug, Default)]
struct RecordingBuffer {
    recording: Recording,
    /// Maximum number of reads, and of steps.
    limit: usize,
}

impl EventRecorder {
    /// Starts a recording of at most this many reads, and as many steps.
    pub(crate) fn begin(&self, limit: usize) {
        let recording = Recording {
            reads: Vec::with_capacity(limit),
            steps: Vec::with_capacity(limit),
            left_out: 0,
        };
        *self.lock() = RecordingBuffer { recording, limit };
        self.is_on.store(true, Relaxed);
    }

    /// Ends the recording, and returns it.
    pub(crate) fn end(&self) -> Recording {
        self.is_on.store(false, Relaxed);
        std::mem::take(&mut self.lock().recording)
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// Records a read that has ended.
    pub(crate) fn read(&self, completion: &Completion) {
        if !self.is_on() {
            return;
        }
        let Completion { layout, result, timing, .. } = completion;
        let read = RecordedRead {
            piece: layout.read().piece(),
            bytes: if result.is_ok() { present_bytes(layout) } else { 0 },
            submitted: timing.submitted,
            started: timing.started,
            finished: timing.finished,
        };
        let mut kept = self.lock();
        match kept.recording.reads.len() < kept.limit {
            true => kept.recording.reads.push(read),
            false => kept.recording.left_out += 1,
        }
    }

    /// Records a step that is taken now.
    pub(crate) fn step(&self, clock: &Clock, step: RecordingStep) {
        if self.is_on() {
            self.step_at(clock.now(), step);
        }
    }

    /// Records a step.
    pub(crate) fn step_at(&self, at: Duration, step: RecordingStep) {
        if !self.is_on() {
            return;
        }
        let mut kept = self.lock();
        match kept.recording.steps.len() < kept.limit {
            true => kept.recording.steps.push(RecordedStep { at, step }),
            false => kept.recording.left_out += 1,
        }
    }

    fn lock(&self) -> MutexGuard<'_, RecordingBuffer> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
