//! `sws pull`.

mod auto;
mod checks;
mod report;
mod several;
mod shards;
mod watch;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use sws_format::MANIFEST_FILE;
use sws_hub::{
    BegunDownload, CachedModel, Client, DownloadJob, Environment, HubBlobs, HubCache, HubError,
    HubFile, Library, Listing, ModelId, ModelName, RepositoryFiles, WeightFiles, check_places,
    check_space, choose_gguf, form, free_space, has_safetensors, is_whole, keep, save, select,
    snapshot_files, staging,
};
use sws_kernels::Encoding;
use sws_shard::Sharded;

use super::outline::DEFAULT;
use super::remote::encoding_of;
use super::{first, mirror, remote, size};
use crate::args::{self, PullForm};
use crate::interrupt::Ending;
use crate::terminal::{note, yes};
use auto::chosen;
use checks::check;
use watch::{Downloaded, present};

/// Revision of a model whose name has none.
const MAIN: &str = "main";
/// Last words of a download that a signal ends.
const GOES_ON: &str = "interrupted; the same command goes on where it stopped";

pub(crate) fn run(args: &args::PullArgs) -> anyhow::Result<ExitCode> {
    let Some(name) = &args.model else { return first::print_all(args.json) };
    check(args, name)?;
    check_places()?;
    let environment = Environment::of_process()?;
    let args = &chosen(args, name, &environment)?;
    let pull = Pull::new(args, name, &environment);
    let obtained = {
        let _ending = Ending::at_a_signal(GOES_ON)?;
        let obtained = pull.obtain(&environment)?;
        match obtained.path.join(MANIFEST_FILE).is_file() {
            true => mirror::copies(&obtained.path, &args.also)?,
            false if args.also.is_empty() => {}
            false => note!("sws: --also copies shards, and these are the files as published"),
        }
        obtained
    };
    pull.report(&obtained)?;
    Ok(ExitCode::SUCCESS)
}

/// Offers to download a model that is not on this machine, as `missing` says of it, if there is a
/// terminal to ask on. Returns true if it is there now.
pub(crate) fn offer(missing: &sws::Error) -> anyhow::Result<bool> {
    let sws::Error::NotHere { name, snapshots, .. } = missing else { return Ok(false) };
    let terminal = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    let is_typed_whole = name.id.has_owner() && name.revision.is_none();
    if !terminal || !is_typed_whole || !snapshots.is_empty() {
        return Ok(false);
    }
    let environment = Environment::of_process()?;
    if environment.offline {
        return Ok(false);
    }
    let args = args::PullArgs::of(ModelName::clone(name));
    let pull = Pull::new(&args, name, &environment);
    let client = Client::new(&environment)?;
    let Some(listing) = remote::list(&client, missing)? else { return Ok(false) };
    let selection = pull.select(&client, &listing)?;
    let place = match (&selection.weights, &pull.cached) {
        (WeightFiles::Gguf(_), Some(cached)) => cached.dir().to_owned(),
        _ => pull.out()?,
    };
    pull.check_supported(&client, &listing, &selection)?;
    pull.check_room(&client, &listing, &selection)?;
    let free = match free_space(&place)? {
        Some(free) => format!(", {} free", size(free)),
        None => String::new(),
    };
    let question = format!(
        "sws: `{name}` is not on this machine. Download {} to `{}`{free}? [y/N] ",
        size(selection.weights.len()),
        place.display(),
    );
    if !yes(&question)? {
        return Ok(false);
    }
    let _ending = Ending::at_a_signal(GOES_ON)?;
    pull.obtain(&environment)?;
    Ok(true)
}

/// Compares a model of the Hugging Face cache with its hashes, before it is trusted.
pub(super) fn check_blobs(model: &Path) -> anyhow::Result<()> {
    let blobs = HubBlobs::of(model);
    let watch = Downloaded::new("checking", blobs.bytes());
    let checked = blobs.check(&watch);
    watch.finish();
    Ok(checked?)
}

/// A model that is there now.
struct Obtained {
    path: PathBuf,
    /// None without shards, or with those of an earlier command.
    sharded: Option<Sharded>,
    how: &'static str,
}

/// One download.
struct Pull<'a> {
    args: &'a args::PullArgs,
    name: &'a ModelName,
    id: &'a ModelId,
    revision: &'a str,
    encoding: Encoding,
    library: Option<Library>,
    cached: Option<CachedModel>,
}

impl<'a> Pull<'a> {
    fn obtain(&self, environment: &Environment) -> anyhow::Result<Obtained> {
        let args = self.args;
        if let Some(path) = self.finished() {
            return Ok(Obtained { path, sharded: None, how: "there already" });
        }
        if environment.offline {
            return self.offline();
        }
        let client = Client::new(environment)?;
        remote::asking(self.id);
        let mut listing = client.list(self.id, self.revision)?;
        let begun = self.begun()?;
        match &begun {
            Some((_, BegunDownload::Commit(commit))) if *commit != listing.commit => {
                note!(
                    "sws: `{}` has changed since this download began, which goes on with {commit}",
                    self.revision,
                );
                listing = client.list(self.id, commit).inspect_err(|_| {
                    note!("sws: `sws rm {}` discards what was begun", self.id);
                })?;
            }
            Some((_, BegunDownload::Damaged)) => note!(
                "sws: the record of this download in `{}` is damaged; it goes on with {}",
                staging(&self.out()?).display(),
                listing.commit,
            ),
            _ => {}
        }
        let selection = match self.select(&client, &listing) {
            Err(several @ HubError::Several { .. }) => {
                self.print_models(&client, &listing)?;
                return Err(several.into());
            }
            selected => selected?,
        };
        self.check_supported(&client, &listing, &selection)?;
        self.check_room(&client, &listing, &selection)?;
        match (&selection.weights, args.form, args.keep) {
            (_, Some(PullForm::Stored), _) | (WeightFiles::Gguf(_), None, _) => {
                let path = self.store(&client, &listing, &selection)?;
                Ok(Obtained { path, sharded: None, how: "downloaded" })
            }
            (WeightFiles::Gguf(_), Some(PullForm::Shards(_) | PullForm::Auto), _)
            | (_, _, true) => {
                self.check_out()?;
                let path = self.store(&client, &listing, &selection)?;
                let obtained = self.shard(&path)?;
                self.forget_begun()?;
                Ok(obtained)
            }
            (WeightFiles::Safetensors(_), ..) => {
                let staging = match begun {
                    Some((staging, _)) => staging,
                    None => self.begin()?,
                };
                self.straight(client, listing, selection, staging)
            }
        }
    }

    fn new(args: &'a args::PullArgs, name: &'a ModelName, environment: &Environment) -> Pull<'a> {
        let id = &name.id;
        let named = name.revision.as_deref();
        let cached = environment.cache.as_ref().map(|dir| HubCache::new(dir).model(id));
        let encoding = match args.form {
            Some(PullForm::Shards(encoding)) => encoding,
            _ => encoding_of(name).unwrap_or(DEFAULT),
        };
        let revision = args.revision.as_deref().or(named).unwrap_or(MAIN);
        Pull { args, name, id, revision, encoding, library: Library::of_process(), cached }
    }

    /// Directory of the shards.
    fn out(&self) -> Result<PathBuf, HubError> {
        let path = match (&self.args.out, &self.library) {
            (Some(out), _) => out.clone(),
            (None, Some(library)) => library.place(self.id, &self.form())?,
            (None, None) => return Err(HubError::NoCache),
        };
        Ok(std::path::absolute(&path).unwrap_or(path))
    }

    /// The shards, if an earlier command made all of them.
    fn finished(&self) -> Option<PathBuf> {
        let args = self.args;
        let stored = args.form == Some(PullForm::Stored) || self.gguf_tag().is_some();
        let out = self.out().ok()?;
        if stored || args.keep {
            return None;
        }
        // A directory that was typed may have any shards; the library knows which.
        let recorded = self.library.as_ref()?.path(self.id, &self.form()).canonicalize().ok()?;
        let is_ours = matches!(out.canonicalize(), Ok(out) if out == recorded);
        let is_complete = out.join(MANIFEST_FILE).is_file();
        // An empty directory is left where the removal of the last one was interrupted.
        let begun = staging(&out);
        if !is_ours || !is_complete || begun.exists() && std::fs::remove_dir(&begun).is_err() {
            return None;
        }
        Some(out)
    }

    /// The form of the shards in the library.
    fn form(&self) -> String {
        form(self.encoding.name(), Some(self.revision))
    }

    /// The tag, unless it names an encoding of shards.
    fn gguf_tag(&self) -> Option<&'a str> {
        match encoding_of(self.name) {
            Some(_) => None,
            None => self.name.tag.as_deref(),
        }
    }

    /// The revision, unless it is the one of a name without any.
    fn other_revision(&self) -> Option<&'a str> {
        if self.revision == MAIN { None } else { Some(self.revision) }
    }

    /// The snapshot in the cache.
    fn snapshot(&self) -> Option<PathBuf> {
        self.cached.as_ref()?.snapshot(self.other_revision())
    }

    /// The checkpoint or the GGUF file that is meant in a snapshot.
    fn within(&self, snapshot: PathBuf) -> Option<PathBuf> {
        let tag = self.gguf_tag();
        if tag.is_none() && snapshot.join("config.json").exists() {
            return Some(snapshot);
        }
        let names = snapshot_files(&snapshot);
        let files = choose_gguf(names.iter().map(String::as_str), tag).ok()?;
        let first = files.first()?;
        if is_whole(&files) { Some(snapshot.join(first)) } else { None }
    }

    /// Shards what the cache has.
    fn offline(&self) -> anyhow::Result<Obtained> {
        let found = match self.snapshot() {
            Some(dir) => self.within(dir),
            None => None,
        };
        let Some(path) = found else {
            return Err(HubError::Offline { id: self.id.clone() }.into());
        };
        check_blobs(&path)?;
        let is_stored = match self.args.form {
            None => path.is_file(),
            Some(form) => form == PullForm::Stored,
        };
        match is_stored {
            true => Ok(Obtained { path, sharded: None, how: "there already" }),
            false => self.shard(&path),
        }
    }

    fn select(&self, client: &Client, listing: &Listing) -> Result<RepositoryFiles, HubError> {
        // Repositories with both have their own shards of an encoding.
        let tag = self.name.tag.as_deref();
        let tag = if has_safetensors(listing) { self.gguf_tag() } else { tag };
        select(listing, tag, &mut |index| client.read(listing, index))
    }

    /// Downloads the files as they are: into the cache, or the directory that was typed. Returns the
    /// path of the model.
    fn store(
        &self,
        client: &Client,
        listing: &Listing,
        selection: &RepositoryFiles,
    ) -> anyhow::Result<PathBuf> {
        let files: Vec<HubFile> =
            selection.small.iter().chain(selection.weights.files()).cloned().collect();
        // With shards to make, --out is their directory.
        let stored = !matches!(self.args.form, Some(PullForm::Shards(_))) && !self.args.keep;
        let out = if stored { self.args.out.as_deref() } else { None };
        let dir = match (out, &self.cached) {
            (Some(dir), _) => dir,
            (None, Some(cached)) => cached.dir(),
            (None, None) => return Err(HubError::NoCache.into()),
        };
        let mut missing = 0;
        let mut total = 0;
        for file in &files {
            let place = match (out, &self.cached) {
                (Some(dir), _) => dir.join(file.last_name()),
                (None, Some(cached)) => cached.blob(&file.etag),
                (None, None) => PathBuf::new(),
            };
            missing += file.len - present(&place, file.len);
            total += file.len;
        }
        check_space(dir, missing)?;

        let watch = Downloaded::new("downloading", total);
        let parallel = self.args.files.into();
        let job = DownloadJob { client, listing, files: &files, parallel, watch: &watch };
        let done = match (out, &self.cached) {
            (Some(dir), _) => save(&job, dir),
            (None, Some(cached)) => keep(&job, cached, self.revision),
            (None, None) => Ok(()),
        };
        watch.finish();
        done?;
        let root = match (out, &self.cached) {
            (None, Some(cached)) => cached.at(&listing.commit),
            _ => dir.to_owned(),
        };
        Ok(match &selection.weights {
            WeightFiles::Gguf(files) => match (out, files.first()) {
                (Some(dir), Some(file)) => dir.join(file.last_name()),
                (None, Some(file)) => root.join(&file.name),
                (_, None) => root,
            },
            WeightFiles::Safetensors(_) => root,
        })
    }
}
