//! Shards left by an earlier call. Intact shards are kept, and the others are made again.

use std::collections::HashSet;
use std::io::{self, Read};
use std::path::Path;

use serde::{Deserialize, Serialize};
use sws_format::{
    InvalidManifest, MANIFEST_FILE, Manifest, ManifestError, Progress, Tensor, open_regular,
};
use sws_kernels::Encoding;

use super::direct::ALIGN;
use super::journal::Journal;
use super::plan::ShardJob;
use super::verify::{self, Shard, VerifyOptions};
use super::{ShardError, ShardOptions, begins_with, layout, reporter};

/// Identifies the job that a journal belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ShardIdentity {
    version: u32,
    fingerprint: String,
    pub(super) encoding: String,
    stand_ins: Option<String>,
    shards: usize,
}

impl ShardIdentity {
    pub(super) fn of(
        source: &Manifest,
        options: &ShardOptions,
        jobs: &[ShardJob],
    ) -> ShardIdentity {
        ShardIdentity {
            version: 2,
            fingerprint: source.model.fingerprint.clone(),
            encoding: options.encoding.name().to_owned(),
            stand_ins: options.stand_ins.map(Encoding::name).map(str::to_owned),
            shards: jobs.len(),
        }
    }
}

/// A journal line: a finished shard.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct JournalLine {
    pub(super) index: usize,
    pub(super) len: u64,
    pub(super) tensors: Vec<Tensor>,
}

impl JournalLine {
    /// True if the extents of this line can be used to read a shard. A foreign journal may contain
    /// other lines.
    fn can_be_read(&self) -> bool {
        let mut parts = self.tensors.iter().flat_map(|tensor| &tensor.parts);
        parts.all(|part| part.file as usize == self.index && part.check_len > 0)
    }
}

/// Finished shards of an earlier call.
pub(super) struct FinishedShards {
    /// For each job, its journal line if the shard exists and is intact.
    pub(super) lines: Vec<Option<JournalLine>>,
    /// Files that are missing or damaged.
    pub(super) damaged: usize,
}

/// State of an output directory before any work.
pub(super) enum OutputState {
    /// The same job was completed, and has this manifest.
    Complete(Manifest),
    /// The same job left shards, and a damaged manifest or journal.
    Unreadable,
    /// Nothing, unfinished work with a journal, or foreign files.
    Other,
}

/// Determines the state of an output directory.
pub(super) fn look(
    out: &Path,
    identity: &ShardIdentity,
    jobs: &[ShardJob],
) -> Result<OutputState, ShardError> {
    if !out.join(MANIFEST_FILE).exists() {
        let begun = Journal::begun(out);
        return Ok(if !begun && has_shards(out, identity, jobs) {
            OutputState::Unreadable
        } else {
            OutputState::Other
        });
    }
    let manifest = match Manifest::read(out) {
        Ok(manifest) => manifest,
        Err(ManifestError::Invalid { reason, .. })
            if !matches!(reason, InvalidManifest::Version(_))
                && (Journal::begun(out) || has_shards(out, identity, jobs)) =>
        {
            return Ok(OutputState::Unreadable);
        }
        Err(error) => return Err(error.into()),
    };
    let mut pieces = manifest.pieces.iter();
    let stand_ins = pieces.find_map(|piece| Some(piece.stand_in.as_ref()?.encoding));
    let wanted_stand_ins = jobs.iter().find_map(|job| job.stand_in);
    let same = manifest.model.fingerprint == identity.fingerprint
        && manifest.encoding.map(Encoding::name) == Some(identity.encoding.as_str())
        && stand_ins == wanted_stand_ins;
    match same {
        true => Ok(OutputState::Complete(manifest)),
        false => Err(ShardError::OtherJob { dir: out.to_owned() }),
    }
}

/// True if the directory has shards of these jobs. Shards in other encodings begin with the same
/// bytes, and must not be mistaken for damaged ones. Some pieces are stored alike in several
/// encodings.
fn has_shards(out: &Path, identity: &ShardIdentity, jobs: &[ShardJob]) -> bool {
    let mut begun = 0;
    let mut alike = 0;
    for job in jobs {
        let path = out.join(&job.file);
        let start = layout::beginning(job.piece.id, &identity.fingerprint, job.data_start);
        if begins_with(&path, &start) {
            begun += 1;
            alike += usize::from(has_encodings(&path, job));
        }
    }
    2 * alike > begun
}

/// True if a shard has about the length of a job, and its header has the planned parts of tensors.
fn has_encodings(path: &Path, job: &ShardJob) -> bool {
    let Ok((len, header)) = read_header(path, job.data_start) else { return false };
    // Patches take a small share, and gaps at most a block each.
    let slack = job.len / 32 + 2 * ALIGN as u64;
    let unpacked = job.len.max(job.data_start.saturating_add(job.source_len));
    let lens = job.len.saturating_sub(slack)..=unpacked.saturating_add(slack);
    if !lens.contains(&len) {
        return false;
    }
    for (tensor, &planned) in job.piece.tensors.iter().zip(&job.encodings) {
        // A lossless encoding is stored unchanged where it gains nothing.
        let may_stay = !planned.is_some_and(Encoding::is_lossy);
        let is_there = has_tensor(&header, tensor, planned)
            || may_stay && has_tensor(&header, tensor, tensor.encoding);
        if !is_there {
            return false;
        }
    }
    true
}

/// The length of a shard, and its first `data_start` bytes.
fn read_header(path: &Path, data_start: u64) -> io::Result<(u64, String)> {
    let file = open_regular(path)?;
    let len = file.metadata()?.len();
    let mut header = Vec::new();
    file.take(data_start).read_to_end(&mut header)?;
    Ok((len, String::from_utf8_lossy(&header).into_owned()))
}

/// True if a header has exactly the parts of a tensor in this encoding, each once.
fn has_tensor(header: &str, tensor: &Tensor, encoding: Option<Encoding>) -> bool {
    let stored = Tensor { encoding, ..tensor.clone() };
    let parts = layout::part_count(&stored);
    for index in 0..parts {
        let entry = format!("\"{}\":", layout::part_name(&stored, index));
        if header.matches(&entry).count() != 1 {
            return false;
        }
    }
    header.matches(&format!("\"{}", tensor.name)).count() == parts
}

/// Verifies the shards and small files of a complete directory.
pub(super) fn of_manifest(
    manifest: &Manifest,
    out: &Path,
    jobs: &[ShardJob],
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<FinishedShards, ShardError> {
    let verified = verify::verify_by(manifest, out, progress)?;
    let damaged: HashSet<&str> = verified.damage.iter().map(|damage| &*damage.file).collect();
    let mut lines = Vec::with_capacity(jobs.len());
    for (index, job) in jobs.iter().enumerate() {
        let is_intact = !damaged.contains(&*job.file);
        lines.push(if is_intact { line_of_manifest(manifest, index, job) } else { None });
    }
    Ok(FinishedShards { lines, damaged: damaged.len() })
}

/// The journal line of a finished shard; `None` if the manifest does not have it.
fn line_of_manifest(manifest: &Manifest, index: usize, job: &ShardJob) -> Option<JournalLine> {
    let file = manifest.files.get(index)?;
    if file.path != job.file {
        return None;
    }
    let piece = manifest.piece(job.piece.id)?;
    let tensors = match job.stand_in {
        Some(_) => &piece.stand_in.as_ref()?.tensors,
        None => &piece.tensors,
    };
    Some(JournalLine { index, len: file.len, tensors: tensors.clone() })
}

/// Verifies the shards that a journal lists.
pub(super) fn of_journal(
    listed: Vec<JournalLine>,
    out: &Path,
    (identity, jobs): (&ShardIdentity, &[ShardJob]),
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<FinishedShards, ShardError> {
    let mut lines: Vec<Option<JournalLine>> = Vec::new();
    lines.resize_with(jobs.len(), Option::default);
    // The journal has two lines for a shard that was made again.
    for line in listed.into_iter().filter(JournalLine::can_be_read) {
        if let Some(place) = lines.get_mut(line.index) {
            *place = Some(line);
        }
    }
    let mut shards = Vec::new();
    let mut indices = Vec::new();
    let mut total = 0u64;
    for line in lines.iter().flatten() {
        let job = &jobs[line.index];
        shards.push(Shard {
            path: &job.file,
            len: line.len,
            piece: job.piece.id,
            data_start: job.data_start,
            tensors: &line.tensors,
        });
        indices.push(line.index);
        total = total.saturating_add(line.len);
    }
    let report = reporter(Progress { done: 0, total }, progress);
    let found =
        verify::check(&shards, out, &identity.fingerprint, &VerifyOptions::default(), &report)?;
    let mut damaged: Vec<usize> = found.iter().map(|(shard, _)| indices[*shard]).collect();
    damaged.dedup();
    for &index in &damaged {
        lines[index] = None;
    }
    Ok(FinishedShards { lines, damaged: damaged.len() })
}
