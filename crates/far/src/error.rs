//! Errors, as sentences for people.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use sws_format::{InvalidManifest, Remedied, SmallFileError, remedy};
use sws_hub::HubError;
use sws_shard::ShardError;

/// Failure to read shards from object storage, or to put them there. Its text is one sentence that
/// names the file or address, and the remedy. It contains no secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum FarError {
    /// Text that is not an address of shards.
    #[error("`{shown}` {problem}")]
    Address {
        /// The address, without its query.
        shown: String,
        /// The problem and the remedy, after the address in the sentence.
        problem: &'static str,
    },
    /// A wrong variable of the environment, or a wrong settings file.
    #[error("{what} {problem}; correct it, or remove it")]
    Setting {
        /// The variable or the file.
        what: String,
        /// The problem, after the name in the sentence.
        problem: String,
    },
    /// A wrong setting of the network.
    #[error(transparent)]
    Network(#[from] HubError),
    /// No manifest at the address.
    #[error("`{address}` has no manifest.json; give the address that `sws push` has filled")]
    NoManifest { address: String },
    /// A manifest that cannot be used.
    #[error(
        "`{address}/manifest.json` cannot be used: {reason}; check the address, and that no newer sws pushed it"
    )]
    Manifest {
        address: String,
        /// Problem with the contents.
        reason: InvalidManifest,
    },
    /// A manifest that is too large for the available memory.
    #[error(
        "`{address}/manifest.json` has more than {} MiB, which is more than there is memory for; raise --ram, or check the address",
        limit >> 20
    )]
    LongManifest {
        address: String,
        /// Maximum size of a manifest, in bytes.
        limit: u64,
    },
    /// No such bucket.
    #[error("there is no bucket `{bucket}` at {host}; check its name, and AWS_ENDPOINT_URL")]
    NoBucket { bucket: String, host: String },
    /// A file that is listed but missing.
    #[error(
        "{url} is not there, though the manifest lists it; push the shards once more with --again"
    )]
    Missing {
        /// The address of the file.
        url: String,
    },
    /// Access refused.
    #[error("{url} is refused (status {status}{}); {advice}", in_words(code))]
    Refused {
        /// The address of the file, without its query.
        url: String,
        status: u16,
        /// The reason, as the server names it.
        code: String,
        advice: &'static str,
    },
    /// A bucket in another region.
    #[error("the bucket `{bucket}` is in the region {region}; set AWS_REGION to it")]
    Region {
        bucket: String,
        /// The bucket's region, from the server's answer.
        region: String,
    },
    /// An answer that redirects to another place.
    #[error("{url} is elsewhere (status {status}); {advice}")]
    Elsewhere {
        /// The address of the file, without its query.
        url: String,
        status: u16,
        advice: &'static str,
    },
    /// A failure of the server, after all attempts.
    #[error("{url} answers with status {status}{}; try again later", in_words(code))]
    Status {
        /// The address of the file, without its query.
        url: String,
        status: u16,
        /// The reason, as the server names it.
        code: String,
    },
    /// No connection, or one that breaks, after all attempts.
    #[error("{url} cannot be reached ({reason}); check the network and the proxy and try again")]
    Connection {
        /// The address of the file, without its query.
        url: String,
        /// Reason of the last failure.
        reason: String,
    },
    /// An invalid answer.
    #[error("{url} answers with something unexpected: {reason}; check the address")]
    Answer {
        /// The address of the file, without its query.
        url: String,
        /// Description of the problem.
        reason: String,
    },
    /// A file with a wrong length.
    #[error(
        "{url} has {found} bytes instead of {expected}; push the shards once more with --again"
    )]
    Length {
        /// The address of the file, without its query.
        url: String,
        /// The length in the manifest.
        expected: u64,
        found: u64,
    },
    /// Bytes that did not match their checksum twice.
    #[error(
        "the bytes of {url} at {offset} do not agree with their checksum, twice; push the shards once more with --again, or try another network"
    )]
    Damaged {
        /// The address of the file, without its query.
        url: String,
        /// Offset of the block that the checksum covers.
        offset: u64,
    },
    /// A small file of a model that cannot be used.
    #[error(transparent)]
    SmallFile(#[from] SmallFileError),
    /// A file or directory that cannot be read, of the cache or of the shards to push.
    #[error("`{}` cannot be read ({cause}); {}", path.display(),
            remedy(cause, "check that you may read it"))]
    Read { path: PathBuf, cause: io::Error },
    /// A file or directory of the cache that cannot be written.
    #[error("`{}` cannot be written ({cause}); {}", path.display(),
            remedy(cause, "check that you may write there"))]
    Write { path: PathBuf, cause: io::Error },
    /// A directory that takes the place of a file of the cache.
    #[error("`{}` is a directory, or has one in the place of a file; remove it", path.display())]
    InTheWay { path: PathBuf },
    /// No directory is known for the cache.
    #[error("there is no place for shards from an address; set HOME or XDG_CACHE_HOME")]
    NoCache,
    /// A server that does not accept files.
    #[error(
        "{url} cannot be put there (status {status}); check the address, and that its server takes files (PUT)"
    )]
    NotTaken {
        /// The address of the file, without its query.
        url: String,
        status: u16,
    },
    /// A file that the server accepted, but returned differently, twice.
    #[error(
        "{url} was sent twice, and its server has other bytes there; check that server, or push to another"
    )]
    NotKept {
        /// The address of the file, without its query.
        url: String,
    },
    /// Other shards at the address.
    #[error("`{address}` has other shards already; give another address, or remove them first")]
    Occupied { address: String },
    /// A file that was read a second time, and had other bytes.
    #[error("`{}` has other bytes than a moment before, when it was verified; push again while nothing writes there, and check its drive if it happens again", path.display())]
    Changed { path: PathBuf },
    /// Damaged shards on this machine.
    #[error("`{}` {what}; copy it again, make the shards again, or name a sound copy of them with --also", path.display())]
    DamagedHere {
        /// The first damaged file of which no copy is sound.
        path: PathBuf,
        /// A description of the damage.
        what: String,
    },
    /// Shards on this machine that cannot be verified.
    #[error(transparent)]
    Verify(#[from] ShardError),
    /// A file that is too long for one request.
    #[error("`{}` has more than 5 GiB, which a bucket takes in parts only; put it there with another program", path.display())]
    TooLong { path: PathBuf },
    /// A directory that lacks files of its manifest.
    #[error(transparent)]
    Shards(#[from] sws_format::ManifestError),
}

impl FarError {
    pub(crate) fn setting(name: &str, problem: &str) -> FarError {
        FarError::Setting { what: format!("the variable {name}"), problem: problem.to_owned() }
    }

    pub(crate) fn file(path: &Path, problem: &str) -> FarError {
        FarError::Setting { what: format!("`{}`", path.display()), problem: problem.to_owned() }
    }

    pub(crate) fn read(path: &Path, cause: io::Error) -> FarError {
        FarError::Read { path: path.to_owned(), cause }
    }

    pub(crate) fn write(path: &Path, cause: io::Error) -> FarError {
        let path = path.to_owned();
        match cause.kind() {
            ErrorKind::IsADirectory | ErrorKind::DirectoryNotEmpty => FarError::InTheWay { path },
            _ => FarError::Write { path, cause },
        }
    }

    /// Converts the failure of reading `path`, for `map_err`.
    pub(crate) fn reading(path: &Path) -> impl FnOnce(io::Error) -> FarError {
        move |cause| FarError::read(path, cause)
    }

    /// Converts the failure of writing `path`, for `map_err`.
    pub(crate) fn writing(path: &Path) -> impl FnOnce(io::Error) -> FarError {
        move |cause| FarError::write(path, cause)
    }

    /// The failure as an error of a reader. No local disk causes it.
    pub(crate) fn of_reader(&self) -> io::Error {
        io::Error::other(Remedied(self.to_string()))
    }
}

fn in_words(code: &str) -> String {
    if code.is_empty() { String::new() } else { format!(", {code}") }
}
