//! Uploads of single files.

use std::cell::RefCell;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use ring::digest::{Context, SHA256};
use sws_hub::http::{ATTEMPTS, ByteRange, HttpFailure, text};
use tracing::info;
use ureq::http::{StatusCode, header};

use crate::key::finished;
use crate::{FarError, FarOrigin};

/// Number of bytes at the end of a file that are read back. With the length, they show cheaply
/// whether the file was stored.
const END: usize = 64 << 10;

/// Opens a file to read it from its beginning.
pub(super) type OpenBody<'a> = dyn Fn() -> io::Result<Box<dyn Read + 'a>> + 'a;

/// A file to upload.
#[derive(Clone, Copy, Debug)]
pub(super) struct UploadedFile<'a> {
    /// Its name at the address.
    pub(super) name: &'a str,
    /// Its path here.
    pub(super) path: &'a Path,
    pub(super) len: u64,
    /// The SHA-256 of its bytes when they were verified, in hexadecimal digits.
    pub(super) hash: &'a str,
}

/// Uploads a file until it succeeds or fails permanently. Repeats it once if the server stored
/// something else.
pub(super) fn upload(
    to: &FarOrigin,
    file: &UploadedFile<'_>,
    moved: &(dyn Fn(u64) + Sync),
    open: &OpenBody<'_>,
) -> Result<(), FarError> {
    for _ in 0..2 {
        let end = send(to, file, open)?;
        if is_kept(to, file, &end) {
            moved(file.len);
            return Ok(());
        }
        info!("{} has other bytes than those that were sent", to.render(file.name));
    }
    Err(FarError::NotKept { url: to.render(file.name) })
}

/// False if the server returns another length or other last bytes. True if it permits no reading.
fn is_kept(to: &FarOrigin, &UploadedFile { name, len, .. }: &UploadedFile<'_>, end: &[u8]) -> bool {
    let first = len - end.len() as u64;
    let kept = to.http().attempted(ATTEMPTS, &mut |_| {
        let mut reply = to.get(name, Some(ByteRange(first, Some(len.saturating_sub(1)))), None)?;
        let total = match reply.status() {
            StatusCode::PARTIAL_CONTENT => {
                let range = text(reply.headers(), header::CONTENT_RANGE.as_str());
                range.and_then(|range| range.rsplit('/').next())
            }
            _ => text(reply.headers(), header::CONTENT_LENGTH.as_str()),
        };
        let has_length = total.and_then(|total| total.parse().ok()).is_none_or(|it: u64| it == len);
        if !has_length || (reply.status() != StatusCode::PARTIAL_CONTENT && first > 0) {
            return Ok(has_length);
        }
        let mut bytes = Vec::new();
        let body = to.http().body(&mut reply);
        let read = body.take(end.len() as u64 + 1).read_to_end(&mut bytes);
        to.count(bytes.len());
        match read {
            Ok(_) => Ok(bytes == end),
            Err(e) => Err(HttpFailure::Connection { url: to.render(name), reason: e.to_string() }),
        }
    });
    match kept {
        Ok(kept) => kept,
        Err(HttpFailure::Status { status: 416, .. }) => len == 0,
        Err(HttpFailure::Status { status: 404 | 410, .. }) => false,
        Err(failure) => {
            info!("{} does not tell what it has: {}", to.render(name), failure.reason());
            true
        }
    }
}

/// Sends a file until the server has accepted it, or fails permanently: also if its bytes are not those that were
/// verified. Returns the bytes at its end.
fn send(to: &FarOrigin, file: &UploadedFile<'_>, open: &OpenBody<'_>) -> Result<Vec<u8>, FarError> {
    let &UploadedFile { name, path, len, hash } = file;
    let read = RefCell::new(ReadBytes::default());
    let sent = to.http().attempted(ATTEMPTS, &mut |_| {
        to.put(name, len, hash, || {
            // Another attempt would not make a file readable.
            if read.borrow().failure.is_none() {
                read.replace(ReadBytes::default());
                match open() {
                    Ok(body) => return Ok(Box::new(SentBody { body, len, read: &read })),
                    Err(cause) => read.borrow_mut().failure = Some(cause),
                }
            }
            let reason = "the file cannot be read".to_owned();
            Err(HttpFailure::Answer { url: to.render(name), reason })
        })
    });
    let ReadBytes { hash: found, count, mut end, failure } = read.into_inner();
    let is_short = failure.as_ref().is_some_and(|cause| cause.kind() == ErrorKind::UnexpectedEof);
    let is_other = count == len && finished(found.finish()) != hash;
    match (sent, failure) {
        _ if is_short || is_other => Err(FarError::Changed { path: path.to_owned() }),
        (_, Some(cause)) => Err(FarError::read(path, cause)),
        (Ok(()), None) => {
            end.drain(..end.len().saturating_sub(END));
            Ok(end)
        }
        (Err(HttpFailure::Status { url, status: status @ (404 | 405 | 501), code, .. }), None)
            if code != "NoSuchBucket" =>
        {
            Err(FarError::NotTaken { url, status })
        }
        (Err(failure), None) => Err(to.explained(failure, name)),
    }
}

/// The bytes read of a file to send.
struct ReadBytes {
    hash: Context,
    count: u64,
    /// The last bytes, at least [`END`] if there are so many.
    end: Vec<u8>,
    failure: Option<io::Error>,
}

impl Default for ReadBytes {
    fn default() -> ReadBytes {
        ReadBytes { hash: Context::new(&SHA256), count: 0, end: Vec::new(), failure: None }
    }
}

/// The body of a request, of which is kept what was read.
struct SentBody<'a> {
    body: Box<dyn Read + 'a>,
    len: u64,
    read: &'a RefCell<ReadBytes>,
}

impl Read for SentBody<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut read = self.read.borrow_mut();
        let found = match self.body.read(into) {
            Ok(0) if read.count < self.len && !into.is_empty() => {
                Err(ErrorKind::UnexpectedEof.into())
            }
            found => found,
        };
        match found {
            Ok(n) => {
                read.hash.update(&into[..n]);
                read.count += n as u64;
                read.end.extend_from_slice(&into[..n]);
                if read.end.len() > 4 * END {
                    let surplus = read.end.len() - END;
                    read.end.drain(..surplus);
                }
                Ok(n)
            }
            Err(cause) if cause.kind() == ErrorKind::Interrupted => Err(cause),
            Err(cause) => {
                let kind = cause.kind();
                read.failure = Some(cause);
                Err(kind.into())
            }
        }
    }
}
