//! Object storage on loopback: files by name, with ranges and uploads, signatures of S3 that it checks
//! by itself, a limited rate, and faults.

mod signature;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sws_format::Clock;

use crate::hub::{decoded, sha256};
pub use signature::Keys;

/// Bytes of a body that are sent at once where the rate is limited, or a fault is slow.
const CHUNK: usize = 16 << 10;

/// Storage with one bucket, until the process ends.
#[derive(Clone, Debug)]
pub struct Bucket {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    /// The time at which the next byte may be sent.
    free: Arc<Mutex<Duration>>,
    clock: Clock,
}

/// What the storage has and does. Tests change it while it runs.
#[derive(Debug, Default)]
pub struct State {
    /// Files by their paths, which begin with the bucket's name.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Keys that sign requests; `None` if all are public.
    pub keys: Option<Keys>,
    /// The query that requests need.
    pub query: Option<String>,
    /// Seconds that its clock is ahead.
    pub ahead: i64,
    /// Bytes that it sends in a second, over all connections; `None` for as many as there are.
    pub rate: Option<u64>,
    /// Faults by the end of the file's path. Each acts so many times.
    pub faults: Vec<(String, Fault, u32)>,
    /// Requests so far.
    pub requests: Vec<Request>,
    /// Bytes of bodies sent so far.
    pub sent: u64,
    /// Most connections that sent a body at once.
    pub most_at_once: usize,
    at_once: usize,
}

/// A misbehaviour of the storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection ends after so many bytes of the body.
    Cut(usize),
    /// Nothing more comes after so many bytes of the body.
    Silent(usize),
    /// The body comes byte by byte, with a pause of so many milliseconds before each.
    Drip(u64),
    /// The last byte of a file that is put there is another.
    KeepsOther,
    /// A file that is put there loses its last byte.
    KeepsLess,
    /// Ranges are ignored: the whole file comes.
    IgnoreRanges,
    /// One byte in the middle of the answer is another.
    WrongBytes,
    /// The file has a byte less.
    Truncated,
    /// Another range than the one that was asked for.
    OtherRange,
    /// A status with a code of S3, and a message.
    Status(u16, &'static str, &'static str),
    /// The file is elsewhere.
    Elsewhere(String),
}

/// A request that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// `GET` or `PUT`.
    pub method: String,
    /// Path, without its query.
    pub path: String,
    /// The query.
    pub query: Option<String>,
    /// Headers, with names in lower case.
    pub headers: BTreeMap<String, String>,
}

impl Request {
    /// The value of a header; empty without it.
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

struct Answer {
    status: u16,
    headers: Vec<String>,
    body: Vec<u8>,
    cut: Option<usize>,
    silent: bool,
    drip: Option<Duration>,
    /// True if the body is a file's.
    is_file: bool,
}

impl Bucket {
    /// Starts storage with these files.
    pub fn start(files: BTreeMap<String, Vec<u8>>) -> std::io::Result<Bucket> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let state = Arc::new(Mutex::new(State { files, ..State::default() }));
        let address = listener.local_addr()?;
        let bucket = Bucket { address, state, free: Arc::default(), clock: Clock::real() };
        let serving = bucket.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let serving = serving.clone();
                std::thread::spawn(move || serving.serve(&stream));
            }
        });
        Ok(bucket)
    }

    /// Starts storage with the files of a directory and those below it, at this path.
    pub fn of_dir(path: &str, dir: &Path) -> std::io::Result<Bucket> {
        let mut files = BTreeMap::new();
        let mut ahead = vec![dir.to_owned()];
        while let Some(at) = ahead.pop() {
            for entry in at.read_dir()? {
                let entry = entry?.path();
                if entry.is_dir() {
                    ahead.push(entry);
                } else {
                    let name = entry.strip_prefix(dir).unwrap_or(&entry).to_string_lossy();
                    files.insert(format!("{path}/{name}"), std::fs::read(&entry)?);
                }
            }
        }
        Bucket::start(files)
    }

    /// Its address, for AWS_ENDPOINT_URL.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its state.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a fault that acts so many times on the files whose path ends so.
    pub fn fault(&self, file: &str, fault: Fault, times: u32) {
        self.state().faults.push((file.to_owned(), fault, times));
    }

    /// Requests so far for the files whose path ends so.
    pub fn requests(&self, file: &str) -> Vec<Request> {
        let requests = &self.state().requests;
        requests.iter().filter(|request| request.path.ends_with(file)).cloned().collect()
    }

    fn serve(&self, stream: &TcpStream) {
        let mut reader = BufReader::new(stream);
        while let Some(answer) = self.next(&mut reader) {
            let sent = self.send(stream, &answer);
            if answer.silent {
                // Until the client gives up.
                let _ = reader.read(&mut [0]);
            }
            if sent.is_err() || answer.cut.is_some() {
                let _ = stream.shutdown(Shutdown::Both);
                return;
            }
        }
    }

    /// Reads the next request, and answers it.
    fn next(&self, reader: &mut BufReader<&TcpStream>) -> Option<Answer> {
        let first = line(reader)?;
        let mut words = first.split(' ');
        let method = words.next()?.to_owned();
        let target = words.next()?;
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query.to_owned())),
            None => (target, None),
        };
        let mut headers = BTreeMap::new();
        loop {
            let header = line(reader)?;
            let Some((name, value)) = header.split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let len = headers.get("content-length").and_then(|len| len.parse().ok()).unwrap_or(0);
        let mut body = vec![0; len];
        reader.read_exact(&mut body).ok()?;
        let request = Request { method, path: path.to_owned(), query, headers };
        let now = self.clock.unix_seconds();
        Some(self.state().answer(&request, body, now))
    }

    fn send(&self, mut to: &TcpStream, answer: &Answer) -> std::io::Result<()> {
        let mut head = format!("HTTP/1.1 {} Status\r\n", answer.status);
        for header in &answer.headers {
            head.push_str(&format!("{header}\r\n"));
        }
        // Without a body there is nothing to say about its length.
        if answer.status != 304 {
            head.push_str(&format!("Content-Length: {}\r\n", answer.body.len()));
        }
        to.write_all(format!("{head}\r\n").as_bytes())?;
        let end = answer.cut.unwrap_or(usize::MAX).min(answer.body.len());
        let rate = {
            let mut state = self.state();
            state.at_once += usize::from(answer.is_file);
            state.most_at_once = state.most_at_once.max(state.at_once);
            state.rate
        };
        let chunk = if answer.drip.is_some() { 1 } else { CHUNK };
        let sent = answer.body[..end].chunks(chunk).try_for_each(|part| {
            if let Some(pause) = answer.drip {
                self.clock.sleep(pause);
            }
            if let Some(rate) = rate {
                self.wait(Duration::from_secs_f64(part.len() as f64 / rate as f64));
            }
            self.state().sent += part.len() as u64;
            to.write_all(part)
        });
        self.state().at_once -= usize::from(answer.is_file);
        sent
    }

    /// Waits until a part may be sent that takes so long.
    fn wait(&self, takes: Duration) {
        let at = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            *free = (*free).max(self.clock.now()) + takes;
            *free
        };
        self.clock.sleep_until(at);
    }
}

impl State {
    fn answer(&mut self, request: &Request, body: Vec<u8>, now: i64) -> Answer {
        self.requests.push(request.clone());
        let now = now + self.ahead;
        let mut answer = match self.refused(request, &body, now) {
            Some(refusal) => refusal,
            None if request.method == "PUT" => {
                let path = decoded(&request.path);
                let mut body = body;
                if self.fault(&path, |fault| *fault == Fault::KeepsOther).is_some()
                    && let Some(last) = body.last_mut()
                {
                    *last ^= 1;
                }
                if self.fault(&path, |fault| *fault == Fault::KeepsLess).is_some() {
                    body.pop();
                }
                self.files.insert(path, body);
                Answer::new(200, Vec::new())
            }
            None => self.file(request),
        };
        answer.headers.push(format!("Date: {}", signature::date(now)));
        answer
    }

    /// The refusal of a request, if it is not allowed, or a fault says so.
    fn refused(&mut self, request: &Request, body: &[u8], now: i64) -> Option<Answer> {
        let path = &request.path;
        let is_status = |fault: &Fault| matches!(fault, Fault::Status(..));
        if let Some(Fault::Status(status, code, message)) = self.fault(path, is_status) {
            return Some(Answer::error(status, code, message));
        }
        let is_elsewhere = |fault: &Fault| matches!(fault, Fault::Elsewhere(_));
        if let Some(Fault::Elsewhere(place)) = self.fault(path, is_elsewhere) {
            let mut answer = Answer::new(302, Vec::new());
            answer.headers.push(format!("Location: {place}"));
            return Some(answer);
        }
        if self.query.is_some() && self.query != request.query {
            return Some(Answer::error(403, "AccessDenied", "Request has expired"));
        }
        if let Some(keys) = &self.keys
            && let Err((status, code)) = keys.check(request, body, now)
        {
            let mut answer = Answer::error(status, code, "");
            answer.headers.push(format!("x-amz-bucket-region: {}", keys.region));
            return Some(answer);
        }
        None
    }

    /// Takes the next fault of a file that `acts` here.
    fn fault(&mut self, path: &str, acts: impl Fn(&Fault) -> bool) -> Option<Fault> {
        for (end, fault, times) in &mut self.faults {
            if path.ends_with(end.as_str()) && *times > 0 && acts(fault) {
                *times -= 1;
                return Some(fault.clone());
            }
        }
        None
    }

    fn file(&mut self, request: &Request) -> Answer {
        let path = decoded(&request.path);
        let Some(mut bytes) = self.files.get(&path).cloned() else {
            let bucket = format!("/{}/", path.split('/').nth(1).unwrap_or(""));
            let known = self.files.keys().any(|file| file.starts_with(&bucket));
            return Answer::error(404, if known { "NoSuchKey" } else { "NoSuchBucket" }, "");
        };
        let mut take = |fault: &Fault| self.fault(&path, |found| found == fault).is_some();
        if take(&Fault::Truncated) {
            bytes.pop();
        }
        let tag = format!("\"{}\"", &sha256(&bytes)[..32]);
        if request.headers.get("if-none-match") == Some(&tag) {
            return Answer::new(304, vec![format!("ETag: {tag}")]);
        }
        let ignored = take(&Fault::IgnoreRanges);
        let other = take(&Fault::OtherRange);
        let wrong = take(&Fault::WrongBytes);
        let len = bytes.len();
        let asked = request.headers.get("range").filter(|_| !ignored);
        let asked = asked.and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
        let mut answer = match asked {
            None => Answer::new(200, Vec::new()),
            Some((first, last)) => {
                let first: usize = first.parse().unwrap_or(0) + usize::from(other);
                let last = last.parse().unwrap_or(len.saturating_sub(1)).min(len.saturating_sub(1));
                if first >= len {
                    return Answer::new(416, vec![format!("Content-Range: bytes */{len}")]);
                }
                bytes = bytes[first..=last].to_vec();
                Answer::new(206, vec![format!("Content-Range: bytes {first}-{last}/{len}")])
            }
        };
        if wrong {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        }
        answer.headers.push(format!("ETag: {tag}"));
        answer.body = bytes;
        answer.is_file = true;
        let drips = |fault: &Fault| matches!(fault, Fault::Drip(_));
        if let Some(Fault::Drip(pause)) = self.fault(&path, drips) {
            answer.drip = Some(Duration::from_millis(pause));
        }
        if let Some(Fault::Cut(after)) = self.fault(&path, |fault| matches!(fault, Fault::Cut(_))) {
            answer.cut = Some(after);
        }
        let is_silent = |fault: &Fault| matches!(fault, Fault::Silent(_));
        if let Some(Fault::Silent(after)) = self.fault(&path, is_silent) {
            answer.cut = Some(after);
            answer.silent = true;
        }
        answer
    }
}

impl Answer {
    fn new(status: u16, headers: Vec<String>) -> Answer {
        let body = Vec::new();
        let cut = None;
        let silent = false;
        let drip = None;
        Answer { status, headers, body, cut, silent, drip, is_file: false }
    }

    fn error(status: u16, code: &str, message: &str) -> Answer {
        let mut answer = Answer::new(status, vec!["Content-Type: application/xml".to_owned()]);
        let body = format!(
            "<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>"
        );
        answer.body = body.into_bytes();
        answer
    }
}

/// The next line; `None` at the end.
fn line(reader: &mut BufReader<&TcpStream>) -> Option<String> {
    let mut line = String::new();
    match reader.read_line(&mut line) {
        Ok(1..) => Some(line.trim_end().to_owned()),
        _ => None,
    }
}
