//! Arguments of `sws top`.

/// Watch a running `sws serve` on the terminal.
///
/// Draws what the server does, ten times a second at most: experts, disk, computing, memory, requests,
/// and a text in the colours of its cost. `q` or Ctrl-C ends it, and the server goes on. With keys, it
/// shows the requests of its own key. docs/serve.md has the same as a page, and as events.
#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    /// Address of the server.
    #[arg(value_name = "URL", default_value = "http://127.0.0.1:8080")]
    pub(crate) url: String,
    /// Key of the server, if it has keys.
    #[arg(long, value_name = "KEY", env = "SWS_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Option<String>,
}
