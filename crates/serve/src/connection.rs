//! A connection, until its last response or until its client leaves.
//!
//! A client that sends no more may still read, or may have closed the connection as a whole. Only bytes
//! that are sent to it tell which, so responses send some a moment later ([`Client::half_closed`]). A
//! system without a reader then resets the connection, which ends with all that was asked for on it.

use std::future::{pending, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::app::App;
use crate::explained::Explained;
use crate::http::{RouterService, handle};

/// Time after which a connection without a request is closed if all connections are in use.
const SILENT: Duration = Duration::from_secs(2);
/// Maximum number of bytes and of lines in the header of a request. The last read may double the
/// bytes.
const HEADER: usize = 32 << 10;
const HEADERS: usize = 100;
/// Time between two looks at a client while a request is answered, or once it sends no more.
const LOOK: Duration = Duration::from_millis(100);
/// Maximum number of unread bytes that are dropped when a connection ends.
const UNREAD: usize = 64 << 10;

/// Signals of the server to its connections.
pub(crate) struct Signals {
    /// True once the server ends.
    pub(crate) ended: watch::Receiver<bool>,
    /// Changes while all connections are in use.
    pub(crate) crowded: watch::Receiver<()>,
}

/// The client of a connection, as its requests know it.
#[derive(Clone, Debug)]
pub(crate) struct Client(watch::Receiver<bool>);

impl Client {
    /// True once the client sends no more.
    pub(crate) fn is_half_closed(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the client sends no more: it has closed the connection, or only its own direction.
    pub(crate) async fn half_closed(mut self) {
        if self.0.wait_for(|half_closed| *half_closed).await.is_err() {
            pending().await
        }
    }
}

/// Serves a connection until the server ends. Without signals, serves one request.
pub(crate) async fn connection(
    app: Arc<App>,
    stream: TcpStream,
    routes: RouterService,
    signals: Option<Signals>,
) {
    // Events are small, and should be sent immediately.
    let _ = stream.set_nodelay(true);
    let (read, write) = stream.into_split();
    let read = Arc::new(read);
    let limits = &app.config.limits;
    let opened = Instant::now();
    let has_asked = AtomicBool::new(false);
    let (half_closed, seen) = watch::channel(false);
    let service = service_fn(|mut request: Request<Incoming>| {
        has_asked.store(true, Ordering::Relaxed);
        request.extensions_mut().insert(Client(seen.clone()));
        handle(Arc::clone(&app), routes.clone(), request.map(Body::new))
    });
    let halves = TokioIo::new(Halves { read: Arc::clone(&read), write });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_time)
        .max_headers(HEADERS)
        .max_buf_size(HEADER)
        .keep_alive(signals.is_some())
        // The library would take a client that sends no more for one that has left.
        .half_close(true)
        .serve_connection(Explained::new(halves, limits.write_time), service);
    let mut connection = pin!(connection);
    let mut gone = pin!(gone(&read, half_closed));
    let (ended, crowded) = signals.map(|signals| (signals.ended, signals.crowded)).unzip();
    let mut end = pin!(async move {
        match ended {
            Some(mut ended) => drop(ended.wait_for(|ended| *ended).await),
            None => pending().await,
        }
    });
    let is_silent = || !has_asked.load(Ordering::Relaxed) && opened.elapsed() >= SILENT;
    let mut in_the_way = pin!(async move {
        let Some(mut crowded) = crowded else { return pending().await };
        while crowded.changed().await.is_ok() {
            if is_silent() {
                return;
            }
        }
        pending().await
    });
    let mut ending = false;
    // An error is the client's: it has left, or violates the protocol.
    let _ = poll_fn(|cx| {
        if !ending && end.as_mut().poll(cx).is_ready() {
            ending = true;
            connection.as_mut().graceful_shutdown();
        }
        if in_the_way.as_mut().poll(cx).is_ready() || gone.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        connection.as_mut().poll(cx)
    })
    .await;
    drop_unread(&read);
}

/// Waits until the client has closed the connection. Before that, tells its requests when it closes
/// its own direction.
async fn gone(read: &OwnedReadHalf, half_closed: watch::Sender<bool>) {
    loop {
        match read.ready(Interest::READABLE).await {
            Ok(ready) if ready.is_read_closed() => break,
            // There are bytes, which may stay unread as long as a request is answered.
            Ok(_) => sleep(LOOK).await,
            Err(_) => return pending().await,
        }
    }
    half_closed.send_replace(true);
    loop {
        match read.ready(Interest::WRITABLE).await {
            Ok(ready) if ready.is_write_closed() => return,
            Ok(_) => sleep(LOOK).await,
            Err(_) => return pending().await,
        }
    }
}

/// Drops bytes that nobody has read. Closing a connection with such bytes would reset it, by which
/// some clients lose the end of a response.
fn drop_unread(read: &OwnedReadHalf) {
    let mut bytes = [0; 4096];
    for _ in 0..UNREAD / bytes.len() {
        if !matches!(read.try_read(&mut bytes), Ok(1..)) {
            return;
        }
    }
}

/// Both directions of a connection, of which others look at the first.
struct Halves {
    read: Arc<OwnedReadHalf>,
    write: OwnedWriteHalf,
}

impl AsyncRead for Halves {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream: &TcpStream = (*self.read).as_ref();
        loop {
            ready!(stream.poll_read_ready(cx))?;
            match stream.try_read(buffer.initialize_unfilled()) {
                Ok(read) => {
                    buffer.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Halves {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.write).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.write).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.write.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.write).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.write).poll_shutdown(cx)
    }
}
