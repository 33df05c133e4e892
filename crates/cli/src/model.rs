//! From what was typed for MODEL to a model that can run.

#[cfg(test)]
mod flips;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use sws_model::text::{ChatTemplate, Generation, GenerationOptions, Tokenizer};
use sws_model::{Loader, ModelSpec, ResidentSource};
use sws_store::shard::Progress;
use sws_store::{
    Arena, Checkpoint, Holder, MANIFEST_FILE, Manifest, Memory, NVMeWeightStore, Read, ReaderKind,
    ShardReader, StoreOptions, open_regular, remedy, user_cache,
};

use crate::interrupt::{Interrupt, Interrupted};
use crate::progress::{Meter, Unit};
use crate::terminal::note;

/// The directory in which the model that comes with the project lies.
const SHARDS: &str = "shards";
/// Memory for reads under way while a model is loaded, beside its largest piece.
const LOADING_BYTES: usize = 64 << 20;

/// A model on disk whose configuration has been read.
pub(crate) struct Model {
    pub(crate) dir: PathBuf,
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) spec: ModelSpec,
    config_json: Vec<u8>,
    /// Where the first readings of files are kept that no manifest vouches for.
    cache: Option<PathBuf>,
}

impl Model {
    /// The model that was typed, or the one that comes with the project.
    pub(crate) fn open(typed: Option<&Path>) -> anyhow::Result<Model> {
        let dir = match typed {
            Some(typed) => locate(typed)?,
            None => shipped()?,
        };
        Model::at(dir, user_cache())
    }

    fn at(dir: PathBuf, cache: Option<PathBuf>) -> anyhow::Result<Model> {
        let (manifest, config_json) = manifest(&dir, cache.as_deref())?;
        let spec = ModelSpec::parse(&config_json).map_err(|e| in_dir(&dir, &e))?;
        Ok(Model { dir, manifest: Arc::new(manifest), spec, config_json, cache })
    }

    /// The tokenizer, if there is one.
    pub(crate) fn tokenizer(&self) -> anyhow::Result<Option<Tokenizer>> {
        let Some(json) = self.beside("tokenizer.json")? else { return Ok(None) };
        let mut tokenizer = Tokenizer::from_bytes(&json).map_err(|e| self.says(&e))?;
        tokenizer.limit(self.spec.vocab).map_err(|e| self.says(&e))?;
        Ok(Some(tokenizer))
    }

    /// How to generate: what was typed over what the model's files say.
    pub(crate) fn generation(&self, typed: &GenerationOptions) -> anyhow::Result<Generation> {
        let file = self.beside("generation_config.json")?;
        Generation::resolve(file.as_deref(), &self.config_json, typed).map_err(|e| self.says(&e))
    }

    /// The chat template, if there is one.
    pub(crate) fn chat_template(&self) -> anyhow::Result<Option<ChatTemplate>> {
        let config = self.beside("tokenizer_config.json")?;
        let template = self.beside("chat_template.jinja")?;
        ChatTemplate::from_files(config.as_deref(), template.as_deref()).map_err(|e| self.says(&e))
    }

    /// Loads all weights, every byte verified and every number looked at.
    pub(crate) fn load(
        &self,
        reader: ReaderKind,
        interrupt: &Interrupt,
    ) -> anyhow::Result<ResidentSource> {
        let mut loader = Loader::new(&self.spec, &self.manifest).map_err(|e| self.says(&e))?;
        let store = self.store(reader)?;
        let wanted: Vec<Read> = loader.wanted().into_iter().map(Read::Piece).collect();
        let (mut total, mut largest) = (0, 0);
        for read in &wanted {
            let len = store.layout(read.clone())?.slot_len();
            total += len as u64;
            largest = largest.max(len);
        }
        let otherwise = "shard it in a smaller encoding (`sws shard --encoding q4`)";
        self.check_memory(total + largest as u64, otherwise)?;
        let arena = Arena::new(largest + LOADING_BYTES.min(total as usize))
            .map_err(|e| self.says(&format_args!("{e}; {}", remedy(&e, "close other programs"))))?;

        let meter = Meter::quiet("loading", Unit::Bytes);
        let mut done = 0;
        let mut failure = None;
        store.extract_while(&wanted, &arena, |completion| {
            if interrupt.asked() {
                failure = Some(Interrupted("the model was still being loaded").into());
                return ControlFlow::Break(());
            }
            done += completion.layout.slot_len() as u64;
            meter.show(Progress { done, total });
            let added = completion.result.map_err(anyhow::Error::from).and_then(|()| {
                let layout = &completion.layout;
                let tensors = layout.tensors();
                let add = loader.add(layout.read().piece(), |_, (tensor, part), into| {
                    let found = tensors.iter().find(|t| t.index == tensor);
                    let bytes = found.and_then(|t| t.part(&completion.slot, part));
                    into.copy_from_slice(bytes.ok_or("the read left out a tensor")?);
                    Ok(())
                });
                add.map_err(|e| self.says(&e))
            });
            failure = added.err();
            if failure.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        meter.finish();
        match failure {
            Some(error) => Err(error),
            None => Ok(loader.finish()),
        }
    }

    /// Its pieces, to be read.
    pub(crate) fn store(&self, reader: ReaderKind) -> anyhow::Result<NVMeWeightStore> {
        self.store_with(self.reader(reader)?)
    }

    /// What reads its files.
    pub(crate) fn reader(&self, kind: ReaderKind) -> anyhow::Result<Arc<dyn ShardReader>> {
        Ok(kind.open(&self.manifest, &self.dir, StoreOptions::default().depth)?)
    }

    /// Its pieces, read by a reader of its files.
    pub(crate) fn store_with(
        &self,
        reader: Arc<dyn ShardReader>,
    ) -> anyhow::Result<NVMeWeightStore> {
        let (reader, cache) = (Some(reader), self.cache.clone());
        let options = StoreOptions { reader, cache, ..StoreOptions::default() };
        NVMeWeightStore::open(Arc::clone(&self.manifest), &self.dir, options).map_err(|e| {
            let remedy = remedy(&e, "close other programs");
            self.says(&format_args!("threads that read cannot be started: {e}; {remedy}"))
        })
    }

    /// Whether it is a directory of shards; otherwise it is a checkpoint.
    #[cfg(feature = "candle")]
    pub(crate) fn is_sharded(&self) -> bool {
        self.dir.join(MANIFEST_FILE).exists()
    }

    /// What must be said of a model whose weights are not those that were trained.
    pub(crate) fn lossy(&self) -> Option<String> {
        let tensors = self.manifest.pieces.iter().flat_map(|piece| &piece.tensors);
        let errors = tensors.filter_map(|tensor| tensor.error.map(|error| error.relative));
        let worst = errors.max_by(f64::total_cmp)?;
        let encoding = self.manifest.encoding.map_or(String::new(), |e| format!(" in {e}"));
        Some(format!("weights{encoding}, relative error of a tensor up to {worst:.1e}"))
    }

    /// An error about the model, with its name.
    pub(crate) fn says(&self, error: &dyn std::fmt::Display) -> anyhow::Error {
        in_dir(&self.dir, error)
    }

    /// A file beside the weights, checked; None if it is neither there nor has to be.
    fn beside(&self, name: &str) -> anyhow::Result<Option<Vec<u8>>> {
        Ok(self.manifest.read_small(&self.dir, name, self.cache.as_deref())?)
    }

    /// Better a sentence than the kernel's way of finding memory.
    pub(crate) fn check_memory(&self, needed: u64, otherwise: &str) -> anyhow::Result<()> {
        let Some(memory) = Memory::now().filter(|memory| memory.available < needed) else {
            return Ok(());
        };
        let room = match memory.holder {
            Holder::Machine => "close other programs",
            Holder::Cgroup(_) => "give it more",
        };
        bail!(
            "`{}` needs {} of memory and {} has {} left; {room}, or {otherwise}",
            self.dir.display(),
            crate::commands::size(needed),
            memory.holder,
            crate::commands::size(memory.available),
        )
    }
}

/// The manifest of a shard directory or of a checkpoint, and its configuration, checked.
pub(crate) fn manifest(dir: &Path, cache: Option<&Path>) -> anyhow::Result<(Manifest, Vec<u8>)> {
    const CONFIG: &str = "config.json";
    let manifest = if dir.join(MANIFEST_FILE).exists() {
        Manifest::load(dir)?
    } else {
        let checkpoint = Checkpoint::open(dir)?;
        let naming = sws_model::naming(checkpoint.config_json()).map_err(|e| in_dir(dir, &e))?;
        Manifest::in_place(&checkpoint, &*naming)?
    };
    let config = manifest.read_small(dir, CONFIG, cache)?.ok_or_else(|| {
        anyhow!("`{}` is missing; make the shards again", dir.join(CONFIG).display())
    })?;
    Ok((manifest, config))
}

/// The directory of what was typed: a path, or the id of a model in the Hugging Face cache.
pub(crate) fn locate(typed: &Path) -> anyhow::Result<PathBuf> {
    if typed.exists() {
        return Ok(typed.to_owned());
    }
    let shown = typed.display();
    let Some(id) = typed.to_str().filter(|id| is_hub_id(id)) else {
        bail!(
            "`{shown}` does not exist; give a shard directory, a checkpoint directory, or the id of a model in the Hugging Face cache"
        );
    };
    let cache = hub_cache();
    // The name of a revision, which is opened there without a look at what it is.
    let revision = format!("models--{}/refs/main", id.replace('/', "--"));
    let found = cache.as_ref().filter(|cache| open_regular(cache.path().join(revision)).is_ok());
    let config = found.and_then(|cache| cache.model(id.to_owned()).get("config.json"));
    let dir = config.and_then(|path| Some(path.parent()?.to_owned()));
    dir.with_context(|| {
        let place = cache.map_or(String::new(), |cache| format!(" (`{}`)", cache.path().display()));
        let remedy = match id.contains('/') {
            true => format!("check the path, or download the model of that id with `hf download {id}`"),
            false => "give a directory, or the id of a model there: owner/name".to_owned(),
        };
        format!("`{shown}` is neither a directory nor a model in the Hugging Face cache{place}; {remedy}")
    })
}

/// Where Python's library keeps models. None without a home: `from_env` would panic.
fn hub_cache() -> Option<hf_hub::Cache> {
    if let Some(dir) = std::env::var_os("HF_HUB_CACHE") {
        return Some(hf_hub::Cache::new(dir.into()));
    }
    let somewhere = std::env::var("HF_HOME").is_ok() || std::env::home_dir().is_some();
    somewhere.then(hf_hub::Cache::from_env)
}

/// `name` or `owner/name`.
fn is_hub_id(word: &str) -> bool {
    let part = |part: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !part.is_empty() && !part.starts_with('.') && part.chars().all(plain)
    };
    word.split('/').count() <= 2 && word.split('/').all(part)
}

/// The model in `shards/`: below the working directory, or above the program.
fn shipped() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().and_then(|path| path.canonicalize()).ok();
    let above = program.iter().flat_map(|path| path.ancestors().skip(1));
    let places = [Path::new("")].into_iter().chain(above).map(|dir| dir.join(SHARDS));
    for place in places {
        let Ok(entries) = place.read_dir() else { continue };
        let dirs = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let mut models: Vec<PathBuf> =
            dirs.filter(|dir| dir.join(MANIFEST_FILE).exists()).collect();
        models.sort();
        if models.len() > 1 {
            let names: Vec<_> = models.iter().map(|dir| dir.display().to_string()).collect();
            bail!("`{}` holds several models; name one: {}", place.display(), names.join(", "));
        }
        if let Some(model) = models.pop() {
            note!("sws: the model is `{}`", model.display());
            return Ok(model);
        }
    }
    bail!(
        "no model was given, and there is none in `{SHARDS}`, neither here nor where the program lies; give a shard directory, a checkpoint directory, or the id of a model in the Hugging Face cache"
    )
}

fn in_dir(dir: &Path, error: &dyn std::fmt::Display) -> anyhow::Error {
    anyhow!("`{}`: {error}", dir.display())
}
