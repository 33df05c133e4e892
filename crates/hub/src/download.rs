//! Download of one file. It resumes after an interruption, and is hashed while it arrives.

use std::cmp::Ordering;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use sws_os::open::no_link;
use tracing::info;
use ureq::http::{StatusCode, header};

use crate::client::{FileAddress, RequestSubject};
use crate::digest::Digest;
use crate::http::{ATTEMPTS, ByteRange, HttpFailure, HttpReply, text};
use crate::{Client, HubError, HubFile, Listing};

const BUFFER: usize = 256 << 10;
/// Maximum length of a file that is read into memory. The longest published index has 15 MB.
const MAX_IN_MEMORY: u64 = 64 << 20;
/// Reason of a failure.
pub(crate) const ENDED: &str = "the connection ended early";

/// Observer of downloads, which several threads call.
pub trait DownloadWatch: Sync {
    /// Called after this many more bytes, or fewer if bytes were discarded.
    fn moved(&self, bytes: i64);

    /// Called while the headers of weight files arrive, before any file is downloaded, with the
    /// number of steps done.
    fn prepared(&self, _done: usize, _steps: usize) {}

    /// Called before waiting for another process that downloads a file.
    fn waiting(&self, _file: &str) {}

    /// True if downloads should stop. Incomplete files are kept, so that they can be continued.
    fn stopped(&self) -> bool {
        false
    }
}

impl Client {
    /// Downloads a file to `path`, continuing the bytes that are there. On success the file is
    /// complete, synced, and has the hash that the hub lists.
    ///
    /// `path` must not be written by another thread or process.
    pub fn download(
        &self,
        listing: &Listing,
        file: &HubFile,
        path: &Path,
        watch: &dyn DownloadWatch,
    ) -> Result<(), HubError> {
        let mut partial = Partial::open(path, file, watch)?;
        info!("`{}` has {} bytes, of which {} are there", file.name, file.len, partial.len);
        let mut address = self.file(&listing.id, &listing.commit, &file.name);
        let about = RequestSubject::of(listing, file, true);
        let mut first_problem = None;
        loop {
            match self.fill(&mut partial, &mut address) {
                Ok(()) => {}
                Err(DownloadStop::Hub(failure)) => return Err(self.explained(failure, &about)),
                Err(DownloadStop::Disk(error)) => return Err(error),
            }
            let Some(problem) = partial.check() else { return partial.finish() };
            // Bytes of an earlier run may have been wrong, so there is a second chance.
            partial.restart()?;
            if first_problem.replace(problem.clone()).is_some() {
                let id = listing.id.clone();
                let file = file.name.clone();
                return Err(HubError::Damaged { id, file, problem });
            }
        }
    }

    /// Downloads a small file into memory. If the bytes are wrong, there is a second chance.
    pub fn read(&self, listing: &Listing, file: &HubFile) -> Result<Vec<u8>, HubError> {
        let mut bytes = self.read_once(listing, file)?;
        if difference(file, Digest::of_bytes(file, &bytes)).is_some() {
            bytes = self.read_once(listing, file)?;
        }
        match difference(file, Digest::of_bytes(file, &bytes)) {
            None => Ok(bytes),
            Some(problem) => {
                let id = listing.id.clone();
                let file = file.name.clone();
                Err(HubError::Damaged { id, file, problem })
            }
        }
    }

    fn read_once(&self, listing: &Listing, file: &HubFile) -> Result<Vec<u8>, HubError> {
        let mut address = self.file(&listing.id, &listing.commit, &file.name);
        let about = RequestSubject::of(listing, file, false);
        if file.len > MAX_IN_MEMORY {
            let problem = format!("has a file {:?} of {} bytes, too many", file.name, file.len);
            return Err(HubError::Contents { id: listing.id.clone(), problem });
        }
        let bytes = self.retried(&mut |_| {
            let mut reply = self.get(&mut address, None)?;
            let url = address.render();
            let len = file.len;
            starts_at(&reply, len).map_err(|reason| address.bad_answer(reason))?;
            let mut bytes = Vec::new();
            let read = self.body(&mut reply).take(len + 1).read_to_end(&mut bytes);
            match (read, (bytes.len() as u64).cmp(&len)) {
                (Err(e), _) => Err(HttpFailure::Connection { url, reason: e.to_string() }),
                (Ok(_), Ordering::Equal) => Ok(bytes),
                (Ok(_), Ordering::Less) => {
                    Err(HttpFailure::Connection { url, reason: ENDED.to_owned() })
                }
                (Ok(_), Ordering::Greater) => {
                    Err(HttpFailure::Answer { url, reason: too_many(file) })
                }
            }
        });
        bytes.map_err(|e| self.explained(e, &about))
    }

    /// Requests the rest of a file until it is complete. After progress, attempts are counted from
    /// the start.
    fn fill(&self, partial: &mut Partial, address: &mut FileAddress) -> Result<(), DownloadStop> {
        let mut attempt = 0;
        let mut longest = partial.len;
        while !partial.is_complete() {
            let failure = match self.request_rest(partial, address) {
                Ok(()) => continue,
                Err(DownloadStop::Hub(failure)) if failure.may_pass() => failure,
                Err(stop) => return Err(stop),
            };
            // Bytes received again are not progress. Otherwise a server that ignores ranges and
            // cuts every answer would be asked forever.
            attempt = if partial.len > longest { 0 } else { attempt + 1 };
            longest = longest.max(partial.len);
            if attempt == ATTEMPTS {
                return Err(DownloadStop::Hub(failure));
            }
            self.pause(attempt, &failure)?;
        }
        Ok(())
    }

    /// Makes one request for the rest of a file, and writes the answer.
    fn request_rest(
        &self,
        partial: &mut Partial,
        address: &mut FileAddress,
    ) -> Result<(), DownloadStop> {
        let from = partial.len;
        let reply = self.get(address, Some(ByteRange(from, None)));
        let mut reply = match reply {
            // The hub's file is no longer than the local one.
            Err(HttpFailure::Status { status: 416, .. }) if from > 0 => {
                return Ok(partial.restart()?);
            }
            reply => reply?,
        };
        match starts_at(&reply, partial.file.len) {
            Ok(start) if start == from => {}
            // A server that ignores ranges sends the file from its beginning.
            Ok(0) => partial.restart()?,
            Ok(start) => {
                let reason = format!("bytes from {start} instead of {from}");
                return Err(address.bad_answer(reason).into());
            }
            Err(reason) => return Err(address.bad_answer(reason).into()),
        }
        let mut body = self.body(&mut reply);
        let mut buffer = vec![0; BUFFER];
        loop {
            let read = match body.read(&mut buffer) {
                Ok(read) => read,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(broken(address, e.to_string())),
            };
            if read == 0 {
                return match partial.is_complete() {
                    true => Ok(()),
                    false => Err(broken(address, ENDED.to_owned())),
                };
            }
            if partial.len + read as u64 > partial.file.len {
                partial.restart()?;
                return Err(address.bad_answer(too_many(partial.file)).into());
            }
            partial.append(&buffer[..read])?;
            if partial.watch.stopped() {
                return Err(HubError::Stopped.into());
            }
        }
    }
}

/// The problem of an answer that is longer than the file.
fn too_many(file: &HubFile) -> String {
    format!("more than the {} bytes of {:?} that the hub lists", file.len, file.name)
}

fn broken(address: &FileAddress, reason: String) -> DownloadStop {
    DownloadStop::Hub(HttpFailure::Connection { url: address.render(), reason })
}

/// Offset of a reply's first byte. Fails if the reply is not about a file of `len` bytes.
pub(crate) fn starts_at(reply: &HttpReply, len: u64) -> Result<u64, String> {
    let (start, whole) = match reply.status() {
        StatusCode::PARTIAL_CONTENT => {
            let range = text(reply.headers(), header::CONTENT_RANGE.as_str()).unwrap_or("");
            let Some(found) = content_range(range) else {
                return Err(format!("the range {range:?}"));
            };
            found
        }
        _ => {
            let length = text(reply.headers(), header::CONTENT_LENGTH.as_str());
            (0, length.and_then(|length| length.parse().ok()))
        }
    };
    match whole {
        Some(whole) if whole != len => Err(format!("a file of {whole} bytes where it lists {len}")),
        _ => Ok(start),
    }
}

/// Offset of the first byte and length of the file in a `Content-Range`: `bytes 0-9/100`, or with
/// `*` for an unknown length.
fn content_range(header: &str) -> Option<(u64, Option<u64>)> {
    let (range, whole) = header.strip_prefix("bytes ")?.split_once('/')?;
    let start = range.split_once('-')?.0.parse().ok()?;
    let whole = if whole == "*" { None } else { Some(whole.parse().ok()?) };
    Some((start, whole))
}

/// Compares a hash with the listed one. Returns a description of the difference.
fn difference(file: &HubFile, hash: Digest) -> Option<String> {
    let found = hash.hex();
    let expected = &file.etag;
    let kind = if file.hashed { "SHA-256" } else { "hash of git" };
    if found == *expected {
        return None;
    }
    Some(format!("its {kind} is {found} instead of {expected}"))
}

/// Reason to stop an attempt.
enum DownloadStop {
    Hub(HttpFailure),
    Disk(HubError),
}

impl From<HttpFailure> for DownloadStop {
    fn from(failure: HttpFailure) -> DownloadStop {
        DownloadStop::Hub(failure)
    }
}

impl From<HubError> for DownloadStop {
    fn from(error: HubError) -> DownloadStop {
        DownloadStop::Disk(error)
    }
}

/// The beginning of a file on disk, with the hash of its bytes.
struct Partial<'a> {
    path: &'a Path,
    out: File,
    file: &'a HubFile,
    watch: &'a dyn DownloadWatch,
    len: u64,
    hash: Digest,
}

impl<'a> Partial<'a> {
    /// Opens an incomplete file or creates an empty one, and hashes its bytes.
    fn open(
        path: &'a Path,
        file: &'a HubFile,
        watch: &'a dyn DownloadWatch,
    ) -> Result<Self, HubError> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        // Opening a pipe would block, and a link could lead to a foreign file.
        let out = no_link(&mut options).open(path).map_err(HubError::writing(path))?;
        let about = out.metadata().map_err(HubError::writing(path))?;
        if !about.is_file() {
            return Err(HubError::write(path, std::io::ErrorKind::InvalidInput.into()));
        }
        let hash = Digest::of(file);
        let mut partial = Partial { path, out, file, watch, len: 0, hash };
        let found = about.len();
        if found > file.len {
            partial.restart()?;
        }
        let mut buffer = vec![0; BUFFER];
        while found <= file.len && partial.len < found {
            let read = partial.out.read(&mut buffer).map_err(HubError::writing(path))?;
            if read == 0 {
                break;
            }
            partial.count(&buffer[..read]);
        }
        Ok(partial)
    }

    fn is_complete(&self) -> bool {
        self.len == self.file.len
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), HubError> {
        self.out.write_all(bytes).map_err(HubError::writing(self.path))?;
        self.count(bytes);
        Ok(())
    }

    fn count(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.len += bytes.len() as u64;
        self.watch.moved(bytes.len() as i64);
    }

    /// Discards all bytes.
    fn restart(&mut self) -> Result<(), HubError> {
        self.out.set_len(0).map_err(HubError::writing(self.path))?;
        self.out.seek(SeekFrom::Start(0)).map_err(HubError::writing(self.path))?;
        self.watch.moved(-(self.len as i64));
        (self.len, self.hash) = (0, Digest::of(self.file));
        Ok(())
    }

    /// Compares the hash with the listed one. Returns a description of the difference.
    fn check(&self) -> Option<String> {
        difference(self.file, self.hash.clone())
    }

    fn finish(self) -> Result<(), HubError> {
        self.out.sync_data().map_err(HubError::writing(self.path))
    }
}
