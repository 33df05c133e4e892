//! Warnings about a model that was loaded nevertheless.

use std::path::PathBuf;

use sws_format::Manifest;
use sws_model::{LeftOut, ModelSpec, UnusedPart};
use sws_store::LimitSource;

use crate::Size;

/// A warning about a model that was loaded nevertheless: one sentence.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Warning {
    /// A reason why the result differs from that of the published weights.
    #[error("lossy: {0}")]
    Lossy(String),
    /// Weights of one part of a model that nothing uses.
    #[error(
        "{} {} left out: {names}{}",
        part.tensors(*count),
        if *count == 1 { "is" } else { "are" },
        if *part == UnusedPart::Unknown { "; is the configuration that of another model?" } else { "" }
    )]
    Unused {
        part: UnusedPart,
        count: usize,
        /// Names of all tensors, with the numbers in them replaced.
        names: String,
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
        needs: u64,
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
    /// A device that is not used, in one sentence with its name.
    #[error("experts stay on the CPU: {0}")]
    NoVram(String),
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
        wanted: usize,
        /// Positions that fit into memory.
        fits: usize,
        /// The machine or control group that limits memory.
        holder: LimitSource,
    },
}

/// Maximum number of kinds of names in one sentence.
const NAMED: usize = 12;

impl Warning {
    /// Warnings that name the tensors of a model that nothing uses, one for each part of the model.
    pub fn unused(spec: &ModelSpec, manifest: &Manifest) -> Vec<Warning> {
        let kinds = spec.left_out(manifest);
        kinds.chunk_by(|one, other| one.part == other.part).map(Warning::of_part).collect()
    }

    /// The warning about the unused tensors of one part.
    fn of_part(kinds: &[LeftOut]) -> Warning {
        let mut names: Vec<String> = kinds.iter().take(NAMED).map(named).collect();
        if kinds.len() > NAMED {
            let more = kinds.len() - NAMED;
            names.push(format!("and {more} other kinds, which `sws inspect` lists"));
        }
        let count = kinds.iter().map(|kind| kind.tensors).sum();
        Warning::Unused { part: kinds[0].part, count, names: names.join(", ") }
    }
}

/// Tensors by their name, and their number unless it is one.
fn named(kind: &LeftOut) -> String {
    match kind.tensors {
        1 => format!("`{}`", kind.names.escape_debug()),
        count => format!("`{}` ({count})", kind.names.escape_debug()),
    }
}
