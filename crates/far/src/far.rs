//! A model whose shards are in object storage.

use std::io::{self, Read};
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
        create_private_dir(&root).map_err(FarError::writing(&root))?;
        let longest = options.manifest.map_or(MAX_MANIFEST_BYTES, |it| it.min(MAX_MANIFEST_BYTES));
        let (json, manifest, is_new) = manifest(&origin, &root, longest)?;
        let place = ModelPlace::open(&root, &short(&json), Arc::new(manifest), options.limit)?;
        let path = place.files.join(MANIFEST_FILE);
        // Another one is of a crash.
        if read_within(&path, longest).as_ref() != Some(&json) {
            replace(&path, &json).map_err(FarError::writing(&path))?;
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
        far.shared.queue.set_ahead(far.cells(&|piece| is_always_needed(far.manifest(), piece)));
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
    fn cells(&self, wanted: &dyn Fn(&Piece) -> bool) -> Vec<u32> {
        let mut cells = Vec::new();
        for piece in &self.manifest().pieces {
            if wanted(piece) {
                cells.extend(self.of(piece));
            }
        }
        cells
    }

    /// Cells of a piece.
    fn of(&self, piece: &Piece) -> Vec<u32> {
        let FetchShared { place, .. } = &*self.shared;
        let mut cells: Vec<u32> = Vec::new();
        for tensor in &piece.tensors {
            for part in &tensor.parts {
                let manifest = &place.manifest;
                cells.extend(place.cells.within(manifest, part.file, part.offset, part.len));
            }
        }
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
        let mut wished = Vec::new();
        for piece in pieces.iter().filter_map(|&id| manifest.piece(id)) {
            wished.extend(self.of(piece));
        }
        wished.extend(self.cells(&|piece| piece.id.kind() != PieceKind::Extra));
        let mut seen = vec![false; self.shared.place.cells.len() as usize];
        let mut cells = Vec::new();
        for cell in wished {
            if let Some(seen @ false) = seen.get_mut(cell as usize) {
                *seen = true;
                cells.push(cell);
            }
        }
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
    let kept = kept_manifest(root, &known, longest);
    let tag = kept.as_ref().and_then(|kept| kept.tag.as_deref()).filter(|tag| !tag.is_empty());
    // With a cached manifest, fewer attempts are enough.
    let attempts = if kept.is_some() { 2 } else { ATTEMPTS };
    let read = match request_manifest(origin, attempts, longest, tag) {
        // The manifest may have been damaged in transit.
        Err(FarError::Manifest { reason, .. }) => {
            info!("wrong bytes of {} ({reason}); again", origin.render(MANIFEST_FILE));
            request_manifest(origin, attempts, longest, tag)
        }
        read => read,
    };
    match (read, kept) {
        (Ok(None), Some(kept)) => Ok((kept.json, kept.manifest, false)),
        (Ok(Some(TaggedManifest { json, manifest, tag })), _) => {
            let tag = tag.unwrap_or_default();
            let tag = if tag.chars().all(|c| c.is_ascii_graphic()) { &*tag } else { "" };
            // Without this record, the manifest is read again.
            let _ = replace(&known, format!("{}\n{tag}", short(&json)).as_bytes());
            Ok((json, manifest, true))
        }
        (Err(error @ (FarError::Connection { .. } | FarError::Status { .. })), Some(kept)) => {
            info!("{error}; the manifest that is here will do");
            Ok((kept.json, kept.manifest, false))
        }
        (Err(error), _) => Err(error),
        (Ok(None), None) => {
            let reason = "it has not changed, although nothing was known of it".to_owned();
            Err(FarError::Answer { url: origin.render(MANIFEST_FILE), reason })
        }
    }
}

/// A manifest, and the tag by which the server identifies its contents.
struct TaggedManifest {
    json: Vec<u8>,
    manifest: Manifest,
    tag: Option<String>,
}

/// The cached manifest of an address, by the record `known` about it.
fn kept_manifest(root: &Path, known: &Path, longest: u64) -> Option<TaggedManifest> {
    let text = String::from_utf8(read_within(known, MAX_KNOWN)?).ok()?;
    let (key, tag) = text.split_once('\n')?;
    let path = root.join(key).join("files").join(MANIFEST_FILE);
    let json = read_within(&path, longest).filter(|json| short(json) == key)?;
    let manifest = Manifest::from_json(&json).ok()?;
    Some(TaggedManifest { json, manifest, tag: Some(tag.to_owned()) })
}

/// Requests the manifest, unless it still has this tag.
fn request_manifest(
    origin: &FarOrigin,
    attempts: u32,
    longest: u64,
    tag: Option<&str>,
) -> Result<Option<TaggedManifest>, FarError> {
    let read = origin.read_within(attempts, MANIFEST_FILE, longest, tag)?;
    let Some((json, tag)) = read else { return Ok(None) };
    match Manifest::from_json(&json) {
        Ok(manifest) => Ok(Some(TaggedManifest { json, manifest, tag })),
        Err(reason) => Err(FarError::Manifest { address: origin.address().to_string(), reason }),
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
            let bytes = match origin.read(name, len, None)? {
                Some((bytes, _)) => bytes,
                None => Vec::new(),
            };
            let path = place.files.join(name);
            if bytes.len() as u64 != len {
                let found = bytes.len() as u64;
                return Err(FarError::Length { url: origin.render(name), expected: len, found });
            }
            replace(&path, &bytes).map_err(FarError::writing(&path))?;
        }
    }
    Ok(())
}
