//! Bodies of requests: memory for the bytes that have arrived, and a minimum pace for the rest.
//!
//! The first [`FREE_BODY`] bytes of a body belong to its connection, so that a small request never
//! waits for others. Further bytes take permits of a pool as they arrive. When the pool is empty,
//! one body at a time has the turn: it may grow up to the limit in memory reserved for it. It waits
//! only for its own client, so partly received bodies cannot block each other in a circle. While
//! other bodies wait, the client with the turn has to be fast ([`HASTE`]), or its request is
//! refused.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use hyper::body::Body as _;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

use crate::ServerLimits;
use crate::failure::Failure;
use crate::sizes::FREE_BODY;

/// Bytes per permit.
const UNIT: usize = 1 << 10;
/// Minimum number of bytes by which a body grows.
const STEP: usize = 16 << 10;
/// Maximum time that a body waits for memory, in multiples of [`ServerLimits::body_time`].
const WAIT: u32 = 3;
/// Minimum pace of the body with the turn while others wait, in multiples of
/// [`ServerLimits::body_rate`], measured over a time that is shorter by a factor of [`TURN`]. Two
/// dozen slow bodies lose the turn before a waiting one gives up.
const HASTE: usize = 64;
const TURN: u32 = 8;

/// Memory for the bodies of requests.
#[derive(Debug)]
pub(crate) struct Bodies {
    pool: Arc<Semaphore>,
    turn: Arc<Semaphore>,
}

/// A request's body, with the right to its memory.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) bytes: Vec<u8>,
    /// Number of bytes reserved for it.
    room: usize,
    pool: Option<OwnedSemaphorePermit>,
    turn: Option<OwnedSemaphorePermit>,
}

impl Bodies {
    /// Memory for bodies of at most `body` bytes.
    pub(crate) fn new(body: usize) -> Bodies {
        let permits = units(body).min(Semaphore::MAX_PERMITS);
        Bodies { pool: Arc::new(Semaphore::new(permits)), turn: Arc::new(Semaphore::new(1)) }
    }

    /// Reads the body of a request while it arrives.
    pub(crate) async fn receive(
        &self,
        request: Request<Body>,
        limits: &ServerLimits,
    ) -> Result<Received, Failure> {
        let mut body = request.into_body();
        let size = body.size_hint();
        if size.lower() > limits.body as u64 {
            return Err(Failure::too_large(limits.body));
        }
        let most = size.upper().and_then(|most| usize::try_from(most).ok());
        let most = most.unwrap_or(limits.body).min(limits.body);
        let mut received = Received::new(most.min(FREE_BODY));
        let least = limits.least_bytes();
        let mut pace = ArrivalPace::new(limits.body_time, least);
        let mut turn = ArrivalPace::new(limits.body_time / TURN, least * HASTE / TURN as usize);
        loop {
            let has_turn = received.turn.is_some();
            let end = if has_turn { pace.end.min(turn.end) } else { pace.end };
            let Ok(frame) = timeout_at(end, body.frame()).await else {
                if pace.is_missed() {
                    return Err(Failure::slow(limits));
                }
                if has_turn && turn.is_missed() && self.others_wait() {
                    return Err(Failure::crowded());
                }
                continue;
            };
            let Some(frame) = frame else { return Ok(received) };
            let frame =
                frame.map_err(|_| Failure::invalid("the request ended early; send it again"))?;
            // Trailers are ignored.
            let Ok(data) = frame.into_data() else { continue };
            let needed = received.bytes.len() + data.len();
            if needed > limits.body {
                return Err(Failure::too_large(limits.body));
            }
            if needed > received.room && self.grow(&mut received, needed, most, limits).await? {
                // The client could not send during the wait.
                pace.restart();
            }
            if !has_turn && received.turn.is_some() {
                turn.restart();
            }
            received.bytes.extend_from_slice(&data);
            pace.arrived += data.len();
            turn.arrived += data.len();
        }
    }

    /// Reserves room for `needed` bytes of a body that may have `most` bytes. Returns true if it
    /// had to wait.
    async fn grow(
        &self,
        received: &mut Received,
        needed: usize,
        most: usize,
        limits: &ServerLimits,
    ) -> Result<bool, Failure> {
        // Room grows in proportion, so that a large body is copied only a few times.
        let room = (needed + STEP.max(needed / 8)).min(most).max(needed);
        let more = units(room) - units(received.room);
        let mut waited = false;
        if received.turn.is_none() && more > 0 {
            let permits = u32::try_from(more).map_err(|_| Failure::too_large(limits.body))?;
            let permits = match Arc::clone(&self.pool).try_acquire_many_owned(permits) {
                Ok(permits) => Right::Pool(permits),
                Err(_) => {
                    waited = true;
                    match timeout(limits.body_time * WAIT, self.right(permits)).await {
                        Ok(Ok(right)) => right,
                        Ok(Err(_)) => {
                            return Err(Failure::unavailable("the server is about to end"));
                        }
                        Err(_) => return Err(Failure::crowded()),
                    }
                }
            };
            received.take(permits);
        }
        received.room = room;
        received.bytes.reserve_exact(room - received.bytes.len());
        Ok(waited)
    }

    /// Waits for permits of the pool, or for the turn, whichever comes first.
    async fn right(&self, permits: u32) -> Result<Right, AcquireError> {
        let mut pool = pin!(Arc::clone(&self.pool).acquire_many_owned(permits));
        let mut turn = pin!(Arc::clone(&self.turn).acquire_owned());
        poll_fn(|cx| match pool.as_mut().poll(cx) {
            Poll::Ready(permits) => Poll::Ready(permits.map(Right::Pool)),
            Poll::Pending => turn.as_mut().poll(cx).map(|turn| turn.map(Right::Turn)),
        })
        .await
    }

    /// True if a body has the turn and others wait for it.
    fn others_wait(&self) -> bool {
        // This value, the body with the turn and each waiting body hold a reference.
        Arc::strong_count(&self.turn) > 2
    }
}

/// Measures if enough bytes arrive in each span of time.
struct ArrivalPace {
    span: Duration,
    least: usize,
    arrived: usize,
    end: Instant,
}

impl ArrivalPace {
    fn new(span: Duration, least: usize) -> ArrivalPace {
        ArrivalPace { span, least, arrived: 0, end: Instant::now() + span }
    }

    fn restart(&mut self) {
        (self.arrived, self.end) = (0, Instant::now() + self.span);
    }

    /// True if the span is over and too few bytes arrived. When a span is over, the next one
    /// begins.
    fn is_missed(&mut self) -> bool {
        if Instant::now() < self.end {
            return false;
        }
        let missed = self.arrived < self.least;
        self.restart();
        missed
    }
}

/// A reservation of memory.
enum Right {
    Pool(OwnedSemaphorePermit),
    Turn(OwnedSemaphorePermit),
}

impl Received {
    fn new(room: usize) -> Received {
        Received { bytes: Vec::with_capacity(room), room, pool: None, turn: None }
    }

    fn take(&mut self, right: Right) {
        match (right, &mut self.pool) {
            (Right::Pool(more), Some(pool)) => pool.merge(more),
            (Right::Pool(permits), pool) => *pool = Some(permits),
            (Right::Turn(turn), _) => self.turn = Some(turn),
        }
    }
}

/// Number of permits for so many bytes.
const fn units(room: usize) -> usize {
    room.saturating_sub(FREE_BODY).div_ceil(UNIT)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::Context;

    use hyper::body::{Bytes, Frame};
    use tokio::runtime::Runtime;
    use tokio::sync::mpsc::{Receiver, channel};
    use tokio::task::yield_now;

    use super::*;
    use crate::sizes::body_bytes;

    /// A body without a length, whose parts come when a test sends them.
    struct Sent(Receiver<Bytes>);

    impl hyper::body::Body for Sent {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            self.0.poll_recv(cx).map(|part| part.map(|part| Ok(Frame::data(part))))
        }
    }

    fn runtime() -> Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
    }

    /// Any order of bodies that grow, end and are given up.
    #[test]
    fn bodies_stay_within_their_memory_and_one_of_them_can_always_grow() {
        const MOST: usize = 64 << 10;
        let limits = ServerLimits { body: MOST, ..ServerLimits::default() };
        let bodies = Bodies::new(MOST);
        let mut growing: Vec<Received> = (0..12).map(|_| Received::new(FREE_BODY)).collect();
        let mut state = 1_u64;
        let mut ended = 0;
        let mut stuck = 0;
        runtime().block_on(async {
            for _ in 0..20_000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let random = (state >> 33) as usize;
                let one = &mut growing[random % 12];
                let needed = one.bytes.len() + random % 7000;
                let grown = needed <= one.room || {
                    // A body that would have to wait is left as it is.
                    let mut grow = pin!(bodies.grow(one, needed.min(MOST), MOST, &limits));
                    poll_fn(|cx| Poll::Ready(grow.as_mut().poll(cx).is_ready())).await
                };
                if grown {
                    one.bytes.resize(needed.min(MOST), 0);
                    stuck = 0;
                } else {
                    stuck += 1;
                }
                if one.bytes.len() == MOST || random.is_multiple_of(500) {
                    ended += usize::from(one.bytes.len() == MOST);
                    *one = Received::new(FREE_BODY);
                }
                let held: usize = growing.iter().map(|one| one.bytes.capacity()).sum();
                assert!(held <= body_bytes(MOST, 12) + MOST, "{held}");
                assert!(stuck < 300, "no body can grow");
            }
        });
        assert!(ended > 100, "{ended}");
    }

    #[test]
    fn bodies_that_have_arrived_in_part_all_end() {
        const MOST: usize = 64 << 10;
        runtime().block_on(async {
            let bodies = Arc::new(Bodies::new(MOST));
            let mut reading = Vec::new();
            for number in 0..40 {
                let (parts, sent) = channel(1);
                let request = Request::new(Body::new(Sent(sent)));
                let bodies = Arc::clone(&bodies);
                let limits = ServerLimits { body: MOST, ..ServerLimits::default() };
                let length = 40_000 + 600 * number;
                tokio::spawn(async move {
                    for part in vec![7; length].chunks(1000) {
                        parts.send(Bytes::copy_from_slice(part)).await.unwrap();
                        yield_now().await;
                    }
                });
                let read = async move {
                    let received = bodies.receive(request, &limits).await;
                    (received.map(|received| received.bytes.len()).ok(), Some(length))
                };
                reading.push(tokio::spawn(read));
            }
            for read in reading {
                let (read, sent) = read.await.unwrap();
                assert_eq!(read, sent);
            }
            // All memory is back.
            assert_eq!(bodies.pool.available_permits(), units(MOST));
            assert_eq!(bodies.turn.available_permits(), 1);
        });
    }
}
