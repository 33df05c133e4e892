//! Downloads cells: requests their bytes, verifies their checksums, and writes them.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::sync::Arc;

use sws_format::{Checksum, FileEntry};
use sws_hub::http::{ATTEMPTS, ByteRange, HttpFailure, HttpReply, text};
use sws_os::file::write_all_at;
use tracing::info;
use ureq::http::{StatusCode, header};

use crate::cells::CellSpan;
use crate::place::{ModelPlace, settle};
use crate::queue::{CellQueue, Failed, Reason};
use crate::{FarError, FarOrigin};

/// Number of bytes that are read and hashed at a time.
pub(crate) const BUFFER: usize = 64 << 10;
/// Maximum number of bytes before a range that are skipped, if a server sends only whole files.
const SKIPPED: u64 = 16 << 20;

/// The parts of a model that all of its threads share.
#[derive(Debug)]
pub(crate) struct FetchShared {
    pub(crate) origin: FarOrigin,
    pub(crate) place: ModelPlace,
    pub(crate) queue: CellQueue,
}

/// Reason for the end of an attempt.
enum FetchStop {
    Http(HttpFailure),
    Far(FarError),
    /// The block at this offset has a wrong checksum.
    Wrong(u64),
}

/// Function that takes bytes of a file with their offset.
type Sink<'a> = dyn FnMut(u64, &[u8]) -> Result<(), FetchStop> + 'a;

impl From<HttpFailure> for FetchStop {
    fn from(failure: HttpFailure) -> FetchStop {
        FetchStop::Http(failure)
    }
}

impl FetchShared {
    /// Downloads cells until the queue is closed.
    pub(crate) fn work(&self) {
        let mut buffer = vec![0; BUFFER];
        while let Some((cell, reason)) = self.queue.next() {
            let outcome = self.fetch(cell, reason, &mut buffer);
            if let Err(Failed::Error(error)) = &outcome {
                info!("a piece did not come: {error}");
            }
            self.queue.ended(cell, reason, outcome);
        }
    }

    /// Downloads a cell, unless it is cached or another process downloads it.
    fn fetch(&self, cell: u32, reason: Reason, buffer: &mut [u8]) -> Result<(), Failed> {
        let FetchShared { place, .. } = self;
        if place.record.has(cell) {
            return Ok(());
        }
        let _lock = place.lock(cell).map_err(failed)?;
        if place.record.has(cell) {
            return Ok(());
        }
        let span = place.span(cell);
        if !place.reserve(span, reason == Reason::Demanded).map_err(failed)? {
            return Err(Failed::NoRoom);
        }
        let brought = self.bring(cell, span, buffer).and_then(|file| {
            settle(&file, span).map_err(FarError::writing(&place.path(span.file)))?;
            place
                .record
                .set(cell, place.record.tick())
                .map_err(FarError::writing(&place.path(span.file)))
        });
        brought.inspect_err(|_| place.release(span)).map_err(failed)
    }

    /// Downloads a cell to its file. All checksums are verified.
    fn bring(&self, cell: u32, span: CellSpan, buffer: &mut [u8]) -> Result<File, FarError> {
        let file = self.place.file(span.file)?;
        let path = self.place.path(span.file);
        let FetchShared { place, .. } = self;
        self.repeated(span.file, &mut || {
            let mut blocks = place.cells.blocks(&place.manifest, cell).peekable();
            let mut sum = Checksum::default();
            self.stream(span.file, span.start..span.end, buffer, &mut |at, bytes| {
                write_all_at(&file, bytes, at)
                    .map_err(|e| FetchStop::Far(FarError::write(&path, e)))?;
                let end = at + bytes.len() as u64;
                while let Some(&block) = blocks.peek().filter(|block| block.start < end) {
                    let from = block.start.max(at) - at;
                    let to = block.end.min(end) - at;
                    sum.update(&bytes[from as usize..to as usize]);
                    if block.end > end {
                        break;
                    }
                    if sum.finish() != block.check {
                        return Err(FetchStop::Wrong(block.start));
                    }
                    blocks.next();
                }
                Ok(())
            })
        })?;
        Ok(file)
    }

    /// Reads a range of a file into memory without the cache. Returns the number of bytes, which is
    /// smaller at the end of the file. Checksums are not verified.
    pub(crate) fn read(&self, file: u32, offset: u64, into: &mut [u8]) -> Result<usize, FarError> {
        let len = self.entry(file).len;
        let end = offset.saturating_add(into.len() as u64).min(len);
        if offset >= end {
            return Ok(0);
        }
        let mut buffer = vec![0; BUFFER];
        self.repeated(file, &mut || {
            self.stream(file, offset..end, &mut buffer, &mut |at, bytes| {
                let from = (at - offset) as usize;
                into[from..from + bytes.len()].copy_from_slice(bytes);
                Ok(())
            })
        })?;
        Ok((end - offset) as usize)
    }

    /// Makes attempts until one succeeds. Wrong bytes are requested once more.
    fn repeated(
        &self,
        file: u32,
        attempt: &mut dyn FnMut() -> Result<(), FetchStop>,
    ) -> Result<(), FarError> {
        let name = &self.entry(file).path;
        let mut failures = 0;
        let mut wrong = false;
        loop {
            match attempt() {
                Ok(()) => return Ok(()),
                Err(FetchStop::Wrong(offset)) if wrong => {
                    return Err(FarError::Damaged { url: self.origin.render(name), offset });
                }
                Err(FetchStop::Wrong(offset)) => {
                    info!("wrong bytes of {} at {offset}; again", self.origin.render(name));
                    wrong = true;
                }
                Err(FetchStop::Far(error)) => return Err(error),
                Err(FetchStop::Http(failure)) => {
                    let again = failure.may_pass() && failures + 1 < ATTEMPTS;
                    let paused = match again {
                        true => self.origin.http().pause(failures, &failure),
                        false => Err(failure),
                    };
                    paused.map_err(|failure| self.origin.explained(failure, name))?;
                    failures += 1;
                }
            }
        }
    }

    /// Requests a range of a file, and passes on its bytes with their offsets.
    fn stream(
        &self,
        file: u32,
        range: Range<u64>,
        buffer: &mut [u8],
        sink: &mut Sink<'_>,
    ) -> Result<(), FetchStop> {
        let FileEntry { path: name, len } = self.entry(file);
        let asked = ByteRange(range.start, Some(range.end - 1));
        let mut reply = match self.origin.get(name, Some(asked), None) {
            Ok(reply) => reply,
            // The range begins after the end of the file.
            Err(HttpFailure::Status { status: 416, url, .. }) => {
                return Err(FetchStop::Far(FarError::Length { url, expected: *len, found: 0 }));
            }
            Err(failure) => return Err(FetchStop::Http(failure)),
        };
        let mut at = self.first(&reply, name, *len, &range)?;
        let mut body = self.origin.http().body(&mut reply);
        while at < range.end {
            let skips = at < range.start;
            let left = if skips { range.start - at } else { range.end - at };
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            let got = match body.read(&mut buffer[..most]) {
                Ok(got) => got,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(self.broken(name, e.to_string())),
            };
            if got == 0 {
                let missing = range.end - at;
                return Err(self.broken(name, format!("the answer ends {missing} bytes early")));
            }
            self.origin.count(got);
            if !skips {
                sink(at, &buffer[..got])?;
            }
            at += got as u64;
        }
        // The connection can be reused once the end of the body was read.
        let _ = body.read(&mut buffer[..1]);
        Ok(())
    }

    /// The end of an attempt whose connection broke.
    fn broken(&self, name: &str, reason: String) -> FetchStop {
        FetchStop::Http(HttpFailure::Connection { url: self.origin.render(name), reason })
    }

    /// The offset of the first byte of an answer.
    fn first(
        &self,
        reply: &HttpReply,
        name: &str,
        len: u64,
        range: &Range<u64>,
    ) -> Result<u64, FetchStop> {
        let url = self.origin.render(name);
        if reply.status() != StatusCode::PARTIAL_CONTENT {
            let found = text(reply.headers(), header::CONTENT_LENGTH.as_str());
            if let Some(found) = found.and_then(|found| found.parse().ok())
                && found != len
            {
                return Err(FetchStop::Far(FarError::Length { url, expected: len, found }));
            }
            if range.start <= SKIPPED {
                return Ok(0);
            }
            let reason = "it serves whole files only, and no ranges of them".to_owned();
            return Err(FetchStop::Http(HttpFailure::Answer { url, reason }));
        }
        let found = text(reply.headers(), header::CONTENT_RANGE.as_str()).unwrap_or("");
        match content_range(found) {
            Some((_, _, Some(found))) if found != len => {
                Err(FetchStop::Far(FarError::Length { url, expected: len, found }))
            }
            Some((first, last, _)) if first == range.start && last == range.end - 1 => Ok(first),
            _ => {
                let reason = "another range than the one that was asked for".to_owned();
                Err(FetchStop::Http(HttpFailure::Answer { url, reason }))
            }
        }
    }

    pub(crate) fn entry(&self, file: u32) -> &FileEntry {
        static NONE: FileEntry = FileEntry { path: String::new(), len: 0 };
        self.place.manifest.files.get(file as usize).unwrap_or(&NONE)
    }
}

/// First and last byte of a `Content-Range`, and the length of the file if it is known.
fn content_range(header: &str) -> Option<(u64, u64, Option<u64>)> {
    let (bytes, total) = header.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = bytes.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?, total.parse().ok()))
}

/// The failure of a cell. A full disk counts as a full cache.
fn failed(error: FarError) -> Failed {
    match &error {
        FarError::Write { cause, .. } if is_full(cause.kind()) => Failed::NoRoom,
        _ => Failed::Error(Arc::new(error)),
    }
}

/// True for an error of a full disk.
fn is_full(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}
