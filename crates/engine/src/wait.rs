//! The one place where the engine waits for the device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError};
use sws_store::{Clock, Completion, Landed, NVMeWeightStore, NotLanded, PieceKind, Ticket};

/// Waits for reads, whoever asked for them, and counts what that costs and what has come. Clones
/// share the counts, and can end the waiting from another thread.
#[derive(Clone, Debug)]
pub struct Waiter(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    clock: Clock,
    cancelled: AtomicBool,
    nanos: AtomicU64,
    count: AtomicU64,
    /// Bytes that have arrived, by [`Kind`].
    bytes: [AtomicU64; Kind::ALL.len()],
}

/// What was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
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
    /// The embedding.
    Embedding,
    /// The head.
    Head,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 8] = [
        Kind::Experts,
        Kind::SharedExperts,
        Kind::Attention,
        Kind::Mlp,
        Kind::Routers,
        Kind::Norms,
        Kind::Embedding,
        Kind::Head,
    ];

    /// What it is called in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Experts => "experts",
            Kind::SharedExperts => "shared_experts",
            Kind::Attention => "attention",
            Kind::Mlp => "mlp",
            Kind::Routers => "routers",
            Kind::Norms => "norms",
            Kind::Embedding => "embedding",
            Kind::Head => "head",
        }
    }

    fn of(piece: PieceKind) -> Option<Kind> {
        Some(match piece {
            PieceKind::Expert(_) => Kind::Experts,
            PieceKind::SharedExpert => Kind::SharedExperts,
            PieceKind::Attention => Kind::Attention,
            PieceKind::Mlp => Kind::Mlp,
            PieceKind::Router => Kind::Routers,
            PieceKind::Norms | PieceKind::FinalNorm => Kind::Norms,
            PieceKind::Embed => Kind::Embedding,
            PieceKind::LmHead => Kind::Head,
            _ => return None,
        })
    }
}

/// Time in which computing waited for a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stalls {
    /// How long.
    pub time: Duration,
    /// How often.
    pub count: u64,
}

/// Why there is nothing to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// [`Waiter::cancel`] was called.
    #[error("the pass was cancelled")]
    Cancelled,
    /// Nobody will ever send.
    #[error("the store was closed while reads were under way; this is a bug, please report it")]
    Closed,
}

/// How long a wait goes on before it looks whether it was cancelled: shorter than a person notices,
/// longer than almost every read.
const LOOK: Duration = Duration::from_millis(50);

impl Waiter {
    /// Nothing has been waited for. `clock` is that of the stores that will be waited for.
    pub fn new(clock: Clock) -> Waiter {
        Waiter(Arc::new(Shared {
            clock,
            cancelled: AtomicBool::new(false),
            nanos: AtomicU64::new(0),
            count: AtomicU64::new(0),
            bytes: Default::default(),
        }))
    }

    /// What has arrived already; none if nothing has.
    pub fn poll(&self, from: &Receiver<Completion>) -> Result<Option<Completion>, WaitError> {
        self.check()?;
        match from.try_recv() {
            Ok(completion) => Ok(Some(self.arrived(completion))),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(WaitError::Closed),
        }
    }

    /// What arrives next of the fetches of `store` that are told to `from`. Only if that is later than
    /// now has anybody waited.
    pub fn wait(
        &self,
        store: &NVMeWeightStore,
        from: &Receiver<Completion>,
    ) -> Result<Completion, WaitError> {
        if let Some(completion) = self.poll(from)? {
            return Ok(completion);
        }
        self.stalled(|| {
            loop {
                match store.wait_timeout(from, LOOK) {
                    Ok(completion) => break Ok(self.arrived(completion)),
                    Err(RecvTimeoutError::Disconnected) => break Err(WaitError::Closed),
                    Err(RecvTimeoutError::Timeout) => self.check()?,
                }
            }
        })
    }

    /// The first `len` bytes of what a fetch of `store` reads, as soon as they are there. None if it is
    /// over before.
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
        self.stalled(|| {
            loop {
                match store.landed(fetch, len, LOOK) {
                    Ok(landed) => break Ok(Some(landed)),
                    Err(NotLanded::Over) => break Ok(None),
                    Err(NotLanded::Later) => self.check()?,
                }
            }
        })
    }

    /// Waits, and counts it.
    fn stalled<T>(&self, wait: impl FnOnce() -> T) -> T {
        let started = self.0.clock.now();
        let result = wait();
        let waited = self.0.clock.now().saturating_sub(started);
        self.0.nanos.fetch_add(waited.as_nanos() as u64, Ordering::Relaxed);
        self.0.count.fetch_add(1, Ordering::Relaxed);
        result
    }

    /// What arrives next, cancelled or not and uncounted: for those who clean up. None if nobody
    /// will ever send.
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

    /// Lets waiting begin again.
    pub fn resume(&self) {
        self.0.cancelled.store(false, Ordering::Relaxed);
    }

    /// Whether somebody has cancelled.
    pub fn check(&self) -> Result<(), WaitError> {
        match self.0.cancelled.load(Ordering::Relaxed) {
            true => Err(WaitError::Cancelled),
            false => Ok(()),
        }
    }

    /// What has been waited for so far.
    pub fn stalls(&self) -> Stalls {
        let time = Duration::from_nanos(self.0.nanos.load(Ordering::Relaxed));
        Stalls { time, count: self.0.count.load(Ordering::Relaxed) }
    }

    /// Counts time in which something else was done because there was nothing to do but wait.
    pub(crate) fn bridged(&self, time: Duration) {
        self.0.nanos.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        self.0.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Bytes that have arrived so far, verified, by [`Kind`] in the order of [`Kind::ALL`].
    pub fn bytes(&self) -> [u64; Kind::ALL.len()] {
        self.0.bytes.each_ref().map(|bytes| bytes.load(Ordering::Relaxed))
    }

    fn arrived(&self, completion: Completion) -> Completion {
        let piece = completion.layout.read().piece().kind();
        if let (Ok(()), Some(kind)) = (&completion.result, Kind::of(piece)) {
            let read = completion.layout.segments().iter().map(|s| s.present as u64).sum();
            self.0.bytes[kind as usize].fetch_add(read, Ordering::Relaxed);
        }
        completion
    }

    /// What tells the time.
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }
}
