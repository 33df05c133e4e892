//! A model on disk: its manifest, its configuration, and the files beside its weights.

#[cfg(test)]
mod flips;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sws_model::text::{ChatTemplate, Generation, GenerationOptions, Tokenizer};
use sws_model::{ModelSpec, check_tokens};
use sws_store::{
    Checkpoint, MANIFEST_FILE, Manifest, Memory, NVMeWeightStore, ReaderKind, ShardReader,
    StoreOptions, remedy, user_cache,
};

use crate::error::{Cause, Lacking};
use crate::{Error, LoadedModel, Loader, Options, Result, locate};

const CONFIG: &str = "config.json";

/// A model on disk whose configuration has been read. Clones are the same one.
///
/// ```no_run
/// let model = sws::Model::open("shards/tales-moe")?;
/// println!("{} layers", model.spec().layers.len());
/// # Ok::<(), sws::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Model(Arc<Files>);

#[derive(Debug)]
struct Files {
    dir: PathBuf,
    manifest: Arc<Manifest>,
    spec: ModelSpec,
    config_json: Vec<u8>,
    /// The place of the first readings of files that no manifest vouches for.
    cache: Option<PathBuf>,
    /// Counts what is on the heap.
    heap: Option<fn() -> u64>,
}

impl Model {
    /// A shard directory, a checkpoint directory, or the id of a model in the Hugging Face cache.
    pub fn open(name: impl AsRef<Path>) -> Result<Model> {
        Model::at(locate(name)?, user_cache(), None)
    }

    /// As [`open`](Self::open), in a program whose allocator counts what is on its heap: budgets then
    /// tell the heap from what the allocator holds beyond it.
    pub fn open_counted(name: impl AsRef<Path>, heap: fn() -> u64) -> Result<Model> {
        Model::at(locate(name)?, user_cache(), Some(heap))
    }

    fn at(dir: PathBuf, cache: Option<PathBuf>, heap: Option<fn() -> u64>) -> Result<Model> {
        let (manifest, config_json) = read_manifest(&dir, cache.as_deref())?;
        let spec = ModelSpec::parse(&config_json).map_err(|e| in_dir(&dir, e))?;
        let manifest = Arc::new(manifest);
        Ok(Model(Arc::new(Files { dir, manifest, spec, config_json, cache, heap })))
    }

    /// The directory that it lies in.
    pub fn dir(&self) -> &Path {
        &self.0.dir
    }

    /// Its pieces.
    pub fn manifest(&self) -> &Manifest {
        &self.0.manifest
    }

    /// The layers and their sizes, as its configuration has them.
    pub fn spec(&self) -> &ModelSpec {
        &self.0.spec
    }

    /// True for a directory of shards; otherwise it is a checkpoint.
    pub fn is_sharded(&self) -> bool {
        self.dir().join(MANIFEST_FILE).exists()
    }

    /// Bytes on the heap, where they are counted.
    pub(crate) fn heap(&self) -> Option<u64> {
        self.0.heap.map(|heap| heap())
    }

    /// Loads it as the command line does where nothing is said: within the memory that is free.
    pub fn load(&self) -> Result<LoadedModel> {
        self.with(Options::default()).load()
    }

    /// Loads it within a budget: `8GiB`, `80%` of the machine's memory, `min` for the least that works,
    /// `auto` for what is free. It counts the whole process.
    pub fn ram(&self, size: &str) -> Loader<'_> {
        self.with(Options::default()).ram(size)
    }

    /// Loads it with these options.
    pub fn with(&self, options: Options) -> Loader<'_> {
        Loader::new(self, options)
    }

    /// The tokenizer, if there is one.
    pub fn tokenizer(&self) -> Result<Option<Tokenizer>> {
        let Some(json) = self.beside("tokenizer.json")? else { return Ok(None) };
        let mut tokenizer = Tokenizer::from_bytes(&json).map_err(|e| self.error(e))?;
        tokenizer.limit(self.spec().vocab).map_err(|e| self.error(e))?;
        Ok(Some(tokenizer))
    }

    /// The way to generate: `options` over what the model's files say.
    pub fn generation(&self, options: &GenerationOptions) -> Result<Generation> {
        let file = self.beside("generation_config.json")?;
        Generation::resolve(file.as_deref(), &self.0.config_json, options)
            .map_err(|e| self.error(e))
    }

    /// The chat template; an error for a model without one.
    pub fn chat_template(&self) -> Result<ChatTemplate> {
        let config = self.beside("tokenizer_config.json")?;
        let template = self.beside("chat_template.jinja")?;
        let found = ChatTemplate::from_files(config.as_deref(), template.as_deref());
        found.map_err(|e| self.error(e))?.ok_or_else(|| self.error(Lacking::Template))
    }

    /// Its pieces, to be read.
    pub fn store(&self, reader: ReaderKind) -> Result<NVMeWeightStore> {
        self.store_with(self.reader(reader)?)
    }

    /// Reads its files.
    pub(crate) fn reader(&self, kind: ReaderKind) -> Result<Arc<dyn ShardReader>> {
        let depth = StoreOptions::default().depth;
        kind.open(self.manifest(), self.dir(), depth).map_err(Error::Reader)
    }

    /// Its pieces, read by a reader of its files.
    pub(crate) fn store_with(&self, reader: Arc<dyn ShardReader>) -> Result<NVMeWeightStore> {
        let (reader, cache) = (Some(reader), self.0.cache.clone());
        let options = StoreOptions { reader, cache, ..StoreOptions::default() };
        NVMeWeightStore::open(Arc::clone(&self.0.manifest), self.dir(), options).map_err(|e| {
            let remedy = remedy(&e, "close other programs");
            self.error(format!("threads that read cannot be started: {e}; {remedy}"))
        })
    }

    /// The words for weights that are not those that were trained.
    pub fn lossy(&self) -> Option<String> {
        let tensors = self.manifest().pieces.iter().flat_map(|piece| &piece.tensors);
        let errors = tensors.filter_map(|tensor| tensor.error.map(|error| error.relative));
        let worst = errors.max_by(f64::total_cmp)?;
        let encoding = self.manifest().encoding.map_or(String::new(), |e| format!(" in {e}"));
        Some(format!("weights{encoding}, relative error of a tensor up to {worst:.1e}"))
    }

    /// Refuses tokens that the model cannot take, before it is loaded for them.
    pub fn check(&self, tokens: &[u32]) -> Result<()> {
        check_tokens(tokens, 0, self.spec().context, self.spec().vocab).map_err(|e| self.error(e))
    }

    /// An error about the model, with its name.
    pub fn error(&self, cause: impl Into<Cause>) -> Error {
        in_dir(self.dir(), cause)
    }

    /// A file beside the weights, checked; None if it is neither there nor has to be.
    fn beside(&self, name: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.manifest().read_small(self.dir(), name, self.0.cache.as_deref())?)
    }

    /// Refuses what needs more memory than there is: better a sentence than the kernel's way of finding
    /// some.
    pub(crate) fn check_memory(&self, needed: u64, otherwise: &'static str) -> Result<()> {
        match Memory::now() {
            Some(Memory { available, holder, .. }) if available < needed => {
                let dir = self.dir().to_owned();
                Err(Error::Memory { dir, needed, available, holder, otherwise })
            }
            _ => Ok(()),
        }
    }
}

/// The manifest of a shard directory, or what it would be of a checkpoint, with its configuration
/// checked. The model may be of a family that cannot be run.
pub fn manifest(dir: &Path) -> Result<Manifest> {
    Ok(read_manifest(dir, user_cache().as_deref())?.0)
}

fn read_manifest(dir: &Path, cache: Option<&Path>) -> Result<(Manifest, Vec<u8>)> {
    let manifest = if dir.join(MANIFEST_FILE).exists() {
        Manifest::load(dir)?
    } else {
        let checkpoint = Checkpoint::open(dir)?;
        let naming = sws_model::naming(checkpoint.config_json()).map_err(|e| in_dir(dir, e))?;
        Manifest::in_place(&checkpoint, &*naming)?
    };
    let config = manifest.read_small(dir, CONFIG, cache)?;
    let config = config.ok_or_else(|| Error::NoConfig { path: dir.join(CONFIG) })?;
    Ok((manifest, config))
}

fn in_dir(dir: &Path, cause: impl Into<Cause>) -> Error {
    Error::Model { dir: dir.to_owned(), cause: cause.into() }
}
