//! Addresses of shard directories.

use std::fmt;
use std::net::{IpAddr, ToSocketAddrs};
use std::str::FromStr;

use sws_hub::http::escaped;

use crate::FarError;

/// Longest address. Signatures have some hundred characters.
const LONGEST: usize = 8192;
/// Ending of an address that names the manifest itself.
const MANIFEST: &str = "/manifest.json";

/// The address of a shard directory: `https://host/path`, `http://host/path` within a private
/// network, or `s3://bucket/path`. It is displayed without its query, which may be a signature.
#[derive(Clone, PartialEq, Eq)]
pub struct FarAddress(AddressKind);

#[derive(Clone, PartialEq, Eq)]
enum AddressKind {
    /// A web server. The path is escaped, as the user typed it, and has no slash at its end.
    Web { base: String, query: Option<String> },
    /// A bucket, and the common prefix of the names in it, without leading and trailing slashes.
    Bucket { bucket: String, prefix: String },
}

impl FarAddress {
    /// The bucket and the name of a file in it; `None` for a web server.
    pub(crate) fn in_bucket(&self, file: &str) -> Option<(&str, String)> {
        match &self.0 {
            AddressKind::Web { .. } => None,
            AddressKind::Bucket { bucket, prefix } if prefix.is_empty() => {
                Some((bucket, file.to_owned()))
            }
            AddressKind::Bucket { bucket, prefix } => Some((bucket, format!("{prefix}/{file}"))),
        }
    }

    /// The address of a file on a web server, with the query; `None` for a bucket.
    pub(crate) fn on_web(&self, file: &str) -> Option<String> {
        let AddressKind::Web { base, query } = &self.0 else { return None };
        let file = escaped(file);
        match query {
            Some(query) => Some(format!("{base}/{file}?{query}")),
            None => Some(format!("{base}/{file}")),
        }
    }

    /// True for a web server without encryption.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(&self.0, AddressKind::Web { base, .. } if base.starts_with("http:"))
    }

    /// True if the address has a query, which may be a signature.
    pub(crate) fn has_query(&self) -> bool {
        matches!(&self.0, AddressKind::Web { query: Some(_), .. })
    }

    /// The last part of the path, which serves as the model's name.
    pub fn name(&self) -> &str {
        let path = match &self.0 {
            AddressKind::Web { base, .. } => base.split_once("://").map_or("", |(_, rest)| rest),
            AddressKind::Bucket { bucket, prefix } if prefix.is_empty() => bucket,
            AddressKind::Bucket { prefix, .. } => prefix,
        };
        path.rsplit('/').next().unwrap_or(path)
    }
}

/// Fails for an unencrypted address whose host is not in a private network. The manifest vouches
/// for all bytes, and comes from the same address.
pub(crate) fn check_private(url: &str, shown: &str) -> Result<(), FarError> {
    let rest = url.strip_prefix("http://").unwrap_or(url);
    let authority = rest.split(['/', '?']).next().unwrap_or("");
    let socket = match authority.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => authority.to_owned(),
        _ => format!("{authority}:80"),
    };
    // An unknown host name is refused later, when a connection is made.
    let mut found = socket.to_socket_addrs().into_iter().flatten();
    match found.all(|socket| is_private(socket.ip())) {
        true => Ok(()),
        false => Err(FarError::Address {
            shown: shown.to_owned(),
            problem: "is not encrypted, and not in a private network; give it with https://",
        }),
    }
}

fn is_private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            let shared = ip.octets()[0] == 100 && ip.octets()[1] & 0xc0 == 64;
            ip.is_loopback() || ip.is_private() || ip.is_link_local() || shared
        }
        IpAddr::V6(ip) => {
            ip.to_ipv4_mapped().is_some_and(|ip| is_private(ip.into()))
                || ip.is_loopback()
                || ip.is_unique_local()
                || ip.is_unicast_link_local()
        }
    }
}

impl FromStr for FarAddress {
    type Err = FarError;

    fn from_str(text: &str) -> Result<FarAddress, FarError> {
        let (address, query) = match text.split_once('?') {
            Some((address, query)) => (address, Some(query)),
            None => (text, None),
        };
        let wrong = |problem| FarError::Address { shown: render(address), problem };
        let plain = |c: char| c.is_ascii_graphic() && !"\"<>\\^`{|}#".contains(c);
        if text.len() > LONGEST {
            return Err(wrong("is too long for an address; check it"));
        }
        if !text.chars().all(plain) {
            return Err(wrong("has characters that no address has; escape them, as in %20"));
        }
        let scheme = address.find("://").map_or(0, |at| at + 3);
        let path = address[scheme..].trim_end_matches('/');
        let path = path.strip_suffix(MANIFEST).unwrap_or(path);
        let address = &address[..scheme + path.len()];
        if let Some(rest) = address.strip_prefix("s3://") {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            if query.is_some() {
                return Err(wrong(
                    "has a query, which s3:// has not; give the address with https://",
                ));
            }
            if !is_bucket(bucket) {
                return Err(wrong(
                    "has no name of a bucket, which is 3 to 63 small letters, digits, dots and hyphens; give it as s3://bucket/path",
                ));
            }
            if prefix.split('/').any(|part| part.is_empty() && !prefix.is_empty()) {
                return Err(wrong("has an empty name in its path; give it as s3://bucket/path"));
            }
            let bucket = bucket.to_owned();
            let prefix = prefix.to_owned();
            return Ok(FarAddress(AddressKind::Bucket { bucket, prefix }));
        }
        let rest = address.strip_prefix("https://").or_else(|| address.strip_prefix("http://"));
        let Some(rest) = rest else {
            return Err(wrong("is not an address of shards; give one with https:// or s3://"));
        };
        let authority = rest.split('/').next().unwrap_or("");
        if authority.contains('@') {
            return Err(wrong("has a name or a password in it; leave them out"));
        }
        if !has_host(address) {
            return Err(wrong("has no host; give it as https://host/path"));
        }
        if !has_good_port(authority) {
            return Err(wrong("has a port that is none; ports are 1 to 65535"));
        }
        let query = query.filter(|query| !query.is_empty()).map(str::to_owned);
        Ok(FarAddress(AddressKind::Web { base: address.to_owned(), query }))
    }
}

/// The beginning of an unusable address, without a possible password.
fn render(address: &str) -> String {
    let address = address.split('#').next().unwrap_or("");
    // The part before the last @ may be a password, wherever it is.
    let (scheme, rest) = match address.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), address),
    };
    let rest = rest.rsplit('@').next().unwrap_or("");
    format!("{scheme}{rest}").chars().filter(|c| !c.is_control()).take(200).collect()
}

/// True for an address that names a host.
pub(crate) fn has_host(address: &str) -> bool {
    let uri = address.parse::<ureq::http::Uri>().ok();
    uri.and_then(|uri| uri.host().map(str::len)).is_some_and(|len| len > 0)
}

/// False if the host is followed by something that is not a port. The parser of addresses ignores
/// it, so that another server would be contacted.
pub(crate) fn has_good_port(authority: &str) -> bool {
    let behind = authority.rsplit_once(']').map_or(authority, |(_, behind)| behind);
    let port = behind.split_once(':').map(|(_, port)| port.parse::<u16>());
    port.is_none_or(|port| port.is_ok_and(|port| port > 0))
}

/// True for a valid name of an S3 bucket.
fn is_bucket(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    let end = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (3..=63).contains(&name.len())
        && name.chars().all(inner)
        && name.starts_with(end)
        && name.ends_with(end)
        && !name.contains("..")
}

impl fmt::Display for FarAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            AddressKind::Web { base, .. } => f.write_str(base),
            AddressKind::Bucket { bucket, prefix } if prefix.is_empty() => {
                write!(f, "s3://{bucket}")
            }
            AddressKind::Bucket { bucket, prefix } => write!(f, "s3://{bucket}/{prefix}"),
        }
    }
}

impl fmt::Debug for FarAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_addresses() {
        for (typed, shown, name, file) in [
            (
                "https://h.example/a%20b",
                "https://h.example/a%20b",
                "a%20b",
                Some("https://h.example/a%20b/x/y%20.z"),
            ),
            (
                "https://h.example:8/a/?sig=q/r",
                "https://h.example:8/a",
                "a",
                Some("https://h.example:8/a/x/y%20.z?sig=q/r"),
            ),
            (
                "https://h.example/a/manifest.json",
                "https://h.example/a",
                "a",
                Some("https://h.example/a/x/y%20.z"),
            ),
            (
                "http://127.0.0.1:9",
                "http://127.0.0.1:9",
                "127.0.0.1:9",
                Some("http://127.0.0.1:9/x/y%20.z"),
            ),
            ("s3://my-bucket/a/b/", "s3://my-bucket/a/b", "b", None),
            ("s3://my-bucket", "s3://my-bucket", "my-bucket", None),
        ] {
            let address: FarAddress = typed.parse().unwrap();
            assert_eq!((address.to_string().as_str(), address.name()), (shown, name));
            assert_eq!(address.on_web("x/y .z").as_deref(), file, "{typed}");
            assert_eq!(address.in_bucket("x").is_some(), file.is_none());
        }
        let address: FarAddress = "s3://my-bucket/a".parse().unwrap();
        assert_eq!(address.in_bucket("b/c"), Some(("my-bucket", "a/b/c".to_owned())));
    }

    #[test]
    fn bad_addresses_are_refused_without_their_secrets() {
        for (typed, word) in [
            ("ftp://h/a", "https://"),
            ("https://", "no host"),
            ("https:///a", "no host"),
            ("https://me:secret@h/a", "password"),
            ("http://h:99999/a?secret", "port"),
            ("http://[::1]:x/a?secret", "port"),
            ("https://h:/a", "port"),
            ("https://h/a b?secret", "escape"),
            ("https://h/a#secret", "escape"),
            ("s3://", "bucket"),
            ("s3://No_Bucket/a", "bucket"),
            ("s3://ab/a", "bucket"),
            ("s3://a..b/a", "bucket"),
            ("s3://bucket//a", "empty name"),
            ("s3://bucket/a?secret", "query"),
        ] {
            let error = typed.parse::<FarAddress>().unwrap_err().to_string();
            assert!(error.contains(word) && !error.contains("secret"), "{typed}: {error}");
        }
        assert!("s3://b".repeat(9000).parse::<FarAddress>().is_err());
    }

    #[test]
    fn networks_without_encryption_are_private() {
        for (url, private) in [
            ("http://127.0.0.1:9000/a", true),
            ("http://[::1]:9000/a", true),
            ("http://10.1.2.3/a", true),
            ("http://192.168.0.1/a", true),
            ("http://100.64.0.1/a", true),
            ("http://8.8.8.8/a", false),
            ("http://[2001:4860:4860::8888]/a", false),
        ] {
            assert_eq!(check_private(url, url).is_ok(), private, "{url}");
        }
    }
}
