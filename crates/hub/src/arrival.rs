//! The parts of a checkpoint that is downloaded during sharding, and the sketches of its weight files.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use sws_format::{Checkpoint, open_checkpoint};

use crate::cache::remove;
use crate::download::DownloadWatch;
use crate::keep::{is_there, on_threads};
use crate::sketch::is_intact;
use crate::{CachedModel, Client, HubError, HubFile, Listing};

/// Number of sketches made at a time. Each takes some sixty short requests, one after another.
const SKETCHES: usize = 8;
/// Number of steps in the progress of a sketch.
const STEPS: usize = 64;

/// The parts of an arriving checkpoint.
#[derive(Clone, Debug)]
pub struct ArrivalParts {
    /// The client.
    pub client: Client,
    /// The repository.
    pub listing: Listing,
    /// Weight files in safetensors, sorted by name.
    pub weights: Vec<HubFile>,
    /// The other files.
    pub small: Vec<HubFile>,
    /// The model's part of the cache, whose files need no download.
    pub cached: Option<CachedModel>,
}

impl ArrivalParts {
    /// Makes the missing sketches in a directory, and opens the checkpoint that they form.
    pub(crate) fn open_sketches(
        &self,
        sketch: &Path,
        watch: &dyn DownloadWatch,
        usable: &dyn Fn(&dyn Checkpoint) -> Result<(), String>,
    ) -> Result<Box<dyn Checkpoint>, HubError> {
        sketches(&self.client, &self.listing, &self.weights, sketch, watch)?;
        remove_others(sketch, &[self.small.as_slice(), self.weights.as_slice()])?;
        let inner = match open_checkpoint(sketch, None) {
            Ok(inner) => inner,
            Err(e) => return Err(self.unusable(sketch, &e.to_string())),
        };
        if let Err(reason) = usable(&*inner) {
            return Err(self.unusable(sketch, &reason));
        }
        let names = inner.files().iter().map(|file| &file.name);
        if names.ne(self.weights.iter().map(|file| &file.name)) {
            let problem = "lists other weight files than its index; report it there";
            return Err(self.listing.contents_error(problem));
        }
        Ok(inner)
    }

    /// The error for sketches that cannot be used.
    fn unusable(&self, sketch: &Path, reason: &str) -> HubError {
        // The message should name the file on the hub, not the place of its sketch.
        let reason = reason.replace(&format!("{}/", sketch.display()), "");
        self.listing.contents_error(format!("cannot be used: {reason}"))
    }

    pub(crate) fn remove_sketches(&self, sketch: &Path) -> Result<(), HubError> {
        for file in &self.weights {
            remove(&sketch.join(&file.name))?;
        }
        Ok(())
    }

    /// Location of each weight file: in the cache if it is there, else in the directory `whole`.
    pub(crate) fn places(&self, whole: &Path) -> Vec<ArrivalPlace> {
        let mut places = Vec::with_capacity(self.weights.len());
        for file in &self.weights {
            let mut place = ArrivalPlace { path: whole.join(&file.name), ours: true };
            if let Some(cached) = &self.cached {
                let blob = cached.blob(&file.etag);
                if is_there(&blob, file) {
                    place = ArrivalPlace { path: blob, ours: false };
                }
            }
            places.push(place);
        }
        places
    }
}

/// Location of a weight file.
#[derive(Debug)]
pub(crate) struct ArrivalPlace {
    pub(crate) path: PathBuf,
    /// False for a file of the cache, which is not removed.
    pub(crate) ours: bool,
}

/// Makes the sketches that are missing, several at a time.
fn sketches(
    client: &Client,
    listing: &Listing,
    weights: &[HubFile],
    dir: &Path,
    watch: &dyn DownloadWatch,
) -> Result<(), HubError> {
    let missing: Vec<&HubFile> =
        weights.iter().filter(|file| !is_intact(&dir.join(&file.name), file.len)).collect();
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    let total = missing.len() * STEPS;
    if total > 0 {
        watch.prepared(0, total);
    }
    let work = || -> Result<(), HubError> {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(file) = missing.get(index) else { return Ok(()) };
            let mut mine = 0;
            let mut step = |part: usize, parts: usize| {
                let now = (STEPS * part / parts.max(1)).max(mine);
                let before = done.fetch_add(now - mine, Ordering::Relaxed);
                watch.prepared(before + now - mine, total);
                mine = now;
            };
            let path = dir.join(&file.name);
            remove(&path)?;
            match client.sketch(listing, file, &path, &mut step) {
                // The first bytes may have been damaged in transit.
                Err(HubError::Contents { .. }) => client.sketch(listing, file, &path, &mut step)?,
                made => made?,
            }
        }
    };
    for result in on_threads(SKETCHES.min(missing.len()), work) {
        result?;
    }
    Ok(())
}

/// Removes all other files from the directory of sketches, because all small files there are copied
/// beside the shards. Hidden files are not copied.
fn remove_others(dir: &Path, files: &[&[HubFile]]) -> Result<(), HubError> {
    for entry in dir.read_dir().map_err(HubError::reading(dir))? {
        let entry = entry.map_err(HubError::reading(dir))?;
        let name = entry.file_name();
        let is_hidden = name.as_encoded_bytes().starts_with(b".");
        if !is_hidden && !files.iter().copied().flatten().any(|file| name == *file.name) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}
