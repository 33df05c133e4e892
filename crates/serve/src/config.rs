//! Settings of a server.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sws::Batch;

use crate::sizes::{TOLD, body_bytes, certificate_bytes};

/// Settings of a server.
pub struct ServerConfig {
    /// Address to listen on; port 0 for any free one.
    pub address: SocketAddr,
    /// Id of the model for clients.
    pub name: String,
    /// Other ids that clients may use; `*` for any.
    pub aliases: Vec<String>,
    /// API keys, of which requests need one. Without any, requests need none.
    pub keys: Vec<String>,
    /// Names by which clients may call a server without keys, besides `localhost` and addresses.
    pub hosts: Vec<String>,
    /// Origins of web pages from elsewhere that may call, as `https://chat.example:8443`.
    pub origins: Vec<String>,
    /// True to listen beyond this machine without keys.
    pub open: bool,
    /// True to show the counters without a key.
    pub open_metrics: bool,
    /// Limits of requests.
    pub limits: ServerLimits,
    /// Returns true once the server should end.
    pub stop: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Takes the lines of the log.
    pub log: Arc<dyn Fn(&str) + Send + Sync>,
}

/// Limits of requests.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    /// Bytes of a request.
    pub body: usize,
    /// Messages of a conversation.
    pub messages: usize,
    /// Tools of a request.
    pub tools: usize,
    /// Stop strings of a request.
    pub stops: usize,
    /// Texts of a request: its prompts times `n`.
    pub texts: usize,
    /// New tokens of a text. `None` for as many as the context has room for.
    pub new_tokens: Option<usize>,
    /// Connections at a time.
    pub connections: usize,
    /// Requests that wait for others.
    pub queue: usize,
    /// Time that a request may wait for others.
    pub queue_time: Duration,
    /// Time between two tokens of a text for which others may have their turns.
    pub gap: Duration,
    /// Time for the header of a request.
    pub header_time: Duration,
    /// Span of time in which a part of a request's body has to arrive: [`ServerLimits::body_rate`].
    pub body_time: Duration,
    /// Bytes of a body that have to arrive in a second, over each such span.
    pub body_rate: usize,
    /// Time between two signs of life.
    pub heartbeat: Duration,
    /// Time without an answer after which a response that is not streamed begins, with blank lines.
    pub patience: Duration,
    /// Time for running requests when the server ends.
    pub drain: Duration,
}

impl Default for ServerLimits {
    fn default() -> ServerLimits {
        ServerLimits {
            body: 2 << 20,
            messages: 4096,
            tools: 512,
            stops: 16,
            texts: 128,
            new_tokens: None,
            connections: 256,
            queue: 32,
            queue_time: Duration::from_secs(300),
            gap: Duration::from_secs(10),
            header_time: Duration::from_secs(30),
            body_time: Duration::from_secs(10),
            body_rate: 1 << 10,
            heartbeat: Duration::from_secs(10),
            patience: Duration::from_secs(30),
            drain: Duration::from_secs(30),
        }
    }
}

impl ServerLimits {
    /// Bytes on the heap that requests may take together, besides their texts and [structured
    /// output](crate::structured): the request or those that are being read, as text and as values; the
    /// connections; certificates; tokens of texts that are kept.
    pub fn heap(&self) -> u64 {
        let connections = self.connections + TOLD;
        VALUES * self.body as u64
            + body_bytes(self.body, connections) as u64
            + connections as u64 * CONNECTION
            + CERTIFICATE * certificate_bytes(self.body) as u64
            + Batch::TOKENS
    }

    /// Bytes of a body that have to arrive in a span of [`ServerLimits::body_time`].
    pub(crate) fn least_bytes(&self) -> usize {
        let least = self.body_rate as u128 * self.body_time.as_millis() / 1000;
        usize::try_from(least).unwrap_or(usize::MAX).max(1)
    }
}

/// Bytes that a byte of a request becomes at most: a list of numbers as values of a template.
const VALUES: u64 = 16;
/// Times that a certificate is in memory at most: as steps, sealed, as values and as text.
const CERTIFICATE: u64 = 8;
/// Bytes of a connection's buffers and state.
const CONNECTION: u64 = 32 << 10;

/// Reasons why a server cannot start, or ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ServeError {
    /// An address beyond this machine, without keys.
    #[error(
        "{0} can be reached from other machines; give --api-key or --api-key-file, listen on 127.0.0.1, or say --no-auth"
    )]
    NoKeys(SocketAddr),
    /// An address that cannot be listened on.
    #[error("{address} cannot be listened on: {cause}; choose another address or --port")]
    Listen { address: SocketAddr, cause: std::io::Error },
    /// The thread for connections cannot be started.
    #[error("no thread could be started for connections ({0}); close other programs")]
    Thread(std::io::Error),
    /// A failure of the model.
    #[error(transparent)]
    Model(#[from] sws::Error),
    /// The thread for connections ended early.
    #[error("the thread for connections ended early; this is a bug, please report it")]
    Ended,
}

impl ServerConfig {
    /// Refuses settings that would let strangers in.
    pub(crate) fn check(&self) -> Result<(), ServeError> {
        let safe = self.address.ip().is_loopback() || !self.keys.is_empty() || self.open;
        if safe { Ok(()) } else { Err(ServeError::NoKeys(self.address)) }
    }

    /// True if clients may call the model by this id.
    pub(crate) fn is_named(&self, asked: &str) -> bool {
        let last = self.name.rsplit('/').next().unwrap_or(&self.name);
        // Clients may ask for the file itself.
        let stem = asked.strip_suffix(".gguf").unwrap_or(asked);
        let known = |name: &str| name == asked || name == stem;
        known(&self.name)
            || known(last)
            || self.aliases.iter().any(|alias| known(alias) || alias == "*")
    }
}

impl fmt::Debug for ServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keys are secrets.
        let ServerConfig { address, name, limits, .. } = self;
        let mut debug = f.debug_struct("Config");
        debug.field("address", address).field("name", name).field("limits", limits);
        debug.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_named_by_its_id_and_its_file() {
        let config = |name: &str| ServerConfig {
            address: ([127, 0, 0, 1], 0).into(),
            name: name.to_owned(),
            aliases: vec!["m-q4_k_m".to_owned()],
            keys: Vec::new(),
            hosts: Vec::new(),
            origins: Vec::new(),
            open: false,
            open_metrics: false,
            limits: ServerLimits::default(),
            stop: Arc::new(|| false),
            log: Arc::new(|_| ()),
        };
        for (name, asked, is_named) in [
            ("m-q4_k_m", "m-q4_k_m", true),
            ("m-q4_k_m", "m-q4_k_m.gguf", true),
            ("m-q4_k_m", "m-q4_k_m.gguf.gguf", false),
            ("m-q4_k_m", "models", false),
            ("m-q4_k_m", "m", false),
            ("m-q4_k_m", "", false),
            ("Owner/M-GGUF:Q4_K_M", "Owner/M-GGUF:Q4_K_M", true),
            ("Owner/M-GGUF:Q4_K_M", "M-GGUF:Q4_K_M", true),
            ("Owner/M-GGUF:Q4_K_M", "m-q4_k_m.gguf", true),
            ("mine.gguf", "mine.gguf", true),
            ("mine.gguf", "mine", false),
        ] {
            assert_eq!(config(name).is_named(asked), is_named, "{name}: {asked}");
        }
    }
}
