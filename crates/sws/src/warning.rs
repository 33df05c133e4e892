//! Warnings about a model that was loaded nevertheless.

use std::path::PathBuf;

use sws_store::Holder;

use crate::Size;

/// A warning about a model that was loaded nevertheless: one sentence.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Warning {
    /// A reason why the result differs from that of the published weights.
    #[error("lossy: {0}")]
    Lossy(String),
    /// Weights of the language model's layers that nothing uses.
    #[error(
        "the configuration does not ask for {count} of the weights, `{}` first, and they are not used; is it that of another model?",
        first.escape_debug()
    )]
    Unused {
        /// Number of tensors.
        count: usize,
        /// Name of the first.
        first: String,
    },
    /// A file of expert usage statistics that is ignored.
    #[error("{0}")]
    Forgotten(String),
    /// A trained draft that does not fit as a whole.
    #[error(
        "`{}` needs {}, and the draft may take {}: {} is left out; give it more, or train a draft with a lower --rank",
        file.display(),
        Size(*needs),
        Size(*limit),
        if *partly { "its correction" } else { "it" }
    )]
    DraftTooLarge {
        /// The file of the draft.
        file: PathBuf,
        /// Bytes needed.
        needs: u64,
        /// Bytes allowed.
        limit: u64,
        /// True if the other parts fit.
        partly: bool,
    },
    /// A requested draft that would serve no purpose.
    #[error(
        "`{}` is left out: the budget has no expert slots to prefetch into; raise --ram",
        .0.display()
    )]
    DraftLeftOut(PathBuf),
    /// A budget that the machine does not have.
    #[error(
        "the budget of {} is more than the {} of memory here; a model that needs all of it would be swapped or killed",
        Size(*asked),
        Size(*total)
    )]
    BeyondMachine {
        /// Bytes of the budget.
        asked: u64,
        /// Bytes of the machine or its control group.
        total: u64,
    },
    /// A shorter context than the model was made for, or than requested.
    #[error("the context has {wanted} positions, and {holder} has memory left for {fits}")]
    Context {
        /// Positions wanted.
        wanted: usize,
        /// Positions that fit into memory.
        fits: usize,
        /// The machine or control group that limits memory.
        holder: Holder,
    },
}
