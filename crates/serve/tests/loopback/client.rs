//! A server on a thread of the test, and a client without a library.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use sws::{
    LoadedModel, Model, ModelSet, Needs, Options, PrefixDisk, RamBudget, SetEntry, Streaming,
    Threads,
};
use sws_format::Clock;
use sws_serve::{ModelNames, ServeError, Server, ServerConfig, ServerLimits};

/// A running server.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
}

/// A response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

/// Settings of a test server.
pub(crate) fn config() -> ServerConfig {
    ServerConfig {
        address: ([127, 0, 0, 1], 0).into(),
        models: vec![ModelNames {
            id: "owner/tales".to_owned(),
            aliases: vec!["gpt-any".to_owned()],
        }],
        keys: Vec::new(),
        hosts: Vec::new(),
        origins: Vec::new(),
        open: false,
        open_metrics: false,
        limits: ServerLimits { drain: Duration::from_secs(5), ..ServerLimits::default() },
        stop: Arc::new(|| false),
        log: Arc::new(|_| ()),
    }
}

/// Loads a model as `sws --resident` does.
pub(crate) fn load(dir: &Path, needs: Needs) -> LoadedModel {
    let streaming = Streaming { warm_start: false, ..Streaming::default() };
    let options = Options { resident: true, streaming, ..Options::default() };
    Model::open(dir).unwrap().with(options).needs(needs).load().unwrap()
}

/// Needs of a server of so many texts at a time.
pub(crate) fn needs(texts: usize) -> Needs {
    Needs { texts, all_logits: true, ..Needs::default() }
}

/// Serves a model, and waits until it is loaded.
pub(crate) fn serve(dir: &Path, texts: usize, config: ServerConfig) -> Running {
    serve_with(dir, texts, config, None)
}

/// The same, with prefixes on disk.
pub(crate) fn serve_with(
    dir: &Path,
    texts: usize,
    config: ServerConfig,
    disk: Option<PrefixDisk>,
) -> Running {
    let stop = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&stop);
    let config = ServerConfig { stop: Arc::new(move || asked.load(Ordering::Relaxed)), ..config };
    let mut server = Server::start(config).unwrap();
    if let Some(disk) = disk {
        server = server.with_disk(disk);
    }
    let address = server.address();
    let dir = dir.to_owned();
    let thread = std::thread::spawn(move || {
        let mut model = load(&dir, needs(texts));
        server.run(&mut model, needs(texts), || ())
    });
    let running = Running { address, stop, thread: Some(thread) };
    wait_for(|| running.get("/health").status == 200);
    running
}

/// Serves several models within a budget, of which one is loaded at a time, and waits for the first.
pub(crate) fn serve_set(
    dirs: &[&Path],
    needs: Needs,
    config: ServerConfig,
    disks: Vec<Option<PrefixDisk>>,
) -> Running {
    let stop = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&stop);
    let config = ServerConfig { stop: Arc::new(move || asked.load(Ordering::Relaxed)), ..config };
    let server = Server::start(config).unwrap().with_disks(disks);
    let address = server.address();
    let entry = |dir: &&Path| {
        let model = Model::open(dir).unwrap();
        let text = model.with(Options::default()).read_text().unwrap();
        let text = text.while_loaded(model.chat_template().ok());
        SetEntry { model, text, needs }
    };
    let entries = dirs.iter().map(entry).collect();
    let thread = std::thread::spawn(move || {
        let streaming = Streaming { warm_start: false, ..Streaming::default() };
        let ram = RamBudget::Bytes(2 << 30);
        let options = Options { ram, streaming, ..Options::default() };
        let set = ModelSet::plan(entries, &options, &Threads::start(2).unwrap()).unwrap();
        let first = set.loader(0).load().unwrap();
        server.run_set(&set, first, || ())
    });
    let running = Running { address, stop, thread: Some(thread) };
    wait_for(|| running.get("/health").status == 200);
    running
}

/// Waits for a condition, up to a minute.
#[track_caller]
pub(crate) fn wait_for(mut holds: impl FnMut() -> bool) {
    let clock = Clock::real();
    while !holds() {
        assert!(clock.now() < Duration::from_secs(60), "it never came true");
        clock.sleep(Duration::from_millis(20));
    }
}

impl Running {
    /// Sends a request, without waiting for the response.
    pub(crate) fn send(&self, path: &str, body: &Value) -> TcpStream {
        let body = body.to_string();
        self.raw(&format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ))
    }

    /// Sends these bytes.
    pub(crate) fn raw(&self, bytes: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // The server may answer and close before it has read everything.
        let _ = stream.write_all(bytes.as_bytes());
        stream
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Response {
        Response::read(self.send(path, body))
    }

    /// The answer to a request that succeeds.
    #[track_caller]
    pub(crate) fn ask(&self, path: &str, body: &Value) -> Value {
        let response = self.post(path, body);
        assert_eq!(response.status, 200, "{response:?}");
        response.json()
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        self.get_with(path, "")
    }

    pub(crate) fn delete(&self, path: &str) -> Response {
        let head = "host: localhost\r\nconnection: close\r\n\r\n";
        Response::read(self.raw(&format!("DELETE {path} HTTP/1.1\r\n{head}")))
    }

    /// With further lines in the header.
    pub(crate) fn get_with(&self, path: &str, lines: &str) -> Response {
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{lines}\r\n");
        Response::read(self.raw(&request))
    }

    /// The value of a metric without labels.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let body = self.get("/metrics").body;
        let line = body.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} in {body}")).parse().unwrap()
    }

    /// Ends the server, as a signal does.
    pub(crate) fn stop(mut self) -> Result<(), ServeError> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }

    /// Asks the server to end, without waiting for it.
    pub(crate) fn ask_to_stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.unwrap().unwrap();
            }
        }
    }
}

impl Response {
    /// Reads until the server closes the connection.
    pub(crate) fn read(mut stream: TcpStream) -> Response {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        Response::parse(bytes)
    }

    /// A response that was read as a whole.
    pub(crate) fn parse(bytes: Vec<u8>) -> Response {
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let body = match head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
            true => joined(body),
            false => body.to_owned(),
        };
        let head = head.to_ascii_lowercase();
        // Clients read no more than that.
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        if let Some(length) = length {
            assert_eq!(length.parse(), Ok(body.len()), "{head}: {body}");
        }
        Response { status, head, body }
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// The data of the events of a stream that ends as it should.
    #[track_caller]
    pub(crate) fn events(&self) -> Vec<Value> {
        assert!(self.head.contains("content-type: text/event-stream"), "{self:?}");
        let mut data: Vec<&str> = Vec::new();
        for block in self.body.split("\n\n").filter(|block| !block.is_empty()) {
            assert!(!block.contains('\n'), "{block}");
            if !block.starts_with(':') {
                data.push(block.strip_prefix("data: ").unwrap());
            }
        }
        assert_eq!(data.pop(), Some("[DONE]"), "{self:?}");
        data.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }

    /// The text of a streamed completion.
    #[track_caller]
    pub(crate) fn texts(&self) -> String {
        let events = self.events();
        events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect()
    }
}

/// The parts of a chunked body.
fn joined(mut body: &str) -> String {
    let mut joined = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap_or(0);
        let (part, rest) = rest.split_at(length.min(rest.len()));
        joined += part;
        body = rest.strip_prefix("\r\n").unwrap_or("");
    }
    joined
}
