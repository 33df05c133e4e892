//! Arguments of `sws launch`.

use std::ffi::OsString;

/// Start a program that works with a model, against a running `sws serve`.
///
/// Asks the server for its model, and starts the program with the settings that it needs. Nothing is
/// written: the program's own configuration stays as it is. A server whose context is too short for the
/// program's prompts (16,384 tokens for claude and codex, 8,192 for aider), or whose model has no chat
/// template, or cannot call tools where the program needs that, is refused.
#[derive(Debug, clap::Args)]
pub(crate) struct Launch {
    /// The program.
    #[arg(value_enum)]
    pub(crate) client: LaunchClient,
    /// Address of the server.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    pub(crate) url: String,
    /// Id of the model [default: the server's].
    #[arg(long, value_name = "ID")]
    pub(crate) name: Option<String>,
    /// Key of the server, if it has keys.
    #[arg(long, value_name = "KEY", env = "SWS_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Option<String>,
    /// Print the settings and the command instead of starting it.
    #[arg(long)]
    pub(crate) print: bool,
    /// Start the program even if the server's context is too short for it, or its model has no chat
    /// template or cannot call tools.
    #[arg(long)]
    pub(crate) force: bool,
    /// Arguments of the program, after --.
    #[arg(last = true, value_name = "ARGUMENTS")]
    pub(crate) rest: Vec<OsString>,
}

/// A program.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum LaunchClient {
    /// Claude Code.
    Claude,
    /// Codex.
    Codex,
    /// aider.
    Aider,
}
