//! Connections on which every refusal has a body, and every write an end. The HTTP library refuses an
//! unreadable header by itself, with a status alone. Such an answer gets a body on its way out. It also
//! waits without end for clients that read nothing; here a write fails in the end.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::StatusCode;
use hyper::rt::{Read, ReadBufCursor, Write};
use tokio::time::{Sleep, sleep};

use crate::failure::Failure;

/// Header line of an answer without a body.
const NO_BODY: &[u8] = b"content-length: 0\r\n";
/// The end of a head.
const END: &[u8] = b"\r\n\r\n";

/// A connection whose refusals have a body.
pub(crate) struct Explained<T> {
    inner: T,
    /// The refusal that is being written, and the number of bytes written.
    refusal: Option<(Vec<u8>, usize)>,
    /// Maximum time for which the client takes nothing of what is written.
    write_time: Duration,
    /// The end of that time, while the client takes nothing.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<T> Explained<T> {
    pub(crate) fn new(inner: T, write_time: Duration) -> Explained<T> {
        Explained { inner, refusal: None, write_time, stalled: None }
    }

    /// The result of a write, which fails once the client has taken nothing for too long.
    fn in_time(
        &mut self,
        written: Poll<io::Result<usize>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let time = self.write_time;
        ready!(self.stalled.get_or_insert_with(|| Box::pin(sleep(time))).as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: Write + Unpin> Explained<T> {
    /// Writes some of the bytes, or all of a refusal in their place.
    fn poll_explained(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Explained { inner, refusal, .. } = self;
        if refusal.is_none() {
            *refusal = explained(bytes).map(|refusal| (refusal, 0));
        }
        let Some((whole, written)) = refusal else {
            return Pin::new(inner).poll_write(cx, bytes);
        };
        while *written < whole.len() {
            match ready!(Pin::new(&mut *inner).poll_write(cx, &whole[*written..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                more => *written += more,
            }
        }
        *refusal = None;
        Poll::Ready(Ok(bytes.len()))
    }
}

/// The complete refusal, if `head` is that of a refusal without a body. Only the HTTP library makes
/// such refusals.
fn explained(head: &[u8]) -> Option<Vec<u8>> {
    let status = head.strip_prefix(b"HTTP/1.")?.get(2..5)?;
    let status = StatusCode::from_bytes(status).ok().filter(StatusCode::is_client_error)?;
    // The bytes must be a head alone, without a body after it or an answer before it.
    let lines = head.strip_suffix(END)?;
    if lines.windows(END.len()).any(|bytes| bytes == END) {
        return None;
    }
    let at = head.windows(NO_BODY.len()).position(|line| line == NO_BODY)?;
    let body = Failure::unread(status).json().to_string();
    let length = format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
    let after = &head[at + NO_BODY.len()..];
    Some([&head[..at], length.as_bytes(), after, body.as_bytes()].concat())
}

impl<T: Read + Unpin> Read for Explained<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<T: Write + Unpin> Write for Explained<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = self.poll_explained(cx, bytes);
        self.in_time(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut filled = parts.iter().filter(|part| !part.is_empty());
        let written = match (filled.next(), filled.next()) {
            // The bytes are a head alone.
            (Some(part), None) => self.poll_explained(cx, part),
            _ => Pin::new(&mut self.inner).poll_write_vectored(cx, parts),
        };
        self.in_time(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_refusals_without_a_body_get_one() {
        let head =
            b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\ndate: a\r\n\r\n";
        let whole = String::from_utf8(explained(head).unwrap()).unwrap();
        let (head, body) = whole.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{head}");
        assert!(head.ends_with("date: a") && body.contains("\"message\":\"the header"), "{whole}");
        for other in [
            &b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"[..],
            b"HTTP/1.1 400 Bad Request\r\ncontent-length: 10\r\n\r\n",
            b"data: HTTP/1.1 400 \r\ncontent-length: 0\r\n\r\n",
            b"HTTP/1.1 404 Not Found\r\ncontent-length: 80\r\n\r\nHTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n",
            b"HTTP/1.1 400 Bad Request\r\n\r\ncontent-length: 0\r\n",
            b"HTTP/1.",
            b"",
        ] {
            assert_eq!(explained(other), None);
        }
    }
}
