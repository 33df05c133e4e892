//! Copies of shards on another drive, whole or partial.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crossbeam_channel::Sender;
use sws_format::{LEARNED_FILE, MANIFEST_FILE, Manifest, PieceId, PieceKind, Progress};

use super::direct::{ALIGN, ShardOutput, SourceFile, buffer};
use super::outdir::OutDir;
use super::verify::{self, STEP, Shard, VerifyOptions};
use super::{ShardError, WORKERS, layout, reporter, start};

/// Options of [`mirror`].
#[derive(Clone, Copy, Debug, Default)]
pub struct MirrorOptions<'a> {
    /// Maximum bytes of the copy; `None` for all shards.
    pub most: Option<u64>,
    /// Pieces that are copied before all others. Of the others the experts come first, in rounds over
    /// the layers.
    pub first: &'a [PieceId],
}

/// Result of [`mirror`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mirrored {
    /// Number of shards in the copy.
    pub shards: usize,
    /// Number of shards of the model.
    pub of: usize,
    /// Bytes of the shards in the copy.
    pub bytes: u64,
    /// Shards that were copied now.
    pub copied: usize,
    /// Shards among these that were damaged before.
    pub damaged: usize,
}

/// Copies the shards in `dir` to `out`, or as many as there is room for.
///
/// Every byte is verified on the way. An interrupted copy is resumed by the same call, and an existing
/// one verified, mended and extended. Its manifest comes first and each shard gets its name once it is
/// complete, so that a model can be read from an unfinished copy as well.
pub fn mirror(
    dir: &Path,
    out: &Path,
    options: &MirrorOptions<'_>,
    verifying: &(dyn Fn(Progress) + Sync),
    copying: &(dyn Fn(Progress) + Sync),
) -> Result<Mirrored, ShardError> {
    let manifest = Manifest::load(dir)?;
    let shards = verify::shards(&manifest);
    let hash = Manifest::hash_in(dir)?;
    let there = Manifest::hash_in(out)?;
    if there.is_some() && there != hash {
        return Err(ShardError::OtherJob { dir: out.to_owned() });
    }
    let mut planned: HashSet<String> = shards.iter().map(|shard| shard.path.to_owned()).collect();
    planned.extend(manifest.copies.iter().map(|copy| copy.path.clone()));
    planned.extend([MANIFEST_FILE, LEARNED_FILE].map(str::to_owned));
    let target = OutDir::open(out, Some(dir), &planned, there.is_some())?;

    let before: Vec<usize> =
        (0..shards.len()).filter(|&at| target.len(shards[at].path) == shards[at].len).collect();
    let sound = intact(&manifest, &shards, &before, out, verifying)?;
    let damaged = before.len() - sound.len();
    let path = dir.join(MANIFEST_FILE);
    let about = path.metadata().map_err(ShardError::reading(&path))?;
    let small = manifest.copies.iter().fold(about.len(), |sum, copy| sum + copy.len);
    let chosen = choose(&shards, &sound, small, options);
    let needed = small + total_len(&shards, &chosen);
    let refused = match options.most {
        Some(most) if sound.is_empty() && chosen.is_empty() => {
            let smallest = shards.iter().map(|shard| shard.len).min().unwrap_or(0);
            Err(ShardError::NoRoom { most, needed: small + smallest })
        }
        _ => target.check_space(needed),
    };
    if let Err(error) = refused {
        target.abandon();
        return Err(error);
    }
    if there.is_none() {
        let json = std::fs::read(&path).map_err(ShardError::reading(&path))?;
        target.write_small(MANIFEST_FILE, &json)?;
    }
    for copy in &manifest.copies {
        if copy.read(out).is_err() {
            target.clear(&copy.path)?;
            target.write_small(&copy.path, &copy.read(dir)?)?;
        }
    }
    copy(&manifest, &shards, &chosen, dir, &target, copying)?;
    Ok(Mirrored {
        shards: sound.len() + chosen.len(),
        of: shards.len(),
        bytes: total_len(&shards, &sound) + total_len(&shards, &chosen),
        copied: chosen.len(),
        damaged,
    })
}

/// Bytes of the shards with these indices.
fn total_len(shards: &[Shard<'_>], indices: &[usize]) -> u64 {
    indices.iter().map(|&at| shards[at].len).sum()
}

/// Verifies shards of an earlier copy. Returns those that are intact.
fn intact(
    manifest: &Manifest,
    shards: &[Shard<'_>],
    before: &[usize],
    out: &Path,
    verifying: &(dyn Fn(Progress) + Sync),
) -> Result<Vec<usize>, ShardError> {
    let held: Vec<Shard<'_>> = before.iter().map(|&at| shards[at]).collect();
    let total = total_len(shards, before);
    let report = reporter(Progress { done: 0, total }, verifying);
    let fingerprint = &manifest.model.fingerprint;
    let damage = verify::check(&held, out, fingerprint, &VerifyOptions::default(), &report)?;
    let damaged: HashSet<usize> = damage.into_iter().map(|(index, _)| before[index]).collect();
    Ok(before.iter().copied().filter(|at| !damaged.contains(at)).collect())
}

/// Chooses the shards to copy besides those that are there, in the order of copying.
fn choose(
    shards: &[Shard<'_>],
    there: &[usize],
    small: u64,
    options: &MirrorOptions<'_>,
) -> Vec<usize> {
    let mut first = HashMap::new();
    for (place, &id) in options.first.iter().enumerate() {
        first.insert(id, place);
    }
    let there: HashSet<usize> = there.iter().copied().collect();
    let mut left = options.most.unwrap_or(u64::MAX).saturating_sub(small);
    let mut order: Vec<usize> = Vec::new();
    for (at, shard) in shards.iter().enumerate() {
        if there.contains(&at) {
            left = left.saturating_sub(shard.len);
        } else {
            order.push(at);
        }
    }
    order.sort_by_key(|&at| rank(&shards[at], &first));
    let mut chosen = Vec::new();
    for at in order {
        if let Some(rest) = left.checked_sub(shards[at].len) {
            left = rest;
            chosen.push(at);
        }
    }
    chosen
}

/// Key of the order of copying. `first` has the places of the pieces that come before all others.
fn rank(shard: &Shard<'_>, first: &HashMap<PieceId, usize>) -> (u8, usize, u32) {
    let piece = shard.piece;
    let is_stand_in = shard.path != layout::file_name(piece, None);
    match (piece.kind(), first.get(&piece)) {
        _ if is_stand_in => (3, 0, 0),
        (_, Some(&place)) => (0, place, 0),
        (PieceKind::Expert(expert), None) => (1, expert as usize, piece.layer().unwrap_or(0)),
        _ => (2, 0, 0),
    }
}

/// Copies shards, several at a time, and publishes them.
fn copy(
    manifest: &Manifest,
    shards: &[Shard<'_>],
    chosen: &[usize],
    dir: &Path,
    target: &OutDir,
    copying: &(dyn Fn(Progress) + Sync),
) -> Result<(), ShardError> {
    let total = total_len(shards, chosen);
    let copy = ShardCopy {
        shards,
        chosen,
        dir,
        fingerprint: &manifest.model.fingerprint,
        target,
        report: &reporter(Progress { done: 0, total }, copying),
        next: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
        failure: Mutex::default(),
    };
    // Bounded, so that a kill loses few unpublished shards.
    let (finished, arriving) = crossbeam_channel::bounded(4 * WORKERS);
    std::thread::scope(|scope| {
        for _ in 0..WORKERS.min(chosen.len()) {
            let finished = finished.clone();
            let started = start(scope, || {
                if let Err(error) = copy.work(finished) {
                    copy.fail(error);
                }
            });
            if let Err(error) = started {
                copy.fail(error);
            }
        }
        drop(finished);
        while let Ok(first) = arriving.recv() {
            // A batch shares the cost of waiting for the device.
            let batch: Vec<usize> = [first].into_iter().chain(arriving.try_iter()).collect();
            if let Err(error) = target.publish(batch.iter().map(|&at| shards[at].path)) {
                copy.fail(error);
                break;
            }
        }
        drop(arriving);
    });
    copy.failure.into_inner().expect("no holder panics").map_or(Ok(()), Err)
}

/// State shared by the threads of [`copy`].
struct ShardCopy<'a> {
    shards: &'a [Shard<'a>],
    /// Indices of the shards to copy.
    chosen: &'a [usize],
    dir: &'a Path,
    fingerprint: &'a str,
    target: &'a OutDir,
    report: &'a (dyn Fn(u64) + Sync),
    /// Index of the next one among the chosen.
    next: AtomicUsize,
    stop: AtomicBool,
    /// The first error.
    failure: Mutex<Option<ShardError>>,
}

impl ShardCopy<'_> {
    /// Copies one shard after another until none is left.
    fn work(&self, finished: Sender<usize>) -> Result<(), ShardError> {
        let mut bytes = buffer(SourceFile::room(STEP))?;
        while !self.stop.load(Ordering::Relaxed)
            && let Some(&at) = self.chosen.get(self.next.fetch_add(1, Ordering::Relaxed))
        {
            let shard = self.shards[at];
            self.target.clear(shard.path)?;
            let path = self.target.unfinished(shard.path)?;
            let mut output = ShardOutput::create(&path, 0, shard.len)?;
            let mut write = |bytes: &[u8]| output.write(bytes);
            let damage =
                shard.check(self.dir, self.fingerprint, &mut bytes, self.report, &mut write)?;
            if let Some(what) = damage.into_iter().next() {
                return Err(ShardError::DamagedCopy { path: self.dir.join(shard.path), what });
            }
            output.pad(ALIGN as u64)?;
            output.finish(&[], shard.len)?;
            if finished.send(at).is_err() {
                return Err(ShardError::Stopped);
            }
        }
        Ok(())
    }

    /// Keeps the first error, and lets the other threads stop.
    fn fail(&self, error: ShardError) {
        self.stop.store(true, Ordering::Relaxed);
        if !matches!(error, ShardError::Stopped) {
            self.failure.lock().expect("no holder panics").get_or_insert(error);
        }
    }
}
