//! Writing of shards: workers that read, encode and write, and one thread that publishes.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_channel::{Receiver, Sender};
use sws_format::{
    Checkpoint, CopiedFile, FileEntry, JOURNAL, LEARNED_FILE, MANIFEST_FILE, Manifest,
    ManifestError, ModelIdentity, Naming, Piece, Progress, StandIn, Tensor,
};
use sws_kernels::Encoding;

use super::direct::{ALIGN, ShardOutput};
use super::encode::{EncodeContext, EncodeWorker};
use super::journal::Journal;
use super::kept::{self, FinishedShards, JournalLine, OutputState, ShardIdentity};
use super::outdir::OutDir;
use super::parts::TensorTarget;
use super::plan::{self, ShardJob};
use super::{ShardError, ShardOptions, WORKERS, copies, layout, pool, reporter, start};

/// Result of [`shard`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharded {
    /// Number of shards in the directory.
    pub shards: usize,
    /// Shards that existed already, from an interrupted or a complete run. Every byte of them was
    /// verified.
    pub found: usize,
    /// Files of that run that were missing or damaged, and were made again.
    pub damaged: usize,
    /// Bytes of the checkpoint's tensors.
    pub source_bytes: u64,
    /// Bytes of the shards, including stand-ins.
    pub stored_bytes: u64,
}

impl Sharded {
    fn of(jobs: &[ShardJob], found: usize, damaged: usize, manifest: &Manifest) -> Sharded {
        Sharded {
            shards: jobs.len(),
            found,
            damaged,
            source_bytes: source_bytes(jobs),
            stored_bytes: stored_bytes(manifest),
        }
    }
}

/// Converts a checkpoint to shards in `out`.
///
/// Resumes an earlier call with the same arguments that was interrupted. Existing shards are
/// verified, and made again if they are damaged. The resulting bytes depend neither on
/// interruptions nor on the number of threads. `progress` is called often, by several threads.
pub fn shard(
    checkpoint: &dyn Checkpoint,
    naming: &dyn Naming,
    out: &Path,
    options: &ShardOptions,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Sharded, ShardError> {
    resume(checkpoint, naming, out, options, &|_| (), progress)
}

/// Like [`shard`], and also reports the progress of verifying existing shards, which comes first.
pub fn resume(
    checkpoint: &dyn Checkpoint,
    naming: &dyn Naming,
    out: &Path,
    options: &ShardOptions,
    verifying: &(dyn Fn(Progress) + Sync),
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Sharded, ShardError> {
    check_stand_ins(options)?;
    let source = Manifest::in_place(checkpoint, naming)?;
    let jobs = plan::jobs(&source, naming, options)?;
    if let Some(stand_ins) = options.stand_ins
        && jobs.iter().all(|job| job.stand_in.is_none())
    {
        return Err(ShardError::NoExperts { dir: checkpoint.dir().to_owned(), stand_ins });
    }
    let small = checkpoint.small_files()?;
    let identity = ShardIdentity::of(&source, options, &jobs);
    let total: u64 = jobs.iter().map(|job| job.source_len).sum();

    let before = kept::look(out, &identity, &jobs)?;
    let complete = match &before {
        OutputState::Complete(manifest) => {
            Some(kept::of_manifest(manifest, out, &jobs, verifying)?)
        }
        _ => None,
    };
    if let (OutputState::Complete(manifest), Some(FinishedShards { damaged: 0, .. })) =
        (&before, &complete)
    {
        // A kill between writing the manifest and removing the journal leaves both.
        if out.join(JOURNAL).is_file() {
            Journal::open::<_, JournalLine>(out, &identity)?.0.remove()?;
        }
        progress(Progress { done: total, total });
        return Ok(Sharded::of(&jobs, jobs.len(), 0, manifest));
    }
    let planned = planned_files(&jobs, &small);
    let is_ours = !matches!(before, OutputState::Other);
    let dir = OutDir::open(out, checkpoint.own_dir(), &planned, is_ours)?;
    let (mut journal, lines) = Journal::open::<_, JournalLine>(dir.path(), &identity)?;
    let was_complete = complete.is_some();
    let FinishedShards { lines: mut results, mut damaged } = match complete {
        Some(kept) => kept,
        None => kept::of_journal(lines, dir.path(), (&identity, &jobs), verifying)?,
    };
    damaged += usize::from(matches!(before, OutputState::Unreadable));
    let found = results.iter().flatten().count();

    let missing = jobs.iter().zip(&results).filter(|(_, result)| result.is_none());
    let left: Vec<&ShardJob> = missing.map(|(job, _)| job).collect();
    let new: u64 = left.iter().map(|job| job.len).sum();
    let replaced: u64 = left.iter().map(|job| dir.len(&job.file)).sum();
    let needed = new.saturating_add(checkpoint.room()).saturating_sub(replaced);
    if let Err(error) = dir.check_space(needed) {
        if found == 0 && damaged == 0 {
            journal.remove()?;
            dir.abandon();
        }
        return Err(error);
    }
    if was_complete {
        // A directory with a manifest counts as complete, which this one is not until its files are
        // made.
        journal.append(results.iter().flatten())?;
        dir.clear(MANIFEST_FILE)?;
    }
    for job in &left {
        dir.clear(&job.file)?;
    }
    let done = total - left.iter().map(|job| job.source_len).sum::<u64>();
    let report = reporter(Progress { done, total }, progress);
    report(0);
    let pool = pool(options.threads)?;
    let context = EncodeContext::new(checkpoint, &source, &pool, &report);
    let order: Vec<usize> =
        plan::by_file(&jobs).into_iter().filter(|&i| results[i].is_none()).collect();
    let inputs = ShardInputs::new(checkpoint, &left);
    let (journal, lines) = run(&context, &dir, &jobs, &order, journal, inputs)?;
    for line in lines {
        let index = line.index;
        results[index] = Some(line);
    }

    let copies = copies::copy(checkpoint, &small, &dir)?;
    let manifest = assemble(&source, options, &jobs, results, copies);
    let json = manifest
        .to_json()
        .map_err(|reason| ManifestError::Invalid { path: out.join(MANIFEST_FILE), reason })?;
    dir.write_small(MANIFEST_FILE, &json)?;
    journal.remove()?;
    Ok(Sharded::of(&jobs, found, damaged, &manifest))
}

/// Names of the files that the shards of these jobs may have, beside copies of small files.
fn planned_files(jobs: &[ShardJob], small: &[String]) -> HashSet<String> {
    let mut planned: HashSet<String> = jobs.iter().map(|job| job.file.clone()).collect();
    planned.extend(small.iter().cloned());
    // Learned statistics of a model may lie beside its shards.
    planned.extend([MANIFEST_FILE, LEARNED_FILE].map(str::to_owned));
    planned
}

/// The encoding of the shards in a directory, finished or begun; `None` if it has none.
pub fn encoding_in(dir: &Path) -> Option<Encoding> {
    if let Ok(Manifest { encoding: Some(finished), .. }) = Manifest::load(dir) {
        return Some(finished);
    }
    Journal::job::<ShardIdentity>(dir)?.encoding.parse().ok()
}

/// Bytes of the checkpoint. A piece counts once, with or without a stand-in.
fn source_bytes(jobs: &[ShardJob]) -> u64 {
    jobs.iter().filter(|job| job.stand_in.is_none()).map(|job| job.source_len).sum()
}

/// Bytes of the shards, including stand-ins.
fn stored_bytes(manifest: &Manifest) -> u64 {
    manifest.files.iter().map(|file| file.len).sum()
}

fn check_stand_ins(options: &ShardOptions) -> Result<(), ShardError> {
    let encoding = options.encoding;
    match options.stand_ins {
        Some(_) if encoding == Encoding::Nested => Err(ShardError::Nested),
        Some(stand_ins) if row_bytes(stand_ins) >= row_bytes(encoding) => {
            Err(ShardError::StandIns { stand_ins, encoding })
        }
        _ => Ok(()),
    }
}

/// Bytes of a row of 4096 weights.
fn row_bytes(encoding: Encoding) -> Option<u64> {
    plan::least_len(encoding, 0, 1, 4096)
}

fn shard_header(
    job: &ShardJob,
    source: &Manifest,
    tensors: &[Tensor],
    len: u64,
) -> Option<Vec<u8>> {
    layout::header(job.piece.id, &source.model.fingerprint, tensors, job.data_start, len)
}

/// Writes the shards listed in `order`. Returns the journal and the lines added to it.
fn run(
    context: &EncodeContext,
    dir: &OutDir,
    jobs: &[ShardJob],
    order: &[usize],
    journal: Journal,
    inputs: ShardInputs,
) -> Result<(Journal, Vec<JournalLine>), ShardError> {
    let next = AtomicUsize::new(0);
    let failure = Mutex::new(None);
    let fail = |error: ShardError| {
        context.stop.store(true, Ordering::Relaxed);
        let mut failure = failure.lock().expect("no holder panics");
        if !matches!(error, ShardError::Stopped) {
            failure.get_or_insert(error);
        }
    };
    // Bounded, so that workers wait for the publisher: a kill would lose unpublished shards.
    let (finished, arriving) = crossbeam_channel::bounded(4 * WORKERS);
    let published = std::thread::scope(|scope| {
        for _ in 0..WORKERS.min(order.len()) {
            let finished = finished.clone();
            let started = start(scope, || {
                if let Err(error) = work(context, dir, jobs, order, &next, finished) {
                    fail(error);
                }
            });
            if let Err(error) = started {
                fail(error);
            }
        }
        drop(finished);
        publish(dir, jobs, journal, inputs, arriving)
    });
    let published = match published {
        Ok(published) => Some(published),
        Err(error) => {
            fail(error);
            None
        }
    };
    match (failure.into_inner().expect("no holder panics"), published) {
        (None, Some(published)) => Ok(published),
        (Some(error), _) => Err(error),
        (None, None) => Err(ShardError::Stopped),
    }
}

fn work(
    context: &EncodeContext,
    dir: &OutDir,
    jobs: &[ShardJob],
    order: &[usize],
    next: &AtomicUsize,
    finished: Sender<JournalLine>,
) -> Result<(), ShardError> {
    let mut worker = EncodeWorker::new(context)?;
    while let Some(&index) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
        let line = write_shard(&mut worker, context, dir, &jobs[index], index)?;
        if finished.send(line).is_err() {
            return Err(ShardError::Stopped);
        }
    }
    Ok(())
}

/// Writes one shard under its temporary name.
fn write_shard(
    worker: &mut EncodeWorker,
    context: &EncodeContext,
    dir: &OutDir,
    job: &ShardJob,
    index: usize,
) -> Result<JournalLine, ShardError> {
    let path = dir.unfinished(&job.file)?;
    let mut out = ShardOutput::create(&path, job.data_start, job.len)?;
    let mut tensors = Vec::with_capacity(job.encodings.len());
    for (tensor, &encoding) in job.piece.tensors.iter().zip(&job.encodings) {
        let kind = job.piece.id.kind();
        let norms = job.stand_in.is_some();
        let mut target =
            TensorTarget { kind, file: index as u32, out: &mut out, path: &path, norms };
        tensors.push(worker.tensor(tensor, encoding, &mut target)?);
    }
    out.pad(ALIGN as u64)?;
    let len = out.position();
    let header = shard_header(job, context.manifest, &tensors, len)
        .expect("the plan left room for the longest header");
    out.finish(&header, len)?;
    Ok(JournalLine { index, len, tensors })
}

/// Renames finished shards and adds them to the journal. A batch consists of all shards that have
/// arrived, to share the cost of waiting for the device.
fn publish(
    dir: &OutDir,
    jobs: &[ShardJob],
    mut journal: Journal,
    mut inputs: ShardInputs,
    arriving: Receiver<JournalLine>,
) -> Result<(Journal, Vec<JournalLine>), ShardError> {
    let mut lines: Vec<JournalLine> = Vec::new();
    while let Ok(first) = arriving.recv() {
        let before = lines.len();
        lines.push(first);
        lines.extend(arriving.try_iter());
        let batch = &lines[before..];
        dir.publish(batch.iter().map(|line| jobs[line.index].file.as_str()))?;
        journal.append(batch)?;
        for line in batch {
            inputs.done(&jobs[line.index]);
        }
    }
    Ok((journal, lines))
}

/// The weight files, with the number of unfinished uses of each.
struct ShardInputs<'a> {
    checkpoint: &'a dyn Checkpoint,
    uses: Vec<usize>,
}

impl<'a> ShardInputs<'a> {
    /// Counts the uses by the remaining jobs, and releases files without any.
    fn new(checkpoint: &'a dyn Checkpoint, left: &[&ShardJob]) -> ShardInputs<'a> {
        let mut uses = vec![0; checkpoint.files().len()];
        for job in left {
            for file in job.files() {
                uses[file as usize] += 1;
            }
        }
        for (file, &uses) in uses.iter().enumerate() {
            if uses == 0 {
                checkpoint.release(file as u32);
            }
        }
        ShardInputs { checkpoint, uses }
    }

    /// Releases files whose last use was this job. Its shard is on disk permanently.
    fn done(&mut self, job: &ShardJob) {
        for file in job.files() {
            self.uses[file as usize] -= 1;
            if self.uses[file as usize] == 0 {
                self.checkpoint.release(file);
            }
        }
    }
}

fn assemble(
    source: &Manifest,
    options: &ShardOptions,
    jobs: &[ShardJob],
    results: Vec<Option<JournalLine>>,
    copies: Vec<CopiedFile>,
) -> Manifest {
    let mut files = Vec::with_capacity(jobs.len());
    let mut pieces: Vec<Piece> = Vec::with_capacity(source.pieces.len());
    for (job, line) in jobs.iter().zip(results) {
        let JournalLine { len, tensors, .. } = line.expect("every job was done");
        files.push(FileEntry { path: job.file.clone(), len });
        match (job.stand_in, pieces.last_mut()) {
            (Some(encoding), Some(piece)) => piece.stand_in = Some(StandIn { encoding, tensors }),
            _ => pieces.push(Piece { id: job.piece.id, tensors, stand_in: None }),
        }
    }
    let model = ModelIdentity {
        model_type: source.model.model_type.clone(),
        fingerprint: source.model.fingerprint.clone(),
    };
    Manifest { model, encoding: Some(options.encoding), files, pieces, copies }
}
