//! Arguments of the commands about the models on this machine.

use sws_hub::ModelName;

use super::models;

/// List the models on this machine.
///
/// Shows the shards that ids find, and the models in the Hugging Face cache: the smallest --ram that
/// works, and the smallest with which no token reads from disk.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
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
