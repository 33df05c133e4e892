//! `/events`: a stream of the engine's activity, for monitoring.
//!
//! Each listener reads the run when its connection has room for another event. A slow listener
//! therefore gets fewer events, and nothing is buffered for it. Without listeners the run is not
//! read at all.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::Response;
use hyper::body::{Bytes, Frame as Part};
use serde::Serialize;
use sws_engine::{RunWatch, memory};
use sws_model::ModelSpec;
use sws_watch::live::{Expected, FrameWriter, Hello, LiveRequest, Log, VERSION};
use sws_watch::{Follower, LEVELS};
use tokio::time::{Instant, Sleep, sleep};

use crate::app::App;
use crate::connection::Client;
use crate::failure::Failure;
use crate::reply::of_events;
use crate::requests::RequestOrigin;
use crate::served::Served;
use crate::sse::comment;

/// Time between two events.
const EVERY: Duration = Duration::from_millis(100);
/// Number of events between two readings of the process's memory. The system generates a file for
/// each.
const MEMORY: u32 = 5;
/// Maximum number of listeners.
const LISTENERS: usize = 16;
/// Maximum number of requests in an event.
const REQUESTS: usize = 64;

/// Heap bytes of all listeners, for a model like this.
pub fn listening(spec: &ModelSpec) -> u64 {
    let experts = spec.moes().map(|moe| moe.experts).sum();
    // The worker's thread reads the run too. Events are written to only a few connections at a
    // time.
    Log::BYTES + RunWatch::bytes_for(spec) + 4 * FrameWriter::bytes_for(experts)
}

/// `/events`.
pub(crate) fn listen(app: &Arc<App>, origin: RequestOrigin) -> Result<Response<Body>, Failure> {
    let RequestOrigin { owner, client, .. } = origin;
    let listening = Listening::begin(app)?;
    let next = Box::pin(sleep(Duration::ZERO));
    let told = told(app, owner)?;
    let sent = app.clock.now();
    let requests = Vec::new();
    let count = 0;
    let texts = None;
    let stream = Stream { listening, owner, client, told, next, requests, count, sent, texts };
    Ok(of_events(Body::new(stream)))
}

/// What a listener is told of a model.
struct Told {
    /// Number of loads of models so far. With the next one, another model is told of.
    loads: u64,
    writer: FrameWriter,
    out: String,
}

/// Begins to tell of the loaded model.
fn told(app: &App, owner: u64) -> Result<Told, Failure> {
    let loads = app.counts.loads.get();
    let served = app.current()?;
    let follower = served.engine.gauge().map(|gauge| Follower::new(gauge.watch()));
    let writer = FrameWriter::new(follower, owner, app.events.log().end());
    let out = written("hello", &hello(&served, &writer));
    Ok(Told { loads, writer, out })
}

fn hello(served: &Served, writer: &FrameWriter) -> Hello {
    let plan = served.plan.as_ref();
    let mut uses = Vec::new();
    for (what, bytes) in plan.into_iter().flat_map(|plan| plan.ledger.lines()) {
        if bytes > 0 {
            uses.push((what.words().to_owned(), bytes));
        }
    }
    let expected = plan.map(|plan| Expected {
        hit_rate: (plan.per_token.experts > 0).then_some(plan.per_token.hit_rate),
        bytes: plan.per_token.read(),
    });
    Hello {
        version: VERSION,
        model: served.id().to_owned(),
        rows: writer.rows(),
        budget: plan.map(|plan| plan.ledger.budget()),
        uses,
        plan: expected,
        texts: served.texts,
        levels: LEVELS.to_vec(),
    }
}

/// The registration of a listener. The watch ends with the last one.
struct Listening {
    app: Arc<App>,
}

impl Listening {
    fn begin(app: &Arc<App>) -> Result<Listening, Failure> {
        // Listeners are added and dropped on a single thread.
        if app.events.count.load(Ordering::Relaxed) >= LISTENERS {
            return Err(Failure::busy(format!("{LISTENERS} others listen already; close one")));
        }
        app.events.count.fetch_add(1, Ordering::Relaxed);
        Ok(Listening { app: Arc::clone(app) })
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if self.app.events.count.fetch_sub(1, Ordering::Relaxed) == 1
            && let Ok(served) = self.app.current()
            && let Some(gauge) = served.engine.gauge()
        {
            gauge.watch().end();
        }
    }
}

/// The body of a response with events. It is polled only when its connection has room.
struct Stream {
    listening: Listening,
    owner: u64,
    /// The client, until it has closed its direction, and something was sent to see if it still reads.
    client: Option<Client>,
    told: Told,
    next: Pin<Box<Sleep>>,
    requests: Vec<LiveRequest>,
    texts: Option<[usize; 2]>,
    /// Number of events so far.
    count: u32,
    /// Time of the last event.
    sent: Duration,
}

impl Stream {
    /// The next event, if there is anything new.
    fn event(&mut self) -> Option<String> {
        let app = &self.listening.app;
        let now = app.clock.now();
        let mut frame = self.told.writer.frame(now.as_secs_f64(), &app.events.log());
        let requests = app.requests.first(self.owner, REQUESTS);
        if requests != self.requests || self.count == 0 {
            frame.requests = Some(requests.clone());
            self.requests = requests;
        }
        frame.texts = [app.counts.running.get() as usize, app.queue.len()];
        let is_new = self.count == 0
            || frame.running.is_some()
            || frame.requests.is_some()
            || !(frame.passes.is_empty() && frame.wall.is_empty())
            || self.texts != Some(frame.texts);
        if !is_new {
            return None;
        }
        if self.count.is_multiple_of(MEMORY) {
            frame.memory = memory();
        }
        self.texts = Some(frame.texts);
        self.count = self.count.wrapping_add(1).max(1);
        self.sent = now;
        Some(written("frame", &frame))
    }
}

impl hyper::body::Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Part<Bytes>, Infallible>>> {
        let stream = self.get_mut();
        loop {
            if !stream.told.out.is_empty() {
                let part = Bytes::from(std::mem::take(&mut stream.told.out));
                return Poll::Ready(Some(Ok(Part::data(part))));
            }
            if stream.next.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            let app = &stream.listening.app;
            // A server that ends waits for its connections.
            if app.is_draining() {
                return Poll::Ready(None);
            }
            if app.counts.loads.get() != stream.told.loads {
                let Ok(told) = told(app, stream.owner) else { return Poll::Ready(None) };
                (stream.told, stream.count) = (told, 0);
                continue;
            }
            stream.next.as_mut().reset(Instant::now() + EVERY);
            let quiet = stream.listening.app.clock.now().saturating_sub(stream.sent);
            let is_due = quiet >= stream.listening.app.config.limits.heartbeat;
            let is_half_closed = stream.client.take_if(|client| client.is_half_closed()).is_some();
            match stream.event() {
                Some(event) => stream.told.out = event,
                None if is_due || is_half_closed => {
                    stream.sent += quiet;
                    comment(&mut stream.told.out, "keep-alive");
                }
                None => {}
            }
        }
    }
}

/// An event with a name.
fn written(name: &str, data: &impl Serialize) -> String {
    // Serialising plain numbers and texts does not fail.
    let data = serde_json::to_string(data).unwrap_or_default();
    format!("event: {name}\ndata: {data}\n\n")
}
