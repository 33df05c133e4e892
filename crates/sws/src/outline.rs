//! Models without weights, as their configurations describe them.

use std::path::{Path, PathBuf};

use sws_engine::{Plan, PlanOptions, Planner, ProcessMemory};
use sws_kernels::Encoding;
use sws_model::{ConfigError, Description, InvalidConfig, Inventory, ModelSpec};
use sws_store::{CheckpointError, Configuration, Manifest, PieceKind, Value, read_config};

use crate::{Cause, Error, Result};

/// A model as its configuration alone describes it. There need not be any weights.
///
/// ```no_run
/// use sws::{Format, Outline};
///
/// let outline = Outline::read("config.json")?;
/// println!("{:?}", outline.description().experts);
/// for format in outline.formats() {
///     let footprint = outline.footprint(format, Default::default())?;
///     println!("{format}: {} bytes", footprint.bytes);
/// }
/// # Ok::<(), sws::Error>(())
/// ```
#[derive(Debug)]
pub struct Outline {
    path: PathBuf,
    description: Description,
    /// The arithmetic, whatever the format of the weights.
    spec: Option<ModelSpec>,
    /// The reason why a checkpoint with this configuration cannot be run.
    refusal: Option<InvalidConfig>,
    published: Published,
}

/// A format in which a model can lie on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Shards in an encoding.
    Shards(Encoding),
    /// The formats of the checkpoint itself.
    AsPublished {
        /// The encoding of most weights.
        encoding: Encoding,
        /// The matrices that have it.
        scope: Scope,
    },
}

/// The matrices that a checkpoint stores quantised. The others are bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All of the layers.
    Layers,
    /// Those of the experts of which a token uses some.
    Experts,
}

/// The format of a checkpoint, as its configuration says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Published {
    /// Plain floats.
    Plain,
    Quantised(Encoding, Scope),
    /// Quantised in a way of which no size is known.
    Unknown,
}

/// Sizes of a model in one format.
#[derive(Debug)]
pub struct Footprint {
    /// Bytes of all weights.
    pub bytes: u64,
    /// Bytes of the weights that every token needs, the embedding included.
    pub infrastructure: u64,
    planner: Planner,
}

impl Outline {
    /// Reads a `config.json`, or that of a directory.
    pub fn read(path: impl AsRef<Path>) -> Result<Outline> {
        let path = path.as_ref();
        Ok(Outline::of(path, &read_config(path)?))
    }

    /// The outline of the model at `path`, which could not be opened because of `error`: because it
    /// has no weights, or a configuration that is not supported. Returns any other error.
    pub fn instead(error: Error, path: &Path) -> Result<Outline> {
        let expected = match &error {
            Error::Checkpoint(
                CheckpointError::NoWeights { .. } | CheckpointError::NotADirectory { .. },
            ) => true,
            Error::Model { cause, .. } => {
                let invalid = cause.downcast_ref::<InvalidConfig>().map(|invalid| &invalid.reason);
                matches!(
                    invalid,
                    Some(ConfigError::Unsupported { .. } | ConfigError::UnsupportedEntry { .. })
                )
            }
            _ => false,
        };
        // GGUF files have their configurations in headers.
        let has_config = match path.is_dir() {
            true => path.join("config.json").exists(),
            false => path.extension().is_some_and(|extension| extension == "json"),
        };
        if expected && has_config { Outline::read(path) } else { Err(error) }
    }

    /// The outline of a model with this configuration. Errors name `path`.
    pub fn of(path: &Path, config: &Configuration) -> Outline {
        let (spec, refusal) = match ModelSpec::of(config) {
            Ok(spec) => (Some(spec), None),
            // Its arithmetic does not depend on how weights are stored.
            Err(refusal) => (ModelSpec::of(&plain(config)).ok(), Some(refusal)),
        };
        Outline {
            path: path.to_owned(),
            description: Description::of(config),
            spec,
            refusal,
            published: Published::of(config),
        }
    }

    /// The entries that every configuration has in some spelling.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// The arithmetic of the model; `None` if it is not supported.
    pub fn spec(&self) -> Option<&ModelSpec> {
        self.spec.as_ref()
    }

    /// Fails with the reason if a checkpoint with this configuration cannot be run.
    pub fn supported(self) -> Result<Outline> {
        match self.refusal {
            None => Ok(self),
            Some(refusal) => Err(in_config(&self.path, refusal)),
        }
    }

    /// The reason why a checkpoint with this configuration cannot be run, if so.
    pub fn refusal(&self) -> Option<&InvalidConfig> {
        self.refusal.as_ref()
    }

    /// The formats that the model can have: those that shards are made in, and that of the
    /// checkpoint if it is quantised. Empty for a model that is not supported.
    pub fn formats(&self) -> Vec<Format> {
        if self.spec.is_none() {
            return Vec::new();
        }
        let plain = [Encoding::Bf16, Encoding::Bf12, Encoding::Q8, Encoding::Q4];
        let plain = plain.map(Format::Shards).into_iter();
        let published = match self.published {
            Published::Quantised(encoding, scope) => Some(Format::AsPublished { encoding, scope }),
            Published::Plain | Published::Unknown => None,
        };
        plain.chain(published).collect()
    }

    /// The format that shards have by default, of which no weight is changed; `None` if the
    /// checkpoint's is not known.
    pub fn exact(&self) -> Option<Format> {
        match self.published {
            Published::Plain => Some(Format::Shards(Encoding::Bf12)),
            Published::Quantised(encoding, scope) => Some(Format::AsPublished { encoding, scope }),
            Published::Unknown => None,
        }
    }

    /// The sizes of the model in a format. Memory besides weights is that of a typical process, not
    /// of this one.
    pub fn footprint(&self, format: Format, options: PlanOptions) -> Result<Footprint> {
        let spec = match (&self.spec, &self.refusal) {
            (Some(spec), _) => spec,
            (None, Some(refusal)) => return Err(in_config(&self.path, refusal.to_string())),
            (None, None) => unreachable!("a configuration is accepted or refused"),
        };
        let failed = |cause: Cause| in_config(&self.path, cause);
        let manifest = spec.outline(|kind| format.of(kind)).map_err(|e| failed(e.into()))?;
        let inventory = Inventory::new(spec, &manifest).map_err(|e| failed(e.into()))?;
        let process = typical(spec, &manifest);
        let planner = Planner::new(spec, &inventory, &manifest, process, options)
            .map_err(|e| failed(e.into()))?;
        let sum = |expert: bool| {
            let pieces = manifest.pieces.iter();
            let pieces =
                pieces.filter(|piece| matches!(piece.id.kind(), PieceKind::Expert(_)) == expert);
            pieces.map(|piece| piece.stored_bytes()).sum::<u64>()
        };
        let infrastructure = sum(false);
        Ok(Footprint { bytes: infrastructure + sum(true), infrastructure, planner })
    }
}

impl Footprint {
    /// The smallest budget that works, in whole MiB.
    pub fn smallest(&self) -> u64 {
        self.planner.smallest()
    }

    /// The plan within a budget; `None` if it is too small.
    pub fn plan(&self, ram: u64) -> Option<Plan> {
        self.planner.plan(ram).ok()
    }
}

impl Format {
    /// The encoding of the matrices of a kind of piece.
    pub fn of(self, kind: PieceKind) -> Encoding {
        let outside = matches!(kind, PieceKind::Embed | PieceKind::LmHead);
        match self {
            Format::Shards(encoding) => encoding,
            Format::AsPublished { encoding, scope: Scope::Layers } if !outside => encoding,
            Format::AsPublished { encoding, scope: Scope::Experts }
                if matches!(kind, PieceKind::Expert(_)) =>
            {
                encoding
            }
            Format::AsPublished { .. } => Encoding::Bf16,
        }
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Format::Shards(encoding) => write!(f, "{encoding}"),
            Format::AsPublished { encoding, .. } => write!(f, "{encoding}, as published"),
        }
    }
}

impl Published {
    fn of(config: &Configuration) -> Published {
        let within = |map: &std::collections::BTreeMap<String, Value>| {
            map.get(QUANTISED).filter(|value| !value.is_null()).cloned()
        };
        let text = config.entries.get("text_config").and_then(Value::as_map);
        let Some(value) = within(&config.entries).or_else(|| within(text?)) else {
            return Published::Plain;
        };
        let entry = |key: &str| value.as_map().and_then(|map| map.get(key));
        let method = entry("quant_method").and_then(Value::as_str);
        match (method, entry("weight_block_size").and_then(Value::as_list)) {
            (Some("fp8"), Some([Value::Int(128), Value::Int(128)])) => {
                Published::Quantised(Encoding::Fp8, Scope::Layers)
            }
            (Some("mxfp4"), _) => Published::Quantised(Encoding::Mxfp4, Scope::Experts),
            _ => Published::Unknown,
        }
    }
}

const QUANTISED: &str = "quantization_config";

/// The configuration of the same model in plain floats.
fn plain(config: &Configuration) -> Configuration {
    let mut config = config.clone();
    config.entries.remove(QUANTISED);
    if let Some(Value::Map(text)) = config.entries.get_mut("text_config") {
        text.remove(QUANTISED);
    }
    config
}

/// Memory of a process with the tables of these weights, and the tokenizer of a vocabulary of this
/// size, as measured with published models.
fn typical(spec: &ModelSpec, manifest: &Manifest) -> ProcessMemory {
    const MIB: u64 = 1 << 20;
    const TOKEN: u64 = 400;
    const TENSOR: u64 = 400;
    let tensors: usize = manifest.pieces.iter().map(|piece| piece.tensors.len()).sum();
    ProcessMemory {
        program: 16 * MIB,
        stacks: 6 * MIB,
        heap: 8 * MIB + tensors as u64 * TENSOR,
        tokenizer: spec.vocab as u64 * TOKEN,
        slack: 4 * MIB,
        files: 10 * MIB,
        kernel: 8 * MIB,
        peak: 0,
    }
}

fn in_config(path: &Path, cause: impl Into<Cause>) -> Error {
    Error::Model { dir: path.to_owned(), cause: cause.into() }
}
