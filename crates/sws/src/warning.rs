//! Warnings about a model that is loaded all the same.

use std::path::PathBuf;

use sws_store::Holder;

use crate::Size;

/// Something to know about a model that has been loaded all the same: one sentence.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Warning {
    /// A reason why the result differs from that of the published weights.
    #[error("lossy: {0}")]
    Lossy(String),
    /// A file of what earlier runs learned that is passed over.
    #[error("{0}")]
    Forgotten(String),
    /// A trained draft does not fit as a whole.
    #[error(
        "`{}` needs {}, and the draft may take {}: {} is left out; give it more, or train one of a lower --rank",
        file.display(),
        Size(*needs),
        Size(*limit),
        if *partly { "its correction" } else { "it" }
    )]
    DraftTooLarge {
        /// The file of the draft.
        file: PathBuf,
        /// Bytes that it needs.
        needs: u64,
        /// Bytes that it may take.
        limit: u64,
        /// True if the rest of it has room.
        partly: bool,
    },
    /// A draft that was asked for has no use.
    #[error(
        "`{}` is left out: beside it the budget has no slots for experts, to which it would tell what to read; raise --ram",
        .0.display()
    )]
    DraftLeftOut(PathBuf),
    /// A sequence can become less long than the model was made for, or was asked to.
    #[error("the context has {wanted} positions, and {holder} has memory left for {fits}")]
    Context {
        /// Positions that were wanted.
        wanted: usize,
        /// Positions that there is room for.
        fits: usize,
        /// The machine, or the control group in which memory is short.
        holder: Holder,
    },
}
