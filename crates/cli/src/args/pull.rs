//! Arguments of `sws pull`.

use std::path::PathBuf;

use sws_engine::RamBudget;
use sws_hub::ModelName;
use sws_kernels::Encoding;

/// Files to download at a time by default.
const FILES: u16 = 4;

/// Download a model from the Hugging Face hub, straight into shards.
///
/// Weight files come one after the other, each is converted and removed, so that the disk needs room
/// for the shards and two files: an expert may begin in one and end in the next. The shards are found by
/// the id afterwards. The command can be interrupted at any time; running it again verifies the shards that
/// are there and continues, with the same result. Every large file is compared with the SHA-256 that the
/// hub lists.
///
/// Without a model, the command lists some to begin with.
///
/// GGUF files stay as they are, in the Hugging Face cache. OWNER/NAME:Q4_K_M chooses one of several;
/// without it the command lists them, with one for this machine.
///
/// Environment: HF_TOKEN or HF_TOKEN_PATH for gated and private models, HF_HOME and HF_HUB_CACHE,
/// HF_ENDPOINT, HF_HUB_OFFLINE, HTTPS_PROXY and NO_PROXY as in Python's huggingface_hub; SWS_MODELS
/// for the directory of shards.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PullArgs {
    /// Id of the model on the hub, or the address of its page.
    pub(crate) model: Option<ModelName>,
    /// Branch, tag or commit [default: main].
    #[arg(long, value_name = "REVISION", value_parser = revision)]
    pub(crate) revision: Option<String>,
    /// Encoding of the shards, or `auto`, as in `sws shard --encoding`; or `stored` for the files as
    /// published, without shards [default: bf12; stored for GGUF].
    #[arg(long = "as", value_name = "ENCODING", value_parser = form)]
    pub(crate) form: Option<PullForm>,
    /// Memory that the model will run in, for `--as auto`, as in `sws shard --ram`.
    #[arg(long, value_name = "SIZE")]
    pub(crate) ram: Option<RamBudget>,
    /// Directory of the shards, or of the files with `--as stored` [default: where the id finds
    /// them].
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Keep the checkpoint too, in the Hugging Face cache, where Python finds it. Needs room for both.
    #[arg(long)]
    pub(crate) keep: bool,
    /// Files to download at a time where whole files are kept.
    #[arg(long, value_name = "N", default_value_t = FILES, value_parser = clap::value_parser!(u16).range(1..=32))]
    pub(crate) files: u16,
    /// Encoding threads [default: one per core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Then copy the shards to this directory on another drive, as `sws mirror` does; may be given several
    /// times.
    #[arg(long, value_name = "DIR")]
    pub(crate) also: Vec<PathBuf>,
    /// Print the outcome as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

impl PullArgs {
    /// The arguments of `sws pull MODEL`.
    pub(crate) fn of(model: ModelName) -> PullArgs {
        PullArgs {
            model: Some(model),
            revision: None,
            form: None,
            ram: None,
            out: None,
            keep: false,
            files: FILES,
            threads: None,
            also: Vec::new(),
            json: false,
        }
    }
}

/// Value of --as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PullForm {
    /// The files as published.
    Stored,
    /// Shards in the encoding that is planned to be fastest.
    Auto,
    /// Shards in an encoding.
    Shards(Encoding),
}

fn form(word: &str) -> Result<PullForm, String> {
    match word {
        "stored" => Ok(PullForm::Stored),
        "auto" => Ok(PullForm::Auto),
        _ => match super::shards::encoding(word) {
            Ok(encoding) => Ok(PullForm::Shards(encoding)),
            Err(error) => Err(format!("{error}, or auto, or stored for the files as published")),
        },
    }
}

fn revision(word: &str) -> Result<String, String> {
    match format!("model@{word}").parse::<ModelName>() {
        Ok(ModelName { revision: Some(revision), .. }) => Ok(revision),
        _ => Err("expected the name of a branch, a tag or a commit".to_owned()),
    }
}
