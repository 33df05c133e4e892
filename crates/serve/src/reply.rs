//! The events of a request, and the response that consists of them.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::Response;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::body::{Bytes, Frame};
use sws::Cancel;
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, Sleep, sleep};

use crate::ServerLimits;
use crate::connection::Client;
use crate::failure::{Dialect, Failure};
use crate::queue::Happened;
use crate::requests::Listed;
use crate::sse::{comment, event};

/// Number of bytes from which a part of a response is sent, though more is available.
const PART: usize = 16 << 10;
/// Time after which a whole answer begins with a blank line for a client that has closed its direction,
/// to see if it still reads. Answers until then keep their status and their length.
const MOMENT: Duration = Duration::from_millis(500);

/// The receiver of a request's events. Dropping it cancels the request.
pub(crate) struct ReplyTicket {
    events: Receiver<(usize, Happened)>,
    /// Events that were received together.
    parts: VecDeque<(usize, Happened)>,
    cancel: Cancel,
    /// Time at which a waiting request gives up; `None` once it has begun.
    deadline: Option<Pin<Box<Sleep>>>,
    listed: Listed,
}

impl ReplyTicket {
    /// Creates the receiver. Must be called in the runtime.
    pub(crate) fn new(
        events: Receiver<(usize, Happened)>,
        cancel: Cancel,
        queue_time: Duration,
        listed: Listed,
    ) -> ReplyTicket {
        let parts = VecDeque::new();
        let deadline = Some(Box::pin(sleep(queue_time)));
        ReplyTicket { events, parts, cancel, deadline, listed }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<(usize, Happened)> {
        if let Some(part) = self.parts.pop_front() {
            return Poll::Ready(part);
        }
        match self.events.poll_recv(cx) {
            Poll::Ready(Some((number, happened))) => {
                self.deadline = None;
                let Happened::Resumed(pieces) = happened else {
                    return Poll::Ready((number, happened));
                };
                let parts = pieces.into_iter().map(|piece| (number, Happened::Piece(piece, None)));
                self.parts.extend(parts);
                return self.poll_next(cx);
            }
            Poll::Ready(None) => {
                let failure = match self.listed.entry.is_cancelled() {
                    true => Failure::cancelled(),
                    false => Failure::server("the text was given up; send the request again"),
                };
                return Poll::Ready((0, Happened::failed(failure)));
            }
            Poll::Pending => {}
        }
        let deadline = self.deadline.as_mut();
        if !deadline.is_some_and(|deadline| deadline.as_mut().poll(cx).is_ready()) {
            return Poll::Pending;
        }
        self.deadline = None;
        self.cancel.cancel();
        let failure = Failure::waited();
        Poll::Ready((0, Happened::failed(failure)))
    }
}

impl Drop for ReplyTicket {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// Writes an answer: a stream of events, or a whole.
pub(crate) trait AnswerWriter: Send {
    /// Appends the text before the first event.
    fn begin(&mut self, out: &mut String) {
        let _ = out;
    }

    /// Takes an event of a text, and appends the text to send.
    fn take(&mut self, number: usize, happened: Happened, out: &mut String) -> Result<(), Failure>;

    /// True once everything is sent.
    fn is_over(&self) -> bool;

    /// Appends a keep-alive signal to a stream.
    fn alive(&mut self, out: &mut String) {
        comment(out, "keep-alive");
    }

    /// Appends a failure to a stream that has begun.
    fn fail(&mut self, failure: &Failure, out: &mut String) {
        event(out, &failure.json());
    }
}

/// Kind of a response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseKind {
    pub(crate) stream: bool,
    pub(crate) dialect: Dialect,
}

/// Makes the response. A stream begins at once. A whole answer begins when it is complete, or with
/// blank lines if that takes long.
pub(crate) async fn respond(
    mut ticket: ReplyTicket,
    mut answer: Box<dyn AnswerWriter>,
    kind: ResponseKind,
    limits: &ServerLimits,
) -> Response<Body> {
    let mut out = String::new();
    let mut alive = SignsOfLife::new(kind, limits, ticket.listed.entry.client());
    if kind.stream {
        answer.begin(&mut out);
    } else {
        let whole = poll_fn(|cx| {
            let whole = poll_whole(&mut ticket, &mut *answer, &mut out, cx);
            if whole.is_ready() { whole.map(Some) } else { alive.poll_due(cx).map(|()| None) }
        });
        match whole.await {
            Some(Ok(())) => {
                let mut response = with_type(Body::from(out), "application/json");
                let spent = ticket.listed.entry.cost.spent().header();
                if let Ok(spent) = HeaderValue::from_str(&spent) {
                    response.headers_mut().insert("sws-engine", spent);
                }
                return response;
            }
            Some(Err(failure)) => return failure.response(),
            None => out.push('\n'),
        }
    }
    let body = Body::new(ReplyBody { ticket: Some(ticket), answer, kind, out, alive });
    match (kind.stream, kind.dialect) {
        (false, _) => with_type(body, "application/json"),
        (true, Dialect::Ollama) => of_stream(body, "application/x-ndjson"),
        (true, _) => of_events(body),
    }
}

/// A response of server-sent events.
pub(crate) fn of_events(body: Body) -> Response<Body> {
    of_stream(body, "text/event-stream")
}

fn of_stream(body: Body, kind: &'static str) -> Response<Body> {
    let mut response = with_type(body, kind);
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that buffer responses would hold the stream back.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

fn with_type(body: Body, kind: &'static str) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn poll_whole(
    ticket: &mut ReplyTicket,
    answer: &mut dyn AnswerWriter,
    out: &mut String,
    cx: &mut Context<'_>,
) -> Poll<Result<(), Failure>> {
    loop {
        match ticket.poll_next(cx) {
            Poll::Ready((number, happened)) => answer.take(number, happened, out)?,
            Poll::Pending => return Poll::Pending,
        }
        if answer.is_over() {
            return Poll::Ready(Ok(()));
        }
    }
}

/// Times at which a response sends something, though its text has nothing new.
struct SignsOfLife {
    every: Duration,
    next: Pin<Box<Sleep>>,
    /// Completes a moment after the client has closed its direction. A sign then tells if it still
    /// reads.
    half_closed: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl SignsOfLife {
    fn new(kind: ResponseKind, limits: &ServerLimits, client: Option<Client>) -> SignsOfLife {
        let (first, moment) = match kind.stream {
            true => (limits.heartbeat, Duration::ZERO),
            false => (limits.patience, MOMENT),
        };
        let half_closed = client.map(|client| {
            let half_closed = async move {
                client.half_closed().await;
                sleep(moment).await;
            };
            Box::pin(half_closed) as Pin<Box<dyn Future<Output = ()> + Send>>
        });
        SignsOfLife { every: limits.heartbeat, next: Box::pin(sleep(first)), half_closed }
    }

    /// Ready once a sign of life is due.
    fn poll_due(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(half_closed) = &mut self.half_closed
            && half_closed.as_mut().poll(cx).is_ready()
        {
            self.half_closed = None;
            return Poll::Ready(());
        }
        self.next.as_mut().poll(cx)
    }

    /// Records that something is sent.
    fn sent(&mut self) {
        self.next.as_mut().reset(Instant::now() + self.every);
    }
}

/// The body of a response that is sent as it is made. Dropping it cancels the request.
struct ReplyBody {
    /// `None` once the whole answer is in `out`.
    ticket: Option<ReplyTicket>,
    answer: Box<dyn AnswerWriter>,
    kind: ResponseKind,
    out: String,
    alive: SignsOfLife,
}

impl hyper::body::Body for ReplyBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let ReplyBody { ticket, answer, kind, out, alive } = self.get_mut();
        loop {
            while let Some(waiting) = ticket
                && out.len() < PART
                && let Poll::Ready((number, happened)) = waiting.poll_next(cx)
            {
                let taken = answer.take(number, happened, out);
                match &taken {
                    Err(failure) if kind.stream => answer.fail(failure, out),
                    Err(failure) => out.push_str(&failure.shaped(kind.dialect).to_string()),
                    Ok(()) => {}
                }
                if taken.is_err() || answer.is_over() {
                    *ticket = None;
                }
            }
            if !out.is_empty() {
                alive.sent();
                let part = Bytes::from(std::mem::take(out));
                return Poll::Ready(Some(Ok(Frame::data(part))));
            }
            if ticket.is_none() {
                return Poll::Ready(None);
            }
            if alive.poll_due(cx).is_pending() {
                return Poll::Pending;
            }
            // Blank lines may come before JSON.
            if kind.stream { answer.alive(out) } else { out.push('\n') }
        }
    }
}
