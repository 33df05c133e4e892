//! Files at an address: requests, their signatures, and the meaning of answers.

use std::ffi::OsString;
use std::io::Read;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sws_format::{Clock, MANIFEST_FILE, MAX_MANIFEST_BYTES};
use sws_hub::ProxySetting;
use sws_hub::http::{
    ATTEMPTS, ByteRange, Http, HttpFailure, HttpReply, date, escaped, joined, render, text,
};
use tracing::info;
use ureq::http::{StatusCode, Uri, header};

use crate::address::check_private;
use crate::aws::Aws;
use crate::key::sha256;
use crate::sign::{self, SignedRequest};
use crate::{FarAddress, FarError};

/// Default time without a byte, or for 64 KiB of an answer, after which a connection is cut, and
/// the variable that overrides it.
const SILENCE: Duration = Duration::from_secs(30);
const SILENCE_VARIABLE: &str = "SWS_NETWORK_TIMEOUT";
const MAX_SILENCE: u64 = 86_400;
/// Most redirects of one request.
const REDIRECTS: usize = 5;
/// Maximum number of bytes read of an error's explanation.
const EXPLANATION: u64 = 16 << 10;
/// Maximum length of a server's reason in a message.
const LONGEST: usize = 100;
/// Prefix of the code of a failure that another region causes.
pub(crate) const REGION: &str = "region ";

/// The files at an address.
#[derive(Debug)]
pub struct FarOrigin {
    http: Http,
    pub(crate) address: FarAddress,
    /// Settings of S3; `None` for a web server.
    pub(crate) aws: Option<Aws>,
    /// The region of the bucket: that of the settings, until the server names another.
    region: Mutex<String>,
    /// Seconds by which the server's clock is ahead of the local one.
    skew: AtomicI64,
    /// Bytes of answers so far.
    received: AtomicU64,
}

impl FarOrigin {
    /// The files at an address, with the settings of this process.
    pub fn new(address: FarAddress) -> Result<FarOrigin, FarError> {
        FarOrigin::with(address, |name| std::env::var_os(name), Clock::real())
    }

    /// Like [`new`](Self::new), with the variables that `get` returns, and with another clock.
    pub fn with(
        address: FarAddress,
        get: impl Fn(&str) -> Option<OsString>,
        clock: Clock,
    ) -> Result<FarOrigin, FarError> {
        let aws = address.in_bucket("").map(|_| Aws::from(&get)).transpose()?;
        let endpoint = aws.as_ref().and_then(|aws| aws.endpoint.as_deref());
        let is_plain = endpoint.map_or(address.is_plain(), |url| url.starts_with("http:"));
        if is_plain {
            let shown = address.to_string();
            check_private(endpoint.unwrap_or(&shown), endpoint.unwrap_or(&shown))?;
        }
        let proxy = ProxySetting::from(&get, !is_plain)?;
        let http = Http::new(proxy.as_ref(), silence(&get)?, clock)?;
        let region = aws.as_ref().map_or(String::new(), |aws| aws.region.clone());
        let skew = AtomicI64::new(0);
        let received = AtomicU64::new(0);
        Ok(FarOrigin { http, address, aws, region: Mutex::new(region), skew, received })
    }

    /// The address.
    pub fn address(&self) -> &FarAddress {
        &self.address
    }

    pub(crate) fn http(&self) -> &Http {
        &self.http
    }

    /// Bytes of answers so far.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Reads a whole file of at most `limit` bytes, and returns it with its tag. `None` if the file
    /// still has this tag, by which the server identifies its contents.
    #[allow(clippy::type_complexity, reason = "bytes and tag")]
    pub(crate) fn read(
        &self,
        file: &str,
        limit: u64,
        tag: Option<&str>,
    ) -> Result<Option<(Vec<u8>, Option<String>)>, FarError> {
        self.read_within(ATTEMPTS, file, limit, tag)
    }

    /// Like [`read`](Self::read), with this number of attempts.
    #[allow(clippy::type_complexity, reason = "bytes and tag")]
    pub(crate) fn read_within(
        &self,
        attempts: u32,
        file: &str,
        limit: u64,
        tag: Option<&str>,
    ) -> Result<Option<(Vec<u8>, Option<String>)>, FarError> {
        let mut is_longer = false;
        let read = self.http.attempted(attempts, &mut |_| {
            let mut reply = self.get(file, None, tag)?;
            if reply.status() == StatusCode::NOT_MODIFIED {
                return Ok(None);
            }
            let url = self.render(file);
            let tag = text(reply.headers(), header::ETAG.as_str()).map(str::to_owned);
            let mut bytes = Vec::new();
            let body = self.http.body(&mut reply);
            let read = body.take(limit.saturating_add(1)).read_to_end(&mut bytes);
            self.count(bytes.len());
            match read {
                Err(e) => Err(HttpFailure::Connection { url, reason: e.to_string() }),
                Ok(_) if bytes.len() as u64 > limit => {
                    is_longer = true;
                    Err(HttpFailure::Answer { url, reason: format!("more than {limit} bytes") })
                }
                Ok(_) => Ok(Some((bytes, tag))),
            }
        });
        match read {
            Ok(read) => Ok(read),
            Err(_) if is_longer && file == MANIFEST_FILE && limit < MAX_MANIFEST_BYTES => {
                Err(FarError::LongManifest { address: self.address.to_string(), limit })
            }
            Err(failure) => Err(self.explained(failure, file)),
        }
    }

    /// Makes one request for a file or a range of it. The reply's status is 200 or 206, or 304 with
    /// a tag.
    pub(crate) fn get(
        &self,
        file: &str,
        bytes: Option<ByteRange>,
        tag: Option<&str>,
    ) -> Result<HttpReply, HttpFailure> {
        let range = bytes.map(ByteRange::header);
        let conditional = tag.map(|tag| ("if-none-match", tag.to_owned()));
        self.corrected(file, &mut |at| {
            let mut headers: Vec<_> = conditional.iter().cloned().collect();
            headers.extend(self.signed("GET", at, range.as_deref(), &sha256(b"")));
            let reply = self.http.get(at, bytes, &headers)?;
            match reply.status() {
                status if status.is_redirection() && status != StatusCode::NOT_MODIFIED => {
                    self.redirected(at, reply, bytes)
                }
                _ => Ok(reply),
            }
        })
    }

    /// Makes one request that uploads a file with this length and SHA-256.
    pub(crate) fn put<'b>(
        &self,
        file: &str,
        len: u64,
        hash: &str,
        mut body: impl FnMut() -> Result<Box<dyn Read + 'b>, HttpFailure>,
    ) -> Result<(), HttpFailure> {
        self.corrected(file, &mut |at| {
            let headers = self.signed("PUT", at, None, hash);
            self.http.put(at, &mut *body()?, len, &headers)
        })
        .map(drop)
    }

    /// Follows redirects on the web, where no credentials are sent.
    fn redirected(
        &self,
        from: &Uri,
        reply: HttpReply,
        bytes: Option<ByteRange>,
    ) -> Result<HttpReply, HttpFailure> {
        if self.aws.is_some() {
            return Ok(reply);
        }
        let mut at = from.clone();
        let mut reply = reply;
        for _ in 0..REDIRECTS {
            let to = text(reply.headers(), header::LOCATION.as_str()).unwrap_or("");
            let Some(next) = joined(&at, to) else {
                return Err(bad_redirect(&at, "to an address that is none"));
            };
            if at.scheme_str() == Some("https") && next.scheme_str() != Some("https") {
                return Err(bad_redirect(&at, "to an address without encryption"));
            }
            let url = next.to_string();
            if next.scheme_str() == Some("http") && check_private(&url, "").is_err() {
                let problem = "to one that is not encrypted, and not in a private network";
                return Err(bad_redirect(&at, problem));
            }
            reply = self.http.get(&next, bytes, &[])?;
            at = next;
            if !reply.status().is_redirection() {
                return Ok(reply);
            }
        }
        Err(bad_redirect(&at, "in a circle"))
    }

    /// Makes a request, and repeats it once if the answer shows that the clock or the region was
    /// wrong. Converts every status except success to a failure.
    fn corrected(
        &self,
        file: &str,
        request: &mut dyn FnMut(&Uri) -> Result<HttpReply, HttpFailure>,
    ) -> Result<HttpReply, HttpFailure> {
        let mut corrections = 2;
        loop {
            let at = self.at(file)?;
            let mut reply = request(&at)?;
            if reply.status().is_success() || reply.status() == StatusCode::NOT_MODIFIED {
                return Ok(reply);
            }
            let mut body = String::new();
            // An unreadable explanation counts as empty.
            let _ = self.http.body(&mut reply).take(EXPLANATION).read_to_string(&mut body);
            self.count(body.len());
            let mut code = reason(&body);
            let region = text(reply.headers(), "x-amz-bucket-region").map(str::to_owned);
            if self.aws.is_some() && corrections > 0 {
                corrections -= 1;
                if code == "RequestTimeTooSkewed" && self.learn_time(&reply) {
                    continue;
                }
                if let Some(region) = &region
                    && self.learn_region(region)
                {
                    continue;
                }
            }
            if let Some(region) = region.filter(|_| reply.status().is_redirection()) {
                code = format!("{REGION}{region}");
            }
            return Err(HttpFailure::of_status(self.render(file), &reply, code));
        }
    }

    /// Adopts the server's clock. False if that changes nothing.
    fn learn_time(&self, reply: &HttpReply) -> bool {
        let Some(theirs) = date(reply.headers()) else { return false };
        let skew = i64::try_from(theirs).unwrap_or(0) - self.http.clock().unix_seconds();
        info!("the clock of the storage is {skew} s ahead of ours");
        self.skew.swap(skew, Ordering::Relaxed) != skew
    }

    /// Adopts the region that the server names. False if it was used already.
    fn learn_region(&self, region: &str) -> bool {
        let good = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let mut known = self.region.lock().unwrap_or_else(PoisonError::into_inner);
        if *known == region || region.len() > 64 || !region.chars().all(good) {
            return false;
        }
        info!("the bucket is in the region {region}");
        region.clone_into(&mut known);
        true
    }

    fn region(&self) -> String {
        self.region.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The address of a file.
    pub(crate) fn at(&self, file: &str) -> Result<Uri, HttpFailure> {
        let url = match (self.address.on_web(file), self.address.in_bucket(file), &self.aws) {
            (Some(url), ..) => url,
            (None, Some((bucket, name)), Some(aws)) => {
                let name = escaped(&name);
                let region = self.region();
                match &aws.endpoint {
                    Some(endpoint) => format!("{endpoint}/{bucket}/{name}"),
                    // Certificates for all buckets do not cover names with dots.
                    None if bucket.contains('.') => {
                        format!("https://s3.{region}.amazonaws.com/{bucket}/{name}")
                    }
                    None => format!("https://{bucket}.s3.{region}.amazonaws.com/{name}"),
                }
            }
            _ => String::new(),
        };
        url.parse().map_err(|_| HttpFailure::Answer {
            url: self.render(file),
            reason: "it is no address".to_owned(),
        })
    }

    /// The headers that sign a request, if there are credentials.
    fn signed(
        &self,
        method: &'static str,
        at: &Uri,
        range: Option<&str>,
        body: &str,
    ) -> Vec<(&'static str, String)> {
        let credentials = self.aws.as_ref().and_then(|aws| aws.credentials.as_ref());
        let Some(credentials) = credentials else { return Vec::new() };
        let skew = self.skew.load(Ordering::Relaxed);
        let time = self.http.clock().unix_seconds().saturating_add(skew);
        let request = SignedRequest {
            method,
            host: at.authority().map_or("", |authority| authority.as_str()),
            path: at.path(),
            range,
            body,
            time: u64::try_from(time).unwrap_or(0),
        };
        sign::headers(&request, credentials, &self.region())
    }

    /// The address of a file for messages.
    pub(crate) fn render(&self, file: &str) -> String {
        format!("{}/{file}", self.address)
    }
}

/// The failure for a redirect from an address.
fn bad_redirect(from: &Uri, problem: &str) -> HttpFailure {
    HttpFailure::Answer { url: render(from), reason: format!("it redirects {problem}") }
}

/// The time after which a connection counts as silent.
fn silence(get: impl Fn(&str) -> Option<OsString>) -> Result<Duration, FarError> {
    let typed = get(SILENCE_VARIABLE).filter(|value| !value.is_empty());
    let Some(typed) = typed else { return Ok(SILENCE) };
    match typed.to_str().and_then(|text| text.trim().parse().ok()) {
        Some(seconds @ 1..=MAX_SILENCE) => Ok(Duration::from_secs(seconds)),
        _ => {
            let problem = "is not a whole number of seconds from 1 to 86400";
            Err(FarError::setting(SILENCE_VARIABLE, problem))
        }
    }
}

/// The reason in an answer of S3, `<Code>`. An expired signature has no code of its own, so a word
/// is added for it.
fn reason(body: &str) -> String {
    let code = element(body, "Code").unwrap_or("").chars();
    let code: String = code.filter(char::is_ascii_alphanumeric).take(LONGEST).collect();
    let message = element(body, "Message").unwrap_or("").to_ascii_lowercase();
    match code.is_empty() || code.contains("Expired") || !message.contains("expired") {
        true => code,
        false => format!("{code}, expired"),
    }
}

/// The text of the first element of XML with this name.
fn element<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    let (text, _) = rest.split_once('<')?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_have_addresses_by_region_or_endpoint() {
        let at = |address: &str, variables: &[(&str, &str)]| {
            let get = |name: &str| {
                let found = variables.iter().find(|(variable, _)| *variable == name);
                found.map(|(_, value)| OsString::from(value))
            };
            let origin =
                FarOrigin::with(address.parse().unwrap(), get, Clock::simulated()).unwrap();
            origin.at("x/y.z").unwrap().to_string()
        };
        let region = ("AWS_REGION", "eu-west-1");
        for (address, variables, expected) in [
            ("s3://mine/a+b", &[][..], "https://mine.s3.us-east-1.amazonaws.com/a%2Bb/x/y.z"),
            ("s3://mine", &[region], "https://mine.s3.eu-west-1.amazonaws.com/x/y.z"),
            ("s3://my.own/a", &[region], "https://s3.eu-west-1.amazonaws.com/my.own/a/x/y.z"),
            (
                "s3://mine/a",
                &[("AWS_ENDPOINT_URL", "http://127.0.0.1:9/")],
                "http://127.0.0.1:9/mine/a/x/y.z",
            ),
        ] {
            assert_eq!(at(address, variables), expected);
        }
    }

    #[test]
    fn reasons_are_found_and_cleaned() {
        let error = |code: &str, message: &str| {
            format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>")
        };
        for (body, expected) in [
            (error("NoSuchKey", "no"), "NoSuchKey"),
            (error("AccessDenied", "Request has expired"), "AccessDenied, expired"),
            (error("ExpiredToken", "The token has expired"), "ExpiredToken"),
            (error("a\u{1b}[1mb", ""), "a1mb"),
            ("<Code>".to_owned(), ""),
            (String::new(), ""),
        ] {
            assert_eq!(reason(&body), expected);
        }
    }
}
