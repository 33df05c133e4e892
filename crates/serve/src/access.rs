//! Access control: API keys, hosts, and origins of web pages.

use std::hint::black_box;
use std::net::IpAddr;

use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderName, Uri};

use crate::ServerConfig;
use crate::cors;
use crate::failure::Failure;

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The owner of a request: the number of its API key, or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(pub(crate) u64);

/// Refuses requests without a key, from web pages of other origins, or addressed to a foreign host
/// name.
pub(crate) fn check(
    config: &ServerConfig,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<Owner, Failure> {
    if headers.get_all(HOST).iter().nth(1).is_some() {
        return Err(Failure::invalid("the header Host is there more than once; send it once"));
    }
    let host = match uri.authority() {
        // The host of an absolute address has precedence (RFC 9112, 3.2.2), without the user's
        // name.
        Some(authority) => authority.as_str().rsplit('@').next(),
        None => headers.get(HOST).and_then(|host| host.to_str().ok()),
    };
    let host = host.unwrap_or_default();
    let path = uri.path();
    // To a browser, requests of a foreign page can look harmless, so it sends them.
    if let Some(origin) = headers.get(ORIGIN)
        && cors::allowed(config, headers).is_none()
    {
        let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        if origin.is_none_or(|(_, from)| !from.eq_ignore_ascii_case(host)) {
            return Err(Failure::forbidden(
                "web pages from elsewhere are refused; start the server with --allowed-origin for this one",
            ));
        }
    }
    // A foreign page can also make its own host name resolve to this machine. It has no key.
    if config.keys.is_empty() && !is_ours(config, host) {
        return Err(Failure::forbidden(
            "the name in the address or the header Host is not one of this server; use its address, or start it with --allowed-host",
        ));
    }
    let open = is_public(path) || config.open_metrics && path == "/metrics";
    if config.keys.is_empty() || open {
        return Ok(Owner(0));
    }
    key(config, headers).ok_or_else(Failure::without_key)
}

/// True for the paths of probes, and for the page that asks for the key.
fn is_public(path: &str) -> bool {
    matches!(path, "/health" | "/v1/health" | "/" | "/page.css" | "/page.js")
}

/// The owner of a request's key. Takes the same time for all wrong keys of one length.
fn key(config: &ServerConfig, headers: &HeaderMap) -> Option<Owner> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
    let given = [bearer, headers.get(API_KEY).map(|value| value.as_bytes())];
    let mut owner = None;
    for given in given.into_iter().flatten() {
        for (number, key) in (1..).zip(&config.keys) {
            if same(key.as_bytes(), given) {
                owner = Some(Owner(number));
            }
        }
    }
    owner
}

/// The key after the word `Bearer`.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = value.split_at_checked("bearer ".len())?;
    if scheme.eq_ignore_ascii_case(b"bearer ") { Some(key.trim_ascii()) } else { None }
}

/// Compares two keys in a time that depends only on their lengths.
fn same(key: &[u8], given: &[u8]) -> bool {
    let differences = key.iter().zip(given).fold(0, |found, (a, b)| black_box(found | (a ^ b)));
    differences == 0 && key.len() == given.len()
}

/// True if the host name of a request belongs to this server.
fn is_ours(config: &ServerConfig, host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || config.hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::ServerLimits;

    fn config(keys: &[&str], hosts: &[&str]) -> ServerConfig {
        let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        ServerConfig {
            address: ([127, 0, 0, 1], 0).into(),
            models: Vec::new(),
            keys: owned(keys),
            hosts: owned(hosts),
            origins: owned(&["http://page.example:3000"]),
            open: false,
            open_metrics: false,
            limits: ServerLimits::default(),
            stop: Arc::new(|| false),
            log: Arc::new(|_| ()),
        }
    }

    fn status(config: &ServerConfig, headers: &[(&'static str, &str)]) -> u16 {
        status_of(config, "/v1/models", headers)
    }

    fn status_of(config: &ServerConfig, uri: &str, headers: &[(&'static str, &str)]) -> u16 {
        let headers = headers
            .iter()
            .map(|&(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
        let done = check(config, &uri.parse().unwrap(), &headers.collect());
        done.map_or_else(|failure| failure.status.as_u16(), |_| 200)
    }

    #[test]
    fn either_header_may_hold_the_key() {
        let config = config(&["secret", "other"], &[]);
        let cases = [
            (("authorization", "Bearer secret"), 200),
            (("authorization", "bearer  other "), 200),
            (("x-api-key", "secret"), 200),
            (("x-api-key", "secre"), 401),
            (("x-api-key", "secrets"), 401),
            (("x-api-key", ""), 401),
            (("authorization", "secret"), 401),
            (("authorization", "Basic secret"), 401),
        ];
        for (header, expected) in cases {
            assert_eq!(status(&config, &[("host", "any.example"), header]), expected, "{header:?}");
        }
        assert_eq!(status(&config, &[]), 401);
        assert!(check(&config, &Uri::from_static("/health"), &HeaderMap::new()).is_ok());
    }

    #[test]
    fn without_keys_only_names_of_this_server_are_served() {
        let config = config(&[], &["box.lan"]);
        let cases = [
            ("localhost:8080", 200),
            ("127.0.0.1:8080", 200),
            ("[::1]:8080", 200),
            ("192.168.1.7", 200),
            ("BOX.lan:80", 200),
            ("evil.example", 403),
            ("localhost.evil.example", 403),
            ("", 403),
        ];
        for (host, expected) in cases {
            assert_eq!(status(&config, &[("host", host)]), expected, "{host}");
        }
    }

    #[test]
    fn the_host_of_an_absolute_address_counts() {
        let config = config(&[], &[]);
        for (uri, expected) in [
            ("http://evil.example/v1/models", 403),
            ("http://evil.example:80/v1/models", 403),
            ("http://localhost@evil.example/v1/models", 403),
            ("http://localhost:8080/v1/models", 200),
            ("http://any@127.0.0.1/v1/models", 200),
        ] {
            assert_eq!(status_of(&config, uri, &[("host", "localhost")]), expected, "{uri}");
        }
        let host = [("host", "evil.example"), ("origin", "http://localhost:8080")];
        assert_eq!(status_of(&config, "http://localhost:8080/v1/models", &host), 200);
    }

    #[test]
    fn a_request_is_for_one_host() {
        let config = config(&["secret"], &[]);
        let mut headers = HeaderMap::new();
        for host in ["localhost", "evil.example"] {
            headers.append(HOST, host.parse().unwrap());
        }
        assert_eq!(
            check(&config, &Uri::from_static("/health"), &headers).unwrap_err().status.as_u16(),
            400
        );
    }

    #[test]
    fn pages_from_elsewhere_are_refused() {
        let config = config(&[], &[]);
        let cases = [
            ("http://localhost:8080", 200),
            ("http://localhost:3000", 403),
            ("https://evil.example", 403),
            ("http://page.example:3000", 200),
            ("http://PAGE.example:3000", 200),
            ("https://page.example:3000", 403),
            ("http://page.example", 403),
            ("null", 403),
        ];
        for (origin, expected) in cases {
            let headers = [("host", "localhost:8080"), ("origin", origin)];
            assert_eq!(status(&config, &headers), expected, "{origin}");
        }
    }
}
