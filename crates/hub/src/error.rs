//! Errors, as sentences for people.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sws_format::remedy;

use crate::{BadName, ModelId};

/// Failure of a download, or of the local cache. Its text is one sentence that names the model,
/// file or variable, and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum HubError {
    /// Text that is not the name of a model.
    #[error(transparent)]
    Name(#[from] BadName),
    /// A wrong variable of the environment.
    #[error("the variable {name} {problem}; correct it, or unset it")]
    Variable {
        /// Name of the variable.
        name: &'static str,
        /// The problem, after the name in the sentence.
        problem: &'static str,
    },
    /// A variable of the environment names a file where models should be.
    #[error(
        "the variable {variable} names `{}`, which is not a directory; correct it, or unset it",
        path.display()
    )]
    Place {
        /// Name of the variable.
        variable: &'static str,
        path: PathBuf,
    },
    /// A token file that contains something else.
    #[error("`{}` holds no token; write the token of your account there, or set HF_TOKEN", path.display())]
    TokenFile { path: PathBuf },
    /// No directory is known for the cache.
    #[error(
        "there is no home directory for models; set HF_HOME and SWS_MODELS, or name a directory with --out"
    )]
    NoCache,
    /// The network is needed, but forbidden.
    #[error(
        "`{id}` is not complete on this machine, and HF_HUB_OFFLINE forbids downloads; unset it"
    )]
    Offline { id: ModelId },
    /// No such repository, or a private one.
    #[error(
        "the hub has no model `{id}` that you may see; check its name at {page}, or set HF_TOKEN if it is private"
    )]
    NoModel {
        id: ModelId,
        /// Address of its page.
        page: String,
    },
    /// A repository whose conditions must be accepted first.
    #[error(
        "`{id}` is gated: accept its conditions at {page}{}",
        if *token { " with the account of your token" } else { ", then set HF_TOKEN to a token of your account" }
    )]
    Gated {
        id: ModelId,
        /// Address of its page.
        page: String,
        /// True if a token was sent.
        token: bool,
    },
    /// Access refused for another reason.
    #[error(
        "the hub refuses access to `{id}` (status {status}); {}, and see {page}",
        if *token { "check that your token is valid" } else { "set HF_TOKEN to a token of your account" }
    )]
    Refused {
        id: ModelId,
        /// Status of the answer.
        status: u16,
        /// Address of its page.
        page: String,
        /// True if a token was sent.
        token: bool,
    },
    /// No such branch, tag or commit.
    #[error("`{id}` has no revision `{revision}`; its branches and tags are at {page}/tree/main")]
    NoRevision {
        id: ModelId,
        revision: String,
        /// Address of the model's page.
        page: String,
    },
    /// A file that is listed but missing.
    #[error(
        "`{id}` lists the file `{file}`, but the hub does not have it; try again later, or see {page}"
    )]
    NoFile {
        id: ModelId,
        file: String,
        /// Address of the model's page.
        page: String,
    },
    /// Too many requests.
    #[error("the hub is limiting requests (status 429); try again {}{}",
            wait.map_or("later".to_owned(), |wait| format!("after {} s", wait.as_secs())), goes_on(*begun))]
    TooMany {
        /// Time to wait, if the hub gave one.
        wait: Option<Duration>,
        /// True if a download was begun, which can be continued.
        begun: bool,
    },
    /// A failure of the hub, after all attempts.
    #[error("{url} answers with status {status}; try again later{}", goes_on(*begun))]
    Status {
        /// The address, without its query.
        url: String,
        status: u16,
        /// True if a download was begun, which can be continued.
        begun: bool,
    },
    /// No connection, or one that breaks, after all attempts.
    #[error(
        "{url} cannot be reached ({reason}); check the network and the proxy and try again{}",
        goes_on(*begun)
    )]
    Connection {
        /// The address, without its query.
        url: String,
        /// Reason of the last failure.
        reason: String,
        /// True if a download was begun, which can be continued.
        begun: bool,
    },
    /// An invalid answer.
    #[error("{url} answers with something unexpected: {reason}; check that HF_ENDPOINT is a hub")]
    Answer {
        /// The address, without its query.
        url: String,
        /// Description of the problem.
        reason: String,
    },
    /// A file that arrived with wrong bytes twice.
    #[error(
        "`{file}` of `{id}` arrived damaged twice: {problem}; try again later, or through another network"
    )]
    Damaged {
        id: ModelId,
        file: String,
        /// Description of the damage.
        problem: String,
    },
    /// A weight file whose header and samples arrived with other bytes than the file itself.
    #[error(
        "the header of `{file}` of `{id}` arrived damaged; run the command again, or through another network"
    )]
    Sketch { id: ModelId, file: String },
    /// A file of the cache whose contents do not match its name.
    #[error("`{}` is damaged, as its hash is not its name; remove it, and run the command again", path.display())]
    DamagedBlob { path: PathBuf },
    /// A file name that leads out of its directory, or is not a valid file name.
    #[error(
        "`{id}` lists a file named {:?}, which is not a name for a file here; do not use this model",
        clipped(file)
    )]
    FileName { id: ModelId, file: String },
    /// A repository with several models, of which none was chosen.
    #[error("`{id}` has several models: {}; choose one, as in `{id}:Q4_K_M`", some_of(models))]
    Several {
        id: ModelId,
        /// Their names.
        models: Vec<String>,
    },
    /// A repository without a model that this program can read.
    #[error("`{id}` {problem}")]
    Contents {
        id: ModelId,
        /// Description of the problem and remedy, after the name in the sentence.
        problem: String,
    },
    /// The disk does not have enough room to begin.
    #[error("`{}` needs {} and its disk has {} free; make room or choose another directory with --out",
            dir.display(), gib(*needed), gib(*free))]
    Space { dir: PathBuf, needed: u64, free: u64 },
    /// A file or directory that cannot be read.
    #[error("`{}` cannot be read ({cause}); {}", path.display(),
            remedy(cause, "check that you may read it"))]
    Read { path: PathBuf, cause: io::Error },
    /// A file or directory that cannot be written.
    #[error("`{}` cannot be written ({cause}); {}", path.display(),
            remedy(cause, "check that you may write there"))]
    Write { path: PathBuf, cause: io::Error },
    /// Stopped by its observer.
    #[error("the download was stopped; the same command continues it")]
    Stopped,
    /// A directory that another process is downloading to.
    #[error("`{}` is in use by another download; wait for it, or name another directory with --out", dir.display())]
    Busy { dir: PathBuf },
    /// A model that cannot be removed, because another process is writing it.
    #[error("`{}` is being written by another command; wait for it, or end it", dir.display())]
    InUse { dir: PathBuf },
    /// A directory with something other than a download.
    #[error("`{}` holds {what}; remove it, or name another directory with --out", dir.display())]
    Foreign {
        dir: PathBuf,
        /// Description of the contents.
        what: String,
    },
}

impl HubError {
    pub(crate) fn read(path: &Path, cause: io::Error) -> HubError {
        HubError::Read { path: path.to_owned(), cause }
    }

    pub(crate) fn write(path: &Path, cause: io::Error) -> HubError {
        HubError::Write { path: path.to_owned(), cause }
    }

    /// Converts the failure of reading `path`, for `map_err`.
    pub(crate) fn reading(path: &Path) -> impl FnOnce(io::Error) -> HubError {
        move |cause| HubError::read(path, cause)
    }

    /// Converts the failure of writing `path`, for `map_err`.
    pub(crate) fn writing(path: &Path) -> impl FnOnce(io::Error) -> HubError {
        move |cause| HubError::write(path, cause)
    }
}

/// Maximum number of characters of a name in a message, and of names in a list.
const LONGEST: usize = 100;
const MOST: usize = 20;

/// The beginning of a name of any length.
pub(crate) fn clipped(name: &str) -> String {
    match name.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}..", &name[..end]),
        None => name.to_owned(),
    }
}

/// The first names of a list of any length, for a message.
pub fn some_of(names: &[String]) -> String {
    let shown: Vec<String> = names.iter().take(MOST).map(|name| clipped(name)).collect();
    match names.len().saturating_sub(MOST) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// The hint after a failure in the middle of a download.
fn goes_on(begun: bool) -> &'static str {
    if begun { ", the download goes on where it stopped" } else { "" }
}

/// Formats a number of bytes.
fn gib(bytes: u64) -> String {
    match bytes >> 30 {
        0 => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_lists_of_any_length_are_clipped() {
        assert_eq!(clipped("short"), "short");
        assert_eq!(clipped(&"\u{fc}".repeat(200)), "\u{fc}".repeat(100) + "..");
        let names = |count: usize| (0..count).map(|n| n.to_string()).collect::<Vec<_>>();
        assert_eq!(some_of(&names(3)), "0, 1, 2");
        assert!(some_of(&names(20_000)).ends_with("19 and 19980 more"));
    }
}
