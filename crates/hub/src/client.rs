//! Requests to the hub: redirects, and the meaning of its answers.

use std::io::Read;

use sws_format::Clock;
use ureq::http::{StatusCode, Uri, header};

use crate::http::{
    ATTEMPTS, ByteRange, Http, HttpFailure, HttpReply, escaped, joined, render, same_origin, text,
};
use crate::{Environment, HubError, HubFile, HubToken, Listing, ModelId};

/// Most redirects of one request.
const REDIRECTS: usize = 5;

/// A client of the hub.
#[derive(Clone, Debug)]
pub struct Client {
    http: Http,
    endpoint: String,
    token: Option<HubToken>,
}

/// A file on the hub, or on a storage to which the hub redirects. The storage's address is reused
/// until it expires.
#[derive(Clone, Debug)]
pub(crate) struct FileAddress {
    url: String,
    storage: Option<Uri>,
}

impl Client {
    /// A client with the settings of the environment.
    pub fn new(environment: &Environment) -> Result<Client, HubError> {
        Client::with_clock(environment, Clock::real())
    }

    /// Like [`new`](Self::new), with another clock for the pauses between attempts.
    pub fn with_clock(environment: &Environment, clock: Clock) -> Result<Client, HubError> {
        let proxy = environment.proxy.as_ref();
        let http = Http::new(proxy, environment.silence, clock)?;
        let endpoint = environment.endpoint.clone();
        let token = environment.token.clone();
        Ok(Client { http, endpoint, token })
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
    pub(crate) fn file(&self, id: &ModelId, commit: &str, name: &str) -> FileAddress {
        let url = format!("{}/{id}/resolve/{commit}/{}", self.endpoint, escaped(name));
        FileAddress { url, storage: None }
    }

    /// Requests JSON of at most `limit` bytes. Some failures are retried.
    pub(crate) fn json(
        &self,
        path: &str,
        limit: u64,
        may_pass: &dyn Fn(&HttpFailure) -> bool,
    ) -> Result<Vec<u8>, HttpFailure> {
        let mut address = FileAddress { url: format!("{}{path}", self.endpoint), storage: None };
        self.http.attempted_while(may_pass, ATTEMPTS, &mut |_| {
            let mut reply = self.get(&mut address, None)?;
            let mut bytes = Vec::new();
            let read = self.body(&mut reply).take(limit + 1).read_to_end(&mut bytes);
            let url = address.render();
            match read {
                Err(e) => Err(HttpFailure::Connection { url, reason: e.to_string() }),
                Ok(_) if bytes.len() as u64 > limit => {
                    Err(HttpFailure::Answer { url, reason: format!("more than {limit} bytes") })
                }
                Ok(_) => Ok(bytes),
            }
        })
    }

    /// Makes a request until it succeeds or fails permanently. `attempt` gets the number of the
    /// attempt.
    pub(crate) fn retried<T>(
        &self,
        request: &mut dyn FnMut(u32) -> Result<T, HttpFailure>,
    ) -> Result<T, HttpFailure> {
        self.http.attempted(ATTEMPTS, request)
    }

    /// The body of a reply.
    pub(crate) fn body<'a>(&self, reply: &'a mut HttpReply) -> impl Read + use<'a> {
        self.http.body(reply)
    }

    /// Waits before the next attempt: as long as the hub asks, or longer each time.
    pub(crate) fn pause(&self, attempt: u32, failure: &HttpFailure) -> Result<(), HttpFailure> {
        self.http.pause(attempt, failure)
    }

    /// Makes one request, and follows its redirects. The reply's status is 200 or 206.
    pub(crate) fn get(
        &self,
        address: &mut FileAddress,
        bytes: Option<ByteRange>,
    ) -> Result<HttpReply, HttpFailure> {
        if let Some(storage) = address.storage.clone() {
            let reply = self.send(&storage, bytes, false)?;
            // A signed address has expired. The hub provides a new one.
            match reply.status().as_u16() {
                400 | 401 | 403 | 404 | 410 => address.storage = None,
                _ => return self.checked(reply, address),
            }
        }
        let Ok(home) = address.url.parse::<Uri>() else {
            return Err(address.bad_redirect("from an address that is none"));
        };
        let mut at = home.clone();
        let mut at_home = true;
        for _ in 0..=REDIRECTS {
            let reply = self.send(&at, bytes, at_home)?;
            if !reply.status().is_redirection() {
                address.storage = (!at_home).then_some(at);
                return self.checked(reply, address);
            }
            let to = text(reply.headers(), header::LOCATION.as_str()).unwrap_or("");
            let Some(next) = joined(&at, to) else {
                return Err(address.bad_redirect("to an address that is none"));
            };
            if at.scheme_str() == Some("https") && next.scheme_str() != Some("https") {
                return Err(address.bad_redirect("to an address without encryption"));
            }
            // Once a redirect has left the hub, no token is sent any more, even if a storage
            // redirects back.
            at_home = at_home && same_origin(&home, &next);
            at = next;
        }
        Err(address.bad_redirect("in a circle"))
    }

    /// Sends one request. Only the hub itself gets the token.
    fn send(
        &self,
        to: &Uri,
        bytes: Option<ByteRange>,
        token: bool,
    ) -> Result<HttpReply, HttpFailure> {
        let headers = match &self.token {
            Some(own) if token => vec![("authorization", format!("Bearer {}", own.secret()))],
            _ => Vec::new(),
        };
        self.http.get(to, bytes, &headers)
    }

    /// Converts every status except success to a failure.
    fn checked(&self, reply: HttpReply, address: &FileAddress) -> Result<HttpReply, HttpFailure> {
        let status = reply.status();
        if status == StatusCode::OK || status == StatusCode::PARTIAL_CONTENT {
            return Ok(reply);
        }
        let code = text(reply.headers(), "x-error-code").unwrap_or("").to_owned();
        Err(HttpFailure::of_status(address.render(), &reply, code))
    }

    /// Explains the failure of a request about a model.
    pub(crate) fn explained(&self, failure: HttpFailure, about: &RequestSubject) -> HubError {
        let id = about.id.clone();
        let page = self.page(about.id);
        let token = self.token.is_some();
        let (url, status, code, wait) = match failure {
            HttpFailure::Answer { url, reason } | HttpFailure::Garbled { url, reason } => {
                return HubError::Answer { url, reason };
            }
            HttpFailure::Connection { url, reason } => {
                return HubError::Connection { url, reason, begun: about.begun };
            }
            HttpFailure::Status { url, status, code, wait } => (url, status, code, wait),
        };
        match (status, code.as_str(), about.file) {
            (_, "GatedRepo", _) => HubError::Gated { id, page, token },
            (_, "RevisionNotFound", _) => {
                HubError::NoRevision { id, revision: about.revision.to_owned(), page }
            }
            (_, "RepoNotFound", _) => HubError::NoModel { id, page },
            (404, _, Some(file)) => HubError::NoFile { id, file: file.to_owned(), page },
            (404, ..) => HubError::NoModel { id, page },
            // Without a token, the hub does not reveal whether a model is private or missing.
            (401, _, _) if !token => HubError::NoModel { id, page },
            (401 | 403, ..) => HubError::Refused { id, status, page, token },
            (429, ..) => HubError::TooMany { wait, begun: about.begun },
            _ => HubError::Status { url, status, begun: about.begun },
        }
    }
}

/// The subject of a request.
pub(crate) struct RequestSubject<'a> {
    pub(crate) id: &'a ModelId,
    pub(crate) revision: &'a str,
    pub(crate) file: Option<&'a str>,
    /// True if the request is part of a download that can be continued.
    pub(crate) begun: bool,
}

impl<'a> RequestSubject<'a> {
    /// A request about a file of a listing.
    pub(crate) fn of(listing: &'a Listing, file: &'a HubFile, begun: bool) -> RequestSubject<'a> {
        RequestSubject { id: &listing.id, revision: &listing.commit, file: Some(&file.name), begun }
    }
}

impl FileAddress {
    /// The address for messages.
    pub(crate) fn render(&self) -> String {
        match &self.storage {
            Some(storage) => render(storage),
            None => self.url.split('?').next().unwrap_or("").to_owned(),
        }
    }

    /// The failure for an invalid answer of this address.
    pub(crate) fn bad_answer(&self, reason: impl Into<String>) -> HttpFailure {
        HttpFailure::Answer { url: self.render(), reason: reason.into() }
    }

    fn bad_redirect(&self, problem: &str) -> HttpFailure {
        self.bad_answer(format!("it redirects {problem}"))
    }
}
