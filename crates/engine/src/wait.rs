//! The one place where the engine waits for the device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError};
use sws_format::{Clock, PieceKind};
use sws_store::{Completion, Landed, NVMeWeightStore, NotLanded, StoreStats, Ticket};

use crate::recording::{EventRecorder, RecordingStep, present_bytes};

/// Waits for reads of all callers, and counts the stalls and the bytes that have arrived. Clones
/// share the counts, and can cancel a wait from another thread.
#[derive(Clone, Debug)]
pub struct Waiter(Arc<WaitShared>);

#[derive(Debug)]
struct WaitShared {
    clock: Clock,
    cancelled: AtomicBool,
    nanos: AtomicU64,
    count: AtomicU64,
    /// Start of the wait that is under way, in nanoseconds of the clock; 0 if there is none.
    since: AtomicU64,
    /// Bytes that have arrived, by [`WeightKind`].
    bytes: [AtomicU64; WeightKind::ALL.len()],
    recorder: EventRecorder,
}

/// A moment, with the total duration of all waits before it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moment {
    pub(crate) now: Duration,
    pub(crate) waited: Duration,
}

impl Moment {
    /// Nanoseconds since an earlier moment, without waits.
    pub(crate) fn computing(self, since: Moment) -> f64 {
        let waited = self.waited.saturating_sub(since.waited);
        self.now.saturating_sub(since.now).saturating_sub(waited).as_nanos() as f64
    }
}

/// Kind of weights that were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightKind {
    /// Routed experts.
    Experts,
    /// Shared experts.
    SharedExperts,
    /// Attention.
    Attention,
    /// The feed-forward blocks of dense layers.
    Mlp,
    /// Routers.
    Routers,
    /// Norms.
    Norms,
    /// The embedding, and tables of n-grams.
    Embedding,
    /// The head.
    Head,
}

impl WeightKind {
    /// All kinds.
    pub const ALL: [WeightKind; 8] = [
        WeightKind::Experts,
        WeightKind::SharedExperts,
        WeightKind::Attention,
        WeightKind::Mlp,
        WeightKind::Routers,
        WeightKind::Norms,
        WeightKind::Embedding,
        WeightKind::Head,
    ];

    /// Name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            WeightKind::Experts => "experts",
            WeightKind::SharedExperts => "shared_experts",
            WeightKind::Attention => "attention",
            WeightKind::Mlp => "mlp",
            WeightKind::Routers => "routers",
            WeightKind::Norms => "norms",
            WeightKind::Embedding => "embedding",
            WeightKind::Head => "head",
        }
    }

    fn of(piece: PieceKind) -> Option<WeightKind> {
        Some(match piece {
            PieceKind::Expert(_) => WeightKind::Experts,
            PieceKind::SharedExpert => WeightKind::SharedExperts,
            PieceKind::Attention => WeightKind::Attention,
            PieceKind::Mlp | PieceKind::LayerInput => WeightKind::Mlp,
            PieceKind::Router => WeightKind::Routers,
            PieceKind::Norms | PieceKind::FinalNorm => WeightKind::Norms,
            PieceKind::Embed | PieceKind::Table(_) => WeightKind::Embedding,
            PieceKind::LmHead => WeightKind::Head,
            _ => return None,
        })
    }
}

/// Stalls: waits of the computation for reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stalls {
    /// Total time.
    pub time: Duration,
    /// Number of waits.
    pub count: u64,
}

/// Reasons why a wait ended without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// [`Waiter::cancel`] was called.
    #[error("the pass was cancelled")]
    Cancelled,
    /// The store was closed: no completion can arrive.
    #[error("the store was closed while reads were under way; this is a bug, please report it")]
    Closed,
}

/// Time between two checks for cancellation during a wait: shorter than a person notices, longer
/// than almost every read.
const CANCEL_POLL_INTERVAL: Duration = Duration::from_millis(50);

impl Waiter {
    /// Creates a waiter with empty counts. `clock` must be that of the stores it will wait for.
    pub fn new(clock: Clock) -> Waiter {
        Waiter(Arc::new(WaitShared {
            clock,
            cancelled: AtomicBool::new(false),
            nanos: AtomicU64::new(0),
            count: AtomicU64::new(0),
            since: AtomicU64::new(0),
            bytes: Default::default(),
            recorder: EventRecorder::default(),
        }))
    }

    /// Returns a completion that has already arrived; `None` if there is none.
    pub fn poll(&self, from: &Receiver<Completion>) -> Result<Option<Completion>, WaitError> {
        self.check()?;
        match from.try_recv() {
            Ok(completion) => Ok(Some(self.arrived(completion))),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(WaitError::Closed),
        }
    }

    /// Returns the next completion of the fetches of `store` that report to `from`. Counts a stall
    /// only if none had arrived yet.
    pub fn wait(
        &self,
        store: &NVMeWeightStore,
        from: &Receiver<Completion>,
    ) -> Result<Completion, WaitError> {
        if let Some(completion) = self.poll(from)? {
            return Ok(completion);
        }
        let started = self.begin_stall();
        let result = self.next(store, from);
        self.end_stall(started);
        result
    }

    fn next(
        &self,
        store: &NVMeWeightStore,
        from: &Receiver<Completion>,
    ) -> Result<Completion, WaitError> {
        loop {
            match store.wait_timeout(from, CANCEL_POLL_INTERVAL) {
                Ok(completion) => return Ok(self.arrived(completion)),
                Err(RecvTimeoutError::Disconnected) => return Err(WaitError::Closed),
                Err(RecvTimeoutError::Timeout) => self.check()?,
            }
        }
    }

    /// Waits for the first `len` bytes of a fetch of `store`. Returns `None` if the fetch ends
    /// before they have arrived.
    pub fn landed<'s>(
        &self,
        store: &'s NVMeWeightStore,
        fetch: Ticket,
        len: usize,
    ) -> Result<Option<Landed<'s>>, WaitError> {
        self.check()?;
        match store.landed(fetch, len, Duration::ZERO) {
            Ok(landed) => return Ok(Some(landed)),
            Err(NotLanded::Over) => return Ok(None),
            Err(NotLanded::Later) => {}
        }
        let started = self.begin_stall();
        let result = self.next_landed(store, fetch, len);
        self.end_stall(started);
        result
    }

    fn next_landed<'s>(
        &self,
        store: &'s NVMeWeightStore,
        fetch: Ticket,
        len: usize,
    ) -> Result<Option<Landed<'s>>, WaitError> {
        loop {
            match store.landed(fetch, len, CANCEL_POLL_INTERVAL) {
                Ok(landed) => return Ok(Some(landed)),
                Err(NotLanded::Over) => return Ok(None),
                Err(NotLanded::Later) => self.check()?,
            }
        }
    }

    /// Begins a stall. Returns its start, for [`end_stall`](Self::end_stall).
    fn begin_stall(&self) -> Duration {
        let started = self.0.clock.now();
        self.0.since.store(started.as_nanos() as u64, Ordering::Relaxed);
        self.0.recorder.step_at(started, RecordingStep::Waits);
        started
    }

    /// Ends a stall, and counts it.
    fn end_stall(&self, started: Duration) {
        self.0.since.store(0, Ordering::Relaxed);
        let ended = self.0.clock.now();
        self.0.recorder.step_at(ended, RecordingStep::Waited);
        let waited = ended.saturating_sub(started);
        self.0.nanos.fetch_add(waited.as_nanos() as u64, Ordering::Relaxed);
        self.0.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the next completion without counting a stall, and ignores cancellation: for
    /// clean-up. `None` if no completion can arrive.
    pub fn settle(
        &self,
        store: &NVMeWeightStore,
        from: &Receiver<Completion>,
    ) -> Option<Completion> {
        Some(self.arrived(store.wait(from)?))
    }

    /// Makes this and every later wait fail, until [`resume`](Self::resume).
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Relaxed);
    }

    /// Allows waits again after a [`cancel`](Self::cancel).
    pub fn resume(&self) {
        self.0.cancelled.store(false, Ordering::Relaxed);
    }

    /// Returns an error if waits are cancelled.
    pub fn check(&self) -> Result<(), WaitError> {
        match self.0.cancelled.load(Ordering::Relaxed) {
            true => Err(WaitError::Cancelled),
            false => Ok(()),
        }
    }

    /// Stalls so far.
    pub fn stalls(&self) -> Stalls {
        let time = Duration::from_nanos(self.0.nanos.load(Ordering::Relaxed));
        Stalls { time, count: self.0.count.load(Ordering::Relaxed) }
    }

    /// Time of all stalls, including the one that is under way.
    pub(crate) fn stalled(&self) -> Duration {
        let over = self.stalls().time;
        match self.0.since.load(Ordering::Relaxed) {
            0 => over,
            since => over + self.0.clock.now().saturating_sub(Duration::from_nanos(since)),
        }
    }

    /// Counts as a stall time that was spent on other work instead of waiting.
    pub(crate) fn bridged(&self, time: Duration) {
        self.0.nanos.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        self.0.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Bytes that have arrived so far, verified, by [`WeightKind`] in the order of [`WeightKind::ALL`].
    pub fn bytes(&self) -> [u64; WeightKind::ALL.len()] {
        self.0.bytes.each_ref().map(|bytes| bytes.load(Ordering::Relaxed))
    }

    /// The recorder of reads and steps.
    pub(crate) fn recorder(&self) -> &EventRecorder {
        &self.0.recorder
    }

    fn arrived(&self, completion: Completion) -> Completion {
        self.0.recorder.read(&completion);
        let piece = completion.layout.read().piece().kind();
        if let (Ok(()), Some(kind)) = (&completion.result, WeightKind::of(piece)) {
            let read = present_bytes(&completion.layout);
            self.0.bytes[kind as usize].fetch_add(read, Ordering::Relaxed);
        }
        completion
    }

    /// The clock.
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// The current time, and the total waiting time so far.
    pub(crate) fn moment(&self) -> Moment {
        Moment { now: self.clock().now(), waited: self.stalls().time }
    }
}

/// Bytes that a store has read from its devices.
pub(crate) fn bytes_read(stats: &StoreStats) -> u64 {
    stats.demanded.bytes + stats.ahead.bytes + stats.speculative.bytes
}
