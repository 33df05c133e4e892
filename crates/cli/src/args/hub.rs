//! Arguments of the commands about the models on this machine.

use std::path::PathBuf;

use sws_hub::{ModelId, ModelName};

use super::models;

/// List the models on this machine.
///
/// Shows the shards that ids find, and the models in the Hugging Face cache: the smallest --ram that
/// works, and the smallest with which no token reads from disk.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Also list the GGUF files in this directory; can be given more than once.
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Vec<PathBuf>,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Give a GGUF file on this disk a name.
///
/// The file stays where it is. `sws list` then shows the name, every command takes it for a model, and
/// `sws rm` forgets it.
#[derive(Debug, clap::Args)]
pub(crate) struct LinkArgs {
    /// The GGUF file; of several parts, the first.
    pub(crate) file: PathBuf,
    /// The name: NAME, or OWNER/NAME.
    pub(crate) name: ModelId,
}

/// Remove a model from this machine: its shards, its files in the Hugging Face cache, and what `sws serve
/// --kv-disk` keeps of its texts.
#[derive(Debug, clap::Args)]
pub(crate) struct Rm {
    /// Id of the model; with an encoding, as in OWNER/NAME:q4, only these shards, and with the tag of
    /// a GGUF file only that file.
    #[arg(add = models(), required_unless_present = "kv_disk")]
    pub(crate) model: Option<ModelName>,
    /// Remove only what `sws serve --kv-disk` keeps of texts; without a model, for all models.
    #[arg(long)]
    pub(crate) kv_disk: bool,
    /// Remove without a question.
    #[arg(long, short)]
    pub(crate) yes: bool,
}
