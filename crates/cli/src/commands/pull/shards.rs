//! Shards of a model: of a checkpoint that is there, or of files as they arrive.

use std::path::Path;
use std::sync::Arc;

use sws::Progress;
use sws_format::Checkpoint;
use sws_hub::{
    ArrivalParts, Arriving, BegunDownload, Client, DownloadWatch, HubError, Listing,
    RepositoryFiles, Staging, staging,
};
use sws_shard::{ShardOptions, Sharded, resume};
use sws_store::user_cache;

use super::checks::check_empty;
use super::several::bytes;
use super::watch::Downloaded;
use super::{Obtained, Pull};
use crate::args::PullForm;
use crate::commands::{in_place, note_unused};
use crate::progress::ProgressStage;
use crate::terminal::note;

impl Pull<'_> {
    /// Makes shards of a checkpoint that is there.
    pub(super) fn shard(&self, checkpoint: &Path) -> anyhow::Result<Obtained> {
        let checkpoint = sws::checkpoint(checkpoint, user_cache().as_deref())?;
        note_unused(&*checkpoint, &in_place(&*checkpoint)?);
        let stage = ProgressStage::new("sharding");
        let done = self.make(&*checkpoint, &self.out()?, &|p| stage.show(p));
        stage.finish();
        Ok(Obtained { path: self.out()?, sharded: Some(done?), how: "made" })
    }

    fn make(
        &self,
        checkpoint: &dyn Checkpoint,
        out: &Path,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> anyhow::Result<Sharded> {
        let naming = sws_model::naming(checkpoint.config())?;
        let threads = self.args.threads.map(usize::from);
        let options = ShardOptions { encoding: self.encoding, threads, ..Default::default() };
        let kept = ProgressStage::new("verifying");
        let done = resume(checkpoint, &*naming, out, &options, &|p| kept.show(p), progress);
        kept.finish();
        let done = done?;
        if self.args.out.is_some()
            && let Some(library) = &self.library
        {
            // The shards are there, and can be used by their path.
            if let Err(error) = library.record(self.id, &self.form(), out) {
                note!("sws: `{}` will not find these shards: {error}", self.id);
            }
        }
        Ok(done)
    }

    /// The download straight into shards that was begun and not finished.
    pub(super) fn begun(&self) -> anyhow::Result<Option<(Staging, BegunDownload)>> {
        let straight = self.args.form != Some(PullForm::Stored) && !self.args.keep;
        if !straight {
            return Ok(None);
        }
        let at = staging(&self.out()?);
        if !at.is_dir() {
            return Ok(None);
        }
        let staging = Staging::open(&at)?;
        match staging.begun(self.id)? {
            BegunDownload::Nothing => {
                staging.remove()?;
                Ok(None)
            }
            begun => Ok(Some((staging, begun))),
        }
    }

    /// Begins a download straight into shards, unless something else is in its place.
    pub(super) fn begin(&self) -> anyhow::Result<Staging> {
        let out = self.out()?;
        check_empty(&out)?;
        Ok(Staging::open(&staging(&out))?)
    }

    /// Removes what an earlier download straight into these shards left.
    pub(super) fn forget_begun(&self) -> anyhow::Result<()> {
        let at = staging(&self.out()?);
        if at.is_dir() {
            let staging = Staging::open(&at)?;
            if staging.begun(self.id)? != BegunDownload::Nothing {
                staging.remove()?;
            }
        }
        Ok(())
    }

    /// Downloads a file, makes its shards and removes it, before the next comes.
    pub(super) fn straight(
        &self,
        client: Client,
        listing: Listing,
        selection: RepositoryFiles,
        staging: Staging,
    ) -> anyhow::Result<Obtained> {
        let out = self.out()?;
        let RepositoryFiles { weights, small } = selection;
        let weights = weights.files().to_vec();
        let cached = self.cached.clone();
        let arrival = ArrivalParts { client, listing, weights, small, cached };
        let mut attempts = 0;
        let done = loop {
            attempts += 1;
            let error = match self.arrive(arrival.clone(), &staging, &out) {
                Ok(done) => break done,
                Err(error) => error,
            };
            let is_damaged = matches!(error.downcast_ref(), Some(HubError::Sketch { .. }));
            if is_damaged {
                staging.restart(&out)?;
            }
            if !is_damaged || attempts == 2 {
                return Err(error);
            }
        };
        staging.remove()?;
        Ok(Obtained { path: out, sharded: Some(done), how: "made" })
    }

    /// Makes the shards of files as they arrive.
    fn arrive(
        &self,
        arrival: ArrivalParts,
        staging: &Staging,
        out: &Path,
    ) -> anyhow::Result<Sharded> {
        let watch = Arc::new(Downloaded::new("pulling", bytes(&arrival.weights)));
        let usable = |checkpoint: &dyn Checkpoint| match in_place(checkpoint) {
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        };
        let told = Arc::clone(&watch) as Arc<dyn DownloadWatch + Send>;
        let mut checkpoint = Arriving::open(arrival, staging, told, &usable)?;
        let source = in_place(&checkpoint)?;
        note_unused(&checkpoint, &source);
        checkpoint.reserve(&source);
        drop(source);
        let done = self.make(&checkpoint, out, &|_| ());
        watch.finish();
        done.map_err(|error| checkpoint.failure().map_or(error, anyhow::Error::from))
    }
}
