//! Options for running a model.

use std::path::{Path, PathBuf};

use sws_cache::policy::PolicyKind;
use sws_engine::{Budget, Exactness, StandInUse};
use sws_kernels::Functionals;
use sws_model::KvPrecision;
use sws_store::ReaderKind;

use crate::{Backend, Model};

/// Options for running a model. Their defaults and their meaning are those of the command line.
#[derive(Clone, Debug)]
pub struct Options {
    /// Memory for the whole process. Not a bit depends on it.
    pub ram: Budget,
    /// Loads the whole model first, whatever `ram` says.
    pub resident: bool,
    /// Positions of the sequence; none for what suits the memory.
    pub context: Option<usize>,
    /// The precision of keys and values.
    pub kv: KvPrecision,
    /// The implementation of the layers.
    pub backend: Backend,
    /// The tiers of our kernels; none for the fastest of this CPU. Not a bit depends on them.
    pub functionals: Option<Functionals>,
    /// The reader of its files.
    pub reader: ReaderKind,
    /// Options for weights that come and go.
    pub streaming: Streaming,
}

/// Options for weights that come and go. Not a bit depends on it, but for a tolerance above 0.
#[derive(Clone, Debug)]
pub struct Streaming {
    /// The policy that evicts experts.
    pub policy: PolicyKind,
    /// Reads experts before a router has asked for them, as long as that measurably saves time.
    pub speculation: bool,
    /// The forecast of what to read.
    pub draft: Drafting,
    /// Stand-ins that stay in memory; none for those that `tolerance` needs.
    pub stand_ins: Option<StandInUse>,
    /// A stand-in counts where it changes the state by at most this share of its norm; 0 is exact.
    pub tolerance: f64,
    /// Keeps what is learned of the use of experts from one run to the next.
    pub warm_start: bool,
}

/// A forecast of the experts of the layers to come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drafting {
    /// The draft beside the model, or one that learns as it goes where a model's experts are large together.
    Auto,
    /// None.
    Off,
    /// A draft that `sws draft train` has made.
    File(PathBuf),
}

impl Default for Options {
    fn default() -> Options {
        Options {
            ram: Budget::Auto,
            resident: false,
            context: None,
            kv: KvPrecision::F32,
            backend: Backend::default(),
            functionals: None,
            reader: ReaderKind::Direct,
            streaming: Streaming::default(),
        }
    }
}

impl Default for Streaming {
    fn default() -> Streaming {
        Streaming {
            policy: PolicyKind::default(),
            speculation: true,
            draft: Drafting::Auto,
            stand_ins: None,
            tolerance: 0.0,
            warm_start: true,
        }
    }
}

impl Options {
    /// The words for what makes the result differ from that of the published weights; nothing, if empty.
    pub(crate) fn lossy(&self, model: &Model) -> Vec<String> {
        let mut lossy: Vec<String> = model.lossy().into_iter().collect();
        lossy.extend(self.backend.lossy().map(str::to_owned));
        if self.kv == KvPrecision::Bf16 {
            lossy.push("keys and values rounded to bf16, error not bounded".to_owned());
        }
        if self.streaming.tolerance > 0.0 {
            lossy.push(format!(
                "not exact: a stand-in counts where it changes a layer's state by at most {} of its norm, the effect on logits not bounded; not reproducible: which ones count depends on what is in memory",
                self.streaming.tolerance
            ));
        }
        lossy
    }
}

impl Streaming {
    /// The exactness that the tolerance asks for.
    pub(crate) fn exactness(&self) -> Exactness {
        if self.tolerance > 0.0 { Exactness::Within(self.tolerance) } else { Exactness::Exact }
    }

    /// Stand-ins that stay in memory.
    pub(crate) fn stand_ins(&self) -> StandInUse {
        let default = if self.tolerance > 0.0 { StandInUse::Auto } else { StandInUse::Off };
        self.stand_ins.unwrap_or(default)
    }

    /// The file of a draft that was asked for by name.
    pub(crate) fn draft_file(&self) -> Option<&Path> {
        match &self.draft {
            Drafting::File(file) => Some(file),
            Drafting::Auto | Drafting::Off => None,
        }
    }

    /// The file that keeps what was learned of the model. None without a home.
    pub(crate) fn warm_start(&self, model: &Model) -> Option<PathBuf> {
        let cache =
            std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
        let cache = cache.or_else(|| Some(std::env::home_dir()?.join(".cache")));
        // A fingerprint is a name for a file: hexadecimal digits, which the manifest's check sees to.
        let name = format!("{}.safetensors", model.manifest().model.fingerprint);
        cache.filter(|_| self.warm_start).map(|dir| dir.join("sws").join("learned").join(name))
    }
}
