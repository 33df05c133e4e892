//! Arguments of `sws push`.

use std::path::PathBuf;

use super::models;

/// Put a directory of shards into object storage, from which machines run it.
///
/// The shards are verified first, and nothing of damaged ones is sent. A copy of them (`sws mirror`)
/// serves what is damaged. The manifest comes last, so that
/// a model is never seen before it is whole. An address with other shards is refused.
///
/// Environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_PROFILE, AWS_REGION,
/// AWS_ENDPOINT_URL and the files ~/.aws/credentials and ~/.aws/config, for s3://; HTTPS_PROXY,
/// HTTP_PROXY and NO_PROXY; SWS_NETWORK_TIMEOUT for the seconds of silence after which a connection is
/// cut.
#[derive(Debug, clap::Args)]
pub(crate) struct PushArgs {
    /// A shard directory, or the id of a model.
    #[arg(add = models())]
    pub(crate) dir: PathBuf,
    /// Address of a directory: s3://bucket/path, or https://host/path of a server that takes files
    /// (PUT).
    #[arg(value_name = "URL")]
    pub(crate) to: String,
    /// Put all files there once more, where these shards are already: mends files that are missing or
    /// damaged there.
    #[arg(long)]
    pub(crate) again: bool,
    /// Also put there what runs on this machine learned of the model's experts, so that machines without
    /// runs of their own fetch those first that were used most.
    #[arg(long)]
    pub(crate) learned: bool,
    /// Send sound files of this copy of the shards in place of damaged ones; may be given several times.
    #[arg(long, value_name = "DIR")]
    pub(crate) also: Vec<PathBuf>,
    /// Print the outcome as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
