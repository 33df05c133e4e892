//! Sketches of weight files, which have the length of the file, but only its header and the
//! fingerprint's samples. They allow a manifest before the weights are downloaded.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use sws_format::open_regular;
use sws_os::file::{read_exact_at, write_all_at};
use ureq::http::StatusCode;

use crate::cache::remove;
use crate::client::{FileAddress, RequestSubject};
use crate::digest::Digest;
use crate::download::{ENDED, starts_at};
use crate::http::{ByteRange, HttpFailure};
use crate::{Client, HubError, HubFile, Listing};

/// Bytes of the first request. Most headers are shorter.
const FIRST: u64 = 1 << 20;
/// Maximum range that is kept in memory: a header of the maximum length.
const MAX_RANGE: u64 = 128 << 20;
/// Bytes that are hashed at once.
const BUFFER: u64 = 256 << 10;
/// Digits of a SHA-256.
const DIGITS: u64 = 64;

impl Client {
    /// Writes the sketch of a safetensors file to `path`, which appears once it is complete. Calls
    /// `step` with the number of finished requests and of all requests.
    pub(crate) fn sketch(
        &self,
        listing: &Listing,
        file: &HubFile,
        path: &Path,
        step: &mut dyn FnMut(usize, usize),
    ) -> Result<(), HubError> {
        let mut address = self.file(&listing.id, &listing.commit, &file.name);
        let about = RequestSubject::of(listing, file, true);
        let mut fetch = |range: Range<u64>| {
            self.range(&mut address, file, range).map_err(|e| self.explained(e, &about))
        };
        let first = fetch(0..file.len.min(FIRST))?;
        let ranges = ranges(listing, file, &first)?;

        let fresh = path.with_added_extension("sws-tmp");
        let beside = hash_file(path);
        for old in [&fresh, &beside] {
            remove(old)?;
        }
        let out = File::create(&fresh).map_err(HubError::writing(&fresh))?;
        out.set_len(file.len).map_err(HubError::writing(&fresh))?;
        write_all_at(&out, &first, 0).map_err(HubError::writing(&fresh))?;
        let here = first.len() as u64;
        let all = ranges.len() + 1;
        step(1, all + 1);
        for (number, range) in ranges.into_iter().enumerate() {
            let missing = range.start.max(here)..range.end;
            if !missing.is_empty() {
                let start = missing.start;
                write_all_at(&out, &fetch(missing)?, start).map_err(HubError::writing(&fresh))?;
            }
            step(number + 2, all + 1);
        }
        out.sync_data().map_err(HubError::writing(&fresh))?;
        let hash = hash(&fresh).map_err(HubError::writing(&fresh))?;
        std::fs::write(&beside, hash).map_err(HubError::writing(&beside))?;
        std::fs::rename(&fresh, path).map_err(HubError::writing(&fresh))?;
        step(1, 1);
        Ok(())
    }

    /// Downloads a range of a file.
    pub(crate) fn range(
        &self,
        address: &mut FileAddress,
        file: &HubFile,
        range: Range<u64>,
    ) -> Result<Vec<u8>, HttpFailure> {
        let len = range.end - range.start;
        if len == 0 || len > MAX_RANGE {
            let reason = format!("{:?} with a header of {len} bytes", file.name);
            return Err(address.bad_answer(reason));
        }
        self.retried(&mut |_| {
            let mut reply = self.get(address, Some(ByteRange(range.start, Some(range.end - 1))))?;
            let start = starts_at(&reply, file.len).map_err(|reason| address.bad_answer(reason))?;
            // Without ranges, the whole file would have to be transferred for each range.
            if reply.status() != StatusCode::PARTIAL_CONTENT && range.start > 0 {
                let reason = "whole files where ranges were asked for; use --keep";
                return Err(address.bad_answer(reason));
            }
            if start != range.start {
                let reason = format!("bytes from {start} instead of {}", range.start);
                return Err(address.bad_answer(reason));
            }
            let mut bytes = Vec::new();
            let read = self.body(&mut reply).take(len).read_to_end(&mut bytes);
            let url = address.render();
            match read {
                Ok(_) if bytes.len() as u64 == len => Ok(bytes),
                Ok(_) => Err(HttpFailure::Connection { url, reason: ENDED.to_owned() }),
                Err(e) => Err(HttpFailure::Connection { url, reason: e.to_string() }),
            }
        })
    }
}

/// The file with a sketch's hash. It is hidden, so that it does not count as a file of the model.
fn hash_file(sketch: &Path) -> PathBuf {
    let name = sketch.file_name().unwrap_or_default().to_string_lossy();
    sketch.with_file_name(format!(".{name}.sha256"))
}

/// True for a sketch of this length that still has its original bytes. The hub lists no hash of a
/// header, and the fingerprint of begun shards depends on these bytes.
pub(crate) fn is_intact(sketch: &Path, len: u64) -> bool {
    has_hash(sketch, len).unwrap_or(false)
}

/// True for a file of this length with the hash that is recorded beside it.
fn has_hash(sketch: &Path, len: u64) -> io::Result<bool> {
    let about = sketch.symlink_metadata()?;
    let mut expected = String::new();
    open_regular(hash_file(sketch))?.take(DIGITS).read_to_string(&mut expected)?;
    Ok(about.is_file() && about.len() == len && hash(sketch)? == expected)
}

/// Hash of a sketch: its length, its header and its samples.
fn hash(sketch: &Path) -> io::Result<String> {
    let file = open_regular(sketch)?;
    let len = file.metadata()?.len();
    let mut first = [0; 8];
    read_exact_at(&file, &mut first, 0)?;
    let mut hash = Digest::sha256();
    hash.update(&len.to_le_bytes());
    let mut buffer = vec![0; BUFFER as usize];
    for range in sws_format::sketch(first, len).map_err(io::Error::other)? {
        let mut at = range.start;
        while at < range.end {
            let part = &mut buffer[..(range.end - at).min(BUFFER) as usize];
            read_exact_at(&file, part, at)?;
            hash.update(part);
            at += part.len() as u64;
        }
    }
    Ok(hash.hex())
}

/// The ranges of a sketch, for a file with these first bytes.
fn ranges(listing: &Listing, file: &HubFile, first: &[u8]) -> Result<Vec<Range<u64>>, HubError> {
    let reason = match first.first_chunk::<8>() {
        Some(first) => match sws_format::sketch(*first, file.len) {
            Ok(ranges) => return Ok(ranges),
            Err(e) => e.to_string(),
        },
        None => "it is too short".to_owned(),
    };
    let problem = format!("has a file {:?} that is not safetensors: {reason}", file.name);
    Err(listing.contents_error(problem))
}

/// True if a whole file has the bytes of its sketch.
pub(crate) fn agrees(sketch: &Path, whole: &Path) -> Result<bool, HubError> {
    let a = File::open(sketch).map_err(HubError::reading(sketch))?;
    let b = File::open(whole).map_err(HubError::reading(whole))?;
    let total = a.metadata().map_err(HubError::reading(sketch))?.len();
    if b.metadata().map_err(HubError::reading(whole))?.len() != total {
        return Ok(false);
    }
    let first = read_range(&a, sketch, &(0..total.min(8)))?;
    let ranges = first.first_chunk::<8>().and_then(|first| sws_format::sketch(*first, total).ok());
    for range in ranges.unwrap_or_default() {
        if read_range(&a, sketch, &range)? != read_range(&b, whole, &range)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn read_range(file: &File, path: &Path, range: &Range<u64>) -> Result<Vec<u8>, HubError> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    read_exact_at(file, &mut bytes, range.start).map_err(HubError::reading(path))?;
    Ok(bytes)
}
