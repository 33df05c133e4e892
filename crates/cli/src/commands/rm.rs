//! `sws rm`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use sws_hub::{
    CachedModel, HubCache, Library, LibraryShards, ModelName, check_places, choose_gguf,
    gguf_models, snapshot_files, some_of,
};

use super::{kv, print, size};
use crate::args;
use crate::here::CHECKPOINT;
use crate::terminal::yes;

pub(crate) fn run(args: &args::Rm) -> anyhow::Result<ExitCode> {
    if args.kv_disk {
        return remove_texts(args);
    }
    check_places()?;
    let name = args.model.as_ref().expect("asked for by the parser");
    let tag = name.tag.as_deref();
    let revision = name.revision.as_deref();
    let is_all = tag.is_none() && revision.is_none();
    if tag == Some(CHECKPOINT) {
        return remove_checkpoint(args, name);
    }
    let mut shards = shards_of(name);
    shards.retain(|shards| is_all || shards.is(tag, revision));
    let cached = in_cache(name);
    if shards.is_empty()
        && let Some(tag) = tag
        && let Some(model) = &cached
    {
        return remove_gguf(args, name, model, tag);
    }
    if revision.is_some() && shards.is_empty() {
        bail!(
            "`{name}`: there are no shards of it, and a checkpoint is removed by revision as `{}:{CHECKPOINT}@{}`",
            name.id,
            name.revision.as_deref().unwrap_or_default()
        );
    }
    let cached = if is_all { cached } else { None };
    if shards.is_empty() && cached.is_none() {
        return Err(unknown(name));
    }
    remove_all(args, &shards, cached.as_ref())
}

/// All shards of a model.
fn shards_of(name: &ModelName) -> Vec<LibraryShards> {
    match Library::of_process() {
        Some(library) => library.of(&name.id),
        None => Vec::new(),
    }
}

/// The model's directory in the cache, if it is there.
fn in_cache(name: &ModelName) -> Option<CachedModel> {
    let model = HubCache::of_process()?.model(&name.id);
    if model.dir().is_dir() { Some(model) } else { None }
}

/// Places of shards, and of what the cache has of a model.
fn places<'a>(shards: &'a [LibraryShards], cached: Option<&'a CachedModel>) -> Vec<&'a Path> {
    let mut places: Vec<&Path> = shards.iter().map(|shards| shards.path.as_path()).collect();
    places.extend(cached.map(CachedModel::dir));
    places
}

/// Paths in a sentence.
fn named(paths: &[impl AsRef<Path>]) -> String {
    let names: Vec<String> =
        paths.iter().map(|path| format!("`{}`", path.as_ref().display())).collect();
    names.join(" and ")
}

/// Removes shards, and what the cache has of a model.
fn remove_all(
    args: &args::Rm,
    shards: &[LibraryShards],
    cached: Option<&CachedModel>,
) -> anyhow::Result<ExitCode> {
    let places = places(shards, cached);
    let names = named(&places);
    let mut bytes: u64 = 0;
    for shards in shards {
        if !shards.path.is_symlink() {
            bytes += shards.size();
        }
    }
    if let Some(model) = cached
        && !model.dir().is_symlink()
    {
        bytes += model.size();
    }
    let stays = stays(&places);
    let question = format!("remove {names}, {}{stays}? [y/N] ", size(bytes));
    if !args.yes && !asked(&question)? {
        return Ok(ExitCode::SUCCESS);
    }
    // Found by the places of the models, while these are there.
    let texts = kv::of(places.into_iter());
    let removed = kv::remove(&texts)?;
    for shards in shards {
        shards.remove()?;
    }
    if let Some(cached) = cached {
        cached.remove()?;
    }
    print(&format!("removed {names}, {}{stays}\n", size(bytes)))?;
    told_of_texts(&texts, removed)
}

/// Removes what servers keep of texts, of a model or of all.
fn remove_texts(args: &args::Rm) -> anyhow::Result<ExitCode> {
    let texts = match &args.model {
        Some(name) => {
            let shards = shards_of(name);
            let cached = HubCache::of_process().map(|cache| cache.model(&name.id));
            kv::of(places(&shards, cached.as_ref()).into_iter())
        }
        None => kv::all(),
    };
    if texts.is_empty() {
        print("servers keep no prefixes on disk\n")?;
        return Ok(ExitCode::SUCCESS);
    }
    if !args.yes && !asked(&format!("remove prefixes in {}? [y/N] ", named(&texts)))? {
        return Ok(ExitCode::SUCCESS);
    }
    let removed = kv::remove(&texts)?;
    told_of_texts(&texts, removed)
}

fn told_of_texts(texts: &[PathBuf], removed: u64) -> anyhow::Result<ExitCode> {
    if !texts.is_empty() {
        print(&format!("removed prefixes that servers kept, {}\n", size(removed)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Words on the directories that stay, of which the paths are links.
fn stays(paths: &[&Path]) -> String {
    let mut targets = Vec::new();
    for path in paths {
        if path.is_symlink()
            && let Ok(target) = path.canonicalize()
        {
            targets.push(target);
        }
    }
    match targets.is_empty() {
        true => String::new(),
        false => format!("; the files in {} stay, for you to delete", named(&targets)),
    }
}

fn unknown(name: &ModelName) -> anyhow::Error {
    anyhow!("`{name}` is not among the models on this machine; `sws list` shows them")
}

/// Removes the checkpoint in the cache, as `sws list` names it, and leaves shards and other snapshots.
fn remove_checkpoint(args: &args::Rm, name: &ModelName) -> anyhow::Result<ExitCode> {
    let Some(model) = in_cache(name) else { return Err(unknown(name)) };
    let Some(dir) = model.snapshot(name.revision.as_deref()) else {
        // The beginning of a download has no snapshot.
        if name.revision.is_some() || !model.snapshots().is_empty() {
            return Err(unknown(name));
        }
        return remove_all(args, &[], Some(&model));
    };
    let mut files = snapshot_files(&dir);
    let gguf = gguf_models(files.iter().map(String::as_str));
    let gguf: Vec<String> = gguf.into_values().flatten().map(str::to_owned).collect();
    if gguf.is_empty() && model.snapshots().len() == 1 {
        return remove_all(args, &[], Some(&model));
    }
    files.retain(|file| !gguf.contains(file));
    if !files.iter().any(|file| file.ends_with(".safetensors")) {
        return Err(unknown(name));
    }
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    remove_files(
        args,
        name,
        &model,
        &dir,
        &files,
        &format!("the checkpoint in `{}`", dir.display()),
    )
}

/// Removes one of several models in GGUF.
fn remove_gguf(
    args: &args::Rm,
    name: &ModelName,
    model: &CachedModel,
    tag: &str,
) -> anyhow::Result<ExitCode> {
    let Some(dir) = model.snapshot(name.revision.as_deref()) else { return Err(unknown(name)) };
    let files = snapshot_files(&dir);
    let chosen = match choose_gguf(files.iter().map(String::as_str), Some(tag)) {
        Ok(chosen) => chosen,
        Err(unclear) if unclear.none => return Err(unknown(name)),
        Err(unclear) => {
            bail!("`{name}` may be any of {}; name one of them whole", some_of(&unclear.models))
        }
    };
    let shown = format!("`{}`", chosen.join("`, `"));
    remove_files(args, name, model, &dir, &chosen, &shown)
}

/// Removes some files of a snapshot.
fn remove_files(
    args: &args::Rm,
    name: &ModelName,
    model: &CachedModel,
    dir: &Path,
    files: &[&str],
    shown: &str,
) -> anyhow::Result<ExitCode> {
    if !args.yes && !asked(&format!("remove {shown} of `{}`? [y/N] ", name.id))? {
        return Ok(ExitCode::SUCCESS);
    }
    // Files of one snapshot share a directory.
    let texts = kv::of([model.dir()].into_iter());
    let removed = kv::remove(&texts)?;
    let freed = model.remove_files(dir, files)?;
    print(&format!("removed {shown}, {}\n", size(freed)))?;
    told_of_texts(&texts, removed)
}

/// Asks for a yes on the terminal.
fn asked(question: &str) -> anyhow::Result<bool> {
    if !std::io::stdin().is_terminal() {
        bail!("cannot ask for confirmation without a terminal; give --yes");
    }
    yes(question)
}
