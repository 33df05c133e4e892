//! The models on this machine: shards that ids find, and the Hugging Face cache.

use std::collections::HashMap;
use std::fs::ReadDir;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::bail;
use sws::Model;
use sws_format::{MANIFEST_FILE, open_regular};
use sws_hub::{
    CachedModel, HubCache, Library, LibraryShards, ModelId, Snapshot, gguf_models, is_whole,
    snapshot_files,
};

use crate::process;

/// Directory of the bundled model: in the project, and where the command is installed.
const SHARDS: [&str; 2] = ["shards", "share/sws/shards"];
/// The list of the files of a checkpoint, and its size limit.
const INDEX: &str = "model.safetensors.index.json";
const MAX_INDEX: u64 = 64 << 20;

/// The form of a checkpoint.
pub(crate) const CHECKPOINT: &str = "checkpoint";

/// A model on this machine, in one form.
#[derive(Clone, Debug)]
pub(crate) struct Here {
    pub(crate) id: ModelId,
    /// Encoding of shards, `checkpoint`, or the name of a GGUF file; with the revision that finds it,
    /// unless none is needed.
    pub(crate) form: String,
    /// Its path; `None` while its download is not complete.
    pub(crate) path: Option<PathBuf>,
    /// Bytes on disk.
    pub(crate) bytes: u64,
    /// The command that completes it.
    pub(crate) completed_by: String,
}

impl Here {
    /// Time at which it became complete.
    fn since(&self) -> Option<SystemTime> {
        let path = self.path.as_ref()?;
        let manifest = path.join(MANIFEST_FILE);
        let about = match manifest.metadata() {
            Ok(about) => about,
            Err(_) => path.metadata().ok()?,
        };
        about.modified().ok()
    }
}

/// All models, sorted by id and form.
pub(crate) fn all() -> Vec<Here> {
    let mut all = Vec::new();
    if let Some(library) = Library::of_process() {
        all.extend(library.all().into_iter().map(sharded));
    }
    if let Some(cache) = HubCache::of_process() {
        for id in cache.models() {
            all.extend(cached(&id, &cache.model(&id)));
        }
    }
    all.sort_by(|a, b| (&a.id, &a.form).cmp(&(&b.id, &b.form)));
    all
}

/// The complete models, newest first.
pub(crate) fn newest() -> Vec<Here> {
    let mut complete = all();
    complete.retain(|here| here.path.is_some());
    complete.sort_by_cached_key(|here| std::cmp::Reverse(here.since()));
    complete
}

fn sharded(shards: LibraryShards) -> Here {
    let bytes = shards.size();
    let complete = shards.is_complete();
    let completed_by = match shards.is_pulled() {
        true => format!("`sws pull {}`", shards.name()),
        false => "the command that began it".to_owned(),
    };
    let LibraryShards { id, form, path } = shards;
    Here { id, form, path: complete.then_some(path), bytes, completed_by }
}

/// The models of a repository in the cache.
fn cached(id: &ModelId, model: &CachedModel) -> Vec<Here> {
    let snapshots = model.snapshots();
    let mut found = Vec::new();
    for snapshot in &snapshots {
        found.extend(within(id, snapshot));
    }
    if !found.is_empty() || !snapshots.is_empty() && !model.is_partial() {
        return found;
    }
    // Of a file before its end the name is unknown.
    vec![Here {
        id: id.clone(),
        form: CHECKPOINT.to_owned(),
        path: None,
        bytes: model.size(),
        completed_by: "the `sws pull` that began it".to_owned(),
    }]
}

/// The models of a snapshot.
fn within(id: &ModelId, snapshot: &Snapshot) -> Vec<Here> {
    let Snapshot { dir, revision, .. } = snapshot;
    let revision = match revision {
        Some(revision) => format!("@{revision}"),
        None => String::new(),
    };
    let names = snapshot_files(dir);
    let mut weights: Vec<&str> = names.iter().map(String::as_str).collect();
    weights.retain(|name| Path::new(name).extension() == Some("safetensors".as_ref()));
    let mut found = Vec::new();
    if !weights.is_empty() && names.iter().any(|name| name == "config.json") {
        found.push(Here {
            id: id.clone(),
            form: format!("{CHECKPOINT}{revision}"),
            path: if has_all_weights(dir, &names) { Some(dir.clone()) } else { None },
            bytes: size(dir, &weights),
            completed_by: format!("`sws pull {id}{revision} --as stored`"),
        });
    }
    for (name, files) in gguf_models(names.iter().map(String::as_str)) {
        let path = match files.first() {
            Some(first) if is_whole(&files) => Some(dir.join(first)),
            _ => None,
        };
        found.push(Here {
            id: id.clone(),
            form: format!("{name}{revision}"),
            path,
            bytes: size(dir, &files),
            completed_by: format!("`sws pull {id}:{name}{revision}`"),
        });
    }
    found
}

/// Bytes of files in a directory, as far as they are there.
pub(crate) fn size(dir: &Path, names: &[&str]) -> u64 {
    let mut bytes: u64 = 0;
    for name in names {
        bytes = bytes.saturating_add(file_len(&dir.join(name)));
    }
    bytes
}

/// Bytes of a file; 0 if it is not there.
pub(crate) fn file_len(path: &Path) -> u64 {
    match path.metadata() {
        Ok(about) => about.len(),
        Err(_) => 0,
    }
}

/// Paths of what is in a directory; none if it cannot be read.
pub(crate) fn entries(dir: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for entry in dir.read_dir().into_iter().flatten().flatten() {
        paths.push(entry.path());
    }
    paths
}

/// Names in a directory, as far as they are UTF-8.
pub(crate) fn file_names(entries: ReadDir) -> Vec<String> {
    let mut names = Vec::new();
    for entry in entries.flatten() {
        if let Ok(name) = entry.file_name().into_string() {
            names.push(name);
        }
    }
    names
}

/// False for a snapshot without a file that its index lists.
fn has_all_weights(dir: &Path, names: &[String]) -> bool {
    // Without an index, or with a damaged one, the checkpoint itself says what is wrong with it.
    let Some(index) = local_index(dir) else { return true };
    index.weight_map.values().all(|file| names.binary_search(file).is_ok())
}

#[derive(serde::Deserialize)]
struct LocalIndex {
    weight_map: HashMap<String, String>,
}

fn local_index(dir: &Path) -> Option<LocalIndex> {
    let file = open_regular(dir.join(INDEX)).ok()?;
    serde_json::from_reader(BufReader::new(file.take(MAX_INDEX))).ok()
}

/// Path of the newest model that was made for conversation, and that model.
pub(crate) fn newest_for_chat() -> Option<(PathBuf, (Model, Here))> {
    for here in newest() {
        if let Some(path) = here.path.clone()
            && let Ok(model) = Model::open_counted(&path, None, process::heap)
            && model.chat_template().is_ok()
        {
            return Some((path, (model, here)));
        }
    }
    None
}

/// Finds the bundled model: its files as [`bundled_files`] finds them, or else those that the program
/// itself has, which are then written to the user's cache.
pub(crate) fn bundled() -> anyhow::Result<PathBuf> {
    if let Some(files) = bundled_files()? {
        return Ok(files);
    }
    #[cfg(feature = "tale")]
    {
        crate::bundled::in_cache()
    }
    #[cfg(not(feature = "tale"))]
    bail!(
        "no model was given, and there is none in `shards`, neither here nor where the program lies; give a shard directory, a checkpoint directory, a GGUF file, or the id of a model, which `sws list` shows and `sws pull` downloads"
    )
}

/// Finds the files of the bundled model, below the working directory or a parent directory of the
/// program, or else where the program was built.
pub(crate) fn bundled_files() -> anyhow::Result<Option<PathBuf>> {
    let mut places = vec![Path::new("")];
    let program = resolved_program();
    if let Some(program) = &program {
        places.extend(program.ancestors().skip(1));
    }
    places.extend(Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2));
    for dir in places {
        for shards in SHARDS {
            if let Some(model) = only_model(&dir.join(shards))? {
                return Ok(Some(model));
            }
        }
    }
    Ok(None)
}

/// The path of the program, without links.
fn resolved_program() -> Option<PathBuf> {
    std::env::current_exe().ok()?.canonicalize().ok()
}

/// The model in a directory of models. Fails if it has several.
fn only_model(place: &Path) -> anyhow::Result<Option<PathBuf>> {
    let mut models = entries(place);
    models.retain(|dir| dir.join(MANIFEST_FILE).exists());
    models.sort();
    if models.len() > 1 {
        let names: Vec<_> = models.iter().map(|dir| dir.display().to_string()).collect();
        bail!("`{}` holds several models; name one: {}", place.display(), names.join(", "));
    }
    Ok(models.pop())
}
