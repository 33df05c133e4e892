//! Backends: implementations of the layers.

use sws_engine::{Gauge, Plan, Waiter};

use crate::run::sequence::AnyLm;

/// An implementation of all the layers of a model, from linear layers to routing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backend {
    /// The kernels of this project.
    #[default]
    Sws,
    /// An independent implementation on candle tensors. Only builds with the feature `candle` load it.
    Candle,
}

/// A model loaded by a backend.
pub(crate) struct LoadedBackend {
    pub(crate) lm: AnyLm,
    /// Tiers of the kernels that compute it.
    pub(crate) tier: String,
    /// Name of the reader of its files.
    pub(crate) reader: &'static str,
    pub(crate) weight_bytes: u64,
    /// Division of the memory budget. `None` if all weights are in memory.
    pub(crate) plan: Option<Plan>,
    /// Counters of its cost, if that is measured.
    pub(crate) gauge: Option<Gauge>,
    /// Waiter of its passes, if they can wait for reads.
    pub(crate) waiter: Option<Waiter>,
}

impl Backend {
    /// All backends. The first is the default.
    pub const ALL: &[Backend] = &[Backend::Sws, Backend::Candle];

    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Backend::Sws => "sws",
            Backend::Candle => "candle",
        }
    }

    /// Description in one line.
    pub const fn about(self) -> &'static str {
        match self {
            Backend::Sws => {
                "our kernels on weights as they are stored: every model, the same bits everywhere"
            }
            Backend::Candle => {
                "an independent implementation on candle tensors, to compare with: all weights in f32, slower, not bit-identical; in builds with the feature candle"
            }
        }
    }

    /// Difference of its results from those of the default backend. `None` if there is none.
    pub const fn lossy(self) -> Option<&'static str> {
        match self {
            Backend::Sws => None,
            Backend::Candle => Some(
                "computed by candle: not bit-identical, off by at most 1e-4 of the largest logit on the test models",
            ),
        }
    }

    /// True if it reads weights as they are needed, within a budget.
    pub(crate) const fn streams(self) -> bool {
        match self {
            Backend::Sws => true,
            Backend::Candle => false,
        }
    }

    /// True if it continues several texts at once.
    pub const fn continues_several(self) -> bool {
        match self {
            Backend::Sws => true,
            Backend::Candle => false,
        }
    }
}
