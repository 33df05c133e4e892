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
    /// Names of the models. The first model answers requests that name none.
    pub models: Vec<ModelNames>,
    /// API keys, one of which every request needs. Without any keys, requests need none.
    pub keys: Vec<String>,
    /// Host names of a server without keys, besides `localhost` and addresses.
    pub hosts: Vec<String>,
    /// Allowed origins of web pages on other sites, such as `https://chat.example:8443`.
    pub origins: Vec<String>,
    /// True to listen beyond this machine without keys.
    pub open: bool,
    /// True to show the counters without a key.
    pub open_metrics: bool,
    /// Limits of requests.
    pub limits: ServerLimits,
    /// Returns true once the server should end.
    pub stop: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Receives the lines of the log.
    pub log: Arc<dyn Fn(&str) + Send + Sync>,
}

/// Names of a model.
#[derive(Clone, Debug, Default)]
pub struct ModelNames {
    /// Id of the model for clients.
    pub id: String,
    /// Other ids that clients may use; `*` for any.
    pub aliases: Vec<String>,
}

/// Limits of requests.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    /// Maximum bytes of a request.
    pub body: usize,
    /// Maximum number of messages in a conversation.
    pub messages: usize,
    /// Maximum number of tools in a request.
    pub tools: usize,
    /// Maximum number of stop strings in a request.
    pub stops: usize,
    /// Maximum number of texts of a request: its prompts times `n`.
    pub texts: usize,
    /// Maximum number of new tokens of a text. `None` for as many as the context has room for.
    pub new_tokens: Option<usize>,
    /// Maximum number of connections at a time.
    pub connections: usize,
    /// Maximum number of waiting requests.
    pub queue: usize,
    /// Maximum time that a request waits in the queue.
    pub queue_time: Duration,
    /// Time for which the loaded model of several may begin texts while requests for another one
    /// wait.
    pub switch_after: Duration,
    /// Maximum time between two tokens of a text while other texts take their turns.
    pub gap: Duration,
    /// Maximum time until the header of a request has arrived.
    pub header_time: Duration,
    /// Span of time over which the rate of a request's body is measured:
    /// [`ServerLimits::body_rate`].
    pub body_time: Duration,
    /// Minimum rate of a body, in bytes per second over each such span.
    pub body_rate: usize,
    /// Maximum time for which a client takes nothing of its response, once the system holds no more for
    /// it.
    pub write_time: Duration,
    /// Time between two keep-alive signals of a stream.
    pub heartbeat: Duration,
    /// Time after which a response that is not streamed begins with blank lines, if the answer is
    /// not complete.
    pub patience: Duration,
    /// Time that running requests have when the server ends.
    pub drain: Duration,
    /// Maximum bytes of responses that are kept for later requests.
    pub kept_responses: usize,
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
            switch_after: Duration::from_secs(10),
            gap: Duration::from_secs(10),
            header_time: Duration::from_secs(30),
            body_time: Duration::from_secs(10),
            body_rate: 1 << 10,
            write_time: Duration::from_secs(60),
            heartbeat: Duration::from_secs(10),
            patience: Duration::from_secs(30),
            drain: Duration::from_secs(30),
            kept_responses: 0,
        }
    }
}

impl ServerLimits {
    /// Maximum heap bytes of all requests together, without their running texts and [structured
    /// output](crate::structured): bodies that are being read, as text and as values; connections;
    /// texts that wait, and those of the request that is being prepared; certificates; token ids of
    /// kept prefixes; and kept responses.
    pub fn heap(&self) -> u64 {
        let connections = self.connections + TOLD;
        VALUES * self.body as u64
            + body_bytes(self.body, connections) as u64
            + connections as u64 * CONNECTION
            + 2 * self.waiting() as u64
            + CERTIFICATE * certificate_bytes(self.body) as u64
            + Batch::TOKENS
            // Those that are kept, and a copy of the one that a request continues.
            + 2 * self.kept_responses as u64
    }

    /// Maximum bytes of the texts of all waiting requests, and of those of one request: tokens, stop strings
    /// and biases.
    pub(crate) fn waiting(&self) -> usize {
        self.body
    }

    /// Minimum number of bytes that arrive in each span of [`ServerLimits::body_time`].
    pub(crate) fn least_bytes(&self) -> usize {
        let least = self.body_rate as u128 * self.body_time.as_millis() / 1000;
        usize::try_from(least).unwrap_or(usize::MAX).max(1)
    }
}

/// Maximum number of bytes that one byte of a request expands to: a list of numbers, as values of a
/// template.
const VALUES: u64 = 16;
/// Maximum number of copies of a certificate in memory: as steps, sealed, as values and as text.
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
    /// Models without names, or names without models.
    #[error("there are {models} models and {names} names for them; name each model once")]
    Names { models: usize, names: usize },
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

    /// Id of the model that answers requests that name none.
    pub(crate) fn first(&self) -> &str {
        self.models.first().map_or("", |names| &names.id)
    }
}

impl ModelNames {
    /// True if clients may use this id for the model.
    pub fn contains(&self, asked: &str) -> bool {
        self.has(asked) || self.aliases.iter().any(|alias| alias == "*")
    }

    /// True if one of the names is this id.
    pub fn has(&self, asked: &str) -> bool {
        let last = self.id.rsplit('/').next().unwrap_or(&self.id);
        // Clients may name the file itself. Clients of Ollama add a tag.
        let stem = asked.strip_suffix(".gguf").or(asked.strip_suffix(":latest")).unwrap_or(asked);
        let known = |name: &str| name == asked || name == stem;
        known(&self.id) || known(last) || self.aliases.iter().any(|alias| known(alias))
    }
}

impl fmt::Debug for ServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keys are secret, so they are left out.
        let ServerConfig { address, models, limits, .. } = self;
        let mut debug = f.debug_struct("Config");
        debug.field("address", address).field("models", models).field("limits", limits);
        debug.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_named_by_its_id_and_its_file() {
        let names =
            |id: &str| ModelNames { id: id.to_owned(), aliases: vec!["m-q4_k_m".to_owned()] };
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
            assert_eq!(names(name).contains(asked), is_named, "{name}: {asked}");
        }
    }
}
