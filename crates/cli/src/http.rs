//! Requests to a running `sws serve`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::bail;

use crate::terminal::without_controls;

/// Time for a server on a network to answer; it answers before its model is loaded.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most bytes of the header of a response, and of the words of a refusal.
const HEAD: u64 = 64 << 10;

/// A server's address, without TLS.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ServerAddress {
    host: String,
    base: String,
}

impl ServerAddress {
    /// Of an address behind `http://`, with or without a port and a path.
    pub(crate) fn of(place: &str) -> ServerAddress {
        let (host, path) = place.split_once('/').unwrap_or((place, ""));
        let path = path.trim_end_matches('/');
        let base = if path.is_empty() { String::new() } else { format!("/{path}") };
        ServerAddress { host: host.to_owned(), base }
    }

    /// Asks for something. Returns the body of an answer with status 200.
    pub(crate) fn get(&self, path: &str, key: &str) -> anyhow::Result<Body> {
        let ServerAddress { host, base } = self;
        let address = match host.rsplit_once(':') {
            Some((_, port)) if port.parse::<u16>().is_ok() => host.clone(),
            _ => format!("{host}:80"),
        };
        let Some(address) = address.to_socket_addrs()?.next() else {
            bail!("{host} has no address");
        };
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        // Bodies of version 1.0 end with the connection, and have no parts.
        let request = format!(
            "GET {base}{path} HTTP/1.0\r\nhost: {host}\r\nauthorization: Bearer {key}\r\n\r\n"
        );
        stream.write_all(request.as_bytes())?;
        let mut reader = BufReader::new(stream);
        let status = head(&mut reader)?;
        match status.as_deref() {
            Some("200") => Ok(Body(reader)),
            Some("401" | "403") => bail!("the key is wrong; set SWS_API_KEY"),
            Some(status) => match refusal(&mut reader) {
                Some(words) => bail!("it answers with status {}: {words}", status.escape_debug()),
                None => bail!("it answers with status {}", status.escape_debug()),
            },
            None => bail!("it speaks no HTTP"),
        }
    }
}

/// Reads the header of a response, and returns its status.
fn head(reader: &mut impl BufRead) -> anyhow::Result<Option<String>> {
    let mut head = reader.take(HEAD);
    let mut status = None;
    let mut line = Vec::new();
    loop {
        line.clear();
        head.read_until(b'\n', &mut line)?;
        let text = String::from_utf8_lossy(&line);
        if status.is_none() {
            if !text.starts_with("HTTP/") {
                return Ok(None);
            }
            status = text.split_whitespace().nth(1).map(str::to_owned);
        }
        if text.trim_end().is_empty() || status.is_none() {
            return Ok(status);
        }
    }
}

/// The message of a refusal, if it has one.
fn refusal(reader: &mut impl Read) -> Option<String> {
    let mut body = Vec::new();
    reader.take(HEAD).read_to_end(&mut body).ok()?;
    let body: serde_json::Value = serde_json::from_slice(&body).ok()?;
    let words = body["error"]["message"].as_str()?;
    Some(without_controls(words, 300))
}

/// The body of a response.
#[derive(Debug)]
pub(crate) struct Body(BufReader<TcpStream>);

impl Body {
    /// All of it, as JSON of at most so many bytes.
    pub(crate) fn json(self, most: u64) -> anyhow::Result<serde_json::Value> {
        Ok(serde_json::from_reader(self.0.take(most))?)
    }

    /// Waits longer for more of it.
    pub(crate) fn wait_up_to(&self, time: Duration) -> std::io::Result<()> {
        self.0.get_ref().set_read_timeout(Some(time))
    }

    /// The next line, of at most so many bytes; `None` at the end.
    pub(crate) fn line(&mut self, most: usize) -> anyhow::Result<Option<String>> {
        let mut line = Vec::new();
        self.0.by_ref().take(most as u64).read_until(b'\n', &mut line)?;
        if line.len() >= most {
            bail!("it sends lines of more than {most} bytes");
        }
        if !line.ends_with(b"\n") {
            return Ok(None);
        }
        Ok(Some(String::from_utf8_lossy(&line).trim_end().to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_proxies_stay() {
        let address =
            |host: &str, base: &str| ServerAddress { host: host.into(), base: base.into() };
        for (place, expected) in [
            ("127.0.0.1:8080", address("127.0.0.1:8080", "")),
            ("box/", address("box", "")),
            ("box:81/models/one/", address("box:81", "/models/one")),
        ] {
            assert_eq!(ServerAddress::of(place), expected);
        }
    }

    #[test]
    fn headers_end_with_an_empty_line() {
        for (sent, status) in [
            ("HTTP/1.1 200 OK\r\na: b\r\n\r\nbody", Some("200")),
            ("HTTP/1.1 404 Not Found\n\n", Some("404")),
            ("HTTP/1.1", None),
            ("SSH-2.0", None),
            ("", None),
        ] {
            assert_eq!(head(&mut sent.as_bytes()).unwrap().as_deref(), status, "{sent}");
        }
    }
}
