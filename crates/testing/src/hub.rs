//! A hub on loopback: one model, a storage on a second port that large files come from, and faults.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::json;

/// Query of a request that the storage sent back to the hub.
const BACK: &str = "?back";

/// A hub with one model, until it is dropped. Its threads end with the process.
#[derive(Clone, Debug)]
pub struct Hub {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

/// What the hub has and does. Tests change it while it runs.
#[derive(Debug)]
pub struct State {
    /// Id of the model.
    pub id: String,
    /// Commit of `main`.
    pub commit: String,
    /// Files by name.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Files of earlier commits.
    pub earlier: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    /// Faults by the file's name; that of the listing is empty. Each acts so many times.
    pub faults: Vec<(String, Fault, u32)>,
    /// Requests so far.
    pub requests: Vec<Request>,
    /// Answer to a request for the listing, in place of the right one.
    pub listing: Option<String>,
    hub: SocketAddr,
    storage: SocketAddr,
}

/// A misbehaviour of the hub or its storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection ends after so many bytes of the body.
    Cut(usize),
    /// Ranges are ignored: the whole file comes.
    IgnoreRanges,
    /// The last byte is another.
    WrongBytes,
    /// The first byte of an answer that begins there or later is another.
    WrongFrom(usize),
    /// The body has a byte more, and a length that says so.
    Longer,
    /// The body has a byte more, without a length.
    LongerWithoutLength,
    /// The body has a byte less, and a length that says so.
    Shorter,
    /// A status, with the headers `X-Error-Code` and `Retry-After` if they are not empty.
    Status(u16, &'static str, &'static str),
    /// The storage redirects back to the hub.
    SentBack,
    /// The hub redirects to itself.
    Circle,
    /// Nothing more comes after so many bytes of the body.
    Silent(usize),
    /// The body comes slower, with a pause of so many milliseconds after each 64 KiB.
    Slow(u64),
}

/// A request that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// True if it arrived at the storage.
    pub storage: bool,
    /// True if the storage sent it back to the hub.
    pub sent_back: bool,
    /// Name of the file; empty for the listing.
    pub file: String,
    /// The header `Range`.
    pub range: Option<String>,
    /// The header `Authorization`.
    pub authorization: Option<String>,
}

impl Hub {
    /// Starts a hub with a model of these files.
    pub fn start(id: &str, files: BTreeMap<String, Vec<u8>>) -> std::io::Result<Hub> {
        let hub = TcpListener::bind("127.0.0.1:0")?;
        let storage = TcpListener::bind("127.0.0.1:0")?;
        let state = Arc::new(Mutex::new(State {
            id: id.to_owned(),
            commit: "0123456789abcdef0123456789abcdef01234567".to_owned(),
            files,
            earlier: BTreeMap::new(),
            faults: Vec::new(),
            requests: Vec::new(),
            listing: None,
            hub: hub.local_addr()?,
            storage: storage.local_addr()?,
        }));
        let address = hub.local_addr()?;
        for (listener, is_storage) in [(hub, false), (storage, true)] {
            let state = Arc::clone(&state);
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let state = Arc::clone(&state);
                    std::thread::spawn(move || serve(&stream, &state, is_storage));
                }
            });
        }
        Ok(Hub { address, state })
    }

    /// Starts a hub with a model of the files of a directory.
    pub fn of_dir(id: &str, dir: &Path) -> std::io::Result<Hub> {
        let mut files = BTreeMap::new();
        for entry in dir.read_dir()? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            files.insert(name, std::fs::read(path)?);
        }
        Hub::start(id, files)
    }

    /// Its address, for `HF_ENDPOINT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its state.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a fault that acts so many times.
    pub fn fault(&self, file: &str, fault: Fault, times: u32) {
        self.state().faults.push((file.to_owned(), fault, times));
    }

    /// Slows all files down, with a pause of so many milliseconds after each 64 KiB.
    pub fn slow(&self, pause: u64) {
        let mut state = self.state();
        let names: Vec<String> = state.files.keys().cloned().collect();
        state.faults.extend(names.into_iter().map(|name| (name, Fault::Slow(pause), u32::MAX)));
    }

    /// Moves `main` to another commit with other files. The earlier one stays.
    pub fn commit(&self, commit: &str, files: BTreeMap<String, Vec<u8>>) {
        let mut state = self.state();
        let old = state.commit.clone();
        let before = std::mem::replace(&mut state.files, files);
        state.earlier.insert(old, before);
        state.commit = commit.to_owned();
    }

    /// Requests for a file so far; for the listing, its name is empty.
    pub fn requests(&self, file: &str) -> Vec<Request> {
        self.state().requests.iter().filter(|request| request.file == file).cloned().collect()
    }
}

impl State {
    /// Files of a commit or of `main`.
    fn at(&self, revision: &str) -> Option<(&str, &BTreeMap<String, Vec<u8>>)> {
        match self.earlier.get_key_value(revision) {
            Some((commit, files)) => Some((commit, files)),
            None if revision == "main" || revision == self.commit => {
                Some((&self.commit, &self.files))
            }
            None => None,
        }
    }

    /// Takes the next fault of a file that `acts` here.
    fn fault(&mut self, file: &str, acts: impl Fn(&Fault) -> bool) -> Option<Fault> {
        for (name, fault, times) in &mut self.faults {
            if name == file && *times > 0 && acts(fault) {
                *times -= 1;
                return Some(fault.clone());
            }
        }
        None
    }
}

/// True for files that the storage has.
fn is_large(name: &str) -> bool {
    [".safetensors", ".gguf", ".bin"].iter().any(|ending| name.ends_with(ending))
}

/// SHA-256 as lower-case hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    hex(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref())
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Name that git gives to a file of these bytes.
fn git_object(bytes: &[u8]) -> String {
    let object = [format!("blob {}\0", bytes.len()).as_bytes(), bytes].concat();
    hex(ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, &object).as_ref())
}

fn listing(id: &str, commit: &str, files: &BTreeMap<String, Vec<u8>>) -> String {
    let mut siblings = Vec::with_capacity(files.len());
    for (name, bytes) in files {
        siblings.push(match is_large(name) {
            true => json!({
                "rfilename": name,
                "size": bytes.len(),
                "blobId": "0".repeat(40),
                "lfs": { "sha256": sha256(bytes), "size": bytes.len(), "pointerSize": 134 },
            }),
            false => json!({ "rfilename": name, "size": bytes.len(), "blobId": git_object(bytes) }),
        });
    }
    json!({ "id": id, "sha": commit, "siblings": siblings, "gated": false }).to_string()
}

/// The list of files that Python asks for.
fn tree(files: &BTreeMap<String, Vec<u8>>) -> String {
    let mut entries = Vec::with_capacity(files.len());
    for (name, bytes) in files {
        let size = bytes.len();
        let mut entry =
            json!({ "type": "file", "path": name, "size": size, "oid": git_object(bytes) });
        if is_large(name) {
            entry["lfs"] = json!({ "oid": sha256(bytes), "size": size, "pointerSize": 134 });
        }
        entries.push(entry);
    }
    json!(entries).to_string()
}

/// Answers the requests of a connection.
fn serve(stream: &TcpStream, state: &Mutex<State>, storage: bool) {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    while let Some(first) = lines.next() {
        let mut words = first.split(' ');
        let (Some(method @ ("GET" | "HEAD")), Some(path)) = (words.next(), words.next()) else {
            return;
        };
        let mut request = Request {
            storage,
            sent_back: path.ends_with(BACK),
            file: String::new(),
            range: None,
            authorization: None,
        };
        for line in lines.by_ref().take_while(|line| !line.is_empty()) {
            let Some((name, value)) = line.split_once(": ") else { continue };
            match name.to_ascii_lowercase().as_str() {
                "range" => request.range = Some(value.to_owned()),
                "authorization" => request.authorization = Some(value.to_owned()),
                _ => {}
            }
        }
        let mut answer =
            answer(path, request, &mut state.lock().unwrap_or_else(PoisonError::into_inner));
        answer.has_body = method == "GET";
        let sent = send(stream, &answer);
        if answer.silent {
            // Until the client gives up.
            lines.next();
        }
        if sent.is_err() || answer.cut.is_some() {
            let _ = stream.shutdown(Shutdown::Both);
            return;
        }
    }
}

struct Answer {
    status: u16,
    headers: Vec<String>,
    body: Vec<u8>,
    /// False for a body that ends with the connection.
    sized: bool,
    cut: Option<usize>,
    /// True if the connection stays open after the cut.
    silent: bool,
    pause: u64,
    /// False for the answer to a HEAD.
    has_body: bool,
}

impl Answer {
    fn new(status: u16, headers: Vec<String>) -> Answer {
        Answer {
            status,
            headers,
            body: Vec::new(),
            sized: true,
            cut: None,
            silent: false,
            pause: 0,
            has_body: true,
        }
    }

    fn error(status: u16, code: &str) -> Answer {
        Answer::new(status, vec![format!("X-Error-Code: {code}")])
    }
}

fn answer(path: &str, mut request: Request, state: &mut State) -> Answer {
    let path = decoded(path.split('?').next().unwrap_or(path));
    let listed = format!("/api/models/{}/revision/", state.id);
    let resolved = format!("/{}/resolve/", state.id);
    if let Some(revision) = path.strip_prefix(&format!("/api/models/{}/tree/", state.id)) {
        let mut answer = Answer::new(200, Vec::new());
        let files = state.at(revision).map(|(_, files)| tree(files));
        answer.body = files.unwrap_or_default().into_bytes();
        return answer;
    }
    let (revision, file) = if let Some(revision) = path.strip_prefix(&listed) {
        (revision.to_owned(), None)
    } else if let Some(rest) = path.strip_prefix(&resolved).or(path.strip_prefix("/storage/")) {
        let (revision, file) = rest.split_once('/').unwrap_or((rest, ""));
        (revision.to_owned(), Some(file.to_owned()))
    } else {
        state.requests.push(request);
        return Answer::error(401, "RepoNotFound");
    };
    let file = file.unwrap_or_default();
    request.file.clone_from(&file);
    let storage = request.storage;
    let back = request.sent_back;
    let range = request.range.clone();
    let leaked = (storage || back) && request.authorization.is_some();
    state.requests.push(request);
    if leaked {
        return Answer::error(400, "OnlyOneAuthMechanismAllowed");
    }
    let large = is_large(&file);
    if let Some(Fault::Status(status, code, wait)) =
        state.fault(&file, |fault| matches!(fault, Fault::Status(..)))
    {
        let headers = [("X-Error-Code", code), ("Retry-After", wait)];
        let headers = headers.iter().filter(|(_, value)| !value.is_empty());
        return Answer::new(
            status,
            headers.map(|(name, value)| format!("{name}: {value}")).collect(),
        );
    }
    if !storage && state.fault(&file, |fault| *fault == Fault::Circle).is_some() {
        return Answer::new(302, vec![format!("Location: {path}")]);
    }
    let Some((commit, files)) = state.at(&revision).map(|(commit, f)| (commit.to_owned(), f))
    else {
        return Answer::error(404, "RevisionNotFound");
    };
    if file.is_empty() {
        let mut answer = Answer::new(200, Vec::new());
        let right = || listing(&state.id, &commit, files);
        answer.body = state.listing.clone().unwrap_or_else(right).into_bytes();
        return answer;
    }
    let Some(bytes) = files.get(&file).cloned() else {
        return Answer::error(404, "EntryNotFound");
    };
    if large && !storage && !back {
        let to = format!("http://{}/storage/{revision}/{file}?signature=x", state.storage);
        let mut headers =
            vec![format!("Location: {to}"), format!("X-Linked-Size: {}", bytes.len())];
        headers.push(format!("X-Linked-ETag: \"{}\"", sha256(&bytes)));
        headers.push(format!("X-Repo-Commit: {commit}"));
        return Answer::new(302, headers);
    }
    if storage && state.fault(&file, |fault| *fault == Fault::SentBack).is_some() {
        let to = format!("http://{}{resolved}{revision}/{file}{BACK}", state.hub);
        return Answer::new(302, vec![format!("Location: {to}")]);
    }
    let etag = if large { sha256(&bytes) } else { git_object(&bytes) };
    let mut answer = body(bytes, range.as_deref(), &file, state);
    answer.headers.push(format!("ETag: \"{etag}\""));
    answer.headers.push(format!("X-Repo-Commit: {commit}"));
    answer
}

/// A path without the escapes of URLs.
pub(crate) fn decoded(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let escape = rest.get(1..3).and_then(|hex| std::str::from_utf8(hex).ok());
        let byte =
            escape.filter(|_| first == b'%').and_then(|hex| u8::from_str_radix(hex, 16).ok());
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &rest[3..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The answer with a file, or the range of it that was asked for.
fn body(mut bytes: Vec<u8>, range: Option<&str>, file: &str, state: &mut State) -> Answer {
    let mut take = |fault: &Fault| state.fault(file, |found| found == fault).is_some();
    if take(&Fault::WrongBytes)
        && let Some(last) = bytes.last_mut()
    {
        *last ^= 1;
    }
    let longer = take(&Fault::Longer);
    let unsized_ = take(&Fault::LongerWithoutLength);
    if longer || unsized_ {
        bytes.push(0);
    }
    if take(&Fault::Shorter) {
        bytes.pop();
    }
    let ignored = take(&Fault::IgnoreRanges);
    let len = bytes.len();
    let asked = range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let mut answer = match asked.filter(|_| !ignored) {
        None => Answer::new(200, Vec::new()),
        Some((first, last)) => {
            let first: usize = first.parse().unwrap_or(0);
            let last = last.parse().unwrap_or(len.saturating_sub(1)).min(len.saturating_sub(1));
            if first >= len {
                return Answer::new(416, vec![format!("Content-Range: bytes */{len}")]);
            }
            bytes = bytes[first..=last].to_vec();
            let acts = |fault: &Fault| matches!(fault, Fault::WrongFrom(from) if first >= *from);
            if state.fault(file, acts).is_some() {
                bytes[0] ^= 1;
            }
            // A storage that lies about its bytes lies about their number, too.
            let whole = if unsized_ { len - 1 } else { len };
            Answer::new(206, vec![format!("Content-Range: bytes {first}-{last}/{whole}")])
        }
    };
    (answer.body, answer.sized) = (bytes, !unsized_);
    if let Some(Fault::Cut(after)) = state.fault(file, |fault| matches!(fault, Fault::Cut(_))) {
        answer.cut = Some(after);
    }
    if let Some(Fault::Silent(after)) = state.fault(file, |fault| matches!(fault, Fault::Silent(_)))
    {
        (answer.cut, answer.silent) = (Some(after), true);
    }
    if let Some(Fault::Slow(pause)) = state.fault(file, |fault| matches!(fault, Fault::Slow(_))) {
        answer.pause = pause;
    }
    answer
}

fn send(mut to: &TcpStream, answer: &Answer) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {} Status\r\n", answer.status);
    for header in &answer.headers {
        head.push_str(&format!("{header}\r\n"));
    }
    match answer.sized {
        true => head.push_str(&format!("Content-Length: {}\r\n\r\n", answer.body.len())),
        false => head.push_str("Connection: close\r\n\r\n"),
    }
    to.write_all(head.as_bytes())?;
    let end = match answer.has_body {
        true => answer.cut.unwrap_or(usize::MAX).min(answer.body.len()),
        false => 0,
    };
    for part in answer.body[..end].chunks(64 << 10) {
        to.write_all(part)?;
        if answer.pause > 0 {
            sws_format::Clock::real().sleep(std::time::Duration::from_millis(answer.pause));
        }
    }
    match answer.sized {
        true => Ok(()),
        false => Err(std::io::ErrorKind::ConnectionAborted.into()),
    }
}
