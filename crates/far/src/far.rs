//! A model whose shards are in object storage.

use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sws_format::{
    LEARNED_FILE, MANIFEST_FILE, MAX_LEARNED_BYTES, MAX_MANIFEST_BYTES, Manifest, Piece, PieceId,
    PieceKind, ShardReader, open_regular,
};
use sws_hub::http::ATTEMPTS;
use sws_os::open::create_private_dir;
use sws_store::{Supply, user_cache};
use tracing::{debug, info};

use crate::downloads::{Downloads, FarCounts};
use crate::fetch::FetchShared;
use crate::files::replace;
use crate::key::short;
use crate::place::ModelPlace;
use crate::queue::CellQueue;
use crate::reader::FarReader;
use crate::{FarError, FarOrigin};

/// Maximum bytes of a record about an address: a name and a tag.
const MAX_KNOWN: u64 = 64 << 10;

/// Options of a model in object storage.
#[derive(Clone, Debug, Default)]
pub struct FarOptions {
    /// Directory for all such models; `None` for `far` in the user's cache directory.
    pub cache: Option<PathBuf>,
    /// Maximum bytes of shards in the cache, over all models; `None` for as many as the disk has
    /// room for.
    pub limit: Option<u64>,
    /// Maximum bytes of the manifest, which is read before memory is planned; `None` for 256 MiB.
    pub manifest: Option<u64>,
}

/// A model whose shards are in object storage. Downloaded bytes are kept in a cache. Further shards
/// are downloaded while the network is idle.
#[derive(Debug)]
pub struct Far {
    shared: Arc<FetchShared>,
    downloads: Arc<Downloads>,
}

impl Far {
    /// Opens the model at an address: reads its manifest and its small files. Shards are downloaded
    /// from the first [`reader`](Supply::reader) on, beginning with those that every answer needs.
    pub fn open(origin: FarOrigin, options: &FarOptions) -> Result<Far, FarError> {
        let cache = options.cache.clone().or_else(|| Some(user_cache()?.join("far")));
        let root = cache.ok_or(FarError::NoCache)?;
        create_private_dir(&root).map_err(|e| FarError::write(&root, e))?;
        let longest = options.manifest.map_or(MAX_MANIFEST_BYTES, |it| it.min(MAX_MANIFEST_BYTES));
        let (json, manifest, is_new) = manifest(&origin, &root, longest)?;
        let place = ModelPlace::open(&root, &short(&json), Arc::new(manifest), options.limit)?;
        let path = place.files.join(MANIFEST_FILE);
        // Another one is of a crash.
        if read_within(&path, longest).as_ref() != Some(&json) {
            replace(&path, &json).map_err(|e| FarError::write(&path, e))?;
        }
        drop(json);
        small_files(&origin, &place)?;
        if is_new {
            learned(&origin, &place);
        }
        let queue = CellQueue::new(origin.http().clock().clone());
        let shared = Arc::new(FetchShared { origin, place, queue });
        let downloads = Arc::new(Downloads::new(Arc::clone(&shared)));
        let far = Far { shared, downloads };
        far.shared.queue.set_ahead(far.cells(&mut |piece| is_always_needed(far.manifest(), piece)));
        far.wish(&[]);
        Ok(far)
    }

    /// Directory of the manifest and the small files, in the form of a shard directory.
    pub fn dir(&self) -> &Path {
        &self.shared.place.files
    }

    /// The manifest.
    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.shared.place.manifest
    }

    /// Current counters.
    pub fn counts(&self) -> FarCounts {
        self.downloads.counts()
    }

    /// Cells of the pieces for which `wanted` is true, without their stand-ins, in the order of the
    /// manifest.
    fn cells(&self, wanted: &mut dyn FnMut(&Piece) -> bool) -> Vec<u32> {
        let pieces = self.manifest().pieces.iter();
        pieces.filter(|piece| wanted(piece)).flat_map(|piece| self.of(piece)).collect()
    }

    /// Cells of a piece.
    fn of(&self, piece: &Piece) -> Vec<u32> {
        let FetchShared { place, .. } = &*self.shared;
        let mut ranges: Vec<Range<u32>> = Vec::new();
        for part in piece.tensors.iter().flat_map(|tensor| &tensor.parts) {
            ranges.push(place.cells.within(&place.manifest, part.file, part.offset, part.len));
        }
        let mut cells: Vec<u32> = ranges.into_iter().flatten().collect();
        cells.sort_unstable();
        cells.dedup();
        cells
    }
}

impl Supply for Far {
    fn reader(self: Arc<Self>, local: Arc<dyn ShardReader>) -> io::Result<Arc<dyn ShardReader>> {
        self.downloads.start()?;
        let shared = Arc::clone(&self.shared);
        let downloads = Arc::clone(&self.downloads);
        Ok(Arc::new(FarReader { shared, local, _downloads: downloads }))
    }

    fn name(&self) -> String {
        self.shared.origin.address().name().to_owned()
    }

    fn address(&self) -> String {
        self.shared.origin.address().to_string()
    }

    fn heap(&self) -> u64 {
        Downloads::heap()
    }

    fn wish(&self, pieces: &[PieceId]) {
        let manifest = self.manifest();
        let wished = pieces.iter().filter_map(|&id| manifest.piece(id));
        let mut cells: Vec<u32> = wished.flat_map(|piece| self.of(piece)).collect();
        cells.extend(self.cells(&mut |piece| piece.id.kind() != PieceKind::Extra));
        let mut seen = vec![false; self.shared.place.cells.len() as usize];
        cells.retain(|&cell| {
            seen.get_mut(cell as usize).is_some_and(|seen| !std::mem::replace(seen, true))
        });
        self.shared.queue.set_later(cells);
    }
}

/// True for pieces that every pass reads as a whole.
fn is_always_needed(manifest: &Manifest, piece: &Piece) -> bool {
    match piece.id.kind() {
        PieceKind::Expert(_) | PieceKind::Extra | PieceKind::Table(_) => false,
        // An embedding that is also the head is read as a whole.
        PieceKind::Embed => manifest.piece(PieceId::LM_HEAD).is_none(),
        _ => true,
    }
}

/// Reads the manifest, of at most `longest` bytes. It is cached under the tag that the server gives
/// it. If the server cannot be reached, the last manifest of this address is used. True if it was
/// downloaded now.
fn manifest(
    origin: &FarOrigin,
    root: &Path,
    longest: u64,
) -> Result<(Vec<u8>, Manifest, bool), FarError> {
    let address = origin.address().to_string();
    let known = root.join(format!("{}.address", short(address.as_bytes())));
    let parsed = |json: Vec<u8>| match Manifest::from_json(&json) {
        Ok(manifest) => Ok((json, manifest)),
        Err(reason) => Err(FarError::Manifest { address: address.clone(), reason }),
    };
    let kept = read_within(&known, MAX_KNOWN).and_then(|text| String::from_utf8(text).ok());
    let kept = kept.as_deref().and_then(|text| text.split_once('\n'));
    let kept = kept.and_then(|(key, tag)| {
        let path = root.join(key).join("files").join(MANIFEST_FILE);
        let json = read_within(&path, longest).filter(|json| short(json) == key)?;
        Some((parsed(json).ok()?, tag.to_owned()))
    });
    let (kept, tag) = kept.map_or((None, None), |(kept, tag)| (Some(kept), Some(tag)));
    let tag = tag.filter(|tag| !tag.is_empty());
    // With a cached manifest, fewer attempts are enough.
    let attempts = if kept.is_some() { 2 } else { ATTEMPTS };
    let read = || {
        let read = origin.read_within(attempts, MANIFEST_FILE, longest, tag.as_deref())?;
        let whole = |(json, tag)| parsed(json).map(|(json, manifest)| (json, manifest, tag));
        read.map(whole).transpose()
    };
    let read = match read() {
        // The manifest may have been damaged in transit.
        Err(FarError::Manifest { reason, .. }) => {
            info!("wrong bytes of {} ({reason}); again", origin.render(MANIFEST_FILE));
            read()
        }
        read => read,
    };
    match (read, kept) {
        (Ok(None), Some((json, manifest))) => Ok((json, manifest, false)),
        (Ok(Some((json, manifest, tag))), _) => {
            let plain = |tag: &String| tag.chars().all(|c| c.is_ascii_graphic());
            let tag = tag.filter(plain).unwrap_or_default();
            // Without this record, the manifest is read again.
            let _ = replace(&known, format!("{}\n{tag}", short(&json)).as_bytes());
            Ok((json, manifest, true))
        }
        (Err(error @ (FarError::Connection { .. } | FarError::Status { .. })), Some(kept)) => {
            info!("{error}; the manifest that is here will do");
            Ok((kept.0, kept.1, false))
        }
        (Err(error), _) => Err(error),
        (Ok(None), None) => {
            let reason = "it has not changed, although nothing was known of it".to_owned();
            Err(FarError::Answer { url: origin.render(MANIFEST_FILE), reason })
        }
    }
}

/// The contents of a cached file, if it is not longer than `limit`.
fn read_within(path: &Path, limit: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path).ok()?.take(limit.saturating_add(1)).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= limit).then_some(bytes)
}

/// Reads the usage statistics of another machine. They are optional, and requested only once.
fn learned(origin: &FarOrigin, place: &ModelPlace) {
    let path = place.files.join(LEARNED_FILE);
    match origin.read_within(1, LEARNED_FILE, MAX_LEARNED_BYTES, None) {
        Ok(Some((bytes, _))) if !path.exists() => drop(replace(&path, &bytes)),
        Ok(_) => {}
        Err(error) => debug!("nothing is known of the model's use: {error}"),
    }
}

/// Downloads the small files that are missing.
fn small_files(origin: &FarOrigin, place: &ModelPlace) -> Result<(), FarError> {
    for (name, len) in place.small() {
        for turn in 0.. {
            if place.has_small(name) {
                break;
            }
            if turn == 2 {
                return Err(FarError::Damaged { url: origin.render(name), offset: 0 });
            }
            let read = origin.read(name, len, None)?;
            let path = place.files.join(name);
            let bytes = read.map_or(Vec::new(), |(bytes, _)| bytes);
            if bytes.len() as u64 != len {
                let found = bytes.len() as u64;
                return Err(FarError::Length { url: origin.render(name), expected: len, found });
            }
            replace(&path, &bytes).map_err(|e| FarError::write(&path, e))?;
        }
    }
    Ok(())
}
