//! Arguments of `sws serve`.

use std::net::IpAddr;
use std::path::PathBuf;

use sws_engine::RamBudget;

use super::model::amount;
use super::{ModelArgs, models};

/// Serve models to programs that speak the interfaces of OpenAI, Anthropic or Ollama.
///
/// Of several models one is loaded at a time, within the whole of --ram; a request for another one
/// waits until running texts have ended. NAME=MODEL names a model, and a directory stands for the
/// models in it.
///
/// Requests are batched; each gets exactly the output it would get alone. Listens on this
/// machine only, unless told otherwise; docs/serve.md has the endpoints. Ctrl-C or SIGTERM lets
/// running texts end; a second one ends the program.
#[derive(Debug, clap::Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Further models.
    #[arg(value_name = "MODEL", help_heading = None, add = models())]
    pub(crate) others: Vec<PathBuf>,
    /// Address to listen on. One that other machines reach needs a key, or --no-auth.
    #[arg(long, alias = "host", value_name = "IP", default_value = "127.0.0.1")]
    pub(crate) listen: IpAddr,
    /// Port to listen on; 0 for any free one.
    #[arg(long, value_name = "N", default_value_t = 8080)]
    pub(crate) port: u16,
    /// Id of the first model for clients [default: the id that was typed, or the name
    /// of its GGUF file or directory].
    #[arg(long, value_name = "ID")]
    pub(crate) name: Option<String>,
    /// Another id of it that clients may use, or `*` for any; can be given more than once.
    #[arg(long, value_name = "ID")]
    pub(crate) alias: Vec<String>,
    /// Maximum number of texts at a time. Each has memory for a whole context.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) parallel: u16,
    /// Maximum number of requests that wait. Others are refused.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub(crate) queue: u16,
    /// Seconds that a request may wait.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub(crate) queue_timeout: u32,
    /// Seconds that a text waits between tokens at most while others have their turns. Texts share
    /// passes or take turns, whichever costs less; with 0 they always share passes.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub(crate) max_gap: u32,
    /// Seconds for which the loaded model of several may begin texts while requests for another one
    /// wait.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub(crate) switch_after: u32,
    /// Maximum number of new tokens of a text [default: as many as the context has room for].
    #[arg(long, value_name = "N")]
    pub(crate) max_tokens: Option<usize>,
    /// Maximum size of a request [default: 2MiB, or 512KiB with a small --ram]. Seventeen
    /// times as much is set aside in --ram.
    #[arg(long, value_name = "SIZE", value_parser = body)]
    pub(crate) body: Option<usize>,
    /// Set memory aside for the probabilities of prompts: `echo` with `logprobs`, as lm-evaluation-harness
    /// needs it.
    #[arg(long)]
    pub(crate) prompt_logprobs: bool,
    /// API key, of which requests need one; can be given more than once.
    #[arg(long, value_name = "KEY", env = "SWS_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Vec<String>,
    /// File with an API key on each line.
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Listen beyond this machine without keys.
    #[arg(long, conflicts_with_all = ["api_key", "api_key_file"])]
    pub(crate) no_auth: bool,
    /// Show /metrics without a key: routers of Kubernetes send none.
    #[arg(long)]
    pub(crate) open_metrics: bool,
    /// Name by which clients may call a server without keys, besides localhost and addresses; can be
    /// given more than once.
    #[arg(long, value_name = "NAME")]
    pub(crate) allowed_host: Vec<String>,
    /// Origin of web pages that may call the server from elsewhere, as https://chat.example:8443; can be
    /// given more than once.
    #[arg(long, value_name = "ORIGIN", value_parser = origin)]
    pub(crate) allowed_origin: Vec<String>,
    /// Seconds for running texts to end when the program is asked to end.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(crate) drain: u32,
    /// Keep the prefix cache on disk, at most this much, for the next start: texts of clients, in a
    /// directory of this user alone. `sws rm MODEL` removes it.
    #[arg(long, value_name = "SIZE", value_parser = disk)]
    pub(crate) kv_disk: Option<u64>,
    /// Keep responses in memory, at most this much, so that requests of /v1/responses can continue
    /// them by `previous_response_id`.
    #[arg(long, value_name = "SIZE", value_parser = kept)]
    pub(crate) keep_responses: Option<usize>,
    /// Print no line for each request.
    #[arg(long)]
    pub(crate) quiet: bool,
}

/// Parses the size of a request.
fn body(word: &str) -> Result<usize, String> {
    const RANGE: std::ops::RangeInclusive<u64> = 1 << 10..=1 << 30;
    match amount(word)? {
        RamBudget::Bytes(bytes) if RANGE.contains(&bytes) => Ok(bytes as usize),
        _ => Err(format!("a request has 1KiB to 1GiB, not {word}")),
    }
}

/// Parses the size of the memory for responses.
fn kept(word: &str) -> Result<usize, String> {
    match amount(word)? {
        RamBudget::Bytes(bytes) if (64 << 10..=1 << 30).contains(&bytes) => Ok(bytes as usize),
        _ => Err(format!("responses have 64KiB to 1GiB, not {word}")),
    }
}

/// Parses what a browser calls the origin of a page.
fn origin(word: &str) -> Result<String, String> {
    let rest = word.strip_prefix("https://").or_else(|| word.strip_prefix("http://"));
    match rest {
        Some(rest) if !rest.is_empty() && rest.chars().all(is_place) => Ok(word.to_owned()),
        _ => Err(format!(
            "an origin is http:// or https://, a name, and a port if it has one, as https://chat.example:8443, not {word}"
        )),
    }
}

fn is_place(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-.:[]".contains(c)
}

/// Parses the size of a directory.
fn disk(word: &str) -> Result<u64, String> {
    match amount(word)? {
        RamBudget::Bytes(bytes) if bytes >= 1 << 20 => Ok(bytes),
        _ => Err(format!("the disk has at least 1MiB for the prefix cache, not {word}")),
    }
}
