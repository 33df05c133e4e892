//! Options for running a model.

use std::path::{Path, PathBuf};

use sws_cache::policy::PolicyKind;
use sws_engine::{Exactness, RamBudget, StandInUse};
use sws_kernels::{Activations, Tier};
use sws_model::KvPrecision;
use sws_store::ReaderKind;

use crate::{Backend, Model, VramChoice};

/// Options for running a model. Defaults and meanings are those of the command line.
#[derive(Clone, Debug)]
pub struct Options {
    /// Memory for the whole process. The output does not depend on it.
    pub ram: RamBudget,
    /// Loads the whole model first, regardless of `ram`.
    pub resident: bool,
    /// Context length. `None` for as many positions as memory allows.
    pub context: Option<usize>,
    /// Precision of the KV cache.
    pub kv: KvPrecision,
    /// Implementation of the layers.
    pub backend: Backend,
    /// Tiers of the kernels. `None` for the fastest of this CPU. The output does not depend on
    /// them.
    pub tier: Option<Tier>,
    /// Kind of activations of products. With `Int8` the output is another, inexact one.
    pub activations: Activations,
    /// Memory of a graphics card for experts. The output does not depend on it.
    pub vram: VramChoice,
    /// Reader of the model's files.
    pub reader: ReaderKind,
    /// Most bytes per second that are read of the model's files. `None` for as many as the drive gives.
    pub max_disk_rate: Option<u64>,
    /// Computes several predicted tokens of a text in one pass, as long as that measurably saves
    /// time. The output does not depend on it. Off by default.
    pub speculative: bool,
    /// Options for streaming weights.
    pub streaming: Streaming,
}

/// Options for streaming weights. Except for a tolerance above 0, the output does not depend on
/// them.
#[derive(Clone, Debug)]
pub struct Streaming {
    /// Cache policy that evicts experts.
    pub policy: PolicyKind,
    /// Prefetches experts before a router has chosen them, as long as that measurably saves time.
    pub speculation: bool,
    /// Forecast of the experts to prefetch.
    pub draft: DraftChoice,
    /// Stand-ins kept in memory. `None` for those that `tolerance` needs.
    pub stand_ins: Option<StandInUse>,
    /// Uses a stand-in's result where it changes the state by at most this share of its norm; 0 is
    /// exact.
    pub tolerance: f64,
    /// Keeps statistics of the use of experts from one run to the next.
    pub warm_start: bool,
}

/// Source of forecasts of the experts of upcoming layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DraftChoice {
    /// The draft in the model's directory, or, for a model whose experts are large in total, an
    /// untrained draft that learns during the run.
    Auto,
    /// No forecasts.
    Off,
    /// A draft made by `sws draft train`.
    File(PathBuf),
}

impl Default for Options {
    fn default() -> Options {
        Options {
            ram: RamBudget::Auto,
            resident: false,
            context: None,
            kv: KvPrecision::F32,
            backend: Backend::default(),
            tier: None,
            activations: Activations::F32,
            vram: VramChoice::Off,
            reader: ReaderKind::Direct,
            max_disk_rate: None,
            speculative: false,
            streaming: Streaming::default(),
        }
    }
}

impl Default for Streaming {
    fn default() -> Streaming {
        Streaming {
            policy: PolicyKind::default(),
            speculation: true,
            draft: DraftChoice::Auto,
            stand_ins: None,
            tolerance: 0.0,
            warm_start: true,
        }
    }
}

impl Options {
    /// The memory budget. `None` if all weights are kept in memory, however much that is.
    pub fn budget(&self) -> Option<RamBudget> {
        let streams = !self.resident && self.backend.streams();
        streams.then_some(self.ram)
    }

    /// The kernels of a run.
    pub fn kernels(&self) -> Tier {
        self.tier.unwrap_or(Tier::best()).with_activations(self.activations)
    }

    /// Describes the reasons why the result differs from that of the published weights. Empty if it
    /// does not.
    pub(crate) fn lossy(&self, model: &Model) -> Vec<String> {
        let mut lossy: Vec<String> = model.lossy().into_iter().collect();
        lossy.extend(self.backend.lossy().map(str::to_owned));
        let rounded = match self.kv {
            KvPrecision::F32 => None,
            KvPrecision::Bf16 => Some("bf16"),
            KvPrecision::Q8 => Some("8 bits in blocks of 32"),
        };
        lossy.extend(
            rounded.map(|to| format!("keys and values rounded to {to}, error not bounded")),
        );
        if self.activations == Activations::Int8 {
            lossy.push(
                "activations rounded to int8 where weights have a kernel for it, error not bounded"
                    .to_owned(),
            );
        }
        if self.streaming.tolerance > 0.0 {
            lossy.push(format!(
                "not exact: a stand-in is used where it changes a layer's state by at most {} of its norm, with no bound on the effect on logits; not reproducible: the choice depends on the contents of memory",
                self.streaming.tolerance
            ));
        }
        lossy
    }
}

impl Streaming {
    /// Exactness implied by the tolerance.
    pub(crate) fn exactness(&self) -> Exactness {
        if self.tolerance > 0.0 { Exactness::Within(self.tolerance) } else { Exactness::Exact }
    }

    /// Stand-ins to keep in memory.
    pub(crate) fn stand_ins(&self) -> StandInUse {
        let default = if self.tolerance > 0.0 { StandInUse::Auto } else { StandInUse::Off };
        self.stand_ins.unwrap_or(default)
    }

    /// File of a draft requested by name.
    pub(crate) fn draft_file(&self) -> Option<&Path> {
        match &self.draft {
            DraftChoice::File(file) => Some(file),
            DraftChoice::Auto | DraftChoice::Off => None,
        }
    }

    /// File of the statistics kept for a model. `None` if they are not kept, or without a home
    /// directory.
    pub(crate) fn warm_start(&self, model: &Model) -> Option<PathBuf> {
        model.learned_file().filter(|_| self.warm_start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_that_are_kept_in_memory_have_no_budget() {
        let budget =
            |resident, backend| Options { resident, backend, ..Options::default() }.budget();
        assert_eq!(budget(false, Backend::Sws), Some(RamBudget::Auto));
        assert_eq!(budget(true, Backend::Sws), None);
        assert_eq!(budget(false, Backend::Candle), None);
    }
}
