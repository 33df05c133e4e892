//! Requests to the hub: redirects, retries, and the meaning of its answers.

use std::io::Read;
use std::time::Duration;

use sws_store::Clock;
use tracing::{debug, info};
use ureq::http::{HeaderMap, Response, StatusCode, Uri, header};
use ureq::{Agent, Body, Proxy, ProxyProtocol};

use crate::retry_after::pause_asked;
use crate::{Environment, HubError, HubFile, Listing, ModelId, Token};

/// Most redirects of one request.
const REDIRECTS: usize = 5;
/// Attempts without any progress before a request fails.
pub(crate) const ATTEMPTS: u32 = 5;
/// Pause before the second attempt; it doubles with each.
const PAUSE: Duration = Duration::from_millis(500);
/// Longest pause that the hub may ask for. Its own limits count within 5 minutes.
const LONGEST_PAUSE: Duration = Duration::from_secs(5 * 60);
const CONNECT: Duration = Duration::from_secs(30);

/// A client of the hub.
#[derive(Debug)]
pub struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<Token>,
    pub(crate) clock: Clock,
}

/// A file on the hub or a storage that the hub redirects to. The storage's address is remembered for
/// further requests, until it expires.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    url: String,
    storage: Option<Uri>,
}

/// Bytes of a file, first and last included; without a last, up to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) u64, pub(crate) Option<u64>);

pub(crate) type Reply = Response<Body>;

impl Client {
    /// A client with the settings of the environment.
    pub fn new(environment: &Environment) -> Result<Client, HubError> {
        Client::with_clock(environment, Clock::real())
    }

    /// Like [`new`](Self::new), with another clock to wait by between attempts.
    pub fn with_clock(environment: &Environment, clock: Clock) -> Result<Client, HubError> {
        let proxy = match &environment.proxy {
            None => None,
            Some(setting) => {
                let problem = "is no address of a proxy, like http://host:3128";
                let wrong = || HubError::Variable { name: setting.variable, problem };
                let proxy = Proxy::new(&setting.address).map_err(|_| wrong())?;
                // Other protocols need features of `ureq`, which panics without them.
                if !matches!(proxy.protocol(), ProxyProtocol::Http | ProxyProtocol::Https) {
                    return Err(wrong());
                }
                Some(match &setting.except {
                    Some(hosts) => except(&proxy, hosts).map_err(|_| wrong())?,
                    None => proxy,
                })
            }
        };
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // Followed here, because the token must not follow.
            .max_redirects(0)
            .proxy(proxy)
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(environment.silence))
            .timeout_per_read(Some(environment.silence))
            .timeout_per_write(Some(environment.silence))
            .user_agent(concat!("sws/", env!("CARGO_PKG_VERSION")))
            .build();
        let (endpoint, token) = (environment.endpoint.clone(), environment.token.clone());
        Ok(Client { agent: config.into(), endpoint, token, clock })
    }

    /// Address of the hub.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Address of a model's page, for people.
    pub fn page(&self, id: &ModelId) -> String {
        format!("{}/{id}", self.endpoint)
    }

    /// Address of a file of a model.
    pub(crate) fn file(&self, id: &ModelId, commit: &str, name: &str) -> Address {
        let url = format!("{}/{id}/resolve/{commit}/{}", self.endpoint, escaped(name));
        Address { url, storage: None }
    }

    /// Requests JSON of at most `limit` bytes, with at most so many attempts.
    pub(crate) fn json(&self, path: &str, limit: u64, attempts: u32) -> Result<Vec<u8>, Failure> {
        let mut address = Address { url: format!("{}{path}", self.endpoint), storage: None };
        self.attempted(attempts, &mut |_| {
            let mut reply = self.get(&mut address, None)?;
            let mut bytes = Vec::new();
            let body = reply.body_mut().as_reader();
            let read = body.take(limit + 1).read_to_end(&mut bytes);
            let url = address.shown();
            match read {
                Err(e) => Err(Failure::Connection { url, reason: e.to_string() }),
                Ok(_) if bytes.len() as u64 > limit => {
                    Err(Failure::Answer { url, reason: format!("more than {limit} bytes") })
                }
                Ok(_) => Ok(bytes),
            }
        })
    }

    /// Makes a request until it succeeds, or fails for good. The number of the attempt is passed.
    pub(crate) fn retried<T>(
        &self,
        request: &mut dyn FnMut(u32) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.attempted(ATTEMPTS, request)
    }

    /// Like [`retried`](Self::retried), with at most so many attempts.
    fn attempted<T>(
        &self,
        attempts: u32,
        request: &mut dyn FnMut(u32) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut attempt = 0;
        loop {
            match request(attempt) {
                Err(failure) if failure.may_pass() && attempt + 1 < attempts => {
                    self.pause(attempt, &failure)?;
                    attempt += 1;
                }
                done => return done,
            }
        }
    }

    /// Waits before the next attempt: as long as the hub asks, or longer each time.
    pub(crate) fn pause(&self, attempt: u32, failure: &Failure) -> Result<(), Failure> {
        let asked = match failure {
            Failure::Status { wait, .. } => *wait,
            _ => None,
        };
        if asked.is_some_and(|wait| wait > LONGEST_PAUSE) {
            return Err(failure.clone());
        }
        let pause = asked.unwrap_or(PAUSE * 2u32.pow(attempt.min(8)));
        let asked = asked.is_some();
        info!("attempt {} failed ({}); again in {pause:?}", attempt + 1, failure.reason());
        debug!(asked, "the pause");
        self.clock.sleep(pause);
        Ok(())
    }

    /// Makes one request, and follows its redirects. The reply's status is 200 or 206.
    pub(crate) fn get(
        &self,
        address: &mut Address,
        bytes: Option<Bytes>,
    ) -> Result<Reply, Failure> {
        if let Some(storage) = address.storage.clone() {
            let reply = self.send(&storage, bytes, false)?;
            // A signed address expires; the hub gives a new one.
            match reply.status().as_u16() {
                400 | 401 | 403 | 404 | 410 => address.storage = None,
                _ => return self.checked(reply, address),
            }
        }
        let answer = |problem: &str| Failure::Answer {
            url: address.shown(),
            reason: format!("it redirects {problem}"),
        };
        let home: Uri = address.url.parse().map_err(|_| answer("from an address that is none"))?;
        let (mut at, mut at_home) = (home.clone(), true);
        for _ in 0..=REDIRECTS {
            let reply = self.send(&at, bytes, at_home)?;
            if !reply.status().is_redirection() {
                address.storage = (!at_home).then_some(at);
                return self.checked(reply, address);
            }
            let to = text(reply.headers(), header::LOCATION.as_str()).unwrap_or("");
            let next = joined(&at, to).ok_or_else(|| answer("to an address that is none"))?;
            if at.scheme_str() == Some("https") && next.scheme_str() != Some("https") {
                return Err(answer("to an address without encryption"));
            }
            // Once away the token stays away, even if a storage sends the request back.
            at_home = at_home && same_origin(&home, &next);
            at = next;
        }
        Err(answer("in a circle"))
    }

    /// Sends one request; with the token only to the hub itself.
    fn send(&self, to: &Uri, bytes: Option<Bytes>, token: bool) -> Result<Reply, Failure> {
        let mut request = self.agent.get(to);
        if let (true, Some(token)) = (token, &self.token) {
            request = request.header("authorization", format!("Bearer {}", token.secret()));
        }
        if let Some(Bytes(first, last)) = bytes {
            let last = last.map_or(String::new(), |last| last.to_string());
            request = request.header("range", format!("bytes={first}-{last}"));
        }
        let answer = request.call().map_err(|e| {
            let proxy = self.agent.config().proxy().filter(|proxy| !proxy.is_no_proxy(to));
            let through = proxy.map_or(String::new(), |proxy| {
                format!(", through the proxy {}:{}", proxy.host(), proxy.port())
            });
            Failure::Connection { url: shown(to), reason: format!("{e}{through}") }
        });
        if let Ok(reply) = &answer {
            debug!("GET {} from {bytes:?}: {}", shown(to), reply.status());
        }
        answer
    }

    /// Turns every status but success into a failure.
    fn checked(&self, reply: Reply, address: &Address) -> Result<Reply, Failure> {
        let status = reply.status();
        if status == StatusCode::OK || status == StatusCode::PARTIAL_CONTENT {
            return Ok(reply);
        }
        let code = text(reply.headers(), "x-error-code").unwrap_or("").to_owned();
        let wait = text(reply.headers(), header::RETRY_AFTER.as_str());
        let sent = text(reply.headers(), header::DATE.as_str());
        let wait = wait.and_then(|wait| pause_asked(wait, sent));
        let (url, status) = (address.shown(), status.as_u16());
        Err(Failure::Status { url, status, code, wait })
    }

    /// Explains the failure of a request about a model.
    pub(crate) fn explained(&self, failure: Failure, about: &About) -> HubError {
        let (id, page, token) = (about.id.clone(), self.page(about.id), self.token.is_some());
        let (url, status, code, wait) = match failure {
            Failure::Answer { url, reason } => return HubError::Answer { url, reason },
            Failure::Connection { url, reason } => {
                return HubError::Connection { url, reason, begun: about.begun };
            }
            Failure::Status { url, status, code, wait } => (url, status, code, wait),
        };
        match (status, code.as_str(), about.file) {
            (_, "GatedRepo", _) => HubError::Gated { id, page, token },
            (_, "RevisionNotFound", _) => {
                HubError::NoRevision { id, revision: about.revision.to_owned(), page }
            }
            (_, "RepoNotFound", _) => HubError::NoModel { id, page },
            (404, _, Some(file)) => HubError::NoFile { id, file: file.to_owned(), page },
            (404, ..) => HubError::NoModel { id, page },
            // Without a token the hub does not tell whether a model is private or missing.
            (401, _, _) if !token => HubError::NoModel { id, page },
            (401 | 403, ..) => HubError::Refused { id, status, page, token },
            (429, ..) => HubError::TooMany { wait, begun: about.begun },
            _ => HubError::Status { url, status, begun: about.begun },
        }
    }
}

/// The subject of a request.
pub(crate) struct About<'a> {
    pub(crate) id: &'a ModelId,
    pub(crate) revision: &'a str,
    pub(crate) file: Option<&'a str>,
    /// True if it is a part of a download that can be continued.
    pub(crate) begun: bool,
}

impl<'a> About<'a> {
    /// A file of a listing.
    pub(crate) fn of(listing: &'a Listing, file: &'a HubFile, begun: bool) -> About<'a> {
        About { id: &listing.id, revision: &listing.commit, file: Some(&file.name), begun }
    }
}

/// Failure of one request.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    Status { url: String, status: u16, code: String, wait: Option<Duration> },
    Connection { url: String, reason: String },
    Answer { url: String, reason: String },
}

impl Failure {
    /// The reason in a few words, without an address.
    fn reason(&self) -> String {
        match self {
            Failure::Status { status, .. } => format!("status {status}"),
            Failure::Connection { reason, .. } | Failure::Answer { reason, .. } => reason.clone(),
        }
    }

    /// True if the same request may succeed later.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Failure::Status { status, .. } => matches!(status, 408 | 429 | 500 | 502 | 503 | 504),
            Failure::Connection { .. } => true,
            Failure::Answer { .. } => false,
        }
    }
}

impl Address {
    /// The address for messages.
    pub(crate) fn shown(&self) -> String {
        let whole = || self.url.split('?').next().unwrap_or("").to_owned();
        self.storage.as_ref().map_or_else(whole, shown)
    }
}

/// An address without its query, which may hold a signature.
fn shown(uri: &Uri) -> String {
    let host = uri.host().unwrap_or("");
    let port = uri.port().map_or(String::new(), |port| format!(":{port}"));
    format!("{}://{host}{port}{}", uri.scheme_str().unwrap_or("http"), uri.path())
}

/// A header's value, if it is text.
pub(crate) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The target of a redirect, which may be relative to the host.
fn joined(base: &Uri, location: &str) -> Option<Uri> {
    if location.starts_with('/') && !location.starts_with("//") {
        let whole = format!("{}://{}{location}", base.scheme_str()?, base.authority()?);
        return whole.parse().ok();
    }
    let uri: Uri = location.parse().ok()?;
    let web = matches!(uri.scheme_str(), Some("http" | "https")) && uri.authority().is_some();
    web.then_some(uri)
}

fn same_origin(a: &Uri, b: &Uri) -> bool {
    let origin = |uri: &Uri| {
        let scheme = uri.scheme_str().map(str::to_ascii_lowercase);
        let default = if scheme.as_deref() == Some("https") { 443 } else { 80 };
        let host = uri.host().map(str::to_ascii_lowercase);
        (scheme, host, uri.port_u16().unwrap_or(default))
    };
    origin(a) == origin(b)
}

/// The same proxy, but not for these hosts and those below them.
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

/// A path for a URL: everything but letters, digits, `-._~` and slashes is escaped.
pub(crate) fn escaped(path: &str) -> String {
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
