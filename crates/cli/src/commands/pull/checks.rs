//! Refusals before anything large is downloaded.

use std::path::Path;

use anyhow::bail;
use sws::Outline;
use sws_engine::PlanOptions;
use sws_format::{Configuration, JOURNAL, MANIFEST_FILE};
use sws_hub::{
    Client, HubError, HubFile, Listing, ModelName, RepositoryFiles, WeightFiles, begun_bytes,
    free_space,
};

use super::watch::present;
use super::{Pull, size};
use crate::args::{self, PullForm};
use crate::commands::machine::disk::device;
use crate::commands::remote::{at_a_time, config, encoding_of};

/// Refuses a name and options that contradict each other, and a file in place of a directory.
pub(super) fn check(args: &args::PullArgs, name: &ModelName) -> anyhow::Result<()> {
    if let Some(out) = &args.out
        && out.exists()
        && !out.is_dir()
    {
        bail!("`{}` is not a directory; name one with --out, which need not exist", out.display());
    }
    match (encoding_of(name), args.form) {
        (Some(tagged), Some(form)) if form != PullForm::Shards(tagged) => {
            bail!("`{name}` names another encoding than --as; leave out one of them")
        }
        _ => {}
    }
    match (&name.revision, &args.revision) {
        (Some(named), Some(typed)) if named != typed => {
            bail!("`{name}` names another revision than --revision; leave out one of them")
        }
        _ => Ok(()),
    }
}

impl Pull<'_> {
    /// Refuses a model that could not be run, before anything large is downloaded.
    pub(super) fn check_supported(
        &self,
        client: &Client,
        listing: &Listing,
        selection: &RepositoryFiles,
    ) -> anyhow::Result<()> {
        if self.args.form != Some(PullForm::Stored)
            && let Some(config) = config(self.name, client, listing, selection)?
            && let Err(why) = sws_model::naming(&config)
        {
            bail!("`{}`: {why}", self.name);
        }
        Ok(())
    }

    /// Refuses a model that the disk has no room for, before its headers and before a question that
    /// they would make vain. Of a begun download, what is missing counts.
    pub(super) fn check_room(
        &self,
        client: &Client,
        listing: &Listing,
        selection: &RepositoryFiles,
    ) -> anyhow::Result<()> {
        let name = self.name;
        let (place, needed) = match (&selection.weights, self.args.form, &self.cached) {
            (WeightFiles::Gguf(files), None, Some(cached)) if self.args.out.is_none() => {
                (cached.dir().to_owned(), self.lacking(files))
            }
            // Looked at where they are stored.
            (_, Some(PullForm::Stored), _) | (WeightFiles::Gguf(_), ..) => return Ok(()),
            (WeightFiles::Safetensors(files), ..) => {
                let config = config(name, client, listing, selection)?;
                let Some(config) = config else { return Ok(()) };
                // Where the configuration says too little, the headers tell their size.
                let shards = self.shards_of(&config).unwrap_or(0);
                let out = self.out()?;
                let beside = match (self.args.keep, &self.cached) {
                    (false, _) => at_a_time(files.iter().map(|file| self.missing(file))),
                    (true, Some(cached)) if device(&out) == device(cached.dir()) => {
                        self.lacking(files)
                    }
                    (true, _) => 0,
                };
                let there = begun_bytes(&out);
                (out, shards.saturating_add(beside).saturating_sub(there))
            }
        };
        let free = free_space(&place)?.unwrap_or(u64::MAX);
        if needed <= free {
            return Ok(());
        }
        bail!(
            "`{name}` needs {} in `{}`, whose disk has {} free; make room, or name a directory of another disk, as in `sws pull {name} --out DIR`",
            size(needed),
            place.display(),
            size(free)
        )
    }

    /// Bytes of the shards of a model with this configuration.
    fn shards_of(&self, config: &Configuration) -> Option<u64> {
        let outline = Outline::of(Path::new(&self.name.to_string()), config).ok()?;
        let format = outline.format(self.encoding)?;
        Some(outline.footprint(format, PlanOptions::default()).ok()?.bytes)
    }

    /// Bytes of a file that the cache lacks.
    fn missing(&self, file: &HubFile) -> u64 {
        let there = match &self.cached {
            Some(cached) => present(&cached.blob(&file.etag), file.len),
            None => 0,
        };
        file.len - there
    }

    /// Bytes of files that the cache lacks.
    fn lacking(&self, files: &[HubFile]) -> u64 {
        files.iter().map(|file| self.missing(file)).sum()
    }

    /// Refuses a directory for shards that holds something else.
    pub(super) fn check_out(&self) -> anyhow::Result<()> {
        let out = self.out()?;
        let ours = [MANIFEST_FILE, JOURNAL].iter().any(|name| out.join(name).is_file());
        if !ours {
            check_empty(&out)?;
        }
        Ok(())
    }
}

/// Refuses a directory that holds something.
pub(super) fn check_empty(dir: &Path) -> Result<(), HubError> {
    let Ok(mut entries) = dir.read_dir() else { return Ok(()) };
    if entries.next().is_none() {
        return Ok(());
    }
    let what = "something else than this download".to_owned();
    Err(HubError::Foreign { dir: dir.to_owned(), what })
}
