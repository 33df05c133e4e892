//! A model on disk: its manifest, its configuration and its small files.

#[cfg(test)]
mod flips;
#[cfg(test)]
mod gguf;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sws_engine::RamBudget;
use sws_format::{
    Checkpoint, CheckpointError, Configuration, MANIFEST_FILE, Manifest, ShardReader,
    SmallFileError, open_checkpoint, read_config, remedy,
};
use sws_model::{ConfigError, InvalidConfig, ModelSpec, check_tokens};
use sws_store::{
    Mirror, NVMeWeightStore, ReaderKind, StoreOptions, Supply, SystemMemory, user_cache,
};
use sws_text::gguf::{self as gguf_text, GgufTextError, tokenizer_config_json};
use sws_text::{
    ChatTemplate, Generation, GenerationError, GenerationOptions, Infill, Tokenizer, TokenizerError,
};
use tracing::info;

use crate::error::{Cause, Lacking, of_model};
use crate::load::vram::KeptVram;
use crate::open::mirrors::Mirrors;
use crate::open::reading::{TokenizerReading, check_manifest};
use crate::{Error, Result, locate};

const CONFIG: &str = "config.json";
const TOKENIZER: &str = "tokenizer.json";
/// Name of the GGUF header in a directory of shards. It contains the tokenizer and the template.
const HEADER: &str = "header.gguf";

/// A model on disk, with its configuration. Clones share their data.
///
/// ```no_run
/// let model = sws::Model::open("shards/tales-moe")?;
/// println!("{} layers", model.spec().layers.len());
/// # Ok::<(), sws::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Model(Arc<ModelFiles>);

#[derive(Clone, Debug)]
struct ModelFiles {
    dir: PathBuf,
    manifest: Arc<Manifest>,
    spec: ModelSpec,
    config: Configuration,
    /// Path of a checkpoint whose weight files hold the small files too.
    embedding: Option<PathBuf>,
    /// Directory for records of files that no manifest covers. A record is made when its file is
    /// first read.
    cache: Option<PathBuf>,
    /// Function that returns the bytes on the heap.
    heap: Option<fn() -> u64>,
    /// Remote source of the shards, unless all of them are on this machine.
    supply: Option<Arc<dyn Supply>>,
    /// Copies of the shards on other drives.
    mirrors: Mirrors,
    vram: KeptVram,
}

/// The defaults of generation in a model's files.
#[derive(Clone, Debug)]
pub struct Defaults {
    model: Model,
    file: Option<Vec<u8>>,
}

impl Defaults {
    /// Resolves `options` against the defaults.
    pub fn generation(&self, options: &GenerationOptions) -> Result<Generation> {
        let Defaults { model, file } = self;
        match Generation::resolve(file.as_deref(), &model.0.config, options) {
            Err(e @ GenerationError::Option { .. }) => Err(Error::Generation(e)),
            resolved => model.named(resolved),
        }
    }
}

impl Model {
    /// Opens a shard directory, a checkpoint directory, a GGUF file, or a model in the Hugging Face
    /// cache by its id.
    pub fn open(name: impl AsRef<Path>) -> Result<Model> {
        Model::at(locate(name)?, user_cache(), None, None)
    }

    /// Like [`open`](Self::open), for a budget, and in a program whose allocator counts the heap.
    /// Budgets then list the heap and the overhead of the allocator separately.
    pub fn open_counted(
        name: impl AsRef<Path>,
        ram: Option<RamBudget>,
        heap: fn() -> u64,
    ) -> Result<Model> {
        Model::at(locate(name)?, user_cache(), ram, Some(heap))
    }

    /// Opens a model whose manifest and small files are in a directory, and whose shards are
    /// downloaded while they are read.
    pub fn open_supplied(
        dir: &Path,
        manifest: Arc<Manifest>,
        supply: Arc<dyn Supply>,
        heap: fn() -> u64,
    ) -> Result<Model> {
        let cache = user_cache();
        let opened = Opened::with(dir, manifest, cache.as_deref())?;
        let model = Model::of(opened, cache, Some(heap), Some(supply))?;
        model.wish();
        Ok(model)
    }

    fn at(
        path: PathBuf,
        cache: Option<PathBuf>,
        ram: Option<RamBudget>,
        heap: Option<fn() -> u64>,
    ) -> Result<Model> {
        check_manifest(&path, ram)?;
        let opened = Opened::at(&path, cache.as_deref())?;
        Model::of(opened, cache, heap, None)
    }

    fn of(
        opened: Opened,
        cache: Option<PathBuf>,
        heap: Option<fn() -> u64>,
        supply: Option<Arc<dyn Supply>>,
    ) -> Result<Model> {
        let Opened { manifest, config, dir, embedding } = opened;
        let spec = of_model(embedding.as_ref().unwrap_or(&dir), ModelSpec::of(&config))?;
        let spec = spec.for_weights(&manifest);
        Ok(Model(Arc::new(ModelFiles {
            dir,
            manifest,
            spec,
            config,
            embedding,
            cache,
            heap,
            supply,
            mirrors: Mirrors::default(),
            vram: KeptVram::default(),
        })))
    }

    /// Requests the experts that earlier runs used most, before all others.
    fn wish(&self) {
        let Some(supply) = &self.0.supply else { return };
        let experts = self.experts_by_use();
        if !experts.is_empty() {
            info!("{} experts of earlier runs come before the others", experts.len());
            supply.wish(&experts);
        }
    }

    /// Directory of the model.
    pub fn dir(&self) -> &Path {
        &self.0.dir
    }

    /// Manifest of the model: its files and pieces.
    pub fn manifest(&self) -> &Manifest {
        &self.0.manifest
    }

    /// Layers and their sizes, from the configuration.
    pub fn spec(&self) -> &ModelSpec {
        &self.0.spec
    }

    /// Name of the remote source of the shards; `None` if they are on this machine.
    pub fn supplier(&self) -> Option<String> {
        Some(self.0.supply.as_ref()?.name())
    }

    /// Heap bytes for downloading shards.
    pub(crate) fn supply_heap(&self) -> u64 {
        match &self.0.supply {
            Some(supply) => supply.heap(),
            None => 0,
        }
    }

    /// True for a shard directory, false for a checkpoint.
    pub fn is_sharded(&self) -> bool {
        self.manifest().encoding.is_some()
    }

    /// True for a GGUF file in place.
    #[cfg(feature = "candle")]
    pub(crate) fn is_gguf(&self) -> bool {
        self.0.embedding.is_some()
    }

    /// Bytes on the heap, if they are counted.
    pub(crate) fn heap(&self) -> Option<u64> {
        let heap = self.0.heap?;
        Some(heap())
    }

    /// Reads the tokenizer, if there is one.
    pub fn tokenizer(&self) -> Result<Option<Tokenizer>> {
        self.tokenizer_if(&|_| Ok(()))
    }

    /// Reads the tokenizer, if there is one and its memory fits. `fits` is called before a file is
    /// read, and again when more is known of its size.
    pub(crate) fn tokenizer_if(
        &self,
        fits: &dyn Fn(TokenizerReading) -> Result<()>,
    ) -> Result<Option<Tokenizer>> {
        let agrees = |memory| fits(TokenizerReading::exact(memory)).map_err(Refused::By);
        let (read, file) = match self.beside_if(TOKENIZER, fits)? {
            Some(json) => (Tokenizer::read(&json, agrees).map(Some), TOKENIZER),
            None => {
                let Some(header) = self.beside_if(HEADER, fits)? else { return Ok(None) };
                (gguf_text::tokenizer(&header, agrees), HEADER)
            }
        };
        let mut tokenizer = match read {
            Ok(Some(tokenizer)) => tokenizer,
            Ok(None) => return Ok(None),
            Err(Refused::File(cause)) => return Err(self.error_of(file, cause)),
            Err(Refused::By(error)) => return Err(error),
        };
        match tokenizer.limit(self.spec().vocab) {
            Ok(()) => Ok(Some(tokenizer)),
            Err(e) => Err(self.error_of(file, e)),
        }
    }

    /// The tokens with which texts between a prefix and a suffix are filled in, if the model has
    /// such tokens.
    pub fn infill(&self, tokenizer: &Tokenizer) -> Option<Infill> {
        Infill::of(tokenizer, &self.0.config.entries)
    }

    /// Resolves `options` against the defaults in the model's files.
    pub fn generation(&self, options: &GenerationOptions) -> Result<Generation> {
        self.defaults()?.generation(options)
    }

    /// Reads the defaults of generation in the model's files.
    pub fn defaults(&self) -> Result<Defaults> {
        Ok(Defaults { model: self.clone(), file: self.beside("generation_config.json")? })
    }

    /// Reads the chat template, or takes that of the model type. Fails for a model without one.
    pub fn chat_template(&self) -> Result<ChatTemplate> {
        let mut config = self.beside("tokenizer_config.json")?;
        if config.is_none()
            && let Some(header) = self.beside(HEADER)?
        {
            let made = tokenizer_config_json(&header);
            config = Some(made.map_err(|e| self.error_of(HEADER, e))?);
        }
        let template = self.beside("chat_template.jinja")?;
        let found = ChatTemplate::from_files(config.as_deref(), template.as_deref());
        let found = self.named(found)?;
        match found.or_else(|| ChatTemplate::of_model_type(self.spec().published_type())) {
            Some(template) => Ok(template),
            None => Err(self.error(Lacking::Template)),
        }
    }

    /// Sets the copies of the shards on other drives.
    pub(super) fn set_mirrors(&mut self, mirrors: Mirrors) {
        Arc::make_mut(&mut self.0).mirrors = mirrors;
    }

    pub(crate) fn kept_vram(&self) -> &KeptVram {
        &self.0.vram
    }

    pub(super) fn own_mirrors(&self) -> &Mirrors {
        &self.0.mirrors
    }

    /// Opens the weights of the model for reading.
    pub fn store(&self, reader: ReaderKind) -> Result<NVMeWeightStore> {
        self.store_with(self.reader(reader)?, self.open_mirrors(reader)?)
    }

    /// Opens a reader of the model's files.
    pub(crate) fn reader(&self, kind: ReaderKind) -> Result<Arc<dyn ShardReader>> {
        let depth = StoreOptions::default().depth;
        let others = self.mirrors().len();
        let local = kind.open_beside(self.manifest(), self.dir(), depth, others);
        let local = local.map_err(Error::Reader)?;
        Ok(match &self.0.supply {
            Some(supply) => Arc::clone(supply).reader(local).map_err(Error::Reader)?,
            None => local,
        })
    }

    /// Opens the weights of the model with a reader of its files and of those of its copies.
    pub(crate) fn store_with(
        &self,
        reader: Arc<dyn ShardReader>,
        mirrors: Vec<Mirror>,
    ) -> Result<NVMeWeightStore> {
        let reader = Some(reader);
        let cache = self.0.cache.clone();
        let notice = self.0.mirrors.notice;
        let options = StoreOptions { reader, mirrors, notice, cache, ..StoreOptions::default() };
        NVMeWeightStore::open(Arc::clone(&self.0.manifest), self.dir(), options).map_err(|e| {
            let remedy = remedy(&e, "close other programs");
            self.error(format!("threads that read cannot be started: {e}; {remedy}"))
        })
    }

    /// Describes the loss of precision of the weights. `None` if the encoding is exact.
    pub fn lossy(&self) -> Option<String> {
        let tensors = self.manifest().pieces.iter().flat_map(|piece| &piece.tensors);
        let errors = tensors.filter_map(|tensor| Some(tensor.error?.relative));
        let worst = errors.max_by(f64::total_cmp)?;
        let encoding = match self.manifest().encoding {
            Some(encoding) => format!(" in {encoding}"),
            None => String::new(),
        };
        Some(format!("weights{encoding}, relative error of a tensor up to {worst:.1e}"))
    }

    /// Refuses tokens that the model cannot process, before it is loaded.
    pub fn check(&self, tokens: &[u32]) -> Result<()> {
        self.named(check_tokens(tokens, 0, self.spec().context, self.spec().vocab))
    }

    /// Names the model in the error of a result.
    pub(crate) fn named<T, E: Into<Cause>>(&self, result: Result<T, E>) -> Result<T> {
        result.map_err(|cause| self.error(cause))
    }

    /// Returns an error that names the model.
    pub fn error(&self, cause: impl Into<Cause>) -> Error {
        Error::model(&self.render(), cause)
    }

    /// Returns an error that names a small file of the model.
    fn error_of(&self, file: &str, cause: impl Into<Cause>) -> Error {
        match self.0.embedding {
            Some(_) => self.error(cause),
            None => Error::model(&self.render().join(file), cause),
        }
    }

    /// The model's file, directory or address.
    fn render(&self) -> PathBuf {
        match (&self.0.supply, &self.0.embedding) {
            (Some(supply), _) => supply.address().into(),
            (None, Some(file)) => file.clone(),
            (None, None) => self.dir().to_owned(),
        }
    }

    /// Like [`beside`](Self::beside), but reads a file with a vocabulary only if its memory fits.
    fn beside_if(
        &self,
        name: &str,
        fits: &dyn Fn(TokenizerReading) -> Result<()>,
    ) -> Result<Option<Vec<u8>>> {
        if let Some(len) = self.len_beside(name) {
            fits(TokenizerReading::of_file(len))?;
        }
        self.beside(name)
    }

    /// Length of a small file of the model, as the manifest lists it, or as it is.
    fn len_beside(&self, name: &str) -> Option<u64> {
        match self.manifest().copies.iter().find(|copy| copy.path == name) {
            Some(copy) => Some(copy.len),
            None => Some(self.dir().join(name).metadata().ok()?.len()),
        }
    }

    /// The value of a key of the model's architecture in its GGUF file.
    pub(crate) fn key_of_architecture(&self, key: &str) -> Option<u64> {
        let entries = &self.0.config.entries;
        let architecture = entries.get("general.architecture")?.as_str()?;
        entries.get(&format!("{architecture}.{key}"))?.as_u64()
    }

    /// Reads and verifies a small file of the model. `None` if it is absent and need not exist.
    pub(crate) fn beside(&self, name: &str) -> Result<Option<Vec<u8>>> {
        if let Some(path) = &self.0.embedding {
            let checkpoint = open_checkpoint(path, self.0.cache.as_deref())?;
            if checkpoint.fingerprint() != self.manifest().model.fingerprint {
                return Err(SmallFileError::Changed { path: path.clone() }.into());
            }
            let known = checkpoint.small_files()?.iter().any(|known| known == name);
            return if known { Ok(Some(checkpoint.read_small(name)?)) } else { Ok(None) };
        }
        Ok(self.manifest().read_small(self.dir(), name, self.0.cache.as_deref())?)
    }

    /// Fails if more memory is needed than is available: an error is better than the kernel's
    /// out-of-memory killer.
    pub(crate) fn check_memory(&self, needed: u64, otherwise: &'static str) -> Result<()> {
        match SystemMemory::now() {
            Some(SystemMemory { available, holder, .. }) if available < needed => {
                let dir = self.dir().to_owned();
                Err(Error::Memory { dir, needed, available, holder, otherwise })
            }
            _ => Ok(()),
        }
    }
}

/// Reads the manifest of a shard directory, or makes that of a checkpoint, and checks the
/// configuration. The model has no spec if it cannot be run.
pub fn contents(dir: &Path) -> Result<(Manifest, Option<ModelSpec>)> {
    let Opened { manifest, config, .. } = Opened::at(dir, user_cache().as_deref())?;
    let spec = ModelSpec::of(&config).ok().map(|spec| spec.for_weights(&manifest));
    Ok((Arc::unwrap_or_clone(manifest), spec))
}

/// Reason that a tokenizer was not read.
enum Refused {
    File(Cause),
    By(Error),
}

impl From<TokenizerError> for Refused {
    fn from(error: TokenizerError) -> Refused {
        Refused::File(error.into())
    }
}

impl From<GgufTextError> for Refused {
    fn from(error: GgufTextError) -> Refused {
        Refused::File(error.into())
    }
}

/// The parts of a model that are read when it is opened.
struct Opened {
    manifest: Arc<Manifest>,
    config: Configuration,
    /// Directory of the weights.
    dir: PathBuf,
    /// See [`ModelFiles::embedding`].
    embedding: Option<PathBuf>,
}

impl Opened {
    /// Opens the model in a directory or a file.
    fn at(path: &Path, cache: Option<&Path>) -> Result<Opened> {
        if !path.join(MANIFEST_FILE).exists() {
            let checkpoint = checkpoint(path, cache)?;
            let config = checkpoint.config().clone();
            let naming = of_model(path, sws_model::naming(&config))?;
            let manifest = Manifest::in_place(&*checkpoint, &*naming)?;
            let embeds = manifest.files.iter().any(|file| file.path.ends_with(".gguf"));
            let embedding = if embeds { Some(path.to_owned()) } else { None };
            let manifest = Arc::new(manifest);
            return Ok(Opened { manifest, config, dir: checkpoint.dir().to_owned(), embedding });
        }
        Opened::with(path, Arc::new(Manifest::load(path)?), cache)
    }

    /// Opens the model of a manifest, whose small files are in a directory.
    fn with(path: &Path, manifest: Arc<Manifest>, cache: Option<&Path>) -> Result<Opened> {
        let Some(config) = manifest.read_small(path, CONFIG, cache)? else {
            return Err(Error::NoConfig { path: path.join(CONFIG) });
        };
        let config = of_model(path, Configuration::from_json(CONFIG, &config))?;
        Ok(Opened { manifest, config, dir: path.to_owned(), embedding: None })
    }
}

/// Opens a checkpoint. If its weights are missing, but its configuration is not supported either,
/// the error is the configuration's.
pub fn checkpoint(path: &Path, cache: Option<&Path>) -> Result<Box<dyn Checkpoint>> {
    let error = match open_checkpoint(path, cache) {
        Ok(checkpoint) => return Ok(checkpoint),
        Err(error) => error,
    };
    if matches!(error, CheckpointError::NoWeights { .. } | CheckpointError::Other { .. })
        && let Ok(config) = read_config(path)
        && let Err(refusal) = sws_model::naming(&config)
        && is_unsupported(&refusal)
    {
        return Err(Error::model(path, refusal));
    }
    Err(error.into())
}

/// True if the only problem of a configuration is that it is not supported.
pub(crate) fn is_unsupported(invalid: &InvalidConfig) -> bool {
    matches!(
        invalid.reason,
        ConfigError::Unsupported { .. }
            | ConfigError::UnsupportedEntry { .. }
            | ConfigError::UnknownArchitecture { .. }
            | ConfigError::Projector
    )
}
