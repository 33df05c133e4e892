//! Requests over HTTP: proxies, time limits, attempts and pauses. This module is independent of the
//! content.

use std::io::{self, Read};
use std::time::Duration;

use sws_format::Clock;
use tracing::{debug, info};
use ureq::http::{HeaderMap, Response, Uri, header};
use ureq::{Agent, Body, BodyReader, Proxy, ProxyProtocol, SendBody};

use crate::retry_after::{pause_asked, seconds};
use crate::{HubError, ProxySetting};

/// Attempts without any progress before a request fails.
pub const ATTEMPTS: u32 = 5;
/// Pause before the second attempt; it doubles with each.
const PAUSE: Duration = Duration::from_millis(500);
/// Maximum pause that a server may ask for. The hub's own limits apply to 5 minutes.
const LONGEST_PAUSE: Duration = Duration::from_secs(5 * 60);
const CONNECT: Duration = Duration::from_secs(30);
/// Minimum bytes of a body within the time limit for silence. Otherwise a connection that sends
/// almost nothing would be waited for forever.
const LEAST: usize = 64 << 10;
/// Number of connections kept open per host.
const IDLE: usize = 16;

/// A reply whose body has not been read.
pub type HttpReply = Response<Body>;

/// A client without redirects and credentials, which depend on the content.
#[derive(Clone, Debug)]
pub struct Http {
    agent: Agent,
    clock: Clock,
    silence: Duration,
}

/// Bytes of a file, from the first to the last inclusive; without a last one, up to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange(pub u64, pub Option<u64>);

impl ByteRange {
    /// The value of the `Range` header.
    pub fn header(self) -> String {
        let ByteRange(first, last) = self;
        match last {
            Some(last) => format!("bytes={first}-{last}"),
            None => format!("bytes={first}-"),
        }
    }
}

impl Http {
    /// A client that uses a proxy, if given. It cuts connections that are silent for this time, or
    /// that send less than 64 KiB of a body within it.
    pub fn new(
        proxy: Option<&ProxySetting>,
        silence: Duration,
        clock: Clock,
    ) -> Result<Http, HubError> {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // Callers follow redirects themselves, because credentials must not be sent elsewhere.
            .max_redirects(0)
            .proxy(proxy.map(proxy_of).transpose()?)
            .max_idle_connections_per_host(IDLE)
            .max_idle_connections(IDLE)
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(silence))
            .timeout_per_read(Some(silence))
            .timeout_per_write(Some(silence))
            .user_agent(concat!("sws/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(Http { agent: config.into(), clock, silence })
    }

    /// The body of a reply.
    pub fn body<'a>(&self, reply: &'a mut HttpReply) -> Paced<BodyReader<'a>> {
        let inner = reply.body_mut().as_reader();
        let clock = self.clock.clone();
        Paced { inner, clock, silence: self.silence, waited: Duration::ZERO, left: LEAST }
    }

    /// The clock for pauses between attempts.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Requests a range of a file, or the whole file, with these headers.
    pub fn get(
        &self,
        to: &Uri,
        bytes: Option<ByteRange>,
        headers: &[(&'static str, String)],
    ) -> Result<HttpReply, HttpFailure> {
        let mut request = self.agent.get(to);
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        if let Some(bytes) = bytes {
            request = request.header("range", bytes.header());
        }
        let answer = request.call().map_err(|e| self.no_answer(to, &e));
        if let Ok(reply) = &answer {
            debug!("GET {} from {bytes:?}: {}", render(to), reply.status());
        }
        answer
    }

    /// Sends a file of this length with these headers.
    pub fn put(
        &self,
        to: &Uri,
        body: &mut dyn std::io::Read,
        len: u64,
        headers: &[(&'static str, String)],
    ) -> Result<HttpReply, HttpFailure> {
        let mut request = self.agent.put(to).header("content-length", len);
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let answer = match len {
            0 => request.send_empty(),
            _ => request.send(SendBody::from_reader(body)),
        };
        let answer = answer.map_err(|e| self.no_answer(to, &e));
        if let Ok(reply) = &answer {
            debug!("PUT {} of {len} bytes: {}", render(to), reply.status());
        }
        answer
    }

    fn no_answer(&self, to: &Uri, error: &ureq::Error) -> HttpFailure {
        let through = match self.agent.config().proxy() {
            Some(proxy) if !proxy.is_no_proxy(to) => {
                format!(", through the proxy {}:{}", proxy.host(), proxy.port())
            }
            _ => String::new(),
        };
        let url = render(to);
        let reason = format!("{error}{through}");
        match error {
            ureq::Error::Protocol(_) => {
                HttpFailure::Garbled { url, reason: format!("no HTTP ({reason})") }
            }
            _ => HttpFailure::Connection { url, reason },
        }
    }

    /// Makes a request until it succeeds or fails permanently, with a maximum number of attempts.
    /// `request` gets the number of the attempt.
    pub fn attempted<T>(
        &self,
        attempts: u32,
        request: &mut dyn FnMut(u32) -> Result<T, HttpFailure>,
    ) -> Result<T, HttpFailure> {
        self.attempted_while(&HttpFailure::may_pass, attempts, request)
    }

    /// Like `attempted`, but retries only after some failures.
    pub(crate) fn attempted_while<T>(
        &self,
        may_pass: &dyn Fn(&HttpFailure) -> bool,
        attempts: u32,
        request: &mut dyn FnMut(u32) -> Result<T, HttpFailure>,
    ) -> Result<T, HttpFailure> {
        let mut attempt = 0;
        loop {
            match request(attempt) {
                Err(failure) if may_pass(&failure) && attempt + 1 < attempts => {
                    self.pause(attempt, &failure)?;
                    attempt += 1;
                }
                done => return done,
            }
        }
    }

    /// Waits before the next attempt: as long as the server asks, or longer each time.
    pub fn pause(&self, attempt: u32, failure: &HttpFailure) -> Result<(), HttpFailure> {
        let asked = match failure {
            HttpFailure::Status { wait, .. } => *wait,
            _ => None,
        };
        if asked > Some(LONGEST_PAUSE) {
            return Err(failure.clone());
        }
        let pause = asked.unwrap_or(PAUSE * 2u32.pow(attempt.min(8)));
        let asked = asked.is_some();
        info!("attempt {} failed ({}); again in {pause:?}", attempt + 1, failure.reason());
        debug!(asked, "the pause");
        self.clock.sleep(pause);
        Ok(())
    }
}

/// Failure of one request.
#[derive(Clone, Debug)]
pub enum HttpFailure {
    /// A status other than success.
    Status {
        /// The address, without its query.
        url: String,
        /// The status.
        status: u16,
        /// The reason, as the server names it.
        code: String,
        /// The pause that the server asks for.
        wait: Option<Duration>,
    },
    /// No connection, or one that broke.
    Connection {
        /// The address, without its query.
        url: String,
        /// The reason.
        reason: String,
    },
    /// An invalid answer.
    Answer {
        /// The address, without its query.
        url: String,
        /// Description of the problem.
        reason: String,
    },
    /// An answer that is not HTTP, possibly the rest of another answer.
    Garbled {
        /// The address, without its query.
        url: String,
        /// Description of the problem.
        reason: String,
    },
}

/// Reader of a body, which fails if it has to wait for 64 KiB for as long as the limit for silence.
/// The time between reads does not count.
#[derive(Debug)]
pub struct Paced<R> {
    inner: R,
    clock: Clock,
    silence: Duration,
    /// Time waited for the current 64 KiB, of which `left` bytes are missing.
    waited: Duration,
    left: usize,
}

impl<R: Read> Read for Paced<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.waited > self.silence {
            let least = LEAST >> 10;
            let seconds = self.silence.as_secs();
            let reason = format!("less than {least} KiB came in {seconds} s");
            return Err(io::Error::new(io::ErrorKind::TimedOut, reason));
        }
        let before = self.clock.now();
        let read = self.inner.read(into)?;
        self.waited += self.clock.now().saturating_sub(before);
        if read >= self.left {
            (self.waited, self.left) = (Duration::ZERO, LEAST);
        } else {
            self.left -= read;
        }
        Ok(read)
    }
}

impl HttpFailure {
    /// The failure for a status, with the reason given by the server.
    pub fn of_status(url: String, reply: &HttpReply, code: String) -> HttpFailure {
        let wait = text(reply.headers(), header::RETRY_AFTER.as_str());
        let sent = text(reply.headers(), header::DATE.as_str());
        let wait = wait.and_then(|wait| pause_asked(wait, sent));
        HttpFailure::Status { url, status: reply.status().as_u16(), code, wait }
    }

    /// The reason in a few words, without the address.
    pub fn reason(&self) -> String {
        match self {
            HttpFailure::Status { status, .. } => format!("status {status}"),
            HttpFailure::Connection { reason, .. }
            | HttpFailure::Answer { reason, .. }
            | HttpFailure::Garbled { reason, .. } => reason.clone(),
        }
    }

    /// True if the same request may succeed later.
    pub fn may_pass(&self) -> bool {
        match self {
            HttpFailure::Status { status, .. } => {
                matches!(status, 408 | 429 | 500 | 502 | 503 | 504)
            }
            HttpFailure::Connection { .. } | HttpFailure::Garbled { .. } => true,
            HttpFailure::Answer { .. } => false,
        }
    }

    /// True if the server asks to repeat the request later.
    pub(crate) fn asks_to_wait(&self) -> bool {
        let asks = matches!(self, HttpFailure::Status { status, wait, .. } if *status == 429 || wait.is_some());
        asks && self.may_pass()
    }
}

/// An address without its query, which may contain a signature.
pub fn render(uri: &Uri) -> String {
    let host = uri.host().unwrap_or("");
    let port = match uri.port() {
        Some(port) => format!(":{port}"),
        None => String::new(),
    };
    format!("{}://{host}{port}{}", uri.scheme_str().unwrap_or("http"), uri.path())
}

/// The value of a header, if it is text.
pub fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The server's time in seconds since 1970, if the reply has it.
pub fn date(headers: &HeaderMap) -> Option<u64> {
    seconds(text(headers, header::DATE.as_str())?)
}

/// The target of a redirect, which may be relative.
pub fn joined(base: &Uri, location: &str) -> Option<Uri> {
    if location.starts_with('/') && !location.starts_with("//") {
        let whole = format!("{}://{}{location}", base.scheme_str()?, base.authority()?);
        return whole.parse().ok();
    }
    let uri: Uri = location.parse().ok()?;
    let web = matches!(uri.scheme_str(), Some("http" | "https")) && uri.authority().is_some();
    web.then_some(uri)
}

/// True if two addresses have the same scheme, host and port.
pub fn same_origin(a: &Uri, b: &Uri) -> bool {
    origin(a) == origin(b)
}

/// Scheme, host and port of an address.
fn origin(uri: &Uri) -> (Option<String>, Option<String>, u16) {
    let scheme = uri.scheme_str().map(str::to_ascii_lowercase);
    let default = if scheme.as_deref() == Some("https") { 443 } else { 80 };
    let host = uri.host().map(str::to_ascii_lowercase);
    (scheme, host, uri.port_u16().unwrap_or(default))
}

fn proxy_of(setting: &ProxySetting) -> Result<Proxy, HubError> {
    let problem = "is not an address of a proxy, like http://host:3128";
    let wrong = HubError::Variable { name: setting.variable, problem };
    let Ok(proxy) = Proxy::new(&setting.address) else { return Err(wrong) };
    // Other protocols need features of `ureq`, which panics if they are missing.
    if !matches!(proxy.protocol(), ProxyProtocol::Http | ProxyProtocol::Https) {
        return Err(wrong);
    }
    match &setting.except {
        Some(hosts) => except(&proxy, hosts).map_err(|_| wrong),
        None => Ok(proxy),
    }
}

/// The same proxy with these hosts and their subdomains as exceptions.
fn except(proxy: &Proxy, hosts: &str) -> Result<Proxy, ureq::Error> {
    let mut builder = Proxy::builder(proxy.protocol()).host(proxy.host()).port(proxy.port());
    if let Some(name) = proxy.username() {
        builder = builder.username(name);
    }
    if let Some(password) = proxy.password() {
        builder = builder.password(password);
    }
    for host in hosts.split(',').map(str::trim).filter(|host| !host.is_empty()) {
        builder = builder.no_proxy(host);
        if !host.starts_with(['.', '*']) {
            builder = builder.no_proxy(&format!(".{host}"));
        }
    }
    builder.build()
}

/// A path for a URL, in which everything but letters, digits, `-._~` and slashes is escaped.
pub fn escaped(path: &str) -> String {
    let mut url = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                url.push(byte.into());
            }
            _ => url.push_str(&format!("%{byte:02X}")),
        }
    }
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_joined_to_their_base() {
        let base: Uri = "https://hub.example/a/b?c".parse().unwrap();
        let cases = [
            ("/x/y?z=1", Some("https://hub.example/x/y?z=1")),
            ("https://cdn.example/x?s=%7E", Some("https://cdn.example/x?s=%7E")),
            ("http://cdn.example/x", Some("http://cdn.example/x")),
            ("//cdn.example/x", None),
            ("file:///etc/passwd", None),
            ("x", None),
            ("", None),
        ];
        for (location, expected) in cases {
            let found = joined(&base, location).map(|uri| uri.to_string());
            assert_eq!(found.as_deref(), expected, "{location}");
        }
    }

    /// A connection that sends parts of some bytes, each after some seconds.
    struct Drip(Clock, usize, f64);

    impl Read for Drip {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let Drip(clock, bytes, seconds) = self;
            clock.sleep(Duration::from_secs_f64(*seconds));
            Ok((*bytes).min(into.len()))
        }
    }

    #[test]
    fn a_body_that_drips_is_silence() {
        let silence = Duration::from_secs(30);
        let ends = |bytes, seconds| {
            let clock = Clock::simulated();
            let inner = Drip(clock.clone(), bytes, seconds);
            let waited = Duration::ZERO;
            let left = LEAST;
            let mut body = Paced { inner, clock: clock.clone(), silence, waited, left };
            let mut buffer = vec![0; 1 << 20];
            let mut failures = (0..10_000).filter_map(|_| {
                // Time that a disk takes.
                clock.sleep(Duration::from_secs(60));
                body.read(&mut buffer).err()
            });
            failures.next().map(|error| error.to_string())
        };
        let silent = "less than 64 KiB came in 30 s";
        for (bytes, seconds, expected) in [
            (1, 0.3, Some(silent)),
            (1 << 10, 0.5, Some(silent)),
            (64 << 10, 29.0, None),
            (1 << 10, 0.4, None),
            (1 << 20, 20.0, None),
        ] {
            assert_eq!(ends(bytes, seconds).as_deref(), expected, "{bytes} in {seconds} s");
        }
    }

    #[test]
    fn origins_differ_by_scheme_host_and_port() {
        let same = |a: &str, b: &str| same_origin(&a.parse().unwrap(), &b.parse().unwrap());
        assert!(same("https://a/x", "https://A:443/y"));
        assert!(!same("https://a/x", "http://a/x"));
        assert!(!same("http://a:1/x", "http://a:2/x"));
        assert!(!same("https://a.b/x", "https://b/x"));
    }

    #[test]
    fn excepted_hosts_have_subdomains() {
        let proxy = Proxy::new("http://p:1").unwrap();
        let proxy = except(&proxy, "a.example, .b.example,*.c.example").unwrap();
        for (host, direct) in [
            ("a.example", true),
            ("x.a.example", true),
            ("xa.example", false),
            ("b.example", false),
            ("x.b.example", true),
            ("x.c.example", true),
        ] {
            let uri: Uri = format!("https://{host}/x").parse().unwrap();
            assert_eq!(proxy.is_no_proxy(&uri), direct, "{host}");
        }
    }

    #[test]
    fn paths_are_escaped() {
        assert_eq!(escaped("a b/ü?#%.gguf"), "a%20b/%C3%BC%3F%23%25.gguf");
    }
}
