//! Helpers of tests, gates and benchmarks. No crate that is published depends on this one, except
//! for its tests.

pub mod bucket;
pub mod cgroup;
pub mod child;
pub mod gguf;
pub mod goldens;
pub mod hub;
pub mod memory_tier;
pub mod noisy;
pub mod proxy;
pub mod random;
pub mod readers;
pub mod recorded;
pub mod toy;
pub mod troubled;
pub mod virtual_time;

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sws_draft::{DraftShape, DraftSize, MicroDraftModel};
use sws_format::{MANIFEST_FILE, Manifest, open_checkpoint};
use sws_model::{LoadError, ModelSpec, ResidentSource};
use sws_os::file::read_exact_at;
use sws_text::Sampling;

/// True in `.ci/night`, where the longest tables of tests are whole. Elsewhere a test takes a part of its table.
pub fn is_night() -> bool {
    std::env::var_os("SWS_NIGHT").is_some()
}

/// All cases of a table in `.ci/night`, and else each `nth`, from the first on.
pub fn each_nth<T>(cases: impl IntoIterator<Item = T>, nth: usize) -> impl Iterator<Item = T> {
    cases.into_iter().step_by(if is_night() { 1 } else { nth })
}

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The bundled model.
pub fn tales() -> PathBuf {
    root().join("shards/tales-moe")
}

/// Reads the manifest and the spec of a checkpoint or shard directory.
pub fn open(dir: &Path) -> Result<(Manifest, ModelSpec)> {
    if dir.join(MANIFEST_FILE).exists() {
        let manifest = Manifest::load(dir)?;
        let config = manifest.read_small(dir, "config.json", None)?;
        let config = config.with_context(|| format!("`{}` has no config.json", dir.display()))?;
        let spec = ModelSpec::parse(&config)?.for_weights(&manifest);
        return Ok((manifest, spec));
    }
    let checkpoint = open_checkpoint(dir, None)?;
    let naming = sws_model::naming(checkpoint.config())?;
    let manifest = Manifest::in_place(&*checkpoint, &*naming)?;
    let spec = ModelSpec::of(checkpoint.config())?.for_weights(&manifest);
    Ok((manifest, spec))
}

/// The spec of a model.
pub fn spec(dir: &Path) -> ModelSpec {
    ModelSpec::parse(&std::fs::read(dir.join("config.json")).unwrap()).unwrap()
}

/// Loads all weights with plain reads, not through a store.
pub fn resident(
    dir: &Path,
    manifest: &Manifest,
    spec: &ModelSpec,
) -> Result<ResidentSource, LoadError> {
    let files: Vec<File> =
        manifest.files.iter().map(|file| File::open(dir.join(&file.path)).unwrap()).collect();
    ResidentSource::load(spec, manifest, |extent, to| {
        Ok(read_exact_at(&files[extent.file as usize], to, extent.offset)?)
    })
}

/// Our untrained draft within so many bytes, for a model all of whose layers have experts.
pub fn draft(spec: &ModelSpec, bytes: usize) -> Result<MicroDraftModel> {
    let layers = spec.layers.iter().map(|layer| layer.moe().map(|moe| (moe.experts, moe.top_k)));
    let layers: Option<Vec<_>> = layers.collect();
    let layers = layers.filter(|all| all.iter().all(|layer| *layer == all[0]));
    let layers = layers.context("a model whose layers do not all have the same experts")?;
    let &(experts, top_k) = layers.first().context("a model without layers")?;
    let layers = (0..layers.len()).collect();
    let shape = DraftShape { hidden: spec.state_width(), layers, experts, top_k, sequences: 1 };
    let size = DraftSize::within(bytes, &shape, 0, spec.vocab).context("a draft has no room")?;
    Ok(MicroDraftModel::new(shape, size))
}

/// Sampling as users do it. Greedy decoding would soon loop, and flatter any cache.
pub fn sampled() -> Sampling {
    Sampling { temperature: 1.0, top_k: 40, top_p: 0.95, seed: 7, ..Sampling::default() }
}
