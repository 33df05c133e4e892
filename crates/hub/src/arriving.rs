//! A checkpoint that is downloaded during sharding. A weight file is downloaded when its first
//! tensor is read, and removed when its last shard is written.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use sws_format::{
    Checkpoint, CheckpointError, Configuration, Manifest, ShardReader, WeightFile, open_regular,
};
use sws_os::open::no_link;
use sws_store::DirectReader;
use tracing::info;

use crate::arrival::ArrivalPlace;
use crate::cache::remove;
use crate::digest::matches;
use crate::download::DownloadWatch;
use crate::sketch::agrees;
use crate::staging::{SKETCH, WHOLE};
use crate::{ArrivalParts, Client, HubError, HubFile, Listing, Staging};

/// A checkpoint whose weight files arrive while they are read.
#[derive(Debug)]
pub struct Arriving {
    inner: Box<dyn Checkpoint>,
    files: Arc<ArrivingFiles>,
    room: u64,
}

impl Arriving {
    /// Downloads the small files and the sketches of the weights, unless they are in `staging`
    /// already. Files there may have been damaged since an earlier run. A file whose hash is
    /// neither the one that the hub lists nor the one recorded for its sketch is downloaded again.
    /// `watch` gets the bytes of weights, including those of an earlier run.
    ///
    /// The hub lists no hashes of headers, so a header may be damaged. If the checkpoint cannot be
    /// opened, or `usable` returns a reason why it cannot be used, the sketches are made once more.
    pub fn open(
        arrival: ArrivalParts,
        staging: &Staging,
        watch: Arc<dyn DownloadWatch + Send>,
        usable: &dyn Fn(&dyn Checkpoint) -> Result<(), String>,
    ) -> Result<Arriving, HubError> {
        let sketch = staging.dir.join(SKETCH);
        let whole = staging.dir.join(WHOLE);
        staging.begin(&arrival.listing)?;
        for dir in [&sketch, &whole] {
            // A link could lead to a directory with other files, which would be removed.
            if let Ok(about) = dir.symlink_metadata()
                && !about.is_dir()
            {
                remove(dir)?;
            }
            std::fs::create_dir_all(dir).map_err(HubError::writing(dir))?;
        }
        for file in &arrival.small {
            let path = sketch.join(&file.name);
            if !is_whole(&path, file) {
                remove(&path)?;
                remove_irregular(&incomplete(&path))?;
                fetch(&arrival.client, &arrival.listing, file, &path, &Unwatched)?;
            }
        }
        let inner = match arrival.open_sketches(&sketch, &*watch, usable) {
            Err(error @ HubError::Contents { .. }) => {
                info!("{error}; its headers are downloaded again");
                arrival.remove_sketches(&sketch)?;
                match arrival.open_sketches(&sketch, &*watch, usable) {
                    Ok(inner) => inner,
                    Err(error) => {
                        arrival.remove_sketches(&sketch)?;
                        return Err(error);
                    }
                }
            }
            opened => opened?,
        };
        let places = arrival.places(&whole);
        let reader = DirectReader::of(places.iter().map(|place| place.path.clone()).collect());
        let ArrivalParts { client, listing, weights, .. } = arrival;
        let states = weights.iter().map(|_| Mutex::new(false)).collect();
        let failure = Mutex::new(None);
        let files = ArrivingFiles {
            client,
            listing,
            weights,
            places,
            sketch,
            states,
            reader,
            failure,
            watch,
        };
        Ok(Arriving { inner, files: Arc::new(files), room: 0 })
    }

    /// Reserves disk space for the weight files that sharding needs at a time.
    pub fn reserve(&mut self, manifest: &Manifest) {
        let places = &self.files.places;
        let mut there: u64 = 0;
        for place in places {
            if place.ours
                && let Ok(about) = place.path.metadata()
            {
                there += about.len();
            }
        }
        self.room = most_at_a_time(manifest, places).saturating_sub(there);
    }

    /// The error that ended a download. The sharder only knows that a read failed.
    pub fn failure(&self) -> Option<HubError> {
        self.files.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Checkpoint for Arriving {
    fn dir(&self) -> &Path {
        self.inner.dir()
    }

    fn own_dir(&self) -> Option<&Path> {
        self.inner.own_dir()
    }

    fn files(&self) -> &[WeightFile] {
        self.inner.files()
    }

    fn config(&self) -> &Configuration {
        self.inner.config()
    }

    fn fingerprint(&self) -> &str {
        self.inner.fingerprint()
    }

    fn reader(&self) -> Option<Arc<dyn ShardReader>> {
        Some(Arc::clone(&self.files) as Arc<dyn ShardReader>)
    }

    fn small_files(&self) -> Result<Vec<String>, CheckpointError> {
        self.inner.small_files()
    }

    fn read_small(&self, name: &str) -> Result<Vec<u8>, CheckpointError> {
        self.inner.read_small(name)
    }

    fn room(&self) -> u64 {
        self.room
    }

    fn release(&self, file: u32) {
        self.files.release(file as usize);
    }
}

/// The weight files, in the order of the checkpoint's files.
struct ArrivingFiles {
    client: Client,
    listing: Listing,
    weights: Vec<HubFile>,
    places: Vec<ArrivalPlace>,
    /// Directory of the sketches.
    sketch: PathBuf,
    /// For each file, true if it has arrived. Locked while it is being downloaded.
    states: Vec<Mutex<bool>>,
    reader: DirectReader,
    failure: Mutex<Option<HubError>>,
    watch: Arc<dyn DownloadWatch + Send>,
}

impl std::fmt::Debug for ArrivingFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Files").field("places", &self.places).finish_non_exhaustive()
    }
}

impl ArrivingFiles {
    /// State, listing and location of a file.
    fn at(&self, index: usize) -> Option<(&Mutex<bool>, &HubFile, &ArrivalPlace)> {
        Some((self.states.get(index)?, self.weights.get(index)?, self.places.get(index)?))
    }

    /// Waits until a file has arrived, and downloads it if necessary.
    fn arrive(&self, index: usize) -> io::Result<()> {
        let Some((state, file, place)) = self.at(index) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let mut arrived = state.lock().unwrap_or_else(PoisonError::into_inner);
        if *arrived {
            return Ok(());
        }
        if self.failed() {
            return Err(io::Error::other("the download has ended"));
        }
        match self.obtain(file, place) {
            Ok(()) => *arrived = true,
            Err(error) => {
                let text = error.to_string();
                self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                return Err(io::Error::other(text));
            }
        }
        Ok(())
    }

    /// True after a failed download. No other download is begun then.
    fn failed(&self) -> bool {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn obtain(&self, file: &HubFile, place: &ArrivalPlace) -> Result<(), HubError> {
        if place.ours {
            remove_irregular(&place.path)?;
            self.client.download(&self.listing, file, &place.path, &*self.watch)?;
        } else {
            // Other programs have put it there.
            info!("`{}` is taken from the Hugging Face cache", file.name);
            let found = File::open(&place.path).map_err(HubError::reading(&place.path))?;
            if !matches(file, found).map_err(HubError::reading(&place.path))? {
                return Err(HubError::DamagedBlob { path: place.path.clone() });
            }
            self.watch.moved(file.len as i64);
        }
        let sketch = self.sketch.join(&file.name);
        if agrees(&sketch, &place.path)? {
            return Ok(());
        }
        // The hash is right, so the sketch is wrong.
        Err(HubError::Sketch { id: self.listing.id.clone(), file: file.name.clone() })
    }

    /// Removes a file that is no longer needed. The reader may still have it open, so it is
    /// truncated, which frees the disk space at once.
    fn release(&self, index: usize) {
        let Some((state, file, place)) = self.at(index) else { return };
        let arrived = *state.lock().unwrap_or_else(PoisonError::into_inner);
        if !arrived {
            // All shards of this file were made by an earlier run.
            self.watch.moved(file.len as i64);
        }
        if place.ours {
            // On failure, the file stays until the directory is removed. Opening a pipe would
            // block, and a link could lead to a foreign file.
            if let Ok(out) = no_link(File::options().write(true)).open(&place.path) {
                let _ = out.set_len(0);
            }
            let _ = std::fs::remove_file(&place.path);
        }
    }
}

impl ShardReader for ArrivingFiles {
    fn name(&self) -> &'static str {
        "arriving"
    }

    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.arrive(file as usize)?;
        self.reader.read_at(file, offset, into)
    }
}

/// Maximum bytes of downloaded files that are needed at a time, if shards are made in the order of
/// files. A piece in several files needs all of them.
fn most_at_a_time(manifest: &Manifest, places: &[ArrivalPlace]) -> u64 {
    let mut last_use: Vec<usize> = (0..manifest.files.len()).collect();
    for piece in &manifest.pieces {
        let parts = piece.tensors.iter().flat_map(|tensor| &tensor.parts);
        let files: Vec<usize> = parts.map(|part| part.file as usize).collect();
        let last = files.iter().copied().max().unwrap_or(0);
        for file in files {
            if let Some(known) = last_use.get_mut(file) {
                *known = last.max(*known);
            }
        }
    }
    let mut most = 0;
    for now in 0..manifest.files.len() {
        let mut held: u64 = 0;
        for ((file, place), last) in manifest.files.iter().zip(places).zip(&last_use).take(now + 1)
        {
            if place.ours && *last >= now {
                held = held.saturating_add(file.len);
            }
        }
        most = most.max(held);
    }
    most
}

/// Downloads a file, which gets its name once it is complete.
pub(crate) fn fetch(
    client: &Client,
    listing: &Listing,
    file: &HubFile,
    path: &Path,
    watch: &dyn DownloadWatch,
) -> Result<(), HubError> {
    let partial = incomplete(path);
    client.download(listing, file, &partial, watch)?;
    std::fs::rename(&partial, path).map_err(HubError::writing(path))
}

/// Path of an incomplete file.
fn incomplete(path: &Path) -> PathBuf {
    path.with_added_extension("incomplete")
}

/// True for a file with the bytes that the hub lists. A link does not count, as it could lead
/// elsewhere.
fn is_whole(path: &Path, file: &HubFile) -> bool {
    let about = path.symlink_metadata();
    about.is_ok_and(|about| about.is_file() && about.len() == file.len)
        && open_regular(path).and_then(|opened| matches(file, opened)).unwrap_or(false)
}

/// Removes anything other than a regular file from the place of a file.
fn remove_irregular(path: &Path) -> Result<(), HubError> {
    match path.symlink_metadata() {
        Ok(about) if !about.is_file() => remove(path),
        _ => Ok(()),
    }
}

/// Small files do not count as progress.
struct Unwatched;

impl DownloadWatch for Unwatched {
    fn moved(&self, _bytes: i64) {}
}
