//! Models without weights, as their configurations describe them.

mod format;

use std::io::Read;
use std::path::{Path, PathBuf};

use sws_engine::{Plan, PlanOptions, Planner, ProcessMemory, TierHits};
use sws_format::{
    CheckpointError, Configuration, Manifest, PieceKind, encoding_of, open_regular, read_config,
};
use sws_kernels::{Activations, Encoding};
use sws_model::{Description, ForwardState, InvalidConfig, Inventory, KvPrecision, ModelSpec};

use crate::error::of_model;
use crate::open::model::is_unsupported;
use crate::{Computing, Dry, Error, Model, Result, VramPlan};
use format::UnknownFormat;
pub use format::{Format, Scope};

const MIB: u64 = 1 << 20;
/// Maximum memory of a model in memory besides its weights, above its smallest budget.
const ROOM: u64 = 1 << 30;

/// A model as described by its configuration alone, without any weights.
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
    /// The model's structure, which does not depend on the format of the weights.
    spec: Option<ModelSpec>,
    /// The reason why a checkpoint with this configuration cannot be run.
    refusal: Option<InvalidConfig>,
    /// The matrices that the checkpoint stores quantised.
    quantised: Result<Option<(Encoding, Scope)>, UnknownFormat>,
}

/// Sizes of a model in one format.
#[derive(Debug)]
pub struct Footprint {
    /// Bytes of all weights.
    pub bytes: u64,
    /// Bytes of the weights besides experts and the tables of layers. A token needs all of them but
    /// the embedding, of which it reads a row.
    pub infrastructure: u64,
    /// Bytes of the tables of layers, which stay on disk, and of the rows that each token reads of
    /// them; `None` without such a table.
    pub layer_tables: Option<[u64; 2]>,
    planner: Planner,
}

/// Memory of a sequence: its KV cache, or the states that a family keeps instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceBytes {
    /// Bytes per position.
    pub position: u64,
    /// Bytes that do not depend on the number of positions: full windows, and recurrent states.
    pub fixed: u64,
}

impl Outline {
    /// Reads a `config.json`, or that of a directory. Fails if it is damaged or lacks entries that
    /// its family needs; one that is not supported is described.
    pub fn read(path: impl AsRef<Path>) -> Result<Outline> {
        let path = path.as_ref();
        Outline::of(path, &read_config(path)?)
    }

    /// The outline of the model at `path`, which failed to open with `error`: because it has no
    /// weights, or because its configuration is not supported. Returns any other error.
    pub fn instead(error: Error, path: &Path) -> Result<Outline> {
        let described = match &error {
            // GGUF files have their configurations in headers.
            Error::Model { cause, .. } => {
                let invalid = cause.downcast_ref::<InvalidConfig>();
                invalid.is_some_and(is_unsupported) && path.join("config.json").exists()
            }
            Error::Checkpoint(
                CheckpointError::NoWeights { .. } | CheckpointError::Other { .. },
            ) => path.join("config.json").exists(),
            Error::Checkpoint(CheckpointError::NotADirectory { .. }) => is_json(path),
            _ => false,
        };
        if described { Outline::read(path) } else { Err(error) }
    }

    /// The outline of a model with this configuration. Errors name `path`.
    pub fn of(path: &Path, config: &Configuration) -> Result<Outline> {
        let (spec, refusal) = match ModelSpec::of(config) {
            Ok(spec) => (Some(spec), None),
            // The structure does not depend on how weights are stored.
            Err(refusal) if is_unsupported(&refusal) => {
                (ModelSpec::of(&format::plain(config)).ok(), Some(refusal))
            }
            Err(damage) => return Err(Error::model(path, damage)),
        };
        Ok(Outline {
            path: path.to_owned(),
            description: Description::of(config),
            spec,
            refusal,
            quantised: format::published(config),
        })
    }

    /// The entries that every configuration has in some spelling.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// The model's structure; `None` if it is not supported.
    pub fn spec(&self) -> Option<&ModelSpec> {
        self.spec.as_ref()
    }

    /// Fails with the reason if a checkpoint with this configuration cannot be run.
    pub fn supported(self) -> Result<Outline> {
        match self.refusal {
            None => Ok(self),
            Some(refusal) => Err(Error::model(&self.path, refusal)),
        }
    }

    /// The reason why a checkpoint with this configuration cannot be run, if so.
    pub fn refusal(&self) -> Option<&InvalidConfig> {
        self.refusal.as_ref()
    }

    /// The formats that the model can have: first the checkpoint's, then those that `sws shard` makes.
    /// Empty for a model that is not supported, and where the checkpoint's format is not known.
    pub fn formats(&self) -> Vec<Format> {
        let plain = [Encoding::Bf16, Encoding::Bf12, Encoding::Bf11, Encoding::Q8, Encoding::Q4];
        plain.into_iter().filter_map(|plain| self.format(plain)).collect()
    }

    /// The format whose matrices have the encoding `plain` where they are published in plain floats;
    /// see [`formats`](Self::formats). It is lossless for bf16, bf11 and bf12, the default of shards.
    pub fn format(&self, plain: Encoding) -> Option<Format> {
        self.spec.as_ref()?;
        Some(Format { plain, quantised: self.quantised.ok()? })
    }

    /// Memory for the KV cache and other states of a sequence; `None` if the model is not
    /// supported.
    pub fn sequence(&self, kv: KvPrecision) -> Option<SequenceBytes> {
        Some(SequenceBytes::of(self.spec.as_ref()?, kv))
    }

    /// Measures how long this machine computes a token of the model in a format. `None` if that is
    /// not possible; see [`Dry::token`].
    pub fn computing(&self, format: Format, dry: &mut Dry<'_>) -> Option<Computing> {
        let spec = self.spec.as_ref()?;
        dry.token(spec, &spec.outline(|kind| format.of(kind)).ok()?)
    }

    /// The sizes of the model in a format. Memory besides weights is that of a typical process, not
    /// of this one.
    pub fn footprint(&self, format: Format, options: PlanOptions) -> Result<Footprint> {
        let (spec, manifest, inventory) = self.weights(format)?;
        let process = typical(spec, &manifest);
        let planner = Planner::new(spec, &inventory, &manifest, process, options);
        Ok(Footprint::with(&manifest, of_model(&self.path, planner)?))
    }

    /// The experts in a format that so many bytes of a graphics card hold.
    pub fn vram(&self, format: Format, limit: u64, activations: Activations) -> Result<VramPlan> {
        let (_, manifest, inventory) = self.weights(format)?;
        VramPlan::within(limit, &inventory, &manifest, activations)
    }

    /// The weights that the model would have in a format.
    fn weights(&self, format: Format) -> Result<(&ModelSpec, Manifest, Inventory)> {
        let spec = match (&self.spec, &self.refusal) {
            (Some(spec), _) => spec,
            (None, Some(refusal)) => return Err(Error::model(&self.path, refusal.to_string())),
            (None, None) => unreachable!("a configuration is accepted or refused"),
        };
        let manifest = spec.outline(|kind| encoding_of(kind, format.of(kind)));
        let manifest = of_model(&self.path, manifest)?;
        let inventory = of_model(&self.path, Inventory::new(spec, &manifest))?;
        Ok((spec, manifest, inventory))
    }
}

impl SequenceBytes {
    /// The memory of a sequence of a model.
    pub fn of(spec: &ModelSpec, kv: KvPrecision) -> SequenceBytes {
        let last = spec.context.max(1);
        // Some families keep one entry for up to this many positions.
        let step = 128.min(last);
        let [before, all] =
            [last - step, last].map(|limit| ForwardState::cache_bytes(spec, limit, kv));
        let position = (all - before) / step as u64;
        SequenceBytes { position, fixed: all.saturating_sub(position * last as u64) }
    }
}

impl Footprint {
    /// The sizes of a model that is on disk. Memory besides weights is that of a typical process.
    pub fn of(model: &Model, options: PlanOptions) -> Result<Footprint> {
        let spec = model.spec();
        let manifest = model.manifest();
        let inventory = model.named(Inventory::new(spec, manifest))?;
        let process = typical(spec, manifest);
        let planner = Planner::new(spec, &inventory, manifest, process, options);
        Ok(Footprint::with(manifest, model.named(planner)?))
    }

    fn with(manifest: &Manifest, planner: Planner) -> Footprint {
        let mut infrastructure = 0_u64;
        let mut others = 0_u64;
        for piece in &manifest.pieces {
            let sum = match piece.id.kind() {
                PieceKind::Expert(_) | PieceKind::Table(_) => &mut others,
                _ => &mut infrastructure,
            };
            *sum = sum.saturating_add(piece.stored_bytes());
        }
        let bytes = infrastructure.saturating_add(others);
        Footprint { bytes, infrastructure, layer_tables: planner.layer_tables(), planner }
    }

    /// The smallest budget with which a token reads nothing from disk except rows of the tables of
    /// layers, in whole MiB; `None` if there is none.
    pub fn in_memory(&self) -> Option<u64> {
        let most = self.smallest().checked_add(self.bytes.checked_mul(2)?)?.checked_add(ROOM)?;
        if !is_in_memory(&self.planner.plan(most).ok()?) {
            return None;
        }
        let found = self.planner.smallest_with(most, MIB, is_in_memory).ok()?;
        Some(found.next_multiple_of(MIB).max(self.smallest()))
    }

    /// The smallest budget that works, in whole MiB.
    pub fn smallest(&self) -> u64 {
        self.planner.smallest()
    }

    /// The plan within a budget; `None` if it is too small.
    pub fn plan(&self, ram: u64) -> Option<Plan> {
        self.planner.plan(ram).ok()
    }

    /// Expected places of experts with a tier beside a plan; see [`Planner::tier_hits`].
    pub fn tier_hits(&self, plan: &Plan, experts: u64) -> Option<TierHits> {
        self.planner.tier_hits(plan, experts)
    }
}

fn is_in_memory(plan: &Plan) -> bool {
    plan.per_token.is_in_memory()
}

/// True for a file that begins as a JSON object does, whatever its name.
fn is_json(path: &Path) -> bool {
    let Ok(file) = open_regular(path) else { return false };
    let mut first = Vec::new();
    let read = file.take(256).read_to_end(&mut first);
    let mut words = first.iter().filter(|byte| !byte.is_ascii_whitespace());
    read.is_ok() && words.next() == Some(&b'{') && matches!(words.next(), Some(b'"' | b'}') | None)
}

/// Typical memory of a process with the tables of these weights and a tokenizer for a vocabulary of
/// this size, as measured with published models.
fn typical(spec: &ModelSpec, manifest: &Manifest) -> ProcessMemory {
    const TOKEN: u64 = 80;
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
